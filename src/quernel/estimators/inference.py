"""Confidence bands and tests for quantile curves: what the rows say about the true quantile function.

Let psi = (phi, 1) be the features with the intercept, theta = (u, b), D = diag(1, ..., 1, 0), and f(x) the density of y
at its tau-th quantile given x. The optimality conditions, expanded around the truth, give

    theta_hat - theta = H^-1 (S - 2 alpha D theta),        H = E[f(x) psi psi'] + 2 alpha D,
                                                           S = sum_i w_i psi_i (tau - 1{y_i < q(x_i)}) / W.

**Bias.** A = 2 alpha H^-1 D shrinks theta_hat by A theta. Adding it back K times (iterated Tikhonov regularisation),
theta_K = (I + A + ... + A^K) theta_hat, leaves a bias of A^(K+1) theta only, and the error I - A^(K+1) times that of a
fit without penalty. Bands are centred on theta_K, not on the prediction.

**Variance.** At the true curve 1{y < q(x)} is a coin of probability tau whatever the law of y (Parzen, Wei and Ying
1994; Belloni, Chernozhukov, Chetverikov and Fernandez-Val 2019), so that
Cov(S) = tau (1 - tau) sum_i w_i^2 psi_i psi_i' / W^2
is known, and no residual enters it. Bootstrap draws with normal multipliers, each one Newton step
H^-1 sum_i xi_i w_i psi_i sqrt(tau (1 - tau)) / W, are normal given the rows: they are drawn from their law, by a factor
of their covariance (`CurveInference.factor`), without returning to the rows.

**Density.** f(x) = c / s(x): s is a smooth spread of y around its conditional centre, and c the density at 0 of
residuals over s. Residuals of training rows are too small, so c is that of leave-one-out residuals, by one Newton step
back: r_i + a_i (tau - 1{r_i < 0}) / (1 - f_i a_i), a_i = w_i psi_i' H_K^-1 psi_i / W. It is a kernel estimate of known
relative variance v, and deviations are taken as Student's with 1 / (2 v) degrees of freedom instead of normal.

Features are centred by their means under the weights w / s; the intercept then separates from the rest of H, and one
eigendecomposition per level serves all c.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh
from scipy.special import stdtrit
from scipy.stats import rankdata

from quernel._threads import blocks, single_threaded_blas

Array = NDArray[np.floating]


@dataclass(frozen=True)
class InferenceOptions:
    """Constants of confidence bands, chosen on simulations with other seeds than those of docs/bands.md."""

    corrections: int = 7  # K: times that the shrinkage is added back; more widen the band and lower its bias
    rounds: int = 3  # fixed-point iterations of the density c
    density_rows: int = 8_000  # rows whose leave-one-out residuals determine c
    ridges: tuple[float, ...] = tuple(10.0 ** np.arange(-7.0, 1.0))  # of the spread, relative to the largest eigenvalue
    df_factor: float = 1.4  # of generalised cross-validation: above 1, smoother (Kim and Gu 2004)
    winsor: float = 8.0  # robust standard deviations at which residuals are winsorized before the spread is fitted
    min_root: float = 0.3  # smallest root of the spread, as a share of its median
    max_leverage: float = 0.9
    negligible: float = 1e-4  # share of a coordinate that is fitted, below which it is dropped from the covariance
    draws: int = 2_000  # of the largest deviation, for simultaneous bands and tests
    seed: int = 20_260_101  # of these draws: the same model and rows give the same band
    cached_entries: int = 2**27  # of the matrix of features, up to which it is stored


OPTIONS = InferenceOptions()


@dataclass(frozen=True)
class CurveTest:
    """Result of a test about quantile curves, one entry per level.

    Attributes
    ----------
    statistic : ndarray of shape (q,), largest |estimate / standard error| over the rows
    pvalue : ndarray of shape (q,), at least 1 / (draws + 1); not of the statistic alone, see `test_contrasts`
    quantiles : ndarray of shape (q,), the levels
    """

    statistic: Array
    pvalue: Array
    quantiles: Array

    def __str__(self) -> str:
        """One line per level."""
        rows = zip(self.quantiles, self.statistic, self.pvalue, strict=True)
        return "\n".join(f"level {level:g}: max |t| = {t:.2f}, p = {p:.4f}" for level, t, p in rows)


@dataclass(frozen=True, eq=False)
class CurveInference:
    """Bias-corrected coefficients of the curves, and a factor of their covariance.

    Attributes
    ----------
    coef : ndarray of shape (M, q)
    intercept : ndarray of shape (q,)
    factor : ndarray of shape (q, M + 1, k)
        Cov(u, b) = F F' for each level; columns beyond the rank of a level are 0.
    degrees : ndarray of shape (q,)
        Degrees of freedom of deviations over their standard errors, from the error of the density.
    """

    coef: Array
    intercept: Array
    factor: Array
    degrees: Array

    def __post_init__(self) -> None:
        shape = (self.coef.shape[1], len(self.coef) + 1) if self.coef.ndim == 2 else ()
        if (
            self.factor.shape[:2] != shape
            or self.factor.ndim != 3
            or self.intercept.shape != shape[:1]
            or self.degrees.shape != shape[:1]
        ):
            raise ValueError("the arrays of a CurveInference do not fit together")

    def centre(self, Phi: Array) -> Array:
        """Bias-corrected curves, (m, q)."""
        return Phi @ self.coef + self.intercept

    def deviations(self, Phi: Array, level: int) -> Array:
        """P (m, k) with P P' the covariance of the curve of one level at these rows of features."""
        return Phi @ self.factor[level, :-1] + self.factor[level, -1]


