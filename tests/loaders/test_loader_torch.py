"""Without ``max_tokens`` the loader is torch's: arguments, batches, attributes, errors. Plus a state."""

from __future__ import annotations

import copy
import inspect
import itertools
import pickle

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)
from torch.utils.data import DataLoader as TorchLoader

from loaders import DataLoader
from tests.loaders.arrays import ArraySource


class Counting(Dataset):
    """23 rows; counts how often they are read in this process."""

    def __init__(self):
        self.reads = 0

    def __len__(self):
        return 23

    def __getitem__(self, index):
        self.reads += 1
        return {"x": torch.tensor(index), "name": f"row {index}"}


class Stream(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        start, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        yield from range(start, 23, step)


class StatefulStream(IterableDataset):
    """A stream that knows its place."""

    def __init__(self):
        self.at = 0
        self.reads = 0

    def __iter__(self):
        while self.at < 23:
            self.at += 1
            self.reads += 1
            yield self.at - 1
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class OnlyIndices(Dataset):
    def __len__(self):
        return 23

    def __getitem__(self, index):
        return index


def seeded(seed=3):
    return torch.Generator().manual_seed(seed)


def of(sampler):
    return lambda data: {"sampler": sampler(data)}


DATA = OnlyIndices()
ARGUMENTS = {
    "defaults": {},
    "batches": {"batch_size": 4},
    "drop_last": {"batch_size": 4, "drop_last": True},
    "shuffled": {"batch_size": 4, "shuffle": True},
    "generator": lambda data: {"batch_size": 4, "shuffle": True, "generator": seeded()},
    "no batches": {"batch_size": None},
    "sampler": of(lambda data: SequentialSampler(data)),
    "random sampler": of(lambda data: RandomSampler(data, replacement=True, num_samples=17)),
    "sampler's generator": of(lambda data: RandomSampler(data, generator=seeded())),
    "subset": of(lambda data: SubsetRandomSampler(range(5, 15))),
    "weighted": of(lambda data: WeightedRandomSampler([1.0] * 23, 11)),
    "distributed": of(lambda data: DistributedSampler(data, num_replicas=2, rank=1)),
    "batch sampler": lambda data: {"batch_sampler": BatchSampler(RandomSampler(data), 5, True)},
    "list of batches": {"batch_sampler": [[1, 2], [3], [4, 5, 6]]},
    "collate": {"batch_size": 3, "collate_fn": tuple},
    "workers": {"batch_size": 4, "shuffle": True, "num_workers": 2, "prefetch_factor": 3},
    "persistent": {"batch_size": 4, "shuffle": True, "num_workers": 2, "persistent_workers": True},
}


def make(kind, name, data=DATA):
    arguments = ARGUMENTS[name]
    return kind(data, **(arguments(data) if callable(arguments) else arguments))


def plain(batch):
    return batch.tolist() if isinstance(batch, torch.Tensor) else batch


def epochs(loader, number):
    return [[plain(batch) for batch in loader] for _ in range(number)]


@pytest.mark.parametrize("name", ARGUMENTS)
def test_batches_lengths_and_attributes_are_torchs(name):
    torch.manual_seed(0)
    theirs = make(TorchLoader, name)
    expected, after = epochs(theirs, 3), torch.get_rng_state()
    torch.manual_seed(0)
    ours = make(DataLoader, name)
    assert epochs(ours, 3) == expected
    assert torch.equal(torch.get_rng_state(), after), "random numbers were drawn that torch leaves"
    assert len(ours) == len(theirs)
    for attribute in ("batch_size", "drop_last", "num_workers", "pin_memory", "timeout", "prefetch_factor"):
        assert getattr(ours, attribute) == getattr(theirs, attribute)
    assert type(ours.sampler) is type(theirs.sampler)
    assert type(ours.batch_sampler) is type(theirs.batch_sampler)
    assert ours.dataset is DATA
    assert ours.collate_fn is theirs.collate_fn


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_workers": -1},
        {"timeout": -1},
        {"prefetch_factor": 2},
        {"persistent_workers": True},
        {"batch_size": 0},
        {"batch_size": 2, "batch_sampler": [[0]]},
        {"sampler": [0], "shuffle": True},
        {"batch_size": None, "drop_last": True},
        {"multiprocessing_context": "fork"},
        {"num_workers": 1, "multiprocessing_context": "nonsense"},
        {"num_workers": 1, "multiprocessing_context": 3},
        {"num_workers": 1, "prefetch_factor": -1},
    ],
)
def test_errors_are_torchs(arguments):
    with pytest.raises((ValueError, TypeError)) as theirs:
        TorchLoader(DATA, **arguments)
    with pytest.raises(type(theirs.value)) as ours:
        DataLoader(DATA, **arguments)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("arguments", [{"shuffle": True}, {"sampler": [1]}, {"batch_sampler": [[1]]}])
