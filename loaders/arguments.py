"""What a loader's arguments must be, each with the sentence that says so."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from balancer.phases import Phase
from balancer.sharding import alignment
from loaders.faults import ON_ERROR
from packing.checks import check_choice, whole

logger = logging.getLogger(__name__)

SLOT = "slot"
"""Pads each batch to the largest of all ranks in its slot."""

MAX_TOKENS = 2**31 - 1
"""Of a whole micro-batch."""
MOST = 2**63 - 1
MOST_SLOTS = 2**20
"""Micro-batches of a rank and step: more are a slip of the pen, and would take the memory."""


WINDOW = 4
"""Steps of a stream's window by default."""

OF_ROWS = (
    "engine",
    "assignment",
    "bos",
    "eos",
    "max_samples",
    "micro_batches",
    "slots_multiple_of",
    "device",
    "group_media",
)
"""Arguments that need data whose rows are known beforehand."""
OF_EXCHANGE = ("max_samples", "micro_batches", "slots_multiple_of")
"""Those of them that streams planned as one can have as well."""


def defaults_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Defaults of a function's arguments, or of a constructor's, by their names in its order."""
    parameters = inspect.signature(function).parameters.values()
    return {parameter.name: parameter.default for parameter in parameters if parameter.name != "self"}


def refuse_without_effect(arguments: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Arguments of the balanced mode where the mode is torch's."""
    given = differing(arguments, defaults)
    if given:
        raise ValueError(
            f"{', '.join(given)} only has an effect with max_tokens, which is not set. Pass max_tokens= "
            "for balanced, packed micro-batches, or leave the rest out for torch's own loader."
        )


def differing(arguments: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[str]:
    """Names of the arguments that are not what they are by default."""
    return [name for name, value in arguments.items() if _differs(value, defaults[name])]


def _differs(value: Any, default: Any) -> bool:
    if value is default or default is None:
        return value is not default
    if isinstance(default, tuple) and isinstance(value, Iterable):
        value = tuple(value)
    return bool(value != default)


def check_order(
    sampler: Any, batch_sampler: Any, batch_size: Any, global_batch_size: Any, step_tokens: Any
) -> None:
    """What decides the samples of a step."""
    for name, value in (("sampler", sampler), ("batch_sampler", batch_sampler)):
        if value is not None:
            raise ValueError(
                f"{name} cannot be used with max_tokens: all ranks must see one order, which is a function "
                "of the position. Leave it out and pass shuffle=, or choose samples by a Mixture or a "
                "torch.utils.data.Subset as dataset."
            )
    if global_batch_size is not None and step_tokens is not None:
        raise ValueError("global_batch_size and step_tokens both fix a step's samples: pass one of them.")
    for name, value in (("global_batch_size", global_batch_size), ("step_tokens", step_tokens)):
        if value is not None and not callable(value):
            check_count(name, value)
    if global_batch_size is None and step_tokens is None:
        if not is_count(batch_size):
            raise ValueError(
                f"batch_size must be a positive integer with max_tokens, got {batch_size!r}. It is the "
                "samples per rank and step; global_batch_size= or step_tokens= fix the step for any number "
                "of ranks."
            )
    elif batch_size not in (None, 1):
        fixed_by = "step_tokens" if global_batch_size is None else "global_batch_size"
        logger.warning("batch_size=%s has no effect: %s fixes the samples of a step.", batch_size, fixed_by)


def check_stream(
    *,
    exchange: bool,
    ranks: int,
    window: int,
    cp_degrees: Sequence[int],
    global_batch_size: int | None,
    step_tokens: Any,
    length: Any,
    phases: Any,
    oversize: str,
    fill_media: Any,
) -> None:
    """What a loader over an IterableDataset can do, and what only with exchange."""
    if fill_media is not None:
        raise ValueError(
            "fill_media cannot be used over an IterableDataset, whose media are not known beforehand. Open "
            "them with MultimodalSource, or leave it out."
        )
    if length is not None and not (isinstance(length, str) or callable(length)):
        raise ValueError(
            "length must name an entry of a stream's samples or be a function of one, got "
            f"{type(length).__name__}: samples have no numbers beforehand. Leave it out: tokens are counted."
        )
    if phases is not None and oversize in ("truncate", "split"):
        raise ValueError(
            f"oversize={oversize!r} cannot be used with phases over an IterableDataset: where a sample's "
            'media lie is not known. Choose "error" or "drop".'
        )
    if exchange:
        if window != WINDOW:
            raise ValueError(
                "window has no effect with exchange=True: all ranks' samples are planned step by step."
            )
        return
    if max(cp_degrees) > 1:
        raise ValueError(
            f"cp_degrees={tuple(cp_degrees)} over an IterableDataset needs exchange=True: ranks that share a "
            "sample must all be sent it."
        )
    if step_tokens is not None:
        raise ValueError(
            "step_tokens over an IterableDataset needs exchange=True (which one rank may use as well): "
            "without it a window of samples is divided into steps of equal time, whatever their tokens."
        )
    if global_batch_size is not None and global_batch_size % ranks:
        raise ValueError(
            f"global_batch_size={global_batch_size} over an IterableDataset must be a multiple of the "
            f"{ranks} data ranks without exchange=True, since each makes steps of its own stream."
        )


def check_faults(on_error: str, max_errors: Any, quarantine: Any) -> None:
    """How samples that cannot be read are treated."""
    check_choice("on_error", on_error, ON_ERROR)
    share = isinstance(max_errors, float) and 0.0 <= max_errors <= 1.0
    count = not isinstance(max_errors, bool | float) and (is_count(max_errors) or max_errors == 0)
    if not share and not count:
        raise ValueError(
            f"max_errors must be a whole number of samples or a share from 0.0 to 1.0, got {max_errors!r}."
        )
    if quarantine is not None and on_error != "skip":
        raise ValueError('quarantine only has an effect with on_error="skip": else the first error raises.')


def check_switches(**switches: Any) -> None:
    """True or False: a word such as "no" would count as true."""
    for name, value in switches.items():
        if not isinstance(value, bool):
            raise ValueError(f"{name} must be True or False, got {value!r}.")


def check_address(engine: str, address: Any) -> None:
    """Where the cluster is."""
    if address is not None and engine != "ray":
        raise ValueError(f'address={address!r} only has an effect with engine="ray".')


def check_count(name: str, value: Any) -> None:
    """A whole number of at least 1."""
    if not is_count(value):
        raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}.")
    if value > MOST:
        raise ValueError(f"{name} must be below 2^63, got {value!r}.")


