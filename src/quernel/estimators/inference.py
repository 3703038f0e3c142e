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
back with the row's dual d_i: r_i + a_i d_i / (1 - f_i a_i), a_i = w_i psi_i' H_K^-1 psi_i / W. Their law is that of y
given x, widened by the error of the curve and by the kernel of the density estimate; both are undone to second order
(`density_at_zero`). A bias of c of 4 % hardly matters at one point, but changes the probability that the largest of
many deviations exceeds its bound from 5 to 8 %.

**Degrees of freedom.** c has a known relative variance v, and standard errors change as c^-e; deviations are taken as
Student's with 1 / (2 e^2 v) degrees of freedom instead of normal.

Features are centred by their means under the weights w / s; the intercept then separates from the rest of H, and one
eigendecomposition per level serves all c.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh
from scipy.special import stdtrit
from scipy.stats import rankdata

from quernel._machine import blocks, single_threaded_blas
from quernel.data.design_matrix import FeatureMap
from quernel.solvers.result import Result

Array = NDArray[np.floating]


@dataclass(frozen=True)
class InferenceOptions:
    """Constants of confidence bands, chosen on simulations with other seeds than those of docs/bands.md."""

    corrections: int = 15  # K: times that the shrinkage is added back; more widen the band and lower its bias
    rounds: int = 3  # fixed-point iterations of the density c
    density_rows: int = 8_000  # rows whose leave-one-out residuals determine c
    ridges: tuple[float, ...] = tuple(10.0 ** np.arange(-7.0, 1.0))  # of the spread, relative to the largest eigenvalue
    df_factor: float = 1.4  # of generalised cross-validation: above 1, smoother (Kim and Gu 2004)
    winsor: float = 8.0  # robust standard deviations at which residuals are winsorized before the spread is fitted
    min_root: float = 0.3  # smallest root of the spread, as a share of its median
    max_leverage: float = 0.9  # of a row, where it is left out
    density_width: float = 0.9  # bandwidth of the density, in robust standard deviations times n^(-1/9)
    max_fitted: float = 0.9  # degrees of freedom of a fit per row, above which there is no inference
    min_factor: float = 0.3  # of the two in the correction of that density: bounds it where errors are huge
    min_elasticity: float = 0.1  # smallest e of standard errors ~ c^-e, where nearly nothing is fitted
    negligible: float = 1e-4  # share of a coordinate that is fitted, below which it is dropped from the covariance
    draws: int = 2_000  # of the largest deviation, for simultaneous bands and tests
    seed: int = 20_260_101  # of these draws: the same model and rows give the same band
    column_rows: int = 60  # at which `test_column` looks: it needs the features of so many rows, squared
    cached_entries: int = 2**27  # of the matrix of features, up to which it is stored


OPTIONS = InferenceOptions()


@dataclass(frozen=True)
class CurveTest:
    """Result of a test about quantile curves, one entry per level.

    Attributes
    ----------
    statistic : ndarray of shape (q,), largest |estimate / standard error| over the rows
    pvalue : ndarray of shape (q,), at least 1 / (draws + 1); not of the statistic alone, see `compare_with_zero`
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
    centre = fit.centre(Phi)
    bounds = np.empty((*centre.shape, 2))
    for k in range(centre.shape[1]):
        error, unit = standardise(fit.deviations(Phi, k))
        degrees = float(fit.degrees[k])
        if simultaneous:
            critical = float(np.quantile(largest_deviations(unit, degrees), level))
        else:
            critical = float(stdtrit(degrees, (1 + level) / 2))
        half = critical * error
        bounds[:, k, 0], bounds[:, k, 1] = centre[:, k] - half, centre[:, k] + half
    return bounds


def compare_with_zero(
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


class TrainingFeatures:
    """Features of the training rows, block by block: stored if they are few, else computed in every pass.

    `share` are the normalized weights (n,) of the rows.
    """

    def __init__(self, feature_map: FeatureMap, X: ArrayLike, share: Array) -> None:
        self.feature_map, self.X, self.share = feature_map, np.asarray(X), share
        self.n_features = feature_map.n_components_
        self.spans = list(blocks(len(self.X), self.n_features))
        few = len(self.X) * self.n_features <= OPTIONS.cached_entries
        self._stored = [self.take(span) for span in self.spans] if few else None
        self.moments = self.gram(share)
        some = slice(None, None, -(-len(self.X) // OPTIONS.density_rows))
        self.sample = some, self.take(some)  # for the density

    def take(self, rows: slice) -> Array:
        """Features of some rows, (m, M)."""
        return self.feature_map.transform(np.asarray(self.X[rows], dtype=float))

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

    def score_moments(self) -> Array:
        """Sum of share^2 psi psi' with psi = (phi, 1), shape (M + 1, M + 1)."""
        equal = np.ptp(self.share) == 0
        total, mean, gram = (self.share[0] * part for part in self.moments) if equal else self.gram(self.share**2)
        return np.block([[gram, mean[:, None]], [mean, np.full((1, 1), total)]])

    def correlate(self, values: Array) -> Array:
        """Phi' values, shape (M, q)."""
        return np.sum([Phi.T @ values[span] for span, Phi in self], axis=0)

    def predict(self, coef: Array) -> Array:
        """Phi coef, shape (n, q)."""
        return np.concatenate([Phi @ coef for _, Phi in self])


