"""KernelQuantileRegressor: kernel quantile regression with random features."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from functools import partial
from os import PathLike
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted

from quernel._validation import check_choice, check_flags
from quernel.estimators.bands import InferenceMixin
from quernel.estimators.base import CALIBRATING, KernelEstimator, WarmStart, check_checkpoint
from quernel.estimators.inputs import FitData, check_levels
from quernel.estimators.levels import QuantileFunction, rearrange
from quernel.estimators.prediction import check_rows
from quernel.estimators.recalibration import level_shifts
from quernel.estimators.shapes import PARAMETERS as SHAPE_PARAMETERS
from quernel.estimators.shapes import (
    ShapeConstraints,
    build_constraints,
    check_shapes,
    clip_to_bounds,
    describe_shapes,
    has_shapes,
    read_shapes,
)
from quernel.estimators.solve import Solution, TimeBudget, compute_kernel_gap, evaluate_outputs, feature_error
from quernel.estimators.tail_fit import fit_kernel_tails
from quernel.estimators.tails import TailLevels, TailsMixin, name_side
from quernel.estimators.warnings import warn_if_alpha_is_level, warn_tails_stopped
from quernel.features import RandomFeatures
from quernel.kernels import Kernel
from quernel.kernels.base import Seed
from quernel.losses import Loss, Pinball
from quernel.solvers import NONCROSSING, SHAPED, SHAPED_NONCROSSING, Solver
from quernel.solvers.noncrossing.problem import crossing_tolerance
from quernel.solvers.progress import SOLVING, enter_stage
from quernel.theory.kernel_gap import KernelGap
from quernel.tuning.alpha import auto_alpha
from quernel.tuning.data_summary import NEAR, DataSummary, snap_to_point_masses
from quernel.tuning.plan import FitPlan

Array = NDArray[np.floating]

# Rows on which `crossing_rate_` is estimated: its standard error is then 0.004 at most, and 0.001 for a rate of 0.02.
CROSSING_ROWS = 20_000
# Stage of the tails: four fits on most of the rows, at least; so long in comparison to the solver.
FITTING_TAILS, TAILS_SHARE = "fitting the tails", 4.0
# Levels that cross by less than this, relative to the robust scale of y, do so by rounding error and are not counted.
ROUNDING = 1e-10


class KernelQuantileRegressor(InferenceMixin, TailsMixin, RegressorMixin, KernelEstimator):
    """Kernel quantile regression with random features, for several quantile levels at once.

    For every level tau it minimises

        mean_i rho_tau(y_i - phi(x_i)'u - b) + alpha u'u,      rho_tau(r) = max(tau r, (tau - 1) r),

    the pinball loss with a ridge penalty, where phi are random features of the kernel (or, with
    ``n_components="exact"``, the kernel itself). The solution is certified: its relative duality gap, `duality_gap_`,
    bounds the distance to the minimum, and a fit that does not reach `tol` warns.

    Parameters
    ----------
    quantiles : float or sequence of floats, default=0.5
        Quantile levels, strictly between 0 and 1. With a float, `predict` returns shape (n,); with a sequence of q
        levels, (n, q), also if q is 1.
    kernel : str or object of `quernel.kernels`, default="auto"
        "auto" is "gaussian" or, with ``bandwidth="learned"``, that, the mean of "gaussian" and "laplacian", or the
        mean of "laplacian" and "matern" of smoothness 1/2, whichever predicts best. The Gaussian kernel suits smooth
        quantiles; the Laplacian those with kinks or jumps along single columns, as in most tabular data. Also "matern"
        (smoothness 3/2), "cauchy", "arccosine" (a two-layer network with a fixed first layer), "spline" (functions of
        period 1 in every column), and "linear", which uses the columns of X as features. Kernel objects can be added
        and scaled: ``Gaussian() + 0.5 * Matern(3.0)``.
    bandwidth : "learned", "auto", float or one float per column, default="learned"
        Length scale of the kernel, in units of the columns: the Gaussian kernel is
        exp(-|x - z|^2 / (2 bandwidth^2)). Columns need no standardisation beforehand.

        - "learned": one bandwidth per column, learned from a sample of the rows by leave-one-out error: small where
          the quantiles vary with the column, large where they do not (automatic relevance determination). The kernel
          and, by held-out loss, alpha are chosen with it, unless they are given; print `bandwidth_choice_`. With fewer
          than 30 different rows, or for a kernel whose bandwidths cannot be learned, it is "auto"; `plan_` says so.
        - "auto": the median heuristic, one bandwidth per column. Each is the column's standard deviation (for a binary
          column, the distance between its two values) times 0.6 of the median distance between rows standardised in
          this way. A one-hot encoded category counts about as much as one numeric column.
    n_components : int, "auto" or "exact", default="auto"
        Number of random features M.

        - "auto": doubles M, from 125 to at most 2,000, until neither the effective dimension nor the held-out loss on a
          sample of 2,000 rows changes any more. Data with fewer than 1,000 distinct rows get 500 features, and more
          than 500 are used only if memory can store them. With ``sampling="landmarks"``, M is 1,000 to 2,000, smaller
          beyond 20,000 rows, and at most the number of distinct rows.
        - "exact": the full kernel, through a pivoted Cholesky factor of the kernel matrix. Its rank is small for smooth
          kernels in few columns and may reach n otherwise; time then grows like n^3.

        Ignored by the linear kernel, whose features are the columns of X.
    sampling : {"auto", "uniform", "orthogonal", "qmc", "leverage", "landmarks"} or a `RandomFeatures` object, \
            default="auto"
        How random features are drawn: independently from the kernel's spectral distribution ("uniform"), orthogonally,
        by quasi-Monte Carlo ("qmc"), or by importance sampling with their ridge leverage scores on the data at `alpha`
        ("leverage"). "landmarks" uses the Nystroem method instead, with M of the rows, or centres of clusters of them,
        as landmarks (`quernel.features.Nystroem`); rough kernels need far fewer of these features. "auto" is
        "landmarks" for rough kernels (Laplacian, Matern) with ``bandwidth="learned"``, else "uniform". An object, such
        as ``RandomFeatures(sampling="leverage", leverage_alpha=1e-4)``, sets the details; its kernel and number of
        features are the estimator's.
    alpha : float or "auto", default="auto"
        Weight of the ridge penalty, lambda in the paper that quernel implements (Wang and Feng, ICML 2024).

        - The default value of "auto" is 5e-5 divided by a robust scale of y, so that rescaling y rescales the
          predictions. It is halved from 2,000 distinct rows on, and again for every factor of four in their number.
        - From 30 to 2,000 distinct rows, "auto" chooses among powers of 4 times this value by three-fold
          cross-validation: the one closest to the default that is not worse than the best by more than one standard
          error; print `alpha_choice_`. Not for the linear kernel. With ``n_components="exact"``, ``solver="admm"`` or
          ``dtype="float32"`` no smaller values than the default are tried.
        - With ``bandwidth="learned"``, "auto" chooses alpha together with the bandwidths.
    alpha_scale : {"absolute", "relative"}, default="absolute"
        Unit of a number given as alpha. "absolute" is lambda itself: its best value changes with the unit of y.
        "relative" divides it by a robust scale of y (interquartile range / 1.349), so that the same grid of alphas
        suits every table: ``fit(X, 1000 * y)`` then predicts 1000 times as much. `alpha_` is always the absolute one.
    fit_intercept : bool, default=True
        Whether to fit an unpenalised intercept b (the paper has none).
    noncrossing : {"rearrange", "joint", None}, default="rearrange"
        How to avoid quantile crossing. "rearrange" sorts the predicted quantiles of each row (Chernozhukov,
        Fernandez-Val and Galichon 2010), levels that did not converge only between their neighbours; None returns them
        as fitted. "joint" fits all levels together under the
        constraint that they do not cross at any training row (without an intercept, by no more than 1e-7 of the
        standard deviation of y), and sorts predictions elsewhere. It takes two or three times as long if levels cross,
        and needs features that fit in memory.
    monotone : dict from columns to 1 or -1, or None, default=None
        Columns, by name or position, in which all quantiles increase (1) or decrease (-1), such as ``{"mileage": -1}``.
        They do so exactly on the training rows and on a grid; `shape_violation_` tells what is left elsewhere (see the
        user guide on shapes). Shapes need an intercept, numbers (no categories or dates) and features in memory.
    convex : dict from columns to 1 or -1, or None, default=None
        Columns in which all quantiles are convex (1) or concave (-1). Several levels need ``noncrossing="joint"`` or
        None, since sorting does not keep the shape.
    lower, upper : float or None, default=None
        Bounds of y, which quantiles observe: on the training rows and the grid by the fit, elsewhere by clipping.
    solver : {"newton", "admm"}, default="newton"
        "newton" is a semismooth Newton method on the augmented Lagrangian, accurate and fast; "admm" is the paper's
        method, for comparison (try ``tol=1e-4``).
    tol : float, default=1e-6
        Relative duality gap at which the solver stops. A fit that does not reach it raises a ConvergenceWarning.
    max_iter : int, default=1000
        Maximal number of Newton steps of each stage (a large problem is solved on growing subsamples first), or of ADMM
        iterations.
    max_seconds : float or None, default=None
        Time limit of the fit. A fit that reaches it keeps its best certified solution, whose relative duality gap is in
        `duality_gap_` and in a ConvergenceWarning. Choices of hyperparameters get half of the time. Ctrl-C ends a fit
        in the same way (a second one raises KeyboardInterrupt); before the solver has begun it raises at once, and the
        estimator is left as it was. `stopped_by_` says what ended a fit short of `tol`.
    max_memory : int or None, default=None
        Bytes that stored features may take; None is half of the free memory. Features that need more are recomputed
        block by block. Files that take no more than this are read into memory first; larger ones are streamed in every
        pass, and the solver's state per row is spilled to disk beyond a quarter of this (user guide on scale).
    dtype : {"float64", "float32"}, default="float64"
        Type in which features are stored, in memory or on Dask workers. "float32" halves their size, and costs a pass
        or two over float64 features at the end. Sums are still accumulated in float64, and `duality_gap_` refers to
        float64 features. For data in memory it may stay above `tol`, with a warning; on a cluster the fit continues in
        float64 until `tol` is reached. Recomputed features, those of files among them, are never rounded.
    warm_start : bool, default=False
        Whether `fit` reuses the features, bandwidth and automatic alpha of the previous call and starts from its
        coefficients, as for the same data with new rows. It starts afresh if kernel, bandwidth, n_components, sampling,
        the number of columns or the number of levels changed.
    recalibrate : bool, default=True
        Whether predictions of each level are shifted by a constant, `level_shift_`, such that levels hold on new rows:
        a flexible fit is closer to its own rows than to new ones, most of all on small tables. The shift is the level's
        quantile of leave-one-out residuals, which follow from the solution without refitting. Coefficients, objective
        and duality gap remain those of the optimum. Nothing is shifted for out-of-core data, for fits so rigid that it
        would not matter, for several levels with ``noncrossing=None``, and where a shift would not keep a shape (with
        `convex`, or `monotone` and point masses of y). False is the paper's estimator.
    inference : bool, default=False
        Whether `fit` also estimates the covariance of the curves, for `predict_band`, `test_column` and `test_equal`
        (user guide on bands). That takes up to three times as long as the solver with given parameters, and M (M + 1)
        numbers per level at most. For a continuous target in memory, and levels that are fitted one by one and without
        shapes. A row of weight 2 counts as one observation.
    tails : {None, "pareto"}, default=None
        What is beyond the outermost levels. None: nothing is known, and other levels are refused. "pareto": a
        generalised Pareto law whose scale depends on x, so that `predict` has any level, such as 0.999, `predict_cdf`,
        `sample` and `crps` have tails, and `predict_expected_shortfall` exists (user guide on tails). It needs rows in
        memory and at least 50 of them beyond an outer level; print `upper_tail_`. A side on which more than a tenth of
        what is beyond the level is one value of y, as of grades or capped values, has none, with a warning; none is
        fitted with shapes. A fit that reaches `max_seconds` has tails of a simpler scale.
    tail_level : float or "auto", default="auto"
        With tails, the fitted level from which on there is a tail, 0.8 or more; the lower tail begins at 1 minus it if
        that is fitted. Fitted levels beyond it are predicted by the tail, unless ``noncrossing=None``. "auto" is, on
        each side, the outermost fitted level that about 200 rows exceed or, if there is none, the one closest to 0.8.
    random_state : int, RandomState, Generator or None, default=None
        Seed of the random features; pass an int for reproducible fits.
    verbose : int, default=0
        1 prints what the fit is doing, about how long it will take, and the duality gap whenever it improves.

    Attributes
    ----------
    quantiles_ : ndarray of shape (q,)
        Quantile levels, in the order given.
    coef_ : ndarray of shape (M, q)
        Coefficients u of the features, one column per level.
    intercept_ : ndarray of shape (q,)
    level_shift_ : ndarray of shape (q,)
        What `predict` adds to each level before levels are sorted, in units of y; see `recalibrate`. Predictions at a
        point mass of y stay there.
    lower_tail_, upper_tail_ : ParetoTail or None
        With ``tails="pareto"``, the tails: level, shape with its interval, kind, scale; print them.
    alpha_ : float
        The ridge weight used.
    alpha_choice_ : AlphaChoice or None
        With ``alpha="auto"`` on small data, the values tried and their held-out losses; print it.
    kernel_ : object of `quernel.kernels`, with its bandwidth
    bandwidth_ : float, ndarray of shape (n_features_in_,), tuple or None
        The bandwidth used, or one per column; a tuple of these for a sum of kernels that was given, None for a kernel
        that has none.
    bandwidth_choice_ : BandwidthChoice or None
        With ``bandwidth="learned"``, the candidates and their held-out losses; print it.
    n_components_ : int
        Number of features M.
    n_components_choice_ : ComponentsChoice or None
        With ``n_components="auto"``, the numbers tried and why the search stopped; print it.
    duality_gap_ : ndarray of shape (q,)
        Relative duality gap: no coefficients have an objective lower than `objective_` by more than this fraction of
        it, or of a thousandth of the best constant's objective if that is larger. With ``n_components="exact"`` this
        holds for all functions of the kernel's space (RKHS). It refers to the stored coefficients and intercepts, taken
        as exact numbers; `predict` rounds once more, to the floating point numbers around the size of what it adds up.
        With ``noncrossing="joint"`` it refers to the sum over the levels fitted together, among coefficients whose
        levels do not cross.
    stopped_by_ : "time limit", "interrupt", "callback" or None
        What stopped the solver short of `tol`; None if nothing did.
    objective_ : ndarray of shape (q,)
        Mean pinball loss on the training data plus penalty.
    n_iter_ : int
        Largest number of iterations over the levels.
    feature_map_ : fitted transformer with ``transform(X) -> Phi``
    feature_error_ : float
        Root mean square error of the features as an approximation of the kernel, phi(x)'phi(z) - k(x, z), over pairs of
        training rows; k(x, x) is 1 for most kernels. Random features of another seed differ by about 1.4 times as much.
        `duality_gap_` speaks of the optimisation on these features, not of their error: see `kernel_gap`.
    crossing_rate_ : float
        Fraction of training rows (of 20,000 of them, if there are more) whose quantiles cross before they are sorted,
        by more than rounding error (jointly fitted without an intercept: by more than the 1e-7 above).
    frequent_values_ : ndarray
        Point masses of y, ascending: values shared by at least 1 % of the training rows. Empty for most continuous
        targets. A quantile within 1e-4 of the robust scale of y from such a value is predicted as exactly that value,
        as is needed to count y <= quantile for counts, or amounts that are often zero.
    shape_violation_ : dict from shapes to float, or None without any
        Largest violation of `monotone` and `convex`, and of bounds before clipping, in units of y, at rows and values
        that the fit did not check (user guide on shapes).
    inference_ : CurveInference or None
        With ``inference=True``, the bias-corrected curves at the centre of confidence bands and their covariance; None
        otherwise, and for a fit that was stopped.
    input_range_ : ndarray of shape (2, n_features_in_)
        Minimum and maximum of every column. `is_extrapolation` marks the rows that leave it; `predict` warns of rows
        that do so by more than a quarter of the range, since the model extrapolates there.
    encoder_ : TableEncoder
        The encoding of X, if that had columns other than finite numbers.
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
        bandwidth: str | float | ArrayLike = "learned",
        n_components: int | str = "auto",
        sampling: str | RandomFeatures = "auto",
        alpha: float | str = "auto",
        alpha_scale: str = "absolute",
        fit_intercept: bool = True,
        noncrossing: str | None = "rearrange",
        monotone: Mapping[str | int, int] | None = None,
        convex: Mapping[str | int, int] | None = None,
        lower: float | None = None,
        upper: float | None = None,
        solver: str = "newton",
        tol: float = 1e-6,
        max_iter: int = 1000,
        max_seconds: float | None = None,
        max_memory: int | None = None,
        dtype: str = "float64",
        warm_start: bool = False,
        recalibrate: bool = True,
        inference: bool = False,
        tails: str | None = None,
        tail_level: float | str = "auto",
        random_state: Seed = None,
        verbose: int = 0,
    ) -> None:
        self.quantiles = quantiles
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.n_components = n_components
        self.sampling = sampling
        self.alpha = alpha
        self.alpha_scale = alpha_scale
        self.fit_intercept = fit_intercept
        self.noncrossing = noncrossing
        self.monotone = monotone
        self.convex = convex
        self.lower = lower
        self.upper = upper
        self.solver = solver
        self.tol = tol
        self.max_iter = max_iter
        self.max_seconds = max_seconds
        self.max_memory = max_memory
        self.dtype = dtype
        self.warm_start = warm_start
        self.recalibrate = recalibrate
        self.inference = inference
        self.tails = tails
        self.tail_level = tail_level
        self.random_state = random_state
        self.verbose = verbose

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: ArrayLike | None = None,
        *,
        noncrossing_points: Any = None,
        checkpoint: str | PathLike[str] | None = None,
    ) -> Self:
        """Fit all quantile levels.

        Parameters
        ----------
        X : array-like or data frame of shape (n, d); text, dates and missing values are encoded (user guide on tables)
            Or an object of `quernel.data` with its own target, such as
            ``ParquetRows("trips/*.parquet", target="delay")``; leave out y and sample_weight then. Or a Dask array or
            data frame.
        y : array-like of shape (n,)
            With a Dask collection, a Dask array or series, or the name of a column.
        sample_weight : array-like of shape (n,) or None
            A weight of 2 is equivalent to repeating the row, a weight of 0 to leaving it out.
        noncrossing_points : array-like of shape (p, d) or None
            With ``noncrossing="joint"``, further points at which levels must not cross, besides the training rows.
        checkpoint : path or None
            A file in which a long fit saves its state after every stage. Calling the same fit again, with an integer as
            `random_state`, resumes from it; a file of other data or parameters is refused. It is deleted when the fit
            is done.

        Returns
        -------
        self : the fitted estimator
        """
        levels, single = check_levels(self.quantiles)
        kernel, loss = self._check_parameters(), Pinball(levels)
        check_checkpoint(self, checkpoint)
        budget = TimeBudget(self.max_seconds)
        data = self._read(kernel, X, y, sample_weight)
        data, shapes = read_shapes(self, data) if self._has_shape_parameters() else (data, None)
        if not isinstance(self.alpha, str):
            warn_if_alpha_is_level(self.alpha, levels, data.summary)
        points = self._check_points(noncrossing_points, data)
        if self.inference:
            self._check_inference(data)
        tail_levels = None if self.tails is None else self._choose_tail_levels(levels, data.summary.source)
        start = WarmStart.from_model(self, data.summary, loss, checkpoint)
        constraints = None if shapes is None else build_constraints(shapes, data.in_memory.X)
        with self._reporting(data, loss):
            plan = self._plan(data, kernel, loss, start, budget)
            solution = self._solve(plan, data, loss, start, budget, points=points, constraints=constraints)
            own = self._describe_levels(levels, single, data, plan, solution, constraints)
            if shapes is not None:
                own |= describe_shapes(shapes, data.in_memory.X, levels, self.noncrossing, solution, own)
            own |= self._fit_tails(tail_levels, data, plan, solution, budget)
        return self._store(data, plan, solution, start, **own)

    def _fit_tails(
        self, tail_levels: TailLevels | None, data: FitData, plan: FitPlan, solution: Solution, budget: TimeBudget
    ) -> dict[str, Any]:
        """Fitted attributes of the tails; none without tails."""
        if tail_levels is None:
            return {}
        enter_stage(FITTING_TAILS)
        levels, source = check_levels(self.quantiles)[0], data.summary.source
        with budget.finishing(solution) as stop:
            tails = fit_kernel_tails(source, levels, tail_levels, plan, solution, bool(self.fit_intercept), self.tol)
            reason = solution.stopped_by or stop.reason
        warn_tails_stopped(reason)
        return dict(zip(("lower_tail_", "upper_tail_"), tails, strict=True))

    def _describe_levels(
        self,
        levels: Array,
        single: bool,
        data: FitData,
        plan: FitPlan,
        solution: Solution,
        constraints: ShapeConstraints | None = None,
    ) -> dict[str, Any]:
        """Fitted attributes that only quantiles have: levels, shifts, point masses of y, raw crossing rate."""
        summary, result = data.summary, solution.result
        masses, near = summary.point_masses + summary.centre, NEAR * summary.target_scale
        masses = masses[:0] if self.convex else masses  # snapping would bend the curves
        rate = 0.0
        if len(levels) > 1:
            M = solution.feature_map.n_components_
            outputs = partial(evaluate_outputs, solution.feature_map, result.coef, result.intercept, M)
            evaluate = partial(_evaluate_snapped, outputs, masses, near)
            curves = summary.map_strided(-(-summary.n_rows // CROSSING_ROWS), evaluate)
            tolerance = ROUNDING * summary.target_scale + 4 * float(np.finfo(float).eps) * abs(summary.centre)
            if self.noncrossing == "joint" and not self.fit_intercept:
                tolerance = crossing_tolerance(summary.source.y, summary.source.share())
            curves = curves[:, np.argsort(levels)]
            rate = float(np.mean(np.any(curves[:, 1:] < curves[:, :-1] - tolerance, axis=1)))
        shift: Array = np.zeros(len(levels))
        # Convex curves would be clipped, or sorted where they cross; monotone ones stay on point masses of y.
        shifted = self.recalibrate and not self.convex and not (self.monotone and len(masses))
        if shifted and summary.in_memory and (self.noncrossing is not None or len(levels) == 1):
            enter_stage(CALIBRATING)
            held = None if constraints is None else constraints.held_directions(solution)
            shift = level_shifts(
                summary.source, summary.centre, Pinball(levels), plan.alpha, self.fit_intercept, solution, held
            )
        error = feature_error(plan.kernel, solution.feature_map, summary.sample.X)
        own = {
            "quantiles_": levels,
            "level_shift_": shift,
            "feature_error_": error,
            "frequent_values_": masses,
            "crossing_rate_": rate,
            "inference_": self._estimate_inference(levels, data, plan, solution) if self.inference else None,
            "shape_violation_": None,
        }
        return own | {"_single": single, "_near": near}

    def kernel_gap(
        self, X: Any, y: Any = None, sample_weight: ArrayLike | None = None, *, similarity_only: bool = False
    ) -> KernelGap:
        """Bounds on the excess of this fit's objective over that of exact kernel quantile regression. Print it.

        The optimum for the exact kernel lies between a dual lower bound and the objective of functions in its RKHS.
        One pass over the kernel matrix, which is never stored, gives both. Time grows like n^2 (100,000 rows of 5
        columns: about 20 processor seconds).

        Parameters
        ----------
        X, y, sample_weight : exactly the training data; any other data are refused
        similarity_only : bool, default=False
            Whether to skip the pass over the kernel matrix: `upper` is then the much looser bound from the similarity
            of features and kernel on some rows, and `lower` is -inf. Time grows like n.

        Returns
        -------
        KernelGap
            With `lower` and `upper` of shape (q,): lower <= (F - min F_K) / F <= upper, where F is `objective_` and
            F_K the objective of exact kernel quantile regression. A negative gap means that the features fit y better
            than the kernel. Levels that were fitted jointly are compared with exact fits that may cross.

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
        # scikit-learn's estimator checks set alpha = 0.01 and expect a good score. Only alpha="auto" adapts to the
        # data; a given alpha may be too large for theirs.
        tags.regressor_tags.poor_score = self.alpha != "auto"
        return tags

    def _check_parameters(self) -> Kernel:
        check_flags(self, "recalibrate", "inference")
        if self._has_shape_parameters():
            check_shapes(self)
        if self.inference and self.noncrossing == "joint":
            raise ValueError(
                "inference=True is for levels that are fitted one by one: the constraints of noncrossing='joint' "
                "change the law of the curves where levels touch. Use noncrossing='rearrange'."
            )
        check_choice("noncrossing", self.noncrossing, ("rearrange", "joint", None))
        if self.tails is not None:
            self._check_tails()
        if self.noncrossing == "joint" and (self.solver != "newton" or self.dtype != "float64"):
            raise ValueError(
                "noncrossing='joint' is for solver='newton' and dtype='float64' only; got "
                f"solver={self.solver!r}, dtype={self.dtype!r}. Use noncrossing='rearrange' with those."
            )
        return super()._check_parameters()

    def _restrictions(self, needed: str) -> Iterator[tuple[str, str]]:
        yield from super()._restrictions(needed)
        if self.noncrossing == "joint":
            yield 'noncrossing="joint"', 'noncrossing="rearrange"'
        if self.tails is not None and needed == "out_of_core":
            yield f"tails={self.tails!r}", "tails=None"
        if has_shapes(self):
            yield "A shape (monotone, convex, lower or upper)", "no such constraint"

    def _estimate_stages(self, summary: DataSummary, loss: Loss) -> dict[str, float]:
        stages = super()._estimate_stages(summary, loss)
        return stages if self.tails is None else stages | {FITTING_TAILS: TAILS_SHARE * stages[SOLVING]}

    def _default_alpha(self, summary: DataSummary, loss: Loss) -> float:  # noqa: ARG002
        return auto_alpha(summary.target_scale, summary.n_distinct)

    def _output_names(self) -> list[str]:
        return [f"level {level:g}" for level in self.quantiles_]

    def _has_shape_parameters(self) -> bool:
        """Whether a shape is given, be it without effect."""
        return any(getattr(self, name) is not None for name in SHAPE_PARAMETERS)

    def _choose_solver(self, loss: Loss) -> Solver:
        """The solver of levels that must not cross or have shapes, or that of independent levels."""
        if self._has_shape_parameters() and has_shapes(self):
            return SHAPED_NONCROSSING if self.noncrossing == "joint" else SHAPED
        return NONCROSSING if self.noncrossing == "joint" else super()._choose_solver(loss)

    def _check_coverage(self, coverage: float) -> None:
        """Raise ValueError unless the fitted levels, or tails, reach as far as a central interval of this coverage."""
        sides = {name_side(one.level) for one in self._attached_tails()}
        low = 0.0 if "lower" in sides else self.quantiles_.min()
        high = 1.0 if "upper" in sides else self.quantiles_.max()
        widest, tail = 1 - 2 * max(low, 1 - high), (1 - coverage) / 2
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

    def _check_points(self, points: Any, data: FitData) -> Array | None:
        """Validate `noncrossing_points`: rows with the columns of X."""
        if points is None:
            return None
        if self.noncrossing != "joint" or self.n_components == "exact":
            raise ValueError(
                "noncrossing_points are for noncrossing='joint' with random features or a linear kernel; got "
                f"noncrossing={self.noncrossing!r}, n_components={self.n_components!r}. Leave them out."
            )
        header = copy(self)  # as if fitted to these columns
        header.n_features_in_ = data.in_memory.X.shape[1]
        header.__dict__.pop("encoder_", None)
        if data.encoder is not None:
            header.encoder_ = data.encoder
        if data.names is not None:
            header.feature_names_in_ = data.names
        return check_rows(header, points)

    def _predict_unsnapped(self, X: Array) -> Array:
        """Phi u + b as fitted, shape (n, q), before snapping to the point masses of y."""
        return super()._decision_function(X)

    def _decision_function(self, X: Array) -> Array:
        """Phi u + b + shift, shape (n, q), with values very close to a point mass of y set to it, before or after."""
        curves, masses, shift = self._predict_unsnapped(X), self.frequent_values_, self.level_shift_
        snapped = snap_to_point_masses(curves, masses, self._near) if len(masses) else curves
        if not shift.any():
            return clip_to_bounds(self, snapped)
        shifted = snap_to_point_masses(curves + shift, masses, self._near)
        return clip_to_bounds(self, np.where(np.isin(snapped, masses), snapped, shifted) if len(masses) else shifted)

    def _curves(self, X: Array) -> Array:
        """Predictions at the fitted levels, (n, q), in their given order; sorted unless `noncrossing` is None."""
        tails = [] if self.noncrossing is None else self._attached_tails()
        if any(tail.covers(self.quantiles_).any() for tail in tails):
            return self._distribution(X).at(self.quantiles_)
        curves = self._predict_raw(X)
        return curves if self.noncrossing is None else rearrange(curves, self.quantiles_, self._failed_levels())

    def _failed_levels(self) -> NDArray[np.bool_]:
        """Mask (q,) of the levels whose duality gap is above `tol`."""
        return ~(self.duality_gap_ <= self.tol)

    def _distribution(self, X: Array) -> QuantileFunction:
        """Conditional quantile functions of the rows: ascending levels, sorted quantiles."""
        order = np.argsort(self.quantiles_)
        curves = rearrange(self._predict_raw(X), self.quantiles_, self._failed_levels())
        return self._attach_tails(QuantileFunction(self.quantiles_[order], curves[:, order]), X)


def _evaluate_snapped(outputs: Callable[[Array], Array], masses: Array, near: float, X: Array) -> Array:
    """Outputs for the rows of X, (n, q), with values within `near` of a point mass of y set to it; picklable."""
    return snap_to_point_masses(outputs(X), masses, near)
