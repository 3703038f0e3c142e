"""What the objective and the solvers may ask of a design matrix: one protocol, three implementations.

The design matrix Phi (n, M) has one row per observation, and q fits (one per quantile level, say) share it: their
coefficients are the columns of an array (M, q). Phi may be in memory, in files or on a cluster; a solver that uses
nothing but the methods of `DesignMatrix` runs on all of them.

- `DesignMatrix`: sizes, passes over row blocks, per-row state, random samples, projections. `InMemoryDesign`,
  `StreamedDesign` and `DaskDesign` implement it, and the type checker verifies that they do (end of this file).
- `RowStateLike`: what a solver knows about single rows, stored with them.
- `OutOfCoreDesign`: what designs of files and clusters offer estimators beyond that.

Terms used below. A *step* is a function of one block of rows; a *pass* applies it to every block; a *reduction* makes
one result of the results of all blocks. *Row state* holds what a solver knows about single rows, such as their
residuals. A *handle* stands for a large value that stays where the rows are; in memory and for files it is the value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from quernel._machine import Answer
from quernel.data.design_matrix import Reduce, Step

if TYPE_CHECKING:
    from quernel.data.dask_design import DaskDesign, DaskRowState
    from quernel.data.design_matrix import InMemoryDesign, RowState
    from quernel.data.streaming import SpilledRowState, StreamedDesign

Array = NDArray[np.floating]
Index = NDArray[np.intp]


class RowStateLike(Protocol):
    """Per-row arrays of a solver, stored with the rows: shape (n, q) by name, such as "residual" and "anchor".

    Only steps read and write them, a block at a time. In memory, `RowState` also returns them whole.
    """

    sweeps: float
    """Passes over Phi made with this state: `map_reduce` adds 1, and solvers correct it where only some rows count."""

    def take(self, columns: Index) -> Self:
        """The state of some of the fits: columns of every array; the count of passes is copied."""

    def copy_columns(self, name: str, columns: Index, out: Array, places: Index) -> None:
        """Copy some columns of one array to the columns `places` of `out` (n, q); nothing where `out` is (0, q)."""


State = TypeVar("State", bound=RowStateLike)


class DesignMatrix(Protocol[State]):
    """Rows in feature space with their targets and weights, accessible by map-reduce over blocks only.

    `State` is the class of its row state, made by `new_state` and accepted by no other design matrix than its own.
    """

    threads: int
    """Number of threads that share a pass."""

    def use_threads(self, threads: int) -> None:
        """Share passes among so many threads of this process; rows elsewhere have threads of their own."""

    # Sizes

    @property
    def n_rows(self) -> int:
        """n, rows of weight 0 included."""

    @property
    def n_features(self) -> int:
        """M, the number of columns of Phi."""

    @property
    def spans(self) -> list[slice]:
        """The rows of each block as slices of 0..n-1: consecutive, in the order in which results are reduced."""

    @property
    def largest_share(self) -> float:
        """max_i w_i / W, the largest normalized weight."""

    @property
    def most_sampled(self) -> int:
        """Largest size of a random sample within the memory budget."""

    @property
    def most_stored(self) -> int:
        """Largest size of a random sample whose features are stored; at most `most_sampled`."""

    @property
    def n_duals(self) -> int:
        """Rows of the dual variables that a result has: n, or 0 where they stay with the rows."""

    # What is cheap

    @property
    def returns_rows(self) -> bool:
        """Whether a pass may return single rows; if not, rows stay where they are, and a pass is what costs time."""

    @property
    def random_access(self) -> bool:
        """Whether single rows of Phi can be read without a pass: Phi is stored in this process."""

    @property
    def cached(self) -> bool:
        """Whether Phi is stored in memory, so that a pass costs arithmetic only; False where it may be recomputed."""

    # Passes over the rows

    def new_state(self, **arrays: Array) -> State:
        """New row state, empty or with these arrays of shape (n, q); rows in files accept only an empty one."""

    def map_reduce(
        self, step: Step, state: State, args: object = None, *, reduce: Reduce, per_block_args: list[Any] | None = None
    ) -> Any:
        """One pass over Phi: reduce([step(block, state, args) for all blocks]), at a cost of O(n M q).

        Parameters
        ----------
        step : callable
            step(block, state, args) -> result, or step(block, state, args, per_block_args[k]) where these are given.
            `block` is a `Block` of m rows: features (m, M), targets (m, 1) or (m, q), share (m,). `state` is a dict of
            arrays (m, q) that the step may overwrite. The step is a pure function otherwise, and picklable.
        state : row state
            Its count of passes rises by 1.
        args : object
            The same for all blocks, and small: it is sent to every worker.
        reduce : callable
            reduce(list of results) -> result; associative, for results are reduced in a tree, in row order.
        per_block_args : list with an entry per block, a handle to such a list, or None
            Arguments that differ between blocks.
        """

    def map_reduce_split(self, step: Step, state: State, args: object = None, *, reduce: Reduce) -> tuple[Any, Any]:
        """One pass whose results are pairs (small, large): returns the small one, and a handle to the large one.

        Large results are of a size that grows with the number of rows, such as the active rows themselves: they stay
        where the rows are, to be used by `run_at`. Out of core, `block.raw` (m, d) holds the rows of X.
        """

    def map_rows(self, step: Step, state: State, args: object = None, *, reduce: Reduce) -> Any:
        """Like `map_reduce` for steps that need targets, shares and row state only: O(n q), and no pass counts.

        `block.features` has the shape (0, M).
        """

    def run_at(self, function: Callable[..., tuple[Any, Any]], *args: object) -> tuple[Any, Any]:
        """Call function(*args) -> (stays, returned) where the handles among its arguments are.

        Handles, and lists of handles, arrive as their values. Returns a handle to `stays`, and `returned` itself.
        """

    def submit(self, function: Callable[..., Answer], *args: object) -> Callable[[], Answer]:
        """Start function(*args), which makes a pass, beside other work if that is faster; call the answer to wait."""

    # Other design matrices made from this one

    def sample(self, size: int, rng: np.random.Generator, basis: Array | None = None, *, stored: bool = True) -> Any:
        """Random sample of `size` rows: an `InMemoryDesign`, or a handle to one.

        Its features are Phi, or Phi B with a basis B (M, k), and its shares sum to 1. `stored=False` allows a sample
        above `most_stored`, whose features are recomputed in every pass over it.
        """

    def gather(self, size: int, rng: np.random.Generator) -> Any:
        """All rows, where they are in memory; else a random sample of `size` rows. An `InMemoryDesign`, or a handle."""

    def take(self, columns: Index) -> Self:
        """The same rows for some of the fits; only targets of shape (n, q) differ between fits."""

    def project(self, basis: Array) -> Self:
        """The same rows with the features Phi B, for a basis B (M, k)."""

    def kernel_scale(self) -> float:
        """Scale of the kernel: mean |phi_i|^2 over a few rows."""

    def remote(self) -> InMemoryDesign:
        """What stands for these rows in a problem that `run_at` sends to where they are: a design without rows.

        In memory these are the rows themselves. It makes design matrices of rows that a pass has returned or left there
        (`InMemoryDesign.build_subset`).
        """

    def in_memory(self, reason: str, *, instead: str = ...) -> InMemoryDesign:
        """The rows as arrays in this process, for solvers that cannot do without.

        Out of core, raises a ValueError that begins with `reason` (such as "The admm solver keeps all features in
        memory") and advises to use `instead`.
        """


class OutOfCoreDesign(DesignMatrix[State], Protocol[State]):
    """A design matrix whose rows are in files or on a cluster."""

    @property
    def rounded(self) -> bool:
        """Whether any pass has used float32 features, so that the result holds for rounded features only."""

    def as_float64(self) -> Self:
        """The same rows with float64 features, recomputed in every pass; stored float32 features are dropped."""


if TYPE_CHECKING:
    # Checked by mypy: an implementation that lacks a method, or takes other arguments, fails here.
    _in_memory: type[DesignMatrix[RowState]] = InMemoryDesign
    _streamed: type[OutOfCoreDesign[SpilledRowState]] = StreamedDesign
    _dask: type[OutOfCoreDesign[DaskRowState]] = DaskDesign
