"""Base class of the estimators. Every fit is three steps, seen in the `fit` of each estimator:

    plan = self._plan(data, kernel, loss, ...)          every automatic choice (`tuning.plan`)
    solution = self._solve(plan, data, loss, ...)       features, design matrix, certified solution (`estimators.solve`)
    self._store(data, plan, solution, ...)              the only place that writes fitted attributes

after the parameters (`_check_parameters`) and the data (`_read`) have been validated. Nothing is written on the
estimator before `_store`: a fit that fails or is interrupted leaves it as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from quernel._machine import single_threaded_blas
from quernel._validation import check_choice, check_positive
from quernel.estimators.inputs import FitData, blockwise, read_fit_data
from quernel.estimators.solve import Solution, Task, TimeBudget, evaluate_outputs, solve_full_kernel, solve_on_features
from quernel.estimators.validation import check_rows, refuse_large, refuse_missing
from quernel.estimators.warm_start import WarmStart, warm_start_state
from quernel.estimators.warnings import print_progress, reset_warning, warn_if_extrapolating, warn_not_converged
from quernel.features import SAMPLINGS, LandmarkPredictor, Nystroem, RandomFeatures, TrendFeatures
from quernel.kernels import Kernel, Linear, resolve
from quernel.losses import Loss
from quernel.objective import NotFiniteError
from quernel.solvers import SOLVERS, Solver
from quernel.solvers.progress import SOLVING, enter_stage, listening, staged
from quernel.tables import TableEncoder
from quernel.tuning.alpha import AlphaChoice, alpha_for, alpha_unit
from quernel.tuning.bandwidth import BandwidthChoice
from quernel.tuning.cost import estimate_cost, refuse_if_too_large
from quernel.tuning.data_summary import DataSummary
from quernel.tuning.n_components import ComponentsChoice
from quernel.tuning.plan import FitPlan, draw_features, plan_fit, unfitted_features

Array = NDArray[np.floating]

# Stages of a fit, besides `SOLVING`, and what users see of them.
CHOOSING, CALIBRATING = "choosing bandwidth, alpha and features", "leaving out each row"
# Seconds of the last stage, as a share of those of solving.
CALIBRATING_SHARE = 0.1
# Features that n_components="exact" is expected to need: its progress has to begin with some number.
USUAL_RANK = 500


class KernelEstimator(BaseEstimator):
    """Penalised empirical risk minimisation on the features of a kernel, for one or more outputs.

    Subclasses choose the loss (one column per output) and turn the decision function into predictions.
    """

    kernel: str | Kernel
    bandwidth: str | float | ArrayLike
    n_components: int | str
    sampling: str | RandomFeatures
    alpha: float | str
    alpha_scale: str = "absolute"
    fit_intercept: bool
    solver: str
    tol: float
    max_iter: int
    max_seconds: float | None
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
        if self.dtype == "float32" and not SOLVERS[self.solver].float32:
            able = ", ".join(f"solver={name!r}" for name, solver in SOLVERS.items() if solver.float32)
            raise ValueError(f"dtype='float32' is for {able} only; got solver={self.solver!r}.")
        if not (isinstance(self.alpha, str) and self.alpha == "auto"):
            check_positive("alpha", self.alpha, instead=' or "auto"')
        check_choice("alpha_scale", self.alpha_scale, ("absolute", "relative"))
        if not (isinstance(self.n_components, str) and self.n_components in ("auto", "exact")):
            check_positive("n_components", self.n_components, integer=True, instead=', "auto" or "exact"')
        if self.n_components == "exact":
            kernel.check_diagonal()
        elif not isinstance(kernel, Linear):
            unfitted_features(self, kernel).check()
        if not isinstance(self.fit_intercept, bool | np.bool_):
            raise ValueError(f"fit_intercept must be True or False; got {self.fit_intercept!r}.")
        if not isinstance(self.warm_start, bool | np.bool_):
            raise ValueError(f"warm_start must be True or False; got {self.warm_start!r}.")
        for what, instead in self._restrictions("warm_starts") if self.warm_start else ():
            raise ValueError(f"warm_start=True is not for {what}, which always starts from scratch. Use {instead}.")
        check_positive("tol", self.tol)
        check_positive("max_iter", self.max_iter, integer=True)
        if self.max_seconds is not None:
            check_positive("max_seconds", self.max_seconds, instead=", or None")
        if self.max_memory is not None:
            check_positive("max_memory", self.max_memory, instead=" of bytes, or None")
        return self._check_bandwidth(kernel)

    def _check_bandwidth(self, kernel: Kernel) -> Kernel:
        """Validate `bandwidth` for this kernel; return the kernel, with the bandwidth set if numbers were given."""
        if isinstance(self.bandwidth, str):
            check_choice("bandwidth", self.bandwidth, ("auto", "learned"))
            return kernel
        if not kernel.takes_bandwidth:
            raise ValueError(f"The {kernel.name} kernel has no bandwidth; leave bandwidth at its default.")
        if not kernel.has_free_bandwidth:
            raise ValueError("The kernel object has its own bandwidth; leave the estimator's at its default.")
        return kernel.with_bandwidth(self.bandwidth)

    def _read(
        self,
        kernel: Kernel,
        X: Any,
        y: Any,
        sample_weight: Any,
        read_target: Callable[[Any], NDArray[Any]] | None = None,
    ) -> FitData:
        """Validate the training data; the solver finds missing values itself where it reads X as it is.

        Numbers that are to be predicted are centred, if an intercept can take up what is subtracted.
        """
        reads_all = isinstance(kernel, Linear) and SOLVERS[self.solver].out_of_core
        data = read_fit_data(self, X, y, sample_weight, read_target, finite=not reads_all)
        return replace(data, centred=bool(self.fit_intercept) and read_target is None)

    def _restrictions(self, needed: str) -> Iterator[tuple[str, str]]:
        """Yield (setting, alternative) for each chosen option that cannot do what is needed.

        `needed` is an ability of solvers: "out_of_core" for data that are not in memory, "warm_starts" for
        `warm_start=True` and checkpoints.
        """
        if not getattr(SOLVERS[self.solver], needed):
            yield f"solver={self.solver!r}", "solver='newton'"
        if self.n_components == "exact" and not isinstance(resolve(self.kernel), Linear):
            yield 'n_components="exact"', "random features, such as n_components=1000"

    @contextmanager
    def _reporting(self, data: FitData, loss: Loss) -> Iterator[None]:
        """Context of a fit: print progress if `verbose`; of rows in memory, report stages and the time left."""
        in_memory = data.summary.in_memory
        with (
            listening(print_progress) if self.verbose else nullcontext(),
            staged(lambda: self._estimate_stages(data.summary, loss)) if in_memory else nullcontext(),
        ):
            yield

    def _estimate_stages(self, summary: DataSummary, loss: Loss) -> dict[str, float]:
        """Stages of a fit, and the seconds each is expected to take."""
        learned = isinstance(self.bandwidth, str) and self.bandwidth == "learned"
        cost = estimate_cost(
            summary.n_rows,
            summary.n_columns,
            USUAL_RANK if self.n_components == "exact" else self.n_components,
            loss.n_columns,
            kernel=self.kernel,
            bandwidth="learned" if learned else "auto",
            solver=self.solver,
            max_memory=self.max_memory,
            dtype=self.dtype,
        )
        solving = cost.seconds - cost.choosing
        last = CALIBRATING_SHARE * solving if getattr(self, "recalibrate", False) else 0.0
        return {CHOOSING: cost.choosing, SOLVING: solving, CALIBRATING: last}

    def _plan(self, data: FitData, kernel: Kernel, loss: Loss, start: WarmStart, budget: TimeBudget) -> FitPlan:
        """Make every automatic choice, or keep those of the last fit for a warm start."""
        self._refuse_size(data, kernel, loss)
        if start.plan is not None:
            return start.plan
        enter_stage(CHOOSING)
        with budget.planning():
            return plan_fit(self, data.summary, kernel, loss, self._initial_alpha(data.summary, loss))

    def _refuse_size(self, data: FitData, kernel: Kernel, loss: Loss) -> None:
        """Raise ValueError, before any work, if memory cannot hold the fit or squares of X overflow."""
        summary, linear = data.summary, isinstance(kernel, Linear)
        if summary.in_memory:
            refuse_if_too_large(
                summary.n_rows,
                self.n_components,
                loss.n_columns,
                linear=linear,
                solver=self.solver,
                max_memory=self.max_memory,
                dtype=self.dtype,
            )
        if not linear:
            refuse_large(summary.range, data.row_names)

    def _initial_alpha(self, summary: DataSummary, loss: Loss) -> float:
        """The alpha that was given, in units of the objective, or the one that alpha="auto" begins with."""
        if isinstance(self.alpha, str):
            return self._default_alpha(summary, loss)
        return float(self.alpha) * self._alpha_unit(summary, loss)

    def _alpha_unit(self, summary: DataSummary, loss: Loss) -> float:
        """What a given alpha is multiplied by: 1 or, with alpha_scale="relative", a unit that makes it free of y's."""
        return alpha_unit(loss, summary.target_scale) if self.alpha_scale == "relative" else 1.0

    def _default_alpha(self, summary: DataSummary, loss: Loss) -> float:
        """The ridge weight that alpha="auto" begins with."""
        return alpha_for(loss, summary.target_scale, summary.n_distinct)

    def _solve(
        self,
        plan: FitPlan,
        data: FitData,
        loss: Loss,
        start: WarmStart,
        budget: TimeBudget,
        *,
        solver: Solver | None = None,
        points: Array | None = None,
        constraints: Any = None,
    ) -> Solution:
        """Draw the features of the plan, unless those of the last fit are kept, and solve on them.

        `solver` is for problems that none of `SOLVERS` solves. `points` of shape (p, d) are mapped like the rows and
        handed to the solver, if it takes such, as are `constraints` (`estimators.shapes`) with the feature map.
        """
        summary, solver = data.summary, solver or SOLVERS[self.solver]
        task = Task(loss, plan.alpha, self.fit_intercept, solver, self.tol, self.max_iter, self.max_memory)
        enter_stage(SOLVING)
        try:
            with budget.solving() as stop:
                if plan.features == "exact":
                    return solve_full_kernel(task, summary, plan.kernel).explain_stop(stop)
                feature_map = draw_features(self, plan, summary) if start.feature_map is None else start.feature_map
                checkpoint = start.open_checkpoint(self, data, plan, feature_map)
                kwargs = start.solver_kwargs(checkpoint)
                if constraints is not None:
                    kwargs["constraints"] = constraints = constraints.use(feature_map)
                    feature_map = constraints.feature_map
                if points is not None:
                    kwargs["points"] = feature_map.transform(points)
                float32 = self.dtype == "float32" and plan.features != "columns"
                solution = solve_on_features(task, summary, feature_map, float32=float32, **kwargs)
                return solution.explain_stop(stop)
        except NotFiniteError:
            if summary.in_memory:  # say in which columns
                refuse_missing(summary.source.X, data.row_names)
            raise

    def _store(self, data: FitData, plan: FitPlan, solution: Solution, start: WarmStart, **attributes: Any) -> Self:
        """Replace all fitted attributes at once; `attributes` are those of the subclass. Warn if `tol` was not met."""
        summary, result = data.summary, solution.result
        # A linear model extrapolates linearly, so it has no range to leave; this also spares a pass over X.
        everywhere = np.tile([[-np.inf], [np.inf]], summary.n_columns)
        encoder = data.encoder
        if encoder is None:
            # What stands for missing values in `predict`; the linear kernel needs no mean otherwise.
            fill = summary.approximate_mean() if isinstance(plan.kernel, Linear) else summary.mean
            columns = {"n_features_in_": summary.n_columns, "_fill": fill}
        else:
            columns = {"n_features_in_": encoder.n_features_in_, "encoder_": encoder}
        fitted = {
            **columns,
            **({} if data.names is None else {"feature_names_in_": data.names}),
            "plan_": replace(plan, notes=data.notes) if data.notes else plan,
            "kernel_": plan.kernel,
            "bandwidth_": plan.bandwidth,
            "alpha_": plan.alpha,
            "feature_map_": solution.feature_map,
            "n_components_": solution.feature_map.n_components_,
            "input_range_": everywhere if isinstance(plan.kernel, Linear) else input_range(summary.range, encoder),
            "coef_": result.coef,
            "intercept_": result.intercept,
            "duality_gap_": result.relative_gap,
            "objective_": result.objective,
            "stopped_by_": solution.stopped_by,
            "n_iter_": int(result.iterations.max(initial=1)),
            **warm_start_state(self, summary, result),
            **attributes,
        }
        kept = {name: value for name, value in vars(self).items() if not name.endswith("_")}
        self.__dict__ = kept | fitted
        reset_warning(self)
        if solution.stopped_by is None:
            start.remove_checkpoint()
        warn_not_converged(self, self._output_names(), solution.stopped_by)
        return self

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        # Not "categorical": scikit-learn's checks round the numbers for estimators that say so.
        tags.input_tags.allow_nan = tags.input_tags.string = True
        return tags

    def _output_names(self) -> list[str]:
        """Label of each optimisation problem, for the ConvergenceWarning."""
        raise NotImplementedError

    @property
    def bandwidth_choice_(self) -> BandwidthChoice | None:
        """The search for bandwidths, or None; a view of `plan_`."""
        return self.plan_.bandwidth_choice

    @property
    def alpha_choice_(self) -> AlphaChoice | None:
        """The search for alpha, or None; a view of `plan_`."""
        return self.plan_.alpha_choice

    @property
    def n_components_choice_(self) -> ComponentsChoice | None:
        """The search for the number of features, or None; a view of `plan_`."""
        return self.plan_.n_components_choice

    @blockwise
    def is_extrapolation(self, X: Any) -> NDArray[np.bool_]:
        """Mask of rows with a column outside its training range, ndarray of bool of shape (n,)."""
        check_is_fitted(self)
        low, high = self.input_range_
        rows = check_rows(self, X)
        return np.any((rows < low) | (rows > high), axis=1)

    def _export_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """State as written to a model file.

        A Nystroem map is reduced to what `predict` needs, the landmarks P and  c = V D^(-1/2) u  with
        K(P, P) = V D V',  so that  phi(x)'u = k(x, P) c.
        """
        trends = state.get("feature_map_")
        feature_map = trends.base if isinstance(trends, TrendFeatures) else trends
        if not isinstance(feature_map, Nystroem):
            return state
        M = feature_map.n_components_
        with single_threaded_blas(0, 0):  # as in predict, for identical rounding
            feature_map, coef = LandmarkPredictor.from_nystroem(feature_map, state["coef_"][:M])
        if isinstance(trends, TrendFeatures):
            feature_map, coef = trends.on(feature_map), np.vstack([coef, state["coef_"][M:]])
        no_fit = {"_fitted_as": ""}  # a warm start needs the full feature map
        return state | {"feature_map_": feature_map, "coef_": coef} | no_fit

    def _predict_raw(self, X: Array) -> Array:
        """Phi u + b, shape (n, q), with an ExtrapolationWarning for rows far outside the training range."""
        warn_if_extrapolating(self, X)
        return self._decision_function(X)

    def _decision_function(self, X: Array) -> Array:
        """Phi u + b, shape (n, q)."""
        return evaluate_outputs(self.feature_map_, self.coef_, self.intercept_, self.n_components_, X)


def input_range(limits: Array, encoder: TableEncoder | None) -> Array:
    """Minimum and maximum of every column, (2, d); no sine or cosine of a time is outside of its range."""
    if encoder is None:
        return limits
    return np.where(encoder.cyclic, [[-1.0], [1.0]], limits)
