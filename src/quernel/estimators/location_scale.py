"""Kernel location and scale: Y = m(x) + s(x) Z, each a certified kernel ridge regression, with out-of-fold values.

1. Bandwidths, one per column, minimise the leave-one-out error of kernel ridge regression on a sample
   (`tuning.krr_pilot`); the kernel is Gaussian, or the mean of Gaussian and Laplacian.
2. On Nystroem features of all rows, m minimises the squared error of y, and log s that of log(|residual| + floor),
   where the residuals are *out of fold*: in-sample ones are too small, most of all on small tables.
3. A fold of ridge regression is the normal equations without its rows, so that out-of-fold values and the choice of the
   ridge cost a few Cholesky factors rather than as many fits.

The final coefficients come from the solver, with a duality gap.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from quernel._threads import parallel_map, single_threaded_blas
from quernel.data import ArrayRows, InMemoryDesign, blocks
from quernel.estimators.solve import Task, evaluate_outputs
from quernel.features import LandmarkPredictor, Nystroem
from quernel.kernels import Gaussian, Kernel, Laplacian
from quernel.losses import Squared, weighted_quantiles
from quernel.solvers import SOLVERS
from quernel.solvers.progress import stop_requested
from quernel.tuning.bandwidth import auto_bandwidth
from quernel.tuning.data_summary import DataSummary, deduplicated_sample, take_rows
from quernel.tuning.krr_pilot import Pilot, winsorize

Array = NDArray[np.floating]
Index = NDArray[np.integer]

KERNELS: tuple[Kernel, ...] = (Gaussian(), 0.5 * Gaussian() + 0.5 * Laplacian())


@dataclass(frozen=True)
class LocationScaleOptions:
    """Constants of the kernel part; pairs are for tables below and above `large` rows."""

    min_rows: int = 30  # with fewer distinct rows there is no kernel part
    large: int = 5000
    pilot_rows: tuple[int, int] = (700, 800)  # rows from which bandwidths are learned: a step costs their number cubed
    kernel_tie: float = 0.05  # the rougher kernel is taken unless its log leave-one-out error is worse by this
    landmarks: tuple[int, int] = (1000, 1000)  # Nystroem features
    folds: tuple[int, int] = (8, 5)
    search_folds: int = 3  # the first folds, which choose the ridge
    # Tried from the largest on, until one is worse than the one before; the diagonal of the kernel is 1.
    ridges: tuple[float, ...] = tuple(10.0 ** np.arange(1.5, -6.5, -0.5))
    intercept: float = 10.0  # the constant column, penalised like the features: large, so that this hardly matters
    floor: float = 0.3  # of the median |residual|, added before the logarithm
    tol: float = 1e-6


OPTIONS = LocationScaleOptions()


@dataclass(frozen=True, eq=False)
class LocationScale:
    """Fitted m(x) and s(x).

    Attributes
    ----------
    feature_map : LandmarkPredictor; k(x, landmarks) of the kernel with its bandwidths
    coef, intercept : ndarrays of shape (M, 2) and (2,); columns m, in units of y, and log s
    ridge, duality_gap : ndarrays of shape (2,); the gaps are relative
    """

    feature_map: LandmarkPredictor
    coef: Array
    intercept: Array
    ridge: Array
    duality_gap: Array

    def predict(self, X: Array) -> tuple[Array, Array]:
        """m and s of the rows of X, each of shape (n,)."""
        outputs = evaluate_outputs(self.feature_map, self.coef, self.intercept, len(self.coef), X)
        return outputs[:, 0], np.exp(outputs[:, 1])


def learn_kernel(summary: DataSummary) -> Kernel:
    """Kernel with one bandwidth per column, learned from a sample of the rows."""
    sample = deduplicated_sample(summary.sample, OPTIONS.pilot_rows[int(summary.n_rows >= OPTIONS.large)])
    sample = take_rows(sample, np.random.default_rng(0).permutation(sample.n_rows))
    with single_threaded_blas(0, 0):
        pilot = Pilot(sample, Squared(), auto_bandwidth(summary))
        found = [pilot.fit_coarse_bandwidths(kernel, summary.scales) for kernel in KERNELS]
        errors = np.array([one.error for one in found])
        best = int(np.flatnonzero(errors <= errors.min() + OPTIONS.kernel_tie)[-1])
        refined = pilot.refine_bandwidths(KERNELS[best], summary.scales, found[best])
    return KERNELS[best].with_bandwidth(refined.bandwidth)


def fit_location_scale(
    summary: DataSummary, n_components: int | None, groups: Index | None, rng: np.random.Generator
) -> tuple[LocationScale, Array, Array]:
    """Fit m and s; return them and their out-of-fold values at the training rows, (n,) each.

    Rows with the same entry of `groups` (n,) are in one fold. `n_components` None is the automatic number of landmarks.
    """
    rows, share = summary.source, summary.source.share()
    large = int(summary.n_rows >= OPTIONS.large)
    landmarks = Nystroem(learn_kernel(summary), n_components or OPTIONS.landmarks[large], landmarks="distinct")
    landmarks.fit(rows.X, sample_weight=share)
    Phi = np.empty((len(rows.X), landmarks.n_components_))

    def fill(block: slice) -> None:
        Phi[block] = landmarks.transform(rows.X[block])

    with single_threaded_blas(*Phi.shape) as threads:
        parallel_map(fill, blocks(*Phi.shape), threads)
        ridge = FoldRidge(Phi, share, _draw_folds(len(share), OPTIONS.folds[large], groups, rng))
        location = _fit_ridge(ridge, winsorize(rows.y[:, None], share)[:, 0])
        size = np.abs(rows.y - location.out_of_fold)
        middle = float(weighted_quantiles(size, share, np.array([0.5]))[0]) or float(share @ size) or 1.0
        scale = _fit_ridge(ridge, np.log(size + OPTIONS.floor * middle))
        feature_map, coef = LandmarkPredictor.from_nystroem(landmarks, np.column_stack([location.coef, scale.coef]))
    model = LocationScale(
        feature_map,
        coef,
        *(
            np.array([getattr(fit, name) for fit in (location, scale)])
            for name in ("intercept", "ridge", "duality_gap")
        ),
    )
    return model, location.out_of_fold, np.exp(scale.out_of_fold)


def _draw_folds(n_rows: int, n_folds: int, groups: Index | None, rng: np.random.Generator) -> Index:
    """Fold of each row, shape (n_rows,), the same for all rows of a group."""
    labels = np.arange(n_rows) if groups is None else groups
    n_labels = int(labels.max()) + 1
    return (rng.permutation(n_labels) % n_folds)[labels]


@dataclass(frozen=True, eq=False)
class _Ridge:
    """One ridge regression: coefficients in units of its target, out-of-fold values (n,), ridge, relative gap."""

    coef: Array
    intercept: float
    out_of_fold: Array
    ridge: float
    duality_gap: float


def _fit_ridge(ridge: FoldRidge, target: Array) -> _Ridge:
    """Choose the ridge by out-of-fold error, and solve for it."""
    share = ridge.share
    middle = float(share @ target)
    unit = float(np.sqrt(share @ (target - middle) ** 2)) or 1.0
    y = (target - middle) / unit
    chosen, out_of_fold = ridge.select(y)
    task = Task(Squared(), chosen / (2 * len(y)), True, SOLVERS["newton"], OPTIONS.tol, 100, None)
    result = task.solve(InMemoryDesign(ArrayRows(ridge.Phi, y, share), features=ridge.Phi))
    return _Ridge(
        unit * result.coef[:, 0],
        middle + unit * float(result.intercept[0]),
        middle + unit * out_of_fold,
        chosen,
        float(result.relative_gap[0]),
    )


class FoldRidge:
    """Out-of-fold predictions of ridge regression on features (n, M) and a constant c, for many targets and ridges.

    Minimises  sum_i w_i (y_i - p_i'v)^2 + r |v|^2,  p_i = (phi_i, c),  with weights of mean 1, over the rows that are
    not in the fold.
    """

    def __init__(self, Phi: Array, share: Array, folds: Index) -> None:
        self.Phi, self.share = Phi, share
        self.parts = [rows for rows in (np.flatnonzero(folds == k) for k in range(int(folds.max()) + 1)) if len(rows)]
        self.grams = [self._moments(rows) for rows in self.parts]

    def select(self, y: Array) -> tuple[float, Array]:
        """The ridge of least out-of-fold squared error, and the out-of-fold predictions (n,) with it."""
        moments = [self._moments(rows, y) for rows in self.parts]
        some = np.concatenate(self.parts[: OPTIONS.search_folds])
        best, chosen = np.inf, OPTIONS.ridges[0]
        for ridge in OPTIONS.ridges:
            try:
                predicted = self._predict(ridge, moments, OPTIONS.search_folds)
            except LinAlgError:  # singular to working precision, and so for smaller ridges
                break
            error = float(self.share[some] @ (y[some] - predicted[some]) ** 2)
            if error >= best:
                break
            best, chosen = error, ridge
            if stop_requested():
                break
        return chosen, self._predict(chosen, moments, len(self.parts))

    def _predict(self, ridge: float, moments: list[Array], n_folds: int) -> Array:
        """Predictions of the first folds, each from the normal equations of all others; 0 for the rest."""
        gram, moment, predicted = np.sum(self.grams, axis=0), np.sum(moments, axis=0), np.zeros(len(self.share))
        for k, rows in enumerate(self.parts[:n_folds]):
            regular = gram - self.grams[k]
            regular[np.diag_indices_from(regular)] += ridge
            solution = cho_solve(cho_factor(regular, overwrite_a=True), moment - moments[k])
            predicted[rows] = self.Phi[rows] @ solution[:-1] + OPTIONS.intercept * solution[-1]
        return predicted

    def _moments(self, rows: Index, y: Array | None = None) -> Array:
        """sum_i w_i p_i p_i' over these rows, (M + 1, M + 1), or with a target sum_i w_i p_i y_i, (M + 1,)."""
        weight = self.share[rows] * len(self.share)
        P = np.column_stack([self.Phi[rows], np.full(len(rows), OPTIONS.intercept)])
        return P.T @ (weight * y[rows]) if y is not None else P.T @ (weight[:, None] * P)
