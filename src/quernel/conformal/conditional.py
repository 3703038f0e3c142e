"""Conditional coverage by a kernel: cutoffs of conformity scores that are a smooth function of x.

A split conformal interval covers `coverage` of all new rows, but may cover 70 % of them here and 100 % there. Gibbs,
Cherian and Candes (2023) make the cutoff of the scores a function of x: the quantile curve that is fitted to the scores
of the calibration rows *and* of the new row, whose score is the largest one with which it conforms. Then, for every
function f of the class that is fitted, coverage holds on average over new rows reweighted by f, however f >= 0 is
chosen: exactly for the unpenalised columns (a constant, groups, covariates), and up to the penalty for functions of the
kernel's space, such as bumps around a point.

Kernel and penalty are chosen by the held-out pinball loss of the scores of rows that are put aside, and then calibrate
nothing: the calibration rows and the new one stay exchangeable.
"""

from __future__ import annotations

import warnings
import zlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import _num_samples

from quernel.conformal.methods import Index, Scale, Scores, uncross, unknown_group
from quernel.data import ArrayRows, InMemoryDesign
from quernel.estimators.prediction import check_rows
from quernel.estimators.quantile_cv import KernelQuantileRegressorCV
from quernel.losses import Pinball
from quernel.objective import Problem
from quernel.solvers import screening

if TYPE_CHECKING:
    from quernel.conformal.active_set_path import CutoffFit

Array = NDArray[np.floating]

# Share of the calibration rows whose scores choose the kernel, the most that do, and the fewest; these take as many to
# calibrate.
CHOICE_SHARE, MAX_CHOICE, MIN_CHOICE = 0.25, 2_000, 50
# Features of the kernel; of its space the calibration rows see no more.
N_COMPONENTS = 300
# Scores are moved by up to this share of their range, so that no two tie.
TIE_BREAKING = 1e-10
# Factor of the unpenalised columns beside penalised features, in the fit from which the exact one starts.
COLUMN_FACTOR = 1e3
# Most that a single row can move the cutoff, in mean deviations of the scores: a floor of the ridge penalty.
MAX_INFLUENCE = 100.0
# Relative duality gap of that fit.
START_TOL = 1e-9


