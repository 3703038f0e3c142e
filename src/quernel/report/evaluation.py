"""Evaluate a model on held-out rows, together with baselines fitted to the same training rows."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.model_selection import GroupShuffleSplit
from threadpoolctl import threadpool_limits

from quernel.conformal.table_model import TableModel
from quernel.data import ArrayRows
from quernel.estimators import ExtrapolationWarning, KernelQuantileRegressor, TabularQuantileRegressor
from quernel.estimators.inputs import subset
from quernel.metrics import pinball_loss
from quernel.plots.calibration import binomial_band, find_ties
from quernel.plots.fans import pair_levels
from quernel.report.formatting import exceeds, format_share
from quernel.tables import TableError, TextColumn
from quernel.tables.columns import Column, row_folds
from quernel.tables.frames import as_entries, open_frame
from quernel.tables.training_data import RowSample, TrainingData, read_numbers
from quernel.tuning.data_summary import column_scales

if TYPE_CHECKING:
    import pyarrow as pa

Array = NDArray[np.floating]
Index = NDArray[np.intp]
# (X, y) to fit, X to predict, levels ascending -> curves (n, q)
Baseline = Callable[[Array, Array, Array, Array], Array]


@dataclass(frozen=True)
class EvaluationOptions:
    """Constants of the evaluation: what it costs against how sure it is."""

    held_out: float = 0.2  # share of the training rows held out: more make the losses surer and the model worse
    n_folds: int = 5  # of the cross-validation of the baselines, where the model is evaluated on all rows
    max_rows: int = 100_000  # that baselines are fitted to, so that a report does not take longer than the fit
    n_trees: int = 200  # boosting iterations of LightGBM ...
    n_slow_trees: int = 100  # ... and of scikit-learn, which needs about ten times as long for each
    train_rows: int = 2000  # training rows on which the loss is computed, to tell overfitting
    overfit: float = 0.8  # a kernel model overfits if its loss on training rows is below this share of the held-out one
    underfit: float = 0.9  # it may underfit if that share is above this, and a baseline is better by more than chance


OPTIONS = EvaluationOptions()
# Name of the linear baseline.
LINEAR = "Linear quantile regression"


def predict_unconditional(_: Array, y: Array, X_new: Array, levels: Array) -> Array:
    """Unconditional quantiles of the target, the same for every row."""
    return np.tile(np.quantile(y, levels), (len(X_new), 1))


def predict_linear(X: Array, y: Array, X_new: Array, levels: Array) -> Array:
    """Linear quantile regression on the standardized encoded columns, with a negligible ridge penalty."""
    mean, scale = X.mean(axis=0), column_scales(X, np.full(len(X), 1 / len(X)))
    model = KernelQuantileRegressor(levels, kernel="linear", tol=1e-4, recalibrate=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit((X - mean) / scale, y).predict((X_new - mean) / scale)


def predict_lightgbm(X: Array, y: Array, X_new: Array, levels: Array) -> Array:
    """LightGBM with default hyperparameters, one model per level, predictions sorted in each row."""
    import lightgbm

    trees = lightgbm.LGBMRegressor(
        objective="quantile", n_estimators=OPTIONS.n_trees, verbose=-1, random_state=0, n_jobs=1
    )
    curves = [clone(trees).set_params(alpha=level).fit(X, y).predict(X_new) for level in levels.tolist()]
    return np.sort(np.column_stack(curves), axis=1)


def predict_boosting(X: Array, y: Array, X_new: Array, levels: Array) -> Array:
    """Histogram gradient boosting of scikit-learn, one model per level, predictions sorted in each row."""
    trees = HistGradientBoostingRegressor(
        loss="quantile", max_iter=OPTIONS.n_slow_trees, early_stopping=False, random_state=0
    )
    with threadpool_limits(1, user_api="openmp"):  # they spin beside other work
        curves = [clone(trees).set_params(quantile=level).fit(X, y).predict(X_new) for level in levels.tolist()]
    return np.sort(np.column_stack(curves), axis=1)


def find_baselines() -> dict[str, Baseline]:
    """Return the baselines by name; boosting is that of LightGBM where it is installed, else that of scikit-learn."""
    found: dict[str, Baseline] = {
        "Same quantiles for every row": predict_unconditional,
        LINEAR: predict_linear,
    }
    if importlib.util.find_spec("lightgbm") is not None:
        found[f"LightGBM ({OPTIONS.n_trees} trees, not tuned)"] = predict_lightgbm
    else:
        found[f"Gradient boosting ({OPTIONS.n_slow_trees} trees, not tuned)"] = predict_boosting
    return found


@dataclass(frozen=True)
class Interval:
    """Coverage and width of a central interval on the evaluation rows.

    Attributes
    ----------
    nominal, observed : float
        Coverage that was asked for, and share of rows inside.
    inner : float
        Share of rows strictly inside: smaller than `observed` where rows with the same y lie on a bound.
    low, high : float
        Between these the observed coverage is in 95 % of samples, if the nominal one is exact.
    width : float
        Mean width, in units of the target.
    calibrated : bool
        Whether it is a conformal interval, rather than the one between two fitted levels.
    """

    nominal: float
    observed: float
    inner: float
    low: float
    high: float
    width: float
    calibrated: bool = False

    @property
    def holds(self) -> bool:
        """Whether coverage is nominal within chance."""
        return not self.narrow and not self.wide

    @property
    def narrow(self) -> bool:
        """Whether it covers fewer rows than chance explains."""
        return exceeds(self.low, self.observed)

    @property
    def wide(self) -> bool:
        """Whether it covers more rows than chance explains: then it is wider than it need be."""
        return exceeds(self.inner, self.high)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Predictions of a model and of baselines on evaluation rows, in the target's own units, levels ascending.

    Attributes
    ----------
    model : TableModel
        The model that was evaluated.
    rows : ndarray of shape (n,)
        Positions of the evaluation rows among those passed in.
    X : ndarray of shape (n, d)
        Their encoded columns.
    y : ndarray of shape (n,)
        Their targets.
    levels : ndarray of shape (q,)
        Quantile levels.
    curves : ndarray of shape (n, q)
        Predicted quantiles.
    beyond : ndarray of shape (n, d)
        Which encoded values lie outside the range of the training rows.
    baselines : dict of str to ndarray of shape (n, q)
        Predicted quantiles of each baseline.
    how : str
        A description of the evaluation for the report.
    unseen : bool
        Whether the rows are known not to be training rows.
    ends : ndarray of shape (n, 2) or None
        Bounds of the calibrated interval, where the model has one.
    out_of : int or None
        Where the rows are a random sample, the number of rows that it was drawn from.
    units : ndarray of shape (n,) or None
        Labels of the repeated units that were held out; rows of a unit are not independent.
    training_loss : float or None
        Mean pinball loss of the model on rows that it was fitted to, in the target's own units, where these are known.
    time_ordered : bool
        Whether the rows are in time order, even if no column has dates.
    """

    model: TableModel
    rows: Index
    X: Array
    y: Array
    levels: Array
    curves: Array
    beyond: NDArray[np.bool_]
    baselines: dict[str, Array]
    how: str
    unseen: bool
    ends: Array | None = None
    out_of: int | None = None
    units: NDArray[Any] | None = None
    training_loss: float | None = None
    time_ordered: bool = False

    @property
    def middle(self) -> int:
        """Position of the level that is nearest to 1/2."""
        return int(np.argmin(np.abs(self.levels - 0.5)))

    @property
    def middle_name(self) -> str:
        """The prediction at that level in words."""
        level = self.levels[self.middle]
        return "predicted median" if level == 0.5 else f"predicted {level:g} quantile"

    @property
    def row_name(self) -> str:
        """What the rows are called on the page."""
        return "held-out rows" if self.unseen else "rows"

    @property
    def best_baseline(self) -> str:
        """Name of the baseline with the lowest mean loss."""
        return min(self.baselines, key=lambda name: float(self.losses(name).mean()))

    @property
    def overfits(self) -> bool:
        """Whether a kernel model is much closer to its training rows than to held-out rows (forests always are)."""
        if self.training_loss is None or not isinstance(self.model.model, KernelQuantileRegressor):
            return False
        return bool(self.training_loss < OPTIONS.overfit * self.losses().mean())

    @property
    def underfits(self) -> bool:
        """Whether a kernel model is no closer to its training rows than to held-out rows, and a baseline is better.

        A baseline that ignores the columns does not count: where it wins there is nothing to follow.
        """
        if self.training_loss is None or not isinstance(self.model.model, KernelQuantileRegressor):
            return False
        best = self.best_baseline
        gain = self.row_losses() - self.row_losses(best)
        sure = gain.mean() > 2 * gain.std() / np.sqrt(len(gain))
        smooth = self.training_loss >= OPTIONS.underfit * self.losses().mean()
        return bool(smooth and sure and best != next(iter(self.baselines)))

    @property
    def outside(self) -> NDArray[np.bool_]:
        """Which rows lie outside the training range in at least one column, (n,)."""
        return np.any(self.beyond, axis=1)

    def losses(self, name: str | None = None) -> Array:
        """Mean pinball loss per level, of the model or of a baseline."""
        return pinball_loss(self.y, self.curves if name is None else self.baselines[name], self.levels)

    def row_losses(self, name: str | None = None) -> Array:
        """Pinball loss per row, averaged over the levels."""
        residual = self.y[:, None] - (self.curves if name is None else self.baselines[name])
        return np.maximum(self.levels * residual, (self.levels - 1) * residual).mean(axis=1)

    def compare_losses(self, theirs: Array) -> tuple[float, float]:
        """Return how far the mean loss is above that of others (n,), relative to that, and its standard error."""
        ours = self.row_losses()
        change = (ours - theirs) / (theirs.mean() or ours.mean() or 1.0)
        return float(change.mean()), float(change.std() / np.sqrt(len(change)))

    def intervals(self) -> list[Interval]:
        """Return the calibrated interval, if any, then those between pairs of levels, the widest first."""
        found = []
        if self.model.interval is not None and self.ends is not None:
            n_calibration = self.model.interval.n_calibration_
            found.append(self._interval(self.model.interval.coverage_, self.ends, n_calibration))
        for a, b in pair_levels(self.levels).bands:
            # Not 0.8999999999999999, for 0.95 - 0.05.
            nominal = round(float(self.levels[b] - self.levels[a]), 12)
            found.append(self._interval(nominal, self.curves[:, [a, b]]))
        return found

    def first_interval(self) -> tuple[Interval, Array] | None:
        """Return the first interval, calibrated or widest, and its bounds (n, 2); None without any."""
        for interval in self.intervals()[:1]:
            if interval.calibrated and self.ends is not None:
                return interval, self.ends
            return interval, self.curves[:, list(pair_levels(self.levels).bands[0])]
        return None

    def effective_rows(self, hits: NDArray[np.bool_]) -> int:
        """Return how many independent rows have a share of hits, shape (n,), that varies as much as that of these rows.

        All n, unless the rows are of units: then n over the design effect, the variance of sums over units relative to
        that of independent rows.
        """
        n, spread = len(hits), float(np.var(hits))
        if self.units is None or spread == 0:
            return n
        unit = np.unique(self.units, return_inverse=True)[1].ravel()
        sums = np.bincount(unit, hits - hits.mean())
        variance = float(sums @ sums) * len(sums) / max(len(sums) - 1, 1) / n
        return int(np.clip(n * spread / variance, 1, n)) if variance > 0 else n

    def _interval(self, nominal: float, ends: Array, n_calibration: int | None = None) -> Interval:
        """Return the coverage of intervals (n, 2); chance is that of a binomial share.

        Calibration rows, if given, are a random sample, too, as evaluation rows are: their variances add.
        """
        inside = (ends[:, 0] <= self.y) & (self.y <= ends[:, 1])
        inner = inside & ~find_ties(self.y, ends).any(axis=1)
        calibrated, n = n_calibration is not None, self.effective_rows(inside)
        if n_calibration is not None:
            n = max(int(n / (1 + len(inside) / n_calibration)), 1)
        low, high = map(float, binomial_band(nominal, n))
        width = float(np.mean(ends[:, 1] - ends[:, 0]))
        return Interval(nominal, float(np.mean(inside)), float(np.mean(inner)), low, high, width, calibrated)