def refuse_over_streams(arguments: Mapping[str, Any], defaults: Mapping[str, Any], *, exchange: bool) -> None:
    """Arguments that are for data whose rows are known beforehand."""
    names = [name for name in OF_ROWS if not (exchange and name in OF_EXCHANGE)]
    given = differing({name: arguments[name] for name in names}, defaults)
    if given:
        raise ValueError(
            f"{', '.join(given)} cannot be used over an IterableDataset, whose samples are only seen as they "
            "come. Open the data's files with open_source, or leave the argument out."
        )


def refuse_over_rows(*, exchange: bool, window: int) -> None:
    """Arguments that are for streams."""
    if exchange:
        raise ValueError(
            "exchange only has an effect on an IterableDataset: the rows of other data are planned over "
            "all ranks as it is."
        )
    if window != WINDOW:
        raise ValueError("window only has an effect on an IterableDataset: other data is planned as a whole.")


def check_slots(micro_batches: Any, slots_multiple_of: Any, max_samples: Any, phases: Any) -> None:
    """How many micro-batches each rank runs, and how many samples one holds."""
    for name, value in (("micro_batches", micro_batches), ("max_samples", max_samples)):
        if value is not None:
            check_count(name, value)
    check_count("slots_multiple_of", slots_multiple_of)
    for name, value in (("micro_batches", micro_batches), ("slots_multiple_of", slots_multiple_of)):
        if value is not None and value > MOST_SLOTS:
            raise ValueError(f"{name} must be at most {MOST_SLOTS}, got {value!r}.")
    if phases is not None and slot_options(micro_batches, slots_multiple_of):
        raise ValueError(
            "micro_batches and slots_multiple_of cannot be used with phases: the number of slots follows "
            "from the encoders' work. Leave phases= out, or leave their number free."
        )


def check_phases(phases: Any, policy: str) -> None:
    """What encoders cost, by name; other policies than the balanced one know tokens alone."""
    if phases is not None:
        if not isinstance(phases, Mapping):
            raise TypeError(f"phases must be a dict of names to Phase or CostModel, got {phases!r}.")
        for name, phase in phases.items():
            if not isinstance(phase, Phase) and not hasattr(phase, "fixed_nanoseconds"):
                raise TypeError(
                    f"phases[{name!r}] must be a balancer.Phase or a CostModel, got {phase!r}. For instance "
                    "Phase(cost=CostModel(linear=2e-5, quadratic=0.0))."
                )
    if phases is not None and policy != "balanced":
        raise ValueError(f'phases are planned by policy="balanced" only, it is {policy!r}.')


def slot_options(micro_batches: int | None, slots_multiple_of: int) -> dict[str, int]:
    """The planner's options, where they say anything."""
    options = {} if micro_batches is None else {"micro_batches": micro_batches}
    return options | ({"slots_multiple_of": slots_multiple_of} if slots_multiple_of > 1 else {})


def border_options(bos: int | None, eos: int | None) -> dict[str, Any]:
    """Arguments for opening data whose samples are given tokens to begin or end with."""
    return {} if bos is None and eos is None else {"borders": {"bos": bos, "eos": eos}}


def check_assignment(phases: Any, fill_media: Any, group_media: bool) -> None:
    """What goes with encoders that have an assignment of their own."""
    if not phases:
        raise ValueError('assignment="separate" divides the work of phases=, which are not given.')
    if fill_media or group_media:
        raise ValueError(
            'fill_media and group_media have no effect with assignment="separate": every rank is given media '
            "to encode in each step that has any."
        )


