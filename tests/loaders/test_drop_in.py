"""Side by side with torch's own loader: equal inputs give equal batches, lengths, warnings, errors and texts.

A scenario is a function of the loader class. It runs with torch's and with ours from equal random states;
what it returns or raises, what it warns of, and the random states that it leaves must be equal.
"""

from __future__ import annotations

import copy
import itertools
import os
import pickle
import random
import re
import signal
import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ChainDataset,
    ConcatDataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    random_split,
)
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.datapipes.map import SequenceWrapper

from loaders import DataLoader
from tests.loaders import drop_in_data as data
from tests.loaders.drop_in_data import Count, Numbers

CONTEXTS = ("fork", "spawn", "forkserver")


def plain(value):
    """Something that ``==`` compares, types of containers included."""
    if isinstance(value, torch.Tensor):
        if value.is_nested:
            return ("nested", [plain(one) for one in value.unbind()])
        return ("tensor", str(value.dtype), tuple(value.shape), value.tolist())
    if isinstance(value, np.ndarray):
        return ("array", str(value.dtype), value.tolist())
    if isinstance(value, dict):
        return (type(value).__name__, [(plain(key), plain(one)) for key, one in value.items()])
    if isinstance(value, list | tuple | set):
        return (type(value).__name__, [plain(one) for one in value])
    return (type(value).__name__, value)


def anonymous(text):
    """Without what differs from run to run: addresses, process ids, line numbers."""
    text = re.sub(r"0x[0-9a-f]+", "0x", text)
    text = re.sub(r"\(pid(\(s\))? [\d, ]+\)", "(pid)", text)
    return re.sub(r"line \d+", "line", text)


def outcome(function, kind):
    torch.manual_seed(7)
    np.random.seed(7)  # noqa: NPY002  the state that must stay as it is
    random.seed(7)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            found = ("gave", plain(function(kind)))
        except Exception as error:
            found = ("raised", type(error), anonymous(str(error)))
    told = [
        (one.category, anonymous(str(one.message)))
        for one in seen
        if not issubclass(one.category, DeprecationWarning | ResourceWarning | FutureWarning)
    ]
    return found, told, torch.get_rng_state().tolist(), random.getstate()


def same(function):
    theirs, ours = outcome(function, TorchLoader), outcome(function, DataLoader)
    assert ours[0] == theirs[0]
    assert ours[1] == theirs[1], "other warnings"
    assert ours[2:] == theirs[2:], "another random state is left"
    return theirs[0]


def epochs(loader, number=2):
    return [list(loader) for _ in range(number)]


def looked_at(loader):
    """Epochs, length and what frameworks look at."""
    found = epochs(loader)
    names = "batch_size drop_last num_workers pin_memory timeout prefetch_factor persistent_workers in_order"
    return (
        found,
        len(loader),
        [getattr(loader, name) for name in names.split()],
        [type(one).__name__ for one in (loader.sampler, loader.batch_sampler, loader.dataset)],
        loader.collate_fn.__name__,
        loader._auto_collation,
        loader._dataset_kind,
    )


# ------------------------------------------------------------------------------------- map-style data sets

