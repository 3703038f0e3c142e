"""Rows of files, seen through a feature map: they pass by, a few blocks at a time, in every sweep.

Nothing here grows with the number of rows but what is remembered of them (`shelf`), and their features where these are
cached (`feature_cache`). A random sample is drawn once, in one pass over the raw rows; whoever asks for fewer gets its
first ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel._threads import spread
from quernel.data.design_matrix import (
    SIZE_ROWS,
    Block,
    FeatureMap,
    Float32Map,
    InMemoryDesign,
    Join,
    ProjectedMap,
    RemoteStub,
    Step,
    memory_budget,
    stratified_indices,
)
from quernel.data.feature_cache import Cache, disk_pays, fits_memory, new_cache
from quernel.data.progress import begin_pass
from quernel.data.sources import ArrayRows, Piece, RowSource
from quernel.data.spilled_state import SpilledRowState
from quernel.features.blocks import blocks

Array = NDArray[np.floating]

# Of the memory allowed: what is remembered of rows, and the features of a sample or of the rows in doubt.
SHELF_SHARE, LIFTED_SHARE = 0.25, 0.25
# A sample of this size is taken whatever is allowed, as problems that small are gathered whole (`solvers.screening`):
# a poor guess costs many times more than a sample.
ALWAYS_SAMPLED = 16_000_000
# So many answers are joined at a time.
FAN_IN = 16
# Rows that are lifted, twice, to see what that costs.
TRIAL = 1024


class StreamedDesign:
    """Rows of a `RowSource`, lifted anew in every sweep, or once where their features are cached.

    `source.cache` says which; a source that does not say means "auto": features are kept in memory if half of what is
    allowed holds them, on disk if they are dearer to have anew than to read back, and not at all otherwise.

    Parameters
    ----------
    source : RowSource
    feature_map : object with `transform` and `n_components_`
    total, largest : float
        The sum of all weights, and the largest of them.
    max_memory : int or None
        Bytes that may be taken; None is half of the free memory.
    dtype : float64 or float32
        The type in which features are cached. Rounded ones are those of every sweep, from the first on, and of the rows
        in doubt; where nothing is cached they are not rounded.
    threads : int
        How many threads share a sweep; each reads its own part of the files.
    """

    near = False
    cached = False
    shuffled = False

    def __init__(
        self,
        source: RowSource,
        feature_map: FeatureMap,
        *,
        total: float,
        largest: float,
        max_memory: int | None = None,
        dtype: Any = float,
        threads: int = 1,
    ) -> None:
        self.source, self.feature_map, self.dtype = source, feature_map, dtype
        self.n_rows, self.n_features = source.n_rows, feature_map.n_components_
        self.threads, self.total, self.largest_share = threads, total, largest / total
        self.allowed = memory_budget(max_memory)
        # A block of the source may be too much once it is lifted.
        self._parts = [list(blocks(span.stop - span.start, self.n_features)) for span in source.spans]
        self.spans = [
            slice(span.start + part.start, span.start + part.stop)
            for span, parts in zip(source.spans, self._parts, strict=True)
            for part in parts
        ]
        self._first = np.cumsum([0, *(len(parts) for parts in self._parts)])
        self._shared = _Shared()
        self._columns: NDArray[np.intp] | None = None
        if hasattr(feature_map, "prepare"):
            feature_map.prepare(self.n_rows)
        if self._policy != "auto":  # what cannot be had is refused before any sweep
            self._shared.cache = new_cache(self._policy, self.spans, self.n_features, self.allowed, dtype)
            self._shared.decided = True

    @property
    def _policy(self) -> Any:
        return getattr(self.source, "cache", "auto")

    def close(self) -> None:
        """Forget cached features; from here on they are computed again."""
        cache, self._shared.cache, self._shared.decided = self._shared.cache, None, True
        if cache is not None:
            cache.close()

    @property
    def rounded(self) -> bool:
        """Whether sweeps have had rounded features."""
        return self._shared.rounded

    def as_float64(self) -> StreamedDesign:
        """The same rows with features as they are computed, anew in every sweep; cached ones are forgotten."""
        self.close()
        exact = copy(self)
        exact.dtype, exact._shared = float, _Shared(self._shared.drawn)
        exact._shared.decided = True
        return exact

    @property
    def most_stored(self) -> int:
        """How many rows a sample may have whose features are stored."""
        return min(max(int(self._room / (8 * self.n_features)), SIZE_ROWS), self.most_sampled)

    @property
    def most_sampled(self) -> int:
        """How many rows a sample may have: of a larger one raw rows are kept, and lifted in every sweep over it."""
        return max(int(self._room / (8 * (self.source.n_columns + 1))), SIZE_ROWS)

    @property
    def _room(self) -> float:
        """Bytes for a sample, raw or lifted."""
        return max(LIFTED_SHARE * self.allowed, ALWAYS_SAMPLED)

    def take(self, columns: NDArray[np.intp]) -> StreamedDesign:
        """The rows for some of the fits."""
        some = copy(self)
        some._columns = columns if self._columns is None else self._columns[columns]
        return some

    def _targets(self, y: Array) -> Array:
        """The targets of the chosen fits, where each has its own."""
        return y if y.ndim == 1 or self._columns is None else y[:, self._columns]

    def as_array(self, reason: str, *, instead: str = "solver='newton'") -> Array:
        """An error that begins with the reason and says what to use instead."""
        raise ValueError(
            f"{reason}, but these {self.n_rows:,} rows are read from files in every sweep. Use {instead}, or rows that "
            "fit in memory."
        )

    def sample(
        self, size: int, rng: np.random.Generator, basis: Array | None = None, *, stored: bool = True
    ) -> InMemoryDesign:
        """That many random rows; with the features Phi B, if asked, which are lifted in every sweep unless `stored`."""
        drawn = self._shared.drawn
        if drawn is None or drawn.n_rows < size:
            drawn = self._shared.drawn = self._draw(min(max(size, self.most_sampled), self.n_rows), rng)
        drawn.threads = self.threads
        some = drawn.sample(size, rng, basis) if stored else self._raw(drawn, size, basis)
        return some if self._columns is None else some.take(self._columns)

    def _raw(self, drawn: InMemoryDesign, size: int, basis: Array | None) -> InMemoryDesign:
        """The first rows of what was drawn, their features not stored."""
        X, y, weight = drawn.source.X, drawn.source.y, drawn.source.weight
        first = ArrayRows(X[:size], y[:size], None if weight is None else weight[:size])
        feature_map = self.feature_map if basis is None else ProjectedMap(self.feature_map, basis)
        return InMemoryDesign(first, feature_map, shuffled=True, max_memory=0, threads=self.threads)

    def _draw(self, size: int, rng: np.random.Generator) -> InMemoryDesign:
        """Random rows in random order, their features not computed yet: one pass over the raw rows."""
        chosen = stratified_indices(self.n_rows, size, rng)
        cuts = np.searchsorted(chosen, [span.start for span in self.source.spans] + [self.n_rows])
        order = rng.permutation(size)
        place = np.argsort(order)
        X = np.empty((size, self.source.n_columns))  # by far the most of them: each goes where it belongs at once

        def pick(k: int, piece: Piece) -> list[Piece]:
            here = chosen[cuts[k] : cuts[k + 1]] - self.source.spans[k].start
            assert piece.X is not None
            X[place[cuts[k] : cuts[k + 1]]] = piece.X[here]
            return [Piece(None, piece.y[here], None if piece.weight is None else piece.weight[here])]

        begin = time.perf_counter()
        pieces = self._pass(pick, join=lambda answers: [piece for answer in answers for piece in answer])
        self._shared.reading = (time.perf_counter() - begin) / self.n_rows
        y = np.concatenate([piece.y for piece in pieces])[order]
        weight = np.concatenate([piece.weight for piece in pieces])[order] if self.source.weighted else None
        return InMemoryDesign(ArrayRows(X, y, weight), self.feature_map, shuffled=True, max_memory=0)

    def elsewhere(self) -> RemoteStub:
        """What is sent where these rows are."""
        return RemoteStub(self._lift(self._shared.cache), int(LIFTED_SHARE * self.allowed), self.threads)

    def size(self) -> float:
        """mean |phi|^2 over some rows: the scale of the kernel, roughly."""
        return self.sample(min(SIZE_ROWS, self.n_rows), np.random.default_rng(0)).size()

    def within(self, basis: Array) -> StreamedDesign:
        """The same rows with the features Phi B."""
        inner = StreamedDesign(
            self.source, ProjectedMap(self.feature_map, basis), total=self.total,
            largest=self.largest_share * self.total, max_memory=int(self.allowed), dtype=self.dtype,
            threads=self.threads,
        )  # fmt: skip
        return inner if self._columns is None else inner.take(self._columns)

    def new_memory(self, **arrays: Array) -> SpilledRowState:
        """An empty memory for every block."""
        if arrays:
            raise ValueError("What is remembered of rows that are far away begins with nothing.")
        return SpilledRowState(len(self.spans), int(SHELF_SHARE * self.allowed))

    def map_reduce(
        self, step: Step, memory: SpilledRowState, message: Any = None, *, join: Join, each: list[Any] | None = None
    ) -> Any:
        """The step's answers for all blocks, joined; `each` holds a further message for every block."""
        memory.sweeps += 1
        cache = self._cache()
        raw = cache is None or not cache.complete
        return self._blocks(step, memory, message, each, join, X=raw, features=self._features(cache))

    def map_reduce_split(
        self, step: Step, memory: SpilledRowState, message: Any = None, *, join: Join
    ) -> tuple[Any, Any]:
        """Like `map_reduce`, for answers of two parts: a small one that comes back, and one that stays where the rows are.

        Blocks have their raw rows, for what stays.
        """
        memory.sweeps += 1
        features = self._features(self._cache())
        small, large = self._blocks(step, memory, message, None, join, X=True, features=features)
        return small, large

    def map_rows(self, step: Step, memory: SpilledRowState, message: Any = None, *, join: Join) -> Any:
        """Like `map_reduce`, for steps that do not look at the features: only targets and weights are read."""
        return self._blocks(step, memory, message, None, join, X=False, features=None)

    def run_at(self, function: Callable[..., tuple[Any, Any]], *args: Any) -> tuple[Any, Any]:
        """Call a function where its arguments are: here."""
        return function(*args)

    def _cache(self) -> Cache | None:
        """Where features are kept; decided at the first sweep."""
        if not self._shared.decided:
            shape, size = (self.n_rows, self.n_features), np.dtype(self.dtype).itemsize * self.n_rows * self.n_features
            if fits_memory(size, self.allowed) or disk_pays(self._estimate_recompute_cost(), *shape, self.dtype):
                self._shared.cache = new_cache("auto", self.spans, self.n_features, self.allowed, self.dtype)
            self._shared.decided = True
        return self._shared.cache

    def _estimate_recompute_cost(self) -> float:
        """What the features of a row cost in every sweep that does not have them: reading it, and lifting it."""
        self.sample(min(SIZE_ROWS, self.n_rows), np.random.default_rng(0))  # the pass that draws it has been timed
        drawn = self._shared.drawn
        assert drawn is not None
        X, seconds = drawn.source.X[:TRIAL], []
        for _ in range(2):
            begin = time.perf_counter()
            self.feature_map.transform(X)
            seconds.append(time.perf_counter() - begin)
        return self._shared.reading + min(seconds) / len(X) / self.threads

    def _features(self, cache: Cache | None) -> Callable[[int, Array | None], Array]:
        """How to have the features of a block: from the cache, or from its raw rows."""
        lift = self._lift(cache)
        self._shared.rounded |= isinstance(lift, Float32Map)

        def features(number: int, raw: Array | None) -> Array:
            kept = None if cache is None else cache.get(number)
            if kept is not None:
                return kept
            assert raw is not None
            lifted = lift.transform(raw)
            if cache is not None:
                cache.put(number, lifted)
            return lifted

        return features

    def _lift(self, cache: Cache | None) -> FeatureMap:
        """The feature map, rounded where its features are cached so, or were until the disk was full: one problem."""
        return self.feature_map if cache is None or np.dtype(self.dtype) == float else Float32Map(self.feature_map)

    def _blocks(
        self,
        step: Step,
        memory: SpilledRowState,
        message: Any,
        each: list[Any] | None,
        join: Join,
        *,
        X: bool,
        features: Callable[[int, Array | None], Array] | None,
    ) -> Any:
        none = np.empty((0, self.n_features))

        def one(k: int, piece: Piece) -> Any:
            share = np.full(len(piece.y), 1 / self.total) if piece.weight is None else piece.weight / self.total
            answers = []
            for number, part in enumerate(self._parts[k], start=int(self._first[k])):
                raw = piece.X[part] if piece.X is not None else None
                Phi = none if features is None else features(number, raw)
                block = Block(Phi, self._targets(piece.y[part]), share[part], self.spans[number].start, raw)
                own = () if each is None else (each[number],)
                with memory.open(number) as known:
                    answers.append(step(block, known, message, *own))
            return join(answers)

        return self._pass(one, join=join, X=X, watched=features is not None)

    def _pass(self, function: Callable[[int, Piece], Any], *, join: Join, X: bool = True, watched: bool = True) -> Any:
        """The function at every block of the source, by several threads, each with a stream of its own."""
        count = len(self.source.spans)
        threads = max(1, min(self.threads, count))
        runs = [range(count * t // threads, count * (t + 1) // threads) for t in range(threads)]

        count_rows = begin_pass(self.n_rows) if watched else None

        def one(k: int, piece: Piece) -> Any:
            answer = function(k, piece)
            if count_rows is not None:
                count_rows(len(piece.y))
            return answer

        def go(run: range) -> Any:
            stream = self.source.stream(run, X=X)
            return _joined((one(k, piece) for k, piece in zip(run, stream, strict=True)), join)

        return join(spread(go, runs, threads))


class _Shared:
    """What copies of the same rows have in common: a sample, what a row took to be read, and cached features."""

    def __init__(self, drawn: InMemoryDesign | None = None) -> None:
        self.drawn = drawn
        self.reading = 0.0  # seconds
        self.cache: Cache | None = None
        self.decided = False
        self.rounded = False


def _joined(answers: Iterator[Any], join: Join) -> Any:
    """Joined as they come, a few at a time, in order: sums of sums, so that never many wait."""
    levels: list[list[Any]] = [[]]
    for answer in answers:
        levels[0].append(answer)
        level = 0
        while len(levels[level]) == FAN_IN:
            if level + 1 == len(levels):
                levels.append([])
            levels[level + 1].append(join(levels[level]))
            levels[level] = []
            level += 1
    return join([answer for level in reversed(levels) for answer in level])
