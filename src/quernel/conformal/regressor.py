"""ConformalQuantileRegressor: intervals with a coverage that does not rest on the model being right."""

from __future__ import annotations

from functools import partial
from numbers import Integral
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import _safe_indexing, get_tags, indexable
from sklearn.utils.validation import check_is_fitted

from quernel.conformal.adapters import ends, middle, unwrap_frozen, with_levels
from quernel.conformal.scores import Scores, level_of, rows_needed
from quernel.conformal.splits import Index, calibration_rows, folds
from quernel.conformal.validation import check_parameters, check_rows, checked_checkpoint, group_of, ratio_of
from quernel.data import ArrayRows
from quernel.data.sources import counting
from quernel.estimators.extrapolation import warning_as_one
from quernel.estimators.inputs import judged, selected, source_of
from quernel.estimators.out_of_core_predict import blockwise
from quernel.features.random import as_generator

Array = NDArray[np.floating]

# Of rows that are not in memory no larger share calibrates: the coverage is then known to a twentieth of a percent.
MOST_CALIBRATING = 1_000_000


class ConformalQuantileRegressor(RegressorMixin, BaseEstimator):
    """Conformalised quantile regression: intervals that hold new targets with the promised probability.

    Some rows fit a model of quantiles, others tell by how much its intervals must be widened (or may be narrowed).
    If calibration rows and new rows are exchangeable, a new target lies inside with probability `coverage` or more, for
    any number of rows and however bad the model is; a bad model gets wide intervals. The promise is about the average
    over new rows, or over those of each group.

    Parameters
    ----------
    estimator : model of quantiles or None, default=None
        None is ``KernelQuantileRegressor`` with the levels of the interval, and so is any estimator whose parameter
        `quantiles` is a single number. Otherwise anything with ``predict_interval(X, coverage=...)``, or with a
        ``predict(X)`` of shape (n, 2) or more whose outermost columns are the ends. A FrozenEstimator of scikit-learn
        is taken as fitted, as with ``method="prefit"``.
    coverage : float, default=0.9
        The probability with which a new target must lie inside.
    method : {"split", "cv+", "prefit"}, default="split"
        "split" fits on some rows and calibrates on the others. "cv+" fits one model for each fold and calibrates each
        on the rows it has not seen, so that all rows do both; it costs as many fits, its guarantee is
        2 coverage - 1 (less a term of the order of sqrt(folds / n)), and its usual coverage close to `coverage`.
        "prefit" takes a fitted model as it is: all rows given to `fit`, which the model must not have seen, calibrate.
    symmetric : bool, default=True
        True moves both ends by the same length. False calibrates each end by itself, so that targets fall out below and
        above equally often, each in at most (1 - coverage) / 2 of the rows; intervals are somewhat wider.
    calibration_size : float or int, default=0.25
        Share or number of rows that calibrate, for "split".
    time_ordered : bool, default=False
        True calibrates on the last rows, for rows in order of time (with "split"). Nothing is shuffled.
    cv : int, scikit-learn splitter or iterable, default=5
        Folds for "cv+". An integer shuffles the rows. Splitters see all rows, also those of weight 0, and the `groups`
        of `fit`; (train, test) pairs of index arrays are positions among all rows.
    random_state : int, RandomState, Generator or None, default=None
        Which rows calibrate, and the features of the default estimator. An integer makes it repeatable.

    Attributes
    ----------
    estimators_ : list of the fitted models, one, or one per fold for "cv+"
    calibration_ : dict from group (None, without groups) to its calibration scores
    n_calibration_ : int, the number of rows that calibrated
    coverage_, symmetric_ : as given when it was fitted
        Setting the parameters anew changes no interval before the next fit.
    n_features_in_, feature_names_in_ : as in scikit-learn, where the model has them

    Notes
    -----
    A coverage that so few calibration rows cannot promise is refused by `fit`, which says how many it takes. With a
    `density_ratio` that depends on the new row: where its own weight is too large, its interval is infinite.

    Examples
    --------
    >>> import numpy as np
    >>> from quernel import ConformalQuantileRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(0, 10, (800, 1))
    >>> y = np.sin(X[:, 0]) + (0.1 + 0.05 * X[:, 0]) * rng.standard_normal(800)
    >>> model = ConformalQuantileRegressor(coverage=0.9, random_state=0).fit(X[:600], y[:600])
    >>> low, high = model.predict_interval(X[600:]).T
    >>> bool(np.mean((low <= y[600:]) & (y[600:] <= high)) > 0.85)
    True
    """

    def __init__(
        self,
        estimator: Any = None,
        coverage: float = 0.9,
        *,
        method: str = "split",
        symmetric: bool = True,
        calibration_size: float = 0.25,
        time_ordered: bool = False,
        cv: Any = 5,
        random_state: Any = None,
    ) -> None:
        self.estimator = estimator
        self.coverage = coverage
        self.method = method
        self.symmetric = symmetric
        self.calibration_size = calibration_size
        self.time_ordered = time_ordered
        self.cv = cv
        self.random_state = random_state

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: ArrayLike | None = None,
        *,
        groups: Any = None,
        density_ratio: Any = None,
        checkpoint: Any = None,
    ) -> Self:
        """Fit the model on some of the rows and calibrate it on the others.

        Parameters
        ----------
        X : table of shape (n, d), whatever the estimator takes
            Or rows with their target, an object of `quernel.data`, without y and sample_weight; or a Dask collection:
            with ``method="split"`` or "prefit", for estimators that take them. A share of them that calibrates is then
            no more than a million rows. Their weights weigh the fit only.
        y : array-like of shape (n,)
        sample_weight : array-like of shape (n,) or None
            Handed to the estimator. It does not weigh calibration rows; a row of weight 0 is left out of both.
        groups : array-like of shape (n,), function of X, or None
            Labels. Each group is calibrated by itself, so that the coverage holds in each.
        density_ratio : array-like of shape (n,), function of X, or None
            How much more likely such a row is where intervals are wanted than here, up to a constant: weights of the
            calibration rows under covariate shift.
        checkpoint : path or None
            Handed to the estimator, with ``method="split"``: an interrupted fit goes on from this file.
        """
        prefit = check_parameters(self)
        more = checked_checkpoint(self, checkpoint, prefit)
        source = source_of(X, y, sample_weight)
        if source is not None and not isinstance(source, ArrayRows):
            return self._fit_far(source, prefit, groups, density_ratio, more)
        if source is not None:
            X, y, sample_weight = source.X, source.y, source.weight
        (X,) = indexable(X)
        y, weight = check_rows(self, X, y, sample_weight, prefit)
        labels, ratio = group_of(groups, X), ratio_of(density_ratio, X)
        self._groups, self._ratio = _kept(groups), _kept(density_ratio)
        counts = np.ones(len(y), dtype=bool) if weight is None else weight > 0
        parts = self._parts(X, y, counts, labels, prefit)
        if weight is not None and not counts.all():
            X, y, weight, ratio = _safe_indexing(X, np.flatnonzero(counts)), y[counts], weight[counts], ratio[counts]
            labels = None if labels is None else labels[counts]
        rows = np.concatenate([test for _, test in parts])
        members = self._members(labels, ratio, rows)
        self.estimators_ = [self.estimator if prefit else self._fitted(X, y, weight, train, more) for train, _ in parts]
        with warning_as_one():
            predicted = [
                ends(model, _safe_indexing(X, test), self.coverage)
                for model, (_, test) in zip(self.estimators_, parts, strict=True)
            ]
        number = np.repeat(np.arange(len(parts)), [len(test) for _, test in parts])
        scores = Scores.of(np.concatenate(predicted), y[rows], number, ratio[rows], symmetric=self.symmetric)
        return self._keep(scores, members)

    def _keep(self, scores: Scores, members: dict[Any, Index]) -> Self:
        self.calibration_ = {label: scores.take(places) for label, places in members.items()}
        self.n_calibration_ = len(scores.weight)
        self.coverage_, self.symmetric_ = self.coverage, self.symmetric
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimators_[0], name):
                setattr(self, name, getattr(self.estimators_[0], name))
        return self

    def _fit_far(self, source: Any, prefit: bool, groups: Any, density_ratio: Any, more: dict[str, Any]) -> Self:
        """Fit on some rows of a source, without the others, and calibrate on these."""
        for name, given in (("groups", groups), ("density_ratio", density_ratio)):
            if given is not None:
                raise ValueError(
                    f"{name} was given, which is for rows in memory. Leave it out, or calibrate on arrays with "
                    "method='prefit'."
                )
        if self.method == "cv+":
            raise ValueError("method='cv+' is for rows in memory. Use method='split' for rows of files and of Dask.")
        self._groups = self._ratio = None
        counts, rng = counting(source), as_generator(self.random_state)
        rows = np.flatnonzero(counts)
        if not prefit:
            size, n = self.calibration_size, len(rows)
            most = MOST_CALIBRATING if not isinstance(size, Integral) and size * n > MOST_CALIBRATING else size
            rows = rows[calibration_rows(n, most, last=self.time_ordered, groups=None, rng=rng)]
        self._members(None, np.ones(len(counts)), rows)  # are there enough?
        held_out = np.zeros(len(counts), dtype=bool)
        held_out[rows] = True
        if prefit:
            self.estimators_ = [self.estimator]
        else:
            model = with_levels(self.estimator, self.coverage, self.random_state)
            self.estimators_ = [model.fit(selected(source, counts & ~held_out), **more)]
        predicted, y = judged(partial(ends, self.estimators_[0], coverage=self.coverage), selected(source, held_out))
        weight = np.ones(len(y))
        scores = Scores.of(predicted, y, np.zeros(len(y), dtype=np.intp), weight, symmetric=self.symmetric)
        return self._keep(scores, {None: np.arange(len(y))})

    @blockwise
    def predict_interval(self, X: Any, *, groups: Any = None, density_ratio: Any = None) -> Array:
        """Lower and upper end of the calibrated interval, shape (n, 2).

        Parameters
        ----------
        X : table of shape (n, d)
        groups, density_ratio : array-like of shape (n,)
            Those of the new rows, if `fit` was given arrays. Functions given to `fit` are applied to X as they are.
        """
        check_is_fitted(self)
        labels = group_of(_known("groups", groups, self._groups), X)
        own = ratio_of(_known("density_ratio", density_ratio, self._ratio), X)
        with warning_as_one():
            predicted = np.stack([ends(model, X, self.coverage_) for model in self.estimators_])
        if labels is None:
            return self.calibration_[None].interval(predicted, own, self._level)
        interval = np.empty((len(own), 2))
        for label in np.unique(labels).tolist():
            if label not in self.calibration_:
                known = ", ".join(map(repr, self.calibration_))
                raise ValueError(f"Group {label!r} was not calibrated; known groups are {known}. Fit with rows of it.")
            rows = np.flatnonzero(labels == label)
            interval[rows] = self.calibration_[label].interval(predicted[:, rows], own[rows], self._level)
        return interval

    @blockwise
    def predict(self, X: Any) -> Array:
        """The median of each row as the model has it, or else the middle of its interval; shape (n,)."""
        check_is_fitted(self)
        with warning_as_one():
            return np.mean([middle(model, X, self.coverage_) for model in self.estimators_], axis=0)

    @property
    def _level(self) -> float:
        """The share of the scores that each end covers."""
        return level_of(self.coverage_, self.symmetric_)

    def _parts(
        self, X: Any, y: Array, counts: NDArray[np.bool_], labels: Any, prefit: bool
    ) -> list[tuple[Index, Index]]:
        """(rows that fit, rows that calibrate) of each model, as positions among the rows that count."""
        n, rng = int(counts.sum()), as_generator(self.random_state)
        everything = np.arange(n)
        if prefit:
            return [(everything[:0], everything)]
        if self.method == "cv+":
            return folds(self.cv, X, y, counts, labels, rng)
        groups = None if labels is None else labels[counts]
        rows = calibration_rows(n, self.calibration_size, last=self.time_ordered, groups=groups, rng=rng)
        return [(np.setdiff1d(everything, rows), rows)]

    def _members(self, labels: Any, ratio: Array, rows: Index) -> dict[Any, Index]:
        """The places of each group among the calibration rows, each of them large enough."""
        needed, members = rows_needed(level_of(self.coverage, self.symmetric)), {None: np.arange(len(rows))}
        if labels is not None:
            members = {label: np.flatnonzero(labels[rows] == label) for label in np.unique(labels).tolist()}
        for label, places in members.items():
            where = "" if labels is None else f" of group {label!r}"
            if len(places) < needed:
                each = "" if self.symmetric else " with both ends calibrated by themselves"
                raise ValueError(
                    f"A coverage of {self.coverage:g}{each} needs at least {needed} calibration rows{where}; there are "
                    f"{len(places)}. Give more rows, calibrate with more of them (calibration_size, or method='cv+'), "
                    "or ask for less coverage."
                )
            if not ratio[rows[places]].any():
                raise ValueError(
                    f"density_ratio is zero for every calibration row{where}: they say nothing. Give more."
                )
        return members

    def _fitted(self, X: Any, y: Array, weight: Array | None, rows: Index, more: dict[str, Any]) -> Any:
        """A new model, fitted on these rows."""
        model = with_levels(self.estimator, self.coverage, self.random_state)
        extra = {} if weight is None else {"sample_weight": weight[rows]}
        return model.fit(_safe_indexing(X, rows), y[rows], **extra, **more)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = unwrap_frozen(self.estimator)
        if hasattr(inner, "__sklearn_tags__"):  # a model of tables is fitted already, and no estimator
            tags.input_tags = get_tags(inner).input_tags
        tags.regressor_tags.poor_score = True  # the model sees a part of the rows
        return tags


def _kept(given: Any) -> Any:
    """What predictions need of a function, which is all of it, or of an array: that there was one."""
    return given if given is None or callable(given) else True


def _known(name: str, given: Any, fitted: Any) -> Any:
    """What is known of new rows: what is given or, where fit was given a function, that."""
    if fitted is None and given is not None:
        raise ValueError(f"{name} was not given to fit, so nothing was calibrated by it. Leave it out or fit anew.")
    if given is None and fitted is not None and not callable(fitted):
        raise ValueError(f"fit was given {name} of its rows: give those of the new rows, too ({name}=...).")
    return fitted if given is None else given
