"""`quernel bench`: compare quernel with ridge regression and scikit-learn's QuantileRegressor on this machine."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.table import Table

from quernel.bench import Task, compare, describe_machine
from quernel.cli.console import console, errors, flag

SYSTEMS = "quernel.bench.systems:"
# Seconds per system and task.
TIME_LIMIT = 10.0
# A large and a small problem, with the systems that run on each; quernel first, for its lower bound.
SMALL_SET = (
    (Task(n=100_000, level=0.5, alpha=1e-4, M=100), ("QUERNEL", "RIDGE")),
    (Task(n=2_000, level=0.5, alpha=1e-8, M=50, bandwidth=0.2), ("QUERNEL", "HIGHS", "HIGHS_IPM")),
)


def bench(
    as_json: Annotated[bool, flag("--json", "Print JSON instead of tables.")] = False,
) -> None:
    """Benchmark quernel against ridge regression and scikit-learn on this machine (one thread, half a minute)."""
    machine, rows = describe_machine(), []
    for task, names in SMALL_SET:
        rows += compare([SYSTEMS + name for name in names], task, time_limit=TIME_LIMIT, callback=_print_status)
    if as_json:
        typer.echo(json.dumps({"machine": machine, "results": rows}, indent=1))
        return
    console.print("{processor}, {memory}, Python {python}; {packages}".format(**machine))
    for task, _ in SMALL_SET:
        console.print(_table(str(task), [row for row in rows if row["problem"] == str(task)]))
    console.print(
        "Seconds are the best of three runs. Excess: the objective, mean pinball loss + alpha |u|^2, relative to the "
        "lower bound that quernel certifies. Systems without this penalty solve alpha = 0."
    )


def _print_status(row: dict[str, Any]) -> None:
    errors.print(f"{row['system']}: {row['status']}", highlight=False)


def _table(title: str, rows: list[dict[str, Any]]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("system")
    table.add_column("version")
    for heading in ("seconds", "excess"):
        table.add_column(heading, justify="right")
    table.add_column("note")
    for row in rows:
        done = row["seconds"] is not None
        table.add_row(
            row["system"],
            row["version"],
            f"{row['seconds']:.3g}" if done else "",
            f"{row['excess']:.0e}" if row["excess"] is not None else "",
            row["note"] if done else row["status"],
        )
    return table
