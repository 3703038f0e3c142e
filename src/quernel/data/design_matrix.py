"""The design matrix Phi (n, M) of rows in memory, processed block by block.

The objective and the solvers never index rows; they map-reduce over them. `map_reduce` applies one function, a *step*,
to every block of rows and reduces the results, which are small: sums of shape (M, q) or (q,) over the q columns, one
column per fit (per quantile level). What a solver knows about single rows (residuals, dual variables; arrays of shape
(n, q)) is stored beside the rows in a `RowState`. A step may overwrite it, and it is never sent anywhere.

`InMemoryDesign` holds the rows of numpy arrays in this process. `streaming.StreamedDesign` reads rows from files in
every pass, and `dask_design.DaskDesign` leaves them on the workers of a cluster. All three offer the methods that
`protocols.DesignMatrix` lists, so that the same solvers run in memory and out of core.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from quernel._machine import Answer, available_memory, blocks, parallel_map, strips, submit
from quernel.data.sources import ArrayRows

Array = NDArray[np.floating]

# Fraction of the free memory that stored features may take; larger ones are recomputed in every pass instead.
CACHE_SHARE = 0.5
# Features up to this many bytes are stored, however little memory the system reports as free.
ALWAYS_CACHED = 64 * 2**20
# Rows whose mean |phi|^2 estimates the scale of the kernel.
SIZE_ROWS = 256
# Entries of Phi from which a pass is worth more than one thread, and how many entries `map_rows` costs per row.
SHARED_WORK = 2_000_000
VISIT_WORK = 20


class FeatureMap(Protocol):
    """A fitted transformer from rows of X to rows of Phi, such as `features.RandomFeatures`.

    It may also have a method `prepare(n_rows)`, called once before many rows are transformed a block at a time.
    """

    n_components_: int

    def transform(self, X: Array, **kwargs: Any) -> Array:
        """Phi (m, M) of the rows X (m, d); `dtype` is passed only where features shall be float32."""


@dataclass(frozen=True, eq=False)
class Block:
    """Consecutive rows of the design matrix: what a step sees.

    Parameters
    ----------
    features : array of shape (m, M)
        Rows of Phi; of shape (0, M) in `map_rows`, whose steps do not need them.
    target : array of shape (m,), or (m, q) where every fit has its own
    share : array of shape (m,)
        Normalized weights w_i / W, where W sums over all rows, not only over this block.
    start : int
        Index of the first row among all rows.
    raw : array of shape (m, d) or None
        Rows of X, where they are out of core: `map_reduce_split` may return some of them, and d numbers per row are
        fewer to keep than M.
    """

    features: Array
    target: Array
    share: Array
    start: int = 0
    raw: Array | None = None

    @property
    def targets(self) -> Array:
        """The target as columns, shape (m, 1) or (m, q)."""
        return self.target if self.target.ndim == 2 else self.target[:, None]


# What a solver stores about the rows of one block: arrays of shape (m, q) by name, such as "residual" and "anchor".
BlockState = dict[str, Any]
# step(block, state, args) -> result. It may overwrite the state, and must be picklable where rows are on a cluster.
# With per-block arguments it is step(block, state, args, block_args).
Step = Callable[..., Any]
# Reduces a list of results to one. It must be associative: results may be reduced in a tree, always in row order.
Reduce = Callable[[list[Any]], Any]


def discard(results: list[Any]) -> None:
    """Discard the results: the reduction of steps that only overwrite the row state."""


def sum_tuples(results: list[Any]) -> Any:
    """Sum tuples of numbers and arrays, entry by entry: the reduction of steps that return sums over rows."""
    return tuple(sum(parts[1:], start=parts[0]) for parts in zip(*results, strict=True))


@dataclass
class RowState:
    """Per-row arrays of a solver, block by block, and the number of passes over Phi that it has taken.

    Parameters
    ----------
    blocks : list of dicts
        One `BlockState` per block of the design matrix.
    sweeps : float
        Passes over all entries of Phi, the unit in which solvers report their work; a fraction of the rows counts as a
        fraction of a pass.
    """

    blocks: list[BlockState] = field(default_factory=list)
    sweeps: float = 0

    def collect(self, name: str) -> Array:
        """One array over all rows, shape (n, q)."""
        return np.concatenate([block[name] for block in self.blocks])

    def copy_columns(self, name: str, columns: NDArray[np.intp], out: Array, places: NDArray[np.intp]) -> None:
        """Copy some columns of one array over all rows to the columns `places` of `out` (n, q)."""
        start = 0
        for block in self.blocks:
            stop = start + len(block[name])
            out[start:stop, places] = block[name][:, columns]
            start = stop

    def take(self, columns: NDArray[np.intp]) -> RowState:
        """The state of some of the columns (fits)."""
        kept = [{name: array[:, columns] for name, array in block.items()} for block in self.blocks]
        return RowState(kept, self.sweeps)


class InMemoryDesign:
    """Design matrix Phi = feature_map(X) of rows held in arrays.

    Parameters
    ----------
    source : ArrayRows
        X (n, d), y and weights.
    feature_map : object with `transform` and `n_components_`, or None
        None only where `features` are given.
    features : array of shape (n, M), list of arrays of shape (m, M), or None
        Phi, where the caller has computed it already; the arrays of a list become the blocks, without a copy.
    share : array of shape (n,) or None
        Normalized weights w_i / W; None takes those of the source. A subset of a larger problem's rows keeps the shares
        that they have there, which then sum to less than 1.
    shuffled : bool
        Whether the rows are in random order, so that the first m of them are a random sample.
    max_memory : int or None
        Bytes that stored features may take; None is half of the free memory. Features that fit are computed once and
        stored (`cached` is True); others are recomputed in every pass, one block at a time.
    dtype : float64 or float32
        Storage type of computed features; sums over them are accumulated in float64 either way.
    threads : int
        Number of threads that share a pass.
    """

    def __init__(
        self,
        source: ArrayRows,
        feature_map: FeatureMap | None = None,
        *,
        features: Array | list[Array] | None = None,
        share: Array | None = None,
        shuffled: bool = False,
        max_memory: int | None = None,
        dtype: DTypeLike = float,
        threads: int = 1,
    ) -> None:
        if features is None:
            if feature_map is None:
                raise ValueError("InMemoryDesign needs a feature_map or the features themselves.")
            if np.dtype(dtype).itemsize * source.n_rows * feature_map.n_components_ <= memory_budget(max_memory):
                kwargs = {} if dtype is float else {"dtype": dtype}  # not every feature map takes a dtype
                features = feature_map.transform(source.X, **kwargs)
            elif hasattr(feature_map, "prepare"):
                feature_map.prepare(source.n_rows)
        self.source = source
        self.feature_map = feature_map
        self.n_rows = source.n_rows
        self._pieces = features if isinstance(features, list) else None
        self._features = None if isinstance(features, list) else features
        first = features[0] if isinstance(features, list) else features
        self.n_features = first.shape[1] if first is not None else feature_map.n_components_  # type: ignore[union-attr]
        self.share = source.share() if share is None else share
        self.shuffled = shuffled
        self.threads = threads
        # At least one block per thread, where there is work enough for several.
        at_least = threads if self.n_rows * self.n_features >= SHARED_WORK else 1
        self.spans = _spans(self._pieces) if self._pieces else list(blocks(self.n_rows, self.n_features, at_least))

    returns_rows = True

    @property
    def cached(self) -> bool:
        """Whether Phi is stored rather than recomputed in every pass."""
        return self._features is not None or self._pieces is not None

    @property
    def random_access(self) -> bool:
        """Whether single rows of Phi can be read without a pass: where it is stored."""
        return self.cached

    @property
    def most_sampled(self) -> int:
        """Largest size of a random sample, stored or not, and rows of the dual variables that a result has: all n."""
        return self.n_rows

    most_stored = n_duals = most_sampled

    @property
    def largest_share(self) -> float:
        """max_i w_i / W, the largest normalized weight."""
        return float(self.share.max(initial=0))

    @property
    def target(self) -> Array:
        """The target y, shape (n,), or (n, q) where every fit has its own."""
        return self.source.y

    def take(self, columns: NDArray[np.intp]) -> InMemoryDesign:
        """The same rows for some of the fits: Phi is shared, and columns are dropped from a target of shape (n, q)."""
        if self.source.y.ndim == 1:
            return self
        subset = copy(self)
        subset.source = replace(self.source, y=self.source.y[:, columns])
        return subset

    def use_threads(self, threads: int) -> None:
        """Share passes among so many threads."""
        self.threads = threads

    def in_memory(self, reason: str, *, instead: str = "solver='newton'") -> InMemoryDesign:  # noqa: ARG002
        """Itself; a design matrix out of core raises a ValueError that begins with `reason`."""
        return self

    def remote(self) -> InMemoryDesign:
        """What stands for these rows in a problem handed to `run_at`: the rows themselves."""
        return self

    def gather(self, size: int, rng: np.random.Generator) -> InMemoryDesign:  # noqa: ARG002
        """Itself, for all rows are in memory; out of core, a random sample of `size` rows."""
        return self

    def as_array(self, reason: str, *, instead: str = "solver='newton'") -> Array:
        """Phi as one array (n, M), or a ValueError that begins with `reason` and names the alternative `instead`."""
        if self._features is None:
            raise ValueError(
                f"{reason}, but {self.n_rows:,} rows x {self.n_features:,} features exceed the memory allowed. "
                f"Use {instead}, fewer components, or raise max_memory."
            )
        return self._features

    def sample(
        self,
        size: int,
        rng: np.random.Generator,
        basis: Array | None = None,
        *,
        stored: bool = True,  # noqa: ARG002
    ) -> InMemoryDesign:
        """A random sample of `size` rows, with its features stored: Phi, or Phi B with a basis B (M, k).

        Where the rows are shuffled it consists of the first ones, so that samples of growing size are nested. Shares
        are normalized anew, over the rows of the sample.
        """
        index: Any = slice(size) if self.shuffled else stratified_indices(self.n_rows, size, rng)
        if basis is not None:
            features = self.take_rows(np.arange(size) if self.shuffled else index, basis)
        else:
            features = np.asarray(self._compute_features(index), dtype=float)
        weight = self.source.weight[index] if self.source.weight is not None else None
        source = ArrayRows(features, self.source.y[index], weight)  # the features stand in for X, not needed any more
        return InMemoryDesign(source, features=features, shuffled=True, threads=self.threads)

    def kernel_scale(self) -> float:
        """Scale of the kernel: mean |phi_i|^2 = mean k(x_i, x_i) over the first SIZE_ROWS rows."""
        first = slice(SIZE_ROWS)
        stored = max(self._pieces, key=len) if self._pieces is not None else self._features
        features = stored[first] if stored is not None else self._compute_features(first)
        return float(np.mean(np.einsum("ij,ij->i", features, features)))

    def take_rows(self, index: NDArray[np.intp], basis: Array | None = None) -> Array:
        """Features of the rows at `index`: Phi[index] of shape (m, M), or Phi[index] B of shape (m, k)."""
        width = self.n_features if basis is None else basis.shape[1]
        out = np.empty((len(index), width))

        def fill(strip: slice) -> None:
            features = self._compute_features(index[strip])
            if basis is None:
                out[strip] = features
            else:
                np.matmul(features, basis, out=out[strip])

        # One strip at a time: its features are still in the processor's cache when they are projected.
        work = len(index) * self.n_features * (1 if basis is None else 4)
        parallel_map(fill, strips(len(index), self.n_features), self.threads if work >= SHARED_WORK else 1)
        return out

    def project(self, basis: Array) -> InMemoryDesign:
        """Project on a basis B (M, k): the same rows with the features Phi B."""
        features = self.take_rows(np.arange(self.n_rows), basis)
        return InMemoryDesign(
            self.source, features=features, share=self.share, shuffled=self.shuffled, threads=self.threads
        )

    def new_state(self, **arrays: Array) -> RowState:
        """Row state for this design matrix, holding the given arrays of shape (n, q); empty if there are none."""
        return RowState([{name: array[span] for name, array in arrays.items()} for span in self.spans])

    def map_reduce(
        self,
        step: Step,
        state: RowState,
        args: object = None,
        *,
        reduce: Reduce,
        per_block_args: list[Any] | None = None,
    ) -> Any:
        """Apply `step` to every block and reduce the results with `reduce`: one pass over Phi, O(n M) per column.

        Parameters
        ----------
        step : callable
            step(block, state, args) -> result; step(block, state, args, per_block_args[k]) if these are given.
        state : RowState
            Its blocks are handed to the steps, which may overwrite them; its count of passes rises by 1.
        args : object
            The same for every block.
        reduce : callable
            Reduces the list of results, in row order.
        per_block_args : list with an entry per block, or None
            Arguments that differ between blocks.
        """
        state.sweeps += 1
        work = self.n_rows * self.n_features

        def run_block(k: int) -> Any:
            block_args = () if per_block_args is None else (per_block_args[k],)
            return step(self._block(k), state.blocks[k], args, *block_args)

        return reduce(self._map_blocks(run_block, work))

    def map_reduce_split(self, step: Step, state: RowState, args: object = None, *, reduce: Reduce) -> tuple[Any, Any]:
        """Like `map_reduce`, for results (small, large), of which only the small one is sent to the caller.

        Out of core the large one stays where the rows are; here both are returned as they are.
        """
        small, large = self.map_reduce(step, state, args, reduce=reduce)
        return small, large

    def map_rows(self, step: Step, state: RowState, args: object = None, *, reduce: Reduce) -> Any:
        """Like `map_reduce`, for steps that need targets and row state only: O(n q), not O(n M), and no pass."""
        no_features = np.empty((0, self.n_features))

        def run_block(k: int) -> Any:
            span = self.spans[k]
            return step(Block(no_features, self.source.y[span], self.share[span], span.start), state.blocks[k], args)

        return reduce(self._map_blocks(run_block, VISIT_WORK * self.n_rows))

    def run_at(self, function: Callable[..., tuple[Any, Any]], *args: object) -> tuple[Any, Any]:
        """Call function(*args) -> (stays, returned) where large results of `map_reduce_split` are: in this process."""
        return function(*args)

    def submit(self, function: Callable[..., Answer], *args: object) -> Callable[[], Answer]:
        """Start function(*args) in the background, and return a function that waits for its result."""
        return submit(function, *args, threads=self.threads)

    def build_subset(
        self, index: NDArray[np.intp], kept: list[Array], target: Array, share: Array, basis: Array | None
    ) -> InMemoryDesign:
        """Design matrix of the rows at `index`, with these targets and shares; in a basis, if there is one.

        `kept` are the features of the first of them, in pieces; those of the others are gathered.
        """
        rest = index[sum(len(piece) for piece in kept) :]
        pieces = [*kept, self.take_rows(rest, basis)] if len(rest) or not kept else kept
        features = _parallel_concatenate(pieces, self.threads)
        return InMemoryDesign(ArrayRows(features, target), features=features, share=share, threads=self.threads)

    def _map_blocks(self, function: Callable[[int], Any], work: int) -> list[Any]:
        """[function(k) for every block number k], by several threads where there is work for them."""
        return parallel_map(function, range(len(self.spans)), self.threads if work >= SHARED_WORK else 1)

    def _block(self, k: int) -> Block:
        """Block k with its features, stored or computed now."""
        span = self.spans[k]
        features = self._pieces[k] if self._pieces is not None else self._compute_features(span)
        return Block(features, self.source.y[span], self.share[span], span.start)

    def _compute_features(self, index: Any) -> Array:
        """Phi[index]: looked up where Phi is stored, computed otherwise."""
        if self._features is not None:
            return self._features[index]
        assert self.feature_map is not None
        return self.feature_map.transform(self.source.X[index])


class RemoteStub(InMemoryDesign):
    """Design matrix without rows: stands in for one out of core in a problem that is sent to where its rows are.

    A function called there by `run_at` receives raw rows (from `map_reduce_split`) and asks this stub to map them into
    feature space, with the same feature map and within the memory allowed there.

    Parameters
    ----------
    feature_map : object with `transform` and `n_components_`
    room : int
        Bytes that the features of such rows may take; larger ones are recomputed in every pass.
    threads : int
    """

    returns_rows = False
    random_access = False

    def __init__(self, feature_map: FeatureMap, room: int, threads: int) -> None:
        none, features = np.empty(0), np.empty((0, feature_map.n_components_))
        super().__init__(ArrayRows(features, none), features=features, share=none, threads=threads)
        self._feature_map, self._room = feature_map, room

    def build_subset(
        self,
        index: NDArray[np.intp],  # noqa: ARG002
        kept: list[Array],
        target: Array,
        share: Array,
        basis: Array | None,
    ) -> InMemoryDesign:
        """Design matrix of the raw rows `kept`, in pieces; its features are stored if `room` allows."""
        raw = ArrayRows(np.concatenate(kept), target)
        feature_map = self._feature_map if basis is None else ProjectedMap(self._feature_map, basis)
        return InMemoryDesign(raw, feature_map, share=share, max_memory=self._room, threads=self.threads)


class ProjectedMap:
    """Feature map followed by a projection: x -> B' phi(x), for a basis B of shape (M, k)."""

    def __init__(self, feature_map: FeatureMap, basis: Array) -> None:
        self.feature_map, self.basis = feature_map, basis
        self.n_components_ = basis.shape[1]

    def transform(self, X: Array, **kwargs: Any) -> Array:
        """Phi B (m, k) of these rows, a strip at a time: Phi itself (m, M) never exists as a whole."""
        out = np.empty((len(X), self.n_components_))
        for strip in strips(len(X), self.feature_map.n_components_):
            out[strip] = self.feature_map.transform(X[strip], **kwargs) @ self.basis
        return out

    def prepare(self, n_rows: int) -> None:
        """Prepare the inner feature map for so many rows, such as by loading compiled code where that pays."""
        if hasattr(self.feature_map, "prepare"):
            self.feature_map.prepare(n_rows)


