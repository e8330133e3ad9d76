"""A state for torch's own loader: how many batches were taken, and the random state the epoch began with.

A sampler or batch sampler with ``state_dict`` and ``load_state_dict`` is saved: as it was when it gave the
last batch that was given out, however far workers have read ahead. Torch's own keep no position, so they are
replayed: index by index, without touching the data. A map-style data set so resumes exactly if its sampler's
order follows from torch's generators or from an epoch number. A data set in this process is asked for its own
state (``state_dict``); an iterable one that has none is read again up to the position. Random numbers that
workers draw are those of a new epoch.
"""

from __future__ import annotations

import copy
import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import BatchSampler, DistributedSampler, IterableDataset, SequentialSampler, dataloader

VERSION = 1
NEVER_RANDOM = (SequentialSampler, BatchSampler, DistributedSampler, dataloader._InfiniteConstantSampler)
"""Samplers that draw nothing from torch's global generator."""


@dataclass(kw_only=True, slots=True, eq=False)
class Progress:
    """Where an iteration stands; shared with its iterator, so that it outlives it."""

    epoch: int = 0
    taken: int = 0
    """Batches given out since the epoch began."""
    random: dict[str, torch.Tensor] | None = None
    """States of the generators when the epoch began; ``None`` before it has."""
    finished: bool = False
    sampler: Any = None
    """State of a sampler that has one, behind the last batch that was given out."""
    counted: bool = True
    """Whether the iterator is torch's, and not one that a subclass makes itself."""


class Counted:
    """Torch's iterators that count the batches which were given out."""

    progress = Progress()
    """Of the loader's current epoch; here that of nobody."""


def counting(base: Any) -> Any:
    """One of torch's iterators that counts, by the same name: profiler ranges are made of it."""
    following = base.__next__  # called directly: super() costs a tenth of a microsecond a batch

    def __next__(self: Any) -> Any:
        try:
            data = following(self)
        except StopIteration:
            self.progress.finished = True
            raise
        self.progress.taken += 1
        return data

    return type(base.__name__, (Counted, base), {"__next__": __next__})


class Saved:
    """Mixed into the iterators over samplers that have a state: keeps it until the batch is given out."""

    def __init__(self, loader: Any) -> None:
        self.saving = stateful_sampler(loader)
        self.drawn: deque[Any] = deque()
        super().__init__(loader)  # type: ignore[call-arg]

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self.drawn.clear()
        super()._reset(loader, first_iter)  # type: ignore[misc]

    def _next_index(self) -> Any:
        index = super()._next_index()  # type: ignore[misc]
        self.drawn.append(copy.deepcopy(self.saving.state_dict()))
        return index

    def __next__(self) -> Any:
        data = super().__next__()  # type: ignore[misc]
        self.progress.sampler = self.drawn.popleft()  # type: ignore[attr-defined]
        return data


CountedSingle = counting(dataloader._SingleProcessDataLoaderIter)
CountedMulti = counting(dataloader._MultiProcessingDataLoaderIter)
SavedSingle = type(CountedSingle.__name__, (Saved, CountedSingle), {})
SavedMulti = type(CountedMulti.__name__, (Saved, CountedMulti), {})


def iterator_of(loader: Any) -> Any:
    """Torch's iterator over one epoch, which counts."""
    saves = stateful_sampler(loader) is not None
    if loader.num_workers == 0:
        return (SavedSingle if saves else CountedSingle)(loader)
    loader.check_worker_number_rationality()
    return (SavedMulti if saves else CountedMulti)(loader)


class Replayed:
    """An index sampler that starts from saved random states and leaves its first indices out, once."""

    def __init__(self, sampler: Iterable[Any], loader: Any, progress: Progress) -> None:
        self.sampler = sampler
        self._loader: Any = loader
        self._progress = progress

    def __iter__(self) -> Iterator[Any]:
        return iter(self.sampler) if self._loader is None else self._replay()

    def _replay(self) -> Iterator[Any]:
        # lazily, as torch draws the seed of its workers between iter() and the first index
        saved, taken = stateful_sampler(self._loader), self._progress.taken
        if saved is not None and self._progress.sampler is not None:
            saved.load_state_dict(copy.deepcopy(self._progress.sampler))
            # with its last batch a sampler may have begun anew
            if not hasattr(self.sampler, "__len__") or taken < len(self):
                yield from self.sampler
            return
        set_generator_states(self._loader, self._progress.random)
        yield from itertools.islice(iter(self.sampler), self._progress.taken, None)

    def done(self) -> None:
        """Later epochs of the same iterator, with persistent workers, run as usual."""
        self._loader = None

    def __len__(self) -> int:
        return len(self.sampler)  # type: ignore[arg-type]


