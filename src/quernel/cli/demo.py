"""`quernel demo`: the power curve of a wind farm, with its spread."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.table import Table

from quernel.cli.console import console, fail, fitting
from quernel.datasets import load_wind
from quernel.estimators import KernelQuantileRegressor
from quernel.metrics import coverage, pinball_loss

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
PICTURE = "wind_power.png"


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the picture; made if it does not exist.")] = Path("."),
    force: Annotated[bool, typer.Option("--force", help="Replace a picture from an earlier run.")] = False,
) -> None:
    """Fit the power curve of a real wind farm at five levels, judge it on held-out rows, and draw it."""
    picture = out / PICTURE
    if picture.exists() and not force:
        fail(f"{picture} exists already. Choose another --out, or add --force to replace it.")
    _make_folder(out)
    wind = load_wind()
    speed = wind.X[:, :1]
    test = np.random.default_rng(0).random(len(speed)) < 0.25
    console.print(
        f"Wind farm La Haute Borne: {len(speed):,} ten-minute averages. Power (kW) given wind speed (m/s), "
        f"fitted on {np.sum(~test):,} rows, judged on {np.sum(test):,} others."
    )
    model = KernelQuantileRegressor(LEVELS, random_state=0)
    start = time.perf_counter()
    with fitting(f"Fitting {len(LEVELS)} quantile levels"):
        model.fit(speed[~test], wind.y[~test])
    seconds = time.perf_counter() - start
    console.print(_table(model, speed[test], wind.y[~test], wind.y[test]))
    console.print(_summary(model, speed[test], wind.y[test], seconds))
    _draw(model, speed[:, 0], wind.y, picture)
    console.print(f"Picture: [bold]{picture}[/]")


def _make_folder(out: Path) -> None:
    """The output folder, before any work."""
    if out.exists() and not out.is_dir():
        fail(f"{out} is a file, not a folder. Choose another --out.")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail(f"The folder {out} cannot be made: {error.strerror}. Choose another --out.")


def _table(model: KernelQuantileRegressor, X: np.ndarray, y_train: np.ndarray, y: np.ndarray) -> Table:
    """Per level: held-out loss, the same of the unconditional quantile, rows below the curve, and the certified gap."""
    loss = pinball_loss(y, model.predict(X), LEVELS)
    constant = pinball_loss(y, np.tile(np.quantile(y_train, LEVELS), (len(y), 1)), LEVELS)
    below = np.mean(y[:, None] <= model.predict(X), axis=0)
    table = Table(title="Held-out rows")
    for heading in ("level", "pinball loss", "best constant's", "rows below", "certified gap"):
        table.add_column(heading, justify="right")
    for k, level in enumerate(LEVELS):
        gap = f"{model.duality_gap_[k]:.0e}"
        table.add_row(f"{level:.2f}", f"{loss[k]:.2f}", f"{constant[k]:.2f}", f"{below[k]:.1%}", gap)
    return table


def _summary(model: KernelQuantileRegressor, X: np.ndarray, y: np.ndarray, seconds: float) -> str:
    shares = [f"{coverage(y, *model.predict_interval(X, c).T):.1%} in the {c:.0%} interval" for c in (0.5, 0.9)]
    return (
        f"Coverage: {', '.join(shares)}. Before sorting, levels crossed in {model.crossing_rate_:.1%} of rows.\n"
        f"All {len(LEVELS)} levels fitted in {seconds:.2f} seconds with {model.n_components_} random features."
    )


def _draw(model: KernelQuantileRegressor, speed: np.ndarray, power: np.ndarray, picture: Path) -> None:
    from quernel.plots import fan_chart, save_figure  # matplotlib is an extra

    # To the 99.5th percentile only: beyond it a handful of storms would be drawn as if they were known.
    grid = np.linspace(speed.min(), np.quantile(speed, 0.995), 400)
    axes = fan_chart(
        speed,
        power,
        grid,
        model.predict(grid[:, None]),
        LEVELS,
        x_label="Wind speed (m/s)",
        y_label="Power (kW)",
        title="Wind power given wind speed, La Haute Borne",
    )
    save_figure(axes.figure, picture)
