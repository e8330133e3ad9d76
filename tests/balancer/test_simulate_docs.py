"""The page on the simulator runs as it is written."""

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "simulator.md").read_text(encoding="utf-8")


def test_the_code_runs(capsys):
    names = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "docs/simulator.md", "exec"), names)
    assert [outcome.policy for outcome in names["outcomes"]][-1] == "balanced"
    assert all(0 < outcome.mfu < 1 and not outcome.error for outcome in names["outcomes"])
    assert "balanced" in capsys.readouterr().out
