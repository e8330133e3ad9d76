"""One cluster for all tests here: two nodes of one CPU on this machine."""

from __future__ import annotations

import importlib.util
import os

import pytest

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Ray's own limits for what it starts are half a minute and a minute
os.environ.setdefault("RAY_gcs_server_port_wait_time_s", "600")
os.environ.setdefault("RAY_worker_register_timeout_seconds", "600")
os.environ.setdefault("RAY_gcs_server_request_timeout_seconds", "600")
os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "600")
# Ray's workers are nicer than others by 15: beside other work on the machine they would hardly run at all
os.environ.setdefault("RAY_worker_niceness", "0")


def pytest_collection_modifyitems(items):
    for item in items:
        if "tests/ray/" in str(item.path):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    if importlib.util.find_spec("ray") is not None:
        from tests.ray.streams import be_patient

        be_patient(monkeypatch.setattr)


@pytest.fixture(scope="session")
def cluster():
    """Nodes that are lost are noticed within two seconds instead of ten; slow ones are waited for."""
    pytest.importorskip("ray", reason="ray is not installed")
    from tests.ray.nodes import patient_cluster

    quick = {
        "health_check_initial_delay_ms": 500,
        "health_check_period_ms": 500,
        "health_check_timeout_ms": 20_000,  # of a node that does not answer; one that is gone refuses at once
        "health_check_failure_threshold": 3,
    }
    made = patient_cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "include_dashboard": False, "_system_config": quick},
    )
    made.add_node(num_cpus=1)
    yield made
    made.shutdown()


@pytest.fixture(scope="module")
def address(cluster):
    """Of the cluster, which a module's loaders share and leave behind empty."""
    yield cluster.address
    import ray

    ray.shutdown()
