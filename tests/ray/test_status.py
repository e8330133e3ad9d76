"""``evenload status`` tells what the actors of running loaders do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

pytest.importorskip("ray", reason="ray is not installed")

from loaders.cli.status_tables import tables
from loaders.ray_engine.builders import BuilderStats
from loaders.ray_engine.readers import ReaderStats
from loaders.ray_engine.session import job_name
from loaders.ray_engine.status import ActorStatus, NodeStatus, Status
from loaders.ray_engine.summary import summary
from tests.ray.streams import loader_of, mixture

ROOT = Path(__file__).resolve().parents[2]
PATIENT = """
from loaders.cli import main
from tests.ray.streams import be_patient_here
be_patient_here()
main()
"""


def reader(name: str, tokens: dict[str, int], job: str = "j") -> ActorStatus:
    rates = {source: amount / 10 for source, amount in tokens.items()}
    stats = ReaderStats(
        sources=tuple(tokens), reads=3, busy=0.25, size_bytes=4000, bytes_per_s=400.0, tokens_per_s=rates,
        tokens=tokens, faults=1, memory_bytes=123_000_000,
    )  # fmt: skip
    return ActorStatus(job=job, kind="reader", name=name, answers=True, reader=stats)


def builder(name: str, steps: dict[int, int], wait_s: dict[int, float]) -> ActorStatus:
    stats = BuilderStats(
        batches=9, waiting=2, waiting_bytes=2048, in_bytes=0, out_bytes=0, in_bytes_per_s=1e6,
        out_bytes_per_s=2e6, batches_per_s=1.0, wait_s=wait_s, steps=steps, memory_bytes=0,
    )  # fmt: skip
    return ActorStatus(job="j", kind="builder", name=name, answers=True, builder=stats)


def told_of(*actors: ActorStatus) -> dict[str, Any]:
    nodes = [
        NodeStatus(name="a", alive=True, cpus=2.0, store_bytes=200_000_000),
        NodeStatus(name="b", alive=False, cpus=0.0, store_bytes=0),
    ]
    status = Status(address="10.0.0.1:6379", nodes=nodes, actors=actors, store_free_bytes=195_000_000)
    found = summary(status)
    assert json.loads(json.dumps(found)) == found
    return found


def shown(found: dict[str, Any]) -> str:
    with (console := Console(width=120)).capture() as captured:
        for part in tables(found):
            console.print(part)
    return captured.get()


def test_tokens_of_a_source_add_up_over_its_readers_and_ranks_over_builders() -> None:
    first, second = told_of(
        reader("1", {"web": 100, "code": 50}),
        reader("0", {"web": 10}),
        builder("n1:0", {0: 7, 1: 8}, {0: 1.5}),
        builder("n2:0", {0: 9}, {0: 0.5}),
        reader("2", {}, job="other"),
    )["jobs"]
    assert first["sources"] == {
        "web": {"tokens": 110, "tokens_per_s": 11.0},
        "code": {"tokens": 50, "tokens_per_s": 5.0},
    }
    assert [one["name"] for one in first["readers"]] == ["0", "1"]
    assert first["ranks"] == {"0": {"step": 9, "wait_s": 2.0}, "1": {"step": 8, "wait_s": 0.0}}
    assert (second["job"], second["builders"]) == ("other", [])


def test_the_tables_show_busy_readers_full_queues_and_silent_actors() -> None:
    silent = ActorStatus(job="j", kind="reader", name="1", answers=False)
    keeper = ActorStatus(job="j", kind="catalogs", name="", answers=True)
    text = shown(told_of(reader("0", {"web": 100}), silent, keeper, builder("n1:0", {3: 7}, {3: 1.5})))
    assert "1 nodes (1 lost), 2 CPUs, object store 5MB of 200MB" in text
    rows = {" ".join(line.split()[1:3]): line for line in text.splitlines() if "│" in line}
    assert "123MB" in rows["reader 0"]
    assert "25%" in rows["reader 0"]
    assert "no answer" in rows["reader 1"]
    assert all(part in rows["builder n1:0"] for part in ("2.05kB", "1MB", "2MB"))
    assert "catalogs" in text
    assert "web" in text
    assert "1.5 s" in text
    assert "No loader" in shown(told_of())


def test_many_sources_are_summed_up() -> None:
    text = shown(told_of(reader("0", {f"source {n}": n for n in range(100)})))
    assert "76 more" in text
    assert "source 99" in text
    assert "source 3 " not in text


def test_a_running_loader_is_seen_from_another_program(address: str, tmp_path: Path) -> None:
    loader = loader_of(mixture(), 0, engine="ray", address=address)
    batches = iter(loader)
    for _ in range(6):
        next(batches)
    command = [sys.executable, "-c", PATIENT, "status", "--address", address]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True, cwd=ROOT)
    found = json.loads(done.stdout)
    assert found["address"] == address
    assert sum(node["alive"] for node in found["nodes"]) >= 2
    (job,) = [one for one in found["jobs"] if one["job"] == job_name()]
    assert all(one["answers"] for kind in ("readers", "builders", "catalogs") for one in job[kind])
    assert set(job["sources"]) >= {"plain", "brittle"}
    assert sum(told["tokens"] for told in job["sources"].values()) > 0
    assert job["ranks"]["0"]["step"] >= 1
    assert "tokens/s" in shown(found)
    path = tmp_path / "trace.json"
    subprocess.run([*command, "--timeline", str(path)], check=True, capture_output=True, cwd=ROOT)
    assert any(
        event.get("cat") or event["ph"] == "X" for event in json.loads(path.read_text())["traceEvents"]
    )


def test_no_cluster_is_told() -> None:
    command = [sys.executable, "-m", "loaders.cli", "status", "--address", "127.0.0.1:9"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "no Ray cluster answers at 127.0.0.1:9" in done.stderr


def test_of_several_clusters_one_must_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from loaders.ray_engine import status as looking

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(looking, "clusters_here", lambda: ["10.0.0.1:1", "10.0.0.1:2"])
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with pytest.raises(
        ConnectionError, match=r"2 Ray clusters run on this machine: 10\.0\.0\.1:1, 10\.0\.0\.1:2"
    ):
        looking.status()
