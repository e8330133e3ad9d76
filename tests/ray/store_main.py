"""A loader whose samples do not fit into the object store, nor onto a disk that may not be used."""

from __future__ import annotations

import ray

from loaders import DataLoader
from tests.loaders.arrays import ArraySource

TOKENS = 30_000_000


def main() -> None:
    no_disk = {"local_fs_capacity_threshold": 0.0001}
    ray.init(
        "local",
        num_cpus=1,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=80 << 20,
        _system_config=no_disk,
    )
    loader = DataLoader(ArraySource([TOKENS]), batch_size=1, max_tokens=TOKENS, engine="ray")
    try:
        list(loader)
    except RuntimeError as error:
        print("told:", str(error).replace("\n", " "))


if __name__ == "__main__":
    main()
