"""Metrics of probabilistic forecasts: of predicted quantiles, of prediction intervals and of whole distributions.

=================  =========================================================  ==========================
`pinball_loss`     proper score of one quantile level                         lower is better
`crps`             proper score of the distribution, from many levels         lower is better
`interval_score`   proper score of a central prediction interval              lower is better
`coverage`         share of targets inside the interval                       compare with the nominal
`crossing_rate`    share of rows whose quantiles are not in order             0 is best
=================  =========================================================  ==========================

`make_scorer` makes scorers of them for cross-validation and grid searches of scikit-learn.

As in `sklearn.metrics`, the arguments are ``y_true, y_pred`` and an optional ``sample_weight``. The scores that take
weights are weighted means over rows, ``sum_i w_i s_i / sum_i w_i``. Levels run along the columns: a scalar level goes
with predictions of shape (n,), a sequence of q levels with (n, q), also for q = 1.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeAlias, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quernel._validation import check_weight_sum

__all__ = ["coverage", "crossing_rate", "crps", "interval_score", "make_scorer", "pinball_loss"]

Floats: TypeAlias = NDArray[np.float64]

SCORERS = ("pinball", "crps", "interval_score", "coverage")
# Levels of the scorer "crps" for models that predict any level.
CRPS_LEVELS = tuple((np.arange(1, 100) / 100).tolist())


@overload
def pinball_loss(
    y_true: ArrayLike, y_pred: ArrayLike, quantiles: float, *, sample_weight: ArrayLike | None = None
) -> float: ...


@overload
def pinball_loss(
    y_true: ArrayLike,
    y_pred: ArrayLike,
    quantiles: Sequence[float] | NDArray[np.floating],
    *,
    sample_weight: ArrayLike | None = None,
) -> Floats: ...


def pinball_loss(
    y_true: ArrayLike,
    y_pred: ArrayLike,
    quantiles: float | Sequence[float] | NDArray[np.floating],
    *,
    sample_weight: ArrayLike | None = None,
) -> float | Floats:
    """Mean pinball loss of predicted quantiles: the mean of  max(tau r_i, (tau - 1) r_i),  r_i = y_i - prediction_i.

    Its expectation is smallest at the true quantile; at tau = 0.5 it is half the mean absolute error.

    Parameters
    ----------
    y_true : array of shape (n,)
    y_pred : array of shape (n,) for one scalar level, (n, q) for a sequence of q levels
    quantiles : level or sequence of levels, each strictly between 0 and 1
    sample_weight : array of shape (n,), optional

    Returns
    -------
    float for a scalar level, ndarray of shape (q,) for a sequence
        One loss per level, in the units of y. Lower is better.

    Examples
    --------
    >>> pinball_loss([1.0, 2.0], [0.0, 4.0], 0.5)
    0.75
    """
    loss, weight, _ = _pinball(y_true, y_pred, quantiles, sample_weight)
    means = _mean(loss, weight)
    return float(means[0]) if np.ndim(quantiles) == 0 else means


def crps(
    y_true: ArrayLike,
    y_pred: ArrayLike,
    quantiles: float | Sequence[float] | NDArray[np.floating],
    *,
    sample_weight: ArrayLike | None = None,
) -> float:
    """Continuous ranked probability score:  2 * integral over tau in (0, 1) of the pinball loss at tau.

    The integral is approximated by a sum over the given levels, in which each level represents those nearest to it:

        crps = 2 sum_k c_k pinball(tau_k),      c_k = (tau_{k+1} - tau_{k-1}) / 2,

    where the first cell starts at 0 and the last ends at 1. This is the trapezoid rule between the outer levels, with
    the loss held constant outside them. The c_k are positive and sum to one, so the score is proper for the quantiles
    that are given; a point forecast scores its absolute error when the levels are symmetric about 1/2. For a normal
    distribution and the 99 levels 0.01, ..., 0.99 the expected score is within 0.1 % of the exact one.

    Parameters
    ----------
    y_true : array of shape (n,)
    y_pred : array of shape (n, q), or (n,) for one scalar level
    quantiles : levels in strictly ascending order, each strictly between 0 and 1
    sample_weight : array of shape (n,), optional

    Returns
    -------
    float, in the units of y. Lower is better.
    """
    loss, weight, levels = _pinball(y_true, y_pred, quantiles, sample_weight)
    if np.any(np.diff(levels) <= 0):
        raise ValueError(
            f"crps integrates over the levels, so quantiles must be strictly ascending; got {levels.tolist()}. "
            "Sort the levels and the columns of y_pred together, and drop repeated levels."
        )
    edges = np.concatenate([[0.0], (levels[1:] + levels[:-1]) / 2, [1.0]])
    return float(2 * np.diff(edges) @ _mean(loss, weight))


def coverage(y_true: ArrayLike, lower: ArrayLike, upper: ArrayLike, *, sample_weight: ArrayLike | None = None) -> float:
    """Empirical coverage of prediction intervals: the weighted share of rows with  lower_i <= y_i <= upper_i.

    Compare the result with the nominal coverage of the intervals.

    Parameters
    ----------
    y_true : array of shape (n,)
    lower, upper : arrays of shape (n,)
        Bounds, which belong to the interval; they may be infinite.
    sample_weight : array of shape (n,), optional

    Examples
    --------
    >>> coverage([1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 0.0, 0.0], [2.0, 2.0, 3.5, 3.5])
    0.75
    """
    y, low, high = _interval(y_true, lower, upper)
    return float(_mean((low <= y) & (y <= high), _weights(sample_weight, len(y))))


def interval_score(
    y_true: ArrayLike,
    lower: ArrayLike,
    upper: ArrayLike,
    coverage: float = 0.9,
    *,
    sample_weight: ArrayLike | None = None,
) -> float:
    """Interval score: the mean of  (u - l) + 2/(1 - coverage) * (max(l - y, 0) + max(y - u, 0)).

    The score of Winkler (1972) and of Gneiting and Raftery (2007, eq. 43) for a central interval [l, u]: its width,
    plus a penalty for each miss. Quantiles at (1 - coverage)/2 and (1 + coverage)/2 minimise its expectation, and it
    equals 2/(1 - coverage) times the sum of their two pinball losses.

    Parameters
    ----------
    y_true : array of shape (n,)
    lower, upper : arrays of shape (n,)
        An infinite bound makes the score infinite.
    coverage : float, default=0.9
        Nominal coverage of the intervals, strictly between 0 and 1.
    sample_weight : array of shape (n,), optional

    Returns
    -------
    float, in the units of y. Lower is better.
    """
    if not (np.ndim(coverage) == 0 and 0 < coverage < 1):
        raise ValueError(f"coverage must be one number strictly between 0 and 1; got {coverage!r}. Use 0.9 for 90 %.")
    y, low, high = _interval(y_true, lower, upper)
    misses = np.maximum(low - y, 0) + np.maximum(y - high, 0)
    return float(_mean(high - low + 2 / (1 - coverage) * misses, _weights(sample_weight, len(y))))


def crossing_rate(y_pred: ArrayLike, *, tolerance: float = 0.0) -> float:
    """Quantile crossing: the share of rows with  y_pred[i, k+1] < y_pred[i, k] - tolerance  for some k.

    Parameters
    ----------
    y_pred : array of shape (n, q), columns in ascending order of their levels
    tolerance : decrease that is ignored, in the units of y

    Returns
    -------
    float between 0 and 1; 0 means that no quantiles cross.
    """
    curves = _array("y_pred", y_pred, finite=False)
    if curves.ndim != 2:
        raise ValueError(
            f"y_pred must have shape (n, q), one column per level; got shape {curves.shape}. "
            "Predict a sequence of levels to get columns."
        )
    if not tolerance >= 0:
        raise ValueError(f"tolerance must be 0 or more; got {tolerance!r}. Give the decrease that you forgive.")
    return float(np.mean(np.any(curves[:, 1:] < curves[:, :-1] - tolerance, axis=1)))


@dataclass(frozen=True)
class QuantileScorer:
    """Scorer of a fitted model of quantiles, for `scoring` of scikit-learn; see `make_scorer`."""

    name: str
    quantiles: float | tuple[float, ...] | None = None
    nominal: float = 0.9

    def __call__(self, estimator: Any, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Score of a model on these rows; higher is better."""
        y = np.asarray(y, dtype=np.float64)
        estimator = getattr(estimator, "best_estimator_", estimator)  # searches pass on nothing but X
        if self.name in ("interval_score", "coverage"):
            lower, upper = _predict_interval(estimator, X, self.nominal).T
            if self.name == "coverage":
                return -abs(coverage(y, lower, upper, sample_weight=sample_weight) - self.nominal)
            return -interval_score(y, lower, upper, self.nominal, sample_weight=sample_weight)
        levels = self._find_levels(estimator)
        curves = _predict_quantiles(estimator, X, levels)
        if self.name == "crps":
            return -crps(y, curves, levels, sample_weight=sample_weight)
        return -float(np.mean(pinball_loss(y, curves, levels, sample_weight=sample_weight)))

    def _find_levels(self, estimator: Any) -> Floats:
        """The levels to predict, ascending: those given, or those of the model."""
        wanted: Any = self.quantiles
        if wanted is None:
            inner = _unwrap(estimator)
            wanted = getattr(inner, "quantiles_", 0.5)
            if self.name == "crps" and (hasattr(inner, "parts_") or not hasattr(inner, "quantiles_")):
                widest = getattr(inner, "coverage_", 1.0) + 1e-9  # calibration rows may be too few for more
                wanted = [level for level in CRPS_LEVELS if abs(2 * level - 1) <= widest]
        return np.unique(np.atleast_1d(_levels(wanted)))


