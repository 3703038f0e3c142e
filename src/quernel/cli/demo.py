"""`quernel demo`: tune, fit, calibrate and plot the power curve of a wind farm."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import numpy as np
import pyarrow as pa
import typer
from numpy.typing import NDArray
from rich.markup import escape
from rich.table import Table

from quernel.cli.console import console, fitting
from quernel.cli.data import check_folder
from quernel.cli.options import flag
from quernel.cli.report import write_report
from quernel.conformal import ConformalQuantileRegressor
from quernel.conformal.table_model import TableModel
from quernel.datasets import load_wind
from quernel.estimators.quantile_cv import KernelQuantileRegressorCV
from quernel.metrics import coverage, pinball_loss
from quernel.persistence import save
from quernel.plots.style import require_matplotlib
from quernel.report import evaluate_on, report_page
from quernel.tables.read_options import ReadOptions
from quernel.tables.training_data import prepare

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

# Quantile levels, and the nominal coverage of the calibrated interval.
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
INTERVAL = 0.9
# Fractions of the rows for training and calibration; the rest is the test set.
FITTED, CALIBRATING = 0.6, 0.15
# A coarser grid of ridge weights than the search's default, to save time.
ALPHAS = 10.0 ** np.arange(-11, -5)
FOLDS, COMPONENTS = 3, 300
FAN_PLOT, SEARCH_PLOT = "wind_power.png", "wind_tuning.png"
REPORT, MODEL = "wind_report.html", "wind.quernel"


def demo(
    out: Annotated[Path, typer.Option(help="Folder for plots, report and model; created if needed.")] = Path("."),
    force: Annotated[bool, flag("--force", "Overwrite files of an earlier run.")] = False,
) -> None:
    """Tune, fit, calibrate, evaluate and plot the power curve of a real wind farm."""
    _check_outputs(out, force=force)
    wind = load_wind()
    speed = wind.X[:, :1]
    fit, calibrate, test = _split_rows(len(speed))
    console.print(
        f"Wind farm La Haute Borne: {len(speed):,} ten-minute averages. Power (kW) given wind speed (m/s), "
        f"fitted on {len(fit):,} rows, calibrated on {len(calibrate):,}, evaluated on {len(test):,} others."
    )
    model = _tune(speed[fit], wind.y[fit])
    console.print(_loss_table(model, speed[test], wind.y[fit], wind.y[test]))
    calibrated = ConformalQuantileRegressor(model, INTERVAL, method="prefit").fit(speed[calibrate], wind.y[calibrate])
    console.print(_describe_coverage(model, calibrated, speed[test], wind.y[test]))
    _save_plots(model, speed[:, 0], wind.y, out)
    _save_report(model, calibrated, pa.table({"wind_speed": speed[test, 0], "power": wind.y[test]}), out)
    picture, path, page, file = (escape(str(out / name)) for name in (FAN_PLOT, SEARCH_PLOT, REPORT, MODEL))
    console.print(f"Plots: [bold]{picture}[/] (the fit), [bold]{path}[/] (the search)")
    console.print(
        f"Report: [bold]{page}[/]   Model: [bold]{file}[/] (quernel predict {file} FILE --out PREDICTIONS.csv)"
    )


def _save_report(
    model: KernelQuantileRegressorCV, calibrated: ConformalQuantileRegressor, held_out: pa.Table, out: Path
) -> None:
    """Write the report on the test rows, and the model."""
    rows = prepare(held_out, ReadOptions("power"))
    table_model = TableModel(rows.encoder, model, "power", False, calibrated)
    page = report_page(
        table_model, held_out, evaluate_on(table_model, rows.X, rows.y), data="the held-out rows", model_file=MODEL
    )
    write_report(page, out / REPORT, force=True)
    save(table_model, out / MODEL, overwrite=True)


def _check_outputs(out: Path, *, force: bool) -> None:
    """Fail, before any work, without matplotlib or if files exist, and create the folder."""
    require_matplotlib()
    for file in (out / FAN_PLOT, out / SEARCH_PLOT, out / REPORT, out / MODEL):
        if file.exists() and not force:
            raise FileExistsError(f"{file} exists already. Choose another --out, or add --force to replace it.")
    check_folder(out)


def _split_rows(n_rows: int) -> list[NDArray[np.intp]]:
    """Split the row indices at random into training, calibration and test rows."""
    order = np.random.default_rng(0).permutation(n_rows)
    return np.split(order, [round(FITTED * n_rows), round((FITTED + CALIBRATING) * n_rows)])


def _tune(X: Array, y: Array) -> KernelQuantileRegressorCV:
    """Fit all levels with ridge weight and bandwidth chosen by cross-validation and the one-standard-error rule."""
    model = KernelQuantileRegressorCV(
        LEVELS, alphas=ALPHAS, cv=FOLDS, one_standard_error=True, n_components=COMPONENTS, random_state=0
    )
    start = time.perf_counter()
    with fitting(f"Tuning and fitting {len(LEVELS)} quantile levels"):
        model.fit(X, y)
    console.print(
        f"Tuned by cross-validation ({len(model.cv_results_['params'])} pairs of ridge weight and bandwidth on {FOLDS} "
        f"folds) and fitted, all {len(LEVELS)} levels, in {time.perf_counter() - start:.1f} seconds: "
        f"{model.n_components_} random features, bandwidth {np.ravel(np.asarray(model.bandwidth_))[0]:.2g} m/s, and "
        f"ridge weight {model.alpha_:.0e}, the largest within one standard error of the best."
    )
    return model


def _loss_table(model: KernelQuantileRegressorCV, X: Array, y_train: Array, y: Array) -> Table:
    """Tabulate, per level, the test loss, that of the unconditional quantile, the rows below, and the gap."""
    loss = pinball_loss(y, model.predict(X), LEVELS)
    constant = pinball_loss(y, np.tile(np.quantile(y_train, LEVELS), (len(y), 1)), LEVELS)
    below = np.mean(y[:, None] <= model.predict(X), axis=0)
    table = Table(title="Held-out rows")
    for heading in ("level", "pinball loss", "unconditional", "rows below", "certified gap"):
        table.add_column(heading, justify="right")
    for k, level in enumerate(LEVELS):
        gap = f"{model.duality_gap_[k]:.0e}"
        table.add_row(f"{level:.2f}", f"{loss[k]:.2f}", f"{constant[k]:.2f}", f"{below[k]:.1%}", gap)
    return table


def _describe_coverage(
    model: KernelQuantileRegressorCV, calibrated: ConformalQuantileRegressor, X: Array, y: Array
) -> str:
    def covered(interval: Array) -> str:
        return f"{coverage(y, *interval.T):.1%} of the held-out rows (mean width {np.mean(np.diff(interval)):.0f} kW)"

    # Two standard errors: calibration rows and test rows are both a random sample.
    margin = 2 * np.sqrt(INTERVAL * (1 - INTERVAL) * (1 / calibrated.n_calibration_ + 1 / len(y)))
    return (
        f"As fitted, the {INTERVAL:.0%} interval covers {covered(model.predict_interval(X, INTERVAL))}. "
        f"Calibrated, it covers {covered(calibrated.predict_interval(X))}: at least {INTERVAL:.0%} on average are now "
        f"guaranteed, however wrong the model; with this many rows, {margin:.1%} more or less are within chance.\n"
        f"Before sorting, quantile levels crossed in {model.crossing_rate_:.1%} of the rows."
    )


def _save_plots(model: KernelQuantileRegressorCV, speed: Array, power: Array, out: Path) -> None:
    from quernel.plots import PathDisplay, fan_chart, save_figure  # matplotlib is an extra

    # Only up to the 99.5th percentile: beyond it there are a handful of storms, too few to show a curve.
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
    save_figure(cast("Figure", axes.figure), out / FAN_PLOT)
    save_figure(PathDisplay.from_estimator(model).figure_, out / SEARCH_PLOT)