MAP_STYLE = {
    "numbers": lambda: Numbers(),
    "list": lambda: [3, 1, 4, 1, 5],
    "string": lambda: "abcdefg",
    "range": lambda: range(9),
    "one row": lambda: Numbers(1),
    "no rows": lambda: [],
    "tensor": lambda: torch.arange(12).reshape(6, 2),
    "array": lambda: np.arange(12.0).reshape(6, 2),
    "tensors": lambda: TensorDataset(torch.arange(7), torch.arange(7.0)),
    "stacked": lambda: StackDataset(a=Numbers(5), b=Numbers(5, float)),
    "joined": lambda: ConcatDataset([Numbers(5), Numbers(4)]),
    "part": lambda: Subset(Numbers(), [5, 2, 8]),
    "split": lambda: random_split(Numbers(), [0.3, 0.7], generator=torch.Generator().manual_seed(1))[0],
    "batched": lambda: data.Batched(),
    "part of batched": lambda: Subset(data.Batched(), [5, 2, 8]),
    "mappings": lambda: data.Tensors(),
    "named tuples": lambda: Numbers(7, data.as_pair),
    "own mapping": lambda: Numbers(7, data.as_own_dict),
    "own list": lambda: Numbers(7, data.as_own_list),
    "mixed": lambda: Numbers(7, data.as_mixed),
    "bytes": lambda: Numbers(7, data.as_bytes),
    "ragged": lambda: Numbers(7, data.as_ragged),
    "ragged lists": lambda: Numbers(7, data.as_ragged_list),
    "objects": lambda: Numbers(7, data.as_object),
    "nothing": lambda: Numbers(7, data.as_none),
    "without a length": lambda: data.Unsized(),
    "abstract": lambda: data.Abstract(),
    "map data pipe": lambda: SequenceWrapper(range(7)),
}
WAYS = {
    "defaults": {},
    "in threes": {"batch_size": 3},
    "drop_last": {"batch_size": 3, "drop_last": True},
    "larger than the data": {"batch_size": 50, "drop_last": True},
    "shuffled": {"batch_size": 3, "shuffle": True},
    "unbatched": {"batch_size": None},
    "unbatched, shuffled": {"batch_size": None, "shuffle": True},
    "collated by list": {"batch_size": 3, "collate_fn": list},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MAP_STYLE)
def test_a_map_style_data_set(name, way):
    if "collate" in way and name == "objects":
        return  # objects are equal to themselves alone
    if way.startswith("unbatched") and name == "objects":
        return
    same(lambda kind: looked_at(kind(MAP_STYLE[name](), **WAYS[way])))


def test_scalars_of_numpy_keep_their_type():
    for dtype in (
        np.float64,
        np.float32,
        np.float16,
        np.int64,
        np.int32,
        np.int16,
        np.int8,
        np.uint8,
        np.bool_,
    ):
        assert same(lambda kind, dtype=dtype: epochs(kind(Numbers(5, dtype), batch_size=2)))[0] == "gave"


def test_nested_tensors():
    nested = [torch.nested.nested_tensor([torch.ones(row + 1)]) for row in range(4)]
    assert same(lambda kind: epochs(kind(nested, collate_fn=list)))[0] == "gave"
    assert same(lambda kind: epochs(kind(nested)))[0] == "raised"


def test_a_data_set_that_grows_behind_the_loaders_back():
    def grow(kind):
        rows = [1, 2, 3]
        loaders = [kind(rows), kind(rows, shuffle=True), kind(rows, batch_size=2, drop_last=True)]
        rows += [4, 5]
        return [(len(loader), epochs(loader)) for loader in loaders]

    same(grow)


# ------------------------------------------------------------------------------------------------ samplers

SAMPLERS = {
    "sequential": lambda rows: SequentialSampler(rows),
    "random": lambda rows: RandomSampler(rows),
    "random, more than there are": lambda rows: RandomSampler(rows, num_samples=2 * len(rows) + 3),
    "random, replaced": lambda rows: RandomSampler(rows, replacement=True, num_samples=31),
    "random, generator": lambda rows: RandomSampler(rows, generator=torch.Generator().manual_seed(5)),
    "weighted": lambda rows: WeightedRandomSampler([0.1, 0.9, 3.0, 0.2], 12),
    "weighted, once": lambda rows: WeightedRandomSampler([0.1, 0.9, 3.0, 0.2], 3, replacement=False),
    "subset": lambda rows: SubsetRandomSampler([3, 7, 1, 9]),
    "distributed": lambda rows: DistributedSampler(rows, num_replicas=3, rank=1),
    "distributed, dropping": lambda rows: DistributedSampler(rows, num_replicas=3, rank=2, drop_last=True),
    "range": lambda rows: range(2, 12),
    "list": lambda rows: [4, 4, 2],
    "empty": lambda rows: [],
    "own iterable": lambda rows: data.Backwards(),
    "without a length": lambda rows: data.Lengthless(),
    "wrong rows": lambda rows: [0, 99],
    "not iterable": lambda rows: 3,
}


