"""ConformalQuantileRegressor: prediction intervals of guaranteed coverage, whether or not the model is right."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from os import PathLike
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import Tags, _safe_indexing, get_tags
from sklearn.utils.validation import check_is_fitted, has_fit_parameter

from quernel._validation import check_choice, check_flags, check_share, check_weight
from quernel.conformal.adapters import (
    InMemoryRows,
    Labels,
    OutOfCoreRows,
    clone_with_levels,
    interval_bounds,
    is_frozen,
    point_prediction,
    read_rows,
    remember_argument,
    resolve_argument,
    resolve_covariates,
    resolve_density_ratio,
    resolve_groups,
    unwrap_frozen,
)
from quernel.conformal.conditional import KernelCalibration, UnpenalisedColumns
from quernel.conformal.methods import (
    METHODS,
    ConformalMethod,
    Index,
    Scale,
    Scores,
    SplitRequest,
    check_calibration_size,
    interval_width,
    min_calibration_rows,
    nest_intervals,
    refuse_few_rows,
    score_level,
    unknown_group,
    use_all_rows,
)
from quernel.estimators import KernelQuantileRegressor
from quernel.estimators.inputs import check_target
from quernel.estimators.prediction import as_frame_like, blockwise
from quernel.estimators.warnings import warning_as_one
from quernel.kernels.base import Seed, as_generator
from quernel.losses import Pinball

Array = NDArray[np.floating]

# calibration_size="auto": this share of the rows calibrates, if that is enough for the coverage.
AUTO_CALIBRATION_SHARE = 0.25


class ConformalQuantileRegressor(RegressorMixin, BaseEstimator):
    """Conformalized quantile regression: prediction intervals with finite-sample coverage.

    A quantile model is fitted to training rows. Held-out calibration rows then show by how much its intervals must be
    widened, or may be narrowed. If calibration rows and new rows are exchangeable, a new target lies inside its
    interval with probability `coverage` or more, for any sample size and however bad the model is; a bad model gets
    wide intervals. This coverage is marginal: an average over new rows or, with `groups`, over those of each group.
    With ``conditional="kernel"`` it also holds, up to smoothing, around each x.

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
        True widens both sides by the same length. False calibrates each bound separately, so that targets lie below and
        above the interval in at most (1 - coverage) / 2 of the rows each; intervals are somewhat wider.
    calibration_size : "auto", float or int, default="auto"
        Share or number of calibration rows, for "split". "auto" is a quarter of the rows or, where that is too few for
        the coverage, as many as it needs (9 for a coverage of 0.9): small tables leave fewer rows to the model.
    time_ordered : bool, default=False
        True calibrates on the last rows, for rows in order of time (with "split"). Nothing is shuffled.
    cv : int, scikit-learn splitter or iterable, default=5
        Folds for "cv+". An integer is a shuffled KFold. Splitters are given all rows, also those of weight 0, and the
        `groups` of `fit`; (train, test) pairs of index arrays are positions among all rows.
    conditional : {"kernel"} or None, default=None
        "kernel" widens intervals by more where targets miss them by more: the cutoff of the conformity scores is a
        smooth function of x, a kernel quantile fit to the calibration rows and the new row (Gibbs, Cherian and Candes
        2023). A quarter of the calibration rows, at most 2,000, choose its kernel and penalty. For "split", "prefit".
    randomize : bool, default=False
        With `conditional`, whether the threshold of each new row is drawn at random, so that the coverage is exact.
        Otherwise it is a little above, by about the degrees of freedom of the cutoff over the calibration rows.
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
    coverage_, symmetric_, method_ : float, bool, str
        The parameters at the time of `fit`: `set_params` changes no interval before the next fit.
    n_features_in_, feature_names_in_ : int, array of str
        As in scikit-learn, where the model has them.

    Notes
    -----
    `fit` raises if there are too few calibration rows for the coverage, and says how many it takes. With a
    `density_ratio` that depends on the new row: where its own weight is too large, its interval is infinite.

    References
    ----------
    Romano, Y., Patterson, E., Candes, E. (2019). Conformalized quantile regression. NeurIPS 32.

    Tibshirani, R. J., Barber, R. F., Candes, E., Ramdas, A. (2019). Conformal prediction under covariate shift.
    NeurIPS 32.

    Gibbs, I., Cherian, J. J., Candes, E. (2023). Conformal prediction with conditional guarantees. arXiv:2305.12616.

    Barber, R. F., Candes, E., Ramdas, A., Tibshirani, R. J. (2021). Predictive inference with the jackknife+. Annals
    of Statistics 49(1), 486-507.

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
        calibration_size: str | float = "auto",
        time_ordered: bool = False,
        cv: Any = 5,
        conditional: str | None = None,
        randomize: bool = False,
        random_state: Seed = None,
    ) -> None:
        self.estimator = estimator
        self.coverage = coverage
        self.method = method
        self.symmetric = symmetric
        self.calibration_size = calibration_size
        self.time_ordered = time_ordered
        self.cv = cv
        self.conditional = conditional
        self.randomize = randomize
        self.random_state = random_state

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: ArrayLike | None = None,
        *,
        groups: Any = None,
        density_ratio: Any = None,
        covariates: Any = None,
        units: ArrayLike | None = None,
        checkpoint: str | PathLike[str] | None = None,
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
        covariates : array-like of shape (n, k), function of X, or None
            With `conditional`, numbers whose linear functions are in the cutoff without a penalty, as indicators of
            `groups` are: over new rows reweighted by them the coverage holds, too.
        units : array-like of shape (n,) or None
            Labels of repeated units, such as patients, shops or machines. A unit trains or calibrates, never both, and
            an estimator whose `fit` has `groups` keeps its rows together as well, so that the interval is one for new
            units. Rows of a unit are not exchangeable with those of another: the coverage holds up to an error that
            decreases with the number of calibration units, not of rows.
        checkpoint : path or None
            Passed to the estimator's `fit`, with ``method="split"``: an interrupted fit resumes from this file.

        Returns
        -------
        self
        """
        method = self._check_parameters()
        fit_params = self._checkpoint_params(checkpoint, method)
        rows = read_rows(self.estimator, X, y, sample_weight, prefit=method.models == "none")
        if method.models == "several" and isinstance(rows, OutOfCoreRows):
            raise ValueError(
                f"method={self.method!r} is for rows in memory. Use method='split' for files and Dask collections."
            )
        if units is not None:
            rows = self._with_units(rows, units, method)
        labels, ratio = rows.row_metadata(groups, density_ratio)
        extra = self._check_conditional(rows, density_ratio, covariates)
        splits = method.split(self._split_request(rows, labels))
        # Too few calibration rows are an error before anything is fitted.
        calibrating = np.flatnonzero(rows.positive)[np.concatenate([test for _, test in splits])]
        if labels is None:
            positions: dict[Hashable, Index] = {None: np.arange(len(calibrating))}
        else:
            known = np.unique(labels[rows.positive]).tolist()
            positions = {label: np.flatnonzero(labels[calibrating] == label) for label in known}
        self._check_calibration_rows(positions, ratio[calibrating])
        models = [self.estimator]
        if method.models != "none":
            # The clones get the quantile levels of the interval.
            clones = [clone_with_levels(self.estimator, self.coverage, self.random_state) for _ in splits]
            models = [rows.fit(model, train, fit_params) for model, (train, _) in zip(clones, splits, strict=True)]
        with warning_as_one():
            predictions = [
                rows.predict_bounds(model, test, self.coverage) for model, (_, test) in zip(models, splits, strict=True)
            ]
        bounds, targets = (np.concatenate(parts) for parts in zip(*predictions, strict=True))
        fold = np.repeat(np.arange(len(splits)), [len(test) for _, test in splits])
        weight = ratio[calibrating]
        scores = Scores.from_predictions(bounds, targets, fold, weight, symmetric=self.symmetric, scale=method.scale)
        conditional = None
        if self.conditional is not None:
            columns = UnpenalisedColumns(len(rows.positive), labels, None if labels is None else known, extra)
            conditional, kept = self._learn_conditional(rows, calibrating, scores, columns.take(calibrating))
            positions, scores = {None: np.arange(len(kept))}, scores.take(kept)
        calibration = {label: scores.take(index) for label, index in positions.items()}
        given = tuple(map(remember_argument, (groups, density_ratio, covariates)))
        return self._store(models, calibration, given, conditional)

    def _check_conditional(
        self, rows: InMemoryRows | OutOfCoreRows, density_ratio: Any, covariates: Any
    ) -> Array | None:
        """Return the covariates of all rows; raise if cutoffs cannot depend on x, or covariates have no use."""
        if self.conditional is None:
            if covariates is not None:
                raise ValueError("covariates was given, which is for conditional='kernel'. Set it, or leave them out.")
            return None
        if isinstance(rows, OutOfCoreRows) or density_ratio is not None or METHODS[self.method].models == "several":
            raise ValueError(
                f"conditional={self.conditional!r} is for rows in memory, method='split' or 'prefit', and no "
                "density_ratio. Change these, or leave conditional as None."
            )
        return resolve_covariates(covariates, rows.X)

    def _learn_conditional(
        self, rows: InMemoryRows | OutOfCoreRows, calibrating: Index, scores: Scores, columns: UnpenalisedColumns
    ) -> tuple[KernelCalibration, Index]:
        """Return the calibration by a kernel, and the positions of the calibration rows that it is made of."""
        X, level = _safe_indexing(rows.X, calibrating), score_level(self.coverage, self.symmetric)
        seed = int(as_generator(self.random_state).integers(2**31))
        return KernelCalibration.learn(X, scores, level, columns, self.randomize, seed)

    def _with_units(
        self, rows: InMemoryRows | OutOfCoreRows, units: ArrayLike, method: ConformalMethod
    ) -> InMemoryRows:
        """Return the rows with the labels of their units; raise if these cannot be kept together."""
        if isinstance(rows, OutOfCoreRows) or method.models == "none" or self.time_ordered:
            raise ValueError(
                "units says which rows of X, in memory, must not be divided between training and calibration: it is "
                "not for files, Dask collections, prefit models or time_ordered=True. Leave it out."
            )
        return dataclasses.replace(rows, units=resolve_groups(units, rows.X, "units"))

    def _store(
        self,
        models: list[BaseEstimator],
        calibration: dict[Hashable, Scores],
        given: tuple[Any, Any, Any],
        conditional: KernelCalibration | None,
    ) -> Self:
        """Set all fitted attributes; `given` are groups, density ratio and covariates by `remember_argument`."""
        self.estimators_, self._calibration = models, list(calibration.items())
        self.n_calibration_ = sum(len(scores.weight) for scores in calibration.values())
        self.coverage_, self.symmetric_, self.method_ = self.coverage, self.symmetric, self.method
        (self._groups, self._ratio, self._covariates), self._conditional = given, conditional
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(models[0], name):
                setattr(self, name, getattr(models[0], name))
        return self

    @blockwise
    def predict_interval(
        self,
        X: Any,
        coverage: float | ArrayLike | None = None,
        *,
        groups: Any = None,
        density_ratio: Any = None,
        covariates: Any = None,
        as_frame: bool = False,
    ) -> Any:
        """Predict the calibrated interval of each row.

        Parameters
        ----------
        X : array-like or data frame of shape (n, d), a Dask collection, or an object of `quernel.data`
        coverage : float, sequence of floats or None
            None is the coverage of the constructor. Any other one, or several, come from the same calibration, without
            another fit: intervals are wider or narrower in proportion to those that the model predicts for the
            coverage of the constructor. Several are nested.
        groups, density_ratio, covariates : array-like of shape (n,), covariates (n, k)
            Those of the new rows, if `fit` was given arrays. Functions given to `fit` are applied to X.
        as_frame : bool, default=False
            Whether to return a data frame like X, with its index and the columns ``lower`` and ``upper``; of several
            coverages, ``lower_0.5``, ``upper_0.5``, ...

        Returns
        -------
        array of shape (n, 2), lower and upper bounds, or (n, 2, k) for a sequence of k coverages
        """
        check_is_fitted(self)
        wanted = self._check_coverages(coverage)
        labels = resolve_groups(resolve_argument("groups", groups, self._groups), X)
        own = resolve_density_ratio(resolve_argument("density_ratio", density_ratio, self._ratio), X)
        with warning_as_one():
            bounds = np.stack([interval_bounds(model, X, self.coverage_) for model in self.estimators_])
        single = coverage is None or np.ndim(coverage) == 0
        if self._conditional is None:
            calibrated = [self._calibrate_bounds(bounds, labels, own, one) for one in wanted]
        else:
            columns = self._columns(self._conditional, X, labels, covariates)
            calibrated = [self._calibrate_at(self._conditional, X, bounds[0], columns, one) for one in wanted]
        intervals = np.stack(calibrated, axis=2)
        if not single:
            intervals = nest_intervals(intervals, wanted)
        if not as_frame:
            return intervals[:, :, 0] if single else intervals
        ends = [f"_{one:g}" for one in wanted] if not single else [""]
        names = [f"{side}{end}" for end in ends for side in ("lower", "upper")]
        return as_frame_like(X, intervals.transpose(0, 2, 1).reshape(len(intervals), -1), names)

    def _check_coverages(self, coverage: float | ArrayLike | None) -> list[float]:
        """Return the coverages to predict; raise if there are too few calibration rows for one of them."""
        if coverage is None:
            return [self.coverage_]
        if np.ndim(coverage) > 1 or np.size(coverage) == 0:
            raise ValueError(f"coverage must be one number or a flat sequence of them; got {coverage!r}.")
        wanted = np.atleast_1d(np.asarray(coverage)).tolist()
        for one in wanted:
            check_share("coverage", one)
        wanted = [self.coverage_ if np.isclose(one, self.coverage_) else one for one in wanted]
        if max(wanted) > self.coverage_:
            for label, scores in self.calibration_.items():
                refuse_few_rows(max(wanted), self.symmetric_, label, len(scores.weight))
        return wanted

    def _calibrate_bounds(
        self, bounds: Array, labels: Labels | None, own: Array, coverage: float | None = None
    ) -> Array:
        """Return the calibrated intervals, shape (n, 2), of rows with these bounds, group labels and density ratios."""
        level, scale, calibration = self._calibration_at(self.coverage_ if coverage is None else coverage)
        if labels is None:
            return calibration[None].interval(bounds, own, level, scale)
        interval = np.empty((len(own), 2))
        for label in np.unique(labels).tolist():
            if label not in calibration:
                raise ValueError(unknown_group(label, calibration))
            rows = np.flatnonzero(labels == label)
            interval[rows] = calibration[label].interval(bounds[:, rows], own[rows], level, scale)
        return interval

    def _calibration_at(self, coverage: float) -> tuple[float, Scale | None, dict[Hashable, Scores]]:
        """Return the level of the scores' quantile, their unit, and the scores of each group, for this coverage."""
        scale, calibration = METHODS[self.method_].scale, self.calibration_
        if scale is None and coverage != self.coverage_:
            scale = interval_width
            calibration = {label: scores.per_width() for label, scores in calibration.items()}
        return score_level(coverage, self.symmetric_), scale, calibration

    def _calibrate_at(
        self, conditional: KernelCalibration, X: Any, bounds: Array, columns: Array, coverage: float
    ) -> Array:
        """Return the intervals (n, 2) of rows with these bounds (n, 2), with cutoffs that depend on x."""
        level, scale, calibration = self._calibration_at(coverage)
        return conditional.intervals(X, columns, bounds, calibration[None], level, self.symmetric_, scale)

    def _columns(self, conditional: KernelCalibration, X: Any, labels: Labels | None, covariates: Any) -> Array:
        """Return the unpenalised columns of new rows, shape (n, p)."""
        extra = resolve_covariates(resolve_argument("covariates", covariates, self._covariates), X)
        return conditional.unpenalised(X, labels, extra)

    def predict_cutoff(self, X: Any, *, groups: Any = None, covariates: Any = None) -> tuple[Array, Array]:
        """The cutoff of the conformity scores at each row, and a bound of its error, with ``conditional="kernel"``.

        Returns
        -------
        cutoff, error : arrays of shape (n,)
            The exact cutoff is within `error` of the one that was computed, as the duality gap of its fit proves. By
            the cutoff the upper bound of the model is raised and, if `symmetric`, the lower one lowered. Infinite where
            there are too few calibration rows of the row's group.
        """
        check_is_fitted(self)
        if self._conditional is None:
            raise ValueError("Without conditional='kernel' the cutoff is the same for all rows. Set it and fit again.")
        labels = resolve_groups(resolve_argument("groups", groups, self._groups), X)
        columns = self._columns(self._conditional, X, labels, covariates)
        return self._conditional.cutoffs(X, columns, self.calibration_[None].above, self._score_level)

    @blockwise
    def predict(self, X: Any) -> Array:
        """Predict the median of each row, shape (n,): the mean over the fitted models.

        It is the model's own, not calibrated; a model that predicts no median gives the midpoint of its interval.
        """
        check_is_fitted(self)
        with warning_as_one():
            return np.mean([point_prediction(model, X, self.coverage_) for model in self.estimators_], axis=0)

    def score(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> float:
        """D^2 of the median: 1 - (its mean absolute error) / (that of the best constant), as `predict` gives it.

        The same score as that of the quantile estimators at the level 0.5: 1 is a perfect fit, 0 no better than the
        median of y, whatever X is. It judges the model, not the intervals; for these see `quernel.metrics`.
        """
        check_is_fitted(self)
        y = check_target(y)
        weight = np.ones(len(y)) if sample_weight is None else check_weight(sample_weight, len(y))
        return Pinball([0.5]).d2_score(y, np.asarray(self.predict(X), dtype=float)[:, None], weight)

    @property
    def calibration_(self) -> dict[Hashable, Scores]:
        """Conformity scores of each group; stored as pairs, because model files cannot hold None as a key."""
        return dict(self._calibration)

    @property
    def _score_level(self) -> float:
        """Level of the conformal quantile at each bound, for the coverage of the constructor."""
        return score_level(self.coverage_, self.symmetric_)

    def _check_parameters(self) -> ConformalMethod:
        """Validate the constructor's parameters, and return the method.

        A FrozenEstimator is used as fitted, whatever the method: all rows calibrate it.
        """
        check_share("coverage", self.coverage)
        check_choice("method", self.method, tuple(METHODS))
        check_calibration_size(self.calibration_size)
        check_choice("conditional", self.conditional, (None, "kernel"))
        check_flags(self, "symmetric", "time_ordered", "randomize")
        method, name = METHODS[self.method], self.method
        if is_frozen(self.estimator) and method.models == "one":
            method, name = dataclasses.replace(method, split=use_all_rows, models="none"), "prefit"
        if self.time_ordered and method.models != "one":
            raise ValueError(
                "time_ordered=True divides the rows into earlier and later ones, which method='split' does and "
                f"method={name!r} does not. Use method='split', or leave it False."
            )
        if method.models == "none" and self.estimator is None:
            raise ValueError(f"method={name!r} needs a fitted estimator; got None. Give one, or use method='split'.")
        if method.models == "several" and is_frozen(self.estimator):
            raise ValueError(
                f"method={name!r} fits a model for each fold, and a FrozenEstimator cannot be fitted again."
            )
        return method

    def _checkpoint_params(self, checkpoint: str | PathLike[str] | None, method: ConformalMethod) -> dict[str, Any]:
        """Return the arguments of the estimator's `fit` other than the data: the checkpoint, if there is one."""
        if checkpoint is None:
            return {}
        if method.models != "one":
            how = "several models" if method.models == "several" else "none"
            raise ValueError(f"checkpoint is for the fit of one model, and here {how} will be fitted. Leave it out.")
        if self.estimator is not None and not has_fit_parameter(self.estimator, "checkpoint"):
            raise ValueError(f"{type(self.estimator).__name__} takes no checkpoint. Leave it out.")
        return {"checkpoint": checkpoint}

    def _split_request(self, rows: InMemoryRows | OutOfCoreRows, labels: Labels | None) -> SplitRequest:
        """Return the rows and parameters by which the method divides the rows."""
        return SplitRequest(
            X=rows.X,
            y=rows.y,
            groups=labels,
            units=rows.units,
            positive=rows.positive,
            calibration_size=self._resolve_calibration_size(int(rows.positive.sum())),
            time_ordered=self.time_ordered,
            cv=self.cv,
            max_calibration=rows.max_calibration,
            rng=as_generator(self.random_state),
        )

    def _resolve_calibration_size(self, n_rows: int) -> float:
        """Return the share or number of calibration rows, for so many rows of positive weight.

        If even all rows but one are too few for the coverage, "auto" stays a share, and the error tells its number.
        """
        if not isinstance(self.calibration_size, str):
            return self.calibration_size
        needed = min_calibration_rows(score_level(self.coverage, self.symmetric))
        return needed if round(AUTO_CALIBRATION_SHARE * n_rows) < needed < n_rows else AUTO_CALIBRATION_SHARE

    def _check_calibration_rows(self, positions: dict[Hashable, Index], ratio: Array) -> None:
        """Raise if a group has too few calibration rows for the coverage, or all of them have a density ratio of 0.

        `positions` are those of each group among the calibration rows, `ratio` has one entry for each of these.
        """
        for label, index in positions.items():
            refuse_few_rows(self.coverage, self.symmetric, label, len(index))
            if not ratio[index].any():
                where = "" if label is None else f" of group {label!r}"
                raise ValueError(
                    f"density_ratio is zero for every calibration row{where}. Give rows for which it is positive."
                )

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        inner = KernelQuantileRegressor() if self.estimator is None else unwrap_frozen(self.estimator)
        if hasattr(inner, "__sklearn_tags__"):  # a TableModel is fitted already, and no estimator
            tags.input_tags = get_tags(inner).input_tags
        tags.regressor_tags.poor_score = True  # the model is trained on a part of the rows
        return tags
