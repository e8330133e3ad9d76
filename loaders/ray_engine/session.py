"""Which cluster a loader's work runs on, and what its actors are called there."""

from __future__ import annotations

import atexit
import hashlib
import io
import logging
import os
import pickle
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray

logger = logging.getLogger(__name__)

NAMESPACE = "evenload"
"""Of all actors: ranks are Ray programs of their own beside torchrun, so names are what they share."""

OUTLIVE_S = 300.0
"""How long the process that started a cluster stays for the others that use it."""
REACH_S = 10.0
"""A cluster that does not take a connection within this time is not there."""


def join_cluster(address: str | None = None) -> None:
    """Be on a cluster: the one this program is on, that of ``address`` or ``RAY_ADDRESS``, or a new one here.

    Ranks of one job on one machine, as torchrun starts them, share the new one.

    Raises:
        ConnectionError: no cluster answers at the address.
        ValueError: an address other than that of the cluster this program is on.
    """
    if ray.is_initialized():
        here = ray.get_runtime_context().gcs_address
        if address not in (None, "auto", "local", here):
            raise ValueError(
                f"this program is on the Ray cluster {here} already, so it cannot be on {address} too. "
                "Leave the address out, or call ray.shutdown() first."
            )
        return
    address = address or os.environ.get("RAY_ADDRESS")
    if address not in (None, "local"):
        _connect(address)
        return
    if int(os.environ.get("LOCAL_WORLD_SIZE", "1")) == 1 or "MASTER_PORT" not in os.environ:
        _start()
        return
    with _meeting_point() as path:
        told = path.read_text().split() if path.exists() else []
        if len(told) >= 3 and _lives(int(told[1])):
            _trust(told[2])
            _connect(told[0])
            path.write_text(" ".join([*told, str(os.getpid())]))
            return
        _start()
        mode = os.environ.get("RAY_AUTH_MODE", "disabled")
        path.write_text(f"{ray.get_runtime_context().gcs_address} {os.getpid()} {mode}")
        atexit.register(_outlive_the_others, path)


def clusters_here() -> list[str]:
    """Addresses of clusters whose head is on this machine; none where this version of Ray does not tell."""
    with suppress(ImportError, AttributeError):
        from ray._private.services import find_gcs_addresses

        return sorted(find_gcs_addresses())
    return []


def job_name() -> str:
    """Equal on all ranks of a job, and another for another job on the same cluster."""
    told = [os.environ.get(name, "") for name in ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")]
    context = ray.get_runtime_context()
    inside = context.get_actor_id() is not None  # ranks are actors of one program, as Ray Train has it
    return _digest(context.get_job_id() if inside or not told[2] else "|".join(told))


def this_node() -> str:
    """Id of the node this process is on."""
    return str(ray.get_runtime_context().get_node_id())


def data_name(description: Any) -> str:
    """A name for data and how they are opened; ranks that pass equal things share what reads them."""
    return hashlib.blake2b(pickled(description).data, digest_size=8).hexdigest()


def pickled(value: Any) -> NDArray[np.uint8]:
    """A value in bytes, functions and classes of the main program included.

    Raises:
        TypeError: it cannot be sent to another process.
    """
    try:
        return np.frombuffer(ray.cloudpickle.dumps(value), np.uint8)
    except Exception as error:
        raise TypeError(
            f'with engine="ray", data and collate_fn go to other processes, so they must be picklable: '
            f"{type(error).__name__}: {error}. Let them hold paths instead of open files, locks or handles."
        ) from error


def unpickled(data: NDArray[np.uint8]) -> Any:
    """What `pickled` has made, in another process.

    Raises:
        ImportError: a class or function of it is not found here.
    """
    return _Finder(io.BytesIO(data.data)).load()


class _Finder(pickle.Unpickler):
    """Says what cannot be found, where, and what to do."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        try:
            return super().find_class(module_name, global_name)
        except (ImportError, AttributeError) as error:
            raise ImportError(
                f"{module_name}.{global_name} cannot be loaded on {socket.gethostname()} ({error}). With "
                'engine="ray", data and collate_fn are used by processes of the cluster, so their modules '
                "must be importable on all of its nodes: install them there, or let Ray bring them with "
                'ray.init(runtime_env={"working_dir": "."}) (or "py_modules") before the loader is made. '
                "What the main program defines itself is sent as it is."
            ) from None


def _start() -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init("local", include_dashboard=False, **_quiet())


def _connect(address: str) -> None:
    try:
        _reach(address)
        ray.init(address, **_quiet())
    except (OSError, RuntimeError) as error:
        raise ConnectionError(
            f"no Ray cluster answers at {address} ({type(error).__name__}: {error}). Start one with "
            "`ray start --head`, or leave address and RAY_ADDRESS out to use this machine alone."
        ) from None


def _trust(mode: str) -> None:
    """Take part in token authentication, which newer versions of Ray turn on in clusters that they start.

    They do it for a cluster that is found by itself, and not for one that is named, though this one has just
    been started by this user's own process.
    """
    if mode != "token" or "RAY_AUTH_MODE" in os.environ:
        return
    with suppress(ImportError):
        from ray._private.authentication import authentication_token_setup as tokens

        tokens.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)


def _reach(address: str) -> None:
    """Raise OSError where nothing listens: Ray itself goes on trying for more than ten minutes."""
    if address == "auto":
        with suppress(ImportError, AttributeError):
            from ray._private.services import canonicalize_bootstrap_address

            address = canonicalize_bootstrap_address(address) or address
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), REACH_S).close()


def _quiet() -> dict[str, Any]:
    return {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": logging.ERROR}


@contextmanager
def _meeting_point() -> Iterator[Path]:
    """A file that ranks of this job on this machine look at one after another."""
    import fcntl

    job = _digest("|".join([os.environ.get("TORCHELASTIC_RUN_ID", ""), os.environ["MASTER_PORT"]]))
    path = Path(tempfile.gettempdir()) / f"evenload-ray-{os.getuid()}-{job}"
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield path


def _outlive_the_others(path: Path) -> None:
    """The cluster ends with the process that started it, so this one ends last."""
    give_up = time.monotonic() + OUTLIVE_S
    told = False
    while time.monotonic() < give_up:
        others = [process for process in path.read_text().split()[3:] if _lives(int(process))]
        if not others:
            break
        if not told:
            logger.info("waiting for processes %s, which use this one's Ray cluster", ", ".join(others))
            told = True
        time.sleep(0.1)
    path.unlink(missing_ok=True)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    try:  # one that has ended is still found as long as who started it has not asked how
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:  # another system, or it has just ended
        return not Path("/proc/self/stat").exists()


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
