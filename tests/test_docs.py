"""The pages say what is so: their code runs, and what they name is there."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import typer
from torch import nn
from torch.utils.data import Dataset, IterableDataset

from balancer import CostModel, Topology, runtime
from balancer.phases import Phase
from loaders import DataLoader, MultimodalSource, open_source
from loaders.cli.app import app
from loaders.media import MediaRules
from tests.media.files import clip, picture, sound, tone

ROOT = Path(__file__).parents[1]
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
]
COMMANDS = typer.main.get_command(app).commands
OPTIONS = {
    name: {text for one in command.params for text in [*one.opts, *one.secondary_opts]} | {"--help"}
    for name, command in COMMANDS.items()
}
VOCABULARY = 50


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, language: str = "python") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text_of(page), re.DOTALL | re.MULTILINE)


def spans(page: str) -> list[str]:
    """Everything in code type between single back-quotes."""
    prose = re.sub(r"^```.*?^```", "", text_of(page), flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"`([^`]+)`", prose)


def command_lines(page: str) -> Iterator[list[str]]:
    """Words of each line or span that runs one of our programs; a line that ends in a backslash goes on."""
    fenced = re.findall(r"^```\w*\n(.*?)^```", text_of(page), re.DOTALL | re.MULTILINE)
    indented = re.findall(r"^    (?:.*\\\n)*.*", text_of(page), re.MULTILINE)
    for line in [*"\n".join([*fenced, *indented]).replace("\\\n", " ").splitlines(), *spans(page)]:
        line = line.strip().removeprefix("$ ").split("  #")[0]
        if re.match(r"(evenload|python|torchrun) ", line):
            yield shlex.split(line.replace("\n", " "))


@pytest.mark.parametrize("page", PAGES)
def test_code_is_python(page: str) -> None:
    for block in blocks(page):
        compile(block, page, "exec")


@pytest.mark.parametrize("page", PAGES)
def test_what_code_imports_from_here_is_there(page: str) -> None:
    for node in (node for block in blocks(page) for node in ast.walk(ast.parse(block))):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] in {
            "packing",
            "balancer",
            "loaders",
        }:
            if node.module == "balancer.runtime.adapters.trainer":
                continue  # is checked where transformers is installed, in tests/runtime
            if node.module.startswith("loaders.ray_engine") and importlib.util.find_spec("ray") is None:
                continue  # is checked where ray is installed
            module = importlib.import_module(node.module)
            assert [name.name for name in node.names if not hasattr(module, name.name)] == []


@pytest.mark.parametrize("page", PAGES)
def test_dotted_names_in_the_prose_are_there(page: str) -> None:
    for span in spans(page):
        found = re.match(r"(packing|balancer|loaders|runtime)((?:\.\w+)+)(?:\(|$)", span)
        if not found or re.search(r"\.(py|md|parquet)$", found[0]):
            continue
        owner: Any = importlib.import_module("balancer.runtime" if found[1] == "runtime" else found[1])
        for name in found[2].strip(".").split("."):
            if not hasattr(owner, name):
                owner = importlib.import_module(f"{owner.__name__}.{name}")
            else:
                owner = getattr(owner, name)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text_of(page)):
        if not target.startswith("https://"):
            assert ((ROOT / page).parent / target).is_file(), target


def test_every_page_is_linked_from_the_first() -> None:
    seen, waiting = set(), ["README.md"]
    while waiting:
        page = waiting.pop()
        seen.add(page)
        for target in re.findall(r"\]\(([^)#]+\.md)\)", text_of(page)):
            found = ((ROOT / page).parent / target).resolve().relative_to(ROOT).as_posix()
            waiting += [found] if found not in seen else []
    assert set(PAGES) - seen == set()


@pytest.mark.parametrize("page", PAGES)
def test_files_and_folders_that_are_named_are_there(page: str) -> None:
    homes = ["packing", "balancer", "loaders", "benchmarks", "examples", "tests"]
    for span in spans(page):
        named = re.fullmatch(r"[\w./*-]+(\.(py|md|toml|csv)|/)", span)
        if not named or span in {"demo/", "site/", "tokenizer/"}:
            continue
        there = any(ROOT.glob(span)) or any(any((ROOT / home).rglob(span)) for home in homes)
        assert there, span


@pytest.mark.parametrize("page", PAGES)
def test_commands_have_the_options_that_are_named(page: str) -> None:
    for command, *words in command_lines(page):
        if command == "evenload":
            assert words[0] in OPTIONS, words
            options = {word.split("=")[0] for word in words if re.match(r"-[a-zA-Z-]", word)}
            assert options - OPTIONS[words[0]] == set()
        elif words[:2] == ["-m", "benchmarks"] and words[2:] != ["NAME"]:
            module = importlib.import_module(f"benchmarks.{words[2]}")
            named = {word for word in words[3:] if re.fullmatch("[a-z_]+", word)}
            assert named <= set(getattr(module, "SECTIONS", ())), words
        elif words[0] == "-m" and words[1].startswith("benchmarks."):
            assert (ROOT / f"{words[1].replace('.', '/')}.py").is_file()
        elif any(word.endswith(".py") for word in words):
            script = next(word for word in words if word.endswith(".py"))
            declared = set(re.findall(r'"(--?[\w-]+)"', text_of(script)))
            after = words[words.index(script) :]
            assert {word for word in after if word.startswith("-")} <= declared, after


@pytest.mark.parametrize(
    ("page", "command"), [("docs/pack-command.md", "pack"), ("docs/cost-model.md", "calibrate")]
)
def test_options_in_the_prose_belong_to_the_command(page: str, command: str) -> None:
    named = {found[0] for span in spans(page) if (found := re.match(r"--[a-z][a-z-]+", span))}
    assert named
    assert named - OPTIONS[command] == set()


def test_benchmarks_that_are_listed_are_all_there_are() -> None:
    from benchmarks.__main__ import names

    listed = re.search(r"`python -m benchmarks NAME` \(([^)]*)\)", text_of("README.md"))
    assert listed is not None
    assert sorted(listed[1].split(", ")) == names()


def test_make_has_the_targets_that_are_named() -> None:
    targets = set(re.findall(r"^([\w-]+):", text_of("Makefile"), re.MULTILINE))
    for page in PAGES:
        for line in [*"\n".join(blocks(page, "bash")).splitlines(), *spans(page)]:
            if line.startswith("make "):
                assert set(line.split("#")[0].split()[1:]) <= targets, line


@pytest.mark.parametrize("page", [*PAGES, "CHANGELOG.md"])
def test_no_machine_shows(page: str) -> None:
    assert re.findall(r"(?:^|[\s`\"'(=])((?:/work|/tmp|/home|/root|/Users|/mnt)/\S*)", text_of(page)) == []


class Model(nn.Module):
    """Predicts the next token from this one alone."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(VOCABULARY, VOCABULARY)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.rows(input_ids)