@pytest.mark.parametrize("arguments", [{}, {"batch_size": 3}, {"batch_size": 3, "drop_last": True}])
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler(name, arguments):
    def run(kind):
        rows = Numbers()
        return epochs(loader := kind(rows, sampler=SAMPLERS[name](rows), **arguments)), len(loader)

    same(run)


BATCH_SAMPLERS = {
    "torch's": lambda rows: BatchSampler(RandomSampler(rows), 4, False),
    "torch's, dropping": lambda rows: BatchSampler(SequentialSampler(rows), 4, True),
    "list of lists": lambda rows: [[0, 1], [2], [3, 4, 5]],
    "tuples": lambda rows: [(0, 1), (2, 3, 4)],
    "of one sampler": lambda rows: BatchSampler(SubsetRandomSampler([1, 5, 9, 2]), 3, False),
    "empty batch": lambda rows: [[0], []],
    "without a length": lambda rows: iter([[0, 1], [2]]),
    "own": lambda rows: data.Lists(),
}


@pytest.mark.parametrize("name", BATCH_SAMPLERS)
def test_a_batch_sampler(name):
    def run(kind):
        rows = Numbers()
        loader = kind(rows, batch_sampler=BATCH_SAMPLERS[name](rows))
        return epochs(loader), loader.batch_size, loader.drop_last, type(loader.sampler).__name__, len(loader)

    same(run)


def test_rows_are_read_in_bulk_where_the_sampler_gives_lists():
    same(lambda kind: looked_at(kind(data.ListRows(6), batch_size=None, sampler=data.Lists())))


def test_set_epoch_of_the_sampler_is_all_that_is_needed():
    def run(kind):
        sampler = DistributedSampler(Numbers(), num_replicas=2, rank=0)
        loader = kind(Numbers(), sampler=sampler, batch_size=4)
        found = []
        for epoch in (0, 1, 5):
            sampler.set_epoch(epoch)
            found.append(list(loader))
        return found

    same(run)


def test_a_sampler_that_lives_in_a_subclass_of_torchs():
    class Even(Sampler):
        def __iter__(self):
            return iter(range(0, 10, 2))

        def __len__(self):
            return 5

    same(lambda kind: looked_at(kind(Numbers(), sampler=Even(), batch_size=2)))


# ------------------------------------------------------------------------------------------------- streams

STREAMS = {
    "count": lambda: Count(),
    "without a length": lambda: data.Shared(),
    "own iterator": lambda: data.OwnIterator(),
    "chained": lambda: ChainDataset([Count(5), Count(4)]),
    "added": lambda: Count(5) + Count(4),
    "chained with a map-style one": lambda: Count(5) + Numbers(4),
    "failing": lambda: data.FailingStream(),
    "never": lambda: data.NoStream(),
    "data pipe": lambda: IterableWrapper(range(20)),
    "data pipe, mapped": lambda: IterableWrapper(range(20)).map(float).filter(bool),
}


@pytest.mark.parametrize(
    "arguments", [{}, {"batch_size": 7}, {"batch_size": 7, "drop_last": True}, {"batch_size": None}]
)
@pytest.mark.parametrize("name", STREAMS)
def test_a_stream(name, arguments):
    same(lambda kind: epochs(kind(STREAMS[name](), **arguments)))


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch_size", [1, 2, 3, None])
def test_the_length_of_a_stream(batch_size, drop_last):
    arguments = {"batch_size": batch_size, "drop_last": drop_last}
    same(lambda kind: len(kind(Count(10), **arguments)))
    same(lambda kind: len(kind(data.Shared(), **arguments)))


def test_more_than_the_stream_said_is_warned_of():
    class Liar(Count):
        def __len__(self):
            return 3

    def run(kind):
        quiet = list(kind(Liar(5)))
        loader = kind(Liar(5))
        return len(loader), list(loader), quiet

    same(run)


