import runpy
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "multimodal.py"


def test_the_example_shows_what_each_rank_reads(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--rows", "24", "--ranks", "2"])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    shown = capsys.readouterr().out
    assert "first step" in shown
    assert "tokens, encoders" in shown
    assert "1176]" in shown
