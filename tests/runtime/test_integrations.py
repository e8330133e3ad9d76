"""Every training stack's example, on 2 real ranks, has the losses of a plain loop in one process."""

import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow
STACKS = ["ddp", "fsdp2", "hf_trainer", "trl_sft", "accelerate_loop", "lightning_loop", "titan_style"]


def losses(stack, ranks):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    done = subprocess.run(
        [*command, "-m", f"examples.integrations.{stack}"], capture_output=True, text=True, timeout=3600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [float(loss) for loss in re.findall(r"^step \d+ loss (\S+)$", done.stdout, re.MULTILINE)]


@pytest.fixture(scope="module")
def plain():
    found = losses("ddp", 1)
    assert len(found) == 6
    assert found[-1] < found[0] - 1
    return found


@pytest.mark.parametrize(("stack", "ranks"), [*((stack, 2) for stack in STACKS), ("ddp", 4), ("fsdp2", 3)])
def test_a_stack_trains_as_one_process_does(stack, ranks, plain):
    assert losses(stack, ranks) == pytest.approx(plain, rel=1e-5)
