"""Rows of text as tokens: plain text, prompt and completion, or chat messages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from loaders.sources.chat import ChatTemplate, trained_spans
from loaders.sources.flat import ColumnError, FlatChunk, RowErrors, Runs
from packing.checks import nearest


@dataclass(frozen=True, kw_only=True)
class TextRows:
    """Encoder of rows that hold text. Which kind they are is told by their columns.

    * ``messages``: the chat template turns them into text; labels are what the assistant says.
    * ``prompt`` and ``completion``: labels are the completion and the end token.
    * ``text``: every token is a label.
    """

    tokenizer_json: str
    """Content of ``tokenizer.json``."""
    special: Mapping[str, str]
    """``bos_token`` and ``eos_token`` where the tokenizer has them."""
    template: str | None = None
    eos: str | None = None
    text: str = "text"
    prompt: str = "prompt"
    completion: str = "completion"
    messages: str = "messages"
    carry: tuple[str, ...] = ()

    @classmethod
    def from_files(
        cls, tokenizer: str, *, chat_template: str | None = None, eos: str | None = None, **columns: Any
    ) -> TextRows:
        """From a ``tokenizer.json``, or a folder that holds it, with ``tokenizer_config.json`` beside it.

        Raises:
            FileNotFoundError: no tokenizer there.
            ValueError: ``eos`` is not a token of it.
        """
        path = Path(tokenizer)
        folder, path = (path, path / "tokenizer.json") if path.is_dir() else (path.parent, path)
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such tokenizer file")
        special, template = read_config(folder)
        if chat_template is not None:
            try:
                template = Path(chat_template).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise ValueError(f"{chat_template}: the chat template cannot be read ({error})") from error
        made = cls(
            tokenizer_json=path.read_text(),
            special=special,
            template=template,
            eos=eos if eos is not None else special.get("eos_token"),
            **columns,
        )
        if eos is not None and made._tokenizer.token_to_id(eos) is None:
            raise ValueError(f"{path}: {eos!r} is not a token of this tokenizer")
        return made

    def wants(self, names: Sequence[str]) -> list[str]:
        """The columns of the first kind of row that is there in full."""
        found = [*self._kind(names), *self.carry]
        for name in self.carry:
            if name not in names:
                raise ColumnError(
                    f"no column {name!r} to carry; the columns are {', '.join(names)}.{nearest(name, names)}"
                )
        return list(dict.fromkeys(found))

    def _kind(self, names: Sequence[str]) -> tuple[str, ...]:
        for kind in ((self.messages,), (self.prompt, self.completion), (self.text,)):
            if all(name in names for name in kind):
                return kind
        raise ColumnError(
            f"rows of text need a column {self.messages!r}, or {self.prompt!r} and {self.completion!r}, or "
            f"{self.text!r}; the columns are {', '.join(names) or '(none)'}"
        )

    def without_carried(self) -> TextRows:
        """The same tokens, without the columns that are only handed through."""
        return replace(self, carry=()) if self.carry else self

    def json_types(self) -> Mapping[str, pa.DataType]:
        """Text is text; messages are taken as they come."""
        return dict.fromkeys((self.text, self.prompt, self.completion), pa.string())

    def identity(self) -> str:
        """Digest of the tokenizer, the template and the columns."""
        import hashlib

        parts = [self.tokenizer_json, json.dumps(dict(self.special)), str(self.template), str(self.eos)]
        parts += [self.text, self.prompt, self.completion, self.messages, *self.carry]
        return "text:" + hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()

    def encode(self, table: pa.Table) -> FlatChunk:
        """Tokens of every row; null rows have none."""
        kind = self._kind(table.column_names)
        columns = [table[name].to_pylist() for name in kind]
        present = [row for row in range(table.num_rows) if all(column[row] is not None for column in columns)]
        rows = [tuple(column[row] for column in columns) for row in present]
        self._check_strings(kind, present, rows)
        if kind == (self.messages,):
            encoded = self._chats(present, [_parsed(row[0]) for row in rows])
        elif len(kind) == 2:
            encoded = self._completions(rows)
        else:
            encoded = [(ids, None) for ids in self._ids([row[0] for row in rows], end=True)]
        return self._chunk(table, present, encoded)

    def _chunk(
        self, table: pa.Table, present: Sequence[int], encoded: Sequence[tuple[list[int], list[int] | None]]
    ) -> FlatChunk:
        lengths = np.zeros(table.num_rows, np.int64)
        lengths[list(present)] = [len(ids) for ids, _ in encoded]
        starts = np.concatenate(([0], np.cumsum(lengths)))[:-1]
        total = int(lengths.sum())
        num_null = table.num_rows - len(present)
        tokens = Runs(
            values=_flat((ids for ids, _ in encoded), total),
            starts=starts,
            lengths=lengths,
            num_null=num_null,
        )
        labels = None
        if any(mask is not None for _, mask in encoded) or self._kind(table.column_names) != (self.text,):
            labels = Runs(
                values=_flat((mask or [] for _, mask in encoded), total), starts=starts, lengths=lengths
            )
        return FlatChunk(
            tokens=tokens,
            labels=labels,
            labels_are_marks=True,
            columns={name: table[name] for name in self.carry},
        )

    def _check_strings(
        self, kind: tuple[str, ...], present: Sequence[int], rows: Sequence[tuple[Any, ...]]
    ) -> None:
        if kind == (self.messages,):
            return
        bad = {}
        for number, row in zip(present, rows, strict=True):
            for name, value in zip(kind, row, strict=True):
                if not isinstance(value, str):
                    bad[number] = f"column {name!r} must be text, it is {json.dumps(value, default=str)[:60]}"
        if bad:
            raise RowErrors(bad)

    def _ids(self, texts: list[str], *, end: bool, special: bool = True) -> list[list[int]]:
        found = [encoding.ids for encoding in self._tokenizer.encode_batch(texts, add_special_tokens=special)]
        if end and (eos := self._eos_id) is not None:
            found = [ids if ids and ids[-1] == eos else [*ids, eos] for ids in found]
        return found

    def _completions(self, rows: Sequence[tuple[str, str]]) -> list[tuple[list[int], list[int] | None]]:
        """Prompt and completion are tokenised apart, so that the border between them is one of tokens."""
        prompts = self._ids([prompt for prompt, _ in rows], end=False)
        if (eos := self._eos_id) is not None:  # a tokenizer that ends every text ends the prompt too
            prompts = [ids[:-1] if ids and ids[-1] == eos else ids for ids in prompts]
        completions = self._ids([completion for _, completion in rows], end=True, special=False)
        pairs = zip(prompts, completions, strict=True)
        return [(prompt + answer, [0] * len(prompt) + [1] * len(answer)) for prompt, answer in pairs]

    def _chats(
        self, present: Sequence[int], chats: Sequence[Any]
    ) -> list[tuple[list[int], list[int] | None]]:
        """The template writes special tokens itself, so none are added."""
        if self._chat is None:
            raise ColumnError(
                f"column {self.messages!r} needs a chat template: put it beside the tokenizer, or name it "
                "with --chat-template"
            )
        bad: dict[int, str] = {}
        texts, spans = [], []
        for number, chat in zip(present, chats, strict=True):
            try:
                text, trained = trained_spans(self._chat, chat)
            except ValueError as error:
                bad[number] = str(error)
                text, trained = "", []
            texts.append(text)
            spans.append(trained)
        if bad:
            raise RowErrors(bad)
        encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        return [
            (encoding.ids, marks(encoding.offsets, trained))
            for encoding, trained in zip(encodings, spans, strict=True)
        ]

    @cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        try:
            tokenizer = Tokenizer.from_str(self.tokenizer_json)
        except Exception as error:  # the library raises nothing more special
            raise ValueError(f"the tokenizer file is not one of the tokenizers library: {error}") from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    @cached_property
    def _eos_id(self) -> int | None:
        found: int | None = None if self.eos is None else self._tokenizer.token_to_id(self.eos)
        return found

    @cached_property
    def _chat(self) -> ChatTemplate | None:
        return None if self.template is None else ChatTemplate(self.template, self.special)

    def __getstate__(self) -> dict[str, Any]:
        """What was given; the tokenizer is built again in each process."""
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take what was given."""
        self.__dict__.update(state)


