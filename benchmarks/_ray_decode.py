"""Throughput where one source is heavy to decode, and batches that are there when a step ends."""

from __future__ import annotations

import io
import itertools
import multiprocessing
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from balancer import Topology
from benchmarks._processes import cpu_s, descendants
from loaders import DataLoader, Mixture
from loaders.sources.base import Rows, Source

IMAGE_TOKENS, LONG_TOKENS = 1024, 16_384
IMAGES = 12
"""Of a step, beside one long text: as many tokens as it has, about, and all of the decoding."""
RANKS = 2
ROWS = 20_000
WARM_S, MEASURED_S, LEAST_STEPS = 30.0, 12.0, 30
"""Actors start within seconds where CPUs are free, and within half a minute where others use them too."""
ENGINES = ("local", "ray")
DECODE_S = 0.02
"""Of an image, where decoding is played by waiting: then a worker is a CPU of its own."""


class Images(Source):
    """Rows that take time: a picture is decoded, or that time is waited for."""

    name = "images"

    def __init__(self, *, wait_s: float | None) -> None:
        self.wait_s = wait_s
        self.jpeg = b"" if wait_s is not None else _picture()

    def __len__(self) -> int:
        return IMAGES * ROWS

    def lengths(self) -> NDArray[np.int64]:
        return np.full(len(self), IMAGE_TOKENS, np.int64)

    def read(self, rows: NDArray[np.int64]) -> Rows:
        for _ in rows:
            self.decode()
        return _rows(np.full(rows.size, IMAGE_TOKENS))

    def decode(self) -> None:
        if self.wait_s is not None:
            time.sleep(self.wait_s)
            return
        from PIL import Image

        np.asarray(Image.open(io.BytesIO(self.jpeg)).convert("RGB")).mean()

    def origin(self, row: int) -> str:
        return f"image {row}"

    def fingerprint(self) -> str:
        return "images"


class Text(Images):
    """Long rows that take none."""

    name = "text"

    def __init__(self) -> None:
        super().__init__(wait_s=0.0)

    def __len__(self) -> int:
        return ROWS

    def lengths(self) -> NDArray[np.int64]:
        return np.full(len(self), LONG_TOKENS, np.int64)

    def read(self, rows: NDArray[np.int64]) -> Rows:
        return _rows(np.full(rows.size, LONG_TOKENS))

    def fingerprint(self) -> str:
        return "text"


def _rows(sizes: NDArray[np.int64]) -> Rows:
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    return Rows(input_ids=np.zeros(int(offsets[-1]), np.int32), offsets=offsets)