def make_scorer(
    name: str, *, quantiles: float | Sequence[float] | None = None, coverage: float = 0.9
) -> QuantileScorer:
    """Scorer for cross-validation of models of quantiles; higher is better, as scikit-learn has it.

    Parameters
    ----------
    name : {"pinball", "crps", "interval_score", "coverage"}
        "pinball" is minus the mean pinball loss over the levels, "crps" minus the continuous ranked probability score,
        "interval_score" minus the interval score, and "coverage" minus the distance of the observed coverage from the
        nominal one: 0 is best, and -0.03 is off by three points, in either direction.
    quantiles : level, sequence of levels or None
        Levels of "pinball" and "crps". None is those of the model, or the median of one that has none; for "crps" of
        models that predict any level, 0.01, ..., 0.99, as far as calibrated intervals reach.
    coverage : float, default=0.9
        Nominal coverage of the central intervals of "interval_score" and "coverage".

    Returns
    -------
    callable (estimator, X, y, sample_weight=None) -> float
        For `scoring` of `cross_val_score`, `GridSearchCV` and the like. The estimator is any of quernel's models of
        quantiles, alone, in a pipeline or in a search, or another one with ``predict(X, quantiles=...)``.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.model_selection import cross_val_score
    >>> from quernel import KernelQuantileRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(size=(200, 1))
    >>> model = KernelQuantileRegressor([0.1, 0.5, 0.9], n_components=20, random_state=0)
    >>> scorer = make_scorer("interval_score", coverage=0.8)
    >>> bool(np.all(cross_val_score(model, X, X[:, 0] + rng.normal(size=200), scoring=scorer) < -2))
    True
    """
    if name not in SCORERS:
        close = get_close_matches(str(name), SCORERS, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"There is no scorer {name!r}; choose one of {', '.join(map(repr, SCORERS))}.{hint}")
    if not (np.ndim(coverage) == 0 and 0 < coverage < 1):
        raise ValueError(f"coverage must be one number strictly between 0 and 1; got {coverage!r}. Use 0.9 for 90 %.")
    levels = None if quantiles is None else tuple(np.atleast_1d(_levels(quantiles)).tolist())
    if levels is not None and name in ("interval_score", "coverage"):
        raise ValueError(f"The scorer {name!r} is of intervals: give coverage, not quantiles.")
    return QuantileScorer(name, levels, float(coverage))


