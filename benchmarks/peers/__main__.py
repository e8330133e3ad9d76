"""One loader, measured in this process: see `benchmarks.peers`."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.peers import measure, ours, own_formats, torch_loaders
from benchmarks.peers.measure import Epoch


@dataclass(frozen=True)
class Peer:
    """A loader: how it is opened, its distribution, and how its format is written, if it has its own."""

    open: Callable[[Path, int, int], Epoch]
    distribution: str
    prepare: Callable[[Path], None] | None = None
    can_work: bool = True
    """Whether it knows worker processes or threads."""


PEERS: Mapping[str, Peer] = MappingProxyType(
    {
        "gather": Peer(ours.gather, "numpy", can_work=False),
        "evenload": Peer(ours.evenload, "evenload"),
        "torch": Peer(torch_loaders.flat, "torch"),
        "torch_batched": Peer(torch_loaders.batched, "torch"),
        "torch_packed": Peer(torch_loaders.whole, "torch"),
        "torchdata_stateful": Peer(torch_loaders.stateful, "torchdata"),
        "torchdata_nodes": Peer(torch_loaders.nodes, "torchdata"),
        "datasets": Peer(torch_loaders.hugging_face, "datasets"),
        "litdata": Peer(own_formats.litdata, "litdata", own_formats.prepare_litdata),
        "grain": Peer(own_formats.grain, "grain"),
        "webdataset": Peer(own_formats.web, "webdataset", own_formats.prepare_tars),
        "mosaicml-streaming": Peer(own_formats.mosaic, "mosaicml-streaming", own_formats.prepare_mosaic),
        "megatron-energon": Peer(own_formats.energon, "megatron-energon", own_formats.prepare_energon),
    }
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=sorted(PEERS))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--prepare", action="store_true")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--documents", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    print("\n" + json.dumps(answer(PEERS[options.name], options)), flush=True)


def answer(peer: Peer, options: argparse.Namespace) -> dict[str, Any]:
    """What was measured, or why nothing was."""
    try:
        found = {"version": version(peer.distribution)}
    except PackageNotFoundError:
        return {"missing": f"{peer.distribution} is not installed"}
    try:
        if options.prepare:
            start = time.perf_counter()
            if peer.prepare is not None:
                peer.prepare(options.data)
            return {**found, "prepare_s": time.perf_counter() - start}
        return found | measure.run(
            lambda: peer.open(options.data, options.documents, options.workers), options.seconds
        )
    except Exception as error:  # a peer that does not load or run here is named, and the others go on
        return {**found, "missing": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    main()