def token_losses(model: nn.Module, batch: Any) -> torch.Tensor:
    logits = model(batch["input_ids"]).flatten(0, 1)
    return nn.functional.cross_entropy(logits, batch["shift_labels"].flatten(), reduction="none")


class MyDataset(Dataset):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"input_ids": list(range(row + 2)), "n": row + 2}


class MyStream(IterableDataset):
    def __iter__(self) -> Iterator[dict[str, list[int]]]:
        return ({"input_ids": ids} for ids in tokens(40, 6))


class Writer:
    """Stands for TensorBoard's SummaryWriter."""

    def add_scalar(self, name: str, value: float, step: int) -> None:
        assert isinstance(name, str)
        assert np.isfinite([value, step]).all()


class Run:
    """Stands for a run of Weights & Biases."""

    def log(self, numbers: dict[str, float], step: int) -> None:
        assert numbers


def tokens(rows: int, seed: int) -> list[list[int]]:
    draw = np.random.default_rng(seed)
    return [draw.integers(0, VOCABULARY, n).tolist() for n in draw.integers(2, 120, rows)]


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What readers bring along: files under the names that the pages give them, a model, a cost."""
    monkeypatch.chdir(tmp_path)
    for path, seed in [("data/0", 0), ("data/1", 1), ("corpus/a", 2), ("corpus/b", 3)]:
        Path(path).parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"input_ids": tokens(40, seed)}), f"{path}.parquet")
    lines = [{"input_ids": ids, "loss_mask": [i % 2 for i in range(len(ids))]} for ids in tokens(30, 4)]
    Path("chat.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    model = Model()
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), 0.1),
        "token_losses": token_losses,
        "device": "cpu",
        "cost": CostModel.generic(),
        "dataset": open_source("data/*.parquet"),
        "runtime": runtime,
        "DataLoader": partial(DataLoader, seed=0),
    }


def run(page: str, code: str, names: dict[str, Any]) -> None:
    exec(compile(code, page, "exec"), names)


def test_the_first_page_trains(names: dict[str, Any]) -> None:
    (code,) = blocks("README.md")
    before = names["model"].rows.weight.detach().clone()
    run("README.md", code, names)
    assert names["batch"].last_in_step
    assert names["batch"].step == len(names["loader"]) - 1 == 80 // 8 - 1
    assert not torch.equal(names["model"].rows.weight, before)


def test_packing_runs(names: dict[str, Any]) -> None:
    names["lengths"] = np.random.default_rng(0).integers(1, 8192, 500)
    for code in blocks("docs/packing.md"):
        run("docs/packing.md", code, names)
    packs = names["packs"]
    assert set(packs.counts) == {"kept", "dropped", "truncated", "split", "empty"}
    assert len(packs) >= packs.lower_bound
    assert len(packs.order) == len(packs.assignment()) == 500


@pytest.mark.parametrize("page", ["docs/index.md", "docs/concepts.md", "docs/migration.md"])
def test_the_pages_for_newcomers_run(page: str, names: dict[str, Any]) -> None:
    for code in blocks(page):
        run(page, code, names)


def test_the_page_of_the_command_line_is_made_from_it() -> None:
    home = runpy.run_path(str(ROOT / "docs" / "generate.py"))
    assert home["page"]() == text_of("docs/cli.md"), "run `python docs/generate.py`"


@pytest.mark.parametrize("package", ["packing", "balancer", "balancer.runtime", "loaders"])
def test_the_reference_has_every_public_name(package: str) -> None:
    page = text_of(f"docs/reference/{package.split('.')[-1]}.md")
    assert sorted(re.findall(rf"^::: {package}\.(\w+)$", page, re.MULTILINE)) == sorted(
        importlib.import_module(package).__all__
    )


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="needs evenload[docs]")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert built.returncode == 0, built.stderr
    written = {path.stem for path in tmp_path.glob("*.html")}
    assert {Path(page).stem for page in PAGES if page.startswith("docs/")} <= written


def test_balancing_runs(names: dict[str, Any]) -> None:
    names["lengths"] = np.random.default_rng(0).lognormal(7, 1.2, 512).astype(np.int64).clip(1, 100_000)
    for code in blocks("docs/balancing.md"):
        run("docs/balancing.md", code, names)
    plan = names["plan"]
    assert plan.lower_bound_s <= plan.time_s
    assert plan.gap == pytest.approx(plan.time_s / plan.lower_bound_s - 1)


def test_sources_run(names: dict[str, Any]) -> None:
    datasets.Dataset.from_dict({"input_ids": tokens(10, 5)}).save_to_disk("saved/train")
    names["MyDataset"] = MyDataset
    for code in blocks("docs/sources.md"):
        run("docs/sources.md", code, names)
    assert names["web"].origin(5) == "corpus/a.parquet, row 5"
    assert names["rows"].offsets[-1] == len(names["rows"].input_ids) == names["web"].lengths()[[5, 3]].sum()
    assert names["own"].lengths().tolist() == list(range(2, 22))
    assert len(names["saved"]) == 10
    assert names["chat"].read([0]).labels is not None


def test_errors_of_sources_read_as_they_are_written(names: dict[str, Any]) -> None:
    (quoted,) = blocks("docs/sources.md", "text")
    whole = json.dumps({"input_ids": list(range(40))}) + "\n"
    Path("corpus/b.jsonl").write_text(whole * 500 + '{"input_ids": [1 2')
    pq.write_table(pa.table({"input_ids": [[1]] * 17 + [[4, -1]]}), "corpus/a.parquet")
    of_lines, of_ids = (re.escape(line.removeprefix("ValueError: ")) for line in quoted.splitlines())
    with pytest.raises(ValueError, match=of_lines.replace("80213", r"\d+").replace(r"\.\.\.", ".*")):
        open_source("corpus/b.jsonl", cache=False).lengths()
    with pytest.raises(ValueError, match=of_ids):
        open_source("corpus/a.parquet", cache=False).read([17])


def test_the_loader_runs(names: dict[str, Any]) -> None:
    names |= {
        "DataLoader": DataLoader,
        "source": names["dataset"],
        "web": open_source("corpus/*.parquet"),
        "code": open_source("data/*.parquet"),
        "stream": MyStream(),
        "SummaryWriter": Writer,
        "wandb": SimpleNamespace(run=Run()),
    }
    for code in blocks("docs/loader.md"):
        run("docs/loader.md", code.replace("num_workers=4", "num_workers=0"), names)
    assert names["batch"].last_in_step
    assert names["state"]["version"] == 1
    assert len(list(DataLoader(names["mixture"], batch_size=4, max_tokens=512))) > 0


def test_the_media_page_runs(names: dict[str, Any]) -> None:
    for extra in ("PIL", "soundfile", "av"):
        pytest.importorskip(extra)
    Path("album").mkdir()
    image, audio, video = 151655, 151646, 151656
    wrapped = [1, 151652, image, 151653, 2, audio, 3, 151652, video, 151653, 4]
    pq.write_table(
        pa.table(
            {
                "input_ids": [wrapped, list(range(30))] * 8,
                "images": [[picture(60, 60)], []] * 8,
                "audio": [sound(tone(0.5)), None] * 8,
                "video": [clip(8), None] * 8,
            }
        ),
        "album/0.parquet",
    )
    opening, limits, separate = blocks("docs/multimodal.md")
    run("docs/multimodal.md", opening, names)
    batches = list(names["loader"])
    assert {"pixel_values", "audio_features", "pixel_values_videos"} <= set(batches[0])
    assert batches[0]["position_ids"].shape[0] == 4
    run("docs/multimodal.md", limits.replace("...", "image=rules.image"), names)
    run_separate(separate, names)


def run_separate(code: str, names: dict[str, Any]) -> None:
    """Pictures and text alone, on one real rank that hands rows to itself."""
    ids = [[1, 151652, 151655, 151653, 2], list(range(30))] * 8
    table = pa.table({"input_ids": ids, "images": [[picture(60, 60)], []] * 8})
    pq.write_table(table, "album/1.parquet")
    rules = MediaRules(image=names["rules"].image)
    encoder = nn.Linear(1176, 4)

    def losses(model: nn.Module, batch: Any, rows: torch.Tensor) -> torch.Tensor:
        assert len(rows) == int((batch["input_ids"] == 151655).sum())
        return rows.square().sum(1)

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        names |= {
            "source": MultimodalSource(open_source("album/1.parquet", carry=["images"]), rules),
            "Phase": Phase,
            "vision_cost": CostModel(linear=1e-6),
            "encoder": lambda pixels, grid: encoder(pixels).unflatten(0, (-1, 4)).mean(1),
            "token_losses": losses,
            "torch": torch,
        }
        run("docs/multimodal.md", code, names)
    finally:
        torch.distributed.destroy_process_group()
    assert encoder.weight.grad is not None
    assert torch.any(encoder.weight.grad != 0)


def test_the_plain_loop_of_a_stack_runs(names: dict[str, Any]) -> None:
    names["DataLoader"] = partial(DataLoader, topology=Topology(ranks=4), rank=0)
    run("docs/integrations.md", blocks("docs/integrations.md")[0], names)
    assert names["batch"].last_in_step
    assert names["batch"].step_loss_tokens > 0
