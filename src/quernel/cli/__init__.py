"""The command line, one module per command.

`fit`, `tune`, `predict`, `forecast`, `report` and `plan` work on data files; `demo`, `bench` and `reproduce` need none.
"""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

from quernel import __version__
from quernel._files import exit_on_termination
from quernel.cli.console import fail
from quernel.cli.experiments import bench, demo, reproduce
from quernel.cli.fit import fit, tune
from quernel.cli.forecast import forecast
from quernel.cli.plan import plan
from quernel.cli.predict import predict
from quernel.cli.report import report

app = typer.Typer(
    name="quernel",
    help="Conditional quantiles and prediction intervals of tables: by a kernel and forests together, or by a kernel "
    "with random features alone, with certified optimality.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command()(demo)
app.command()(tune)
app.command()(fit)
app.command()(predict)
app.command()(forecast)
app.command()(report)
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
    """Define the options that come before the command."""


def main() -> None:
    """Run the command line.

    Errors that a user can fix (files, options, data, memory) end in one line on stderr and exit code 1, without a
    traceback. Everything else is a defect of the program and raises.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # column names may not be encodable in the terminal
            stream.reconfigure(errors="replace")
    try:
        with exit_on_termination():
            app()
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}." if error.filename and error.strerror else str(error))
    except (ValueError, ImportError) as error:
        fail(str(error))
    except MemoryError:
        fail("Not enough memory. Try fewer rows, columns or features.")
    except Exception as error:
        if type(error).__module__ != "pyarrow.lib":  # some of Arrow's exceptions are no ValueError
            raise
        fail(f"Arrow cannot do this with the data: {str(error).rstrip('.')}.")