@dataclass(frozen=True, eq=False)
class KernelCalibration:
    """Calibration rows in the space of a kernel, by which cutoffs are computed.

    Model files store these fields by name, except the fits, which are computed again.

    Parameters
    ----------
    model : KernelQuantileRegressorCV
        Fitted to the scores of other rows: the kernel's features and the ridge penalty come from it.
    features : array of shape (n, M)
    columns : array of shape (n, p)
        Unpenalised columns.
    groups : list of labels or None
        Those whose indicators are the first columns; None is a constant.
    alpha : float
        Ridge penalty beside the mean over the calibration rows and the new one.
    randomize : bool
        Whether the threshold of each new row is drawn at random.
    seed : int
    """

    model: KernelQuantileRegressorCV
    features: Array
    columns: Array
    groups: list[Any] | None
    alpha: float
    randomize: bool
    seed: int
    _fits: dict[Any, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def learn(
        cls, X: Any, scores: Scores, level: float, columns: UnpenalisedColumns, randomize: bool, seed: int
    ) -> tuple[KernelCalibration, Index]:
        """Choose the kernel on some rows' scores; return the calibration of the others, and their positions."""
        n, rng = len(scores.weight), np.random.default_rng(seed)
        if n < 2 * MIN_CHOICE:
            raise ValueError(
                f"conditional='kernel' needs at least {2 * MIN_CHOICE} calibration rows; there are {n}. Give more "
                "rows, a larger calibration_size, or leave conditional as None."
            )
        order = rng.permutation(n)
        n_choice = int(np.clip(CHOICE_SHARE * n, MIN_CHOICE, MAX_CHOICE))
        choice, rest = np.sort(order[:n_choice]), np.sort(order[n_choice:])
        model = KernelQuantileRegressorCV(
            level, n_components=N_COMPONENTS, sampling="uniform", recalibrate=False, noncrossing=None, random_state=seed
        ).fit(_safe_indexing(X, choice), scores.above[choice])
        features = _features(model, _safe_indexing(X, rest))
        used = columns.take(rest)
        # The best penalty decreases with the number of rows, as for samples of the search.
        alpha = float(model.alpha_ * np.sqrt(min(1.0, len(choice) / len(rest))))
        return cls(model, features, used.values(), used.known, alpha, randomize, seed), rest

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_fits": {}}

    def unpenalised(self, X: Any, labels: NDArray[Any] | None, covariates: Array | None) -> Array:
        """The unpenalised columns (m, p) of new rows with these groups and covariates."""
        known = self.groups or []
        for label in [] if labels is None else np.unique(labels).tolist():
            if label not in known:
                raise ValueError(unknown_group(label, known))
        columns = UnpenalisedColumns(_num_samples(X), labels, known, covariates).values()
        if columns.shape[1] != (wanted := self.columns.shape[1]):
            raise ValueError(f"covariates has not the columns that it had in fit: {columns.shape[1]} for {wanted}.")
        return columns

    def intervals(
        self, X: Any, columns: Array, bounds: Array, scores: Scores, level: float, symmetric: bool, scale: Scale | None
    ) -> Array:
        """The intervals (m, 2) of new rows with these bounds (m, 2), widened by cutoffs that depend on x."""
        low, high = bounds.T
        unit = 1.0 if scale is None else scale(low, high)
        above, _ = self.cutoffs(X, columns, scores.above, level)
        below = above if symmetric else self.cutoffs(X, columns, scores.below, level)[0]
        return uncross(low - unit * below, high + unit * above)

    def cutoffs(self, X: Any, columns: Array, score: Array, level: float) -> tuple[Array, Array]:
        """The largest score (m,) with which each new row conforms, and bounds (m,) of their errors.

        `columns` (m, p) are the unpenalised columns of the new rows, score (n,) those of the calibration rows.
        """
        key = (level, zlib.crc32(score.tobytes()))
        if key not in self._fits:
            self._fits[key] = self._fit(score, level)
        features = _features(self.model, X)
        threshold = np.full(len(features), level)
        if self.randomize:
            threshold += _uniform(features, self.seed) - 1
        cutoff, error = self._fits[key].cutoffs(features, columns, threshold, np.zeros(len(features)))
        if n_failed := int(np.sum(error == np.inf)):
            warnings.warn(
                f"The cutoffs of {n_failed} of {len(cutoff)} rows could not be computed; their intervals are infinite. "
                "Give more calibration rows, or leave conditional as None.",
                ConvergenceWarning,
                stacklevel=4,
            )
        return cutoff, error

    def _fit(self, score: Array, level: float) -> CutoffFit:
        """The fit of the calibration scores alone."""
        from quernel.conformal.active_set_path import OPTIONS, CutoffFit, CutoffProblem  # loads numba

        rng, n = np.random.default_rng(self.seed), len(score)
        largest = np.abs(score[np.isfinite(score)]).max(initial=1e-300)
        score = np.clip(score, -10 * largest, 10 * largest)
        score = score + TIE_BREAKING * np.ptp(score) * rng.uniform(size=n)
        kernel_scale = float(np.mean(np.einsum("ij,ij->i", self.features, self.features)))
        spread = float(np.mean(np.abs(score - np.median(score)))) or 1.0
        kappa, nugget = 2 * self.alpha * (n + 1), OPTIONS.nugget * kernel_scale
        kappa = max(kappa, kernel_scale / (MAX_INFLUENCE * spread))
        both = np.column_stack([self.features, COLUMN_FACTOR * self.columns])
        rows = InMemoryDesign(ArrayRows(both, score), features=both)
        start = screening.solve(Problem(rows, Pinball([level]), kappa / (2 * n), fit_intercept=True), tol=START_TOL)
        constant = np.linalg.lstsq(self.columns, np.ones(n), rcond=None)[0]
        intercept = COLUMN_FACTOR * start.coef[self.features.shape[1] :, 0] + start.intercept[0] * constant
        problem = CutoffProblem(self.features, self.columns, score, level, kappa, nugget)
        return CutoffFit.from_approximate(problem, start.dual[:, 0], intercept)


@dataclass(frozen=True, eq=False)
class UnpenalisedColumns:
    """Functions of x for which coverage is exact: indicators of groups, or a constant, and covariates (n, k).

    labels (n,) are the groups of the rows, None without; known are those of the calibration rows, in order.
    """

    n_rows: int
    labels: NDArray[Any] | None
    known: list[Any] | None
    covariates: Array | None

    def take(self, rows: Index) -> UnpenalisedColumns:
        """Those of some of the rows."""
        return replace(
            self,
            n_rows=len(rows),
            labels=None if self.labels is None else self.labels[rows],
            covariates=None if self.covariates is None else self.covariates[rows],
        )

    def values(self) -> Array:
        """The columns, of shape (n, p)."""
        parts: list[Array] = [np.ones((self.n_rows, 1))]
        if self.labels is not None and self.known is not None:
            parts = [np.column_stack([self.labels == label for label in self.known]).astype(float)]
        if self.covariates is not None:
            parts.append(self.covariates)
        return np.hstack(parts)


def _features(model: KernelQuantileRegressorCV, X: Any) -> Array:
    """The features (n, M) of rows, as the model encodes and maps them."""
    return np.asarray(model.feature_map_.transform(check_rows(model, X)), dtype=float)


def _uniform(features: Array, seed: int) -> Array:
    """Numbers (m,) in (0, 1), drawn anew for each different row: the same row has the same one in every call."""
    seeds = (zlib.crc32(row.tobytes()) for row in np.ascontiguousarray(features))
    return np.array([np.random.default_rng([seed, own]).uniform() for own in seeds])
