"""The plan of a fit: every choice that is left to the data, made before anything is solved, with its reason.

    plan = plan_fit(settings, summary, kernel, loss, alpha)
    print(plan)

Choices are made in this order: kernel and bandwidths, alpha, number of features. They depend on the parameters of the
estimator (`FitSettings`) and on statistics of the data (`DataSummary`), never on where the rows are.
`KernelQuantileRegressorCV` makes the first two by cross-validation and the last by `plan_features`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone

from quernel._machine import as_size
from quernel.data import ArrayRows, DaskRows, available_memory, memory_budget
from quernel.data.dask_tasks import current_scheduler
from quernel.features import SAMPLINGS, Nystroem, PrecomputedFeatures, RandomFeatures
from quernel.features.landmarks import distinct_rows
from quernel.kernels import Gaussian, Kernel, Laplacian, Linear, Matern, ShiftInvariantKernel
from quernel.kernels.base import Seed, as_generator
from quernel.losses import Loss, Pinball
from quernel.solvers import SOLVERS
from quernel.tuning import alpha as alphas
from quernel.tuning.alpha import AlphaChoice, choose_alpha, has_gram
from quernel.tuning.bandwidth import OPTIONS as BANDWIDTH
from quernel.tuning.bandwidth import BandwidthChoice, auto_bandwidth, learn_bandwidth
from quernel.tuning.data_summary import SAMPLE, DataSummary
from quernel.tuning.n_components import OPTIONS as COMPONENTS
from quernel.tuning.n_components import ComponentsChoice, choose_components

Array = NDArray[np.floating]
FeatureMap = PrecomputedFeatures | Nystroem | RandomFeatures

# Candidate kernels for kernel="auto" with bandwidth="learned", ever rougher: a smooth one, its mean with the Laplacian,
# whose functions may have kinks along single columns, as regression trees have, and the mean of two rough ones.
LEARNED_KERNELS = (Gaussian(), 0.5 * Gaussian() + 0.5 * Laplacian(), 0.5 * Matern(nu=0.5) + 0.5 * Laplacian())
# Bandwidths that `print` shows at most.
SHOWN = 8
NUMBER, SINGLE = 8, 4  # bytes of float64, used throughout, and of float32, for stored features if dtype says so
# Numbers per row and level in the solver: residual, two duals, direction, and work space for their updates.
STATE = 6


class FitSettings(Protocol):
    """The parameters of an estimator that a plan depends on; `KernelQuantileRegressor` describes them."""

    kernel: str | Kernel
    bandwidth: str | float | ArrayLike
    n_components: int | str
    sampling: str | RandomFeatures
    alpha: float | str
    fit_intercept: bool
    solver: str
    max_memory: int | None
    dtype: str
    random_state: Seed


@dataclass(frozen=True, eq=False)
class KernelChoice:
    """Kernel with its bandwidths, and alpha; the first half of a plan.

    Attributes
    ----------
    kernel : Kernel
    bandwidth : float, ndarray of shape (d,), tuple of these for a sum, or None for a kernel without
    alpha : float
    bandwidth_reason, alpha_reason : str
    bandwidth_choice, alpha_choice : the searches behind them, or None
    """

    kernel: Kernel
    bandwidth: Any
    alpha: float
    bandwidth_reason: str
    alpha_reason: str
    bandwidth_choice: BandwidthChoice | None = None
    alpha_choice: AlphaChoice | None = None


@dataclass(frozen=True, eq=False)
class FitPlan:
    """Every choice of a fit with its reason; print it.

    Attributes
    ----------
    kernel, bandwidth, alpha, bandwidth_reason, alpha_reason, bandwidth_choice, alpha_choice : as in `KernelChoice`
    features : "random", "landmarks", "exact" or "columns"
        Random features, Nystroem landmarks, the kernel itself by pivoted Cholesky, or X as it is (linear kernel).
    n_components : int or None
        Number of features M; None for "exact", whose rank is found with the solution.
    features_reason : str
    seed : int or None
        Seed of the random features.
    n_components_choice : ComponentsChoice or None
        The search for M, if it was "auto".
    notes : tuple of str
        Sentences on the columns of a data frame: how they are encoded, and what is unusual about them.
    """

    kernel: Kernel
    bandwidth: Any
    alpha: float
    bandwidth_reason: str
    alpha_reason: str
    features: str
    n_components: int | None
    features_reason: str
    seed: int | None = None
    bandwidth_choice: BandwidthChoice | None = None
    alpha_choice: AlphaChoice | None = None
    n_components_choice: ComponentsChoice | None = None
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        what = {
            "random": f"{self.n_components:,} random features" if self.n_components else "",
            "landmarks": f"{self.n_components:,} Nystroem landmarks" if self.n_components else "",
            "exact": "the kernel itself",
            "columns": f"the {self.n_components:,} columns" if self.n_components else "",
        }
        rows = [
            ("kernel", self.kernel.full_name, ""),
            ("bandwidth", _format_bandwidth(self.bandwidth), self.bandwidth_reason),
            ("alpha", f"{self.alpha:.3g}", self.alpha_reason),
            ("features", what[self.features], self.features_reason),
        ]
        width = max(len(value) for _, value, _ in rows)
        lines = [f"{name:<10} {value:<{width}}  {reason}".rstrip() for name, value, reason in rows]
        choices: dict[str, object] = {
            "Search for bandwidths": self.bandwidth_choice,
            "Search for alpha": self.alpha_choice,
        }
        if self.n_components_choice is not None and self.n_components_choice.trials:
            choices["Search for the number of features"] = self.n_components_choice
        details = [f"\n{title}\n{choice}" for title, choice in choices.items() if choice is not None]
        notes = ["\nColumns", *self.notes] if self.notes else []
        return "\n".join([*lines, *notes, *details])


def _format_bandwidth(bandwidth: Any) -> str:
    """Bandwidths to three digits, the first few of many."""
    if bandwidth is None:
        return "none"
    if isinstance(bandwidth, tuple):
        return " + ".join(map(_format_bandwidth, bandwidth))
    widths = np.atleast_1d(bandwidth)
    more = ", ..." if len(widths) > SHOWN else ""
    return ", ".join(f"{width:.3g}" for width in widths[:SHOWN]) + more


def plan_fit(settings: FitSettings, summary: DataSummary, kernel: Kernel, loss: Loss, alpha: float) -> FitPlan:
    """Make every choice of a fit.

    Parameters
    ----------
    settings : the parameters of the estimator
    summary : statistics of the training data
    kernel : the kernel of `settings`, with its bandwidth if that was given as numbers
    loss : one column per output
    alpha : the ridge weight that was given or, if `settings.alpha` is "auto", the default one
    """
    return plan_features(settings, summary, loss, choose_kernel(settings, summary, kernel, loss, alpha))


def choose_kernel(
    settings: FitSettings, summary: DataSummary, kernel: Kernel, loss: Loss, alpha: float
) -> KernelChoice:
    """Set the bandwidth if it is "auto" or "learned", and choose alpha with it or after it; `alpha` is the default."""
    open_alpha, fallback = isinstance(settings.alpha, str), ""
    if kernel.has_free_bandwidth and isinstance(settings.bandwidth, str) and settings.bandwidth == "learned":
        fallback = _why_not_learned(kernel)
        if not fallback:
            kernels = LEARNED_KERNELS if settings.kernel == "auto" else (kernel,)
            return _learn_kernel(settings, summary, kernels, loss, alpha)
    reason = "given" if kernel.takes_bandwidth else "this kernel has none"
    if kernel.has_free_bandwidth:
        kernel = kernel.with_bandwidth(auto_bandwidth(summary))
        reason = (
            f"median heuristic: each column's standard deviation (or the distance between its two values), times "
            f"{BANDWIDTH.factor:g} of the median distance between rows in these units{fallback}"
        )
    kernel.check_columns(summary.n_columns)
    bandwidth = getattr(kernel, "bandwidth", None)
    if not open_alpha:
        return KernelChoice(kernel, bandwidth, alpha, reason, "given")
    choice = choose_alpha(
        summary,
        kernel,
        loss,
        alpha,
        fit_intercept=settings.fit_intercept,
        most_components=summary.n_rows if isinstance(settings.n_components, str) else int(settings.n_components),
        # Less regularisation than the default is not tried here: on noise-free targets these settings do not reach the
        # required duality gap with it.
        larger_only=(
            settings.n_components == "exact" or not SOLVERS[settings.solver].polishes or settings.dtype == "float32"
        ),
    )
    if choice is not None:
        why = f"by held-out loss, among {len(choice.tried)} values on {choice.n_rows:,} rows"
        return KernelChoice(kernel, bandwidth, choice.alpha, reason, why, alpha_choice=choice)
    unit = "in units of the loss" if loss.margin else "divided by a robust scale of the target, smaller for many rows"
    return KernelChoice(kernel, bandwidth, alpha, reason, f"default: {alphas.OPTIONS.default:.0e} {unit}")


def _why_not_learned(kernel: Kernel) -> str:
    """Why bandwidths of this kernel cannot be learned, as the end of a reason; empty if they can."""
    without = [part.name for _, part in kernel.summands if not isinstance(part, ShiftInvariantKernel)]
    if without:
        return f"; not learned, since the {without[0]} kernel in the sum has none"
    return "" if has_gram(kernel) else "; not learned, since the kernel is known by its random features only"


def _learn_kernel(
    settings: FitSettings, summary: DataSummary, kernels: Sequence[Kernel], loss: Loss, alpha: float
) -> KernelChoice:
    """Choose between learned bandwidths for one of these kernels and the automatic ones for the first kernel."""
    open_alpha = isinstance(settings.alpha, str)
    choice = learn_bandwidth(
        summary, kernels, loss, alpha, alpha_is_open=open_alpha, fit_intercept=settings.fit_intercept
    )
    kernel = kernels[choice.kernel].with_bandwidth(choice.bandwidth)
    kernel.check_columns(summary.n_columns)
    # The summands of an automatic sum share one vector of bandwidths: it is reported once.
    bandwidth = np.array(choice.bandwidth) if settings.kernel == "auto" else getattr(kernel, "bandwidth", None)
    reason = f"by leave-one-out error of kernel ridge regression, one per column. {choice.reason}"
    why = "tuned together with the bandwidths" if open_alpha else "given"
    return KernelChoice(kernel, bandwidth, choice.alpha, reason, why, bandwidth_choice=choice)


def plan_features(settings: FitSettings, summary: DataSummary, loss: Loss, chosen: KernelChoice) -> FitPlan:
    """Complete a plan by the kind and number of features."""
    given: dict[str, Any] = vars(chosen)
    if isinstance(chosen.kernel, Linear):
        why = "linear kernel"
        return FitPlan(**given, features="columns", n_components=summary.n_columns, features_reason=why)
    if settings.n_components == "exact":
        why = "exact kernel, no approximation"
        return FitPlan(**given, features="exact", n_components=None, features_reason=why)
    number = None if isinstance(settings.n_components, str) else int(settings.n_components)
    if _uses_landmarks(settings, chosen.kernel):
        why = "kernel values at this many landmark rows (Nyström)"
        M = number or auto_landmarks(summary.n_distinct)
        return FitPlan(**given, features="landmarks", n_components=M, features_reason=why)
    seed = int(as_generator(settings.random_state).integers(2**63))
    if number is not None:
        return FitPlan(**given, features="random", n_components=number, features_reason="given", seed=seed)
    choice = _choose_components(settings, summary, loss, chosen, seed)
    return FitPlan(
        **given,
        features="random",
        n_components=choice.n_components,
        features_reason=choice.reason,
        seed=seed,
        n_components_choice=choice,
    )


def _uses_landmarks(settings: FitSettings, kernel: Kernel) -> bool:
    """Whether to use Nystroem landmarks rather than random features: asked for, or learned rough kernels."""
    if not isinstance(settings.sampling, str) or settings.sampling != "auto":
        return isinstance(settings.sampling, str) and settings.sampling == "landmarks"
    learned = isinstance(settings.bandwidth, str) and settings.bandwidth == "learned"
    return learned and is_rough(kernel)


def is_rough(kernel: Kernel) -> bool:
    """Whether the kernel, or a part of it, is rough."""
    return any(part.rough for _, part in kernel.summands)


def _choose_components(
    settings: FitSettings, summary: DataSummary, loss: Loss, chosen: KernelChoice, seed: int
) -> ComponentsChoice:
    """Choose the number of random features by effective dimension and held-out loss, up to what memory allows."""
    features = random_features(settings, chosen.kernel, summary.mean, seed, chosen.alpha)
    memory = settings.max_memory
    if memory is None and isinstance(summary.source, DaskRows):
        memory = int(current_scheduler().feature_memory())  # memory of the Dask workers
    most, limited_by = most_components(summary.n_rows, loss.n_columns, solver=settings.solver, max_memory=memory)
    if features.pool_size is not None and features.pool_size < most:
        most, limited_by = features.pool_size, f"the pool has {features.pool_size:,} features"

    def draw(n_components: int, rows: ArrayRows) -> RandomFeatures:
        return clone(features).set_params(n_components=n_components).fit(rows.X, sample_weight=rows.weight)

    # The loss of the middle level or levels is estimated best.
    middle = Pinball(loss.middle_levels()) if isinstance(loss, Pinball) else loss
    return choose_components(
        summary.sample,
        draw,
        middle,
        chosen.alpha,
        fit_intercept=settings.fit_intercept,
        most=most,
        limited_by=limited_by,
    )


def unfitted_features(settings: FitSettings, kernel: Kernel) -> RandomFeatures:
    """Random features of this kernel, unfitted; with n_components="auto", of the smallest size of the search."""
    if isinstance(settings.sampling, RandomFeatures):
        given = settings.sampling
    else:
        given = RandomFeatures(sampling=settings.sampling if settings.sampling in SAMPLINGS else "uniform")
    n_components = COMPONENTS.sizes[0] if settings.n_components == "auto" else int(settings.n_components)
    return clone(given).set_params(kernel=kernel, n_components=n_components)


def random_features(settings: FitSettings, kernel: Kernel, center: Array, seed: int, alpha: float) -> RandomFeatures:
    """Unfitted random features, centred at the mean of X; leverage scores use `alpha` unless they have their own."""
    features = unfitted_features(settings, kernel).set_params(center=center, random_state=seed)
    return features if features.leverage_alpha is not None else features.set_params(leverage_alpha=alpha)


def draw_features(settings: FitSettings, plan: FitPlan, summary: DataSummary) -> FeatureMap:
    """The fitted feature map of a plan, for all features but "exact"."""
    sample = summary.sample
    if plan.features == "columns":
        return PrecomputedFeatures().fit(sample.X)
    assert plan.n_components is not None
    if plan.features == "landmarks":
        # A hash sample: the same landmarks whether the rows are in memory, in files or on a cluster.
        some, weight = distinct_rows(sample.X, sample.share(), SAMPLE)
        landmarks = choose_landmarks(plan.kernel, summary.n_distinct, plan.n_components)
        return Nystroem(plan.kernel, plan.n_components, landmarks=landmarks).fit(some, sample_weight=weight)
    assert plan.seed is not None
    features = random_features(settings, plan.kernel, summary.mean, plan.seed, plan.alpha)
    return features.set_params(n_components=plan.n_components).fit(sample.X, sample_weight=sample.weight)


def refuse_if_too_large(settings: FitSettings, n: int, n_levels: int, *, linear: bool) -> None:
    """Raise ValueError, before anything is allocated, if the fit does not fit in memory."""
    free, rows = available_memory(), row_bytes(n, n_levels)
    if rows > free:
        raise ValueError(
            f"{n:,} rows x {n_levels} levels need {as_size(rows)} for residuals and duals alone, and {as_size(free)} "
            "are free. Fit fewer levels at a time, or fewer rows."
        )
    if linear or settings.n_components == "exact":  # X is in memory already; the Cholesky factor has its own limit
        return
    M = COMPONENTS.sizes[0] if settings.n_components == "auto" else int(settings.n_components)
    features, allowed = (SINGLE if settings.dtype == "float32" else NUMBER) * n * M, memory_budget(settings.max_memory)
    what = f"{n:,} rows x {M:,} features need {as_size(features)}"
    in_memory = not SOLVERS[settings.solver].out_of_core
    if in_memory and features > allowed:
        raise ValueError(
            f"The {settings.solver} solver keeps all features in memory, but {what}, and {as_size(allowed)} are "
            "allowed. Use solver='newton', which can do without, fewer components, or raise max_memory."
        )
    if not in_memory and (settings.max_memory is None or features > allowed):  # recomputed if they do not fit
        return
    twice = 2 if in_memory else 1  # such solvers may centre a copy of them
    if twice * features + rows > free:
        remedy = "Use solver='newton' or fewer components." if in_memory else "Lower max_memory below that size."
        raise ValueError(
            f"{what}{' twice over' * (twice - 1)} and {as_size(rows)} for the rows, but {as_size(free)} are free. "
            f"{remedy}"
        )


def most_components(n: int, n_levels: int, *, solver: str, max_memory: int | None) -> tuple[int, str]:
    """Largest number of features that n_components="auto" may choose for n rows, and the reason for the limit.

    The Newton solver can recompute features that do not fit in memory; this is slow, and allowed for COMPONENTS.default
    features, not for more. ADMM stores all features and a copy of them.
    """
    room = memory_budget(max_memory) / (NUMBER * n)
    if not SOLVERS[solver].out_of_core:
        rows = row_bytes(n, n_levels)
        room = min(room, (available_memory() - rows) / (2 * NUMBER * n))
    else:
        room = max(room, COMPONENTS.default)
    wanted = [size for size in COMPONENTS.sizes if size <= max(n, COMPONENTS.default)]
    allowed = [size for size in wanted if size <= room] or wanted[:1]
    if allowed != wanted:
        return allowed[-1], f"memory has no room for more features of {n:,} rows"
    return wanted[-1], "no more are tried" if wanted == list(COMPONENTS.sizes) else "no more are tried for so few rows"


def auto_landmarks(n_rows: int) -> int:
    """Number of Nystroem landmarks for this many distinct rows: as many as a Newton step can afford."""
    return int(np.clip(np.sqrt(COMPONENTS.landmark_work / n_rows), *COMPONENTS.landmarks))


def choose_landmarks(kernel: Kernel, n_rows: int, n_landmarks: int) -> str:
    """How landmarks are chosen (`Nystroem`) among so many distinct rows: by k-means where these are many."""
    return "kmeans" if kernel.takes_bandwidth and n_rows >= COMPONENTS.clustered_from * n_landmarks else "distinct"


def row_bytes(n: int, q: int) -> int:
    """Bytes held per row: its weight, and the solver's state for q levels."""
    return NUMBER * n * (1 + STATE * q)
