"""Base class of the estimators. Every fit is three steps, seen in the `fit` of each estimator:

    plan = self._plan(data, kernel, loss, ...)          every automatic choice (`tuning.plan`)
    solution = self._solve(plan, data, loss, ...)       features, design matrix, certified solution (`estimators.solve`)
    self._store(data, plan, solution, ...)              the only place that writes fitted attributes

after the parameters (`_check_parameters`) and the data (`_read`) have been validated. Nothing is written on the
estimator before `_store`: a fit that fails or is interrupted leaves it as it was.

A `WarmStart` begins a fit from coefficients that were found before, by the last fit or in a checkpoint
(`solvers.result.Checkpoint`). The solution is certified by its duality gap whatever the initial point was, so that a
wrong checkpoint could cost time but not accuracy: the fingerprint of data and parameters in it only keeps users from
mixing up files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from quernel._files import follow_link
from quernel._machine import single_threaded_blas
from quernel._validation import check_choice, check_flags, check_positive
from quernel.data.design_matrix import FeatureMap
from quernel.estimators.inputs import FitData, read_fit_data, refuse_large, refuse_missing
from quernel.estimators.prediction import blockwise, check_rows
from quernel.estimators.solve import Solution, Task, TimeBudget, evaluate_outputs, solve_full_kernel, solve_on_features
from quernel.estimators.warnings import print_progress, warn_if_extrapolating, warn_not_converged
from quernel.features import SAMPLINGS, LandmarkPredictor, Nystroem, RandomFeatures, TrendFeatures
from quernel.kernels import Kernel, Linear, resolve
from quernel.kernels.base import Seed
from quernel.losses import Loss
from quernel.objective import NotFiniteError
from quernel.solvers import SOLVERS, Result, Solver
from quernel.solvers.progress import SOLVING, enter_stage, listening, staged
from quernel.solvers.result import Checkpoint, InitialPoint
from quernel.tables import TableEncoder
from quernel.tuning.alpha import AlphaChoice, alpha_for, alpha_unit
from quernel.tuning.bandwidth import BandwidthChoice
from quernel.tuning.cost import estimate_cost
from quernel.tuning.data_summary import DataSummary
from quernel.tuning.n_components import ComponentsChoice
from quernel.tuning.plan import FitPlan, draw_features, plan_fit, refuse_if_too_large, unfitted_features

if TYPE_CHECKING:
    from quernel.estimators.shapes import ShapeConstraints

# Parameters left out of the fingerprint: they change how far or how fast a fit goes, not its solution.
NOT_COMPARED = (
    *("max_iter", "max_seconds", "max_memory", "verbose", "tol", "warm_start", "recalibrate"),
    *("inference", "tails", "tail_level"),
)


def check_checkpoint(estimator: KernelEstimator, path: object) -> None:
    """Validate `checkpoint` before any work: a writable path, and a fit that can be resumed and repeated."""
    if path is None:
        return
    if not isinstance(path, str | os.PathLike):
        raise ValueError(f"checkpoint must be the path of a file, or None; got {path!r}.")
    if not Path(path).parent.is_dir() or Path(path).is_dir():
        raise ValueError(f"checkpoint={os.fspath(path)!r} is a folder, or in a folder that is missing. Give a file.")
    if isinstance(estimator.random_state, bool) or not isinstance(estimator.random_state, int | np.integer):
        raise ValueError(
            "A fit can resume from a checkpoint only with the same random features: checkpoint needs an integer as "
            f"random_state; got {estimator.random_state!r}."
        )
    for what, instead in estimator._restrictions("warm_starts"):
        raise ValueError(f"checkpoint is not for {what}, which cannot resume. Use {instead}, or leave it out.")


def fingerprint(estimator: KernelEstimator, data: FitData, plan: FitPlan, feature_map: FeatureMap) -> dict[str, Any]:
    """Identify a fit by its data (numbers of rows and columns, ranges, means) and by its parameters.

    The keys appear in the error message that lists how two fits differ. Data are described by statistics of all rows
    that are the same, up to rounding, in memory and out of core: `max_memory` may change between two fits.
    """
    summary = data.summary
    target = summary.target_moments
    settings = {
        name: _format_param(value)
        for name, value in estimator.get_params(deep=False).items()
        if name not in NOT_COMPARED
    }
    return {
        "number of rows": summary.n_rows,
        "number of columns": summary.n_columns,
        "names of columns": [] if data.names is None else [str(name) for name in data.names],
        "inputs": np.vstack([summary.range, summary.mean]).T.tolist(),
        "target": np.vstack([target.range, target.mean]).T.tolist(),
        "alpha_": _floats(plan.alpha),
        "features": [feature_map.n_components_, [] if plan.bandwidth is None else _floats(plan.bandwidth)],
        **settings,
    }


def _floats(values: ArrayLike) -> list[float]:
    """Numbers as a list that JSON can hold; it writes floats such that they are read as the same bits."""
    return [float(value) for value in np.ravel(values)]


def _format_param(value: object) -> str:
    """A parameter as text; numbers and arrays of numbers to nine digits, anything else by its repr."""
    if isinstance(value, np.ndarray | list | tuple | float) and np.asarray(value).dtype.kind in "fi":
        return ", ".join(f"{one:.9g}" for one in np.ravel(value))
    return repr(value)


@dataclass(frozen=True, eq=False)
class WarmStart:
    """Where a fit begins: from the last fit of the same estimator, from a checkpoint, or from scratch.

    Attributes
    ----------
    plan : FitPlan or None
        That of the last fit, kept but for alpha where a number is given now; None makes a new one.
    feature_map : fitted feature map of the last fit, or None
    initial : InitialPoint or None
        Solution of the last fit.
    path : path or None
        Checkpoint file given to `fit`; a point read from it takes precedence over `initial`.
    """

    plan: FitPlan | None = None
    feature_map: FeatureMap | None = None
    initial: InitialPoint | None = None
    path: str | os.PathLike[str] | None = None

    @classmethod
    def from_model(
        cls, model: KernelEstimator, summary: DataSummary, loss: Loss, path: str | os.PathLike[str] | None
    ) -> WarmStart:
        """Warm start of a model that is about to be fitted to the summarised data."""
        if not can_warm_start(model, summary.n_columns, loss.n_columns):
            return cls(path=path)
        plan: FitPlan = model.plan_
        if model.alpha != "auto" and plan.alpha != (alpha := model._initial_alpha(summary, loss)):
            plan = replace(plan, alpha=alpha, alpha_reason="given", alpha_choice=None)
        initial = InitialPoint(model.coef_, model.intercept_, model._n_rows, model._parameters or len(model.coef_))
        return cls(plan, model.feature_map_, initial, path)

    def open_checkpoint(
        self, model: KernelEstimator, data: FitData, plan: FitPlan, feature_map: FeatureMap
    ) -> Checkpoint | None:
        """The checkpoint of this fit, if a path was given; the features are part of its fingerprint."""
        return None if self.path is None else Checkpoint(self.path, fingerprint(model, data, plan, feature_map))

    def solver_kwargs(self, checkpoint: Checkpoint | None) -> dict[str, Any]:
        """Keyword arguments for the solver: the initial point, and a callback that writes the checkpoint."""
        if checkpoint is not None:
            return {"initial": checkpoint.read() or self.initial, "callback": checkpoint.write}
        return {} if self.initial is None else {"initial": self.initial}

    def remove_checkpoint(self) -> None:
        """Delete the checkpoint file of a fit that is done; one that was stopped may resume from it."""
        if self.path is not None:
            follow_link(Path(self.path)).unlink(missing_ok=True)


def warm_start_state(model: KernelEstimator, summary: DataSummary, result: Result) -> dict[str, Any]:
    """Private attributes of a fitted model that a later warm start needs."""
    return {
        "_fitted_as": _settings(model, summary.n_columns, result.coef.shape[1]),
        "_n_rows": summary.n_rows,
        "_parameters": float(result.parameters),
    }


def can_warm_start(model: KernelEstimator, n_columns: int, n_fits: int) -> bool:
    """Whether the next fit starts from the last one: `warm_start`, and nothing that the features depend on changed."""
    if not model.warm_start or not hasattr(model, "coef_"):
        return False
    return getattr(model, "_fitted_as", None) == _settings(model, n_columns, n_fits)


def _settings(model: KernelEstimator, n_columns: int, n_fits: int) -> str:
    """All that the feature map and the shape of the coefficients depend on, as text, which model files can hold."""
    return repr((model.kernel, model.bandwidth, model.n_components, model.sampling, n_columns, n_fits))


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
    random_state: Seed
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
        check_positive("alpha", self.alpha, others=("auto",))
        check_choice("alpha_scale", self.alpha_scale, ("absolute", "relative"))
        check_positive("n_components", self.n_components, integer=True, others=("auto", "exact"))
        if self.n_components == "exact":
            kernel.check_diagonal()
        elif not (isinstance(kernel, Linear) or (self.kernel == "auto" and self.sampling == "auto")):
            unfitted_features(self, kernel).check()
        check_flags(self, "fit_intercept", "warm_start")
        for what, instead in self._restrictions("warm_starts") if self.warm_start else ():
            raise ValueError(f"warm_start=True is not for {what}, which always starts from scratch. Use {instead}.")
        check_positive("tol", self.tol)
        check_positive("max_iter", self.max_iter, integer=True)
        check_positive("max_seconds", self.max_seconds, others=(None,))
        check_positive("max_memory in bytes", self.max_memory, others=(None,))
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
        sample_weight: ArrayLike | None,
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
            refuse_if_too_large(self, summary.n_rows, loss.n_columns, linear=linear)
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
        points: Array | None = None,
        constraints: ShapeConstraints | None = None,
    ) -> Solution:
        """Draw the features of the plan, unless those of the last fit are kept, and solve on them.

        `points` of shape (p, d) are mapped like the rows and handed to the solver, if it takes such, as are
        `constraints` (`estimators.shapes`) with the feature map.
        """
        summary, solver = data.summary, self._choose_solver(loss)
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

    def _choose_solver(self, loss: Loss) -> Solver:  # noqa: ARG002
        """The solver of `solver`; subclasses have others for problems whose columns are coupled."""
        return SOLVERS[self.solver]

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
        if solution.stopped_by is None:
            start.remove_checkpoint()
        if not (result.relative_gap <= self.tol).all():  # negated, so that a gap of NaN also warns
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