def estimate_inference(
    features: TrainingFeatures,
    y: Array,
    result: Result,
    levels: Array,
    alpha: float,
    *,
    fit_intercept: bool,
    options: InferenceOptions = OPTIONS,
) -> CurveInference:
    """Bias-corrected curves and their covariance, from the rows and the solution.

    Parameters
    ----------
    features, y : features and targets (n,) of the training rows
    result, levels : the solution, with its duals (n, q), at the levels (q,)
    alpha, fit_intercept : ridge weight, and whether there is an intercept
    options : constants, others than the default in simulations only
    """
    with single_threaded_blas(0, 0):
        residual = y[:, None] - features.predict(result.coef) - result.intercept
        spread = smooth_spread(features, residual)
        scores = features.score_moments()
        fits = []
        for k, level in enumerate(levels):
            curve = Curve(float(level), result.coef[:, k], residual[:, k], result.dual[:, k], spread[:, k])
            fits.append(_Level(features, curve, alpha, fit_intercept, options))
        parts = [fit.finish(scores) for fit in fits]
    rank = max(factor.shape[1] for _, _, factor in parts)
    factor = np.stack([np.pad(factor, ((0, 0), (0, rank - factor.shape[1]))) for _, _, factor in parts])
    coef = np.stack([coef for coef, _, _ in parts], axis=1)
    intercept = result.intercept + np.array([move for _, move, _ in parts])
    return CurveInference(coef, intercept, factor, np.array([fit.degrees() for fit in fits]))


def smooth_spread(features: TrainingFeatures, residual: Array) -> Array:
    """Spread of y given x at each row, (n, q), up to a factor: squared ridge fit of the root of |r - its centre|.

    The centre is a ridge fit of the residuals. Spreads around the curve itself would be small where the curve is too
    far inside, and the band too narrow just there. Roots keep heavy tails from deciding.
    """
    ridge = _Ridge(features)
    centre = np.median(residual, axis=0)
    width = OPTIONS.winsor * 1.4826 * np.median(np.abs(residual - centre), axis=0)
    inside = np.clip(residual, centre - width, centre + width)
    root = ridge.smooth(np.sqrt(np.abs(residual - ridge.smooth(inside))))
    return np.maximum(root, OPTIONS.min_root * np.median(root, axis=0)) ** 2 + np.finfo(float).tiny


