"""A real, heavy-tailed corpus that every machine already has: the Python installation itself.

``code`` is the standard library's ``.py`` files, ``docs`` its docstrings and the topics of ``pydoc``. A small
byte-level BPE is trained on both. The same installation gives the same bytes each time.

    python examples/corpus.py --out demo
"""

from __future__ import annotations

import argparse
import ast
import sysconfig
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

VOCABULARY = 4096
NOT_OURS = {"site-packages", "dist-packages", "__pycache__"}
# Some distributions ship the interpreter without its tests, so no machine's corpus has them.
TESTS = {"test", "tests", "idle_test"}
# The merges settle long before the last document: a fifth of them trains in 1 s instead of 5.
TRAIN_ON_EVERY = 5
Item = TypeVar("Item")
CONSOLE = Console(soft_wrap=True, highlight=False)


@dataclass(frozen=True)
class Document:
    name: str
    text: str


@dataclass(frozen=True)
class Corpus:
    code: list[Document]
    docs: list[Document]
    empty: int
    """Files and docstrings without any text, left out."""
    unreadable: int
    """Files that do not follow their own declared encoding or do not parse, left out of both sources."""


def progress(items: Sequence[Item], description: str) -> Iterable[Item]:
    """``items``, with a bar where someone watches."""
    return track(items, description, console=CONSOLE, transient=True, disable=not CONSOLE.is_terminal)


def library_files(root: Path) -> list[Path]:
    """The standard library's own modules, sorted by their path as written on any platform."""
    files = (
        path for path in root.rglob("*.py") if not (NOT_OURS | TESTS) & set(path.relative_to(root).parts)
    )
    return sorted(files, key=lambda path: path.relative_to(root).as_posix())


def docstrings(module: str, tree: ast.Module) -> Iterator[Document]:
    """The docstrings of a module, of its classes and of its functions, in the order of the file."""

    def visit(name: str, node: ast.AST) -> Iterator[Document]:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text is not None:
                yield Document(name, text)
        for child in ast.iter_child_nodes(node):
            child_name = getattr(child, "name", None) if isinstance(child, ast.stmt) else None
            yield from visit(f"{name}.{child_name}" if child_name else name, child)

    yield from visit(module, tree)


def read_corpus(root: Path, files: Iterable[Path]) -> Corpus:
    """Every file is a document of ``code``; every docstring and topic one of ``docs``."""
    code: list[Document] = []
    docs: list[Document] = []
    unreadable = 0
    for path in files:
        name = path.relative_to(root).as_posix()
        try:
            with tokenize.open(path) as file:
                text = file.read()
            tree = ast.parse(text)
        except (SyntaxError, UnicodeDecodeError):
            unreadable += 1
            continue
        code.append(Document(name, text))
        docs.extend(docstrings(name.removesuffix(".py").replace("/", "."), tree))
    docs.extend(Document(f"topic {name}", text) for name, text in sorted(topics.items()))
    kept_code = [document for document in code if document.text.strip()]
    kept_docs = [document for document in docs if document.text.strip()]
    empty = len(code) + len(docs) - len(kept_code) - len(kept_docs)
    return Corpus(code=kept_code, docs=kept_docs, empty=empty, unreadable=unreadable)


def train_tokenizer(texts: list[str], vocabulary: int = VOCABULARY) -> Any:
    """A byte-level BPE: no text is out of its vocabulary."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def write_source(path: Path, documents: list[Document], tokenizer: Any, *, cut: int | None) -> pa.Table:
    """One row a document: its token ids, closed by ``<|end|>``, their number, and its name.

    With ``cut`` a longer document is one row for every ``cut`` tokens of it, with its name and their place.
    """
    end = tokenizer.token_to_id("<|end|>")
    ids: list[NDArray[np.int32]] = []
    for start in progress(range(0, len(documents), 64), f"tokens of {path.stem}"):
        texts = [document.text for document in documents[start : start + 64]]
        ids.extend(np.array([*row.ids, end], np.int32) for row in tokenizer.encode_batch_fast(texts))
    names = [document.name for document in documents]
    if cut is not None:
        names, ids = cut_documents(names, ids, cut)
    num_tokens = np.array([row.size for row in ids], np.int64)
    offsets = np.concatenate([[0], np.cumsum(num_tokens)]).astype(np.int32)
    table = pa.table(
        {
            "input_ids": pa.ListArray.from_arrays(offsets, np.concatenate(ids)),
            "num_tokens": num_tokens,
            "name": pa.array(names, pa.string()),
        }
    )
    pq.write_table(table, path, compression="zstd", row_group_size=1024)
    return table


def cut_documents(
    names: list[str], ids: list[NDArray[np.int32]], cut: int
) -> tuple[list[str], list[NDArray[np.int32]]]:
    """Documents of more than ``cut`` tokens in pieces of that many, as rows of their own."""
    cut_names, cut_ids = [], []
    for name, row in zip(names, ids, strict=True):
        for start in range(0, row.size, cut):
            piece = row[start : start + cut]
            cut_names.append(name if piece.size == row.size else f"{name}[{start}:{start + piece.size}]")
            cut_ids.append(piece)
    return cut_names, cut_ids


def write_corpus(
    out: Path, *, root: Path | None = None, max_files: int | None = None, cut: int | None = None
) -> dict[str, pa.Table]:
    """Write ``code.parquet``, ``docs.parquet`` and ``tokenizer.json`` into ``out``.

    Args:
        out: folder, made when missing.
        root: where the standard library lies; this interpreter's own by default.
        max_files: use only the first so many files; all of them by default.
        cut: longest row in tokens; longer documents become several rows. None: documents stay whole.
    """
    root = root or Path(sysconfig.get_paths()["stdlib"])
    files = library_files(root)[:max_files]
    corpus = read_corpus(root, progress(files, "reading the standard library"))
    texts = [document.text for document in corpus.code + corpus.docs]
    with CONSOLE.status(f"training a byte-level BPE of {VOCABULARY} tokens"):
        tokenizer = train_tokenizer(texts[::TRAIN_ON_EVERY])
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    tables = {
        name: write_source(out / f"{name}.parquet", documents, tokenizer, cut=cut)
        for name, documents in (("code", corpus.code), ("docs", corpus.docs))
    }
    for name, table in tables.items():
        CONSOLE.print(describe(out / f"{name}.parquet", table))
    CONSOLE.print(f"left out: {corpus.empty} empty texts, {corpus.unreadable} unreadable files")
    return tables


def describe(path: Path, table: pa.Table) -> str:
    """One line on a source: how many documents, how many tokens, how heavy its tail."""
    lengths = sorted(table["num_tokens"].to_pylist())
    quantile = {q: lengths[min(int(q * len(lengths)), len(lengths) - 1)] for q in (0.5, 0.95, 0.99)}
    return (
        f"{path}: {len(lengths)} rows, {sum(lengths)} tokens; median {quantile[0.5]}, "
        f"95 % {quantile[0.95]}, 99 % {quantile[0.99]}, longest {lengths[-1]}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder to write to")
    parser.add_argument("--max-files", type=int, help="use only the first so many files")
    parser.add_argument("--cut", type=int, help="cut documents of more tokens into several rows")
    arguments = parser.parse_args()
    write_corpus(arguments.out, max_files=arguments.max_files, cut=arguments.cut)


if __name__ == "__main__":
    main()
