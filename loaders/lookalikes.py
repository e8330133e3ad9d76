"""Loaders that others build from the parts of a balanced one, and that would give other batches."""

from __future__ import annotations

from typing import Any, NoReturn


def only_balanced(samples: list[Any]) -> NoReturn:
    """What ``loader.collate_fn`` is with ``max_tokens``, where none was given. The loader never calls it.

    Frameworks copy a loader's data set, batch sampler and ``collate_fn`` into a loader of torch's class, to
    skip batches or to change the sampler. That one would give unplanned batches, so it ends here instead.
    """
    raise RuntimeError(
        "a loader of torch's class was built from the parts of a balanced one, whose batches are planned "
        "over all ranks and not made by torch. To go on in the middle of an epoch, call "
        "loader.load_state_dict() instead of accelerate's skip_first_batches (Trainer: "
        "ignore_data_skip=True); keep the sampler as it is (Lightning: "
        "Trainer(use_distributed_sampler=False)); predict with a plain loop."
    )


def check_own_order(steps: Any, arguments: Any) -> None:
    """Refuse a batch sampler that is made anew around another sampler, as Lightning does it."""
    if arguments or not hasattr(steps, "members"):
        raise ValueError(
            "a balanced loader's order is a function of the position that all ranks share: it takes no other "
            "sampler. With Lightning pass Trainer(use_distributed_sampler=False)."
        )
