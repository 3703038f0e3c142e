"""Learning rate of KQR-RF: how fast its error falls with the number of rows, against the theorem (`fig_3`).

For pairs (r, gamma) of the spline design the median is fitted at growing N, with lambda either of the theorem or
selected by validation, and M = ceil(constant N^c). The slope of log error against log N is compared with -2r/(2r +
gamma), the rate of `thm2`, and with the slopes that the paper prints.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from quernel.data import ArrayRows
from quernel.datasets import make_spline
from quernel.features import PivotedCholesky
from quernel.losses import Pinball
from quernel.paper import simulated
from quernel.paper.experiment import (
    MAX_WIDTH,
    Experiment,
    Judgement,
    Row,
    Size,
    Slope,
    Table,
    Task,
    all_hold,
    allowed_slope,
    fit_slope,
    get_solver,
    repetitions,
)
from quernel.paper.holdout_fit import ALPHAS, N_VALIDATION, fit_ridge_path
from quernel.paper.output import (
    REFERENCE,
    SERIES,
    Item,
    OutputFolder,
    Section,
    Verdict,
    add_shared_legend,
    make_panels,
    plot_geometric_means,
    set_log_log,
)
from quernel.plots import house_style
from quernel.theory import METHODS
from quernel.theory.rates import ROUNDING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The paper's four pairs (r, gamma), and the slopes that it prints, without their sign.
PAIRS = {(0.2, 0.1): 0.81, (0.4, 0.2): 1.21, (0.5, 0.1): 1.63, (0.8, 0.2): 0.95}
# Two pairs of our own, agnostic (r < 1/2) and strictly inside of the theorem, 2r + gamma > 1. The paper has none.
INSIDE = ((0.4, 0.4), (0.3, 0.45))
# Standard deviation of the noise, and points of the midpoint rule over which errors are averaged.
NOISE = 0.1
N_TEST = 2000
# The constant in M = ceil(constant N^c); "exact" is the exact kernel, the limit of infinitely many features.
MAIN, MANY, EXACT = "5", "20", "exact"
# How the ridge weight is chosen.
RIDGES = ("theory", "validation")
# A run whose excess risk exceeds the main one's by this factor has too few features: its slope says nothing about N.
TOO_FEW = 10
# The power of log N in the theorem's bound.
LOGARITHM = METHODS["thm2"].rate_log
# Style of the line with the slope that the paper prints.
PRINTED: dict[str, Any] = {"color": "#7f7f7f", "linewidth": 1.3, "linestyle": (0, (7, 2))}
# Column: excess risk with the best ridge weight of the grid, an oracle.
LEAST = "least_excess"
# Column of the results to its axis label.
ERRORS = {"excess": "excess risk", "squared": r"$\|f - f^*\|^2$"}
# Repetitions by constant in M and choice of the ridge weight.
Repetitions = dict[tuple[str, str], int]
SIZES: dict[Size, tuple[int, ...]] = {"full": tuple(range(1000, 10_001, 1000)), "quick": (1000, 2000, 4000)}
REPETITIONS: dict[Size, Repetitions] = {
    "full": {
        ("5", "theory"): 40, ("5", "validation"): 10,
        ("1", "theory"): 20, ("1", "validation"): 5,
        ("20", "theory"): 10, ("20", "validation"): 4,
        ("exact", "theory"): 10,
    },
    "quick": {
        ("5", "theory"): 3, ("5", "validation"): 2, ("1", "theory"): 2, ("20", "theory"): 2, ("exact", "theory"): 2,
    },
}  # fmt: skip
# The pairs inside of the theorem need many features, and the kernel itself nearly as many as there are rows: fewer
# sizes, more repetitions where a fit is cheap, and the grid of 23 weights for the cheaper pair alone.
INSIDE_SIZES: dict[Size, tuple[int, ...]] = {"full": (1000, 2000, 4000, 8000), "quick": (1000, 2000)}
INSIDE_REPETITIONS: dict[Size, tuple[Repetitions, ...]] = {
    "full": (
        {("20", "theory"): 60, ("20", "validation"): 5, ("5", "theory"): 20},
        {("20", "theory"): 20, ("5", "theory"): 10},
    ),
    "quick": (
        {("20", "theory"): 3, ("20", "validation"): 2, ("5", "theory"): 2},
        {("20", "theory"): 2, ("5", "theory"): 2},
    ),
}


def make_tasks(size: Size) -> list[Task]:
    """One per pair, constant in M, choice of the ridge weight, number of rows and repetition."""
    plans = [(pair, REPETITIONS[size], SIZES[size]) for pair in PAIRS]
    inside = zip(INSIDE, INSIDE_REPETITIONS[size], strict=True)
    plans += [(pair, counts, INSIDE_SIZES[size]) for pair, counts in inside]
    return [
        task
        for (r, gamma), counts, sizes in plans
        for (features, ridge), count in counts.items()
        for task in repetitions(count, r=r, gamma=gamma, features=features, ridge=ridge, n=sizes)
    ]


def estimate_seconds(task: Task) -> float:
    """Rough running time in seconds. Pairs inside of the theorem have rough features and need more Newton steps."""
    constant = 5 if task["features"] == EXACT else int(task["features"])
    n, weights = int(task["n"]), len(ALPHAS) if task["ridge"] == "validation" else 1
    M = simulated.features_of_theorem(n, float(task["r"]), float(task["gamma"]), constant)
    steps = 4 if (task["r"], task["gamma"]) in INSIDE else 1
    return 0.03 + 0.01 * weights + 1e-7 * n * M * weights * steps


def measure(task: Task, rng: np.random.Generator) -> list[Row]:
    """Fit the median, at one ridge weight or at that selected on a grid; measure its excess risk and squared error.

    Both errors are integrals over x by the midpoint rule, the excess risk in closed form over the noise.
    """
    n, r, gamma = int(task["n"]), float(task["r"]), float(task["gamma"])
    X, y, quantile = make_spline(n + N_VALIDATION, r, gamma, random_state=rng)
    alphas = ALPHAS if task["ridge"] == "validation" else np.array([simulated.ridge_of_theorem(n, r, gamma)])
    if task["features"] == EXACT:
        # The trace that the pivoted Cholesky factor leaves out is negligible beside the ridge weight.
        features: Any = PivotedCholesky(simulated.spline_kernel(gamma), tol=1e-4 * float(alphas.min())).fit(X[:n])
    else:
        M = simulated.features_of_theorem(n, r, gamma, int(task["features"]))
        features = simulated.spline_features(gamma, M, X, rng)
    fits = fit_ridge_path(features, ArrayRows(X[:n], y[:n]), Pinball(np.array([0.5])), alphas, solver=get_solver(task))
    best = fits.select_on(X[n:], y[n:]) if len(alphas) > 1 else 0
    grid = simulated.midpoints(N_TEST)
    deviation = fits.predict(grid) - quantile(grid, 0.5)[:, None]
    excess = np.mean(simulated.normal_excess_risk(deviation, NOISE, 0.5), axis=0)
    return [
        {
            **task,
            "M": int(features.n_components_),
            "alpha": float(alphas[best]),
            "excess": float(excess[best]),
            "squared": float(np.mean(deviation[:, best] ** 2)),
            LEAST: float(excess.min()),
        }
    ]


def present(table: Table, output: OutputFolder) -> Section:
    """Plot errors against N for the paper's setting and for other constants; tabulate slopes and points."""
    runs = fit_runs(table)
    items = [
        _plot_main(runs, "excess", output),
        _plot_main(runs, "squared", output),
        _plot_constants(runs, output),
        _tabulate_slopes(runs, output),
        _tabulate_points(table, output),
    ]
    return Section(_reported(), items, [*judge_printed(table), *judge_theorem(table)])