class _Ridge:
    """Ridge regressions on the features, with an intercept; the ridge weight by generalised cross-validation."""

    def __init__(self, features: TrainingFeatures) -> None:
        self.features = features
        _, self.mean, gram = features.moments
        eigenvalues, self.basis = eigh(gram - np.outer(self.mean, self.mean))
        self.eigenvalues = np.maximum(eigenvalues, 0.0)

    def smooth(self, values: Array) -> Array:
        """Fitted values (n, q) of the columns of values (n, q)."""
        share = self.features.share
        size = 1 / np.sum(share**2)  # Kish's effective number of rows
        level = share @ values
        total = share @ (values - level) ** 2
        slope = self.basis.T @ (self.features.correlate(share[:, None] * values) - np.outer(self.mean, level))  # (M, q)
        w, best, chosen = self.eigenvalues[:, None], np.full(values.shape[1], np.inf), np.zeros_like(slope)
        for ridge in np.array(OPTIONS.ridges) * max(float(w.max()), np.finfo(float).tiny):
            df = OPTIONS.df_factor * (1 + np.sum(w / (w + ridge)))
            if df > size / 2:
                continue
            coef = slope / (w + ridge)
            loss = (total - np.sum(coef * (2 * slope - w * coef), axis=0)) / (1 - df / size) ** 2
            better = loss < best
            best, chosen = np.where(better, loss, best), np.where(better, coef, chosen)
        coef = self.basis @ chosen
        return self.features.predict(coef) + (level - self.mean @ coef)


@dataclass(frozen=True, eq=False)
class Curve:
    """The fit of one level: coefficients (M,), and residuals, duals and spread of y at the training rows (n,)."""

    tau: float
    coef: Array
    residual: Array
    dual: Array
    spread: Array

    def take(self, rows: slice) -> Curve:
        """The same curve at some of the rows."""
        return replace(self, residual=self.residual[rows], dual=self.dual[rows], spread=self.spread[rows])


class _Level:
    """One curve: H in coordinates where it is diagonal, and the density c."""

    density: float
    density_variance: float

    def __init__(
        self, features: TrainingFeatures, curve: Curve, alpha: float, fit_intercept: bool, options: InferenceOptions
    ) -> None:
        self.curve, self.alpha, self.fit_intercept, self.options = curve, alpha, fit_intercept, options
        self.coin = curve.tau * (1 - curve.tau)  # variance of 1{y < q(x)}
        self.mass, mean, gram = features.gram(features.share / curve.spread)
        self.mean = mean / self.mass if fit_intercept else np.zeros_like(mean)
        eigenvalues, self.basis = eigh(gram - self.mass * np.outer(self.mean, self.mean))
        self.eigenvalues = np.maximum(eigenvalues, 0.0)
        self.coordinates = self.basis.T @ curve.coef
        some, Phi = features.sample
        Z = (Phi - self.mean) @ self.basis
        concentration = float(np.sum(features.share**2))
        self._fit_density(Z, curve.take(some), features.share[some], concentration)
        if self._filters()[0].sum() > options.max_fitted / concentration:
            raise ValueError(
                f"inference=True: at level {curve.tau:g} the fit passes through nearly all of the {len(features.X)} "
                "rows, which leaves nothing to estimate its error from. Give a larger alpha or more rows, or leave "
                "inference out."
            )

    def _filters(self) -> tuple[Array, Array]:
        """Share of each coordinate of u that is fitted (M,), before and after the correction of the shrinkage."""
        hessian = self.density * self.eigenvalues + 2 * self.alpha
        fitted = np.clip(self.density * self.eigenvalues / hessian, 1e-300, 1 - 1e-15)
        return fitted, -np.expm1((self.options.corrections + 1) * np.log1p(-fitted))

    def _fit_density(self, Z: Array, curve: Curve, share: Array, concentration: float) -> None:
        """Density c at 0 of leave-one-out residuals over their spread, a fixed point, for H itself depends on it.

        `concentration` is the sum of share^2 over all rows, 1 / n without weights.
        """
        weight, squares = share / share.sum(), Z**2
        self.density, self.density_variance = density_at_zero(curve.residual / curve.spread, weight)
        for _ in range(self.options.rounds):
            fitted, corrected = self._filters()
            inverse = corrected / (fitted * (self.density * self.eigenvalues + 2 * self.alpha))  # diagonal of H_K^-1
            moved = curve.residual - Z @ ((corrected / fitted - 1) * self.coordinates)
            lever, error = (squares @ np.column_stack([inverse, inverse**2 * self.eigenvalues])).T
            pull = share * (lever + self.fit_intercept / (self.density * self.mass))
            leverage = np.minimum(pull * self.density / curve.spread, self.options.max_leverage)
            left_out = moved + pull * curve.dual / (1 - leverage)
            # Variance of the curve, with Cov(S) as if the spread were the same everywhere, over the spread squared.
            error = error + self.fit_intercept / (self.density**2 * self.mass)
            error *= self.coin * concentration / curve.spread
            self.density, self.density_variance = density_at_zero(left_out / curve.spread, weight, error)

    def degrees(self) -> float:
        """Degrees of freedom of deviations over their standard errors.

        Where little of a coordinate is fitted its variance hardly depends on c, and neither does its standard error.
        """
        fitted, corrected = self._filters()
        slope = (self.options.corrections + 1) * (1 - fitted) ** (self.options.corrections + 1) * fitted
        elasticity = float(1 - corrected @ slope / (corrected @ corrected + self.fit_intercept))
        return 1 / (2 * max(elasticity, self.options.min_elasticity) ** 2 * self.density_variance)

    def finish(self, scores: Array) -> tuple[Array, float, Array]:
        """Corrected coefficients (M,), what is added to the intercept, and the factor (M + 1, k) of the covariance.

        `scores` is the sum of share^2 psi psi', (M + 1, M + 1).
        """
        fitted, corrected = self._filters()
        kept = corrected > self.options.negligible
        basis = self.basis[:, kept]
        move = basis @ ((corrected[kept] / fitted[kept] - 1) * self.coordinates[kept])
        # Columns: the kept coordinates of centred features, and the intercept; H_K is diagonal there.
        axes = np.block([[basis, np.zeros((len(basis), 1))], [-self.mean @ basis, np.ones((1, 1))]])
        inverse = np.r_[corrected[kept] / self.eigenvalues[kept], 1 / self.mass] / self.density
        if not self.fit_intercept:
            axes, inverse = axes[:, :-1], inverse[:-1]
        values, vectors = eigh(self.coin * (axes.T @ scores @ axes))
        factor = (axes * inverse) @ (vectors * np.sqrt(np.maximum(values, 0.0)))
        return self.curve.coef + move, float(-self.mean @ move), factor


