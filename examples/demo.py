"""``make demo``: the whole path on this machine, from a corpus to a table and pictures.

python examples/demo.py --out demo
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from corpus import write_corpus
from rich.console import Console
from timeline import draw

EXAMPLES = Path(__file__).parent
RANKS = 2
MAX_TOKENS = 1408
"""Cap of a micro-batch and of a row: the tail stays heavy, but no row outweighs a rank's share of a step."""

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # one core a rank; torchrun would set it too, with a warning
    # The padded way's logits are some 250 MB a step. glibc hands them back to the system after each step and
    # faults every page in again, a third of that way's time. Memory is kept, so that arithmetic is compared.
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(8 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
}


def train(out: Path, seconds: float) -> None:
    """Run ``examples/train.py`` on the ranks; what it prints goes to this terminal."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    script = [str(EXAMPLES / "train.py"), f"--data={out}", f"--out={out / 'results.json'}"]
    options = [f"--seconds={seconds}", f"--max-tokens={MAX_TOKENS}"]
    done = subprocess.run([*command, *script, *options], env={**os.environ, **ENVIRONMENT}, check=False)
    if done.returncode:
        raise SystemExit(f"training ended with exit status {done.returncode}; its messages stand above")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=Path("demo"), help="folder for corpus, results and pictures"
    )
    parser.add_argument("--seconds", type=float, default=125.0, help="time for the training steps")
    arguments = parser.parse_args()
    console = Console(highlight=False, soft_wrap=True)
    start = time.monotonic()
    console.rule("corpus: the standard library and its documentation", align="left")
    write_corpus(arguments.out, cut=MAX_TOKENS)
    console.rule(f"training: {RANKS} ranks, three ways in turns, {arguments.seconds:.0f} s", align="left")
    train(arguments.out, arguments.seconds)
    console.rule("pictures", align="left")
    for path in draw(arguments.out / "results.json"):
        console.print(str(path))
    console.print(
        f"\ndone in {time.monotonic() - start:.0f} s; all numbers are in {arguments.out / 'results.json'}"
    )


if __name__ == "__main__":
    main()
