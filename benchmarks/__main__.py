"""``python -m benchmarks NAME [options]`` runs the benchmark of that name; without one it lists them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

HELPERS = {"harness", "hybrid_cp", "workloads"}
WHOLE = {"all", "tables"}
"""What runs or writes up all the others."""


def names() -> list[str]:
    files = Path(__file__).parent.glob("*.py")
    return sorted(
        file.stem for file in files if not file.stem.startswith("_") and file.stem not in HELPERS | WHOLE
    )


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1] not in {*names(), *WHOLE}:
        print(
            f"usage: python -m benchmarks NAME [options]; NAME is one of {', '.join(names())}, "
            f"or {' or '.join(sorted(WHOLE))}",
            file=sys.stderr,
        )
        return 2
    name = sys.argv.pop(1)
    sys.argv[0] = f"python -m benchmarks {name}"
    importlib.import_module(f"benchmarks.{name}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
