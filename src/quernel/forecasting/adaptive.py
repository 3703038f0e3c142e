"""Intervals that hold their coverage while the series drifts: adaptive conformal inference.

Split conformal prediction guarantees coverage for exchangeable rows. Rows of a series are not: under drift, conformity
scores of the past no longer represent the present. Here a feedback loop adapts the calibration so that the share of
misses over time stays 1 - coverage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from quernel._validation import check_choice, check_positive, check_share
from quernel.conformal.adapters import clone_with_levels, interval_bounds, is_frozen, unwrap_frozen
from quernel.kernels.base import Seed

Array = NDArray[np.floating]

METHODS = ("aggregated", "aci", "pid", "rolling")


@dataclass(frozen=True)
class AdaptiveOptions:
    """Constants of the feedback loops."""

    step: float = 0.02  # of "aci": reacts within about 1 / step rows, at the price of wobbling levels
    steps: tuple[float, ...] = (0.001, 0.004, 0.016, 0.064, 0.256)  # of the experts of "aggregated"
    most: float = 0.5  # of a step for many rows at once, whose hits and misses are alike
    memory: int = 500  # rows within which "aggregated" competes with the best expert
    proportional: float = 0.05  # of "pid", in units of the range of recent scores
    integral: float = 1.0  # of "pid", in the same units
    saturation: float = 5.0  # of "pid": larger values let the integral act later
    recent: int = 100  # scores whose range is the unit of "pid"


OPTIONS = AdaptiveOptions()


class AdaptiveCalibrator(BaseEstimator):
    """Widen or narrow the intervals of any forecaster so that coverage holds over time.

    `adjust` returns calibrated intervals; `update` learns from targets as they arrive. With the conformity score
    s = max(lower - y, y - upper), the interval is widened by a threshold on recent scores:

    - "rolling": their quantile at `coverage`, over the last `window` rows.
    - "aci" (Gibbs and Candes 2021): their quantile at level 1 - a, where a is raised after a hit and lowered after a
      miss, so that misses have the share 1 - coverage in the long run.
    - "aggregated" (Gibbs and Candes 2024): several of these with different step sizes, weighted by how well each did.
    - "pid" (Angelopoulos, Candes, Tibshirani 2023): the threshold itself is raised after a miss and lowered after a
      hit, and more so while the share of misses is off (proportional and integral control).

    Parameters
    ----------
    coverage : float, default=0.9
    method : {"aggregated", "aci", "pid", "rolling"}, default="aggregated"
    window : int, default=500
        Number of recent scores.

    Attributes
    ----------
    threshold_ : float
        By how much the next interval is widened on either side; negative if it is narrowed.

    Notes
    -----
    Where ACI would return an infinite interval, the largest recent score is the threshold: intervals stay finite.

    Examples
    --------
    >>> import numpy as np
    >>> y = np.random.default_rng(0).normal(0, 3, 2000)  # intervals of -1 to 1 are too narrow
    >>> calibrator = AdaptiveCalibrator(0.9).fit(-np.ones(500), np.ones(500), y[:500])
    >>> hits = []
    >>> for day in np.split(y[500:], 100):
    ...     low, high = calibrator.adjust(-np.ones(15), np.ones(15)).T
    ...     hits.extend((low <= day) & (day <= high))
    ...     _ = calibrator.update(-np.ones(15), np.ones(15), day)
    >>> bool(abs(np.mean(hits) - 0.9) < 0.02)
    True
    """

    def __init__(self, coverage: float = 0.9, *, method: str = "aggregated", window: int = 500) -> None:
        self.coverage = coverage
        self.method = method
        self.window = window

    def fit(self, lower: ArrayLike, upper: ArrayLike, y: ArrayLike) -> Self:
        """Begin with intervals and targets in time order that the model has not seen, shape (n,) each."""
        check_share("coverage", self.coverage)
        check_choice("method", self.method, METHODS)
        check_positive("window", self.window, integer=True)
        scores = _scores(lower, upper, y)
        if not len(scores):
            raise ValueError("There are no intervals to begin with. Give the last ones, with their targets.")
        self._recent = scores[-self.window :]
        self._loops = _start_loops(self.method, 1 - self.coverage, self._recent)
        self.threshold_ = self._loops.threshold(self._recent)
        return self

    def adjust(self, lower: ArrayLike, upper: ArrayLike) -> Array:
        """Return the calibrated intervals, shape (n, 2); where one would be empty, both bounds are its middle."""
        check_is_fitted(self)
        low, high = np.asarray(lower, dtype=float), np.asarray(upper, dtype=float)
        half = np.maximum((high - low) / 2 + self.threshold_, 0.0)
        return np.column_stack([(low + high) / 2 - half, (low + high) / 2 + half])

    def update(self, lower: ArrayLike, upper: ArrayLike, y: ArrayLike) -> Self:
        """Learn from targets whose intervals were adjusted since the last update, uncalibrated bounds of shape (n,)."""
        check_is_fitted(self)
        scores = _scores(lower, upper, y)
        if len(scores):
            self._loops.update(scores, self.threshold_, np.sort(self._recent))
        self._recent = np.concatenate([self._recent, scores])[-self.window :]
        self.threshold_ = self._loops.threshold(self._recent)
        return self


def _scores(lower: ArrayLike, upper: ArrayLike, y: ArrayLike) -> Array:
    low, high, target = (np.asarray(one, dtype=float) for one in (lower, upper, y))
    if not low.shape == high.shape == target.shape or low.ndim != 1:
        raise ValueError(
            f"lower, upper and y must be flat and of one length; got shapes {low.shape}, {high.shape}, {target.shape}."
        )
    scores = np.maximum(low - target, target - high)
    if not np.all(np.isfinite(scores)):
        raise ValueError("lower, upper and y must be finite. Leave out rows whose target is missing.")
    return scores


def _start_loops(method: str, miss: float, recent: Array) -> _LevelLoops | _ThresholdLoop:
    if method == "pid":
        return _ThresholdLoop(miss, float(np.quantile(recent, 1 - miss)))
    return _LevelLoops(miss, {"rolling": (0.0,), "aci": (OPTIONS.step,)}.get(method, OPTIONS.steps))


class _LevelLoops:
    """ACI with one or several step sizes: levels a_k of misses, and the weights of the experts."""

    def __init__(self, miss: float, steps: tuple[float, ...]) -> None:
        self.miss, self.steps = miss, np.array(steps)
        self.levels, self.weights = np.full(len(steps), miss), np.full(len(steps), 1 / len(steps))
        spread = (1 - miss) ** 2 * miss**3 + miss**2 * (1 - miss) ** 3
        self.rate = np.sqrt(3 / OPTIONS.memory * (np.log(OPTIONS.memory * len(steps)) + 2) / spread)

    def threshold(self, recent: Array) -> float:
        level = float(np.clip(1 - self.weights @ self.levels, 0, 1))
        scores = np.sort(recent)
        return float(scores[min(int(np.ceil(level * (len(scores) + 1))), len(scores)) - 1 if level > 0 else 0])

    def update(self, scores: Array, issued: float, known: Array) -> None:  # noqa: ARG002
        # The largest levels of misses at which the targets would still have been inside, (n, 1). All rows are judged by
        # the levels of their intervals, those before the update: levels that moved from row to row would follow the
        # hours of a day, and be right at none of them.
        reached = (1 - np.searchsorted(known, scores, side="left") / len(known))[:, None]
        excess = reached - self.levels
        loss = np.sum(self.miss * excess - np.minimum(0, excess), axis=0)
        weights = self.weights * np.exp(-self.rate * (loss - loss.min()))
        weights /= weights.sum()
        share = min(len(scores) / (2 * OPTIONS.memory), 0.5)
        self.weights = (1 - share) * weights + share / len(weights)
        gain = np.minimum(self.steps * len(scores), OPTIONS.most)
        self.levels = self.levels + gain * (self.miss - np.mean(excess < 0, axis=0))


class _ThresholdLoop:
    """Quantile tracking of the scores with an integral term."""

    def __init__(self, miss: float, start: float) -> None:
        self.miss, self.tracked, self.excess, self.count = miss, start, 0.0, 0

    def threshold(self, recent: Array) -> float:
        self.unit = float(np.ptp(recent[-OPTIONS.recent :]))
        angle = self.excess * np.log(self.count + 2) / (OPTIONS.saturation * (self.count + 1))
        return self.tracked + OPTIONS.integral * self.unit * float(np.tan(np.clip(angle, -1.5, 1.5)))

    def update(self, scores: Array, issued: float, known: Array) -> None:  # noqa: ARG002
        excess = float(np.mean(scores > issued)) - self.miss
        self.tracked += min(OPTIONS.proportional * len(scores), OPTIONS.most) * self.unit * excess
        self.excess, self.count = self.excess + len(scores) * excess, self.count + len(scores)


class AdaptiveConformalRegressor(RegressorMixin, BaseEstimator):
    """Prediction intervals for rows in time order whose calibration follows the rows as they arrive.

    The model is fitted to the first rows, and an `AdaptiveCalibrator` to its intervals for the last ones. Call
    `update(X, y)` when targets become known.

    Parameters
    ----------
    estimator : quantile regressor or None, default=None
        As in `ConformalQuantileRegressor`; a FrozenEstimator is used as fitted, and all rows calibrate.
    coverage, method, window : as in `AdaptiveCalibrator`
    calibration_size : float, default=0.25
        Share of the rows, the last ones, that calibrate.
    random_state : of the default estimator

    Attributes
    ----------
    estimator_ : the fitted model
    calibrator_ : AdaptiveCalibrator
    """

    def __init__(
        self,
        estimator: BaseEstimator | None = None,
        coverage: float = 0.9,
        *,
        method: str = "aggregated",
        window: int = 500,
        calibration_size: float = 0.25,
        random_state: Seed = None,
    ) -> None:
        self.estimator = estimator
        self.coverage = coverage
        self.method = method
        self.window = window
        self.calibration_size = calibration_size
        self.random_state = random_state

    def fit(self, X: Any, y: ArrayLike) -> Self:
        """Fit the model to the first rows of X (n, d) and y (n,), in time order; calibrate on the last ones."""
        check_share("coverage", self.coverage)
        check_share("calibration_size", self.calibration_size)
        target, first = np.asarray(y, dtype=float), 0
        model = unwrap_frozen(self.estimator)
        if not is_frozen(self.estimator):
            first = round((1 - self.calibration_size) * len(target))
            if not 0 < first < len(target):
                raise ValueError(f"{len(target)} rows are too few to fit and to calibrate. Give more rows.")
            model = clone_with_levels(self.estimator, self.coverage, self.random_state)
            model = model.fit(_rows(X, 0, first), target[:first])
        bounds = interval_bounds(model, _rows(X, first, len(target)), self.coverage)
        calibrator = AdaptiveCalibrator(self.coverage, method=self.method, window=self.window)
        self.calibrator_ = calibrator.fit(bounds[:, 0], bounds[:, 1], target[first:])
        self.estimator_ = model
        return self

    def predict(self, X: Any) -> Array:
        """Return the middle of the intervals, shape (n,)."""
        return self.predict_interval(X).mean(axis=1)

    def predict_interval(self, X: Any) -> Array:
        """Return the calibrated intervals of the next rows, shape (n, 2)."""
        check_is_fitted(self)
        bounds = interval_bounds(self.estimator_, X, self.calibrator_.coverage)
        return self.calibrator_.adjust(bounds[:, 0], bounds[:, 1])

    def update(self, X: Any, y: ArrayLike) -> Self:
        """Learn from rows whose targets have become known, in time order; the model itself is not fitted again."""
        check_is_fitted(self)
        bounds = interval_bounds(self.estimator_, X, self.calibrator_.coverage)
        self.calibrator_.update(bounds[:, 0], bounds[:, 1], y)
        return self


def _rows(X: Any, first: int, last: int) -> Any:
    return X.iloc[first:last] if hasattr(X, "iloc") else X[first:last]