def _unwrap(estimator: Any) -> Any:
    """The model inside pipelines and frozen estimators."""
    while True:
        if hasattr(estimator, "steps"):
            estimator = estimator.steps[-1][1]
        elif hasattr(estimator, "estimator") and not hasattr(estimator, "estimators_"):  # a FrozenEstimator
            estimator = estimator.estimator
        else:
            return estimator


def _takes_quantiles(estimator: Any) -> bool:
    """Whether `predict` has a parameter `quantiles`; that of the model inside, if it passes on what it is given."""
    predict = getattr(_unwrap(estimator), "predict", None)
    return predict is not None and "quantiles" in inspect.signature(predict).parameters


def _predict_quantiles(estimator: Any, X: Any, levels: Floats) -> Floats:
    """Quantiles at these levels, (n, q); a model of intervals alone gives their bounds, and its median."""
    if _takes_quantiles(estimator):
        return np.asarray(estimator.predict(X, quantiles=levels.tolist()), dtype=np.float64).reshape(-1, len(levels))
    if not hasattr(estimator, "predict_interval"):
        raise ValueError(
            f"{type(_unwrap(estimator)).__name__} predicts no quantiles: this scorer needs predict(X, quantiles=...) "
            "or predict_interval(X, coverage=...)."
        )
    curves = [
        np.asarray(estimator.predict(X), dtype=np.float64)
        if level == 0.5
        else _predict_interval(estimator, X, round(abs(1 - 2 * level), 12))[:, int(level > 0.5)]
        for level in levels.tolist()
    ]
    return np.column_stack(curves)


def _predict_interval(estimator: Any, X: Any, nominal: float) -> Floats:
    """Central intervals of a nominal coverage, (n, 2)."""
    if hasattr(estimator, "predict_interval"):
        return np.asarray(estimator.predict_interval(X, coverage=nominal), dtype=np.float64)
    tail = round((1 - nominal) / 2, 12)
    return _predict_quantiles(estimator, X, np.array([tail, 1 - tail]))


