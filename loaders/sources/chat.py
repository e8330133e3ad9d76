"""Chat templates: messages in, text out, and which parts of it the assistant said."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any


class ChatTemplate:
    """A Jinja chat template as tokenizers carry it, with the names that such templates expect.

    Templates come with models and so from strangers: they run in Jinja's sandbox.
    """

    def __init__(self, template: str, special: Mapping[str, str]) -> None:
        try:
            from jinja2 import TemplateSyntaxError
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ImportError:
            raise ImportError("chat templates need jinja2 (pip install evenload[tokenize])") from None
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _generation_blocks()]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        try:
            self._template = environment.from_string(template)
        except TemplateSyntaxError as error:
            raise ValueError(
                f"the chat template cannot be read: {error.message} in line {error.lineno}"
            ) from None
        self._special = dict(special)

    def render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = False) -> str:
        """Text of a conversation. Raises ValueError where the template refuses it."""
        from jinja2 import TemplateError

        try:
            return self._template.render(
                messages=messages, add_generation_prompt=add_generation_prompt, tools=None, **self._special
            )
        except (TemplateError, TypeError, KeyError) as error:
            raise ValueError(f"the chat template refuses the messages: {error}") from None


def trained_spans(template: ChatTemplate, messages: Any) -> tuple[str, list[tuple[int, int]]]:
    """Text of a conversation, and where in it the assistant's turns lie, [begin, end) in characters.

    A turn is what the text grows by when the message is added to the conversation before it, with
    the words that ask for an answer already there: the end-of-turn token belongs to it, the header does not.

    Raises:
        ValueError: not a list of messages, or a template that rewrites earlier turns.
    """
    checked = _checked(messages)
    text = template.render(checked)
    spans = []
    for number, message in enumerate(checked):
        if message["role"] != "assistant":
            continue
        before = template.render(checked[:number], add_generation_prompt=True)
        after = template.render(checked[: number + 1]) if number + 1 < len(checked) else text
        if not after.startswith(before) or not text.startswith(after):
            raise ValueError(
                f"the chat template writes turn {number} differently when more turns follow, so its place "
                "cannot be told; use a template that only appends"
            )
        spans.append((len(before), len(after)))
    return text, spans


def _checked(messages: Any) -> list[dict[str, Any]]:
    if not isinstance(messages, list) or not messages:
        raise ValueError("messages must be a list of one message or more")
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ValueError(f"message {number} must be an object with role and content")
    # columns of files fill the keys that other messages have with null; templates ask whether a key is there
    return [{key: value for key, value in message.items() if value is not None} for message in messages]


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent, **options)


def _raise(message: str) -> None:
    from jinja2 import TemplateError

    raise TemplateError(message)


def _generation_blocks() -> Any:
    """An extension that lets ``{% generation %}`` blocks through as plain text."""
    from jinja2.ext import Extension

    class Generation(Extension):
        def __init__(self, environment: Any) -> None:
            super().__init__(environment)
            self.tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    return Generation
