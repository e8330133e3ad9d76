"""The command line: quick to answer, and every failure a sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from loaders.cli import app as cli_app
from loaders.cli.app import app
from loaders.cli.numbers import parse_amount, parse_list
from loaders.packing_job.settings import DEFAULT_COLUMNS, chosen_columns
from tests.loaders.packing_runs import documents, write_parquet

RUNNER = CliRunner()


@pytest.fixture
def source(tmp_path: Path) -> str:
    return write_parquet(tmp_path / "a.parquet", documents(100))


def invoke(*arguments: str) -> str:
    result = RUNNER.invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


def failing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    monkeypatch.setattr(sys, "argv", ["evenload", *arguments])
    with pytest.raises(SystemExit) as caught:
        cli_app.main()
    assert caught.value.code != 0
    return capsys.readouterr().err


def test_help_names_the_commands_and_loads_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['evenload', '--help']\n"
        "from loaders.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'numba', 'pyarrow', 'datasets', 'pandas', 'rich'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    for name in ("pack", "plan", "calibrate", "version"):
        assert name in result.stdout


def test_packing_loads_neither_torch_nor_datasets(source: str, tmp_path: Path) -> None:
    code = (
        f"import sys; sys.argv = ['evenload', 'pack', {source!r}, '-o', {str(tmp_path / 'out')!r}, "
        "'--max-tokens', '128', '--workers', '1']\n"
        "from loaders.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "heavy = {'torch', 'datasets', 'pandas'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "reading lengths" in result.stderr
    assert "fill" in result.stderr


def test_pack_check_and_preview(source: str, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    report = tmp_path / "shared.html"
    invoke(
        "pack",
        source,
        "-o",
        out,
        "--max-tokens",
        "128",
        "--workers",
        "1",
        "--report",
        str(report),
        "--columns",
        "+cu_seqlens",
    )
    assert "cap 128" in report.read_text()
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["arguments"]["columns"][-1] == "cu_seqlens"
    assert "files are as they were written" in invoke("pack", "--check", out)
    shown = invoke("pack", "--preview", "2", out)
    assert "pack 1:" in shown
    assert "a.parquet, row" in shown


def test_a_dry_run_tells_of_every_strategy_and_writes_nothing(source: str, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    told = invoke(
        "pack", source, "--max-tokens", "64,256", "--oversize", "split", "--dry-run", "--workers", "1"
    )
    for name in ("best_fit", "next_fit", "one sample a row"):
        assert name in told
    assert sorted(tmp_path.iterdir()) == before


def test_failures_are_sentences(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = str(tmp_path / "out")
    told = failing(capsys, monkeypatch, "pack", "none.parquet", "-o", out, "--max-tokens", "8")
    assert told.startswith("evenload: none.parquet: no such file or folder")
    assert "Traceback" not in told
    told = failing(capsys, monkeypatch, "pack", source, "-o", out, "--max-tokens", "8")
    assert "--oversize drop, truncate, truncate_left or split" in told
    told = failing(capsys, monkeypatch, "pack", source, "-o", out, "--max-tokens", "many")
    assert "--max-tokens must be an amount such as 2048, 32k, 32Ki or 1.5GiB, got 'many'" in told
    told = failing(capsys, monkeypatch, "pack", source, "-o", out)
    assert "--max-tokens is needed" in told
    told = failing(
        capsys, monkeypatch, "pack", source, "-o", out, "--max-tokens", "64", "--resume", "--overwrite"
    )
    assert "choose one" in told
    told = failing(capsys, monkeypatch, "pack", source, "-o", out, "--max-tokns", "64")
    assert "--max-tokens" in told


def test_version_names_what_matters_in_a_report() -> None:
    told = invoke("version")
    for name in ("evenload", "torch", "pyarrow", "python"):
        assert name in told


def test_amounts_are_read_as_people_write_them() -> None:
    assert parse_list("2048, 8k,32Ki", "--max-tokens") == (2048, 8000, 32768)
    assert parse_amount("1.5GiB", "--memory") == 3 << 29
    for wrong in ("", "x", "-1", "1.5.2", "5T"):
        with pytest.raises(ValueError, match="--memory must be an amount"):
            parse_amount(wrong, "--memory")
    with pytest.raises(ValueError, match=r"--memory must be below 2\^63"):
        parse_amount("99999999999g", "--memory")


def test_columns_are_chosen_or_added() -> None:
    assert chosen_columns(None) == DEFAULT_COLUMNS
    assert chosen_columns("input_ids,labels") == ("input_ids", "labels")
    assert chosen_columns("+loss_mask") == (*DEFAULT_COLUMNS, "loss_mask")