def test_errors_with_streams_are_torchs(arguments):
    stream = Stream()
    with pytest.raises(ValueError) as theirs:  # noqa: PT011  the text is compared below
        TorchLoader(stream, **arguments)
    with pytest.raises(ValueError, match="IterableDataset") as ours:
        DataLoader(stream, **arguments)
    assert str(ours.value) == str(theirs.value)


def test_the_signature_begins_like_torchs():
    theirs = list(inspect.signature(TorchLoader.__init__).parameters.values())
    ours = inspect.signature(DataLoader.__init__).parameters
    for parameter in theirs:
        assert ours[parameter.name].default == parameter.default, parameter.name
        assert ours[parameter.name].kind == parameter.kind, parameter.name
    positional = [p.name for p in theirs if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert list(ours)[: len(positional)] == positional


def test_iterators_are_torchs_and_attributes_stay_fixed():
    loader = DataLoader(DATA, batch_size=4)
    iterator = iter(loader)
    assert isinstance(iterator, torch.utils.data.dataloader._SingleProcessDataLoaderIter)
    assert type(iterator).__name__ == "_SingleProcessDataLoaderIter"
    assert len(iterator) == 6
    with pytest.raises(ValueError, match="attribute should not be set after DataLoader is initialized"):
        loader.batch_size = 3
    assert isinstance(
        iter(DataLoader(DATA, num_workers=1)), torch.utils.data.dataloader._MultiProcessingDataLoaderIter
    )
    assert DataLoader[int](DATA, batch_size=2).batch_size == 2


def test_an_unbegun_loader_is_copied_and_pickled():
    loader = DataLoader(DATA, batch_size=4)
    assert (
        epochs(pickle.loads(pickle.dumps(loader)), 1) == epochs(copy.deepcopy(loader), 1) == epochs(loader, 1)
    )


def test_streams_are_read_as_torch_reads_them():
    for workers in (0, 2):
        expected = epochs(TorchLoader(Stream(), batch_size=4, num_workers=workers), 2)
        assert epochs(DataLoader(Stream(), batch_size=4, num_workers=workers), 2) == expected


def test_arguments_of_the_balanced_mode_need_max_tokens():
    with pytest.raises(ValueError, match="oversize, seed only has an effect with max_tokens"):
        DataLoader(DATA, oversize="drop", seed=3)
    for argument in ({"max_errors": 0}, {"cp_degrees": [1, 2]}, {"cp_degrees": 2}, {"exchange": True}):
        with pytest.raises(ValueError, match=f"{next(iter(argument))} only has an effect with max_tokens"):
            DataLoader(DATA, **argument)
    assert len(DataLoader(DATA, cp_degrees=[1], max_errors=0.01)) == len(DATA)  # as by default
    with pytest.raises(RuntimeError, match="only known with max_tokens"):
        DataLoader(DATA).metrics()
    with pytest.raises(TypeError, match="unexpected keyword argument 'max_token'"):
        DataLoader(DATA, max_token=3)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_map_style_epoch_resumes_exactly_after_any_batch(name):
    torch.manual_seed(0)
    whole = epochs(make(DataLoader, name), 3)
    with_workers = name in ("workers", "persistent")
    middle = (0, 2, len(whole[1])) if with_workers else range(len(whole[1]) + 1)
    for k in middle:
        torch.manual_seed(0)
        loader = make(DataLoader, name)
        epochs(loader, 1)
        batches = iter(loader)
        assert [plain(next(batches)) for _ in range(k)] == whole[1][:k]
        state = pickle.loads(pickle.dumps(loader.state_dict()))
        torch.manual_seed(99)
        fresh = make(DataLoader, name)
        fresh.load_state_dict(state)
        before = torch.get_rng_state()
        assert fresh.state_dict()["batches"] == state["batches"]
        assert [plain(batch) for batch in fresh] == whole[1][k:], f"after {k} batches"
        assert torch.equal(torch.get_rng_state(), before), "a training loop's own random state was lost"


def test_resuming_reads_no_row_twice():
    data = Counting()
    loader = DataLoader(data, batch_size=4)
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    fresh_data = Counting()
    fresh = DataLoader(fresh_data, batch_size=4)
    fresh.load_state_dict(loader.state_dict())
    assert len(list(fresh)) == 2
    assert fresh_data.reads == 23 - 16


def test_a_finished_epoch_is_followed_by_the_next():
    def make_loader():
        return DataLoader(DATA, sampler=DistributedSampler(DATA, num_replicas=2, rank=0), batch_size=4)

    def run(loader, first):
        found = []
        for epoch in range(first, 3):
            loader.set_epoch(epoch)
            found.append([plain(batch) for batch in loader])
        return found

    whole = run(make_loader(), 0)
    assert whole[0] != whole[1]
    loader = make_loader()
    loader.set_epoch(0)
    list(loader)
    state = loader.state_dict()
    assert (state["epoch"], state["batches"]) == (1, 0)
    resumed = make_loader()
    resumed.load_state_dict(state)
    assert run(resumed, 1) == whole[1:]
    middle = make_loader()
    middle.set_epoch(1)
    batches = iter(middle)
    next(batches)
    resumed = make_loader()
    resumed.load_state_dict(middle.state_dict())
    assert run(resumed, 1) == [whole[1][1:], whole[2]]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_without_a_state_is_read_up_to_the_position(workers):
    loader = DataLoader(Stream(), batch_size=4, num_workers=workers)
    whole = epochs(loader, 1)[0]
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    fresh = DataLoader(Stream(), batch_size=4, num_workers=workers)
    fresh.load_state_dict(loader.state_dict())
    assert [plain(batch) for batch in fresh] == whole[3:]


def test_a_stream_with_a_state_goes_on_without_reading_the_past():
    loader = DataLoader(StatefulStream(), batch_size=4)
    whole = epochs(loader, 1)[0]
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    stream = StatefulStream()
    fresh = DataLoader(stream, batch_size=4)
    fresh.load_state_dict(loader.state_dict())
    assert [plain(batch) for batch in fresh] == whole[3:]
    assert stream.reads == 23 - 12


def test_states_of_the_two_modes_are_not_mixed_up():
    balanced = DataLoader(ArraySource([3, 4]), max_tokens=8)
    with pytest.raises(ValueError, match="A state saved with max_tokens is loaded with it"):
        DataLoader(DATA).load_state_dict(balanced.state_dict())
    with pytest.raises(ValueError, match="A state saved without max_tokens cannot be loaded with it"):
        balanced.load_state_dict(DataLoader(DATA).state_dict())


def test_a_source_is_a_map_style_data_set():
    source = ArraySource([3, 1, 2])
    for loader in (
        TorchLoader(source, batch_size=2, collate_fn=list),
        DataLoader(source, batch_size=2, collate_fn=list),
    ):
        tokens = [sample["input_ids"].tolist() for sample in itertools.chain(*loader)]
        assert tokens == [[0, 1, 2], [1000], [2000, 2001]]
    assert source[-1]["input_ids"].tolist() == [2000, 2001]


def test_tensor_data_sets_come_as_torch_collates_them():
    data = TensorDataset(torch.arange(6.0).reshape(6, 1), torch.arange(6))
    for theirs, ours in zip(TorchLoader(data, batch_size=4), DataLoader(data, batch_size=4), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(theirs, ours, strict=True))


def test_a_loader_with_its_own_iterator_has_no_state_to_save():
    class Own(DataLoader):
        def _get_iterator(self):
            return iter([1, 2])

    loader = Own(DATA)
    assert list(loader) == [1, 2]
    with pytest.raises(RuntimeError, match="Own makes its own iterator"):
        loader.state_dict()


class Drawn:
    """A sampler with a state: draws rows from a generator of its own, some of them twice."""

    def __init__(self, per_batch=None):
        self.generator_state = seeded(11).get_state()
        self.given = 0
        self.per_batch = per_batch

    def __len__(self):
        return 9

    def __iter__(self):
        while self.given < 9:
            generator = torch.Generator()
            generator.set_state(self.generator_state)
            rows = torch.randint(23, (self.per_batch or 1,), generator=generator).tolist()
            self.generator_state = generator.get_state()
            self.given += 1
            yield rows if self.per_batch else rows[0]
        self.given = 0

    def state_dict(self):
        return {"generator": self.generator_state, "given": self.given}

    def load_state_dict(self, state):
        self.generator_state, self.given = state["generator"], state["given"]


STATEFUL = {
    "sampler": lambda: {"sampler": Drawn(), "batch_size": 2},
    "sampler without batches": lambda: {"sampler": Drawn(), "batch_size": None},
    "batch sampler": lambda: {"batch_sampler": Drawn(per_batch=3)},
    "inside a batch sampler": lambda: {"batch_sampler": BatchSampler(Drawn(), 2, False)},
}


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", STATEFUL)
def test_a_sampler_with_a_state_is_saved_as_of_the_batches_given_out(name, workers):
    whole = epochs(DataLoader(DATA, num_workers=workers, **STATEFUL[name]()), 2)
    theirs = epochs(TorchLoader(DATA, num_workers=workers, **STATEFUL[name]()), 2)
    assert whole == theirs
    for k in range(1, len(whole[1]) + 1) if workers == 0 else (1, 3):
        loader = DataLoader(DATA, num_workers=workers, **STATEFUL[name]())
        epochs(loader, 1)
        batches = iter(loader)
        for _ in range(k):
            next(batches)  # with workers, the sampler itself is ahead by now
        state = pickle.loads(pickle.dumps(loader.state_dict()))
        fresh = DataLoader(DATA, num_workers=workers, **STATEFUL[name]())
        fresh.load_state_dict(state)
        assert fresh.state_dict()["sampler"]["given"] == state["sampler"]["given"]
        assert [plain(batch) for batch in fresh] == whole[1][k:], f"after {k} batches"


def test_a_map_style_data_set_with_a_state_is_asked_for_it():
    class Counted(OnlyIndices):
        def __init__(self):
            self.reads = 0

        def __getitem__(self, index):
            self.reads += 1
            return 100 * self.reads + index

        def state_dict(self):
            return {"reads": self.reads}

        def load_state_dict(self, state):
            self.reads = state["reads"]

    whole = epochs(DataLoader(Counted(), batch_size=4), 1)[0]
    loader = DataLoader(Counted(), batch_size=4)
    batches = iter(loader)
    next(batches)
    fresh = DataLoader(Counted(), batch_size=4)
    fresh.load_state_dict(loader.state_dict())
    assert [plain(batch) for batch in fresh] == whole[1:]
