"""Writes ``docs/cli.md`` anew from the command line's own definitions: ``python docs/generate.py``."""

from __future__ import annotations

from pathlib import Path

import click
import typer

from loaders.cli.app import app

PAGE = Path(__file__).with_name("cli.md")
HEAD = """# The command line

`--help` behind a command prints the same. Tokens and bytes may be written `16384`, `16Ki` or `2GiB`.
"""


def page() -> str:
    """The whole page."""
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    return HEAD + "".join(section(name, command) for name, command in sorted(commands.items()))


def section(name: str, command: click.Command) -> str:
    """One command: what it is for, what it takes, its options."""
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option"]
    words = " ".join(shown(one) for one in arguments)
    parts = [f"## evenload {name}", prose(command.help or "")]
    parts.append(f"```text\nevenload {name} {words} [options]\n```".replace("  ", " "))
    if arguments:
        parts.append(table(("argument", ""), [(f"`{shown(one)}`", text(one)) for one in arguments]))
    if options:
        parts.append(
            table(
                ("option", "", "default"),
                [(spelled(one), text(one), default(one)) for one in options],
            )
        )
    return "\n" + "\n\n".join(parts) + "\n"


def prose(words: str) -> str:
    """Help as Markdown: an example becomes code."""
    kept, _, example = words.strip().partition("Example: ")
    body = " ".join(kept.split())
    return f"{body}\n\n    {' '.join(example.split())}" if example else body


def shown(argument: click.Parameter) -> str:
    """An argument as the usage line has it."""
    word = (argument.name or "").upper()
    return f"{word}..." if argument.nargs == -1 else word


def spelled(option: click.Parameter) -> str:
    """All spellings of an option."""
    return ", ".join(f"`{word}`" for word in sorted([*option.opts, *option.secondary_opts], key=len))


def text(parameter: click.Parameter) -> str:
    """Its help, safe in a table's cell."""
    return (getattr(parameter, "help", None) or "").replace("|", "\\|")


def default(option: click.Parameter) -> str:
    """Its default, where that says something."""
    if option.required:
        return "required"
    value = option.default
    return "" if value is None or value is False or value == () else f"`{value}`"


def table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [heads, tuple("---" for _ in heads), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