def standardise(P: Array, floor: float = 0.0) -> tuple[Array, Array]:
    """Standard errors (m,), the lengths of the rows of P, and P with rows of length 1 (0 where it is below `floor`)."""
    error = np.sqrt(np.einsum("ij,ij->i", P, P))
    return error, np.divide(P, error[:, None], out=np.zeros_like(P), where=error[:, None] > floor)


def draw_deviations(unit: Array, degrees: float) -> Iterator[Array]:
    """Draws of unit z, z multivariate Student, by blocks of rows (m, draws); the same z whatever the rows."""
    rng = np.random.default_rng(OPTIONS.seed)
    common = np.sqrt(rng.chisquare(degrees, OPTIONS.draws) / degrees).astype(np.float32)
    z = rng.standard_normal((unit.shape[1], OPTIONS.draws), dtype=np.float32) / common
    for span in blocks(len(unit), OPTIONS.draws):
        yield unit[span].astype(np.float32) @ z


def largest_deviations(unit: Array, degrees: float) -> Array:
    """Draws of max_i |unit_i' z|, z Student, shape (draws,): how far the worst row deviates, in its errors."""
    largest = np.zeros(OPTIONS.draws, dtype=np.float32)
    for deviation in draw_deviations(unit, degrees):
        np.maximum(largest, deviation.max(axis=0), out=largest)
        np.maximum(largest, -deviation.min(axis=0), out=largest)
    return largest


def confidence_bounds(fit: CurveInference, Phi: Array, level: float, *, simultaneous: bool) -> Array:
    """Lower and upper ends of the bands of all curves at these rows, shape (m, q, 2)."""
    centre, bounds = fit.centre(Phi), np.empty((*fit.centre(Phi).shape, 2))
    for k in range(centre.shape[1]):
        error, unit = standardise(fit.deviations(Phi, k))
        degrees = float(fit.degrees[k])
        if simultaneous and len(Phi):
            critical = float(np.quantile(largest_deviations(unit, degrees), level))
        else:
            critical = float(stdtrit(degrees, (1 + level) / 2))
        half = critical * error
        bounds[:, k, 0], bounds[:, k, 1] = centre[:, k] - half, centre[:, k] + half
    return bounds


