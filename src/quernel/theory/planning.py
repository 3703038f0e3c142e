"""Plan a fit: ridge weight and number of features from the exponents of the theory, or from data alone.

The theorems give M = C n^c up to the constant C, which a pilot estimates: fits to a subsample, with random features and
with the exact kernel. With F_M and F_K the least objectives on the same rows, at the same ridge weight alpha,

    kernel gap = (E F_M - F_K) / F_K,    about A M^-b with b near 1 (and E F_M >= F_K, by Jensen's inequality)

where E is over draws of the features. F_M itself varies around E F_M by far more than the gap, but nearly all of that
is a first-order term of mean 0, known once the kernel's dual variables theta are: a control variate. F_M - F_K is
replaced by

    F_M - F_K + theta'(K_M - K) theta / (4 alpha n^2)  >= 0,  of the same mean.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from quernel._validation import check_share
from quernel.data import ArrayRows, InMemoryDesign
from quernel.features import PivotedCholesky, RandomFeatures
from quernel.kernels import Kernel, ShiftInvariantKernel
from quernel.losses import Pinball
from quernel.objective import Problem
from quernel.solvers import SOLVERS, Result
from quernel.theory.exponents import Exponent, capacity_exponent, compatibility_exponent, source_exponent
from quernel.theory.rates import OutsideTheoryWarning, feature_exponent, features_needed, learning_rate, regularization

Array = NDArray[np.floating]


@dataclass(frozen=True)
class PilotOptions:
    """Constants of the pilot that finds C in M = C n^c: more features or draws cost time and narrow its interval."""

    # Features drawn to estimate the compatibility exponent.
    n_candidates: int = 500
    # Features of the first, exploratory fits, and fewest features of any fit.
    first_size: int = 48
    min_size: int = 8
    # Most features of a fit: a quarter of the pilot's rows, and at least this. Larger M are extrapolated on the line.
    max_size: int = 200
    # Draws of the features in exploratory fits and on the parts, and in the fits that the line is drawn through.
    n_exploratory_draws: int = 4
    n_draws: int = 6
    # How the gap depends on n is read from the whole pilot against this many disjoint parts of it.
    n_parts: int = 4
    # Smaller gaps are rounding errors, of fits that no draw changes.
    min_gap: float = 1e-12
    # Range of b in gap = A M^-b; estimates outside are noise, and clipped.
    slope_range: tuple[float, float] = (0.5, 1.25)
    # Drift of the gap of M = C n^c with n: this weight on the power of n that the pilot shows, the rest on that of the
    # theory in the limit. From 500 to 2,000 rows of some simulated and real tables the power mostly lay between the
    # two, about there.
    pilot_weight: float = 2 / 3


PILOT = PilotOptions()


@dataclass(frozen=True)
class Plan:
    """What the theorems recommend for n rows, constants left out.

    Attributes
    ----------
    n : int
    r, gamma, compatibility : float
        Exponents.
    alpha : float
        Ridge weight for a target of unit scale.
    rate : float
        Exponent with which the squared error falls.
    uniform, leverage : int
        Numbers of features for uniform and for leverage sampling.
    """

    n: int
    r: float
    gamma: float
    compatibility: float
    alpha: float
    rate: float
    uniform: int
    leverage: int


@dataclass(frozen=True)
class Exponents:
    """The three exponents of a data set, each with its interval."""

    source: Exponent
    capacity: Exponent
    compatibility: Exponent


def plan(n: int, r: float, gamma: float, compatibility: float = 1.0, *, strict: bool = True) -> Plan:
    """Recommendation of `thm2` at the compatibility given for uniform sampling, and of `cor1` for leverage sampling.

    Examples
    --------
    >>> plan(10_000, 0.5, 1.0).uniform
    100
    """
    return Plan(
        n=int(n),
        r=float(r),
        gamma=float(gamma),
        compatibility=float(compatibility),
        alpha=regularization(n, r, gamma, strict=strict),
        rate=float(learning_rate(r, gamma, strict=strict)),
        uniform=features_needed(n, r, gamma, compatibility, strict=strict),
        leverage=features_needed(n, r, gamma, gamma, strict=strict),
    )


@dataclass(frozen=True)
class FeatureConstant:
    """The constant C in M = C n^c for one way of sampling, estimated by a pilot.

    Attributes
    ----------
    sampling : str
        "uniform" or "leverage".
    exponent : float
        c, taken as known.
    value, interval, confidence : float, (float, float), float
        C, and its interval from the draws of the pilot.
    rows : int
        Rows of the pilot, on which C rows^c features have the kernel gap `gap`.
    gap : float
    slope : float
        b: the gap falls like M^-b.
    drift : (float, float, float)
        Powers p with which the gap of M = C n^c changes like n^p: the theory's in the limit, the one used, the pilot's.
    drift_error : float
        Standard error of the pilot's.
    scatter : float
        Standard deviation of the gap of a single draw of the features, on the pilot's rows.
    """

    sampling: str
    exponent: float
    value: float
    interval: tuple[float, float]
    confidence: float
    rows: int
    gap: float
    slope: float
    drift: tuple[float, float, float]
    drift_error: float
    scatter: float

    def features(self, n: int) -> int:
        """M = C n^c for n rows."""
        return max(1, math.ceil(self.value * n**self.exponent))

    def features_interval(self, n: int) -> tuple[int, int]:
        """M at both ends of the interval of C."""
        low, high = (max(1, math.ceil(end * n**self.exponent)) for end in self.interval)
        return low, high

    def gap_at(self, n: int) -> float:
        """Kernel gap of M = C n^c features at n rows."""
        return float(self.gap * (n / self.rows) ** self.drift[1])

    def gap_interval(self, n: int) -> tuple[float, float]:
        """Interval of the kernel gap at n rows: C in its interval, the drift between the theory's and the pilot's.

        The pilot's drift enters with two standard errors on either side.
        """
        shown, error = self.drift[-1], 2 * self.drift_error
        powers = (*self.drift, shown - error, shown + error)
        (few, many), factors = self.interval, [(n / self.rows) ** power for power in powers]
        low, high = (
            min(factors) * (few / self.value) ** self.slope,
            max(factors) * (many / self.value) ** self.slope,
        )
        return float(self.gap * low), float(self.gap * high)

    def scatter_at(self, n: int) -> float:
        """About the standard deviation of the gap of a single draw of M = C n^c features, for n rows."""
        return self.scatter * math.sqrt(self.features(self.rows) / self.features(n))


def estimate_exponents(
    X: Array,
    y: Array,
    kernel: Kernel,
    *,
    level: float = 0.5,
    random_state: int | np.random.Generator | None = 0,
) -> Exponents:
    """Estimate all three exponents from the kernel on these rows.

    Needs many decompositions of (n, n) matrices: give a subsample.
    """
    if not isinstance(kernel, ShiftInvariantKernel):
        raise ValueError(f"The compatibility is that of random features, which the {kernel.name} kernel has none of.")
    rng = np.random.default_rng(random_state)
    X, y = np.asarray(X, dtype=float), np.asarray(y, dtype=float)
    gram = kernel.gram(X, X)
    features = RandomFeatures(kernel, PILOT.n_candidates, random_state=rng).fit(X).transform(X)
    return Exponents(
        source=source_exponent(y, gram=gram, level=level, random_state=rng),
        capacity=capacity_exponent(gram=gram),
        compatibility=compatibility_exponent(features, gram=gram),
    )


def calibrate_features(
    made: Plan,
    X: Array,
    y: Array,
    kernel: Kernel,
    *,
    unit: float,
    level: float = 0.5,
    gap: float = 0.01,
    confidence: float = 0.95,
    random_state: int | np.random.Generator | None = 0,
) -> dict[str, FeatureConstant]:
    """Estimate C of M = C n^c for uniform and for leverage sampling, by a pilot on these rows: give 1,000 or so.

    Parameters
    ----------
    made : the plan, whose exponents and ridge weight (rescaled to the pilot's number of rows) are used
    X, y : rows (n, d) in random order, and their targets
    kernel : with its bandwidth
    unit : the scale of y, by which the plan's ridge weight is divided
    level : the quantile level
    gap : the kernel gap that M features shall have on the pilot's rows
    confidence : of the intervals
    random_state : source of the features
    """
    if not 0 < gap < 1:
        raise ValueError(f"gap must be a share of the objective between 0 and 1; got {gap!r}.")
    check_share("confidence", confidence)
    rng = np.random.default_rng(random_state)
    X, y, loss = np.asarray(X, dtype=float), np.asarray(y, dtype=float) / unit, Pinball(np.array([level]))

    def pilot(rows: slice) -> _Pilot:
        n = len(y[rows])
        # alpha = n^(-1 / (2r + gamma)), rescaled from the plan's n to the pilot's; it is for y divided by its unit.
        alpha = made.alpha * (made.n / n) ** (1 / (2 * made.r + made.gamma))
        return _Pilot(X[rows], y[rows], kernel, loss, alpha, alpha / unit, gap)

    whole, parts = pilot(slice(None)), [pilot(slice(k, None, PILOT.n_parts)) for k in range(PILOT.n_parts)]
    found = {}
    for sampling, compatibility in (("uniform", made.compatibility), ("leverage", made.gamma)):
        line, scatter = _find_size(whole, sampling, gap, rng)
        fewer = np.concatenate([part.gaps(sampling, line.middle, PILOT.n_exploratory_draws, rng)[0] for part in parts])
        pilot_drift = math.log(line.gap / max(float(fewer.mean()), PILOT.min_gap)) / math.log(PILOT.n_parts)
        relative_error = float(fewer.std(ddof=1)) / max(float(fewer.mean()), PILOT.min_gap) / math.sqrt(len(fewer))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OutsideTheoryWarning)  # the plan has said so
            c = float(feature_exponent(made.r, made.gamma, compatibility, strict=False))
        limit, shown = -made.rate, pilot_drift - line.slope * c
        half_width = float(student.ppf((1 + confidence) / 2, 2 * PILOT.n_draws - 2)) * line.error
        value = math.exp(line.log_features) / len(y) ** c
        found[sampling] = FeatureConstant(
            sampling=sampling,
            exponent=c,
            value=value,
            interval=(value * math.exp(-half_width), value * math.exp(half_width)),
            confidence=confidence,
            rows=len(y),
            gap=gap,
            slope=line.slope,
            drift=(limit, (1 - PILOT.pilot_weight) * limit + PILOT.pilot_weight * shown, shown),
            drift_error=math.hypot(relative_error, line.gap_error) / math.log(PILOT.n_parts),
            scatter=scatter / math.exp(line.log_features / 2),
        )
    return found


class _Pilot:
    """Rows of a pilot and their fit with the exact kernel, to which fits with features are compared.

    `leverage_alpha` is the ridge weight in the original unit of y, at which an estimator computes leverage scores.
    """

    def __init__(
        self, X: Array, y: Array, kernel: Kernel, loss: Pinball, alpha: float, leverage_alpha: float, gap: float
    ) -> None:
        self.X, self.y, self.kernel, self.loss, self.alpha, self.tol = X, y, kernel, loss, alpha, gap / 100
        self.leverage_alpha = leverage_alpha
        # Truncating the factor changes the objective by at most mean theta^2 E / (4 alpha), E the trace left out, and
        # |theta| < 1.
        G = PivotedCholesky(kernel, tol=min(1e-10, alpha * self.tol)).fit_transform(X)
        exact = self._fit(G)
        self.dual = exact.dual[:, 0]
        self.objective = max(float(exact.objective[0]), float(exact.null_objective[0]) / 1000) or 1.0
        self.optimum, self.norm = float(exact.objective[0]), self._norm(G)

    def gaps(self, sampling: str, size: int, draws: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Kernel gaps (draws,) of independent draws of the features, clipped at 0, and their control variates."""
        both = np.array([self._gap(sampling, size, rng) for _ in range(draws)]) / self.objective
        return np.maximum(both[:, 0], 0.0), both[:, 1]

    def _gap(self, sampling: str, size: int, rng: np.random.Generator) -> tuple[float, float]:
        """Objective of one draw minus that of the kernel plus the control variate; and the control variate."""
        seed = int(rng.integers(2**63))
        alpha_scores = self.leverage_alpha
        features = RandomFeatures(self.kernel, size, sampling=sampling, leverage_alpha=alpha_scores, random_state=seed)
        Phi = features.fit(self.X).transform(self.X)
        first = self._norm(Phi) - self.norm
        return float(self._fit(Phi).objective[0]) - self.optimum + first, first

    def _norm(self, Phi: Array) -> float:
        """theta'Phi Phi'theta / (4 alpha n^2), theta the dual variables of the kernel fit."""
        phi_t_dual = Phi.T @ self.dual / len(self.y)
        return float(phi_t_dual @ phi_t_dual) / (4 * self.alpha)

    def _fit(self, Phi: Array) -> Result:
        """Median (or other quantile) fit on these features, with an intercept."""
        rows = InMemoryDesign(ArrayRows(self.X, self.y), features=Phi)
        return SOLVERS["newton"](Problem(rows, self.loss, self.alpha), tol=self.tol, max_iter=1000)


@dataclass(frozen=True)
class _Line:
    """Line of log gap over log M through (log middle, log gap), and where it meets the wanted gap.

    Attributes
    ----------
    middle, gap, slope : the line
    log_features : log M at which the gap is the wanted one
    error, gap_error : standard errors of log_features, and of the log gap in the middle
    """

    middle: int
    gap: float
    slope: float
    log_features: float
    error: float
    gap_error: float


def _find_size(pilot: _Pilot, sampling: str, gap: float, rng: np.random.Generator) -> tuple[_Line, float]:
    """Line through fits around the wanted gap, and the scatter of one draw times sqrt(M)."""
    guess = (
        PILOT.first_size * float(pilot.gaps(sampling, PILOT.first_size, PILOT.n_exploratory_draws, rng)[0].mean()) / gap
    )
    high = int(np.clip(2 * guess, 2 * PILOT.min_size, max(PILOT.max_size, len(pilot.y) // 4)))
    sizes = np.array([max(high // 4, PILOT.min_size), high])
    draws_by_size = [pilot.gaps(sampling, int(size), PILOT.n_draws, rng) for size in sizes]
    scatter = float(np.sqrt(np.mean([first**2 * size for (_, first), size in zip(draws_by_size, sizes, strict=True)])))
    return _fit_line(sizes, np.array([gaps for gaps, _ in draws_by_size]), gap), scatter


def _fit_line(sizes: NDArray[np.intp], gaps: Array, wanted: float) -> _Line:
    """Line through the mean gaps of two sizes; `gaps` has shape (2, draws)."""
    mean = np.maximum(gaps.mean(axis=1), PILOT.min_gap)
    span = math.log(sizes[1] / sizes[0])
    slope = float(np.clip(math.log(mean[0] / mean[1]) / span, *PILOT.slope_range))
    middle = round(math.sqrt(sizes[0] * sizes[1]))
    at_middle = float(np.mean(mean * (sizes / middle) ** slope))
    distance = math.log(at_middle / wanted) / slope  # from the middle to the M wanted, in log M
    variance = float(np.sum(gaps.var(axis=1, ddof=1) / mean**2)) / gaps.shape[1]  # of log mean[0] - log mean[1]
    error = math.sqrt(variance * (1 / 4 + (distance / span) ** 2)) / slope
    return _Line(middle, at_middle, slope, math.log(middle) + distance, error, math.sqrt(variance) / 2)
