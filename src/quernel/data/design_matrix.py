"""Rows in feature space, met block by block.

`map_reduce` is the only way in: it applies one function to every block and joins what comes back. Whatever a solver knows
about single rows (residuals, dual variables) lives here with the rows, in `RowState`, and never travels.

These are the rows of arrays, at hand in this process: they are *near*. Rows of files and of clusters (`streamed`,
`distributed`) offer the same, but nobody may look at a single one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from quernel._threads import spread
from quernel.data.memory import available_memory
from quernel.data.sources import ArrayRows
from quernel.features.blocks import blocks, strips

Array = NDArray[np.floating]

# The share of the free memory that stored features may take before they are recomputed in every sweep instead.
CACHE_SHARE = 0.5
# Features of this size are stored whatever the system says.
ALWAYS_CACHED = 64 * 2**20
SIZE_ROWS = 256
# Entries to go through from which waking another thread pays, and how many a visit of a row is worth.
SHARED_WORK = 2_000_000
VISIT_WORK = 20


class FeatureMap(Protocol):
    """Whatever turns rows of X into rows of Phi."""

    n_components_: int

    def transform(self, X: Array, **kind: Any) -> Array:
        """Phi for these rows."""


@dataclass(frozen=True, eq=False)
class Block:
    """Consecutive rows, `start` the number of the first: features (m, M), target (m,), or (m, q) for one per fit, and
    share (m,) of the total weight; where rows are out of core and some of them may be kept (`map_reduce_split`), also
    `raw` (m, d), which is less to keep than features.
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


# What a solver keeps of the rows of one block: arrays of shape (m, q) by name.
BlockState = dict[str, Any]
# A step reads a block, its memory and a message, may overwrite the memory, and returns its part of the answer. Where
# every block has a message of its own as well, that comes last.
Step = Callable[..., Any]
# Joins a list of answers into one. It is associative: answers may be joined in a tree.
Join = Callable[[list[Any]], Any]


def nothing(answers: list[Any]) -> None:
    """Joins the answers of steps that have none."""


def total(answers: list[Any]) -> Any:
    """Joins tuples of numbers and arrays by adding them up, entry by entry."""
    return tuple(sum(parts[1:], start=parts[0]) for parts in zip(*answers, strict=True))


@dataclass
class RowState:
    """The memories of all blocks, and how often the rows were swept."""

    blocks: list[BlockState] = field(default_factory=list)
    sweeps: float = 0

    def collect(self, name: str) -> Array:
        """One remembered array over all rows, shape (n, q)."""
        return np.concatenate([block[name] for block in self.blocks])

    def column(self, name: str, k: int, out: Array | None = None) -> Array:
        """One column of a remembered array, shape (n,)."""
        return np.concatenate([block[name][:, k] for block in self.blocks], out=out)

    def take(self, columns: NDArray[np.intp]) -> RowState:
        """What is remembered of some of the columns."""
        kept = [{name: array[:, columns] for name, array in block.items()} for block in self.blocks]
        return RowState(kept, self.sweeps)