def test_contrasts(
    estimate: Array, deviations: list[Array], degrees: Array, quantiles: Array, *, one_sign: bool
) -> CurveTest:
    """Test that contrasts (m, q), with covariance factors (m, k) and degrees of freedom per level, are all 0.

    Statistics look for differences at single rows, at many rows and, with `one_sign`, of one sign: the largest |t|, the
    mean of t^2, and |t| of the mean contrast. The smallest of their p-values is compared with that of every draw.
    """
    statistic, pvalue = np.zeros(len(quantiles)), np.ones(len(quantiles))
    for k, P in enumerate(deviations):
        floor = 1e-9 * float(np.max(np.abs(P), initial=0.0))
        whole = np.vstack([P, P.mean(axis=0)])
        error, unit = standardise(whole, floor)
        contrast = np.r_[estimate[:, k], estimate[:, k].mean()]
        t = np.divide(contrast, error, out=np.zeros(len(error)), where=error > floor)
        drawn = np.concatenate(list(draw_deviations(unit, float(degrees[k]))))
        found, under = (
            np.stack([np.abs(v[:-1]).max(axis=0), np.mean(v[:-1] ** 2, axis=0), np.abs(v[-1])]) for v in (t, drawn)
        )
        together = np.column_stack([found, under])[: 2 + one_sign]
        smallest = rankdata(-together, axis=1, method="max").min(axis=0)  # over the statistics, of data and draws
        pvalue[k] = np.mean(smallest <= smallest[0])
        statistic[k] = found[0]
    return CurveTest(statistic, pvalue, quantiles)


test_contrasts.__test__ = False  # type: ignore[attr-defined]  # not one of pytest's


class TrainingFeatures:
    """Features of the training rows, block by block: stored if they are few, else computed in every pass."""

    def __init__(self, feature_map: Any, X: ArrayLike) -> None:
        self.feature_map, self.X = feature_map, X
        self.n_rows, self.n_features = len(np.asarray(X)), feature_map.n_components_
        self.spans = list(blocks(self.n_rows, self.n_features))
        few = self.n_rows * self.n_features <= OPTIONS.cached_entries
        self._stored = [self.take(span) for span in self.spans] if few else None

    def take(self, rows: Any) -> Array:
        """Features of some rows, (m, M)."""
        return self.feature_map.transform(np.asarray(np.asarray(self.X)[rows], dtype=float))

    def __iter__(self) -> Iterator[tuple[slice, Array]]:
        for k, span in enumerate(self.spans):
            yield span, self.take(span) if self._stored is None else self._stored[k]

    def gram(self, weight: Array) -> tuple[float, Array, Array]:
        """Sums of weight, weight phi (M,) and weight phi phi' (M, M)."""
        total, mean, gram = float(weight.sum()), np.zeros(self.n_features), np.zeros((self.n_features,) * 2)
        for span, Phi in self:
            scaled = np.sqrt(weight[span])[:, None] * Phi
            gram += scaled.T @ scaled
            mean += weight[span] @ Phi
        return total, mean, gram

    def correlate(self, values: Array) -> Array:
        """Phi' values, shape (M, q)."""
        return np.sum([Phi.T @ values[span] for span, Phi in self], axis=0)

    def predict(self, coef: Array) -> Array:
        """Phi coef, shape (n, q)."""
        return np.concatenate([Phi @ coef for _, Phi in self])