@pytest.mark.parametrize("shuffle", [True, False, None])
def test_a_data_pipe_is_shuffled_by_the_loader(shuffle):
    def run(kind):
        pipe = IterableWrapper(range(40)).shuffle(buffer_size=7).sharding_filter()
        loader = kind(pipe, batch_size=4, shuffle=shuffle)
        found = epochs(loader)
        torch.manual_seed(3)
        return found, list(loader)

    same(run)


# --------------------------------------------------------------------------------------------- wrong input

WRONG = {
    "num_workers": {"num_workers": -1},
    "timeout": {"timeout": -1},
    "timeout without workers": {"timeout": 3},
    "prefetch_factor without workers": {"prefetch_factor": 2},
    "prefetch_factor": {"num_workers": 1, "prefetch_factor": -1},
    "persistent_workers without workers": {"persistent_workers": True},
    "batch_size 0": {"batch_size": 0},
    "batch_size -1": {"batch_size": -1},
    "batch_size a bool": {"batch_size": True},
    "batch_size a number": {"batch_size": 2.0},
    "batch_size a text": {"batch_size": "3"},
    "drop_last a number": {"drop_last": 3},
    "drop_last without batches": {"batch_size": None, "drop_last": True},
    "sampler and shuffle": {"sampler": [0], "shuffle": True},
    "sampler and shuffle a number": {"sampler": [0], "shuffle": 3},
    "sampler and shuffle and batches": {"sampler": [0], "shuffle": True, "batch_sampler": [[0]]},
    "batch_sampler and batch_size": {"batch_size": 11, "batch_sampler": [[0]]},
    "batch_sampler and shuffle": {"shuffle": True, "batch_sampler": [[0]]},
    "batch_sampler and sampler": {"sampler": [0], "batch_sampler": [[0]]},
    "batch_sampler and drop_last": {"drop_last": True, "batch_sampler": [[0]]},
    "batch_sampler and drop_last a number": {"drop_last": 3, "batch_sampler": [[0]]},
    "context without workers": {"multiprocessing_context": "fork"},
    "no such context": {"num_workers": 1, "multiprocessing_context": "bad"},
    "context an object": {"num_workers": 1, "multiprocessing_context": 3},
    "generator": {"generator": 3, "shuffle": True},
    "collate_fn": {"collate_fn": 3},
    "unknown": {"batchsize": 3},
    "many workers": {"num_workers": 1000},
    "pinned": {"pin_memory": True},
    "pinned to a device": {"pin_memory": True, "pin_memory_device": "cuda"},
    "a device alone": {"pin_memory_device": "cuda"},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", WRONG)
def test_wrong_or_odd_arguments(name, stream):
    arguments = WRONG[name]

    def run(kind):
        loader = kind(Count() if stream else Numbers(), **arguments)
        return "made" if arguments.get("num_workers") else epochs(loader)

    found = same(run)
    if found[0] == "raised" and found[1] is TypeError and name == "unknown":
        assert "batchsize" in found[2]


@pytest.mark.parametrize(
    "arguments",
    [
        {"shuffle": True},
        {"shuffle": 3},
        {"shuffle": False},
        {"sampler": [0]},
        {"sampler": 3},
        {"batch_sampler": [[0]]},
        {"batch_sampler": 3},
    ],
)
def test_arguments_that_streams_do_not_take(arguments):
    same(lambda kind: epochs(kind(Count(), **arguments)))


def test_positional_arguments_stand_where_torchs_do():
    same(lambda kind: looked_at(kind(Numbers(), 3, None, data.Backwards(), None, 0, list, False, True, 0)))
    same(lambda kind: looked_at(kind(Numbers(), 1, None, None, [[3, 1], [2]])))
    same(lambda kind: kind())
    same(lambda kind: kind(Numbers(), 1, None, None, None, 0, None, False, False, 0, None, None, None, 2))


@pytest.mark.parametrize(
    "error",
    [
        KeyError("entry"),
        IndexError("row"),
        StopIteration("over"),
        RuntimeError("a\nb"),
        data.TwoPartError("one", "two"),
        OSError(2, "no such file", "x.bin"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_the_data_comes_as_it_is_and_the_next_batch_follows(error):
    def run(kind):
        batches = iter(kind(data.Raising(error), batch_size=3))
        found = [next(batches)]
        try:
            next(batches)
        except type(error) as raised:
            found.append((type(raised).__name__, str(raised), type(raised.__cause__).__name__))
        return found, [batch.tolist() for batch in itertools.islice(batches, 2)]

    same(run)


# ---------------------------------------------------------------------------------------------- attributes


@pytest.mark.parametrize(
    "name",
    [
        "batch_size",
        "batch_sampler",
        "sampler",
        "drop_last",
        "dataset",
        "persistent_workers",
        "num_workers",
        "pin_memory",
        "timeout",
        "collate_fn",
        "worker_init_fn",
        "generator",
        "prefetch_factor",
        "in_order",
        "multiprocessing_context",
        "my_own",
    ],
)
def test_setting_an_attribute(name):
    def run(kind):
        class DataLoader(kind):  # messages name the class
            pass

        loader = DataLoader(Numbers())
        setattr(loader, name, None)
        return getattr(loader, name)

    same(run)


def test_all_attributes_of_torchs_are_there_with_equal_values():
    arguments = {"batch_size": 4, "shuffle": True, "num_workers": 2, "persistent_workers": True}
    rows = Numbers()
    theirs, ours = vars(TorchLoader(rows, **arguments)), vars(DataLoader(rows, **arguments))
    assert set(theirs) <= set(ours)
    for name, value in theirs.items():
        if "sampler" not in name:
            assert ours[name] == value, name
    assert set(dir(TorchLoader)) <= set(dir(DataLoader))


@pytest.mark.parametrize("use", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
@pytest.mark.parametrize("begun", [False, True])
def test_copies_and_pickles(use, begun):
    def run(kind):
        loader = kind(Numbers(), batch_size=4, shuffle=True)
        if begun:
            next(iter(loader))
        return looked_at(use(loader))

    same(run)


def test_a_subclass_may_do_what_it_does_with_torchs():
    def run(kind):
        class Own(kind):
            extra = 3

            def __init__(self, *args, factor, **kwargs):
                super().__init__(*args, **kwargs)
                self.factor = factor

            def __iter__(self):
                for batch in super().__iter__():
                    yield batch * self.factor

            def __len__(self):
                return super().__len__() + 100

            @property
            def _index_sampler(self):
                return super()._index_sampler

        loader = Own(Numbers(), batch_size=4, factor=2)
        return epochs(loader), len(loader), isinstance(loader, TorchLoader), Own.__mro__[-2].__name__

    same(run)


def test_a_subclass_may_make_its_own_iterator():
    def run(kind):
        class Own(kind):
            def _get_iterator(self):
                return iter([1, 2, 3])

        return epochs(Own(Numbers()))

    same(run)


def test_iterators():
    def run(kind):
        loader = kind(Numbers(), batch_size=4)
        one, two = iter(loader), iter(loader)
        found = [next(one), next(two), next(one), len(one), iter(one) is one, one._num_yielded]
        found += [list(two), list(one), list(one), type(one).__name__, isinstance(one, type(two))]
        for attempt in (lambda: next(one), lambda: pickle.dumps(one), lambda: len(kind(data.Shared()))):
            try:
                attempt()
            except Exception as error:
                found.append((type(error).__name__, str(error)))
        return found

    same(run)


def test_an_iterator_outlives_its_loader():
    same(lambda kind: list(iter(kind(Numbers(), batch_size=4, shuffle=True))))


def test_the_class_can_be_subscripted_and_is_torchs():
    assert issubclass(DataLoader, TorchLoader)
    assert DataLoader[int] is not None
    same(lambda kind: epochs(kind[list[int]](Numbers(), batch_size=2)))
    assert DataLoader.__name__ == TorchLoader.__name__


def test_profiler_ranges_have_torchs_names():
    def run(kind):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            list(kind(Numbers(4), batch_size=2))
        return sorted({event.name for event in profile.events() if "DataLoader" in event.name})

    assert same(run)[0] == "gave"


# --------------------------------------------------------------------------------------------- random states


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_what_is_drawn_from_which_generator(shuffle, own):
    def run(kind):
        generator = torch.Generator().manual_seed(42) if own else None
        loader = kind(Numbers(), batch_size=4, shuffle=shuffle, generator=generator)
        found = epochs(loader)
        torch.rand(3)
        batches = iter(loader)
        found.append(torch.rand(2))  # drawn between iter() and the first batch
        found += [next(batches), torch.rand(2), list(batches)]
        return found, None if generator is None else generator.get_state()

    same(run)


def test_loops_that_are_left_early_draw_as_torchs_do():
    def run(kind):
        loader = kind(Numbers(), batch_size=4, shuffle=True)
        found = []
        for _ in range(3):
            for batch in loader:
                found.append(batch)
                break
        return found, list(loader)

    same(run)


# ------------------------------------------------------------------------------------------------- workers

WITH_WORKERS = {
    "in order": lambda kind: looked_at(kind(Numbers(), batch_size=3, num_workers=2)),
    "shuffled": lambda kind: looked_at(kind(Numbers(), batch_size=3, shuffle=True, num_workers=2)),
    "prefetching": lambda kind: looked_at(kind(Numbers(), batch_size=3, num_workers=2, prefetch_factor=5)),
    "more workers than batches": lambda kind: looked_at(kind(Numbers(3), num_workers=4)),
    "unbatched": lambda kind: looked_at(kind(Numbers(5), batch_size=None, num_workers=2)),
    "mappings": lambda kind: looked_at(kind(data.Tensors(), batch_size=3, num_workers=2)),
    "batch sampler": lambda kind: epochs(kind(Numbers(), batch_sampler=data.Lists(), num_workers=2)),
    "pinned": lambda kind: looked_at(kind(Numbers(), batch_size=3, num_workers=1, pin_memory=True)),
    "seeds": lambda kind: epochs(kind(data.Randoms(), batch_size=2, num_workers=2)),
    "seeds of a generator": lambda kind: epochs(
        kind(data.Randoms(), num_workers=2, generator=torch.Generator().manual_seed(1), shuffle=True)
    ),
    "seeds of a worker_init_fn": lambda kind: epochs(
        kind(data.Randoms(), batch_size=2, num_workers=2, worker_init_fn=data.seed_all)
    ),
    "seeds in this process": lambda kind: epochs(kind(data.Randoms(), batch_size=2)),
    "seeds of persistent workers": lambda kind: epochs(
        kind(data.Randoms(), batch_size=2, num_workers=2, persistent_workers=True), 3
    ),
    "divided stream": lambda kind: epochs(kind(data.Shared(), batch_size=4, num_workers=3)),
    "uneven stream": lambda kind: epochs(kind(data.Uneven([0, 4, 20]), batch_size=7, num_workers=3)),
    "uneven stream, dropping": lambda kind: epochs(
        kind(data.Uneven([0, 4, 20]), batch_size=7, num_workers=3, drop_last=True)
    ),
    "stream for persistent workers": lambda kind: epochs(
        kind(data.Shared(), batch_size=4, num_workers=2, persistent_workers=True), 3
    ),
    "data pipe": lambda kind: epochs(
        kind(
            IterableWrapper(range(20)).shuffle(buffer_size=5).sharding_filter(),
            batch_size=4,
            shuffle=True,
            num_workers=2,
        )
    ),
    "error": lambda kind: epochs(kind(data.Raising(KeyError("entry")), batch_size=3, num_workers=2)),
    "error of two parts": lambda kind: epochs(
        kind(data.Raising(data.TwoPartError("one", "two")), batch_size=3, num_workers=2)
    ),
    "error in collate_fn": lambda kind: epochs(kind(Numbers(), num_workers=2, collate_fn=data.not_picklable)),
    "error in worker_init_fn": lambda kind: epochs(
        kind(Numbers(), num_workers=1, worker_init_fn=data.fail_at_start)
    ),
    "error in a stream": lambda kind: epochs(kind(data.FailingStream(), num_workers=1)),
    "no stream": lambda kind: epochs(kind(data.NoStream(), num_workers=1)),
    "timeout": lambda kind: epochs(kind(data.Slow(1000), num_workers=1, timeout=1)),
    "killed": lambda kind: ends(kind, "kill"),
    "exited": lambda kind: ends(kind, "exit"),
    "crashed": lambda kind: ends(kind, "crash"),
}


def ends(kind, how):
    """What of the error does not depend on which of two checks sees the death first."""
    loader = kind(data.Deadly(how), num_workers=1, worker_init_fn=data.quiet, collate_fn=list)
    try:
        list(loader)
    except RuntimeError as error:
        return type(error).__name__, re.sub(r"pid\(s\)", "pid", str(error))[:22]


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_WORKERS)
def test_workers(name):
    same(WITH_WORKERS[name])


@pytest.mark.slow
@pytest.mark.parametrize("method", CONTEXTS)
def test_contexts_by_name_and_as_objects(method):
    def run(kind):
        found = []
        for context in (method, torch.multiprocessing.get_context(method))[: 2 if method == "fork" else 1]:
            loader = kind(Numbers(11), batch_size=3, num_workers=1, multiprocessing_context=context)
            found += [epochs(loader, 1), loader.multiprocessing_context.get_start_method()]
        return found

    same(run)


@pytest.mark.slow
def test_persistent_workers_keep_their_data_set_and_others_do_not():
    def run(kind):
        found = []
        for persistent in (False, True):
            rows = data.Remembering()
            loader = kind(rows, batch_size=2, num_workers=2, persistent_workers=persistent)
            for epoch in range(3):
                rows.offset = 100 * epoch
                found.append(list(loader))
            found.append((rows.reads, loader._iterator is None))
        return found

    same(run)


@pytest.mark.slow
def test_persistent_workers_after_a_loop_that_was_left_early():
    def run(kind):
        loader = kind(Numbers(), batch_size=3, shuffle=True, num_workers=2, persistent_workers=True)
        first = next(iter(loader))
        return first, list(loader), list(loader)

    same(run)


@pytest.mark.slow
def test_out_of_order_batches_come_first_and_all_come():
    def run(kind):
        loader = kind(data.Held(), num_workers=2, in_order=False)
        found = [int(batch) for batch in loader]
        return sorted(found), found[0] != 0, loader.in_order

    assert same(run) == ("gave", plain((list(range(8)), True, False)))


@pytest.mark.slow
def test_several_loaders_at_once():
    def run(kind):
        one = iter(kind(Numbers(), batch_size=2, num_workers=1))
        two = iter(kind(Numbers(), batch_size=3, num_workers=2, shuffle=True))
        return [next(one), next(two), next(two), next(one)], list(two), list(one)

    same(run)


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [False, True])
def test_workers_end_with_their_iterator(persistent):
    def run(kind):
        loader = kind(Numbers(), batch_size=2, num_workers=2, persistent_workers=persistent)
        batches = iter(loader)
        next(batches)
        workers = batches._workers
        del batches, loader
        for worker in workers:
            worker.join(300)
        # torch ends those that take longer than 5 s
        return [worker.exitcode in (0, -signal.SIGTERM) for worker in workers]

    assert same(run) == ("gave", plain([True, True]))


@pytest.mark.slow
def test_affinity_set_by_a_worker_init_fn():
    allowed = max(os.sched_getaffinity(0))

    class Affinity(Count):
        def __iter__(self):
            return iter(sorted(os.sched_getaffinity(0)))

    def run(kind):
        return epochs(
            kind(Affinity(), num_workers=2, worker_init_fn=lambda worker: os.sched_setaffinity(0, [allowed]))
        )

    same(run)


def test_default_collate_is_torchs():
    before = signal.getsignal(signal.SIGINT)  # ignored where the tests run in the background of a script
    assert DataLoader(Numbers()).collate_fn is default_collate
    assert signal.getsignal(signal.SIGINT) is before
