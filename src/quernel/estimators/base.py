"""Base class of the estimators: check parameters, map X to features, solve, store the fitted attributes.

Every estimator of this package minimises, for one or more outputs (quantile levels, classes, or a single loss),

    F(u, b) = sum_i w_i loss(y_i, phi(x_i)'u + b) + alpha u'u,        sum_i w_i = 1,

where phi are features of a kernel. A fit goes through these steps, one method each:

1. `_check_parameters`: the constructor's arguments, before any work;
2. `_training_rows`: X, y and weights, validated in memory or left out of core (files, Dask);
3. `_fit_outputs`: statistics of the data (`DataSummary`), memory check, warm start;
4. `_with_bandwidth`, `_choose_alpha`, `_choose_components`: the hyperparameters that are "auto" or "learned";
5. `_map_and_solve`: draw or reuse the feature map, build the design matrix, run the solver to a duality gap of `tol`;
6. `_store_result`: write `coef_`, `intercept_`, `duality_gap_`, ...

Subclasses choose the loss and say what is predicted from the decision function phi(x)'u + b.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_is_fitted

from quernel._threads import parallel_map, single_threaded_blas
from quernel._validation import check_choice, check_positive
from quernel.data import ArrayRows, DaskDesign, DaskRows, InMemoryDesign, StreamedDesign, blocks
from quernel.data.dask_tasks import current_scheduler
from quernel.estimators.full_kernel import solve_full_kernel
from quernel.estimators.inputs import blockwise, training_rows
from quernel.estimators.validation import check_rows, refuse_large, refuse_missing
from quernel.estimators.warm_start import WarmStart, can_warm_start
from quernel.estimators.warnings import print_progress, reset_warning, warn_if_extrapolating
from quernel.features import SAMPLINGS, LandmarkPredictor, Nystroem, PrecomputedFeatures, RandomFeatures
from quernel.features.random import as_generator
from quernel.features.sampling import distinct_rows
from quernel.kernels import Gaussian, Kernel, Laplacian, Linear, Matern, ShiftInvariantKernel, resolve
from quernel.losses import Loss
from quernel.objective import NotFiniteError, Problem
from quernel.solvers import SOLVERS, Result
from quernel.solvers.progress import listening
from quernel.solvers.result import InitialPoint, after, recertify
from quernel.tuning.alpha import AlphaChoice, choose_alpha
from quernel.tuning.bandwidth import BandwidthChoice, auto_bandwidth, learn_bandwidth
from quernel.tuning.cost import most_components, refuse_if_too_large
from quernel.tuning.data_summary import SAMPLE as MOST_SAMPLED
from quernel.tuning.data_summary import DataSummary, StreamedSummary
from quernel.tuning.n_components import OPTIONS, ComponentsChoice, auto_landmarks, choose_components

Array = NDArray[np.floating]

# With the exact kernel, problems up to this size (n_rows x n_features) are polished to machine precision.
POLISHED = 100_000
# Candidate kernels for kernel="auto" with bandwidth="learned": a smooth kernel, and its mean with the Laplacian, whose
# functions may have kinks along single columns, as regression trees have.
LEARNED_KERNELS = (Gaussian(), 0.5 * Gaussian() + 0.5 * Laplacian())


class KernelEstimator(BaseEstimator):
    """Penalised empirical risk minimisation on the features of a kernel, for one or more outputs.

    Subclasses choose the loss (one column per output) and turn the decision function into predictions.
    """

    kernel: str | Kernel
    bandwidth: str | float | ArrayLike
    n_components: int | str
    sampling: str | RandomFeatures
    alpha: float | str
    fit_intercept: bool
    solver: str
    tol: float
    max_iter: int
    max_memory: int | None
    dtype: str
    warm_start: bool = False
    random_state: Any
    verbose: int

    def _check_parameters(self) -> Kernel:
        """Validate the constructor's arguments; return the kernel, with its bandwidth if that is a number."""
        kernel = resolve(self.kernel)
        if not isinstance(self.sampling, RandomFeatures):
            check_choice("sampling", self.sampling, ("auto", *SAMPLINGS, "landmarks"))
        check_choice("solver", self.solver, SOLVERS)
        check_choice("dtype", self.dtype, ("float64", "float32"))
        if self.dtype == "float32" and self.solver != "newton":
            raise ValueError(f"dtype='float32' is for solver='newton' only; got solver={self.solver!r}.")
        if not (isinstance(self.alpha, str) and self.alpha == "auto"):
            check_positive("alpha", self.alpha, instead=' or "auto"')
        if not (isinstance(self.n_components, str) and self.n_components in ("auto", "exact")):
            check_positive("n_components", self.n_components, integer=True, instead=', "auto" or "exact"')
        if self.n_components == "exact":
            kernel.check_diagonal()
        elif not isinstance(kernel, Linear):
            self._random_features(kernel).check()
        if not isinstance(self.fit_intercept, bool | np.bool_):
            raise ValueError(f"fit_intercept must be True or False; got {self.fit_intercept!r}.")
        if not isinstance(self.warm_start, bool | np.bool_):
            raise ValueError(f"warm_start must be True or False; got {self.warm_start!r}.")
        for what, instead in self._in_memory_only() if self.warm_start else ():
            raise ValueError(f"warm_start=True is not for {what}, which always starts from scratch. Use {instead}.")
        check_positive("tol", self.tol)
        check_positive("max_iter", self.max_iter, integer=True)
        if self.max_memory is not None:
            check_positive("max_memory", self.max_memory, instead=" of bytes, or None")
        return self._check_bandwidth(kernel)

    def _check_bandwidth(self, kernel: Kernel) -> Kernel:
        """Validate `bandwidth` for this kernel; return the kernel, with the bandwidth set if numbers were given."""
        if isinstance(self.bandwidth, str):
            check_choice("bandwidth", self.bandwidth, ("auto", "learned"))
            if self.bandwidth == "auto":
                return kernel
        if not kernel.takes_bandwidth:
            raise ValueError(f"The {kernel.name} kernel has no bandwidth; leave bandwidth at 'auto'.")
        if not kernel.has_free_bandwidth:
            raise ValueError("The kernel object has its own bandwidth; leave the estimator's at 'auto'.")
        if isinstance(self.bandwidth, str):
            for _, part in kernel.summands:
                if not isinstance(part, ShiftInvariantKernel):
                    raise ValueError(
                        f"bandwidth='learned' needs a bandwidth in every part, which the {part.name} kernel in the sum "
                        "does not have. Give bandwidths, or 'auto'."
                    )
            kernel.check_diagonal()
            return kernel
        return kernel.with_bandwidth(self.bandwidth)

    def _training_rows(
        self,
        kernel: Kernel,
        X: Any,
        y: Any,
        sample_weight: Any,
        read_target: Callable[[Any], NDArray[Any]] | None = None,
    ) -> Any:
        """Validate the training data: `ArrayRows` if it fits in memory, otherwise the out-of-core source itself."""
        return training_rows(self, X, y, sample_weight, read_target, finite=not self._finds_missing(kernel))

    def _in_memory_only(self) -> Iterator[tuple[str, str]]:
        """Yield (setting, alternative) for each chosen option that works only in memory and from a cold start.

        Such options are refused for out-of-core data, with `warm_start=True` and with a checkpoint.
        """
        if self.solver != "newton":
            yield f"solver={self.solver!r}", "solver='newton'"
        if self.n_components == "exact" and not isinstance(resolve(self.kernel), Linear):
            yield 'n_components="exact"', "random features, such as n_components=1000"

    def _with_bandwidth(self, kernel: Kernel, summary: DataSummary, loss: Loss) -> Kernel:
        """Set the bandwidth if it is "auto" or "learned"; choose `alpha_` with it or after it.

        Sets `bandwidth_`, `bandwidth_choice_`, `alpha_choice_` and `alpha_`.
        """
        self.bandwidth_choice_: BandwidthChoice | None = None
        self.alpha_choice_: AlphaChoice | None = None
        if kernel.has_free_bandwidth and self.bandwidth == "auto":
            kernel = kernel.with_bandwidth(auto_bandwidth(summary))
        elif kernel.has_free_bandwidth:
            kernels = LEARNED_KERNELS if self.kernel == "auto" else (kernel,)
            chosen = self._learn_bandwidth(kernels, summary, loss)
            self.alpha_ = chosen.alpha
            kernel = kernels[chosen.kernel].with_bandwidth(chosen.bandwidth)
        kernel.check_columns(summary.n_columns)
        self.bandwidth_ = getattr(kernel, "bandwidth", None)
        if self.bandwidth_choice_ is None:
            self._choose_alpha(kernel, summary, loss)
        elif self.kernel == "auto":  # the summands of a sum share one vector of bandwidths: report it once
            self.bandwidth_ = np.array(self.bandwidth_choice_.bandwidth)
        return kernel

    def _choose_alpha(self, kernel: Kernel, summary: DataSummary, loss: Loss) -> None:
        """Choose `alpha_` by held-out loss if alpha="auto"; large data keep the default (see `tuning.alpha`)."""
        most = summary.n_rows if isinstance(self.n_components, str) else int(self.n_components)
        if self.alpha == "auto":
            # Less regularisation than the default is not tried here: on noise-free targets these settings do not reach
            # the required duality gap with it.
            coarse = self.n_components == "exact" or self.solver != "newton" or self.dtype == "float32"
            kwargs = {"fit_intercept": self.fit_intercept, "most_components": most, "larger_only": coarse}
            self.alpha_choice_ = choose_alpha(summary, kernel, loss, self.alpha_, **kwargs)
        if self.alpha_choice_ is not None:
            self.alpha_ = self.alpha_choice_.alpha

    def _learn_bandwidth(self, kernels: Sequence[Kernel], summary: DataSummary, loss: Loss) -> BandwidthChoice:
        """Choose between learned bandwidths for one of these kernels and the automatic ones for the first kernel."""
        choice = learn_bandwidth(
            summary, kernels, loss, self.alpha_, alpha_is_open=self.alpha == "auto", fit_intercept=self.fit_intercept
        )
        self.bandwidth_choice_ = choice
        return choice

    @blockwise
    def is_extrapolation(self, X: Any) -> NDArray[np.bool_]:
        """Mask of rows with a column outside its training range, ndarray of bool of shape (n,)."""
        check_is_fitted(self)
        low, high = self.input_range_
        rows = check_rows(self, X, reset=False)
        return np.any((rows < low) | (rows > high), axis=1)

    def _finds_missing(self, kernel: Kernel) -> bool:
        """Whether the solver reads X itself and so detects NaN and infinity without a separate pass."""
        return isinstance(kernel, Linear) and self.solver == "newton"

    def _solve(
        self, summary: DataSummary, kernel: Kernel, loss: Loss, rng: np.random.Generator, warm: WarmStart
    ) -> Result:
        """Record `input_range_`, then map and solve, printing progress if `verbose`."""
        reset_warning(self)
        # A linear model extrapolates linearly, so it has no range to leave; this also spares a pass over X.
        everywhere = np.tile([[-np.inf], [np.inf]], summary.n_columns)
        self.input_range_ = everywhere if isinstance(kernel, Linear) else summary.range
        try:
            with listening(print_progress) if self.verbose else nullcontext():
                return self._map_and_solve(summary, kernel, loss, rng, warm)
        except NotFiniteError:
            # The solver found NaN or infinity in X (see `_finds_missing`): say in which columns.
            if summary.in_memory:
                refuse_missing(self, summary.source.X)
            raise

    def _map_and_solve(
        self, summary: DataSummary, kernel: Kernel, loss: Loss, rng: np.random.Generator, warm: WarmStart
    ) -> Result:
        """Fit the feature map, unless that of the last fit is reused, and solve on the design matrix."""
        if warm.reuse_features:
            pass  # feature_map_ is that of the last fit
        elif isinstance(kernel, Linear):
            self.feature_map_ = PrecomputedFeatures().fit(summary.sample.X)
        elif self.n_components == "exact":
            return self._solve_full_kernel(summary.source, kernel, loss)
        elif self._uses_landmarks(kernel):
            size = auto_landmarks(summary.n_distinct) if self.n_components == "auto" else int(self.n_components)
            # A hash sample: the same landmarks whether the rows are in memory, in files or on a cluster.
            some, weight = distinct_rows(summary.sample.X, summary.sample.share(), MOST_SAMPLED)
            self.feature_map_ = Nystroem(kernel, size, landmarks="distinct").fit(some, sample_weight=weight)
        else:
            self.feature_map_ = self._draw_features(summary, kernel, loss, rng)
        if self.dtype == "float32" and not isinstance(kernel, Linear):
            return self._solve_float32(summary, loss, warm.solver_kwargs(self, summary))
        return self._solve_and_close(self._build_design(summary), loss, **warm.solver_kwargs(self, summary))

    def _build_design(self, summary: DataSummary, dtype: Any = float) -> Any:
        """Design matrix Phi = phi(X): in memory, streamed from files, or distributed over Dask workers."""
        kwargs = {"max_memory": self.max_memory, "dtype": dtype}
        if summary.in_memory:
            return InMemoryDesign(summary.source, self.feature_map_, **kwargs)
        if isinstance(summary.source, DaskRows):
            return DaskDesign(summary.source, self.feature_map_, **kwargs)
        assert isinstance(summary, StreamedSummary)
        return StreamedDesign(summary.source, self.feature_map_, total=summary.total, largest=summary.largest, **kwargs)

    def _uses_landmarks(self, kernel: Kernel) -> bool:
        """Whether to use Nystroem landmarks rather than random features: asked for, or learned rough kernels."""
        if not isinstance(self.sampling, str) or self.sampling != "auto":
            return isinstance(self.sampling, str) and self.sampling == "landmarks"
        learned = isinstance(self.bandwidth, str) and self.bandwidth == "learned"
        return learned and any(isinstance(part, Laplacian | Matern) for _, part in kernel.summands)

    def _draw_features(
        self, summary: DataSummary, kernel: Kernel, loss: Loss, rng: np.random.Generator
    ) -> RandomFeatures:
        """Draw the random features of the fit, choosing n_components first if it is "auto"."""
        features = self._unfitted_features(summary.mean, kernel, int(rng.integers(2**63)))

        def draw(n_components: int, rows: ArrayRows) -> RandomFeatures:
            return clone(features).set_params(n_components=n_components).fit(rows.X, sample_weight=rows.weight)

        if self.n_components == "auto":
            return draw(self._choose_components(features, draw, summary, loss), summary.sample)
        return draw(int(self.n_components), summary.sample)

    def _unfitted_features(self, center: Array, kernel: Kernel, seed: int) -> RandomFeatures:
        """Unfitted random features, centred at the mean of X; the leverage scores use `alpha_` unless set otherwise."""
        features = self._random_features(kernel).set_params(center=center, random_state=seed)
        return features if features.leverage_alpha is not None else features.set_params(leverage_alpha=self.alpha_)

    def _choose_components(
        self,
        features: RandomFeatures,
        draw: Callable[[int, ArrayRows], RandomFeatures],
        summary: DataSummary,
        loss: Loss,
    ) -> int:
        """Choose n_components by effective dimension and held-out loss, up to what memory allows."""
        memory = self.max_memory
        if memory is None and isinstance(summary.source, DaskRows):
            memory = int(current_scheduler().feature_memory())  # memory of the Dask workers
        most, limited_by = most_components(summary.n_rows, loss.n_columns, solver=self.solver, max_memory=memory)
        if features.pool_size is not None and features.pool_size < most:
            most, limited_by = features.pool_size, f"the pool has {features.pool_size:,} features"
        self.n_components_choice_ = choose_components(
            summary.sample, draw, self._selection_loss(loss), self.alpha_,
            fit_intercept=self.fit_intercept, most=most, limited_by=limited_by,
        )  # fmt: skip
        return self.n_components_choice_.n_components

    def _selection_loss(self, loss: Loss) -> Loss:
        """Loss by which n_components is chosen: that of the fit, unless a subclass overrides it."""
        return loss

    def _solve_float32(self, summary: DataSummary, loss: Loss, kwargs: dict[str, Any]) -> Result:
        """Solve with features stored in float32, then certify the duality gap with float64 features.

        Predictions use float64 features, so the gap that is reported must be theirs.
        """
        rows = self._build_design(summary, np.float32)
        result = self._solve_and_close(rows, loss, **kwargs)
        if summary.in_memory:
            del rows
            exact = InMemoryDesign(summary.source, self.feature_map_, max_memory=0)
            problem = Problem(exact, loss, self.alpha_, fit_intercept=self.fit_intercept)
            with single_threaded_blas(exact.n_rows, exact.n_features) as exact.threads:
                return recertify(problem, result, self.tol)
        if not rows.rounded:
            return result
        # The dual variables of out-of-core rows were not kept: solve again from this solution with float64 features.
        # One pass recovers the duals, and further steps follow only if the gap exceeds tol.
        initial = InitialPoint.solution(result.coef, result.intercept, summary.n_rows, result.parameters, self.tol)
        return after(result, self._solve_on(rows.as_float64(), loss, self.tol, **kwargs | {"initial": initial}))

    def _solve_and_close(self, rows: Any, loss: Loss, **kwargs: Any) -> Result:
        """Solve, and release the cached features of streamed rows afterwards, even after an error."""
        with closing(rows) if isinstance(rows, StreamedDesign) else nullcontext():
            return self._solve_on(rows, loss, self.tol, **kwargs)

    def _random_features(self, kernel: Kernel) -> RandomFeatures:
        """Unfitted random features of this kernel; with n_components="auto", the smallest size of the search."""
        if isinstance(self.sampling, RandomFeatures):
            given = self.sampling
        else:
            given = RandomFeatures(sampling=self.sampling if self.sampling in SAMPLINGS else "uniform")
        n_components = OPTIONS.sizes[0] if self.n_components == "auto" else int(self.n_components)
        return clone(given).set_params(kernel=kernel, n_components=n_components)

    def _solve_full_kernel(self, source: ArrayRows, kernel: Kernel, loss: Loss) -> Result:
        """Solve n_components="exact": a pivoted Cholesky factor of the kernel matrix stands for its features."""

        def solve(rows: InMemoryDesign, tol: float) -> Result:
            # The error of the low-rank factor exceeds rounding error, so polishing a large problem gains nothing.
            large = rows.n_rows * rows.n_features > POLISHED
            return self._solve_on(rows, loss, tol, polish=not large)

        self.feature_map_, result = solve_full_kernel(
            source,
            kernel,
            self.alpha_,
            self.tol,
            solve,
            max_memory=self.max_memory,
        )
        return result

    def _solve_on(self, rows: Any, loss: Loss, tol: float, **kwargs: Any) -> Result:
        """Run the solver on a design matrix, to a relative duality gap of `tol`."""
        problem = Problem(rows, loss, self.alpha_, fit_intercept=self.fit_intercept)
        with single_threaded_blas(rows.n_rows, rows.n_features) as threads:
            if not isinstance(rows, DaskDesign):
                rows.threads = threads
            return self._solver()(problem, tol=tol, max_iter=self.max_iter, **kwargs)

    def _solver(self) -> Callable[..., Result]:
        return SOLVERS[self.solver]

    def _resolve_alpha(self, chosen: Callable[[], float], n_fits: int = 1) -> float:
        """The ridge weight: as given, as in the last fit for a warm start, or `chosen()`."""
        if self.alpha != "auto":
            return float(self.alpha)
        return self.alpha_ if can_warm_start(self, self.n_features_in_, n_fits) else chosen()

    def _fit_outputs(
        self,
        summary: DataSummary,
        kernel: Kernel,
        loss: Loss,
        choose: Callable[[Kernel, DataSummary, Loss], Kernel] | None = None,
        checkpoint: Any = None,
    ) -> None:
        """Fit all outputs (the columns of the loss) and store the fitted attributes.

        `choose(kernel, summary, loss)` returns the kernel with its bandwidth and sets `alpha_`; the default is
        `_with_bandwidth`, and `KernelQuantileRegressorCV` passes its cross-validation.
        """
        if summary.in_memory:
            refuse_if_too_large(
                summary.n_rows,
                self.n_components,
                loss.n_columns,
                linear=isinstance(kernel, Linear),
                solver=self.solver,
                max_memory=self.max_memory,
                dtype=self.dtype,
            )
        if not isinstance(kernel, Linear):
            refuse_large(self, summary.range)
        warm = WarmStart.from_model(self, summary, loss, checkpoint)
        if not warm.reuse_features:
            kernel = (choose or self._with_bandwidth)(kernel, summary, loss)
            self.n_components_choice_: ComponentsChoice | None = None
            self.kernel_ = kernel
        elif (chosen := getattr(self, "alpha_choice_", None)) and chosen.alpha != self.alpha_:  # alpha is a number now
            self.alpha_choice_ = None
        result = self._solve(summary, kernel, loss, as_generator(self.random_state), warm)
        self._store_result(result)
        warm.record(self, summary, result)

    def _store_result(self, result: Result) -> None:
        """Write the fitted attributes."""
        self.n_components_ = self.feature_map_.n_components_
        self.coef_, self.intercept_ = result.coef, result.intercept
        self.duality_gap_, self.objective_ = result.relative_gap, result.objective
        self.n_iter_ = int(result.iterations.max(initial=1))

    def _export_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """State as written to a model file.

        A Nystroem map is reduced to what `predict` needs, the landmarks P and  c = V D^(-1/2) u  with
        K(P, P) = V D V',  so that  phi(x)'u = k(x, P) c.
        """
        if not isinstance(state.get("feature_map_"), Nystroem):
            return state
        with single_threaded_blas(0, 0):  # as in predict, for identical rounding
            feature_map, coef = LandmarkPredictor.from_nystroem(state["feature_map_"], state["coef_"])
        no_fit = {"_fitted_as": ""}  # a warm start needs the full feature map
        return state | {"feature_map_": feature_map, "coef_": coef} | no_fit

    def _predict_raw(self, X: Array) -> Array:
        """Phi u + b, shape (n, q), with an ExtrapolationWarning for rows far outside the training range."""
        warn_if_extrapolating(self, X)
        return self._decision_function(X)

    def _decision_function(self, X: Array) -> Array:
        """Phi u + b, shape (n, q), computed block by block in parallel."""
        curves = np.empty((len(X), self.coef_.shape[1]))
        # Some feature maps compute Phi u without forming Phi.
        curves_of = getattr(self.feature_map_, "curves", lambda X, coef: self.feature_map_.transform(X) @ coef)

        def fill(block: slice) -> None:
            curves[block] = curves_of(X[block], self.coef_) + self.intercept_

        if hasattr(self.feature_map_, "prepare"):
            self.feature_map_.prepare(len(X))
        with single_threaded_blas(len(X), self.n_components_) as threads:
            parallel_map(fill, blocks(len(X), self.n_components_), threads)
        return curves
