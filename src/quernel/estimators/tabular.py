"""TabularQuantileRegressor: a kernel for what is smooth, trees for what is local, calibrated out of bag."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from quernel._validation import check_flags, check_positive, check_weight
from quernel.data import ArrayRows, DaskRows, Piece
from quernel.data.sources import split_blocks
from quernel.estimators.base import KernelEstimator, input_range
from quernel.estimators.inputs import (
    FitData,
    Rows,
    check_levels,
    check_training,
    refuse_large,
    sample_rows,
    source_of,
    warn_of_traps,
)
from quernel.estimators.levels import SAME, QuantileFunction
from quernel.estimators.location_scale import AllRows
from quernel.estimators.prediction import check_scored
from quernel.estimators.shaped_parts import ShapedParts, describe_violation, estimate_shaped_stages, fit_shaped_parts
from quernel.estimators.shapes import Shapes, check_shapes, has_shapes, resolve_shapes
from quernel.estimators.splits import check_groups
from quernel.estimators.tabular_parts import GRID, PARTS, Parts, PartSettings, estimate_stages, fit_parts
from quernel.estimators.tails import TailsMixin
from quernel.estimators.warnings import print_progress
from quernel.kernels.base import Seed, as_generator
from quernel.metrics import crps
from quernel.solvers.progress import listening, staged, stopping

Array = NDArray[np.floating]

# Levels over which `crps` integrates.
CRPS_LEVELS = np.arange(1, 100) / 100


class TabularQuantileRegressor(TailsMixin, RegressorMixin, BaseEstimator):
    """Calibrated conditional quantiles of tables, at any level: a kernel and forests, weighted by held-out loss.

    Smooth dependence is learned by a kernel, what is local by trees. Three parts are fitted:

    - "kernel": m(x) + s(x) Q(tau). Location m and scale s are certified kernel ridge regressions with a bandwidth for
      every column, Q(tau) the quantiles of the standardised residuals z = (y - m) / s.
    - "residual_forest": m(x) + s(x) Q(tau | x), where a quantile forest with m and s as further columns is grown on z.
    - "forest": a quantile forest grown on y.

    All residuals are out of fold. Leaf sizes, the weights of the parts and a monotone correction of the levels are
    chosen by rows that were out of fold or out of bag, so that intervals hold their coverage on new rows without any
    being set aside. The quantile function is a weighted mean of quantile functions: levels never cross.

    Parameters
    ----------
    quantiles : float or sequence of floats, default=0.5
        Levels that `predict` returns unless it is given others, and that `score` judges; the fit does not depend on
        them.
    parts : sequence of names, default=("kernel", "residual_forest", "forest")
        The parts to fit. Tables of fewer than 30 different rows have the forest only. With shapes, "kernel" is a must
        and "forest" ordered along monotone columns.
    n_trees : int, default=100
        Trees of each forest.
    n_components : int or "auto", default="auto"
        Landmarks of the kernel; "auto" is 1,000, with shapes 300, or the number of rows if that is smaller.
    calibrate : bool, default=True
        Whether to correct the levels by out-of-bag rows.
    tails : {None, "pareto"}, default=None
        What is beyond the outer levels. None: quantiles of residuals and leaves, which end at the largest of them.
        "pareto": a generalised Pareto law whose scale depends on x, so that levels such as 0.9999, `sample`,
        `predict_cdf` and `crps` have tails, and `predict_expected_shortfall` exists (user guide on tails). It needs 250
        rows, and a target that is not discrete; print `upper_tail_`.
    tail_level : float or "auto", default="auto"
        With tails, the level from which on there is a tail, 0.8 or more, and 1 minus it on the other side. "auto" is
        the outermost of 0.8, 0.9 and 0.95 that about 200 rows exceed, or 0.8.
    monotone : dict from columns to 1 or -1, or None, default=None
        Columns, by name or position, with which all quantiles rise (1) or fall (-1), all else being equal, such as
        ``{"mileage": -1}``. With this or a parameter below, the fit is another one: a constrained kernel, a forest
        of the other columns that moves its levels, and an ordered forest (user guide on shapes).
    convex : dict from columns to 1 or -1, or None, default=None
        Columns in which all quantiles are convex (1) or concave (-1).
    lower, upper : float or None, default=None
        Bounds of y, which all quantiles observe.
    max_rows : int, default=50_000
        Rows from which bandwidths are learned and trees are grown, at most: a random sample of more. The kernel's
        coefficients are those of all rows, which are read block by block. With shapes nothing is fitted to other rows,
        and the kernel to 10,000 at most.
    max_seconds : float or None, default=None
        Time limit. After it the search for bandwidths and ridges ends at the best found, and forests have the trees
        grown so far, at least 10; tails have a simpler scale. The kernel fits themselves are not cut short. With
        shapes they are: rows of folds that were not fitted in time judge nothing.
    random_state : int, RandomState, Generator or None, default=None
        Seed of folds and trees; the same integer gives the same model, to the bit and whatever the order of the rows.
    verbose : int, default=0
        If not 0, print what the fit is doing, and about how long it will take.

    Attributes
    ----------
    parts_ : Parts, or ShapedParts with shapes
        The fitted parts.
    shares_ : dict from names of parts to their weights, which sum to 1
        Parts without weight are left out, here and in `parts_`. With shapes, how far levels are those of the kernel,
        those of the forest of scores, and the weight of the ordered forest.
    duality_gap_ : ndarray of shape (2,), or None without a kernel
        Relative duality gaps of the kernel ridge regressions, of m and of log s; with shapes, (5,), those of the
        constrained quantile regressions at the levels 0.02, 0.2, 0.5, 0.8 and 0.98.
    shape_violation_ : dict from shapes to float, or None without any
        Largest violation of `monotone` and `convex` by these levels, in units of y, at rows and values that the fit did
        not check (user guide on shapes). Bounds hold everywhere.
    stopped_by_ : "time limit", "interrupt" or None
        What ended the fit early.
    lower_tail_, upper_tail_ : ParetoTail or None
        With ``tails="pareto"``, the tails: level, shape with its interval, kind, scale; print them.
    quantiles_ : ndarray of shape (q,)
    input_range_ : ndarray of shape (2, d)
        Minimum and maximum of every column; `is_extrapolation` marks the rows that leave it.
    encoder_ : TableEncoder
        Of tables with columns other than numbers.
    n_features_in_, feature_names_in_ : as in scikit-learn

    Notes
    -----
    A row's weight counts in every sum. It is not quite equivalent to repeating the row, since copies may fall into
    different folds and bags.

    Examples
    --------
    >>> import numpy as np
    >>> from quernel import TabularQuantileRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(0, 10, (500, 2))
    >>> y = np.sin(X[:, 0]) + (0.1 + 0.05 * X[:, 1]) * rng.standard_normal(500)
    >>> model = TabularQuantileRegressor(random_state=0).fit(X, y)
    >>> model.predict(X[:4], quantiles=[0.25, 0.75]).shape
    (4, 2)
    >>> model.predict_interval(X[:4], coverage=0.8).shape
    (4, 2)
    """

    # So that files of models without them can be read.
    monotone: Mapping[str | int, int] | None = None
    convex: Mapping[str | int, int] | None = None
    lower: float | None = None
    upper: float | None = None
    shape_violation_: dict[str, float] | None = None

    def __init__(
        self,
        quantiles: float | ArrayLike = 0.5,
        *,
        parts: Sequence[str] = PARTS,
        n_trees: int = 100,
        n_components: int | str = "auto",
        calibrate: bool = True,
        tails: str | None = None,
        tail_level: float | str = "auto",
        monotone: Mapping[str | int, int] | None = None,
        convex: Mapping[str | int, int] | None = None,
        lower: float | None = None,
        upper: float | None = None,
        max_rows: int = 50_000,
        max_seconds: float | None = None,
        random_state: Seed = None,
        verbose: int = 0,
    ) -> None:
        self.quantiles = quantiles
        self.parts = parts
        self.n_trees = n_trees
        self.n_components = n_components
        self.calibrate = calibrate
        self.tails = tails
        self.tail_level = tail_level
        self.monotone = monotone
        self.convex = convex
        self.lower = lower
        self.upper = upper
        self.max_rows = max_rows
        self.max_seconds = max_seconds
        self.random_state = random_state
        self.verbose = verbose

    def fit(
        self, X: Any, y: Any = None, sample_weight: ArrayLike | None = None, groups: ArrayLike | None = None
    ) -> Self:
        """Fit the parts, their weights and the calibration.

        Parameters
        ----------
        X : array-like or data frame of shape (n, d)
            Text, dates and missing values are encoded by `TableEncoder`. Or numbers in an object of `quernel.data` with
            its own target, such as ``ParquetRows("trips/*.parquet", target="delay")``, or a Dask collection, of any
            size; leave out y and sample_weight with the former.
        y : array-like of shape (n,)
        sample_weight : array-like of shape (n,) or None
            Weights of the rows; rows of weight 0 are left out.
        groups : array-like of shape (n,) or None
            Labels of repeated units, such as patients, shops or machines. Rows of a unit stay together in folds, bags
            and calibration, so that coverage holds for *new* units. Without it rows of a unit leak into validation,
            and intervals for new units are too narrow.

        Returns
        -------
        self : the fitted estimator
        """
        levels, single = check_levels(self.quantiles)
        self._check_parameters()
        header = copy(self)  # what validation writes on it is kept only if the fit succeeds
        header.__dict__ = {name: value for name, value in vars(self).items() if not name.endswith("_")}
        rng = as_generator(self.random_state)
        rows, labels, everything = read_rows(header, X, y, sample_weight, groups, int(self.max_rows), rng)
        n_rows = rows.n_rows if everything is None else everything.n_rows
        shapes = self._read_shapes(header, rows)
        tail_levels = None if self.tails is None else self._choose_tail_levels(None, rows)
        estimate = estimate_stages if shapes is None else estimate_shaped_stages
        with (
            stopping(self.max_seconds, interruptible=True) as stop,
            listening(print_progress) if self.verbose else nullcontext(),
            staged(partial(estimate, n_rows, rows.X.shape[1], self.parts)),
        ):
            n_components = None if isinstance(self.n_components, str) else int(self.n_components)
            settings = PartSettings(tuple(self.parts), int(self.n_trees), n_components, bool(self.calibrate), rng)
            parts: Parts | ShapedParts
            violation: dict[str, float] | None = None
            if shapes is None:
                parts, tails = fit_parts(rows, labels, settings, everything=everything, tail_levels=tail_levels)
            else:
                parts, tails = fit_shaped_parts(rows, labels, settings, shapes), (None, None)
                violation = describe_violation(parts, shapes, rows.X)
            reason = stop.reason
        self.__dict__ = vars(header) | {
            "parts_": parts,
            "shares_": dict(parts.shares),
            "duality_gap_": parts.duality_gap,
            "shape_violation_": violation,
            "stopped_by_": reason,
            "lower_tail_": tails[0],
            "upper_tail_": tails[1],
            "n_rows_": n_rows,
            "n_sampled_": rows.n_rows,
            "quantiles_": levels,
            "_single": single,
            "_fill": rows.share() @ rows.X,
            "input_range_": input_range(
                np.array([rows.X.min(axis=0), rows.X.max(axis=0)]), getattr(header, "encoder_", None)
            ),
        }
        return self

    is_extrapolation = KernelEstimator.is_extrapolation

    def crps(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> float:
        """Continuous ranked probability score, in units of y; lower is better (`quernel.metrics.crps`, 99 levels)."""
        check_is_fitted(self)
        X, y, weight = check_scored(self, X, y, sample_weight)
        return crps(y, self._quantiles_at(X, CRPS_LEVELS), CRPS_LEVELS, sample_weight=weight)

    def __str__(self) -> str:
        if not hasattr(self, "parts_"):
            return repr(self)
        lines = [repr(self)]
        forests = {"residual_forest": self.parts_.residual_forest, "forest": self.parts_.forest}
        for name, share in self.shares_.items():
            forest = forests.get(name)
            detail = f"{forest.n_trees} trees, leaves of {forest.min_leaf} rows or more" if forest else ""
            lines.append(f"{share:>5.0%}  {name:<16} {detail}".rstrip())
        smooth = self.parts_.location_scale
        if smooth is not None:
            kernel = smooth.feature_map.kernel
            lines.append(
                f"kernel: {getattr(kernel, 'full_name', kernel)}, {len(smooth.coef):,} landmarks; relative duality gap "
                f"{smooth.duality_gap[0]:.1e} (location), {smooth.duality_gap[1]:.1e} (log scale)"
            )
        shaped = isinstance(self.parts_, ShapedParts)
        lines += self.parts_.describe() if shaped else map(str, self._attached_tails())
        if self.n_sampled_ < self.n_rows_:
            what = "kernel and forest" if shaped else "bandwidths and forests"
            lines.append(f"{what}: {self.n_sampled_:,} of {self.n_rows_:,} rows, drawn at random")
        if self.stopped_by_ is not None:
            lines.append(f"ended early: {self.stopped_by_}")
        return "\n".join(lines)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.string = True
        return tags

    def _check_parameters(self) -> None:
        """Raise ValueError if an argument of the constructor is not valid."""
        given = self.parts
        if isinstance(given, str) or not isinstance(given, Sequence) or not given or set(given) - set(PARTS):
            raise ValueError(f"parts must be one or more of {', '.join(map(repr, PARTS))}, in a list; got {given!r}.")
        check_positive("n_trees", self.n_trees, integer=True)
        check_positive("max_rows", self.max_rows, integer=True)
        check_positive("n_components", self.n_components, integer=True, others=("auto",))
        check_flags(self, "calibrate")
        check_positive("max_seconds", self.max_seconds, others=(None,))
        if self.tails is not None:
            self._check_tails()
        check_shapes(self)
        if has_shapes(self) and "kernel" not in given:
            raise ValueError(
                f"Shapes are those of the kernel, a part that parts={given!r} does not have. Add 'kernel'."
            )

    def _read_shapes(self, header: BaseEstimator, rows: ArrayRows) -> Shapes | None:
        """The shapes, whose columns are found among those that validation wrote on the header; None without any."""
        if not has_shapes(self):
            return None
        names, encoder = getattr(header, "feature_names_in_", None), getattr(header, "encoder_", None)
        return resolve_shapes(self, FitData(rows, names, encoder))

    def _curves(self, X: Array) -> Array:
        return self._quantiles_at(X, self.quantiles_)

    def _quantiles_at(self, X: Array, levels: Array) -> Array:
        return self._tabulate(X, levels).clipped_at(levels)

    def _distribution(self, X: Array) -> QuantileFunction:
        """Conditional quantile functions of the rows, tabulated at `GRID`."""
        return self._tabulate(X, GRID)

    def _tabulate(self, X: Array, levels: Array) -> QuantileFunction:
        """Conditional quantile functions of the rows, known at these levels and at those on which tails rest."""
        for tail in self._attached_tails():
            own = np.array([tail.level, *(() if tail.inner_level is None else (tail.inner_level,))])
            levels = np.r_[levels, own[np.min(np.abs(own[:, None] - levels), axis=1) > SAME]]
        levels = np.unique(levels)
        return self._attach_tails(QuantileFunction(levels, self.parts_.predict(X, levels)), X)


Index = NDArray[np.integer]


def read_rows(
    header: BaseEstimator,
    X: Any,
    y: Any,
    sample_weight: ArrayLike | None,
    groups: ArrayLike | None,
    max_rows: int,
    rng: np.random.Generator,
) -> tuple[ArrayRows, Index | None, AllRows | None]:
    """Validated rows of positive weight, sorted by their values, and the number of each row's group (n,) or None.

    Sorting makes the fit independent of the order in which rows are given. Of more than `max_rows` these are a sample,
    and the last result is all of them.
    """
    source = source_of(X, y, sample_weight)
    index: Index | None = None
    names = None if source is None or isinstance(source, ArrayRows) else source.names
    if source is not None:
        if groups is not None:
            raise ValueError(f"groups are for arrays and data frames; got a {type(X).__name__}. Leave them out.")
        if isinstance(source, ArrayRows):
            sample = source
        else:
            sample, index = sample_rows(source, min(max_rows, source.n_rows), rng.spawn(1)[0])
        X, y, sample_weight = sample.X, sample.y, sample.weight
    rows, target, weight = check_training(header, X, y, sample_weight)
    if names is not None:
        header.feature_names_in_ = np.array(names, dtype=object)
    known = getattr(header, "feature_names_in_", None)
    warn_of_traps(X, rows, target, known, getattr(header, "encoder_", None))
    refuse_large(np.array([rows.min(axis=0), rows.max(axis=0)]), known)
    counted = None if sample_weight is None else check_weight(sample_weight, len(np.asarray(y))) > 0
    labels = None if groups is None else _number_groups(groups, len(np.asarray(y)))
    if counted is not None:
        labels, index = (None if one is None else one[counted] for one in (labels, index))
    keys = [one for one in (*rows.T, target, labels, weight) if one is not None]
    order = np.lexsort(keys[::-1])
    labels = None if labels is None else _number_by_appearance(labels[order])
    found = ArrayRows(rows[order], target[order], None if weight is None else weight[order])
    if source is not None and index is not None:
        everything = AllRows(partial(_read_pieces, source), source.n_rows, index[order])
        return found, labels, everything if everything.n_rows > len(found.y) else None
    if len(found.y) <= max_rows:
        return found, labels, None
    index = np.sort(rng.spawn(1)[0].permutation(len(found.y))[:max_rows])
    everything = AllRows(partial(_read_pieces, found), len(found.y), index, labels)
    some = ArrayRows(found.X[index], found.y[index], None if found.weight is None else found.weight[index])
    return some, None if labels is None else _number_by_appearance(labels[index]), everything


def _read_pieces(source: Rows) -> Iterator[Piece]:
    """All rows of a source, in memory, in files or on Dask workers, block by block."""
    if isinstance(source, ArrayRows):
        for rows in split_blocks(*source.X.shape):
            yield Piece(source.X[rows], source.y[rows], None if source.weight is None else source.weight[rows])
    elif isinstance(source, DaskRows):
        for chunk in source.chunks():
            yield chunk.compute()
    else:
        yield from source.stream(range(len(source.spans)))


def _number_by_appearance(labels: Index) -> Index:
    """Number groups by their first appearance, so that only the grouping counts."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse]


def _number_groups(groups: ArrayLike, n_rows: int) -> Index:
    """Number of each row's group (n,)."""
    given = np.asarray(groups)
    if given.shape != (n_rows,):
        raise ValueError(f"groups must have one label for each of {n_rows} rows; got shape {given.shape}.")
    check_groups(given)
    numbers = np.unique(given, return_inverse=True)[1].ravel()
    if numbers.max() == 0:
        raise ValueError("groups has one label only, so no row can be judged by others. Leave groups out.")
    return numbers
