"""Loaders with formats of their own: each is prepared once, and shuffles as its manual says."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.peers.documents import Flat, each
from benchmarks.peers.measure import Epoch
from benchmarks.peers.torch_loaders import sizes, tokens_only, workers_of

A_SHARD = 10_000
"""Documents of a shard: 20 MB."""


# litdata ---------------------------------------------------------------------------------------


def _document(row: int, data: Flat) -> np.ndarray:
    return data[row].copy()


def prepare_litdata(folder: Path) -> None:
    from functools import partial

    import litdata

    data = Flat(folder)
    litdata.optimize(
        partial(_document, data=data), list(range(len(data))), str(folder / "litdata"), chunk_bytes="64MB",
        num_workers=1,
    )  # fmt: skip


def litdata(folder: Path, documents: int, workers: int) -> Epoch:
    from litdata import StreamingDataLoader, StreamingDataset

    data = StreamingDataset(str(folder / "litdata"), shuffle=True)
    loader = StreamingDataLoader(
        data, batch_size=documents, collate_fn=tokens_only, **workers_of(workers)
    )  # fmt: skip
    return lambda: sizes(loader)


# mosaicml-streaming ----------------------------------------------------------------------------


def without_torchvision() -> None:
    """Let `streaming` be imported where torchvision does not load beside this torch: text needs none."""
    try:
        import torchvision  # noqa: F401
    except Exception:
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        for name, inside in {
            "torchvision": (),
            "torchvision.datasets": ("VisionDataset",),
            "torchvision.transforms": (),
            "torchvision.transforms.functional": ("to_tensor",),
        }.items():
            module = ModuleType(name)
            module.__spec__ = ModuleSpec(name, None)
            for attribute in inside:
                setattr(module, attribute, type(attribute, (), {}))
            sys.modules[name] = module


def prepare_mosaic(folder: Path) -> None:
    without_torchvision()
    from streaming import MDSWriter

    with MDSWriter(out=str(folder / "mds"), columns={"tokens": "ndarray:int32"}) as writer:
        for document in each(folder):
            writer.write({"tokens": document})


def _join_mds(rows: list[dict[str, Any]]) -> tuple[int, np.ndarray]:
    return tokens_only([row["tokens"] for row in rows])


def mosaic(folder: Path, documents: int, workers: int) -> Epoch:
    without_torchvision()
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    data = StreamingDataset(local=str(folder / "mds"), shuffle=True, batch_size=documents)
    loader = DataLoader(data, batch_size=documents, collate_fn=_join_mds, **workers_of(workers))
    return lambda: sizes(loader)


# webdataset and energon: tars of npy files -----------------------------------------------------


def prepare_tars(folder: Path) -> None:
    import webdataset

    (folder / "tars").mkdir(exist_ok=True)
    with webdataset.ShardWriter(str(folder / "tars" / "%04d.tar"), maxcount=A_SHARD, verbose=0) as writer:
        for row, document in enumerate(each(folder)):
            writer.write({"__key__": f"{row:08d}", "tokens.npy": document})


def _join_tuples(rows: list[tuple[np.ndarray]]) -> tuple[int, np.ndarray]:
    return tokens_only([row[0] for row in rows])


def web(folder: Path, documents: int, workers: int) -> Epoch:
    import webdataset

    tars = sorted(map(str, (folder / "tars").glob("*.tar")))
    data = webdataset.WebDataset(tars, shardshuffle=len(tars)).shuffle(1000).decode().to_tuple("tokens.npy")
    data = data.batched(documents, collation_fn=_join_tuples)
    loader = webdataset.WebLoader(data, batch_size=None, **workers_of(workers))
    return lambda: sizes(loader)


DATASET_YAML = """\
__module__: megatron.energon
__class__: CrudeWebdataset
"""


def prepare_energon(folder: Path) -> None:
    from megatron.energon.epathlib import EPath
    from megatron.energon.flavors import BaseWebdatasetFactory

    prepare_tars(folder)
    root = folder / "tars"
    tars = sorted(path.name for path in root.glob("*.tar"))
    BaseWebdatasetFactory.prepare_dataset(
        EPath(str(root)), tars, split_parts_ratio=[("train", 1.0)], workers=1, tar_index_only=False
    )  # fmt: skip
    (root / ".nv-meta" / "dataset.yaml").write_text(DATASET_YAML)


def energon(folder: Path, documents: int, workers: int) -> Epoch:
    from megatron.energon import (
        Cooker,
        DefaultTaskEncoder,
        WorkerConfig,
        basic_sample_keys,
        get_savable_loader,
        get_train_dataset,
        stateless,
    )
    from megatron.energon.flavors import CaptioningSample  # any sample class with room for the tokens

    @stateless
    def cook(sample: dict[str, Any]) -> Any:
        return CaptioningSample(**basic_sample_keys(sample), image=sample["tokens.npy"], caption="")

    class Encoder(DefaultTaskEncoder):  # type: ignore[misc]
        cookers = [Cooker(cook)]  # noqa: RUF012

        @stateless
        def batch(self, samples: list[Any]) -> tuple[int, np.ndarray]:
            return tokens_only([sample.image for sample in samples])

        def encode_batch(self, batch: Any) -> Any:
            return batch

    config = WorkerConfig(rank=0, world_size=1, num_workers=workers)
    data = get_train_dataset(
        str(folder / "tars"), worker_config=config, batch_size=documents, shuffle_buffer_size=1000,
        max_samples_per_sequence=100, task_encoder=Encoder(),
    )  # fmt: skip
    loader = get_savable_loader(data)
    return lambda: sizes(loader)


# grain -----------------------------------------------------------------------------------------


def grain(folder: Path, documents: int, workers: int) -> Epoch:
    import grain

    data = grain.MapDataset.source(Flat(folder)).seed(0).shuffle()
    data = data.batch(documents, batch_fn=tokens_only).to_iter_dataset()
    if workers:
        data = data.mp_prefetch(grain.multiprocessing.MultiprocessingOptions(num_workers=workers))

    def epoch() -> Iterator[tuple[int, int]]:
        return sizes(iter(data))

    return epoch
