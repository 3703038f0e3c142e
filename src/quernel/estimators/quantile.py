"""KernelQuantileRegressor: conditional quantiles with kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted

from quernel.estimators.base import KernelEstimator
from quernel.estimators.checkpoint import check_checkpoint
from quernel.estimators.convergence import warn_not_converged
from quernel.estimators.kernel_gap import compute_kernel_gap
from quernel.estimators.levels import QuantileFunction, check_levels, rearrange
from quernel.estimators.out_of_core_predict import blockwise
from quernel.estimators.validation import (
    check_choice,
    check_lengths,
    check_positive,
    check_rows,
    check_share,
    check_target,
    check_weight,
)
from quernel.features import RandomFeatures
from quernel.features.random import as_generator
from quernel.kernels import Kernel
from quernel.losses import Loss, Pinball
from quernel.metrics import crossing_rate
from quernel.solvers import Result
from quernel.solvers.noncrossing import driver
from quernel.solvers.noncrossing.problem import crossing_tolerance
from quernel.theory.kernel_gap import KernelGap
from quernel.tuning.data_summary import NEAR, DataSummary, snap_to_point_masses, summarize_rows
from quernel.tuning.defaults import auto_alpha
from quernel.tuning.holdout import middle_levels

Array = NDArray[np.floating]

# Rows on which crossings are counted: the rate is then known to 0.004 at worst, and to 0.001 where it is 0.02.
CROSSING_ROWS = 20_000
# A level below the one before it by this part of the spread of y does not cross it: that is rounding.
ROUNDING = 1e-10


class KernelQuantileRegressor(RegressorMixin, KernelEstimator):
    """Kernel quantile regression with random features, all levels at once, with a certificate.

    Minimises, for every level,  mean pinball loss of y - phi(x)'u - b  plus  alpha u'u,  where phi are random features
    of the kernel (or, with ``n_components="exact"``, the kernel's own), to a certified relative duality gap of `tol`.

    Parameters
    ----------
    quantiles : float or sequence of floats, default=0.5
        Levels between 0 and 1. One number makes `predict` return shape (n,); a sequence, (n, q), also for one level.
    kernel : str or object of `quernel.kernels`, default="auto"
        "auto" is "gaussian" or, with ``bandwidth="learned"``, the mean of that and "laplacian", unless the first alone
        predicts clearly better: it is for smooth quantiles, the other for those that bend sharply or jump along single
        columns, as most tables' do. "gaussian", "laplacian", "matern" (smoothness 3/2), "cauchy"; "arccosine" (a
        two-layer network with a fixed first layer), "spline" (functions of period 1 in every column); or "linear": the
        columns of X are the features as they are. Objects can be added and scaled: ``Gaussian() + 0.5 * Matern(3.0)``.
    bandwidth : "auto", "learned", float or one float per column, default="auto"
        The length over which the quantiles may vary, in units of the columns: "gaussian" is
        exp(-|x - z|^2 / (2 bandwidth^2)). "auto" gives each column its standard deviation (a column of two values, the
        distance between them) times 0.6 of the median distance between rows measured in these, so that columns in
        different units need no scaling, and a category in columns of 0 and 1 counts about as much as one number.
        "learned" gives each column its own from the data, small where the quantiles move and large where they do not,
        and chooses the kernel and alpha with it, unless these are given: on up to 3,000 rows, by held-out loss; print
        `bandwidth_choice_`.
    n_components : int, "auto" or "exact", default="auto"
        Number of random features M. "auto" doubles M, from 125 to at most 2,000, until more features change neither the
        effective dimension nor the loss on held-out rows of a sample of 2,000 rows; tables of fewer than 1,000
        different rows get 500, and more than 500 are taken only where memory can store them; landmarks are 1,000 to
        2,000, the more the fewer the rows, and all different rows if these are fewer. "exact" uses the kernel
        itself through a pivoted Cholesky factor, whose rank is small for smooth kernels in few columns and may reach n
        otherwise: then time grows like n^3. The linear kernel has its own features, and ignores this argument.
    sampling : {"auto", "uniform", "orthogonal", "qmc", "leverage", "landmarks"} or a `RandomFeatures` object, \
            default="auto"
        How random features are drawn: independently ("uniform"), orthogonally, quasi-randomly, or by the leverage
        scores that they have on these rows at this `alpha`. "landmarks" draws no waves: the features are the kernel
        seen through M of the rows (`quernel.features.Nystroem`), which for rough kernels takes far fewer of them.
        "auto" is "landmarks" for Laplacian and Matern kernels with ``bandwidth="learned"``, else "uniform". An object,
        such as ``RandomFeatures(sampling="leverage", leverage_alpha=1e-4)``, sets the details; its kernel and number of
        features are the estimator's.
    alpha : float or "auto", default="auto"
        Weight of the ridge penalty, the paper's lambda. "auto" is 5e-5 over a robust spread of y, so that multiplying y
        by a constant multiplies the predictions by it; half of that from 2,000 different rows on, and half again
        whenever there are four times as many. For 30 to 2,000 different rows powers of 4 times that are tried in three
        folds, and the nearest whose held-out loss cannot be told from the least is taken: print `alpha_choice_` (not
        for the linear kernel; with the exact one, "admm" or "float32" no smaller ones). With ``bandwidth="learned"`` it
        is chosen together with the bandwidths.
    fit_intercept : bool, default=True
        Whether to add an unpenalised constant (the paper has none).
    noncrossing : {"rearrange", "joint", None}, default="rearrange"
        "rearrange" sorts the predicted levels of each row; None leaves them as fitted. "joint" fits all levels together
        under the constraint that none crosses the next on any training row (without intercept: by no more than 1e-7 of
        the standard deviation of y), and sorts what is predicted elsewhere. It takes two or three times as long where
        levels cross, and features that fit in memory.
    solver : {"newton", "admm"}, default="newton"
        "newton" is exact and fast; "admm" is the paper's, for comparison (try ``tol=1e-4``).
    tol : float, default=1e-6
        Relative duality gap to reach. A fit that misses it warns.
    max_iter : int, default=1000
        Newton steps of each stage (a large problem is solved on growing samples), or rounds of ADMM.
    max_memory : int or None, default=None
        Bytes that stored features may take; None is half of the free memory. Larger ones are recomputed block by block.
        Rows of files that take no more than this are read into memory first; larger files are streamed in every sweep,
        and what is remembered of their rows lies on disk beyond a quarter of it (docs/scale.md).
    dtype : {"float64", "float32"}, default="float64"
        How random features are stored: in memory, in the cache of rows that are streamed, on Dask workers. "float32"
        halves what they take, and costs a sweep or two over unrounded ones at the end. Sums are still taken in float64,
        and the duality gap is that of the unrounded features: of rows in memory it cannot always be as small as `tol`,
        and says so; otherwise the fit goes on until it is. Features that are not stored are not rounded.
    warm_start : bool, default=False
        Whether fitting again keeps the features, bandwidth and automatic ridge weight of the last fit and begins from
        its coefficients: for the same rows and more. It begins anew where kernel, bandwidth, n_components, sampling,
        columns or the number of levels changed.
    random_state : int, RandomState, Generator or None, default=None
        Source of the random features; an integer makes fits repeatable.
    verbose : int, default=0
        1 prints a line whenever the certificate improves.

    Attributes
    ----------
    quantiles_ : ndarray of shape (q,)
    coef_ : ndarray of shape (M, q)
    intercept_ : ndarray of shape (q,)
    alpha_ : float
    alpha_choice_ : AlphaChoice or None
        With ``alpha="auto"`` on a small table, the ridge weights that were tried and their held-out losses: print it.
    kernel_ : object of `quernel.kernels`, with its bandwidth
    bandwidth_ : float, ndarray of shape (n_features_in_,), None for a kernel that has none, a tuple of these for a sum
        that was given
    bandwidth_choice_ : BandwidthChoice or None
        With ``bandwidth="learned"``, what was tried and what came of it: print it.
    n_components_ : int
    n_components_choice_ : ComponentsChoice or None
        With ``n_components="auto"``, what was tried and why it ended there: print it.
    duality_gap_ : ndarray of shape (q,)
        Relative: no other coefficients could lower the objective by more than this share of it, or of a thousandth of
        the best constant's objective where that is larger. With ``n_components="exact"``, no function of the kernel's
        space could. With ``noncrossing="joint"`` this is said of the sum over levels that were fitted together, among
        coefficients whose levels do not cross.
    objective_ : ndarray of shape (q,)
    n_iter_ : int
    feature_map_ : fitted transformer with ``transform(X) -> Phi``
    crossing_rate_ : float
        Share of training rows (of 20,000 of them, if there are more) in which the raw levels cross, by more than
        rounding or, jointly and without intercept, by more than that 1e-7.
    frequent_values_ : ndarray
        Values that at least one training row in a hundred has as its y, ascending: none for most continuous targets.
        Curves that come within 1e-4 of the spread of y of such a value are predicted as that value, so that a row can
        be seen to lie on a curve (of counts, say, or of amounts that are often zero).
    input_range_ : ndarray of shape (2, n_features_in_)
        Smallest and largest entry of every column. `outside` tells which rows leave it; `predict` warns of rows that do
        so by more than a quarter of the range, where nothing was learnt.
    n_features_in_, feature_names_in_ : as in scikit-learn

    Examples
    --------
    >>> import numpy as np
    >>> from quernel import KernelQuantileRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(0, 10, (500, 1))
    >>> y = np.sin(X[:, 0]) + (0.1 + 0.05 * X[:, 0]) * rng.standard_normal(500)
    >>> model = KernelQuantileRegressor([0.1, 0.5, 0.9], random_state=0).fit(X, y)
    >>> model.predict(X[:4]).shape
    (4, 3)
    >>> bool(model.duality_gap_.max() <= 1e-6)
    True
    """

    def __init__(
        self,
        quantiles: float | ArrayLike = 0.5,
        *,
        kernel: str | Kernel = "auto",
        bandwidth: str | float | ArrayLike = "auto",
        n_components: int | str = "auto",
        sampling: str | RandomFeatures = "auto",
        alpha: float | str = "auto",
        fit_intercept: bool = True,
        noncrossing: str | None = "rearrange",
        solver: str = "newton",
        tol: float = 1e-6,
        max_iter: int = 1000,
        max_memory: int | None = None,
        dtype: str = "float64",
        warm_start: bool = False,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.quantiles = quantiles
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.n_components = n_components
        self.sampling = sampling
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.noncrossing = noncrossing
        self.solver = solver
        self.tol = tol
        self.max_iter = max_iter
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
        noncrossing_points: Any = None,
        checkpoint: Any = None,
    ) -> Self:
        """Fit all levels.

        Parameters
        ----------
        X : array-like of shape (n, d), numeric; pandas and polars data frames welcome
            Or rows with their target, an object of `quernel.data`, such as ``ParquetRows("trips/*.parquet",
            target="delay")``; y and sample_weight are then left out. Or a Dask array or data frame.
        y : array-like of shape (n,); beside a Dask collection a Dask array or series, or a column's name
        sample_weight : array-like of shape (n,) or None
            A weight of 2 counts like the row given twice, and 0 like leaving it out.
        noncrossing_points : array-like of shape (p, d) or None
            With ``noncrossing="joint"``, further places where levels must not cross, besides the training rows.
        checkpoint : path or None
            A file in which a long fit writes down how far it has come, after every stage. The same fit begun again,
            with an integer as `random_state`, goes on from there; a file of other rows or settings is refused. It is
            removed when the fit is done.
        """
        self._fit(X, y, sample_weight, noncrossing_points, checkpoint=checkpoint)
        warn_not_converged(self, [f"{level:g}" for level in self.quantiles_], of="level ")
        return self

    def _fit(
        self,
        X: Any,
        y: Any,
        sample_weight: ArrayLike | None,
        noncrossing_points: Any = None,
        choose: Callable[[Kernel, DataSummary, Loss], Kernel] | None = None,
        checkpoint: Any = None,
    ) -> None:
        """Fit all levels, with the kernel and the ridge weight that `choose` settles on, if it is given."""
        levels, self._single = check_levels(self.quantiles)
        kernel = self._check_parameters()
        check_checkpoint(self, checkpoint)
        summary = summarize_rows(self._training_rows(kernel, X, y, sample_weight))
        self._points = self._check_points(noncrossing_points)
        self.alpha_ = self._resolve_alpha(lambda: auto_alpha(summary.target_scale, summary.n_distinct), len(levels))
        self._fit_outputs(summary, kernel, Pinball(levels), choose, checkpoint)
        del self._points
        self._store_levels(levels, summary)

    @blockwise
    def predict(self, X: Any, quantiles: float | ArrayLike | None = None) -> Array:
        """Conditional quantiles, shape (n,) for one level given as a number and (n, q) for a sequence.

        Parameters
        ----------
        X : array-like of shape (n, d)
        quantiles : float, sequence of floats or None
            Other levels than the fitted ones, anywhere between the lowest and the highest of them: they are
            interpolated between the fitted curves (sorted, whatever `noncrossing` says), linearly in the normal score
            of the level. None predicts the fitted levels.
        """
        check_is_fitted(self)
        wanted, single = (None, self._single) if quantiles is None else check_levels(quantiles)
        X = check_rows(self, X, reset=False)
        curves = self._curves(X) if wanted is None else self._distribution(X).at(wanted)
        return curves[:, 0] if single else curves

    @blockwise
    def predict_interval(self, X: Any, coverage: float = 0.9) -> Array:
        """Lower and upper end of the central interval with this nominal coverage, shape (n, 2)."""
        check_is_fitted(self)
        check_share("coverage", coverage)
        tail = (1 - coverage) / 2
        widest = 1 - 2 * max(self.quantiles_.min(), 1 - self.quantiles_.max())
        if widest <= 0:
            raise ValueError(
                f"An interval needs a fitted level on either side of 0.5; this model has {self.quantiles_.tolist()}. "
                f"Fit with levels such as [{tail:g}, {1 - tail:g}]."
            )
        if coverage > widest + 1e-9:
            raise ValueError(
                f"A central interval of coverage {coverage:g} needs the levels {tail:g} and {1 - tail:g}, outside the "
                f"fitted range [{self.quantiles_.min():g}, {self.quantiles_.max():g}]. Ask for at most "
                f"{widest:g}, or fit with wider levels."
            )
        return self.predict(X, quantiles=[tail, 1 - tail])

    @blockwise
    def predict_cdf(self, X: Any, y: ArrayLike) -> Array:
        """P(Y <= y | x) for each row of X and its entry of y (or one y for all), shape (n,).

        Below the lowest fitted curve it is 0 and from the highest on 1: the mass beyond the outermost levels is taken
        to lie on their curves, for lack of knowledge.
        """
        check_is_fitted(self)
        X = check_rows(self, X, reset=False)
        target = check_target(np.full(len(X), y) if np.ndim(y) == 0 else y)
        check_lengths(X, target)
        return self._distribution(X).cdf(target)

    def sample(self, X: Any, n: int = 1, rng: Any = None) -> Array:
        """Draws from each row's conditional distribution, shape (rows, n); the tails as in `predict_cdf`."""
        check_is_fitted(self)
        check_positive("n", n, integer=True)
        X = check_rows(self, X, reset=False)
        return self._distribution(X).sample(n, as_generator(rng))

    def score(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> float:
        """Mean D^2 over the levels: the share of the best constant's pinball loss that the model removes."""
        check_is_fitted(self)
        X, y = check_rows(self, X, reset=False), check_target(y)
        check_lengths(X, y)
        weight = np.ones(len(X)) if sample_weight is None else check_weight(sample_weight, len(X))
        share, loss = weight / weight.sum(), Pinball(self.quantiles_)
        ours = share @ loss.value(y[:, None] - self._curves(X))
        constant = share @ loss.value(y[:, None] - loss.fit_constant(y, share))
        return float(np.mean(np.where(constant > 0, 1 - ours / np.where(constant > 0, constant, 1), ours == 0)))

    def kernel_gap(
        self, X: Any, y: Any = None, sample_weight: ArrayLike | None = None, *, similarity_only: bool = False
    ) -> KernelGap:
        """What the random features cost in this fit, beside the exact kernel: a proved bracket per level. Print it.

        The optimum of the exact kernel lies between a dual bound and the objective of functions in the kernel's space,
        both of which one pass over the kernel gives. Every row meets every other, so that time grows like n^2 (100,000
        rows of 5 columns: about 20 processor seconds); the kernel is never stored.

        Parameters
        ----------
        X, y, sample_weight : what the model was fitted to, to the last row; other rows are refused
        similarity_only : bool, default=False
            Whether to leave the pass over the kernel out: `upper` is then the far looser bound from the similarity of
            features and kernel on some rows, and `lower` is -inf. Time grows like n.

        Returns
        -------
        KernelGap
            With `lower` and `upper` of shape (q,): lower <= (F - min F_K) / F <= upper, where F is `objective_` and
            F_K the objective of exact kernel quantile regression. Below 0 the features suit y better than the kernel.
            Levels that were fitted jointly are compared with exact fits that may cross.

        Examples
        --------
        >>> rng = np.random.default_rng(0)
        >>> X = rng.uniform(0, 10, (300, 1))
        >>> y = np.sin(X[:, 0]) + 0.3 * rng.standard_normal(300)
        >>> few, many = (KernelQuantileRegressor(n_components=M, random_state=0).fit(X, y) for M in (10, 100))
        >>> bool(many.kernel_gap(X, y).upper[0] < few.kernel_gap(X, y).lower[0])
        True
        """
        check_is_fitted(self)
        return compute_kernel_gap(self, X, y, sample_weight, similarity_only=similarity_only)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # scikit-learn's checks set alpha = 0.01 and expect a good fit. That is a promise of alpha="auto" only: with a
        # number, how closely the data are followed is the user's choice.
        tags.regressor_tags.poor_score = self.alpha != "auto"
        return tags

    def _check_parameters(self) -> Kernel:
        check_choice("noncrossing", self.noncrossing, ("rearrange", "joint", None))
        if self.noncrossing == "joint" and (self.solver != "newton" or self.dtype != "float64"):
            raise ValueError(
                "noncrossing='joint' is for solver='newton' and dtype='float64' only; got "
                f"solver={self.solver!r}, dtype={self.dtype!r}. Use noncrossing='rearrange' with those."
            )
        return super()._check_parameters()

    def _in_memory_only(self) -> Iterator[tuple[str, str]]:
        yield from super()._in_memory_only()
        if self.noncrossing == "joint":
            yield 'noncrossing="joint"', 'noncrossing="rearrange"'

    def _selection_loss(self, loss: Loss) -> Loss:
        """The middle of the levels, where held-out loss is known best."""
        assert isinstance(loss, Pinball)
        return Pinball(middle_levels(loss.levels))

    def _check_points(self, points: Any) -> Array | None:
        """Further places for the constraints, as rows like those of X."""
        if points is None:
            return None
        if self.noncrossing != "joint" or self.n_components == "exact":
            raise ValueError(
                "noncrossing_points are for noncrossing='joint' with random features or a linear kernel; got "
                f"noncrossing={self.noncrossing!r}, n_components={self.n_components!r}. Leave them out."
            )
        return check_rows(self, points, reset=False)

    def _solver(self) -> Callable[..., Result]:
        if self.noncrossing != "joint":
            return super()._solver()
        return partial(driver.solve, points=None if self._points is None else self.feature_map_.transform(self._points))

    def _store_levels(self, levels: Array, summary: DataSummary) -> None:
        self.quantiles_ = levels
        self.frequent_values_, self._near = summary.point_masses, NEAR * summary.target_scale
        self.crossing_rate_ = 0.0
        if len(levels) > 1:
            curves = summary.map_strided(-(-summary.n_rows // CROSSING_ROWS), self._decision_function)
            tolerance = ROUNDING * summary.target_scale
            if self.noncrossing == "joint" and not self.fit_intercept:
                tolerance = crossing_tolerance(summary.source.y, summary.source.share())
            self.crossing_rate_ = crossing_rate(curves[:, np.argsort(levels)], tolerance=tolerance)

    def _predict_unsnapped(self, X: Array) -> Array:
        """Phi u + b as fitted, before point masses of y are predicted as such."""
        return super()._decision_function(X)

    def _decision_function(self, X: Array) -> Array:
        curves = self._predict_unsnapped(X)
        # Model files from before frequent values were kept know of none.
        return (
            snap_to_point_masses(curves, self.frequent_values_, self._near)
            if hasattr(self, "frequent_values_")
            else curves
        )

    def _curves(self, X: Array) -> Array:
        """The fitted levels as they are predicted, in the order in which they were given."""
        curves = self._predict_raw(X)
        return curves if self.noncrossing is None else rearrange(curves, self.quantiles_)

    def _distribution(self, X: Array) -> QuantileFunction:
        order = np.argsort(self.quantiles_)
        return QuantileFunction(self.quantiles_[order], np.sort(self._predict_raw(X), axis=1))
