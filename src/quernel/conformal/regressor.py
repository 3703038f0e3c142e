"""ConformalQuantileRegressor: prediction intervals of guaranteed coverage, whether or not the model is right."""

from __future__ import annotations

from functools import partial
from numbers import Integral
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import _safe_indexing, get_tags, indexable
from sklearn.utils.validation import check_is_fitted

from quernel.conformal.adapters import clone_with_levels, interval_bounds, point_prediction, unwrap_frozen
from quernel.conformal.scores import Scores, min_calibration_rows, score_level
from quernel.conformal.splits import Index, choose_calibration_rows, make_folds
from quernel.conformal.validation import (
    check_parameters,
    check_y_and_weight,
    checkpoint_params,
    resolve_density_ratio,
    resolve_groups,
)
from quernel.data import ArrayRows
from quernel.data.sources import counting
from quernel.estimators.inputs import blockwise, judged, selected, source_of
from quernel.estimators.warnings import warning_as_one
from quernel.features.random import as_generator

Array = NDArray[np.floating]

# Most calibration rows of out-of-core data, where `calibration_size` is a share. The coverage varies with the draw of n
# calibration rows by a standard deviation of at most 0.5 / sqrt(n): a twentieth of a per cent for a million of them.
MOST_CALIBRATING = 1_000_000