def _parsed(messages: Any) -> Any:
    """Messages that are kept as JSON text."""
    if not isinstance(messages, str):
        return messages
    try:
        return json.loads(messages)
    except ValueError:
        return messages  # no messages then, which is told with the row


def _flat(lists: Iterable[list[int]], total: int) -> NDArray[np.int32]:
    return np.fromiter((value for one in lists for value in one), np.int32, total)


def marks(offsets: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]) -> list[int]:
    """1 for tokens that begin within a span of characters. Both ascend."""
    found, at = [], 0
    for begin, _ in offsets:
        while at < len(spans) and spans[at][1] <= begin:
            at += 1
        found.append(int(at < len(spans) and spans[at][0] <= begin))
    return found


def read_config(folder: Path) -> tuple[dict[str, str], str | None]:
    """Special tokens and chat template that lie beside a tokenizer."""
    special, template = {}, None
    config_file = folder / "tokenizer_config.json"
    if config_file.is_file():
        config = json.loads(config_file.read_text())
        for name in ("bos_token", "eos_token"):
            value = config.get(name)
            value = value.get("content") if isinstance(value, dict) else value
            if isinstance(value, str):
                special[name] = value
        template = config.get("chat_template")
        if isinstance(template, list):  # several by name
            named = {one["name"]: one["template"] for one in template}
            template = named.get("default", next(iter(named.values()), None))
    own_file = folder / "chat_template.jinja"
    if own_file.is_file():
        template = own_file.read_text()
    return special, template