def held_out_rows(
    n: int, *, seed: int = 0, time_ordered: bool = False, units: NDArray[Any] | None = None
) -> tuple[Index, Index]:
    """Split n rows into training rows and held-out rows: a random fifth, or the last fifth in time order.

    With the labels of units (n,), whole units are held out, a random fifth of them.
    """
    if units is not None and not time_ordered:
        splitter = GroupShuffleSplit(1, test_size=OPTIONS.held_out, random_state=seed)
        ((train, test),) = splitter.split(units, groups=units)
        return train, test
    count = max(1, round(OPTIONS.held_out * n))
    order = np.arange(n) if time_ordered else np.random.default_rng(seed).permutation(n)
    return np.sort(order[:-count]), np.sort(order[-count:])


def evaluate_by_refitting(
    model: TableModel, training: TrainingData, *, seed: int = 0, time_ordered: bool = False
) -> Evaluation:
    """Refit the same kind of model to four fifths of its training rows, or units, and evaluate it on the others."""
    units, rows = training.groups, training.rows
    assert isinstance(rows, ArrayRows)
    train, test = held_out_rows(rows.n_rows, seed=seed, time_ordered=time_ordered, units=units)
    model, rows = _encode_without(model, training, rows, train)
    weight = None if rows.weight is None else rows.weight[train]
    more = {} if units is None else {"groups" if model.interval is None else "units": units[train]}
    refitted = _refit(model, lambda one: one.fit(rows.X[train], rows.y[train], sample_weight=weight, **more))
    of_units = "" if units is None else " of the units"
    at_random = f"{len(test):,} held-out rows (a random {format_share(OPTIONS.held_out, 0)}{of_units}, seed {seed})"
    on = f"the last {len(test):,} rows" if time_ordered else at_random
    fitted_to = f"the same {len(train):,} rows"
    how = _describe(model, len(train), len(test), on, fitted_to, weighted=rows.weight is not None)
    evaluation = _evaluate(refitted, rows.X, rows.y, [(train, test)], how, unseen=True)
    loss = _training_loss(refitted, rows.X[train], rows.y[train])
    evaluation = replace(evaluation, training_loss=loss, time_ordered=time_ordered)
    if units is None or time_ordered:
        return evaluation
    how += " Rows of a unit are alike: ranges by chance of levels and intervals are the wider for it."
    return replace(evaluation, how=how, units=units[evaluation.rows])


