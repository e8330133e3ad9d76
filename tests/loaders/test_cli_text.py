"""Text in, tokens out: what is trained on, and where a sample ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from loaders.packing_job.settings import TextSettings
from loaders.sources.chat import ChatTemplate, trained_spans
from loaders.sources.text import TextRows
from tests.loaders.packing_runs import pack, rows_of, samples_of, write_lines

TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CHAT = [
    {"role": "user", "content": "hello there"},
    {"role": "assistant", "content": "good day"},
    {"role": "user", "content": "more"},
    {"role": "assistant", "content": "no é\u2009more"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level tokenizer: one token a byte, so that tokens can be counted by eye."""
    path = tmp_path_factory.mktemp("tokenizer")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(
        models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>", "<|user|>", "<|assistant|>"])
    tokenizer.save(str(path / "tokenizer.json"))
    config = {"eos_token": {"content": "<|end|>"}, "chat_template": TEMPLATE}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


def run(rows: list[dict[str, Any]], folder: Path, path: Path, **settings: Any) -> list[tuple[str, str]]:
    """Text of each sample, and of the part of it that is trained on."""
    text = TextSettings(tokenizer=str(folder), **settings)
    source = write_lines(path / "rows.jsonl", rows)
    manifest = pack([source], path / "out", text=text, max_tokens=512)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    decode = lambda ids: tokenizer.decode(ids, skip_special_tokens=False)
    samples = sorted(samples_of(rows_of(path / "out", manifest)), key=lambda sample: sample[1])
    return [(decode(ids), decode([t for t in labels if t != -100])) for _, _, _, ids, labels in samples]


def test_text_ends_with_the_end_token_and_is_trained_on_but_for_its_first(
    folder: Path, tmp_path: Path
) -> None:
    found = run([{"text": "ab c"}, {"text": "déjà"}], folder, tmp_path)
    assert found == [("ab c<|end|>", "b c<|end|>"), ("déjà<|end|>", "éjà<|end|>")]


def test_of_prompt_and_completion_the_completion_is_trained_on(folder: Path, tmp_path: Path) -> None:
    found = run([{"prompt": "2+2=", "completion": "4"}], folder, tmp_path)
    assert found == [("2+2=4<|end|>", "4<|end|>")]


def test_of_a_chat_the_assistant_is_trained_on_with_its_end_tokens(folder: Path, tmp_path: Path) -> None:
    ((text, trained),) = run([{"messages": CHAT}], folder, tmp_path)
    assert text.startswith("<|user|>hello there<|end|><|assistant|>good day<|end|><|user|>")
    assert trained == "good day<|end|>no é\u2009more<|end|>"


def test_parquet_holds_chats_too(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"messages": [CHAT, None, CHAT[:2]], "id": ["x", "y", "z"]}), path)
    manifest = pack(
        [str(path)], tmp_path / "out", text=TextSettings(tokenizer=str(folder)), carry=("id",), max_tokens=512
    )
    assert (manifest["counts"]["kept"], manifest["counts"]["null"]) == (2, 1)
    (row,) = rows_of(tmp_path / "out", manifest)
    assert sorted(zip(row["row_ids"], row["id"], strict=True)) == [(0, "x"), (2, "z")]


def test_lines_of_messages_may_differ_in_their_keys(folder: Path, tmp_path: Path) -> None:
    odd = [
        {"role": "user", "content": "a", "extra": [1]},
        {"role": "assistant", "content": "b", "extra": "text"},
    ]
    found = run([{"messages": odd}, {"messages": CHAT[:2]}], folder, tmp_path)
    assert [trained for _, trained in found] == ["b<|end|>", "good day<|end|>"]


def test_rows_that_are_no_text_are_told_and_left_out(folder: Path, tmp_path: Path) -> None:
    rows = [{"text": "a"}, {"text": 5}, {"text": None}, {"text": ""}]
    source = write_lines(tmp_path / "rows.jsonl", rows)
    manifest = pack([source], tmp_path / "out", text=TextSettings(tokenizer=str(folder)))
    counts = manifest["counts"]
    assert [counts[name] for name in ("kept", "rejected", "null")] == [2, 1, 1]
    assert "line 2" in manifest["rejects"][0]["origin"]
    chats = write_lines(
        tmp_path / "chats.jsonl", [{"messages": CHAT}, {"messages": ["hi"]}, {"messages": []}]
    )
    manifest = pack([chats], tmp_path / "chats", text=TextSettings(tokenizer=str(folder)), max_tokens=512)
    assert [reject["reason"] for reject in manifest["rejects"]] == [
        "message 0 must be an object with role and content",
        "messages must be a list of one message or more",
    ]


def test_what_is_missing_is_named(folder: Path, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "rows.jsonl", [{"body": "a"}])
    with pytest.raises(
        ValueError, match="rows of text need a column 'messages', or 'prompt' and 'completion', or"
    ):
        pack([source], tmp_path / "out", text=TextSettings(tokenizer=str(folder)))
    with pytest.raises(FileNotFoundError, match="no such tokenizer file"):
        pack([source], tmp_path / "out", text=TextSettings(tokenizer=str(tmp_path / "none")))
    with pytest.raises(ValueError, match="'<eos>' is not a token"):
        TextRows.from_files(str(folder), eos="<eos>")
    bare = TextRows.from_files(str(folder / "tokenizer.json"))
    no_template = TextRows(tokenizer_json=bare.tokenizer_json, special={})
    with pytest.raises(ValueError, match="needs a chat template"):
        no_template.encode(pa.table({"messages": [CHAT]}))


def test_a_template_that_rewrites_earlier_turns_is_refused() -> None:
    forgetful = (
        "{% for m in messages %}{% if loop.last or m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
    )
    with pytest.raises(ValueError, match="writes turn 1 differently when more turns follow"):
        trained_spans(ChatTemplate(forgetful, {}), CHAT)


def test_templates_may_raise_mark_generation_and_use_special_tokens() -> None:
    template = ChatTemplate(
        "{{ bos_token }}{% if messages[0].role != 'user' %}{{ raise_exception('user first') }}{% endif %}"
        "{% for m in messages %}{{ m.role }}:{% generation %}{{ m.content | tojson }}{% endgeneration %};"
        "{% endfor %}",
        {"bos_token": "<s>"},
    )
    assert template.render(CHAT[:1]) == '<s>user:"hello there";'
    with pytest.raises(ValueError, match="refuses the messages: user first"):
        template.render(CHAT[1:2])
    with pytest.raises(ValueError, match="cannot be read"):
        ChatTemplate("{% for %}", {})


def test_templates_run_in_a_sandbox() -> None:
    hostile = ChatTemplate("{{ messages.__class__.__mro__[1].__subclasses__() }}", {})
    with pytest.raises(ValueError, match="refuses"):
        hostile.render(CHAT)
