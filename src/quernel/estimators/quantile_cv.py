"""KernelQuantileRegressorCV: kernel quantile regression with alpha and bandwidth chosen by cross-validation."""

from __future__ import annotations

from functools import partial
from os import PathLike
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata

from quernel._validation import check_flags
from quernel.data import ArrayRows, memory_budget
from quernel.data.sources import positive_weight_mask
from quernel.estimators import KernelQuantileRegressor
from quernel.estimators.base import CHOOSING, WarmStart, check_checkpoint
from quernel.estimators.inputs import check_levels, sample_rows, source_of
from quernel.estimators.solve import TimeBudget
from quernel.estimators.splits import check_splitting, read_splits
from quernel.features import PivotedCholesky, RandomFeatures
from quernel.kernels import Kernel, Linear
from quernel.kernels.base import Seed, as_generator
from quernel.losses import Loss, Pinball
from quernel.solvers.progress import enter_stage
from quernel.tuning.alpha import GridSearchResult, search
from quernel.tuning.bandwidth import BandwidthChoice, auto_bandwidth, learn_bandwidth
from quernel.tuning.cost import as_size
from quernel.tuning.data_summary import DataSummary
from quernel.tuning.plan import KernelChoice, plan_features, random_features

Array = NDArray[np.floating]

# The paper's grid of alpha for y of unit scale, 10^(s/2) for s = -20, ..., 2.
ALPHAS = 10.0 ** (np.arange(-20, 3) / 2)
# Default grid of bandwidths, as multiples of the automatic or learned ones.
FACTORS = (0.5, 1.0, 2.0)
# Number of random features during the search if n_components="auto".
COMPONENTS = 300
# Out-of-core data are searched on a random sample of at most this many rows.
SEARCHED = 50_000
# Tolerance of the pivoted Cholesky factor during the search, with n_components="exact".
FACTOR_TOL = 1e-8