def evaluate_streamed(
    model: TableModel, training: TrainingData, sample: RowSample, *, seed: int = 0, time_ordered: bool = False
) -> Evaluation:
    """Do the same, with the same rows held out, for data that are not in memory.

    The model is refitted to all four fifths of the rows. It is evaluated on the held-out rows of the sample, and
    baselines are fitted to the other rows of the sample.
    """
    train, test = held_out_rows(training.n_rows, seed=seed, time_ordered=time_ordered)
    held_out = np.zeros(training.n_rows, dtype=bool)
    held_out[test] = True
    refitted = _refit(model, lambda one: one.fit(subset(training.rows, ~held_out)))
    X, y, number = _with_target(model, sample)
    is_test = held_out[number]
    if is_test.all() or not is_test.any():
        raise TableError(
            f"Of {len(sample.table):,} rows sampled for the report, {is_test.sum():,} have a target and are "
            f"held out, and {np.sum(~is_test):,} are not: too few for an evaluation. Allow more memory, or leave out "
            "the report."
        )
    splits = [(np.flatnonzero(~is_test), np.flatnonzero(is_test))]
    share = format_share(OPTIONS.held_out, 0)
    chosen = f"the last {share}" if time_ordered else f"a random {share}, seed {seed}"
    on = f"{is_test.sum():,} rows, a random sample of the {len(test):,} held-out rows ({chosen})"
    fitted_to = f"{np.sum(~is_test):,} of those {len(train):,} rows, a random sample"
    how = _describe(model, len(train), len(test), on, fitted_to, weighted=training.options.weights is not None)
    evaluation = _evaluate(refitted, X, y, splits, how, unseen=True, out_of=None if sample.whole else len(test))
    loss = _training_loss(refitted, X[~is_test], y[~is_test])
    return replace(evaluation, training_loss=loss, time_ordered=time_ordered)