def _reported() -> list[str]:
    """What the paper reports, how we read it, and where its theorem does not apply."""
    theory = [-simulated.predicted_slope(*pair) for pair in PAIRS]
    ratios = ", ".join(
        f"{printed:.2f} x {rate:.2f} = {printed * rate:.2f}"
        for printed, rate in zip(PAIRS.values(), theory, strict=True)
    )
    return [
        "The paper fits KQR-RF at tau = 0.5 to N = 1,000, 2,000, ..., 10,000 rows of the spline design, M from Theorem "
        "2, lambda from the validation grid, for (r, gamma) = (0.2, 0.1), (0.4, 0.2), (0.5, 0.1), (0.8, 0.2), "
        'computes the slope of log excess risk against log N, compares it to -2r/(2r + gamma) and prints "slope '
        f'constants" {", ".join(map(str, PAIRS.values()))}. Theory says {", ".join(f"{rate:.2f}" for rate in theory)}, '
        "as an upper bound on the error: steeper is allowed.",
        "What a slope constant is, the paper does not say. We judge it as the slope itself, but for its sign. It may "
        f"also be the ratio of the slope to that of the theory; then the slopes are {ratios}. Each verdict tells how "
        "that reading fares.",
        "The constant in M is not given either; M = N^c alone would be 2 or 3 features at (0.5, 0.1). We take M = "
        f"ceil({MAIN} N^c) with compatibility gamma, which is true of the spline, and show the constants 1 and 20 and "
        "the kernel itself beside it. The noise N(0, 0.01) names a variance: its standard deviation is 0.1. |0|^-q in "
        "the spline sum is read as 1. Excess risk is computed from the normal noise law in closed form, over a regular "
        "grid of x.",
        "No theorem speaks of two of the four pairs. It asks for 2r + gamma >= 1, and the target has every source "
        "exponent below r, but r itself only up to a logarithm: (0.2, 0.1) has 2r + gamma = 0.5, and at (0.4, 0.2), "
        "where 2r + gamma = 1, every r' < 0.4 has 2r' + gamma < 1. Both are run as in the paper. "
        f"{' and '.join(map(str, INSIDE))} are ours: agnostic, r < 1/2, and inside of the theorem; they need M = "
        "ceil(20 N^c), and one of them lambda from theory alone, for its cost.",
        "The theorem's bound has a factor log^2 N, which makes the slope that it allows flatter: by "
        f"{allowed_slope(0, SIZES['full'], power=LOGARITHM):.2f} between 1,000 and 10,000 rows. A slope is shown to "
        "meet the theorem if its whole 95 % interval lies at or below that, and to be too slow if it lies wholly "
        f"above. All else is undecided, and so is what rests on an interval wider than {MAX_WIDTH:g}.",
    ]