class KernelQuantileRegressorCV(KernelQuantileRegressor):
    """Kernel quantile regression with alpha and bandwidth chosen by cross-validation.

    Every pair (alpha, bandwidth) of a grid is scored by its pinball loss on held-out rows, averaged over all levels.
    The model is then refitted to all rows with the best pair, and behaves like a `KernelQuantileRegressor`. Features
    are computed once per bandwidth, and one regularisation path with warm starts covers all alphas and levels of a
    fold.

    For out-of-core data the search uses a random sample of up to 50,000 rows, and the final fit all rows. The best
    alpha decreases with the number of rows: with the default grid (``alphas=None``), the best one on m of n rows is
    multiplied by sqrt(m / n). Any factor between m / n and 1 makes neither the bias nor the variance of the final fit
    larger than on the sample (user guide on scale). Values given as `alphas` are used unchanged.

    Parameters
    ----------
    quantiles : as in `KernelQuantileRegressor`
    alphas : array-like of floats or None, default=None
        Values of alpha to try. None is the paper's grid, 10^(s/2) for s = 2, ..., -20, divided by a robust scale of y.
        It is searched from large to small, until held-out loss is 10 % above its minimum; values that were not tried
        have a score of -inf.
    alpha_scale : {"absolute", "relative"}, default="absolute"
        Unit of the values given as `alphas`: "relative" divides them by a robust scale of y, as is done for None.
    bandwidths : "auto", "learned", a list or None, default=None
        Bandwidths to try. None or "auto": 0.5, 1 and 2 times the automatic ones. "learned": 0.5, 1 and 2 times those of
        ``bandwidth="learned"``; these are learned from all rows, so that `best_score_` is slightly optimistic. A list
        may hold "auto", "learned", floats, or one float per column.
    cv : int, float, splitter or iterable, default=5
        An int is the number of folds; a float between 0 and 1, the fraction of rows to hold out once; or any
        scikit-learn splitter, such as ``TimeSeriesSplit()``, or an iterable of (train, test) index arrays. With an int
        or float the rows are shuffled, and duplicate rows (or rows of the same group) stay together; if fewer rows than
        folds are different, there are as many folds as different rows, and a warning. Note that
        ``KFold(5)`` does not shuffle, which misleads for sorted data; for data in time order use ``TimeSeriesSplit()``.
    one_standard_error : bool, default=False
        Whether to apply the one-standard-error rule: choose the largest alpha whose loss is within one standard error
        (between splits) of the lowest, for a smoother model that is not clearly worse.
    kernel, n_components, sampling, fit_intercept, noncrossing, solver, tol, max_iter, max_seconds, max_memory, dtype, \
    recalibrate, inference, tails, tail_level, random_state, verbose :
        As in `KernelQuantileRegressor`. With ``n_components="auto"`` the search uses 300 features, and the final fit
        chooses its own number. The search uses the Newton solver with a relative duality gap of 1e-3. With an integer
        `random_state` it uses the same random features as the final fit, the first 300 of them for "auto".

    Attributes
    ----------
    alpha_, bandwidth_ : the pair that was chosen
    best_index_ : int
        Its index in `cv_results_`.
    best_score_ : float
        Its score: minus the mean pinball loss on held-out rows.
    cv_results_ : dict of arrays, one entry per pair
        As in `sklearn.model_selection.GridSearchCV`: ``params``, ``param_alpha``, ``param_bandwidth``,
        ``split0_test_score``, ..., ``mean_test_score`` (splits weighted by their held-out rows),
        ``std_test_score``, ``rank_test_score``; and ``test_loss_q0.1``, ..., the mean loss of each level, and
        ``relative_gap``, the largest duality gap of the fits of a pair.
        ``pandas.DataFrame(model.cv_results_)`` shows them as a table.
    n_splits_ : int
        Number of (train, test) splits.
    bandwidth_choice_ : BandwidthChoice or None
        With learned bandwidths, the candidates and their held-out losses.
    Others as in `KernelQuantileRegressor`.

    Examples
    --------
    >>> import numpy as np
    >>> from quernel import KernelQuantileRegressorCV
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(0, 10, (200, 1))
    >>> y = np.sin(X[:, 0]) + 0.3 * rng.standard_normal(200)
    >>> model = KernelQuantileRegressorCV([0.1, 0.9], alphas=[1e-4, 1e-3, 10.0], random_state=0).fit(X, y)
    >>> model.alpha_ < 10
    True
    >>> model.cv_results_["mean_test_score"].shape  # three bandwidths x three ridge weights
    (9,)
    """

    # Chosen by the search, hence no parameters of the constructor.
    alpha: ClassVar[str] = "auto"  # type: ignore[misc]
    bandwidth: ClassVar[str] = "auto"  # type: ignore[misc]
    # Shapes are those of `KernelQuantileRegressor`, with the alpha and bandwidth found here.
    monotone = convex = lower = upper = None

    def __init__(
        self,
        quantiles: float | ArrayLike = 0.5,
        *,
        alphas: ArrayLike | None = None,
        alpha_scale: str = "absolute",
        bandwidths: Any = None,
        cv: Any = 5,
        one_standard_error: bool = False,
        kernel: str | Kernel = "auto",
        n_components: int | str = "auto",
        sampling: str | RandomFeatures = "auto",
        fit_intercept: bool = True,
        noncrossing: str | None = "rearrange",
        solver: str = "newton",
        tol: float = 1e-6,
        max_iter: int = 1000,
        max_seconds: float | None = None,
        max_memory: int | None = None,
        dtype: str = "float64",
        recalibrate: bool = True,
        inference: bool = False,
        tails: str | None = None,
        tail_level: float | str = "auto",
        random_state: Seed = None,
        verbose: int = 0,
    ) -> None:
        self.quantiles = quantiles
        self.alphas = alphas
        self.alpha_scale = alpha_scale
        self.bandwidths = bandwidths
        self.cv = cv
        self.one_standard_error = one_standard_error
        self.kernel = kernel
        self.n_components = n_components
        self.sampling = sampling
        self.fit_intercept = fit_intercept
        self.noncrossing = noncrossing
        self.solver = solver
        self.tol = tol
        self.max_iter = max_iter
        self.max_seconds = max_seconds
        self.max_memory = max_memory
        self.dtype = dtype
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
        groups: ArrayLike | None = None,
        *,
        noncrossing_points: Any = None,
        checkpoint: str | PathLike[str] | None = None,
    ) -> Self:
        """Search the grid, then fit all levels to all rows with the best pair.

        Parameters
        ----------
        X : array-like or data frame of shape (n, d); text, dates and missing values are encoded (user guide on tables)
            Or an object of `quernel.data` with its own target, without y and sample_weight; or a Dask collection.
        y : array-like of shape (n,)
        sample_weight : array-like of shape (n,) or None
            A weight of 2 is equivalent to repeating the row, a weight of 0 to leaving it out; also in held-out loss.
        groups : array-like of shape (n,) or None
            Group labels. A group is never split between training and held-out rows if `cv` is an int, a float or a
            splitter that uses groups.
        noncrossing_points, checkpoint : as in `KernelQuantileRegressor`, for the final fit

        Returns
        -------
        self : the fitted estimator
        """
        levels, single = check_levels(self.quantiles)
        kernel, loss = self._check_parameters(), Pinball(levels)
        check_checkpoint(self, checkpoint)
        given = source_of(X, y, sample_weight)
        if given is not None:
            X, y, sample_weight = given, None, None
        budget = TimeBudget(self.max_seconds)
        data = self._read(kernel, X, y, sample_weight)
        if self.inference:
            self._check_inference(data)
        tail_levels = None if self.tails is None else self._choose_tail_levels(levels, data.summary.source)
        points = self._check_points(noncrossing_points, data)
        self._refuse_size(data, kernel, loss)
        start = WarmStart(path=checkpoint)
        with self._reporting(data, loss):
            enter_stage(CHOOSING)
            with budget.planning():
                counts = _positive_weight_mask(given, sample_weight, data.summary.n_rows)
                chosen, search = self._search(kernel, data.summary, loss, counts, groups)
                plan = plan_features(self, data.summary, loss, chosen)
            solution = self._solve(plan, data, loss, start, budget, points=points)
            own = self._describe_levels(levels, single, data, plan, solution)
            own |= self._fit_tails(tail_levels, data, plan, solution, budget)
        return self._store(data, plan, solution, start, **own, **search)

    def _check_parameters(self) -> Kernel:
        kernel = super()._check_parameters()
        if self.alphas is not None:
            _check_alphas(self.alphas)
        check_splitting(self.cv)
        check_flags(self, "one_standard_error")
        if not kernel.has_free_bandwidth and self.bandwidths is not None:
            raise ValueError(
                f"There is no bandwidth to choose for this kernel ({kernel.name}): it has none, or its own. Leave "
                "bandwidths at None."
            )
        for entry in _entries(self.bandwidths):
            if not isinstance(entry, str):
                kernel.with_bandwidth(entry)
            elif entry not in ("auto", "learned"):
                raise ValueError(f"Unknown bandwidth {entry!r} in bandwidths. Known: 'auto', 'learned', or numbers.")
        return kernel

    def _search(
        self, kernel: Kernel, summary: DataSummary, loss: Pinball, counts: NDArray[np.bool_], groups: Any
    ) -> tuple[KernelChoice, dict[str, Any]]:
        """Search the grid: the best kernel and alpha, and the fitted attributes that describe the search."""
        rng = as_generator(self.random_state)
        seed = int(rng.integers(2**63))  # the final fit draws the same seed, hence the same features
        source = summary.source
        if not summary.in_memory:
            source, counts, groups = self._sample_for_search(summary, counts, groups, rng)
        splits = read_splits(self.cv, source.X, source.y + summary.centre, counts, groups, rng)
        if self.one_standard_error and len(splits) < 2:
            raise ValueError(f"one_standard_error=True needs at least two splits to compare; cv={self.cv!r} gives one.")
        given = None if self.alphas is None else np.array(self.alphas, dtype=float) * self._alpha_unit(summary, loss)
        alphas = ALPHAS / summary.target_scale if given is None else given
        default = self._default_alpha(summary, loss)
        kernels, learned = self._kernel_grid(kernel, summary, loss, default)
        makers = [partial(self._map_for_search, source, summary.mean, one, seed, default) for one in kernels]
        full_grid = self.alphas is not None
        found = search(source, makers, loss, alphas, splits, fit_intercept=self.fit_intercept, full_grid=full_grid)
        b, a = found.best(alphas, one_standard_error=self.one_standard_error)
        alpha = float(alphas[a])
        why = f"by held-out loss, among {np.isfinite(found.mean).sum()} pairs of ridge weight and bandwidth"
        reason = why if kernels[b].takes_bandwidth else "this kernel has none"
        if self.alphas is None and source.n_rows < summary.n_rows:
            alpha *= float(np.sqrt(source.n_rows / summary.n_rows))
            why += f" on {source.n_rows:,} rows, adjusted to all {summary.n_rows:,}"
        chosen = KernelChoice(kernels[b], getattr(kernels[b], "bandwidth", None), alpha, reason, why, learned)
        return chosen, _describe_search(found, kernels, alphas, loss.levels, b * len(alphas) + a)

    def _sample_for_search(
        self, summary: DataSummary, counts: NDArray[np.bool_], groups: Any, rng: np.random.Generator
    ) -> tuple[ArrayRows, NDArray[np.bool_], Any]:
        """Random sample of out-of-core rows for the search, as many as fit in memory, in their original order.

        Also returns the mask of positive weights and the groups, if any, for the rows that splitters see: those of the
        sample, or all rows if the sample holds every row of positive weight.
        """
        if groups is not None and np.shape(groups) != counts.shape:
            raise ValueError(
                f"groups must have one label for each of {len(counts)} rows; got shape {np.shape(groups)}."
            )
        M = COMPONENTS if self.n_components == "auto" else int(self.n_components)
        most = int(memory_budget(self.max_memory) / (8 * max(M, summary.n_columns)))
        source, index = sample_rows(summary.source, min(SEARCHED, most, summary.n_rows), rng)
        if source.n_rows == summary.n_rows:
            return source, counts, groups
        some = None if groups is None else np.asarray(groups)[counts][index]
        return source, np.ones(source.n_rows, dtype=bool), some

    def _kernel_grid(
        self, kernel: Kernel, summary: DataSummary, loss: Loss, alpha: float
    ) -> tuple[list[Kernel], BandwidthChoice | None]:
        """The kernel with each bandwidth of the grid, and how "learned" ones were found, if there are any."""
        kernel.check_columns(summary.n_columns)
        if not kernel.has_free_bandwidth:
            return [kernel], None
        learned = None
        if "learned" in _entries(self.bandwidths):
            how = {"alpha_is_open": True, "fit_intercept": self.fit_intercept}
            learned = learn_bandwidth(summary, (kernel,), loss, alpha, **how)

        def resolve_entry(entry: Any) -> Any:
            if not isinstance(entry, str):
                return entry
            return auto_bandwidth(summary) if learned is None or entry == "auto" else np.array(learned.bandwidth)

        if self.bandwidths is None or isinstance(self.bandwidths, str):
            middle = resolve_entry(self.bandwidths or "auto")
            widths = [factor * middle for factor in FACTORS]
        else:
            widths = [resolve_entry(entry) for entry in self.bandwidths]
        kernels = [kernel.with_bandwidth(width) for width in widths]
        for one in kernels:
            one.check_columns(summary.n_columns)
        return kernels, learned

    def _map_for_search(self, source: ArrayRows, center: Array, kernel: Kernel, seed: int, alpha: float) -> Array:
        """Design matrix of all searched rows for one kernel, shape (n, M)."""
        if isinstance(kernel, Linear):
            return source.X
        if self.n_components == "exact":
            most = int(memory_budget(self.max_memory) / (3 * 8 * source.n_rows))
            factor = PivotedCholesky(kernel, tol=FACTOR_TOL, max_components=most)
            return factor.fit_transform(source.X, sample_weight=source.weight)
        M = COMPONENTS if self.n_components == "auto" else int(self.n_components)
        size, allowed = 8 * source.n_rows * M, memory_budget(self.max_memory)
        if size > allowed:
            raise ValueError(
                f"The search keeps all features in memory, but {source.n_rows:,} rows x {M:,} features need "
                f"{as_size(size)}, and {as_size(allowed)} are allowed. Search on some of the rows, with fewer "
                "components, or raise max_memory."
            )
        features = random_features(self, kernel, center, seed, alpha).set_params(n_components=M)
        return features.fit(source.X, sample_weight=source.weight).transform(source.X)