class InMemoryDesign:
    """Rows of `source` seen through `feature_map`.

    Parameters
    ----------
    source : ArrayRows
    feature_map : object with `transform` and `n_components_`, or None
    features : array of shape (n, M), list of such arrays, or None
        The features themselves, where the caller has them already; a list of them is taken as the blocks, not copied.
    share : array of shape (n,) or None
        Each row's part of the total weight; None takes it from the source. Rows that are only some of a larger problem
        keep their share of the whole.
    shuffled : bool
        Whether the rows are in random order, so that the first m of them are a random sample.
    max_memory : int or None
        Bytes that stored features may take; None is half of the free memory. Features that fit are computed once and
        kept (`cached` is True); others are computed again in every sweep, block by block.
    dtype : float64 or float32
        The type in which computed features are stored; sums over them are taken in float64 all the same.
    threads : int
        How many threads share a sweep.
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
        dtype: Any = float,
        threads: int = 1,
    ) -> None:
        if features is None:
            if feature_map is None:
                raise ValueError("LiftedRows needs a feature_map or the features themselves.")
            if np.dtype(dtype).itemsize * source.n_rows * feature_map.n_components_ <= memory_budget(max_memory):
                kind = {} if dtype is float else {"dtype": dtype}  # not every feature map knows of types
                features = feature_map.transform(source.X, **kind)
            elif hasattr(feature_map, "prepare"):
                feature_map.prepare(source.n_rows)
        self.source = source
        self.feature_map = feature_map
        self.n_rows = source.n_rows
        self._pieces = features if isinstance(features, list) else None
        self._features = None if isinstance(features, list) else features
        known = features[0] if isinstance(features, list) else features
        self.n_features = known.shape[1] if known is not None else feature_map.n_components_  # type: ignore[union-attr]
        self.share = source.share() if share is None else share
        self.near = True
        self.shuffled = shuffled
        self.threads = threads
        parts = threads if self.n_rows * self.n_features >= SHARED_WORK else 1
        self.spans = _spans(self._pieces) if self._pieces else list(blocks(self.n_rows, self.n_features, parts))

    @property
    def cached(self) -> bool:
        """Whether the features are stored rather than recomputed."""
        return self._features is not None or self._pieces is not None

    @property
    def most_sampled(self) -> int:
        """How many rows a sample may have."""
        return self.n_rows

    @property
    def most_stored(self) -> int:
        """How many rows a sample may have whose features are stored."""
        return self.n_rows

    @property
    def largest_share(self) -> float:
        """The heaviest row's part of the total weight."""
        return float(self.share.max(initial=0))

    @property
    def target(self) -> Array:
        """y, shape (n,), or (n, q) where every fit has its own."""
        return self.source.y

    def take(self, columns: NDArray[np.intp]) -> InMemoryDesign:
        """The rows for some of the fits."""
        if self.source.y.ndim == 1:
            return self
        some = copy(self)
        some.source = replace(self.source, y=self.source.y[:, columns])
        return some

    def as_array(self, reason: str, *, instead: str = "solver='newton'") -> Array:
        """All features, shape (n, M), or an error that begins with the reason and says what to use instead."""
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
        """That many random rows: the first ones, where the rows are shuffled; with the features Phi B, if asked."""
        chosen: Any = slice(size) if self.shuffled else stratified_indices(self.n_rows, size, rng)
        if basis is not None:
            features = self.pick(np.arange(size) if self.shuffled else chosen, basis)
        else:
            features = np.asarray(self._some(chosen), dtype=float)
        weight = self.source.weight[chosen] if self.source.weight is not None else None
        source = ArrayRows(features, self.source.y[chosen], weight)  # X is needed no more
        return InMemoryDesign(source, features=features, shuffled=True, threads=self.threads)

    def size(self) -> float:
        """mean |phi|^2 over the first rows: the scale of the kernel, roughly."""
        some = slice(SIZE_ROWS)
        stored = max(self._pieces, key=len) if self._pieces is not None else self._features
        features = stored[some] if stored is not None else self._some(some)
        return float(np.mean(np.einsum("ij,ij->i", features, features)))

    def pick(self, index: NDArray[np.intp], basis: Array | None = None) -> Array:
        """The features of these rows, or Phi B of them."""
        width = self.n_features if basis is None else basis.shape[1]
        picked = np.empty((len(index), width))

        def pick(part: slice) -> None:
            some = self._some(index[part])
            if basis is None:
                picked[part] = some
            else:
                np.matmul(some, basis, out=picked[part])

        # A strip at a time: what is projected is still in cache.
        work = len(index) * self.n_features * (1 if basis is None else 4)
        spread(pick, strips(len(index), self.n_features), self.threads if work >= SHARED_WORK else 1)
        return picked

    def within(self, basis: Array) -> InMemoryDesign:
        """The same rows with the features Phi B."""
        features = self.pick(np.arange(self.n_rows), basis)
        return InMemoryDesign(
            self.source, features=features, share=self.share, shuffled=self.shuffled, threads=self.threads
        )

    def new_memory(self, **arrays: Array) -> RowState:
        """A memory for every block, of these arrays of shape (n, q)."""
        return RowState([{name: array[span] for name, array in arrays.items()} for span in self.spans])

    def map_reduce(
        self, step: Step, memory: RowState, message: Any = None, *, join: Join, each: list[Any] | None = None
    ) -> Any:
        """The step's answers for all blocks, joined; `each` holds a further message for every block."""
        memory.sweeps += 1
        work = self.n_rows * self.n_features

        def one(k: int) -> Any:
            own = () if each is None else (each[k],)
            return step(self._block(k), memory.blocks[k], message, *own)

        return join(self._each(one, work))

    def map_reduce_split(self, step: Step, memory: RowState, message: Any = None, *, join: Join) -> tuple[Any, Any]:
        """Like `map_reduce`, for answers of two parts: a small one that comes back, and one that stays where the rows are."""
        small, large = self.map_reduce(step, memory, message, join=join)
        return small, large

    def map_rows(self, step: Step, memory: RowState, message: Any = None, *, join: Join) -> Any:
        """Like `map_reduce`, for steps that do not look at the features: costs O(n q), not O(n M)."""
        none = np.empty((0, self.n_features))

        def visit(k: int) -> Any:
            span = self.spans[k]
            return step(Block(none, self.source.y[span], self.share[span], span.start), memory.blocks[k], message)

        return join(self._each(visit, VISIT_WORK * self.n_rows))

    def run_at(self, function: Callable[..., tuple[Any, Any]], *args: Any) -> tuple[Any, Any]:
        """Call a function where its arguments are that stayed with the rows: what it returns first stays there, too."""
        return function(*args)

    def _each(self, function: Callable[[int], Any], work: int) -> list[Any]:
        """The function at every block number, by several threads where there is work for them."""
        return spread(function, range(len(self.spans)), self.threads if work >= SHARED_WORK else 1)

    def _block(self, k: int) -> Block:
        span = self.spans[k]
        features = self._pieces[k] if self._pieces is not None else self._some(span)
        return Block(features, self.source.y[span], self.share[span], span.start)

    def _some(self, chosen: Any) -> Array:
        """Phi of some of the rows."""
        if self._features is not None:
            return self._features[chosen]
        assert self.feature_map is not None
        return self.feature_map.transform(self.source.X[chosen])