@dataclass(frozen=True)
class Run:
    """All fits of a pair with one constant in M and one choice of lambda, and the slopes of both errors."""

    r: float
    gamma: float
    features: str
    ridge: str
    points: Table
    slopes: dict[str, Slope]

    @property
    def sizes(self) -> list[int]:
        """Numbers of rows, ascending."""
        return sorted(self.points.values("n"))

    @property
    def predicted(self) -> float:
        """The slope of the theorem, without its logarithm."""
        return simulated.predicted_slope(self.r, self.gamma)

    @property
    def allowed(self) -> float:
        """Slope of the theorem's bound including its factor log^2 N, over the N of this run."""
        return allowed_slope(self.predicted, self.sizes, power=LOGARITHM)

    def last_risk(self, name: str = "excess") -> float:
        """Geometric mean of an error at the largest N."""
        return self.points.select(n=self.sizes[-1]).geometric_mean(name)

    def meets_theorem(self) -> Judgement:
        """Whether both errors fall at least as fast as the theorem allows."""
        return all_hold(slope.meets_bound(self.allowed) for slope in self.slopes.values())


# By (r, gamma, features, ridge).
Runs = dict[tuple[Any, ...], Run]


def fit_runs(table: Table) -> Runs:
    """Every run, with fitted slopes."""
    runs = {}
    for (r, gamma, features, ridge), points in table.groups("r", "gamma", "features", "ridge"):
        slopes = {error: fit_slope(points, error) for error in ERRORS}
        runs[r, gamma, features, ridge] = Run(r, gamma, features, ridge, points, slopes)
    return runs