def _describe_search(
    found: GridSearchResult, kernels: list[Kernel], alphas: Array, levels: Array, best: int
) -> dict[str, Any]:
    """Fitted attributes `cv_results_`, `best_index_`, ...; alphas vary fastest."""
    widths = np.empty(len(kernels) * len(alphas), dtype=object)
    widths[:] = [getattr(one, "bandwidth", None) for one in kernels for _ in alphas]
    weights = np.tile(alphas, len(kernels))
    score = -found.mean.ravel()
    by_split = -found.by_split.reshape(len(score), -1)
    by_level = np.einsum("baks,k->bas", found.losses, found.weight).reshape(len(score), -1)
    results = {
        "params": [{"alpha": float(a), "bandwidth": h} for a, h in zip(weights, widths, strict=True)],
        "param_alpha": weights,
        "param_bandwidth": widths,
        **{f"split{k}_test_score": column for k, column in enumerate(by_split.T)},
        "mean_test_score": score,
        "std_test_score": found.deviation.ravel(),
        "rank_test_score": rankdata(-score, method="min").astype(np.int32),
        "relative_gap": found.gap.ravel(),
        **{f"test_loss_q{level:.12g}": column for level, column in zip(levels, by_level.T, strict=True)},
    }
    own = {"cv_results_": results, "best_index_": best, "best_score_": float(score[best])}
    return own | {"n_splits_": by_split.shape[1]}


