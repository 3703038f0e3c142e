"""KernelClassifier: kernel classification under any convex loss of the margin.

Labels become signs: two classes make one output, whose positive class is `classes[1]`, with y = -1 or +1; K > 2 classes
make K outputs, one against the rest. Scores become probabilities by calibration curves: fitted calibrators of
scikit-learn are reduced to plain numbers, which is what model files and ONNX graphs hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.model_selection import StratifiedKFold
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from quernel._validation import check_choice
from quernel.data import ArrayRows, DaskRows, MappedRows, Piece, RowSource, statistics
from quernel.estimators.base import KernelEstimator, WarmStart, check_checkpoint
from quernel.estimators.inputs import Rows, check_labels, check_loss, require_in_memory
from quernel.estimators.prediction import blockwise, check_rows
from quernel.estimators.solve import TimeBudget
from quernel.estimators.warnings import convergence_not_warned, warn_calibration_stopped
from quernel.features import RandomFeatures
from quernel.kernels import Kernel
from quernel.kernels.base import Seed
from quernel.losses import LOSSES, Logistic, Loss
from quernel.solvers import MULTINOMIAL, Solver
from quernel.solvers.progress import Stop, stopping
from quernel.tuning.alpha import alpha_for
from quernel.tuning.data_summary import DataSummary
from quernel.tuning.plan import FitPlan

Array = NDArray[np.floating]
Index = NDArray[np.intp]
Labels = NDArray[Any]  # of classes: numbers, text or booleans

# Out-of-core targets with more distinct values than this are taken for numbers, not class labels.
MOST_CLASSES = 1000
# Folds of the calibration.
N_FOLDS = 5


def _gives_probabilities(model: KernelClassifier) -> bool:
    """Whether `predict_proba` exists, for `available_if`."""
    if model.loss == "logistic" or isinstance(model.loss, Logistic) or model.calibration is not None:
        return True
    raise AttributeError(
        f"The loss {model.loss!r} gives no probabilities. Use loss='logistic', or calibration='sigmoid' or 'isotonic'."
    )


class KernelClassifier(ClassifierMixin, KernelEstimator):
    """Kernel classification with random features: support vector machines and logistic regression.

    For labels y = -1 and +1 it minimises

        mean_i loss(y_i f(x_i)) + alpha u'u,      f(x) = phi(x)'u + b,

    where phi are random features of the kernel (or, with ``n_components="exact"``, the kernel itself). The solution is
    certified by its relative duality gap, `duality_gap_`; a fit that does not reach `tol` warns. In the parametrisation
    of `sklearn.svm.SVC`, C = 1 / (2 n alpha). More than two classes are fitted one-vs-rest, all at once, or, with the
    logistic loss, by one multinomial model.

    Parameters
    ----------
    loss : str or object of `quernel.losses`, default="hinge"
        "hinge" (the support vector machine), "squared_hinge", "smoothed_hinge" or "logistic".
    kernel, bandwidth, n_components, sampling, fit_intercept, solver, tol, max_iter, max_seconds, max_memory, dtype, \
    warm_start, random_state, verbose :
        As in `KernelQuantileRegressor`.
    alpha : "auto" or float, default="auto"
        Weight of the ridge penalty; "auto" is a constant in units of the loss.
    multiclass : "auto", "ovr" or "multinomial", default="auto"
        Strategy for three or more classes: one-vs-rest, or one multinomial model, which needs ``loss="logistic"`` and
        ``solver="newton"``. "auto" is "multinomial" if these hold, else "ovr".
    class_weight : None, "balanced" or dict, default=None
        Factors on `sample_weight` by class. "balanced" gives all classes the same total weight.
    calibration : None, "sigmoid" or "isotonic", default=None
        Probability calibration as by `sklearn.calibration.CalibratedClassifierCV` with five folds, which provides
        `predict_proba` for losses other than the logistic one. A fit that Ctrl-C ends warns how many folds there were.

    Attributes
    ----------
    classes_ : ndarray of shape (K,)
    loss_ : object of `quernel.losses`
    coef_ : ndarray of shape (M, q); q is 1 for two classes and K for more
    intercept_ : ndarray of shape (q,)
    duality_gap_, objective_ : ndarrays of shape (q,), or (1,) for the multinomial model, which is one problem
    alpha_, bandwidth_, n_components_, n_components_choice_, n_iter_, feature_map_ : as in `KernelQuantileRegressor`
    encoder_ : TableEncoder
        The encoding of X, if that had columns other than finite numbers.
    n_features_in_, feature_names_in_ : as in scikit-learn

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from quernel import KernelClassifier
    >>> X, y = make_moons(400, noise=0.2, random_state=0)
    >>> model = KernelClassifier("logistic", random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.95)
    True
    >>> model.predict_proba(X[:3]).shape
    (3, 2)
    """

    def __init__(
        self,
        loss: str | Loss = "hinge",
        *,
        kernel: str | Kernel = "auto",
        bandwidth: str | float | ArrayLike = "auto",
        n_components: int | str = "auto",
        sampling: str | RandomFeatures = "auto",
        alpha: float | str = "auto",
        fit_intercept: bool = True,
        multiclass: str = "auto",
        class_weight: str | dict[Any, float] | None = None,
        calibration: str | None = None,
        solver: str = "newton",
        tol: float = 1e-6,
        max_iter: int = 1000,
        max_seconds: float | None = None,
        max_memory: int | None = None,
        dtype: str = "float64",
        warm_start: bool = False,
        random_state: Seed = None,
        verbose: int = 0,
    ) -> None:
        self.loss = loss
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.n_components = n_components
        self.sampling = sampling
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.multiclass = multiclass
        self.class_weight = class_weight
        self.calibration = calibration
        self.solver = solver
        self.tol = tol
        self.max_iter = max_iter
        self.max_seconds = max_seconds
        self.max_memory = max_memory
        self.dtype = dtype
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: ArrayLike | None = None,
        *,
        checkpoint: str | PathLike[str] | None = None,
    ) -> Self:
        """Fit all classes.

        Parameters
        ----------
        X : array-like or data frame of shape (n, d); text, dates and missing values are encoded (user guide on tables)
            Or an object of `quernel.data` with its own target, without y and sample_weight; or a Dask collection.
            Out-of-core labels must be numbers.
        y : array-like of shape (n,), labels of at least two classes
        sample_weight : array-like of shape (n,) or None
            A weight of 2 is equivalent to repeating the row, a weight of 0 to leaving it out.
        checkpoint : as in `KernelQuantileRegressor`

        Returns
        -------
        self : the fitted estimator
        """
        kernel, loss = self._check_parameters(), self._check_loss()
        check_checkpoint(self, checkpoint)
        budget = TimeBudget(self.max_seconds)
        labelled = self._read(kernel, X, y, sample_weight, check_labels)
        classes = _find_classes(labelled.rows)
        if self.calibration is not None:
            _check_folds(labelled.in_memory.y, self.calibration)
        n_columns = 1 if len(classes) == 2 else len(classes)
        loss = loss.take(np.zeros(n_columns, dtype=np.intp))
        together = self._multinomial(loss)
        if together:
            self._check_multinomial(labelled.rows, checkpoint)
        data = replace(labelled, rows=self._encode_classes(labelled.rows, classes, n_columns))
        start = WarmStart.from_model(self, data.summary, loss, checkpoint)
        own = {"classes_": classes, "loss_": loss, "_together": together}
        n_folds = N_FOLDS
        with self._reporting(data, loss):
            plan = self._plan(data, kernel, loss, start, budget)
            with stopping(interruptible=True) as stop:  # one Ctrl-C ends the fit and its calibration
                solution = self._solve(plan, data, loss, start, budget)
                if self.calibration is not None:
                    own["calibrated_"], n_folds = self._calibrate(plan, labelled.in_memory, budget.left(), stop)
        if n_folds < N_FOLDS:
            solution = replace(solution, stopped_by=stop.reason)
        self._store(data, plan, solution, start, **own)
        warn_calibration_stopped(self, n_folds, N_FOLDS)
        return self

    def _encode_classes(self, rows: Rows, classes: Labels, n_columns: int) -> Rows:
        """Encode labels as signs (one-vs-rest) and multiply sample weights by class weights."""
        if not isinstance(rows, ArrayRows):
            factor = self._class_factors(classes, lambda: class_weights(rows, classes))
            return encode_target(rows, classes, n_columns, factor)
        codes = np.searchsorted(classes, rows.y)
        factor = self._class_factors(classes, lambda: np.bincount(codes, rows.weight).astype(float))
        return ArrayRows(rows.X, encode_signs(codes, n_columns), _scale_weight(codes, rows.weight, factor))

    def _check_multinomial(self, rows: Rows, checkpoint: str | PathLike[str] | None) -> None:
        """Raise ValueError where the multinomial model cannot be fitted: out of core, or from a warm start."""
        if not isinstance(rows, ArrayRows):
            require_in_memory([("The multinomial model", "multiclass='ovr'")], rows)
        if self.warm_start or checkpoint is not None:
            raise ValueError(
                "The multinomial model has no warm_start and no checkpoint: it always starts from scratch. Use "
                "multiclass='ovr'."
            )

    def _restrictions(self, needed: str) -> Iterator[tuple[str, str]]:
        yield from super()._restrictions(needed)
        if self.calibration is not None:
            yield f"calibration={self.calibration!r}", "loss='logistic' and calibration=None"

    @blockwise
    def decision_function(self, X: Any) -> Array:
        """Decision function f(x): shape (n,) for two classes, positive for `classes_[1]`, and (n, K) for more."""
        check_is_fitted(self)
        scores = self._predict_raw(check_rows(self, X))
        return scores[:, 0] if len(self.classes_) == 2 else scores

    @blockwise
    def predict(self, X: Any) -> Labels:
        """Predict class labels, those of the largest decision function, shape (n,)."""
        scores = self.decision_function(X)
        return self.classes_[(scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)]

    @available_if(_gives_probabilities)
    @blockwise
    def predict_proba(self, X: Any) -> Array:
        """Class probabilities, shape (n, K), in the order of `classes_`.

        The logistic loss gives them itself: by the sigmoid, by softmax for the multinomial model, and one-vs-rest by
        sigmoids normalised to sum to one. Other losses need `calibration`.
        """
        check_is_fitted(self)
        scores = self.decision_function(X)
        if self.calibration is not None:
            return self.calibrated_.probabilities(scores)
        if scores.ndim == 1:
            return np.column_stack([expit(-scores), expit(scores)])
        if self._together:
            return softmax(scores, axis=1)
        each = expit(scores)
        return each / each.sum(axis=1, keepdims=True)

    @available_if(_gives_probabilities)
    @blockwise
    def predict_log_proba(self, X: Any) -> Array:
        """Logarithm of `predict_proba`, shape (n, K)."""
        return np.log(self.predict_proba(X))

    def _check_loss(self) -> Loss:
        """Validate loss, multiclass, calibration and class_weight; return the loss object."""
        check_loss(self.loss, margin=True)
        loss = LOSSES[self.loss]() if isinstance(self.loss, str) else self.loss
        check_choice("multiclass", self.multiclass, ("auto", "ovr", "multinomial"))
        check_choice("calibration", self.calibration, (None, "sigmoid", "isotonic"))
        if self.multiclass == "multinomial" and not isinstance(loss, Logistic):
            raise ValueError(
                f"multiclass='multinomial' needs loss='logistic'; got {self.loss!r}. Use multiclass='ovr', or the "
                "logistic loss."
            )
        if self.multiclass == "multinomial" and self.solver != "newton":
            raise ValueError(
                f"multiclass='multinomial' is for solver='newton'; got solver={self.solver!r}. Use multiclass='ovr' or "
                "solver='newton'."
            )
        if self.class_weight is not None and not isinstance(self.class_weight, dict):
            check_choice("class_weight", self.class_weight, (None, "balanced"))
        return loss

    def _multinomial(self, loss: Loss) -> bool:
        """Whether three or more classes are fitted by one multinomial model."""
        wanted = self.multiclass != "ovr" and self.solver == "newton"
        return wanted and isinstance(loss, Logistic) and loss.n_columns > 1

    def _choose_solver(self, loss: Loss) -> Solver:
        """The solver of the multinomial model, or that of one against the rest."""
        return MULTINOMIAL if self._multinomial(loss) else super()._choose_solver(loss)

    def _class_factors(self, classes: Labels, totals: Callable[[], Array]) -> Array | None:
        """Factor on the sample weights of each class, (K,), or None; `totals()` gives the weight of each class."""
        if self.class_weight is None:
            return None
        if isinstance(self.class_weight, dict):
            return _given_weights(self.class_weight, classes)
        total = totals()
        return total.sum() / (len(total) * total)

    def _default_alpha(self, summary: DataSummary, loss: Loss) -> float:  # noqa: ARG002
        return alpha_for(loss, 1.0)

    def _output_names(self) -> list[str]:
        if len(self.coef_.T) == 1 or self._together:
            return [f"the {type(self.loss_).__name__} loss"]
        return [f"class {label}" for label in self.classes_]

    def _calibrate(
        self, plan: FitPlan, rows: ArrayRows, seconds: float | None, stop: Stop
    ) -> tuple[ProbabilityCurves, int]:
        """Fit the calibration curves to out-of-fold scores; also returns how many folds were completed.

        Folds share the time. After a request to stop no further one begins, and the fit that was stopped is left out,
        unless it was the first.
        """
        from sklearn.calibration import CalibratedClassifierCV

        model = clone(self).set_params(calibration=None, alpha=plan.alpha)
        model.set_params(max_seconds=None if seconds is None else seconds / N_FOLDS)
        if plan.n_components_choice is not None:
            model.set_params(n_components=plan.n_components)
        scores: list[Array] = []
        held_out: list[Index] = []
        n_complete = 0
        for train, test in StratifiedKFold(N_FOLDS).split(rows.X, rows.y):
            with convergence_not_warned():  # of the five; the fit of all rows warns
                fold = clone(model).fit(
                    rows.X[train], rows.y[train], None if rows.weight is None else rows.weight[train]
                )
            stopped = stop.reason is not None
            n_complete += not stopped
            if not stopped or not scores:
                scores.append(fold.decision_function(rows.X[test]))
                held_out.append(test)
            if stopped:
                break
        index = np.concatenate(held_out)
        known, whole = np.concatenate(scores).reshape(len(index), -1), np.arange(len(index))
        found = CalibratedClassifierCV(_KnownScores(), method=self.calibration, cv=[(whole, whole)], ensemble=True)
        found.fit(known, rows.y[index], sample_weight=None if rows.weight is None else rows.weight[index])
        return ProbabilityCurves.from_calibrators(found.calibrated_classifiers_[0].calibrators), n_complete


class _KnownScores(ClassifierMixin, BaseEstimator):
    """Classifier whose decision function is X itself, of shape (n, 1) for two classes."""

    def fit(self, X: Array, y: Labels, sample_weight: ArrayLike | None = None) -> Self:  # noqa: ARG002
        """Learn the classes; X has their scores already."""
        self.classes_ = np.unique(y)
        return self

    def decision_function(self, X: Array) -> Array:
        """The scores."""
        return X[:, 0] if X.shape[1] == 1 else X


def _find_classes(rows: Rows) -> Labels:
    """Sorted distinct labels, at least two."""
    classes = np.unique(rows.y) if isinstance(rows, ArrayRows) else _find_streamed_classes(rows)
    if len(classes) < 2:
        raise ValueError(
            f"KernelClassifier needs rows of at least 2 classes; y has one class only, {classes[0]!r}. "
            "Is the table sorted by class and cut?"
        )
    return classes


def _check_folds(y: Labels, calibration: str) -> None:
    """Raise ValueError if a class has fewer rows than the calibration has folds."""
    labels, counts = np.unique(y, return_counts=True)
    if counts.min() < N_FOLDS:
        raise ValueError(
            f"calibration={calibration!r} needs at least {N_FOLDS} rows of each class, one for each fold; "
            f"{labels[counts.argmin()]!r} has {counts.min()}. Use calibration=None, or leave out such classes."
        )


def _find_streamed_classes(source: DaskRows | RowSource) -> Labels:
    """Sorted distinct labels of out-of-core rows."""
    classes = statistics.distinct_labels(source, MOST_CLASSES)
    if len(classes) > MOST_CLASSES:
        raise ValueError(
            f"The target has more than {MOST_CLASSES:,} different values. For numbers to be predicted as such use "
            "KernelRegressor or KernelQuantileRegressor."
        )
    return check_labels(classes)


def _given_weights(given: dict[Any, float], classes: Labels) -> Array:
    """Class weights given as a dict, as an array in the order of `classes`; 1 for classes that it leaves out."""
    known = classes.tolist()
    unknown = [label for label in given if label not in known]
    if unknown:
        raise ValueError(f"class_weight names classes that y does not have: {unknown}. y has {known}.")
    weights = np.array([given.get(label, 1.0) for label in known], dtype=float)
    if not np.all(np.isfinite(weights) & (weights > 0)):
        raise ValueError(f"class_weight must be positive numbers; got {given}. Leave out rows to leave out a class.")
    return weights


def encode_signs(codes: Index, n_columns: int) -> Array:
    """Signs -1 and +1 of class codes 0 ... K-1: shape (n,) for two classes, (n, K) one-vs-rest for more."""
    if n_columns == 1:
        return np.where(codes == 1, 1.0, -1.0)
    return np.asfortranarray(np.where(codes[:, None] == np.arange(n_columns), 1.0, -1.0))


def encode_labels(y: Labels, classes: Labels) -> Index:
    """Class codes: positions of the labels y in the sorted `classes`.

    A label not in `classes` occurs only in rows of weight 0, so that any valid code will do for it.
    """
    return np.minimum(np.searchsorted(classes, y), len(classes) - 1)


def encode_target(
    source: DaskRows | RowSource, classes: Labels, n_columns: int, factor: Array | None
) -> DaskRows | MappedRows:
    """Encode the labels of out-of-core rows as signs, lazily; factors (K,), if any, multiply the weights by class."""
    if not isinstance(source, DaskRows):

        def encode(y: Labels, weight: Array | None) -> tuple[Array, Array | None]:
            codes = encode_labels(y, classes)
            return encode_signs(codes, n_columns), _scale_weight(codes, weight, factor)

        return MappedRows(source, encode, weighted=source.weighted or factor is not None)
    chunks = {} if n_columns == 1 else {"new_axis": 1, "chunks": (source.y.chunks[0], (n_columns,))}
    y = source.y.map_blocks(partial(_encode_signs_block, classes, n_columns), dtype=float, **chunks)
    weight = source.weight
    if factor is not None:
        by_class = source.y.map_blocks(partial(_class_factor_block, classes, factor), dtype=float)
        weight = by_class if weight is None else weight * by_class
    return source.derive(source.X, y, weight)


def _encode_signs_block(classes: Labels, n_columns: int, y: Labels) -> Array:
    return encode_signs(encode_labels(y, classes), n_columns)


def _class_factor_block(classes: Labels, factor: Array, y: Labels) -> Array:
    return factor[encode_labels(y, classes)]


def _scale_weight(codes: Index, weight: Array | None, factor: Array | None) -> Array | None:
    """weight * factor[class], where None stands for ones; None if both are."""
    if factor is None:
        return weight
    return factor[codes] if weight is None else weight * factor[codes]


def class_weights(source: DaskRows | RowSource, classes: Labels) -> Array:
    """Sum of the sample weights of every class, shape (K,), in one pass over y."""

    def step(piece: Piece) -> Array:
        return np.bincount(encode_labels(piece.y, classes), piece.weight, minlength=len(classes)).astype(float)

    return statistics.map_reduce(source, step, lambda parts: np.sum(parts, axis=0), X=False)


@dataclass(frozen=True)
class Sigmoid:
    """Platt scaling: probability 1 / (1 + exp(slope s + offset)) of a score s."""

    slope: float
    offset: float

    def __call__(self, scores: Array) -> Array:
        """Calibrated probability of each score."""
        return expit(-(self.slope * scores + self.offset))


@dataclass(frozen=True, eq=False)
class Isotonic:
    """Isotonic calibration: linear interpolation of (scores, chances), both increasing; constant beyond the ends."""

    scores: Array
    chances: Array

    def __post_init__(self) -> None:
        if self.scores.shape != self.chances.shape or self.scores.ndim != 1 or np.any(np.diff(self.scores) <= 0):
            raise ValueError(f"an isotonic curve of {self.scores.shape} scores and {self.chances.shape} chances")

    def __call__(self, scores: Array) -> Array:
        """Calibrated probability of each score."""
        return np.interp(scores, self.scores, self.chances)


@dataclass(frozen=True)
class ProbabilityCurves:
    """Calibration curves: one for the second of two classes, or one per class, normalised to sum to one."""

    curves: tuple[Sigmoid | Isotonic, ...]

    @classmethod
    def from_calibrators(cls, calibrators: Any) -> ProbabilityCurves:
        """From the fitted calibrators of a CalibratedClassifierCV."""
        return cls(tuple(_curve(one) for one in calibrators))

    def probabilities(self, scores: Array) -> Array:
        """Class probabilities (n, K) from the decision function, of shape (n,) for two classes or (n, K) for more."""
        if scores.ndim == 1:
            second = self.curves[0](scores)
            return np.column_stack([1 - second, second])
        each = np.column_stack([curve(column) for curve, column in zip(self.curves, scores.T, strict=True)])
        total = each.sum(axis=1, keepdims=True)
        # If all curves give 0, all classes are equally likely.
        return np.where(total > 0, each / np.where(total > 0, total, 1), 1 / len(self.curves))


def _curve(calibrator: Any) -> Sigmoid | Isotonic:
    """Numbers of one fitted calibrator of scikit-learn."""
    if hasattr(calibrator, "a_"):
        return Sigmoid(float(calibrator.a_), float(calibrator.b_))
    return Isotonic(calibrator.X_thresholds_, calibrator.y_thresholds_)
