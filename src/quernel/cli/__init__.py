"""The command line: `quernel demo`, `plan`, `reproduce` and `bench`, and `quernel --help` for the rest."""

from __future__ import annotations

from typing import Annotated

import typer

from quernel import __version__
from quernel.cli.bench import bench
from quernel.cli.console import fail
from quernel.cli.demo import demo
from quernel.cli.plan import plan
from quernel.cli.reproduce import reproduce

app = typer.Typer(
    name="quernel",
    help="Conditional quantiles with kernels, at the cost of a linear model: smooth, never crossing, certified.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command()(demo)
app.command()(bench)
app.command()(plan)
app.command()(reproduce)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"quernel {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options that come before the command."""


def main() -> None:
    """Run the command line: what a user can mend ends in one line on stderr and exit code 1, not in a traceback."""
    try:
        app()
    except (OSError, ValueError, ImportError) as error:
        fail(str(error))
