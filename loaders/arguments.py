"""What a loader's arguments must be, each with the sentence that says so."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from balancer.sharding import alignment
from loaders.faults import ON_ERROR

logger = logging.getLogger(__name__)


def refuse_without_effect(arguments: Mapping[str, tuple[Any, Any]]) -> None:
    """Arguments of the balanced mode, with their defaults, where the mode is torch's."""
    given = [name for name, (value, default) in arguments.items() if _differs(value, default)]
    if given:
        raise ValueError(
            f"{', '.join(given)} only has an effect with max_tokens, which is not set. Pass max_tokens= "
            "for balanced, packed micro-batches, or leave the rest out for torch's own loader."
        )


def _differs(value: Any, default: Any) -> bool:
    if value is default:
        return False
    return isinstance(value, type(default)) and bool(value != default) if default is not None else True


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


def refuse_for_streams(arguments: Mapping[str, tuple[Any, Any]]) -> None:
    """Arguments, with their defaults, that need rows by number or samples of other ranks."""
    given = [name for name, (value, default) in arguments.items() if _differs(value, default)]
    if given:
        raise ValueError(
            f"{', '.join(given)} cannot be used with max_tokens over an IterableDataset: each rank packs and "
            "balances a window of its own stream. Open the data's files with open_source, so that rows can "
            "be addressed by number, or leave the argument out."
        )


def refuse_exchange(exchange: bool) -> None:
    """Samples of a stream stay on the rank that read them."""
    if exchange:
        raise ValueError(
            "exchange=True is not available: samples of streams are not moved between ranks. Leave it out "
            "and pass a larger window=, which brings the ranks' own steps together, or open the data's files "
            "with open_source, whose samples are planned over all ranks."
        )


def check_faults(on_error: str, max_errors: Any, quarantine: Any) -> None:
    """How samples that cannot be read are treated."""
    check_choice("on_error", on_error, ON_ERROR)
    share = isinstance(max_errors, float) and 0.0 <= max_errors <= 1.0
    count = isinstance(max_errors, int) and not isinstance(max_errors, bool) and max_errors >= 0
    if not share and not count:
        raise ValueError(
            f"max_errors must be a whole number of samples or a share from 0.0 to 1.0, got {max_errors!r}."
        )
    if quarantine is not None and on_error != "skip":
        raise ValueError('quarantine only has an effect with on_error="skip": else the first error raises.')


def check_count(name: str, value: Any) -> None:
    """A whole number of at least 1."""
    if not is_count(value):
        raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}.")


def check_choice(name: str, value: Any, allowed: Iterable[str]) -> None:
    """One of a few names."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}.")


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


def checked_pads(pad_to: int | Sequence[int] | None, max_tokens: int) -> tuple[int, ...]:
    """Allowed token counts of a batch, rising; empty: any."""
    if pad_to is None:
        return ()
    sizes = tuple(pad_to) if isinstance(pad_to, Iterable) else (pad_to,)
    if not sizes or not all(is_count(size) for size in sizes) or max(sizes) < max_tokens:
        raise ValueError(
            f"pad_to must be one or more whole numbers, the largest at least max_tokens ({max_tokens}), "
            f"since a batch may be that long; got {pad_to!r}."
        )
    return tuple(sorted({int(size) for size in sizes}))


def chosen_seed(seed: int | None, generator: Any, dataset: Any) -> int:
    """The order's seed: as given, or that of a torch generator, or the data set's, or 0."""
    if seed is not None:
        return int(seed)
    if generator is not None:
        return int(generator.initial_seed())
    own = getattr(dataset, "seed", 0)
    return own if isinstance(own, int) else 0


def sample_capacity(max_tokens: int, degrees: Sequence[int]) -> int:
    """Tokens of the longest sample that some allowed degree can hold, its alignment padding included."""
    return max(max_tokens * degree // alignment(degree) * alignment(degree) for degree in degrees)


def is_count(value: Any) -> bool:
    """Whether ``value`` is a whole number of at least 1."""
    try:
        return not isinstance(value, bool) and int(value) == value and value >= 1
    except (TypeError, ValueError):
        return False