def _select_judged(runs: Runs, r: float, gamma: float) -> list[Run]:
    """The runs by which a pair is judged, one per choice of lambda that was run."""
    keys = [(r, gamma, MANY if (r, gamma) in INSIDE else MAIN, ridge) for ridge in RIDGES]
    return [runs[key] for key in keys if key in runs]


def explain_outside(r: float, gamma: float) -> str:
    """Why no theorem covers a pair (r, gamma); an empty string if one does.

    The theorem needs 2r + gamma >= 1. The target of the design has every source exponent below r, but r itself only up
    to a logarithm, so that 2r + gamma = 1 is not enough.
    """
    total = 2 * r + gamma
    if total > 1 + ROUNDING:
        return ""
    if total < 1 - ROUNDING:
        return f"2r + gamma = {total:g} < 1"
    return f"2r + gamma = 1, but the target reaches r = {r:g} only up to a logarithm: every r' < {r:g} is outside"


def judge_printed(table: Table) -> list[Verdict]:
    """For each pair of the paper, fitted its way: whether our interval contains the printed slope (two-sided)."""
    runs, verdicts = fit_runs(table), []
    for (r, gamma), printed in PAIRS.items():
        run = runs.get((r, gamma, MAIN, "validation"))
        if run is None:
            continue
        slope, rate = run.slopes["excess"], -run.predicted
        text = (
            f"(r, gamma) = ({r:g}, {gamma:g}), the paper's way (lambda from validation, M = ceil({MAIN} N^c)): slope "
            f"{slope}. The printed {printed:.2f}, as a slope -{printed:.2f}, lies "
            f"{_describe_position(slope, -printed)}; as a ratio to theory, {printed:.2f} x {rate:.2f} = "
            f"{printed * rate:.2f}, {_describe_position(slope, -printed * rate)}"
        ).replace(" -", " \u2212")
        others = _describe_other_runs(runs, run, -printed)
        verdicts.append(Verdict(f"{text}. {others}", slope.meets_value(-printed)))
    return verdicts


def _describe_position(slope: Slope, value: float) -> str:
    """Whether a slope lies inside or outside of a fitted interval, as text."""
    phrases: dict[Judgement, str] = {
        True: "inside of this interval",
        False: "outside of this interval",
        "undecided": f"inside of this interval, which is wider than {MAX_WIDTH:g} and confirms nothing",
    }
    return phrases[slope.meets_value(value)]


def _describe_other_runs(runs: Runs, main: Run, printed: float) -> str:
    """Which other runs of a pair (constants, choices of lambda) have an interval that contains the printed slope.

    Runs with far too few features reach some slopes by having a much larger error: the text then says so.
    """
    parts = []
    for run in runs.values():
        slope = run.slopes["excess"]
        if (run.r, run.gamma) != (main.r, main.gamma) or run is main or not slope.meets_value(printed):
            continue
        name = "the kernel itself" if run.features == EXACT else f"constant {run.features}"
        times, M = run.last_risk() / main.last_risk(), run.points.column("M")
        wide = ", too wide to tell" if slope.is_wide else ""
        few = (
            f", but {times:,.0f} times the excess risk at N = {run.sizes[-1]:,}: M = {M.min()} to {M.max()} are too few"
        )
        parts.append(f"{name}, lambda from {run.ridge} ({slope}{wide}{few if times > TOO_FEW else ''})")
    if not parts:
        return "None of our other runs holds it."
    return f"Of our other runs these hold the printed slope: {'; '.join(parts)}."