class RemoteStub:
    """Stands for rows that are far away, in what is sent to them."""

    near, cached, n_rows = False, False, 0

    def __init__(self, feature_map: FeatureMap, room: int, threads: int) -> None:
        self.feature_map, self.room, self.threads = feature_map, room, threads
        self.n_features = feature_map.n_components_

    def take(self, columns: NDArray[np.intp]) -> RemoteStub:  # noqa: ARG002
        """No rows, for some of the fits."""
        return self

    def lift(self, X: Array, y: Array, share: Array, basis: Array | None) -> InMemoryDesign:
        """Raw rows, within a basis if there is one; their features are stored if there is room."""
        feature_map: FeatureMap = self.feature_map if basis is None else ProjectedMap(self.feature_map, basis)
        return InMemoryDesign(ArrayRows(X, y), feature_map, share=share, max_memory=self.room, threads=self.threads)


class ProjectedMap:
    """The features Phi B of another map."""

    def __init__(self, feature_map: FeatureMap, basis: Array) -> None:
        self.feature_map, self.basis = feature_map, basis
        self.n_components_ = basis.shape[1]

    def transform(self, X: Array, **kind: Any) -> Array:
        """Phi B for these rows, a strip at a time."""
        image = np.empty((len(X), self.n_components_))
        for part in strips(len(X), self.feature_map.n_components_):
            image[part] = self.feature_map.transform(X[part], **kind) @ self.basis
        return image

    def prepare(self, n_rows: int) -> None:
        """Load compiled code if it pays for so many rows."""
        if hasattr(self.feature_map, "prepare"):
            self.feature_map.prepare(n_rows)


class Float32Map:
    """The features of another map as float32 numbers."""

    def __init__(self, feature_map: FeatureMap) -> None:
        self.feature_map, self.n_components_ = feature_map, feature_map.n_components_

    def transform(self, X: Array, **kind: Any) -> Array:
        """Phi for these rows."""
        return self.feature_map.transform(X, **{"dtype": np.float32, **kind})

    def prepare(self, n_rows: int) -> None:
        """Load compiled code if it pays for so many rows."""
        if hasattr(self.feature_map, "prepare"):
            self.feature_map.prepare(n_rows)


def stratified_indices(n_rows: int, size: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """A random row from each of `size` equal stretches: in order, none twice, and even where the file is sorted."""
    ends = np.arange(size + 1) * n_rows // size
    return rng.integers(ends[:-1], ends[1:])


def _spans(pieces: list[Array]) -> list[slice]:
    """Where each piece lies among the rows of all."""
    ends = np.cumsum([len(piece) for piece in pieces]).tolist()
    return [slice(end - len(piece), end) for end, piece in zip(ends, pieces, strict=True)]


def memory_budget(max_memory: int | None) -> float:
    """Bytes that stored features may take: what the user says, or half of the free memory."""
    return max(CACHE_SHARE * available_memory(), ALWAYS_CACHED) if max_memory is None else max_memory