class ConformalQuantileRegressor(RegressorMixin, BaseEstimator):
    """Conformalized quantile regression: prediction intervals with finite-sample coverage.

    A quantile model is fitted to training rows. Held-out calibration rows then show by how much its intervals must be
    widened, or may be narrowed. If calibration rows and new rows are exchangeable, a new target lies inside its
    interval with probability `coverage` or more, for any sample size and however bad the model is; a bad model gets
    wide intervals. This coverage is marginal: an average over new rows or, with `groups`, over those of each group.

    Parameters
    ----------
    estimator : quantile regressor or None, default=None
        None is a ``KernelQuantileRegressor`` with the quantile levels of the interval. An estimator whose parameter
        `quantiles` is a single number gets these levels, too. Otherwise anything with
        ``predict_interval(X, coverage=...)``, or with a ``predict(X)`` of shape (n, 2) or more whose outermost columns
        are the bounds. A scikit-learn FrozenEstimator is used as fitted, as with ``method="prefit"``.
    coverage : float, default=0.9
        Probability with which a new target lies inside its interval.
    method : {"split", "cv+", "prefit"}, default="split"
        "split" (split conformal) fits on some rows and calibrates on the others. "cv+" fits one model per fold and
        calibrates each on its held-out fold, so that all rows serve both purposes; it costs as many fits, its guarantee
        is 2 coverage - 1 (less a term of the order of sqrt(folds / n)), and its usual coverage close to `coverage`.
        "prefit" uses a fitted model as it is: all rows given to `fit` calibrate, and the model must not have been
        trained on them.
    symmetric : bool, default=True
        True widens both ends by the same length. False calibrates each end by itself, so that targets lie below and
        above the interval in at most (1 - coverage) / 2 of the rows each; intervals are somewhat wider.
    calibration_size : float or int, default=0.25
        Share or number of calibration rows, for "split".
    time_ordered : bool, default=False
        True calibrates on the last rows, for rows in order of time (with "split"). Nothing is shuffled.
    cv : int, scikit-learn splitter or iterable, default=5
        Folds for "cv+". An integer is a shuffled KFold. Splitters are given all rows, also those of weight 0, and the
        `groups` of `fit`; (train, test) pairs of index arrays are positions among all rows.
    random_state : int, RandomState, Generator or None, default=None
        Seed of the choice of calibration rows or folds, and of the random features of the default estimator. Pass an
        int for reproducible results.

    Attributes
    ----------
    estimators_ : list of fitted models
        One, or one per fold for "cv+".
    calibration_ : dict from group label to its conformity scores
        The only key is None without groups.
    n_calibration_ : int
        Number of calibration rows.
    coverage_, symmetric_ : float, bool
        The parameters at the time of `fit`: `set_params` changes no interval before the next fit.
    n_features_in_, feature_names_in_ : int, array of str
        As in scikit-learn, where the model has them.

    Notes
    -----
    `fit` raises if there are too few calibration rows for the coverage, and says how many it takes. With a
    `density_ratio` that depends on the new row: where its own weight is too large, its interval is infinite.

    References
    ----------
    Y. Romano, E. Patterson, E. Candes (2019). Conformalized quantile regression. NeurIPS 32.

    R. J. Tibshirani, R. F. Barber, E. Candes, A. Ramdas (2019). Conformal prediction under covariate shift. NeurIPS 32.

    R. F. Barber, E. Candes, A. Ramdas, R. J. Tibshirani (2021). Predictive inference with the jackknife+. Annals of
    Statistics 49(1), 486-507.

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
        """Fit the model on the training rows and calibrate it on the others.

        Parameters
        ----------
        X : array-like or data frame of shape (n, d), whatever the estimator takes
            Or out-of-core data, for estimators that take them, with ``method="split"`` or "prefit": an object of
            `quernel.data`, which holds the target and the weights itself, or a Dask collection. A `calibration_size`
            that is a share then stands for a million rows at most. Weights apply to the fit only.
        y : array-like of shape (n,)
        sample_weight : array-like of shape (n,) or None
            Passed to the estimator's `fit`. Calibration rows are not weighted by it; rows of weight 0 are left out of
            both training and calibration.
        groups : array-like of shape (n,), function of X, or None
            Labels. Each group is calibrated by itself, so that the coverage holds in each (Mondrian conformal
            prediction).
        density_ratio : array-like of shape (n,), function of X, or None
            p_new(x) / p_train(x) up to a constant factor, where p_new is the density of the rows to predict and p_train
            that of the rows given here: weights of the calibration rows under covariate shift.
        checkpoint : path or None
            Passed to the estimator's `fit`, with ``method="split"``: an interrupted fit resumes from this file.

        Returns
        -------
        self
        """
        prefit = check_parameters(self)
        fit_params = checkpoint_params(self, checkpoint, prefit)
        source = source_of(X, y, sample_weight)
        if source is not None and not isinstance(source, ArrayRows):
            return self._fit_out_of_core(source, prefit, groups, density_ratio, fit_params)
        if source is not None:
            X, y, sample_weight = source.X, source.y, source.weight
        (X,) = indexable(X)
        y, weight = check_y_and_weight(self, X, y, sample_weight, prefit)
        labels, ratio = resolve_groups(groups, X), resolve_density_ratio(density_ratio, X)
        self._groups, self._ratio = _remember_argument(groups), _remember_argument(density_ratio)
        positive = np.ones(len(y), dtype=bool) if weight is None else weight > 0
        splits = self._split(X, y, positive, labels, prefit)  # before rows of weight 0 go: splitters count all rows
        if weight is not None and not positive.all():
            X, y = _safe_indexing(X, np.flatnonzero(positive)), y[positive]
            weight, ratio = weight[positive], ratio[positive]
            labels = None if labels is None else labels[positive]
        # Too few calibration rows are an error before anything is fitted.
        rows = np.concatenate([test for _, test in splits])
        positions = self._group_positions(labels, ratio, rows)
        self.estimators_ = [
            self.estimator if prefit else self._fit_clone(X, y, weight, train, fit_params) for train, _ in splits
        ]
        with warning_as_one():
            bounds = [
                interval_bounds(model, _safe_indexing(X, test), self.coverage)
                for model, (_, test) in zip(self.estimators_, splits, strict=True)
            ]
        fold = np.repeat(np.arange(len(splits)), [len(test) for _, test in splits])
        scores = Scores.from_predictions(np.concatenate(bounds), y[rows], fold, ratio[rows], symmetric=self.symmetric)
        return self._store_scores(scores, positions)

    def _store_scores(self, scores: Scores, positions: dict[Any, Index]) -> Self:
        """Set the fitted attributes of the calibration; `positions` are those of each group among the scores."""
        self.calibration_ = {label: scores.take(index) for label, index in positions.items()}
        self.n_calibration_ = len(scores.weight)
        self.coverage_, self.symmetric_ = self.coverage, self.symmetric
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimators_[0], name):
                setattr(self, name, getattr(self.estimators_[0], name))
        return self

    def _fit_out_of_core(
        self, source: Any, prefit: bool, groups: Any, density_ratio: Any, fit_params: dict[str, Any]
    ) -> Self:
        """Split conformal (or prefit) on out-of-core data, where both parts are masks of one source."""
        for name, given in (("groups", groups), ("density_ratio", density_ratio)):
            if given is not None:
                raise ValueError(
                    f"{name} was given, which is for rows in memory. Leave it out, or calibrate on arrays with "
                    "method='prefit'."
                )
        if self.method == "cv+":
            raise ValueError("method='cv+' is for rows in memory. Use method='split' for rows of files and of Dask.")
        self._groups = self._ratio = None
        positive, rng = counting(source), as_generator(self.random_state)
        rows = np.flatnonzero(positive)
        if not prefit:
            size, n = self.calibration_size, len(rows)
            size = MOST_CALIBRATING if not isinstance(size, Integral) and size * n > MOST_CALIBRATING else size
            rows = rows[choose_calibration_rows(n, size, last=self.time_ordered, groups=None, rng=rng)]
        self._group_positions(None, np.ones(len(positive)), rows)  # raises if there are too few
        held_out = np.zeros(len(positive), dtype=bool)
        held_out[rows] = True
        if prefit:
            self.estimators_ = [self.estimator]
        else:
            model = clone_with_levels(self.estimator, self.coverage, self.random_state)
            self.estimators_ = [model.fit(selected(source, positive & ~held_out), **fit_params)]
        predict_bounds = partial(interval_bounds, self.estimators_[0], coverage=self.coverage)
        bounds, y = judged(predict_bounds, selected(source, held_out))
        fold, weight = np.zeros(len(y), dtype=np.intp), np.ones(len(y))
        scores = Scores.from_predictions(bounds, y, fold, weight, symmetric=self.symmetric)
        return self._store_scores(scores, {None: np.arange(len(y))})

    @blockwise
    def predict_interval(self, X: Any, *, groups: Any = None, density_ratio: Any = None) -> Array:
        """Predict the calibrated interval of each row.

        Parameters
        ----------
        X : array-like or data frame of shape (n, d), a Dask collection, or an object of `quernel.data`
        groups, density_ratio : array-like of shape (n,)
            Those of the new rows, if `fit` was given arrays. Functions given to `fit` are applied to X.

        Returns
        -------
        array of shape (n, 2), lower and upper bounds
        """
        check_is_fitted(self)
        labels = resolve_groups(_resolve_argument("groups", groups, self._groups), X)
        own = resolve_density_ratio(_resolve_argument("density_ratio", density_ratio, self._ratio), X)
        with warning_as_one():
            bounds = np.stack([interval_bounds(model, X, self.coverage_) for model in self.estimators_])
        if labels is None:
            return self.calibration_[None].interval(bounds, own, self._score_level)
        interval = np.empty((len(own), 2))
        for label in np.unique(labels).tolist():
            if label not in self.calibration_:
                known = ", ".join(map(repr, self.calibration_))
                raise ValueError(f"Group {label!r} was not calibrated; known groups are {known}. Fit with rows of it.")
            rows = np.flatnonzero(labels == label)
            interval[rows] = self.calibration_[label].interval(bounds[:, rows], own[rows], self._score_level)
        return interval

    @blockwise
    def predict(self, X: Any) -> Array:
        """Predict the median of each row, shape (n,): the mean over the fitted models.

        It is the model's own, not calibrated; a model that predicts no median gives the midpoint of its interval.
        """
        check_is_fitted(self)
        with warning_as_one():
            return np.mean([point_prediction(model, X, self.coverage_) for model in self.estimators_], axis=0)

    @property
    def _score_level(self) -> float:
        """Level of the conformal quantile at each bound."""
        return score_level(self.coverage_, self.symmetric_)

    def _split(
        self, X: Any, y: Array, positive: NDArray[np.bool_], labels: Any, prefit: bool
    ) -> list[tuple[Index, Index]]:
        """Return (training rows, calibration rows) of each model, as positions among the rows of positive weight."""
        n, rng = int(positive.sum()), as_generator(self.random_state)
        everything = np.arange(n)
        if prefit:
            return [(everything[:0], everything)]
        if self.method == "cv+":
            return make_folds(self.cv, X, y, positive, labels, rng)
        groups = None if labels is None else labels[positive]
        rows = choose_calibration_rows(n, self.calibration_size, last=self.time_ordered, groups=groups, rng=rng)
        return [(np.setdiff1d(everything, rows), rows)]

    def _group_positions(self, labels: Any, ratio: Array, rows: Index) -> dict[Any, Index]:
        """Return the positions of each group among the calibration rows; raise if a group has too few.

        labels and ratio have shape (n,), None for no groups; rows are the calibration rows among the n.
        """
        needed = min_calibration_rows(score_level(self.coverage, self.symmetric))
        positions: dict[Any, Index] = {None: np.arange(len(rows))}
        if labels is not None:
            positions = {label: np.flatnonzero(labels[rows] == label) for label in np.unique(labels).tolist()}
        for label, index in positions.items():
            where = "" if labels is None else f" of group {label!r}"
            if len(index) < needed:
                each = "" if self.symmetric else " with both ends calibrated by themselves"
                raise ValueError(
                    f"A coverage of {self.coverage:g}{each} needs at least {needed} calibration rows{where}; there are "
                    f"{len(index)}. Give more rows, calibrate with more of them (calibration_size, or method='cv+'), "
                    "or ask for less coverage."
                )
            if not ratio[rows[index]].any():
                raise ValueError(
                    f"density_ratio is zero for every calibration row{where}: they say nothing. Give more."
                )
        return positions

    def _fit_clone(self, X: Any, y: Array, weight: Array | None, rows: Index, fit_params: dict[str, Any]) -> Any:
        """Clone the estimator and fit it to these rows."""
        model = clone_with_levels(self.estimator, self.coverage, self.random_state)
        weight_params = {} if weight is None else {"sample_weight": weight[rows]}
        return model.fit(_safe_indexing(X, rows), y[rows], **weight_params, **fit_params)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = unwrap_frozen(self.estimator)
        if hasattr(inner, "__sklearn_tags__"):  # a TableModel is fitted already, and no estimator
            tags.input_tags = get_tags(inner).input_tags
        tags.regressor_tags.poor_score = True  # the model is trained on a part of the rows
        return tags


def _remember_argument(given: Any) -> Any:
    """What to store of `groups` or `density_ratio`: None, the function, or True for an array.

    New rows need the function itself; of an array only the fact that one must be given for them, too.
    """
    return given if given is None or callable(given) else True


def _resolve_argument(name: str, given: Any, fitted: Any) -> Any:
    """Return what `predict_interval` was given or, failing that, the function that `fit` was given.

    `fitted` is what `_remember_argument` stored. Raise if this call was given the argument and `fit` was not, or
    if `fit` was given an array and this call nothing.
    """
    if fitted is None and given is not None:
        raise ValueError(f"{name} was not given to fit, so nothing was calibrated by it. Leave it out or fit anew.")
    if given is None and fitted is not None and not callable(fitted):
        raise ValueError(f"fit was given {name} of its rows: give those of the new rows, too ({name}=...).")
    return fitted if given is None else given