def evaluate_on(
    model: TableModel, X: Array, y: Array, out_of: int | None = None, *, time_ordered: bool = False
) -> Evaluation:
    """Evaluate a model on these rows, y in the model's units; baselines by five-fold cross-validation on them.

    The rows are a random sample of `out_of` rows, if that is given.
    """
    order = np.random.default_rng(0).permutation(len(y))
    folds = np.array_split(order, OPTIONS.n_folds)
    splits = [(np.setdiff1d(order, fold), np.sort(fold)) for fold in folds]
    which = f"all {len(y):,} rows" if out_of is None else f"{len(y):,} rows, a random sample of all {out_of:,} rows"
    how = (
        f"The model was evaluated on {which} of the data with a target. If these include its training rows, the "
        "results are too optimistic. The baselines were evaluated by five-fold cross-validation on the same rows, so "
        "never on rows that they were fitted to."
    )
    return replace(_evaluate(model, X, y, splits, how, unseen=False, out_of=out_of), time_ordered=time_ordered)


def _encode_without(
    model: TableModel, training: TrainingData, rows: ArrayRows, train: Index
) -> tuple[TableModel, ArrayRows]:
    """Return the model and its rows with means of the target over these training rows alone, as for a refit.

    Held-out rows are then encoded as new rows are: the evaluated model predicts from the table what the page shows.
    """
    encoder, start, columns = copy(model.encoder), 0, list[Column]()
    many = [one.name for one in encoder.columns_ if isinstance(one, TextColumn) and one.means is not None]
    if not many:
        return model, rows
    table = training.table.read([*many, model.target])
    table = table.filter(np.isfinite(read_numbers(table, model.target, training.options.missing)))
    X, folds = rows.X.copy(), row_folds(np.arange(rows.n_rows))
    weight = None if rows.weight is None else rows.weight[train]
    for column in encoder.columns_:
        if isinstance(column, TextColumn) and column.name in many:
            values = column.read(as_entries(table[column.name]), encoder.markers)
            column = column.with_target(values[train], rows.y[train, None], weight, folds[train])
            X[:, [start]] = column.encode(values)
            X[train, start : start + 1] = column.encode(values[train], folds[train])
        columns.append(column)
        start += len(column.names)
    encoder.columns_ = tuple(columns)
    return replace(model, encoder=encoder), replace(rows, X=X)


