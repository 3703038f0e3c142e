"""Quantile curves of the spline design: the true ones (`fig_1`), and estimated beside true ones (`fig_2`).

y = Lambda_(r/gamma + 1/2)(x, 0) + noise, x uniform on [0, 1]; three settings (r, gamma) from the worst to the most
benign. At gamma = 1 the random features have integrable poles, so that estimates have narrow spikes that a grid can
miss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from quernel.data import ArrayRows
from quernel.datasets import make_spline
from quernel.losses import Pinball
from quernel.paper.experiment import Experiment, Row, Size, Table, Task, get_solver
from quernel.paper.holdout_fit import N_VALIDATION, fit_ridge_path
from quernel.paper.output import (
    REFERENCE,
    Item,
    OutputFolder,
    Section,
    Verdict,
    add_shared_legend,
    label_decades,
    make_panels,
    share_y_axis,
)
from quernel.paper.simulated import features_of_theorem, midpoints, normal_excess_risk, spline_features
from quernel.plots import house_style
from quernel.plots.style import ACCENT, LINE, POINT

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# (r, gamma) to what the paper calls the case.
CASES = {(0.0, 1.0): "worst case", (0.5, 1.0): "general case", (1.0, 0.0): "most benign case"}
LEVELS = (0.25, 0.5, 0.75)
N_TRAIN: dict[Size, int] = {"full": 1000, "quick": 300}


@dataclass(frozen=True)
class Settings:
    """Numbers of both figures."""

    noise: float = 0.1  # standard deviation: the paper's N(0, 0.01) names a variance
    n_true: int = 200  # rows of `fig_1`
    n_test: int = 10_000  # points of [0, 1] at which a fit is evaluated
    n_plotted: int = 500  # points at which curves are plotted; a divisor of n_test
    y_max: float = 8.0  # upper y limit of the panels: curves with poles at x = 0 and 1 are cut off
    well_share: float = 0.1  # "very well" is read as a mean excess risk of at most this fraction of the Bayes risk
    worst_share: float = 0.05  # fraction of x with the largest excess risk whose contribution is reported


SETTINGS = Settings()
# Bayes risk at level 1/2: E rho(e) for e ~ N(0, noise^2).
BAYES = SETTINGS.noise / float(np.sqrt(2 * np.pi))


def make_true_tasks(size: Size) -> list[Task]:  # noqa: ARG001 (one drawing of 200 points)
    """One task per setting."""
    return [{"r": r, "gamma": gamma} for r, gamma in CASES]


def measure_true(task: Task, rng: np.random.Generator) -> list[Row]:
    """Draw 200 rows, and evaluate the true curves on a grid."""
    r, gamma = float(task["r"]), float(task["gamma"])
    X, y, quantile = make_spline(SETTINGS.n_true, r, gamma, random_state=rng)
    grid = midpoints(SETTINGS.n_plotted)
    data = [{**task, "kind": "data", "x": float(a), "y": float(b)} for a, b in zip(X[:, 0], y, strict=True)]
    curves = [
        {**task, "kind": f"{level:g}", "x": float(a), "y": float(b)}
        for level in LEVELS
        for a, b in zip(grid[:, 0], quantile(grid, level), strict=True)
    ]
    return [*data, *curves]


def present_true(table: Table, output: OutputFolder) -> Section:
    """One panel per setting, and the fraction of rows below each curve."""
    lines: list[list[Any]] = []
    for (r, gamma), case in CASES.items():
        part = table.select(r=r, gamma=gamma)
        data = part.select(kind="data")
        for level in LEVELS:
            curve = part.select(kind=f"{level:g}")
            values = np.interp(data.column("x"), curve.column("x"), curve.column("y"))
            below, error = float(np.mean(data.column("y") < values)), np.sqrt(level * (1 - level) / SETTINGS.n_true)
            lines.append([case, r, gamma, level, below, (below - level) / error])
    worst = max(abs(line[-1]) for line in lines)
    columns = {"case": "", "r": "g", "gamma": "g", "level": "g", "share below": ".3f", "in standard errors": "+.1f"}
    numbers = output.save_table(columns, lines, "fig_1-shares", "Share of the rows below each true curve.", folded=True)
    text = f"The shares of rows below the true curves differ from the levels by at most {worst:.1f} standard errors."
    reported = [
        "The paper draws the true quantile curves y = Lambda_(r/gamma + 1/2)(x, 0) + F^-1(tau), with noise N(0, 0.01), "
        "for the worst (r = 0, gamma = 1), a general (r = 1/2, gamma = 1) and the most benign case (r = 1, gamma = 0), "
        "N = 200.",
        "We read |0|^-q in the spline sum as 1, and 0.01 as a variance. At r = 0 or gamma = 1 the orders are limits: "
        "the median is unbounded at whole x.",
    ]
    return Section(reported, [_plot_true(table, output), numbers], [Verdict(text, bool(worst < 3.5))])


@house_style()
def _plot_true(table: Table, output: OutputFolder) -> Item:
    """Rows and true curves, one panel per setting."""
    styles = {"0.25": ("#56a0d3", "--"), "0.5": (LINE, "-"), "0.75": (ACCENT, "-.")}
    figure, axes = make_panels(1, 3, size=(10.0, 3.9))
    for ax, ((r, gamma), case) in zip(axes[0], CASES.items(), strict=True):
        part = table.select(r=r, gamma=gamma)
        data = part.select(kind="data")
        ax.plot(data.column("x"), data.column("y"), "o", color=POINT, alpha=0.45, markersize=3, label="data")
        for level, (colour, dash) in styles.items():
            curve = part.select(kind=level)
            ax.plot(curve.column("x"), curve.column("y"), color=colour, linestyle=dash, label=f"level {level}")
        _label_panel(ax, r, gamma, case, data.column("y"))
        _add_inset(ax)
    axes[0, 0].set_ylabel("response $y$")
    add_shared_legend(figure, axes[0, 0])
    return output.save_figure(
        figure,
        "fig_1-true-curves",
        f"True quantile curves at levels 0.25, 0.5 and 0.75 and N = {SETTINGS.n_true} rows, the middle of each panel "
        "magnified. Noise of standard deviation 0.1 sets the curves 0.067 apart; poles at x = 0 and 1 are cut.",
    )


def make_fitted_tasks(size: Size) -> list[Task]:
    """One task per setting."""
    return [{"r": r, "gamma": gamma, "n": N_TRAIN[size]} for r, gamma in CASES]


def estimate_fitted_seconds(task: Task) -> float:
    """Rough running time in seconds; in the worst case there are as many features as rows."""
    return 40 * (int(task["n"]) / 1000) ** 2 if task["r"] == 0 else 1.0


def measure_fitted(task: Task, rng: np.random.Generator) -> list[Row]:
    """Fit the median at every ridge weight, select one by validation, and evaluate it on a fine grid of [0, 1].

    Returns one row per plotted point, each of which stands for `n_test // n_plotted` grid points: the curves there, the
    mean excess risk of its grid points, and the deviation of largest size among them, because spikes are often narrower
    than the distance between plotted points.
    """
    n, r, gamma = int(task["n"]), float(task["r"]), float(task["gamma"])
    # At r = 0, gamma = 1 the exponent c is 1, and M = ceil(5 n) would exceed the number of rows.
    M = min(features_of_theorem(n, r, gamma), n)
    X, y, quantile = make_spline(n + N_VALIDATION, r, gamma, random_state=rng)
    features, rows = spline_features(gamma, M, X, rng), ArrayRows(X[:n], y[:n])
    fits = fit_ridge_path(features, rows, Pinball(np.array([0.5])), warm=False, solver=get_solver(task))
    best = fits.select_on(X[n:], y[n:])
    test = midpoints(SETTINGS.n_test)
    estimates, truth = fits.predict(test), quantile(test, 0.5)
    estimate, deviations = estimates[:, best], estimates - truth[:, None]
    risks = normal_excess_risk(deviations, SETTINGS.noise, 0.5)
    common = {
        **task,
        "M": M,
        "alpha": float(fits.alphas[best]),
        "excess": float(np.mean(risks[:, best])),
        "least_excess": float(risks.mean(axis=0).min()),
        "spread": float(np.median(np.abs(deviations[:, best]))),
    }
    # Every plotted point stands for the grid points around it.
    around = SETTINGS.n_test // SETTINGS.n_plotted
    plotted = np.arange(SETTINGS.n_plotted) * around + around // 2
    by_point, risk_by_point = (values[:, best].reshape(-1, around) for values in (deviations, risks))
    return [
        {
            **common,
            "x": float(test[at, 0]),
            "truth": float(truth[at]),
            "estimate": float(estimate[at]),
            "risk": float(risk.mean()),
            "largest": float(deviation[np.argmax(np.abs(deviation))]),
        }
        for at, deviation, risk in zip(plotted, by_point, risk_by_point, strict=True)
    ]


def present_fitted(table: Table, output: OutputFolder) -> Section:
    """Plot curves (above) and deviations (below); tabulate the mean excess risk against the Bayes risk."""
    columns = {
        "case": "", "r": "g", "gamma": "g", "M": ",d", "ridge weight": ".2g", "excess risk": ".2e",
        "/ Bayes risk": ".3f", "at best / Bayes risk": ".3f", f"share of the worst {SETTINGS.worst_share:.0%}": ".0%",
        "median |f - f*|": ".4f", "largest |f - f*|": ".3g",
    }  # fmt: skip
    lines = [
        [case, r, gamma, *_summarize_fit(table.select(r=r, gamma=gamma)).values()] for (r, gamma), case in CASES.items()
    ]
    numbers = output.save_table(
        columns,
        lines,
        "fig_2-errors",
        "The fits of the figure: mean excess risk over [0, 1] from the noise law, relative to the Bayes risk "
        f"{BAYES:.4f} = 0.1 phi(0); the same with the weight of the grid that is best for it; the share of it that "
        f"falls on the worst {SETTINGS.worst_share:.0%} of x.",
    )
    reported = [
        "The paper shows estimated and true medians for the same three settings, tau = 0.5, N = 1,000, M as Theorem 2 "
        "says, lambda from a 23-point grid on 1,000 validation rows, and concludes that KQR-RF estimates the quantile "
        "functions very well.",
        "The constant in M is not given: we take M = ceil(5 N^c), and N at most, with compatibility gamma. The noise "
        "N(0, 0.01) names a variance: its standard deviation is 0.1. |0|^-q in the spline sum is read as 1.",
        "For gamma = 1 the random features are Lambda_(1/2)(x, w), which grow like |x - w|^(-1/2) at x = w: every "
        "estimate has a pole at each of its M random points, wherever these fall. The poles are integrable, so that "
        "the excess risk is finite, but their squares are not: |f - f*|^2 is infinite, and the theorem, which asks for "
        "bounded features, does not speak of gamma = 1. r = 0 is a limit outside of it too: that target is not "
        "square-integrable itself.",
        f'A median over x does not see narrow spikes; we judge by the mean excess risk, and read "very well" as at '
        f"most {SETTINGS.well_share:.0%} of the Bayes risk.",
    ]
    return Section(reported, [_plot_fitted(table, output), numbers], judge_fitted(table))


def judge_fitted(table: Table) -> list[Verdict]:
    """For each setting: whether the mean excess risk is small against the Bayes risk, and where it arises."""
    verdicts = []
    for (r, gamma), case in CASES.items():
        errors = _summarize_fit(table.select(r=r, gamma=gamma))
        well = errors["relative"] <= SETTINGS.well_share
        text = (
            f"{case.capitalize()} (r = {r:g}, gamma = {gamma:g}), one fit as in the paper: the mean excess risk "
            f"{errors['excess']:.2g} is {errors['relative']:.2g} times the Bayes risk {BAYES:.4f}, "
            f"{'at most' if well else 'more than'} {SETTINGS.well_share:.0%} of it; {errors['share']:.0%} of it falls "
            f"on the worst {SETTINGS.worst_share:.0%} of x. The estimate is {errors['spread'] / SETTINGS.noise:.2g} "
            "standard deviations of the noise from the truth in the median over x, and "
            f"{errors['largest'] / SETTINGS.noise:,.2g} at most."
        )
        if not well:
            text += f" With the best weight of the grid the ratio is {errors['best']:.2g}."
        verdicts.append(Verdict(text, well))
    return verdicts


def _summarize_fit(part: Table) -> dict[str, float]:
    """The numbers of one fit, in the order of the table."""
    risks = np.sort(part.column("risk"))
    worst = risks[len(risks) - round(SETTINGS.worst_share * len(risks)) :]
    M, alpha, excess, least, spread = (
        part.column(name)[0].item() for name in ("M", "alpha", "excess", "least_excess", "spread")
    )
    return {
        "M": M,
        "alpha": alpha,
        "excess": excess,
        "relative": excess / BAYES,
        "best": least / BAYES,
        "share": float(worst.sum() / risks.sum()),
        "spread": spread,
        "largest": float(np.abs(part.column("largest")).max()),
    }


@house_style()
def _plot_fitted(table: Table, output: OutputFolder) -> Item:
    """Estimated and true median (above), and the largest deviation around each point on a log scale (below)."""
    figure, axes = make_panels(2, 3, size=(10.0, 6.4), sharex=True, height_ratios=(3, 2))
    share_y_axis(axes[1])
    for (above, below), ((r, gamma), case) in zip(axes.T, CASES.items(), strict=True):
        part = table.select(r=r, gamma=gamma)
        x = part.column("x")
        above.plot(x, part.column("truth"), color=LINE, linewidth=2.4, alpha=0.85, label="true median")
        above.plot(x, part.column("estimate"), color=ACCENT, linewidth=1.1, label="estimated median")
        _label_panel(above, r, gamma, case, part.column("truth"))
        above.set_xlabel("")
        below.plot(x, np.abs(part.column("largest")), color=ACCENT, linewidth=0.9)
        below.axhline(SETTINGS.noise, **REFERENCE)
        below.set(yscale="log", xlabel="covariate $x$")
    label_decades(axes[1, 0])
    axes[0, 0].set_ylabel("response $y$")
    axes[1, 0].set_ylabel("largest $|f - f^*|$ nearby")
    add_shared_legend(figure, axes[0, 0])
    return output.save_figure(
        figure,
        "fig_2-estimated-curves",
        f"Above: estimated and true median, N = {table.values('n')[0]:,} training rows, M from Theorem 2, ridge weight "
        f"chosen on {N_VALIDATION:,} further rows; curves that leave the panel are cut. Below, not cut: around each of "
        f"{SETTINGS.n_plotted} drawn points the largest distance of the estimate from the truth, over "
        f"{SETTINGS.n_test:,} points in all; dotted: {SETTINGS.noise:g}, the standard deviation of the noise.",
    )


def _add_inset(ax: Any) -> None:
    """Inset with the panel's centre, enlarged so that the curves can be distinguished."""
    inset = ax.inset_axes((0.36, 0.6, 0.34, 0.38))
    for line in ax.lines:
        inset.plot(
            *line.get_data(),
            **{key: getattr(line, f"get_{key}")() for key in ("color", "linestyle", "marker", "alpha", "markersize")},
        )
    median = ax.lines[2].get_ydata()
    centre = float(median[len(median) // 2])
    inset.set_xlim(0.44, 0.56)
    inset.set_ylim(centre - 0.3, centre + 0.35)
    inset.set_xticks([0.45, 0.5, 0.55])
    inset.tick_params(labelsize=7)


def _label_panel(ax: Axes, r: float, gamma: float, case: str, values: np.ndarray) -> None:
    """Title, x axis, and y limits that cut poles off."""
    ax.set_title(f"{case.capitalize()}\n$r = {r:g}$, $\\gamma = {gamma:g}$", loc="left", fontsize=10.5)
    ax.set_xlabel("covariate $x$")
    ax.set_xlim(0, 1)
    top = float(values.max())
    ax.set_ylim(float(values.min()) - 0.3, min(top + 0.3, SETTINGS.y_max))


TRUE_CURVES = Experiment(
    "fig_1", "fig_1", "True quantile curves of the spline design", present_true, make_true_tasks, measure_true
)
FITTED_CURVES = Experiment(
    "fig_2",
    "fig_2",
    "Estimated and true quantile curves, spline kernel",
    present_fitted,
    make_fitted_tasks,
    measure_fitted,
    estimate_fitted_seconds,
    version=2,
)