def judge_theorem(table: Table) -> list[Verdict]:
    """For each pair and choice of the ridge weight: whether both errors fall at least as fast as the theorem says.

    Pairs that no theorem covers get a remark instead of a judgement.
    """
    runs = fit_runs(table)
    return [_judge_run(runs, run) for pair in (*PAIRS, *INSIDE) for run in _select_judged(runs, *pair)]


def _judge_run(runs: Runs, run: Run) -> Verdict:
    """The verdict on one run; the others tell what makes it slow, if it is."""
    slow, outside = any(s.lies_above(run.predicted) for s in run.slopes.values()), explain_outside(run.r, run.gamma)
    text = (
        f"(r, gamma) = ({run.r:g}, {run.gamma:g}), lambda from {run.ridge}, M = ceil({run.features} N^c): slope "
        f"{run.slopes['excess']} of the excess risk and {run.slopes['squared']} of the squared error"
    )
    if outside:
        remark = (
            f". No theorem speaks of this pair ({outside}); {'an' if slow else 'no'} interval lies wholly above its "
            f"formula, {run.predicted:.2f}."
        )
        return Verdict(text + remark.replace(" -", " \u2212"))
    judged = run.meets_theorem()
    text += f"; theory {run.predicted:.2f}, allowed with log^2 N {run.allowed:.2f}: ".replace(" -", " \u2212")
    text += _describe_judgement(run)
    if slow:
        text += " Without the logarithm it is too slow." if judged is not False else ""
        text += _explain_slow(runs, run)
    return Verdict(text, judged)


def _describe_judgement(run: Run) -> str:
    """Why the slopes of a run were judged as they were."""
    judged = run.meets_theorem()
    if judged is True:
        return "both intervals lie at or below it."
    if judged is False:
        return "too slow, an interval lies wholly above it."
    if any(slope.is_wide for slope in run.slopes.values()):
        return f"an interval is wider than {MAX_WIDTH:g}."
    return f"an interval holds {run.allowed:.2f}.".replace("-", "\u2212")


def _explain_slow(runs: Runs, run: Run) -> str:
    """For a run that falls too slowly: what the selection of lambda and the number of features contribute.

    Compares with the best lambda of the grid (an oracle), with more features and with the exact kernel, as far as they
    ran.
    """
    risk, last, text = run.last_risk(), run.sizes[-1], ""
    if run.ridge == "validation":
        text += (
            f" The choice of lambda on {N_VALIDATION:,} noisy rows, which are as many at every N, costs "
            f"{1 - run.last_risk(LEAST) / risk:.0%} of the excess risk at N = {last:,}: with the weight of the grid "
            f"that is best for the true risk the slope is {_describe_slope(fit_slope(run.points, LEAST), run.allowed)}."
        )
    for features, name in ((MANY, "four times as many features as"), (EXACT, "the kernel itself instead of")):
        keys = [(run.r, run.gamma, features, ridge) for ridge in (run.ridge, "theory")]
        other = next((runs[key] for key in keys if key in runs), None)
        if features != run.features and other is not None:
            text += (
                f" With {name} M = {run.points.column('M').max()} (lambda from {other.ridge}) the slope is "
                f"{_describe_slope(other.slopes['excess'], run.allowed)}, and the excess risk at N = {last:,} "
                f"{'falls' if other.last_risk() < risk else 'goes'} from {risk:.1e} to {other.last_risk():.1e}."
            )
    return text


def _describe_slope(slope: Slope, allowed: float) -> str:
    """A slope, and whether it meets the theorem, as text."""
    phrases = {True: "which meets the theorem", False: "still too slow", "undecided": "which decides nothing"}
    return f"{slope}, {phrases[slope.meets_bound(allowed)]}"