def _training_loss(model: TableModel, X: Array, y: Array) -> float:
    """Return the mean pinball loss on some of the rows that the model was fitted to, in the target's own units."""
    some = slice(None, None, max(1, len(y) // OPTIONS.train_rows))
    curves = model.predict_encoded(X[some]).reshape(len(y[some]), -1)
    return float(pinball_loss(model.inverse_transform_target(y[some]), curves, model.quantiles_).mean())


def _refit(model: TableModel, fit: Callable[[Any], Any]) -> TableModel:
    """Clone the model, with the same number of features, and fit the clone by the function."""
    estimator = clone(model.model)
    if isinstance(model.model, KernelQuantileRegressor) and estimator.n_components == "auto":
        estimator.set_params(n_components=model.model.n_components_)
    interval = None if model.interval is None else clone(model.interval).set_params(estimator=estimator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the fit to all rows has already warned
        fit(interval or estimator)
    estimator = estimator if interval is None else interval.estimators_[0]
    return TableModel(model.encoder, estimator, model.target, model.log_target, interval)


def _describe(model: TableModel, n_train: int, n_test: int, on: str, fitted_to: str, *, weighted: bool) -> str:
    fitted = "fitted to" if model.interval is None else "fitted to and calibrated on"
    features = " and number of features" if isinstance(model.model, KernelQuantileRegressor) else ""
    unweighted = " The fit was weighted; the evaluation is not." if weighted else ""
    return (
        f"For this evaluation, a model with the same settings{features} was {fitted} {n_train:,} rows "
        f"and evaluated on {on}. The saved model was {fitted} all {n_train + n_test:,} rows and should be slightly "
        f"better. The baselines were fitted to {fitted_to}.{unweighted}"
    )


def _with_target(model: TableModel, sample: RowSample) -> tuple[Array, Array, Index]:
    """Return X, y in the model's units, and the row numbers, of the rows of a sample that have a target."""
    target = read_numbers(sample.table, model.target)
    there = np.isfinite(target)
    y = check_target(model, target[there])
    return model.encoder.transform(sample.table.filter(there)), y, sample.target_row[there]


def _evaluate(
    model: TableModel,
    X: Array,
    y: Array,
    splits: Sequence[tuple[Index, Index]],
    how: str,
    *,
    unseen: bool,
    out_of: int | None = None,
) -> Evaluation:
    """Predict the test rows of the (train, test) splits: by the model, and by baselines fitted to the training rows."""
    order = np.argsort(model.quantiles_)
    levels = model.quantiles_[order]
    rows = np.concatenate([test for _, test in splits])
    if max(len(train) for train, _ in splits) > OPTIONS.max_rows:
        how += f" They were fitted to {OPTIONS.max_rows:,} of these rows, chosen at random."
    some = [(np.random.default_rng(0).permutation(train)[: OPTIONS.max_rows], test) for train, test in splits]
    found = {
        name: np.concatenate([predict(X[train], y[train], X[test], levels) for train, test in some])
        for name, predict in find_baselines().items()
    }
    sort = np.argsort(rows)
    rows = rows[sort]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExtrapolationWarning)  # counted instead
        curves = model.predict_encoded(X[rows]).reshape(len(rows), -1)[:, order]
        ends = None if model.interval is None else model.predict_interval_encoded(X[rows])
    by_name = {name: model.inverse_transform_target(predicted[sort]) for name, predicted in found.items()}
    y, beyond = model.inverse_transform_target(y[rows]), model.extrapolates(X[rows])
    return Evaluation(model, rows, X[rows], y, levels, curves, beyond, by_name, how, unseen, ends, out_of)


def check_target(model: TableModel, y: Array) -> Array:
    """Return the target in the model's units: its logarithm, if the model was fitted to that."""
    if model.log_target and y.min() <= 0:
        raise TableError(
            f"The model was fitted to the logarithm of {model.target!r}, but {np.sum(y <= 0):,} values are not "
            f"positive (the smallest is {y.min():g}). Leave those rows out."
        )
    return np.log(y) if model.log_target else y


def check_comparable(models: Mapping[str, TableModel]) -> None:
    """Raise unless all models predict the target of the first, and its levels, at which they are compared."""
    (name, first), *others = models.items()
    low, high = first.quantiles_.min(), first.quantiles_.max()
    for other, model in others:
        if model.target != first.target:
            raise TableError(
                f"{other} predicts {model.target!r}, and {name} {first.target!r}. Compare models of the same target."
            )
        narrow = model.quantiles_.min() > low or model.quantiles_.max() < high
        if narrow and not isinstance(model.model, TabularQuantileRegressor):
            raise TableError(
                f"Models are compared at the levels of the first, {low:g} to {high:g}, and {other} was fitted to "
                f"{model.quantiles_.min():g} to {model.quantiles_.max():g}. Put that with the narrower levels first."
            )


def evaluate_alike(model: TableModel, table: pa.Table, evaluation: Evaluation) -> Evaluation:
    """Evaluate another model of the same target on the same rows, given as an Arrow table, and at the same levels."""
    X = model.encoder.transform(table)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExtrapolationWarning)
        curves = model.predict_encoded(X, evaluation.levels)
        ends = None if model.interval is None else model.predict_interval_encoded(X)
    own = replace(evaluation, model=model, X=X, curves=curves, beyond=model.extrapolates(X), ends=ends)
    return replace(own, baselines={}, training_loss=None)


def as_arrow(X: Any, names: Sequence[str], target: str, y: Any) -> Any:
    """Return an Arrow table of the named columns of X and the target."""
    import pyarrow as pa

    frame = open_frame(X, names)
    entries = {name: frame.get(name) for name in names}
    columns = {
        name: pa.array(one.values, from_pandas=True) if isinstance(one.values, np.ndarray) else one.values.to_arrow()
        for name, one in entries.items()
    }
    return pa.table(columns | {target: np.asarray(y, dtype=float)})
