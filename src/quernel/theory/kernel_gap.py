"""What random features cost in one fit: proved bounds on its objective minus the optimum of the exact kernel.

Dual variables of a fit on random features are also feasible for the exact kernel: the box [tau - 1, tau] and, with an
intercept, the balance mean v = 0 do not involve the features. With s_i = w_i v_i / W, weak duality gives for every such
v and every function f

    D_K(v) = s'y - s'K s / (4 alpha)   <=   min F_K   <=   F_K(f) = mean pinball(y - f - b) + alpha |f|_K^2,

so that  F - F_K(f) <= F - min F_K <= F - D_K(v).  The lower bound on min F_K is maximised over mixtures of two duals,
those of the fit itself and of a Nystroem fit, and 0. The upper bound is the least of three functions: K s / (2 alpha)
of both duals, and the Nystroem fit, which lies in the kernel's space. One pass over K, block by block, serves all
levels.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel._machine import parallel_map, single_threaded_blas
from quernel.data import ArrayRows, InMemoryDesign
from quernel.data.design_matrix import FeatureMap
from quernel.data.sources import begin_pass
from quernel.features import Nystroem
from quernel.kernels import Kernel
from quernel.losses import Pinball
from quernel.objective import Problem
from quernel.objective.duality_gap import balanced
from quernel.solvers import SOLVERS, Result
from quernel.theory.decomposition import compare_operators

Array = NDArray[np.floating]

# Rounding errors: ratios of objectives are accurate to about 1e-14, and s'K s, whose |s| add up to less than 1, to a
# few units in the last place of K, which 1 / (4 alpha) multiplies. Both bounds are moved outwards by more than that.
ROUNDING, LAST_PLACE = 1e-12, 4 * float(np.finfo(float).eps)


@dataclass(frozen=True)
class KernelGapOptions:
    """What the bounds may cost in time."""

    # Landmarks of the Nystroem fit: as many as the fit has features, within these limits. More make the bounds tighter.
    min_landmarks: int = 300
    max_landmarks: int = 1000
    # Block of K in memory at a time: it should fit into the processor's cache; larger ones take three times as long.
    block_shape: tuple[int, int] = (256, 1024)
    # Rows on which the operator similarity is computed, in cubic time, and number of ridge weights in its grid.
    similarity_rows: int = 500
    similarity_alphas: int = 13


@dataclass(frozen=True, eq=False)
class KernelGap:
    """Bounds per quantile level on (F - min F_K) / F, the cost of random features beside the exact kernel.

    F is the objective of the fit, and F_K that of the exact kernel with the same ridge weight and rows. A negative
    number means that the features happen to suit y better than the kernel does.

    Attributes
    ----------
    quantiles : ndarray of shape (q,)
    lower, upper : ndarrays of shape (q,)
        lower <= (F - min F_K) / F <= upper, proved.
    similarity_bound : ndarray of shape (q,)
        Upper bound on the same ratio without a pass over the kernel, from the similarity of features and kernel as
        operators (`lemC.2`). Proved if `similarity_rows` is all rows, otherwise an estimate from a sample.
    objective : ndarray of shape (q,)
        F.
    n_components : int
        Number of features of the fit.
    similarity_rows : int
        Rows on which the similarity was computed.
    """

    quantiles: Array
    lower: Array
    upper: Array
    similarity_bound: Array
    objective: Array
    n_components: int
    similarity_rows: int

    def as_percent(self) -> list[tuple[str, str]]:
        """The bounds of every level as text, rounded outwards so that they remain bounds."""
        brackets = zip(self.lower, self.upper, strict=True)
        return [(_format_percent(low, ROUND_FLOOR), _format_percent(high, ROUND_CEILING)) for low, high in brackets]

    def __str__(self) -> str:
        brackets, worst = self.as_percent(), int(self.upper.argmax())
        cost = f"cost at most {brackets[worst][1]} of the objective" if self.upper[worst] > 0 else "cost nothing"
        lines = [f"M = {self.n_components:,} features {cost}, compared with the exact kernel:"]
        lines += [
            f"  level {level:g}: {low} to {high}" for level, (low, high) in zip(self.quantiles, brackets, strict=True)
        ]
        return "\n".join(lines)


def _format_percent(share: float, rounding: str) -> str:
    """A ratio as a percentage with three decimals, rounded in the given direction."""
    if not np.isfinite(share):
        return "unknown"
    return f"{Decimal(100 * share).quantize(Decimal('0.001'), rounding=rounding)} %"


def kernel_gap(
    rows: ArrayRows,
    kernel: Kernel,
    feature_map: FeatureMap,
    quantiles: Array,
    alpha: float,
    objective: Array,
    *,
    fit_intercept: bool = True,
    tol: float = 1e-6,
    max_iter: int = 1000,
    max_memory: int | None = None,
    similarity_only: bool = False,
    options: KernelGapOptions | None = None,
) -> KernelGap:
    """Bound what the features of a quantile fit cost beside the exact kernel.

    Time grows like n^2 (100,000 rows of 5 columns, Gaussian kernel: about 20 processor seconds), memory like n d beside
    the features, which `max_memory` limits.

    Parameters
    ----------
    rows : ArrayRows
        Training rows, with one target for all levels.
    kernel : Kernel
        With its bandwidth.
    feature_map : FeatureMap
        The features of the fit.
    quantiles : ndarray of shape (q,)
    alpha, fit_intercept : of the fit
    objective : ndarray of shape (q,)
        F of the fit on these rows.
    tol, max_iter, max_memory : for the solver, which recomputes the dual variables
    similarity_only : bool
        Leave out the pass over the kernel; `upper` is then `similarity_bound`, and `lower` is -inf.
    options : KernelGapOptions or None
    """
    kernel.check_diagonal()
    options = options or KernelGapOptions()
    loss, share, objective = (
        Pinball(np.asarray(quantiles, dtype=float)),
        rows.share(),
        np.asarray(objective, dtype=float),
    )

    def solve(features: FeatureMap) -> tuple[Array, Array]:
        """Feasible duals (n, q) and the objective (q,) of the fit on these features."""
        problem = Problem(
            InMemoryDesign(rows, features, max_memory=max_memory), loss, alpha, fit_intercept=fit_intercept
        )
        found = _solve(problem, tol, max_iter)
        return _feasible_duals(found.dual, loss, share, fit_intercept=fit_intercept), found.objective

    def as_share(bound: Array) -> Array:
        """(F - bound) / F, and 0 if F is 0, which cannot be lowered."""
        return np.divide(objective - bound, objective, out=np.zeros_like(objective), where=objective > 0)

    dual, _ = solve(feature_map)
    similarity_bound = as_share(_dual_bound_by_similarity(rows, kernel, feature_map, dual, alpha, options))
    lower, upper = np.full_like(objective, -np.inf), similarity_bound
    if not similarity_only:
        n_landmarks = min(max(feature_map.n_components_, options.min_landmarks), options.max_landmarks)
        landmarks = Nystroem(kernel, n_landmarks, landmarks="distinct").fit(rows.X, sample_weight=rows.weight)
        second, in_kernel_space = solve(landmarks)
        bounds = _bound_optimum(
            rows, kernel, loss, alpha, np.stack([dual, second], axis=2), options, fit_intercept=fit_intercept
        )
        summation_error = LAST_PLACE * float(kernel.diagonal(rows.X).max()) / (4 * alpha)
        lower = as_share(np.minimum(bounds[1], in_kernel_space) + summation_error) - ROUNDING
        upper = as_share(bounds[0] - summation_error) + ROUNDING
    return KernelGap(
        quantiles=loss.levels,
        lower=lower,
        upper=upper,
        similarity_bound=similarity_bound,
        objective=objective,
        n_components=feature_map.n_components_,
        similarity_rows=min(options.similarity_rows, rows.n_rows),
    )


def _bound_optimum(
    rows: ArrayRows,
    kernel: Kernel,
    loss: Pinball,
    alpha: float,
    duals: Array,
    options: KernelGapOptions,
    *,
    fit_intercept: bool,
) -> tuple[Array, Array]:
    """Lower and upper bound on min F_K, (q,) each, from two duals (n, q, 2) and one pass over the kernel."""
    weighted = rows.share()[:, None, None] * duals  # s
    products = _multiply_gram(kernel, rows.X, weighted.reshape(rows.n_rows, -1), options.block_shape)
    products = products.reshape(weighted.shape)
    linear = np.einsum("nqk,n->qk", weighted, rows.y)
    quadratic = np.einsum("nqk,nql->qkl", weighted, products) / (4 * alpha)
    below = np.array([_maximize_dual(*level) for level in zip(linear, quadratic, strict=True)])
    above = [
        _mean_loss(rows, loss, products[:, :, k] / (2 * alpha), fit_intercept=fit_intercept) + quadratic[:, k, k]
        for k in range(2)
    ]
    return below, np.minimum(*above)


def _solve(problem: Problem, tol: float, max_iter: int) -> Result:
    """Solve with single-threaded BLAS where the problem is small."""
    with single_threaded_blas(problem.rows.n_rows, problem.rows.n_features) as problem.rows.threads:
        return SOLVERS["newton"](problem, tol=tol, max_iter=max_iter)


def _feasible_duals(dual: Array, loss: Pinball, share: Array, *, fit_intercept: bool) -> Array:
    """Dual variables made exactly feasible: clipped to the box and, with an intercept, balanced.

    Those of the solver are feasible up to rounding and `tol` only, and the bounds need feasibility.
    """
    inside = np.clip(dual, *loss.domain)
    return np.stack([balanced(column, share, 0.0) for column in inside.T], axis=1) if fit_intercept else inside


def _multiply_gram(kernel: Kernel, X: Array, V: Array, block_shape: tuple[int, int]) -> Array:
    """K V, shape (n, k), with K = K(X, X) computed block by block.

    Only blocks on and above the diagonal are computed; each is used twice, by the symmetry of K.
    """
    n, product = len(X), np.zeros_like(V)
    height, width = block_shape
    count = begin_pass(n * (n + 1) // 2)
    with single_threaded_blas(n, n) as threads:
        for top in range(0, n, height):
            strip = slice(top, min(top + height, n))

            def multiply(block: slice, strip: slice = strip) -> Array:
                gram = kernel.gram(X[strip], X[block])
                product[block] += gram.T @ V[strip]  # safe: no other thread writes to this block
                return gram @ V[block]

            on_diagonal = kernel.gram(X[strip], X[strip]) @ V[strip]
            blocks = [slice(start, min(start + width, n)) for start in range(strip.stop, n, width)]
            product[strip] += on_diagonal + sum(parallel_map(multiply, blocks, threads))
            size = strip.stop - strip.start
            count(size * (size + 1) // 2 + size * (n - strip.stop))
    return product


def _maximize_dual(linear: Array, quadratic: Array) -> float:
    """Maximum of linear'm - m'quadratic m over m >= 0, sum m <= 1: mixtures of two feasible duals and 0.

    A concave quadratic on a triangle has its maximum on an edge or at the stationary point, if that lies inside.
    """

    def along(start: Array, end: Array) -> Array:
        step = end - start
        slope, curvature = (linear - 2 * quadratic @ start) @ step, 2 * step @ quadratic @ step
        return start + np.clip(slope / curvature if curvature > 0 else float(slope > 0), 0, 1) * step

    corners = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    candidates = [along(corners[i], corners[j]) for i, j in ((0, 1), (0, 2), (1, 2))]
    inner = np.linalg.lstsq(2 * quadratic, linear, rcond=None)[0]
    if np.all(inner >= 0) and inner.sum() <= 1:
        candidates.append(inner)
    return max(float(linear @ m - m @ quadratic @ m) for m in candidates)


def _mean_loss(rows: ArrayRows, loss: Pinball, curves: Array, *, fit_intercept: bool) -> Array:
    """Mean pinball loss of the curves (n, q), with the best constant of each if there is an intercept."""
    residual, share = rows.y[:, None] - curves, rows.share()
    if fit_intercept:
        residual = residual - loss.fit_constant(residual, share)
    return share @ loss.value(residual)


def _dual_bound_by_similarity(
    rows: ArrayRows, kernel: Kernel, feature_map: FeatureMap, dual: Array, alpha: float, options: KernelGapOptions
) -> Array:
    """Lower bound on D_K, shape (q,), without a pass over the kernel.

    With q = |(L + a)^1/2 (L_M + a)^-1/2| of the operators of kernel and features, L + a <= q^2 (L_M + a), hence

        s'K s <= q^2 s'K_M s + (q^2 - 1) a mean v^2.

    The dual is scaled by the best factor in [0, 1], and the bound maximised over a grid of a.
    """
    share = rows.share()
    sample = np.random.default_rng(0).permutation(rows.n_rows)[: options.similarity_rows]
    root = np.sqrt(share[sample] / share[sample].sum())
    gram = root[:, None] * kernel.gram(rows.X[sample], rows.X[sample]) * root
    Phi = root[:, None] * feature_map.transform(rows.X[sample])
    feature_quadratic = _quadratic_of_features(rows, feature_map, share[:, None] * dual) / (4 * alpha)
    mean_square, linear = share @ dual**2 / (4 * alpha), (share * rows.y) @ dual
    best = np.zeros(dual.shape[1])
    with single_threaded_blas(0, 0):
        for a in np.trace(gram) * np.logspace(-6, 0, options.similarity_alphas):
            ratio = compare_operators(gram, Phi @ Phi.T, a).ratio ** 2
            quadratic = np.maximum(ratio * feature_quadratic + (ratio - 1) * a * mean_square, np.finfo(float).tiny)
            scale = np.clip(linear / (2 * quadratic), 0, 1)
            best = np.maximum(best, scale * linear - scale**2 * quadratic)
    return best


def _quadratic_of_features(rows: ArrayRows, feature_map: FeatureMap, weighted: Array) -> Array:
    """s'K_M s = |Phi's|^2 for every column s, over blocks of rows."""
    total: Any = 0.0
    for start in range(0, rows.n_rows, 4096):
        part = slice(start, start + 4096)
        total = total + feature_map.transform(rows.X[part]).T @ weighted[part]
    return np.sum(total**2, axis=0)