def _picture() -> bytes:
    from PIL import Image

    noise = np.random.default_rng(0).integers(0, 255, (60, 80, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(noise).resize((1600, 1200)).save(out, "JPEG", quality=90)
    return out.getvalue()


def loaders(engine: str, workers: int, *, wait_s: float | None) -> list[Any]:
    """One a rank."""
    mixture = Mixture(
        {"images": Images(wait_s=wait_s), "text": Text()},
        weights={"images": IMAGES, "text": 1},
        by="samples",
        seed=0,
    )
    return [
        DataLoader(
            mixture, global_batch_size=IMAGES + 1, batch_size=None, max_tokens=LONG_TOKENS, prefetch_factor=4,
            topology=Topology(ranks=RANKS), rank=rank, seed=0, engine=engine, num_workers=workers,
        )
        for rank in range(RANKS)
    ]  # fmt: skip


def steps_of(loader: Any) -> Iterator[int]:
    """Numbers of finished steps of one rank."""
    for batch in loader:
        if batch.last_in_step:
            yield batch.step


def throughput(engine: str, cpus: int, *, wait_s: float | None) -> dict[str, float]:
    """Images a second when all ranks take every step together, against all CPUs decoding all the time.

    Real decoding is held to what as many bare processes decode just before and after, other work on the
    machine included; only on a machine without any is that more than a rough idea.
    """
    before = 0.0 if wait_s is not None else ideal_rate(cpus)
    given = [steps_of(loader) for loader in loaders(engine, cpus // RANKS, wait_s=wait_s)]
    finished = threading.Event()
    barrier = threading.Barrier(RANKS)
    ends: list[float] = []

    def rank(number: int) -> None:
        for _ in given[number]:
            if number == 0:
                ends.append(time.perf_counter())
                steps = sum(end - ends[0] > WARM_S for end in ends)
                if steps > LEAST_STEPS and ends[-1] - ends[0] > WARM_S + MEASURED_S:
                    finished.set()
            barrier.wait(120)
            if finished.is_set():
                return

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    measured = [end for end in ends if end - ends[0] > WARM_S]
    rate = IMAGES * (len(measured) - 1) / (measured[-1] - measured[0])
    ideal = cpus / wait_s if wait_s is not None else (before + ideal_rate(cpus)) / 2
    return {"images_per_s": rate, "ideal_per_s": ideal, "of_ideal": rate / ideal}


def ideal_rate(cpus: int, each: int = 60) -> float:
    """Images a second of as many processes that do nothing but decode, on the machine as it is now."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(cpus) as pool:
        pool.map(decode_some, [1] * cpus, chunksize=1)  # libraries are loaded
        begin = time.perf_counter()
        pool.map(decode_some, [each] * cpus, chunksize=1)
        return each * cpus / (time.perf_counter() - begin)


def decode_some(count: int) -> None:
    """In a process of its own."""
    images = Images(wait_s=None)
    for _ in range(count):
        images.decode()


def hidden(step_s: float = 0.05, *, wait_s: float) -> dict[str, float]:
    """How long a rank waits for its batches when a step takes ``step_s``."""
    given = [iter(loader) for loader in loaders("ray", 1, wait_s=wait_s)]
    waits: list[float] = []
    for rank in given:  # actors are started, however long that takes
        while not next(rank).last_in_step:
            pass
    begun = time.perf_counter()
    while (passed := time.perf_counter() - begun) < WARM_S + MEASURED_S:
        time.sleep(step_s)
        for rank in given:
            begin = time.perf_counter()
            while not next(rank).last_in_step:
                pass
            if passed > WARM_S:
                waits.append(time.perf_counter() - begin)
    return {
        "step_ms": 1e3 * step_s,
        "wait_p50_ms": 1e3 * statistics.median(waits),
        "wait_p95_ms": 1e3 * sorted(waits)[int(len(waits) * 0.95)],
        "decoding_a_step_ms": 1e3 * IMAGES * wait_s,
    }


def decode_rows() -> list[dict[str, Any]]:
    """Waiting in place of decoding, on 8 CPUs, and a step of 50 ms."""
    rows = [("waited", engine, 8, partial(throughput, engine, 8, wait_s=DECODE_S)) for engine in ENGINES]
    return _measured([*rows, ("waited, steps of 50 ms", "ray", 8, partial(hidden, wait_s=DECODE_S))])


def picture_rows() -> list[dict[str, Any]]:
    """Real pictures on this machine's CPUs: for a machine with nothing else to do."""
    cpus = len(os.sched_getaffinity(0))
    return _measured(
        [("decoded", engine, cpus, partial(throughput, engine, cpus, wait_s=None)) for engine in ENGINES]
    )


def _measured(runs: list[tuple[str, str, int, Callable[[], dict[str, float]]]]) -> list[dict[str, Any]]:
    import ray

    found = []
    for work, engine, cpus, measure in runs:
        if engine == "ray":
            ray.init("local", num_cpus=cpus, include_dashboard=False, log_to_driver=False)
        try:
            found.append({"work": work, "cpus": cpus, "engine": engine, **measure()})
            print(found[-1], flush=True)
        finally:
            ray.shutdown()
    return found


def overhead_rows(rounds: int = 3) -> list[dict[str, Any]]:
    """Plain text on one machine: CPU seconds and seconds a million tokens, Ray's processes included."""
    import tempfile
    from pathlib import Path

    import ray

    from benchmarks.loader import write_documents

    kinds: dict[str, dict[str, Any]] = {
        "local, no workers": {},
        "local, 2 workers": {"num_workers": 2},
        "ray": {"engine": "ray"},
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in kinds}
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        with tempfile.TemporaryDirectory() as place:
            path = str(write_documents(Path(place), 100_000)["arrow"])
            for _ in range(rounds):
                for name, how in kinds.items():
                    times[name].append(_per_million(path, how))
    finally:
        ray.shutdown()
    cheapest = statistics.median(cpu for cpu, _ in times["local, no workers"])
    return [
        {
            "engine": name,
            "cpu_s_per_Mtoken": statistics.median(cpu for cpu, _ in some),
            "s_per_Mtoken": statistics.median(wall for _, wall in some),
            "cpu_over_local": statistics.median(cpu for cpu, _ in some) / cheapest,
        }
        for name, some in times.items()
    ]


def _per_million(path: str, how: dict[str, Any]) -> tuple[float, float]:
    from loaders import open_source

    loader: Any = DataLoader(
        open_source(path), batch_size=512, shuffle=True, max_tokens=1 << 16, seed=0, **how
    )
    given = iter(loader)
    for _ in range(20):
        next(given)
    everyone = [os.getpid(), *descendants(os.getpid())]
    cpu, begin, tokens = cpu_s(everyone), time.perf_counter(), 0
    for batch in itertools.islice(given, 200):
        tokens += batch["input_ids"].numel()
    wall = time.perf_counter() - begin
    return (cpu_s(everyone) - cpu) / tokens * 1e6, wall / tokens * 1e6