def _pinball(
    y_true: ArrayLike, y_pred: ArrayLike, quantiles: ArrayLike, sample_weight: ArrayLike | None
) -> tuple[Floats, Floats, Floats]:
    """Check the arguments; return the pointwise losses (n, q), the weights (n,) and the levels (q,)."""
    levels = _levels(quantiles)
    y = _column("y_true", y_true)
    prediction = _array("y_pred", y_pred)
    expected = y.shape if levels.ndim == 0 else (len(y), len(levels))
    if prediction.shape != expected:
        asked = "a scalar level" if levels.ndim == 0 else f"a sequence of {len(levels)} level(s)"
        raise ValueError(
            f"y_pred must have shape {expected} for {len(y)} rows and {asked}; got shape {prediction.shape}. "
            "Give shape (n,) with a scalar level, or one column per level."
        )
    levels = np.atleast_1d(levels)
    residual = y[:, None] - prediction.reshape(len(y), len(levels))
    return np.maximum(levels * residual, (levels - 1) * residual), _weights(sample_weight, len(y)), levels


def _interval(y_true: ArrayLike, lower: ArrayLike, upper: ArrayLike) -> tuple[Floats, Floats, Floats]:
    """Check y and its bounds; return all three as arrays of shape (n,)."""
    y = _column("y_true", y_true)
    low, high = (_column(name, bound, finite=False) for name, bound in (("lower", lower), ("upper", upper)))
    for name, bound in (("lower", low), ("upper", high)):
        if bound.shape != y.shape:
            raise ValueError(
                f"{name} must have one bound per row of y_true, shape {y.shape}; got shape {bound.shape}. "
                "Predict the interval on the rows that y_true belongs to."
            )
    # An interval from +inf or to -inf holds no number, and its width would be inf - inf.
    bad = (low > high) | (low == np.inf) | (high == -np.inf)
    if np.any(bad):
        row = int(np.argmax(bad))
        raise ValueError(
            f"lower must not exceed upper; {int(bad.sum())} row(s) do, first row {row} with lower={low[row]:g}, "
            f"upper={high[row]:g}. Swap the bounds, or rearrange crossing quantiles first."
        )
    return y, low, high


def _mean(values: ArrayLike, weight: Floats) -> Floats:
    """sum_i w_i values_i / sum_i w_i  over the first axis."""
    used = weight > 0  # rows of weight zero are ignored even where their score is infinite: 0 * inf would be NaN
    return np.asarray(weight[used] @ np.asarray(values, dtype=np.float64)[used] / weight.sum())


def _levels(quantiles: ArrayLike) -> Floats:
    """The quantile levels as an array of shape () or (q,), if they are valid."""
    levels = np.asarray(quantiles, dtype=np.float64)
    if levels.ndim > 1 or levels.size == 0:
        raise ValueError(f"quantiles must be one level or a flat sequence of levels; got shape {levels.shape}.")
    if not np.all((levels > 0) & (levels < 1)):
        raise ValueError(
            f"quantiles must lie strictly between 0 and 1; got {levels.tolist()}. Write 90 % as 0.9, for example."
        )
    return levels


def _weights(sample_weight: ArrayLike | None, n: int) -> Floats:
    """The weights as an array of shape (n,), if they are valid; ones for None."""
    if sample_weight is None:
        return np.ones(n)
    weight = _column("sample_weight", sample_weight)
    if weight.shape != (n,):
        raise ValueError(f"sample_weight must have one weight per row, shape ({n},); got shape {weight.shape}.")
    if np.any(weight < 0):
        raise ValueError(
            f"sample_weight must not be negative; got a smallest weight of {weight.min():g}. "
            "Give 0 to the rows that should not count."
        )
    if not np.any(weight > 0):
        raise ValueError(f"sample_weight is zero on all {n} rows, so no mean exists. Give some row a positive weight.")
    with np.errstate(over="ignore"):
        total = float(weight.sum())
    check_weight_sum("sample_weight", total, float(weight.max()))
    return weight


def _column(name: str, values: ArrayLike, *, finite: bool = True) -> Floats:
    """A one-dimensional argument as an array of shape (n,)."""
    array = _array(name, values, finite=finite)
    if array.ndim != 1:
        raise ValueError(f"{name} must have shape (n,); got shape {array.shape}. Pass one column, e.g. with ravel().")
    return array


def _array(name: str, values: ArrayLike, *, finite: bool = True) -> Floats:
    """An argument as a float64 array that is not empty and has no NaN, nor infinite values if `finite`."""
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        raise ValueError(f"{name} is empty, shape {array.shape}; a mean needs at least one row.")
    bad = ~np.isfinite(array) if finite else np.isnan(array)
    if np.any(bad):
        kind = "NaN or infinite values" if finite else "NaN"
        raise ValueError(f"{name} contains {kind} in {int(bad.sum())} place(s). Drop or fill these rows first.")
    return array