class TorchState:
    """Epochs, positions and resumption of a loader in torch's mode."""

    def __init__(self) -> None:
        self.progress = Progress()
        self.resumes: Progress | None = None
        """Loaded, and not yet iterated from."""
        self.dataset_state: Any = None

    def start(self, loader: Any, make: Any) -> Any:
        """A torch iterator over a new epoch, or from a loaded state on.

        Args:
            loader: the loader; where its ``_replay`` is set, its index sampler is to be `Replayed`.
            make: gives torch's iterator, as ``DataLoader.__iter__`` does.
        """
        resumes, self.resumes = self.resumes, None
        if resumes is None:
            old = self.progress
            begun = old.random is not None
            self.progress = Progress(epoch=old.epoch + begun, random=_states_at_first_index(loader))
            iterator = make()
        else:
            self.progress = resumes
            iterator = self._resumed(loader, make, resumes)
        self.progress.counted = isinstance(iterator, Counted)
        if self.progress.counted:
            iterator.progress = self.progress
        return iterator

    def _resumed(self, loader: Any, make: Any, progress: Progress) -> Any:
        if isinstance(loader.dataset, IterableDataset):
            return self._reread(loader, make, progress)
        if self.dataset_state is not None:
            loader.dataset.load_state_dict(self.dataset_state)
            self.dataset_state = None
        with generators_kept(loader):
            loader.__dict__["_replay"] = progress
            iterator = make()
            loader.__dict__["_replay"] = None
            if loader.num_workers == 0:  # draw the order's seed now, while the generators stand at its place
                indices = iterator._sampler_iter
                iterator._sampler_iter = itertools.chain(list(itertools.islice(indices, 1)), indices)
        iterator._index_sampler.done()
        return iterator

    def _reread(self, loader: Any, make: Any, progress: Progress) -> Any:
        if self.dataset_state is not None:
            loader.dataset.load_state_dict(self.dataset_state)
            self.dataset_state = None
            return make()
        with generators_kept(loader):
            iterator = make()
            for _ in itertools.islice(iterator, progress.taken):
                pass
        return iterator

    def set_epoch(self, loader: Any, epoch: int) -> None:
        """Tell the samplers and the data set; a state loaded in the middle of ``epoch`` is kept."""
        tell_epoch(loader, epoch)
        if self.resumes is not None and self.resumes.epoch == epoch:
            return
        self.resumes = None
        self.progress = Progress(epoch=epoch)

    def save(self, loader: Any) -> dict[str, Any]:
        """What `load` needs."""
        progress = self.resumes or self.progress
        if not progress.counted:
            raise RuntimeError(
                f"{type(loader).__name__} makes its own iterator, so the batches that it gives out are not "
                "counted here. Save a state of that iterator instead."
            )
        if progress.finished:
            progress = Progress(epoch=progress.epoch + 1)
        state: dict[str, Any] = {
            "version": VERSION,
            "mode": "torch",
            "epoch": progress.epoch,
            "batches": progress.taken,
            "random": None if progress.random is None else dict(progress.random),
            "told epochs": told_epochs(loader),
        }
        if progress.sampler is not None:
            state["sampler"] = progress.sampler
        if self.resumes is not None and self.dataset_state is not None:
            state["dataset"] = self.dataset_state
        elif _has_state(loader) and progress.taken:
            state["dataset"] = loader.dataset.state_dict()
        return state

    def load(self, loader: Any, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on where ``state`` was saved."""
        if state.get("mode") != "torch":
            raise ValueError(
                "this is not a state of a loader without max_tokens: mode must be 'torch', got "
                f"{state.get('mode')!r}. A state saved with max_tokens is loaded with it."
            )
        if state["version"] != VERSION:
            raise ValueError(f"the state has version {state['version']}, this code reads {VERSION}.")
        self.dataset_state = state.get("dataset")
        loader.__dict__["_iterator"] = None  # persistent workers have read ahead of the state
        for owner, epoch in zip(_owners_of_epochs(loader), state["told epochs"], strict=False):
            if epoch is not None:
                owner.set_epoch(epoch)
        begun = state["random"] is not None
        self.progress = Progress(epoch=state["epoch"])
        self.resumes = (
            Progress(
                epoch=state["epoch"],
                taken=state["batches"],
                random=state["random"],
                sampler=state.get("sampler"),
            )
            if begun
            else None
        )


@contextmanager
def generators_kept(loader: Any) -> Iterator[None]:
    """Leave all generators as they are found: a training loop that has put its own state back keeps it."""
    default, now = torch.get_rng_state(), generator_states(loader)
    try:
        yield
    finally:
        torch.set_rng_state(default)
        set_generator_states(loader, now)


def _states_at_first_index(loader: Any) -> dict[str, torch.Tensor]:
    """States when the sampler will draw: behind the workers' seed, unless persistent workers keep theirs."""
    if loader._iterator is not None:
        return generator_states(loader)
    drawn_from = torch.default_generator if loader.generator is None else loader.generator
    if not isinstance(drawn_from, torch.Generator):
        return {}  # torch is about to refuse it, in its own words
    before = drawn_from.get_state()
    torch.empty((), dtype=torch.int64).random_(generator=drawn_from)
    states = generator_states(loader)
    drawn_from.set_state(before)
    return states


def _has_state(loader: Any) -> bool:
    """Whether the data set can be asked for its position: one that lives in this process, not in workers."""
    return (
        loader.num_workers == 0
        and callable(getattr(loader.dataset, "state_dict", None))
        and callable(getattr(loader.dataset, "load_state_dict", None))
    )


def stateful_sampler(loader: Any) -> Any:
    """The sampler or batch sampler that can be saved; ``None`` where there is none, as torch's own."""
    for sampler in _samplers(loader):
        if callable(getattr(sampler, "state_dict", None)) and callable(
            getattr(sampler, "load_state_dict", None)
        ):
            return sampler
    return None


def _samplers(loader: Any) -> list[Any]:
    """The loader's samplers and those that they wrap, each once."""
    found: list[Any] = []
    for owner in (loader.batch_sampler, loader.sampler):
        for sampler in (owner, getattr(owner, "sampler", None)):
            if sampler is not None and not any(sampler is one for one in found):
                found.append(sampler)
    return found


def _generators(loader: Any) -> dict[str, torch.Generator]:
    """The generators that the order may depend on, by names that a fresh loader gives them too."""
    generators: dict[str, torch.Generator] = {}
    for number, sampler in enumerate(_samplers(loader)):
        generator = getattr(sampler, "generator", None)
        if generator is None and not isinstance(sampler, NEVER_RANDOM):
            generators["torch"] = torch.default_generator
        elif isinstance(generator, torch.Generator):
            generators[f"sampler {number}"] = generator
    if isinstance(loader.generator, torch.Generator):
        generators["loader"] = loader.generator
    return generators


def generator_states(loader: Any) -> dict[str, torch.Tensor]:
    """Their states; 5 kB each, so one that serves under two names is saved once."""
    states: dict[str, torch.Tensor] = {}
    seen: list[torch.Generator] = []
    for name, generator in _generators(loader).items():
        if not any(generator is one for one in seen):
            seen.append(generator)
            states[name] = generator.get_state()
    return states


def set_generator_states(loader: Any, states: Mapping[str, torch.Tensor] | None) -> None:
    """Put the generators back."""
    generators = _generators(loader)
    for name, state in (states or {}).items():
        if name in generators:
            generators[name].set_state(state)


def tell_epoch(loader: Any, epoch: int) -> None:
    """Call ``set_epoch`` of the samplers and the data set, where they have one."""
    for owner in _owners_of_epochs(loader):
        owner.set_epoch(epoch)


def told_epochs(loader: Any) -> list[int | None]:
    """The epoch that each of them was last told, where it shows it: not every training loop tells them."""
    epochs = [getattr(owner, "epoch", None) for owner in _owners_of_epochs(loader)]
    return [epoch if isinstance(epoch, int) else None for epoch in epochs]


def _owners_of_epochs(loader: Any) -> list[Any]:
    owners = (*_samplers(loader), loader.dataset)
    return [owner for owner in owners if callable(getattr(owner, "set_epoch", None))]