@house_style()
def _plot_main(runs: Runs, error: str, output: OutputFolder) -> Item:
    """One panel per pair: the error with both choices of lambda, the theorem's slope and the printed one."""
    figure, axes = make_panels(2, 3, size=(11.0, 7.4), sharex=True, sharey=True)
    for ax, (r, gamma) in zip(axes.flat, (*PAIRS, *INSIDE), strict=True):
        slopes = [f"{'formula' if explain_outside(r, gamma) else 'theorem'} {simulated.predicted_slope(r, gamma):.2f}"]
        for run in _select_judged(runs, r, gamma):
            series, label = RIDGES.index(run.ridge), f"lambda from {run.ridge}"
            sizes, centre = plot_geometric_means(ax, run.points, error, series=series, label=label)
            where = {"xy": (0.98, 0.95 - 0.07 * series), "xycoords": "axes fraction", "ha": "right"}
            ax.annotate(f"{run.ridge}: {run.slopes[error]}", color=SERIES[series]["color"], fontsize=8, **where)
            _plot_slope(ax, sizes, centre, run.predicted, "slope of the theorem", REFERENCE)
            if run.ridge == "validation" and error == "excess" and (r, gamma) in PAIRS:
                _plot_slope(ax, sizes, centre, -PAIRS[r, gamma], "slope that the paper prints", PRINTED)
                slopes.append(f"printed {-PAIRS[r, gamma]:.2f}")
        ax.annotate("\n".join(slopes).replace("-", "\u2212"), (0.03, 0.04), xycoords="axes fraction", fontsize=8)
    _label_panels(axes, runs, ERRORS[error])
    add_shared_legend(figure, axes[0, 0])
    name = {"excess": "fig_3-learning-rates", "squared": "fig_3-squared-errors"}[error]
    return output.save_figure(figure, name, _caption(error))


def _caption(error: str) -> str:
    """Caption of the figures of excess risks and of squared errors."""
    lines = (
        f"the four pairs of the paper with M = ceil({MAIN} N^c), and two agnostic ones inside of the theorem with M = "
        f"ceil({MANY} N^c). Geometric means over repetitions, bars of one standard error; the labels give the fitted "
        "slopes and their 95 % intervals. Dotted: the slope of the theorem, -2r/(2r + gamma), without its logarithm"
    )
    if error == "squared":
        return f"Squared error of the median fit, {lines}."
    return (
        f"Excess risk of the median fit, {lines}; dashed grey: the slope that the paper prints, drawn through the "
        "middle of the points with lambda from validation."
    )


@house_style()
def _plot_constants(runs: Runs, output: OutputFolder) -> Item:
    """One panel per pair: the excess risk for each constant in M, and for the exact kernel."""
    labels = {"1": "constant 1", MAIN: "constant 5", MANY: "constant 20", EXACT: "kernel itself"}
    figure, axes = make_panels(2, 3, size=(11.0, 7.0), sharex=True, sharey=True)
    for ax, (r, gamma) in zip(axes.flat, (*PAIRS, *INSIDE), strict=True):
        for series, (features, label) in enumerate(labels.items()):
            if run := runs.get((r, gamma, features, "theory")):
                sizes, centre = plot_geometric_means(ax, run.points, "excess", series=series, label=label)
        _plot_slope(ax, sizes, centre, simulated.predicted_slope(r, gamma), "slope of the theorem", REFERENCE)
    _label_panels(axes, runs, ERRORS["excess"])
    add_shared_legend(figure, axes[0, 0], columns=5)
    return output.save_figure(
        figure,
        "fig_3-constants",
        "Excess risk with lambda from theory and other numbers of features: M = ceil(constant N^c), and the kernel "
        "itself. Geometric means, bars of one standard error; dotted: the slope of the theorem.",
    )