def _positive_weight_mask(given: Any, sample_weight: ArrayLike | None, n_rows: int) -> NDArray[np.bool_]:
    """Mask of the given rows that have a positive weight, for a row source or for arrays."""
    if given is not None:
        return positive_weight_mask(given)
    weight = np.asarray(1.0 if sample_weight is None else sample_weight, dtype=float)
    return weight > 0 if weight.ndim else np.ones(n_rows, dtype=bool)


def _check_alphas(alphas: object) -> None:
    """Validate `alphas`: distinct, positive, finite."""
    try:
        weights = np.asarray(alphas, dtype=float)
    except (TypeError, ValueError):
        weights = np.array([])
    if weights.ndim != 1 or len(weights) == 0 or not np.all((weights > 0) & np.isfinite(weights)):
        raise ValueError(f"alphas must be a list of positive, finite numbers, or None; got {alphas!r}.")
    if len(np.unique(weights)) < len(weights):
        raise ValueError(f"alphas must differ from one another; got {weights.tolist()}. Give each of them once.")


def _entries(bandwidths: Any) -> list[Any]:
    """The entries of `bandwidths` as a list; ValueError if it is none."""
    if bandwidths is None or isinstance(bandwidths, str):
        return [] if bandwidths is None else [bandwidths]
    try:
        entries = list(bandwidths)
    except TypeError:
        entries = []
    if not entries:
        raise ValueError(
            f"bandwidths must be 'auto', 'learned' or a list of these, of numbers and of lists; got {bandwidths!r}."
        )
    return entries