def density_at_zero(values: Array, weight: Array, error: Array | float = 0.0) -> tuple[float, float]:
    """Density at 0 of values (m,) measured with errors of variance `error`, and its relative variance.

    Local likelihood with a quadratic logarithm (Loader 1996; Hjort and Jones 1996): the kernel widens the law of the
    values, their errors do so further, and for a law that is locally normal both are undone exactly. A plain kernel
    estimate is too low where the law is peaked, as at the median, and too high in its tails.
    """
    order = np.argsort(values)
    cumulated = np.cumsum(weight[order])
    low, high = values[order][np.minimum(np.searchsorted(cumulated, [0.25, 0.75]), len(values) - 1)]
    deviation = np.sqrt(np.sum(weight * (values - weight @ values) ** 2))
    scale = min(deviation, (high - low) / 1.349) or deviation
    concentration = float(np.sum(weight**2))  # 1 / n without weights
    width = OPTIONS.density_width * scale * concentration ** (1 / 9)
    u = values / width
    near = weight * np.exp(-0.5 * u**2)
    plain = float(near.sum())
    near = near / plain
    mean, widened = float(near @ u), 1 + float(near @ np.broadcast_to(error, u.shape)) / width**2
    # The precision of the locally normal law, in units of the width, and what is left of 1 once it is widened.
    precision = 1 - float(near @ (u - mean) ** 2)
    left = max(1 - widened * precision, OPTIONS.min_factor)
    slope = max(float(np.exp(-0.5 * widened * mean**2 / left)), OPTIONS.min_factor)
    density = plain / (width * np.sqrt(2 * np.pi * left)) * slope
    # To first order this is the kernel K - a K'', a = widened / 2, of roughness (1 + a + 3/4 a^2) / (2 sqrt(pi)).
    a = 0.5 * widened
    return density, concentration * (1 + a + 0.75 * a**2) / (2 * np.sqrt(np.pi) * width * density)
