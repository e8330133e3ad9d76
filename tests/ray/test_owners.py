"""Ranks as programs of their own: what they share, and what is left when one is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="ray is not installed")

import ray
from ray.util import list_named_actors

from loaders.ray_engine import session
from loaders.ray_engine.session import NAMESPACE
from loaders.ray_engine.status import status, write_timeline
from tests.ray.streams import digest, loader_of, mixture

ROOT = Path(__file__).resolve().parents[2]


def start(rank, ranks, count, job, **environment):
    """A rank of a job that no other run of these tests, killed or under way, has met under its name."""
    told = {
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29611",  # nobody listens there
        "TORCHELASTIC_RUN_ID": job,
    }
    kept = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.ray.rank_main", *map(str, (rank, ranks, count))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=kept | told | environment,
    )


def read_batches(process, count=None):
    found = []
    while count is None or len(found) < count:
        line = process.stdout.readline()
        if not line or line.startswith("end"):
            break
        if line.startswith("batch"):
            found.append(line.split()[1])
    return found


def go_on(process):
    process.stdin.write("\n")
    process.stdin.flush()


def expected(rank, ranks):
    return [digest(batch) for batch in loader_of(mixture(), rank, ranks)]


def descendants(process):
    """Processes below one, from the system's table."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
    found, rest = [], [process]
    while rest:
        above = rest.pop()
        below = [pid for pid, parent in parents.items() if parent == above]
        found += below
        rest += below
    return found


def lives(process):
    try:
        return (Path("/proc") / str(process) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def name_of(process):
    """Its command line; empty where it has ended."""
    try:
        return (Path("/proc") / str(process) / "cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


LEFT = []
"""Ray's own agents of a killed program: they end when they have not heard of their raylet for a minute."""


def within(seconds, condition):
    give_up = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > give_up:
            return False
        time.sleep(0.2)
    return True


def test_two_ranks_share_a_cluster_of_their_own_and_a_kill_leaves_no_process():
    job = uuid.uuid4().hex
    ranks = [start(rank, 2, 10, job) for rank in range(2)]
    try:
        for rank, process in enumerate(ranks):
            assert read_batches(process, 10) == expected(rank, 2)[:10]
        below = [descendants(process.pid) for process in ranks]
        starter = max(range(2), key=lambda rank: len(below[rank]))
        assert below[1 - starter] == []  # it uses the other's cluster
        assert len(below[starter]) > 5
        agents = [pid for pid in below[starter] if "Agent" in name_of(pid)]
        for process in ranks:
            process.kill()
        rest = set(below[starter]) - set(agents)
        assert within(600, lambda: not any(lives(pid) for pid in rest))
        LEFT.extend(agents)
    finally:
        for process in ranks:
            process.kill()
            process.wait()


def test_a_process_that_has_ended_does_not_live_though_nobody_has_asked_how():
    process = subprocess.Popen([sys.executable, "-c", ""])
    assert within(600, lambda: not session._lives(process.pid))
    process.wait()
    assert session._lives(os.getpid())


def test_the_rank_that_started_the_cluster_ends_last():
    job = uuid.uuid4().hex
    ranks = [start(rank, 2, 10, job) for rank in range(2)]
    try:
        for process in ranks:
            read_batches(process, 10)
        starter = int(len(descendants(ranks[1].pid)) > len(descendants(ranks[0].pid)))
        go_on(ranks[starter])
        assert read_batches(ranks[starter]) == expected(starter, 2)[10:]
        time.sleep(1)
        other = 1 - starter
        go_on(ranks[other])
        assert read_batches(ranks[other]) == expected(other, 2)[10:]
        assert [process.wait(900) for process in ranks] == [0, 0]
    finally:
        for process in ranks:
            process.kill()
            process.wait()


def test_a_rank_goes_on_when_the_one_that_owns_the_actors_is_killed_and_nothing_outlives_both(cluster):
    ray.init(cluster.address, log_to_driver=False)
    job = uuid.uuid4().hex
    first = start(0, 2, 10, job, CLUSTER=cluster.address)
    second = None
    try:
        assert read_batches(first, 10) == expected(0, 2)[:10]
        second = start(1, 2, 10, job, CLUSTER=cluster.address)  # everything is there already
        assert read_batches(second, 10) == expected(1, 2)[:10]
        told = status(cluster.address)
        assert {actor.kind for actor in told.actors} == {"catalogs", "reader", "builder"}
        assert sorted(told.wait_s) == [0, 1]  # one builder serves both ranks
        first.send_signal(signal.SIGKILL)
        go_on(second)
        assert read_batches(second, 20) == expected(1, 2)[10:30]
        second.send_signal(signal.SIGKILL)
        assert within(600, lambda: not status(cluster.address).actors)
        names = [one for one in list_named_actors(all_namespaces=True) if one["namespace"] == NAMESPACE]
        assert names == []
    finally:
        for process in (first, second):
            if process is not None:
                process.kill()
                process.wait()
        ray.shutdown()


def test_status_and_timeline_tell_what_was_done(address, tmp_path):
    loader = loader_of(mixture(), 0, 1, engine="ray", address=address, cp_degrees=(1,))
    batches = list(loader)
    told = status()
    [builder] = told.builders
    wanted = loader.metrics()["tokens_by_source"]
    tokens = Counter()  # how many readers there are is a matter of pace
    for reader in told.readers:
        tokens.update(reader.reader.tokens)
    assert dict(tokens) == wanted
    assert builder.builder.batches == len(batches)
    assert builder.builder.waiting == told.waiting == 0
    assert builder.builder.in_bytes >= 4 * sum(wanted.values())
    assert told.tokens_per_s.keys() == wanted.keys()  # rates are of the last seconds, and may have ended
    assert told.store_bytes >= told.store_free_bytes > 0
    assert within(600, lambda: sum(node.cpus for node in status().nodes if node.alive) == 2)
    path = tmp_path / "timeline.json"
    count = write_timeline(path)
    events = json.loads(path.read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert len(spans) == count
    kinds = [event["cat"] for event in spans]
    assert kinds.count("build") == len(batches)
    assert kinds.count("wait") >= len(batches) - 5  # told with the next batch that is asked for, 4 ahead
    assert {event["name"] for event in spans if event["cat"] == "read"} == set(wanted)


def test_a_full_object_store_is_told():
    command = [sys.executable, "-m", "tests.ray.store_main"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=900, check=True)
    assert "told: step 0: Ray's object store on this node is full" in done.stdout
    assert "--object-store-memory" in done.stdout


def test_a_lost_head_is_told_before_ray_ends_the_process():
    command = [sys.executable, "-m", "tests.ray.head_main"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=900, check=True)
    assert "told: the head of the Ray cluster has not answered for" in done.stdout
    assert 'engine="local"' in done.stdout


def test_ray_ends_its_agents_too():
    assert within(600, lambda: not any(lives(process) for process in LEFT))
