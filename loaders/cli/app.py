"""The commands by name."""

from __future__ import annotations

import sys

import typer

from loaders.cli import calibrate, inspect_data, pack, plan, report, simulate, status, version
from loaders.cli.errors import EXPECTED, told_warnings
from loaders.cli.errors import report as tell

INTERRUPTED = 130
"""What a shell says of a program that Ctrl-C ended."""

app = typer.Typer(
    name="evenload",
    help="Pack and balance variable-length training data.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("pack")(pack.pack_command)
app.command("version")(version.version_command)
app.command("plan")(plan.plan)
app.command("inspect")(inspect_data.inspect_data)
app.command("simulate")(simulate.simulate)
app.command("report")(report.report)
app.command("calibrate")(calibrate.calibrate)
app.command("status")(status.status_command)


def main() -> None:
    """Run the command; what a user can mend or must know is told in a sentence, without a trace."""
    try:
        with told_warnings():
            app()
    except SystemExit as end:
        if end.code == INTERRUPTED:  # Typer ends so, without a word
            kept = " What is finished is kept; --resume goes on with it." if sys.argv[1:2] == ["pack"] else ""
            sys.stderr.write(f"\nInterrupted.{kept}\n")
        raise
    except EXPECTED as error:
        tell(error)
        sys.exit(1)