def estimate_inference(
    feature_map: Any,
    X: Array,
    y: Array,
    share: Array,
    coef: Array,
    intercept: Array,
    levels: Array,
    alpha: float,
    *,
    fit_intercept: bool,
    options: InferenceOptions = OPTIONS,
) -> CurveInference:
    """Bias-corrected curves and their covariance, from the rows and the solution.

    Parameters
    ----------
    feature_map : fitted map with `transform`
    X, y, share : training rows (n, d), targets (n,), normalized weights (n,)
    coef, intercept, levels : the solution (M, q), (q,) at the levels (q,)
    alpha, fit_intercept : ridge weight, and whether there is an intercept
    options : constants, others than the default in simulations only
    """
    with single_threaded_blas(0, 0):
        features = TrainingFeatures(feature_map, X)
        residual = y[:, None] - features.predict(coef) - intercept
        spread = smooth_spread(features, residual, share)
        scores = features.gram(share**2)
        fits = [
            _Level(
                options, features, spread[:, k], residual[:, k], share, float(level), alpha, fit_intercept, coef[:, k]
            )
            for k, level in enumerate(levels)
        ]
        parts = [fit.finish(scores) for fit in fits]
    rank = max(factor.shape[1] for _, _, factor in parts)
    factor = np.stack([np.pad(part[2], ((0, 0), (0, rank - part[2].shape[1]))) for part in parts])
    new_coef = np.stack([part[0] for part in parts], axis=1)
    degrees = np.array([1 / (2 * fit.density_variance) for fit in fits])
    return CurveInference(new_coef, intercept + np.array([part[1] for part in parts]), factor, degrees)


def smooth_spread(features: TrainingFeatures, residual: Array, share: Array) -> Array:
    """Spread of y given x at each row, (n, q), up to a factor: squared ridge fit of the root of |r - its centre|.

    The centre is a ridge fit of the residuals. Spreads around the curve itself would be small where the curve is too
    far inside, and the band too narrow just there. Roots keep heavy tails from deciding.
    """
    _, mean, gram = features.gram(share)
    ridge = _Ridge(features, share, mean, gram - np.outer(mean, mean))
    centre = np.median(residual, axis=0)
    width = OPTIONS.winsor * 1.4826 * np.median(np.abs(residual - centre), axis=0)
    inside = np.clip(residual, centre - width, centre + width)
    root = ridge.smooth(np.sqrt(np.abs(residual - ridge.smooth(inside))))
    return np.maximum(root, OPTIONS.min_root * np.median(root, axis=0)) ** 2 + np.finfo(float).tiny


class _Ridge:
    """Ridge regressions on the features, with an intercept; the ridge weight by generalised cross-validation."""

    def __init__(self, features: TrainingFeatures, share: Array, mean: Array, covariance: Array) -> None:
        self.features, self.share, self.mean = features, share, mean
        self.size = 1 / np.sum(share**2)  # Kish's effective number of rows
        eigenvalues, self.basis = eigh(covariance)
        self.eigenvalues = np.maximum(eigenvalues, 0.0)

    def smooth(self, values: Array) -> Array:
        """Fitted values (n, q) of the columns of values (n, q)."""
        level = self.share @ values
        slope = self.basis.T @ (
            self.features.correlate(self.share[:, None] * values) - np.outer(self.mean, level)
        )  # (M, q)
        total = self.share @ (values - level) ** 2
        w, best, chosen = self.eigenvalues[:, None], np.full(values.shape[1], np.inf), np.zeros_like(slope)
        for ridge in np.array(OPTIONS.ridges) * max(float(w.max()), np.finfo(float).tiny):
            df = OPTIONS.df_factor * (1 + np.sum(w / (w + ridge)))
            if df > self.size / 2:
                continue
            coef = slope / (w + ridge)
            loss = (total - np.sum(coef * (2 * slope - w * coef), axis=0)) / (1 - df / self.size) ** 2
            better = loss < best
            best, chosen = np.where(better, loss, best), np.where(better, coef, chosen)
        coef = self.basis @ chosen
        return self.features.predict(coef) + (level - self.mean @ coef)


