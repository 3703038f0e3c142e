"""Rows in feature space, met block by block.

`fold` is the only way in: it applies one function to every block and adds up what comes back. Whatever a solver knows
about single rows (residuals, dual variables) lives here with the rows, in `Memory`, and never travels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from quernel.rows.arrays import ArrayRows
from quernel.rows.memory import available_memory

Array = NDArray[np.floating]

# Rows of one block: large enough for BLAS, small enough that a block of features is still in cache for its second use.
BLOCK_BYTES = 8 * 2**20
# The share of the free memory that stored features may take before they are recomputed in every sweep instead.
CACHE_SHARE = 0.5


def blocks(n_rows: int, n_features: int) -> Iterator[slice]:
    """The rows in consecutive slices whose features have a convenient size."""
    size = max(BLOCK_BYTES // (8 * max(n_features, 1)), 256)
    for start in range(0, n_rows, size):
        yield slice(start, min(start + size, n_rows))


class FeatureMap(Protocol):
    """Whatever turns rows of X into rows of Phi."""

    n_components_: int

    def transform(self, X: Array) -> Array:
        """Phi for these rows."""


@dataclass(frozen=True, eq=False)
class Block:
    """Consecutive rows: features (m, M), target (m,) and share (m,) of the total weight."""

    features: Array
    target: Array
    share: Array


# What a solver keeps of the rows of one block: arrays of shape (m, q) by name.
BlockMemory = dict[str, Array]
# A step reads a block and its memory, may overwrite the memory, and returns what is to be added up.
Step = Callable[[Block, BlockMemory, Any], Any]


@dataclass
class Memory:
    """The memories of all blocks, and how often the rows were swept."""

    blocks: list[BlockMemory] = field(default_factory=list)
    sweeps: int = 0

    def collect(self, name: str) -> Array:
        """One remembered array over all rows, shape (n, q)."""
        return np.concatenate([block[name] for block in self.blocks])

    def remember(self, name: str, array: Array, spans: list[slice]) -> None:
        """Lay an array over all rows, shape (n, q), down with its blocks."""
        for block, span in zip(self.blocks, spans, strict=True):
            block[name] = array[span]

    def take(self, columns: NDArray[np.intp]) -> Memory:
        """What is remembered of some of the columns."""
        blocks = [{name: array[:, columns] for name, array in block.items()} for block in self.blocks]
        return Memory(blocks, self.sweeps)


class LiftedRows:
    """Rows of `source` seen through `feature_map`.

    Parameters
    ----------
    source : ArrayRows
    feature_map : object with `transform` and `n_components_`
    features : array of shape (n, M) or None
        The features themselves, where the caller has them already.
    max_memory : int or None
        Bytes that stored features may take; None is half of the free memory. Features that fit are computed once and
        kept (`cached` is True); others are computed again in every sweep, block by block.
    """

    def __init__(
        self,
        source: ArrayRows,
        feature_map: FeatureMap | None = None,
        *,
        features: Array | None = None,
        max_memory: int | None = None,
    ) -> None:
        if feature_map is None and features is None:
            raise ValueError("LiftedRows needs a feature_map or the features themselves.")
        self.source = source
        self.feature_map = feature_map
        self.n_rows = source.n_rows
        self.n_features = features.shape[1] if features is not None else feature_map.n_components_  # type: ignore[union-attr]
        self._share = source.share()
        self.spans = list(blocks(self.n_rows, self.n_features))
        if features is None and 8 * self.n_rows * self.n_features <= _allowance(max_memory):
            features = self._lift()
        self._features = features

    @property
    def cached(self) -> bool:
        """Whether the features are stored rather than recomputed."""
        return self._features is not None

    @property
    def target(self) -> Array:
        """y, shape (n,)."""
        return self.source.y

    @property
    def share(self) -> Array:
        """w / W, shape (n,)."""
        return self._share

    def resident(self, reason: str) -> Array:
        """All features, shape (n, M), or an error that begins with the reason."""
        if self._features is None:
            raise ValueError(
                f"{reason}, but {self.n_rows:,} rows x {self.n_features:,} features exceed the memory allowed. "
                "Use solver='newton', fewer components, or raise max_memory."
            )
        return self._features

    def new_memory(self) -> Memory:
        """An empty memory for every block."""
        return Memory([{} for _ in self.spans])

    def fold(self, step: Step, memory: Memory, message: Any = None) -> list[Any]:
        """The step's answer for every block, in order."""
        memory.sweeps += 1
        return [step(block, kept, message) for block, kept in zip(self._blocks(), memory.blocks, strict=True)]

    def visit(self, step: Step, memory: Memory, message: Any = None) -> list[Any]:
        """Like `fold`, for steps that do not look at the features: costs O(n q), not O(n M)."""
        nothing = np.empty((0, self.n_features))
        return [
            step(Block(nothing, self.source.y[span], self._share[span]), kept, message)
            for span, kept in zip(self.spans, memory.blocks, strict=True)
        ]

    def _blocks(self) -> Iterator[Block]:
        for span in self.spans:
            features = self._features[span] if self._features is not None else self._transform(span)
            yield Block(features, self.source.y[span], self._share[span])

    def _transform(self, span: slice) -> Array:
        assert self.feature_map is not None
        return self.feature_map.transform(self.source.X[span])

    def _lift(self) -> Array:
        if len(self.spans) == 1:
            return self._transform(self.spans[0])
        first = self._transform(self.spans[0])
        features = np.empty((self.n_rows, self.n_features), dtype=first.dtype)
        features[self.spans[0]] = first
        for span in self.spans[1:]:
            features[span] = self._transform(span)
        return features


def _allowance(max_memory: int | None) -> float:
    return CACHE_SHARE * available_memory() if max_memory is None else max_memory