def check_grouping(group_media: bool, sync: str) -> None:
    """Where ranks meet only once a step, it does not matter which encoders they run before."""
    if group_media and sync != "micro_batch":
        raise ValueError(
            'group_media only has an effect with sync="micro_batch", where ranks meet in every slot.'
        )


def check_cap(max_tokens: int, degrees: Sequence[int]) -> None:
    """Borders within a batch are 32-bit."""
    most = max_tokens * max(degrees)
    if most > MAX_TOKENS:
        raise ValueError(
            f"a micro-batch may have at most {MAX_TOKENS} tokens, since its borders are 32-bit numbers; "
            f"max_tokens times the largest CP degree is {most}."
        )
    if max(degrees) > 1 and max_tokens % 2:
        # not refused: it costs one token a rank, and none where one rank works alone, without alignment
        logger.warning(
            "max_tokens=%d is odd: of micro-batches that d ranks share, their samples padded to multiples "
            "of 2 * d, each rank holds at most %d. Nothing is lost with %d or %d.",
            max_tokens,
            max_tokens - 1,
            max_tokens - 1,
            max_tokens + 1,
        )


def checked_degrees(cp_degrees: int | Sequence[int], ranks: int) -> tuple[int, ...]:
    """CP degrees, rising, each once."""
    degrees = tuple(cp_degrees) if isinstance(cp_degrees, Iterable) else (cp_degrees,)
    if not degrees or not all(is_count(degree) for degree in degrees):
        raise ValueError(f"cp_degrees must be one or more whole numbers of at least 1, got {cp_degrees!r}.")
    if max(degrees) > ranks:
        raise ValueError(
            f"cp_degrees must not exceed the number of data ranks ({ranks}), got {cp_degrees!r}. The number "
            "comes from topology=, device_mesh= or torch.distributed."
        )
    return tuple(sorted({int(degree) for degree in degrees}))


def pads_slots(pad_to: Any, sync: str, stream: bool, collate_fn: Any) -> bool:
    """Whether every batch is padded to the largest of its slot, which metadata tells on all ranks."""
    if not (isinstance(pad_to, str) and pad_to == SLOT):  # an array is compared item by item
        return False
    if sync != "micro_batch" or stream or collate_fn is not None:
        raise ValueError(
            f'pad_to="{SLOT}" pads to the largest batch of all ranks in a slot: it needs sync="micro_batch", '
            "rows that are known beforehand (of a stream: exchange=True) and the loader's own layout. "
            "Otherwise give one or a few sizes."
        )
    return True


def check_slot_fillers(pad_slots: bool, fillers: Mapping[str, int], separate: bool) -> None:
    """Fillers are added behind a batch's tokens."""
    if pad_slots and (fillers or separate):
        raise ValueError(
            f'pad_to="{SLOT}" cannot be used with filler media or assignment="separate": pass '
            "fill_media=False, or one or a few sizes."
        )


def checked_pads(pad_to: int | Sequence[int] | str | None, max_tokens: int) -> tuple[int, ...]:
    """Allowed token counts of a batch, rising; empty: any, or the largest of each slot."""
    if pad_to is None or (isinstance(pad_to, str) and pad_to == SLOT):
        return ()
    sizes: tuple[Any, ...] = tuple(pad_to) if isinstance(pad_to, Iterable) else (pad_to,)
    sound = bool(sizes) and all(is_count(size) and size <= MAX_TOKENS for size in sizes)
    if not sound or max(map(int, sizes)) < max_tokens:
        raise ValueError(
            f"pad_to must be one or more whole numbers, the largest at least max_tokens ({max_tokens}), "
            f'since a batch may be that long, or "{SLOT}"; got {pad_to!r}.'
        )
    return tuple(sorted({int(size) for size in sizes}))


def chosen_seed(seed: int | None, generator: Any, dataset: Any) -> int:
    """The order's seed: as given, or that of a torch generator, or the data set's, or 0."""
    if seed is not None:
        if isinstance(seed, bool):
            raise ValueError(f"seed must be a whole number, got {seed!r}.")
        return whole("seed", seed)
    if generator is not None:
        return int(generator.initial_seed())
    own = getattr(dataset, "seed", 0)
    return own if isinstance(own, int) else 0


def sample_capacity(max_tokens: int, degrees: Sequence[int]) -> int:
    """Tokens of the longest sample that some allowed degree can hold, its alignment padding included."""
    capacity = max(max_tokens * degree // alignment(degree) * alignment(degree) for degree in degrees)
    if max_tokens < 1:
        raise ValueError(
            "filler media, for ranks without any, leave no token of max_tokens for samples. Raise "
            "max_tokens, or pass fill_media=False."
        )
    if capacity < 1:
        raise ValueError(
            f"no sample fits max_tokens={max_tokens} with cp_degrees={tuple(degrees)}: ranks that share a "
            "sample hold two chunks of it each. Raise max_tokens to at least 2, or allow degree 1."
        )
    return capacity


def is_count(value: Any) -> bool:
    """Whether ``value`` is a whole number of at least 1."""
    try:
        return not isinstance(value, bool) and int(value) == value and value >= 1
    except (TypeError, ValueError):
        return False