class _Level:
    """One curve: H in coordinates where it is diagonal, and the density c."""

    density: float
    density_variance: float

    def __init__(
        self,
        options: InferenceOptions,
        features: TrainingFeatures,
        spread: Array,
        residual: Array,
        share: Array,
        tau: float,
        alpha: float,
        fit_intercept: bool,
        coef: Array,
    ) -> None:
        self.options = options
        self.tau, self.alpha, self.coef, self.fit_intercept = tau, alpha, coef, fit_intercept
        self.mass, self.mean, gram = features.gram(share / spread)
        self.mean = self.mean / self.mass if fit_intercept else np.zeros_like(self.mean)
        eigenvalues, self.basis = eigh(gram - self.mass * np.outer(self.mean, self.mean))
        self.eigenvalues, self.share = np.maximum(eigenvalues, 0.0), share
        self.coordinates = self.basis.T @ coef
        step = -(-len(residual) // self.options.density_rows)
        some = slice(None, None, step)
        Z = (features.take(some) - self.mean) @ self.basis
        self._fit_density(Z, residual[some], spread[some], share[some])

    def _filters(self) -> tuple[Array, Array]:
        """Factors (M,) of the coordinates of u that correct their shrinkage, and the diagonal of H_K^-1."""
        hessian = self.density * self.eigenvalues + 2 * self.alpha
        fitted = np.clip(self.density * self.eigenvalues / hessian, 1e-300, 1 - 1e-15)
        corrected = -np.expm1((self.options.corrections + 1) * np.log1p(-fitted)) / fitted
        return corrected, corrected / hessian

    def _fit_density(self, Z: Array, residual: Array, spread: Array, share: Array) -> None:
        """Density c at 0 of leave-one-out residuals over their spread, a fixed point, for H itself depends on it."""
        weight = share / share.sum()
        self.density, self.density_variance = density_at_zero(residual / spread, weight)
        for _ in range(self.options.rounds):
            corrected, inverse = self._filters()
            moved = residual - Z @ ((corrected - 1) * self.coordinates)
            pull = share * (Z**2 @ inverse + self.fit_intercept / (self.density * self.mass))
            leverage = np.minimum(pull * self.density / spread, self.options.max_leverage)
            left_out = moved + pull * (self.tau - (moved < 0)) / (1 - leverage)
            self.density, self.density_variance = density_at_zero(left_out / spread, weight)

    def finish(self, scores: tuple[float, Array, Array]) -> tuple[Array, float, Array]:
        """Corrected coefficients (M,), what is added to the intercept, and the factor (M + 1, k) of the covariance.

        `scores` are the sums of share^2, share^2 phi and share^2 phi phi'.
        """
        corrected, inverse = self._filters()
        kept = inverse * self.density * self.eigenvalues > self.options.negligible
        move = self.basis[:, kept] @ ((corrected[kept] - 1) * self.coordinates[kept])
        total, first, second = scores
        across = self.basis[:, kept].T @ (first - total * self.mean)
        centred = second - np.outer(first, self.mean) - np.outer(self.mean, first - total * self.mean)
        inner = self.basis[:, kept].T @ centred @ self.basis[:, kept]
        covariance = np.block([[inner, across[:, None]], [across[None], np.array([[total]])]])
        direction = np.vstack([self.basis[:, kept] * inverse[kept], np.zeros((1, int(kept.sum())))])
        direction[-1] = -self.mean @ direction[:-1]
        constant = np.r_[np.zeros(len(self.mean)), 1 / (self.density * self.mass)]
        if self.fit_intercept:
            direction = np.column_stack([direction, constant])
        else:
            covariance = covariance[:-1, :-1]
        values, vectors = eigh(self.tau * (1 - self.tau) * covariance)
        factor = direction @ (vectors * np.sqrt(np.maximum(values, 0.0)))
        return self.coef + move, float(-self.mean @ move), factor


def density_at_zero(values: Array, weight: Array) -> tuple[float, float]:
    """Density at 0 of values (m,), by a normal kernel of Silverman's bandwidth, and its relative variance."""
    order = np.argsort(values)
    cumulated = np.cumsum(weight[order])
    low, high = values[order][np.minimum(np.searchsorted(cumulated, [0.25, 0.75]), len(values) - 1)]
    deviation = np.sqrt(np.sum(weight * (values - weight @ values) ** 2))
    scale = min(deviation, (high - low) / 1.349) or deviation
    width = 1.06 * scale * np.sum(weight**2) ** 0.2
    density = float(weight @ np.exp(-0.5 * (values / width) ** 2)) / (width * np.sqrt(2 * np.pi))
    return density, float(np.sum(weight**2) / (2 * np.sqrt(np.pi) * width * density))