def stratified_indices(n_rows: int, size: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Stratified sample: one random index from each of `size` equal intervals of 0..n_rows-1, increasing and distinct.

    Data sorted by a column are thereby sampled evenly along it.
    """
    ends = np.arange(size + 1) * n_rows // size
    return rng.integers(ends[:-1], ends[1:])


def _parallel_concatenate(pieces: list[Array], threads: int) -> Array:
    """np.concatenate with threads, for page faults of fresh memory dominate; a single piece is not copied."""
    if len(pieces) == 1:
        return pieces[0]
    ends = np.cumsum([len(piece) for piece in pieces])
    whole = np.empty((ends[-1], pieces[0].shape[1]), dtype=pieces[0].dtype)

    def put(piece: Array, end: int) -> None:
        whole[end - len(piece) : end] = piece

    parallel_map(lambda part: put(*part), zip(pieces, ends, strict=True), threads)
    return whole


def _spans(pieces: list[Array]) -> list[slice]:
    """The rows of each array, as slices of all rows."""
    ends = np.cumsum([len(piece) for piece in pieces]).tolist()
    return [slice(end - len(piece), end) for end, piece in zip(ends, pieces, strict=True)]


def memory_budget(max_memory: int | None) -> float:
    """Bytes that stored features may take: `max_memory` if it is given, else half of the free memory."""
    return max(CACHE_SHARE * available_memory(), ALWAYS_CACHED) if max_memory is None else max_memory