def _label_panels(axes: Any, runs: Runs, name: str) -> None:
    """Log-log axes with labels at the outer panels, and titles which say whether a theorem covers the pair."""
    sizes = sorted({n for run in runs.values() for n in run.sizes})
    for ax, (r, gamma) in zip(axes.flat, (*PAIRS, *INSIDE), strict=True):
        reason = "not in the paper, inside of the theorem" if (r, gamma) in INSIDE else ""
        if explain_outside(r, gamma):
            below = 2 * r + gamma < 1 - ROUNDING
            reason = f"no theorem: $2r + \\gamma {'<' if below else '='} 1${'' if below else ', $r$ not quite reached'}"
        set_log_log(ax, sizes, max_ticks=4)
        ax.set_title(f"$r = {r:g}$, $\\gamma = {gamma:g}$\n{reason}", loc="left", fontsize=10, fontweight="normal")
    for ax in axes[:, 0]:
        ax.set_ylabel(name)
    for ax in axes[-1]:
        ax.set_xlabel("rows $N$")


def _plot_slope(
    ax: Axes, sizes: list[float], centre: np.ndarray, slope: float, label: str, style: dict[str, Any]
) -> None:
    """Draw a line of this slope through the centre of the points; labelled once per panel."""
    x = np.array([sizes[0], sizes[-1]])
    middle, height = np.exp(np.mean(np.log(sizes))), np.exp(np.mean(np.log(centre)))
    named = {line.get_label() for line in ax.lines}
    ax.plot(x, height * (x / middle) ** slope, zorder=1, label=None if label in named else label, **style)


def _tabulate_slopes(runs: Runs, output: OutputFolder) -> Item:
    """Slopes of both errors, and whether they are as fast as the theorem allows."""
    columns = {
        "r": "g", "gamma": "g", "constant": "", "lambda": "", "repetitions": "d", "theory": ".2f", "allowed": ".2f",
        "printed": ".2f", "printed x theory": ".2f", "excess risk": ".2f", "low": ".2f", "high": ".2f",
        "squared error": ".2f", "low ": ".2f", "high ": ".2f", "as fast as allowed": "",
    }  # fmt: skip
    phrases, lines = {True: "yes", False: "no", "undecided": "undecided"}, []
    for key, run in runs.items():
        r, gamma, features, ridge = key
        printed = -PAIRS[r, gamma] if (r, gamma) in PAIRS and (features, ridge) == (MAIN, "validation") else None
        ratio = -printed * run.predicted if printed else None
        numbers = [value for slope in run.slopes.values() for value in (slope.value, slope.low, slope.high)]
        verdict = phrases[run.meets_theorem()] + (" (no theorem)" if explain_outside(r, gamma) else "")
        count = len(run.points.values("repetition"))
        lines.append([*key, count, run.predicted, run.allowed, printed, ratio, *numbers, verdict])
    return output.save_table(
        columns,
        lines,
        "fig_3-slopes",
        'Slopes of log error against log N, with 95 % intervals; "allowed" is the slope of the theorem with its '
        "log^2 N over these N.",
    )


def _tabulate_points(table: Table, output: OutputFolder) -> Item:
    """Geometric means at every N."""
    columns = {
        "r": "g", "gamma": "g", "constant": "", "lambda": "", "N": ",d", "M": ",d", "ridge weight": ".1e",
        "excess risk": ".2e", "squared error": ".2e",
    }  # fmt: skip
    lines = [
        [*key, int(part.column("M").max()), *(part.geometric_mean(name) for name in ("alpha", *ERRORS))]
        for key, part in table.groups("r", "gamma", "features", "ridge", "n")
    ]
    caption = "The points: geometric means over repetitions."
    return output.save_table(columns, lines, "fig_3-points", caption, folded=True)


LEARNING_RATE = Experiment(
    "fig_3",
    "fig_3",
    "Learning rates: log excess risk against log N",
    present,
    make_tasks,
    measure,
    estimate_seconds,
    version=2,
)
