"""``evenload status`` tells what the actors of running loaders do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

import pytest
from rich.console import Console

pytest.importorskip("ray", reason="ray is not installed")

from loaders.cli.status_tables import tables
from loaders.ray_engine.builders import BuilderStats
from loaders.ray_engine.readers import ReaderStats
from loaders.ray_engine.status import ActorState, by_loader, status
from tests.ray.streams import loader_of, mixture


def reader(number: int, tokens: dict[str, int], **changes: Any) -> ActorState:
    rates = {name: amount / 10 for name, amount in tokens.items()}
    stats = ReaderStats(
        sources=tuple(tokens), reads=3, busy=0.25, size_bytes=4000, bytes_per_s=400.0, tokens_per_s=rates,
        tokens=tokens, faults=1, memory_bytes=123_000_000,
    )  # fmt: skip
    named = {"job": "j", "data": "d", "role": "reader", "number": str(number), "node": "n1", "process": 7}
    return ActorState(**{**named, "stats": stats, **changes})


def builder(number: str, steps: dict[int, int], wait_s: dict[int, float]) -> ActorState:
    stats = BuilderStats(
        batches=9, waiting=2, waiting_bytes=2048, in_bytes=0, out_bytes=0, in_bytes_per_s=1e6,
        out_bytes_per_s=2e6, batches_per_s=1.0, wait_s=wait_s, steps=steps, memory_bytes=0,
    )  # fmt: skip
    return ActorState(job="j", data="d", role="builder", number=number, node="n1", process=8, stats=stats)


def shown(found: dict[str, Any]) -> str:
    with (console := Console(width=120)).capture() as captured:
        for part in tables(found):
            console.print(part)
    return captured.get()


FOUND = {
    "address": "10.0.0.1:6379",
    "nodes": [{"id": "n1", "host": "a", "alive": True, "cpus": 2}, {"id": "n2", "alive": False, "cpus": 0}],
    "store": {"used_bytes": 5_000_000, "total_bytes": 200_000_000},
}


def test_tokens_of_a_source_add_up_over_its_readers_and_ranks_over_builders() -> None:
    members = [
        reader(1, {"web": 100, "code": 50}),
        reader(0, {"web": 10}),
        builder("n1:0", {0: 7, 1: 8}, {0: 1.5}),
        builder("n2:0", {0: 9}, {0: 0.5}),
        reader(2, {}, job="other"),
    ]
    first, second = by_loader(members)
    assert first["sources"] == {
        "web": {"tokens": 110, "tokens_per_s": 11.0},
        "code": {"tokens": 50, "tokens_per_s": 5.0},
    }
    assert [one["number"] for one in first["readers"]] == ["0", "1"]
    assert first["ranks"] == {"0": {"step": 9, "wait_s": 2.0}, "1": {"step": 8, "wait_s": 0.0}}
    assert (second["job"], second["builders"]) == ("other", [])


def test_the_tables_show_busy_readers_full_queues_and_silent_actors() -> None:
    silent = reader(1, {}, node=None, process=None, stats=None)
    loaders = by_loader([reader(0, {"web": 100}), silent, builder("n1:0", {3: 7}, {3: 1.5})])
    text = shown({**FOUND, "loaders": loaders})
    assert "1 nodes (1 lost), 2 CPUs, object store 5MB of 200MB" in text
    rows = {" ".join(line.split()[1:3]): line for line in text.splitlines() if "│" in line}
    assert "123MB" in rows["reader 0"]
    assert "25%" in rows["reader 0"]
    assert "does not answer" in rows["reader 1"]
    assert all(part in rows["builder n1:0"] for part in ("2.05kB", "1MB", "2MB"))
    assert "web" in text
    assert "1.5 s" in text
    assert "No loader" in shown({**FOUND, "loaders": []})


def test_many_sources_are_summed_up() -> None:
    many = reader(0, {f"source {n}": n for n in range(100)})
    text = shown({**FOUND, "loaders": by_loader([many])})
    assert "76 more" in text
    assert "source 99" in text
    assert "source 3 " not in text


def test_a_running_loader_is_seen_from_here_and_from_another_program(address: str) -> None:
    loader = loader_of(mixture(), 0, engine="ray", address=address)
    batches = iter(loader)
    for _ in range(6):
        next(batches)
    (one,) = [found for found in status()["loaders"] if found["builders"]]
    check(one)
    command = [sys.executable, "-m", "loaders.cli", "status", "--json", "--address", address]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["address"] == address
    assert sum(node["alive"] for node in found["nodes"]) >= 2
    (other,) = [found for found in found["loaders"] if found["builders"]]
    check(other)
    assert other["job"] == one["job"]
    assert "tokens/s" in shown(found)


def check(loader: dict[str, Any]) -> None:
    assert all(one["answers"] for role in ("readers", "builders") for one in loader[role])
    assert loader["readers"][0]["process"] != os.getpid()
    assert set(loader["sources"]) >= {"plain", "brittle"}
    assert sum(told["tokens"] for told in loader["sources"].values()) > 0
    assert loader["ranks"]["0"]["step"] >= 1


def test_a_reader_that_was_killed_is_not_waited_for_for_ever(address: str) -> None:
    import ray

    loader = loader_of(mixture(), 0, engine="ray", address=address)
    batches = iter(loader)
    next(batches)
    (one,) = [found for found in status()["loaders"] if found["builders"]]
    os.kill(one["readers"][0]["process"], 9)
    begin = time.monotonic()
    status()
    assert time.monotonic() - begin < 20
    assert len(list(batches)) > 3
    assert ray.is_initialized()


def test_no_cluster_is_told() -> None:
    command = [sys.executable, "-m", "loaders.cli", "status", "--address", "127.0.0.1:9"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "no Ray cluster answers at 127.0.0.1:9" in done.stderr
