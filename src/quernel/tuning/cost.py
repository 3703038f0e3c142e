"""Estimate memory and time of a fit before it starts; `plan.py` refuses fits that memory cannot hold.

Memory is counted from array sizes; time is an order of magnitude, from operation counts and the measured speed of a
small matrix product.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache

import numpy as np

from quernel._machine import BLOCK_BYTES, BLOCK_ROWS, as_size, single_threaded_blas
from quernel._validation import check_choice, check_positive
from quernel.data import memory_budget
from quernel.kernels import Kernel, Linear, resolve
from quernel.solvers import SOLVERS
from quernel.tuning.alpha import FOLDS, HELD_OUT, MOST_LEVELS, ROTATE_BELOW
from quernel.tuning.bandwidth import OPTIONS as BANDWIDTH
from quernel.tuning.bandwidth import count_pilot_rows
from quernel.tuning.plan import NUMBER, SINGLE, auto_landmarks, is_rough, most_components, row_bytes

# The Newton solver copies the features of the active rows, about two rows per feature, first by block, then contiguous.
ACTIVE_ROWS, ACTIVE_COPIES = 2, 2
# Fraction of all rows in the active set of screening, whose features are copied.
SCREENED_SHARE = 0.05
# Smallest peak memory: the automatic bandwidth computes the pairwise distances of 1,000 rows.
LEAST = 20 * 2**20

# Time is counted in equivalent floating-point operations of a matrix product, whose speed is measured (`_speed`).
COSINE = 60  # to compute an entry of Phi, besides w'x
TOUCH = 40  # to read an entry of Phi in a pass, limited by memory bandwidth
NEXT_LEVEL = 0.4  # relative cost of a further level in a pass: all levels share one read of the features
# Passes over all rows: FEWEST_SWEEPS always, up to MORE_SWEEPS more with too few rows per feature for screening to pay.
FEWEST_SWEEPS, MORE_SWEEPS, SCREENED_FROM = 6, 100, 16
HESSIANS = 6  # per level, each assembled from about as many rows as features
ADMM_SWEEPS = 600  # iterations of ADMM, a pass each
OVERHEAD = 0.02  # seconds, constant


@dataclass(frozen=True)
class LandmarkCost:
    """Constants of the time of default fits: operations, and seconds at `speed`, measured on one core."""

    speed: float = 48.6e9  # of `_speed`, where the others were measured
    screened_from: int = 64  # rows per landmark, beyond which few rows matter after a first sample
    kernel_value: float = 20.0  # per entry of the kernel matrix and column
    decomposition: float = 8.0  # of the landmarks' matrix, per M^3
    summed_rows: float = 2.5  # Hessians of a level, per n M^2
    factors: float = 20.0  # factorizations of a level and its leave-one-out residuals, per M^3
    pilot: float = 0.7  # bandwidths from a full pilot with few columns
    columns: float = 20.0  # with so many columns it takes twice as long
    alphas: float = 0.4  # search for alpha, per level ...
    alpha_rows: int = 2250  # ... on so many rows
    compared: float = 0.5  # comparison of kernels on many rows ...
    refined: float = 1.9  # ... and bandwidths from more of them, with few columns


@dataclass(frozen=True)
class Cost:
    """Estimated resources of a fit; print it.

    Attributes
    ----------
    memory : int
        Bytes held during the whole fit: features, residuals and dual variables.
    peak_memory : int
        The same plus the solver's temporary copies, roughly.
    stored : bool
        Whether the features are stored rather than recomputed block by block in every pass.
    seconds : float
        Time on this machine, to its order of magnitude.
    features : int
        Bytes of `memory` that are features.
    choosing : float
        Those of `seconds` in which bandwidths and alpha are chosen.
    """

    memory: int
    peak_memory: int
    stored: bool
    seconds: float
    features: int = 0
    choosing: float = 0.0

    def __str__(self) -> str:
        if self.stored:
            rest = as_size(self.peak_memory - self.features)
            memory = f"about {as_size(self.features)} of features (stored) + {rest}"
        else:
            memory = f"about {as_size(self.peak_memory)}, features recomputed block by block"
        return f"{memory}; some {as_duration(self.seconds)} on this machine"


def estimate_cost(
    n: int,
    d: int,
    n_components: int | str = "auto",
    n_levels: int = 1,
    *,
    kernel: str | Kernel = "auto",
    bandwidth: str = "learned",
    solver: str = "newton",
    max_memory: int | None = None,
    dtype: str = "float64",
) -> Cost:
    """Estimate memory and time, to its order of magnitude, of ``KernelQuantileRegressor.fit`` before calling it.

    For default fits of 1,000 to 50,000 rows, times are right within a factor of about two, compilation apart.

    Parameters
    ----------
    n, d : int
        Numbers of rows and columns of X.
    n_components : int or "auto", default="auto"
        Number of features. "auto" assumes the largest number that may be chosen. "exact" is not accepted, because the
        rank of the kernel is known only after factorisation: give the rank you expect, some 200 for a smooth kernel in
        few columns and up to n for a rough one.
    n_levels : int, default=1
        Number of quantile levels.
    bandwidth : "learned" or "auto", default="learned"
        Whether bandwidths are learned, which takes seconds and, unless the kernel is smooth, leads to landmarks.
        Use "auto" where bandwidths are given, too.
    kernel, solver, max_memory, dtype : as in `KernelQuantileRegressor`

    Returns
    -------
    Cost

    Examples
    --------
    >>> from quernel import estimate_cost
    >>> cost = estimate_cost(1_000_000, 3, n_components=300, n_levels=5, max_memory=4 * 10**9)
    >>> cost.stored
    True
    >>> round(cost.features / 1e9, 1)  # 10^6 rows x 300 features x 8 bytes
    2.4
    """
    for name, value in (("n", n), ("d", d), ("n_levels", n_levels)):
        check_positive(name, value, integer=True)
    check_choice("solver", solver, SOLVERS)
    check_positive("max_memory in bytes", max_memory, others=(None,))
    if isinstance(n_components, str) and n_components == "exact":
        raise ValueError(
            'The cost of n_components="exact" depends on the rank of the kernel, which is known only once it has been '
            "factored. Give the rank you expect as a number: some 200 for a smooth kernel in few columns, up to n for "
            "a rough one."
        )
    check_positive("n_components", n_components, integer=True, others=("auto",))
    check_choice("bandwidth", bandwidth, ("learned", "auto"))
    given = resolve(kernel)
    linear, learned = isinstance(given, Linear), bandwidth == "learned" and given.has_free_bandwidth
    most, _ = most_components(n, n_levels, solver=solver, max_memory=max_memory)
    landmarks = learned and (kernel == "auto" or is_rough(given))
    if landmarks and n_components == "auto":
        most = min(n, auto_landmarks(n))
    M = d if linear else most if n_components == "auto" else int(n_components)
    check_choice("dtype", dtype, ("float64", "float32"))
    features = 0 if linear else (SINGLE if dtype == "float32" else NUMBER) * n * M  # the linear kernel's are X itself
    stored = linear or features <= memory_budget(max_memory)
    with single_threaded_blas(n, M) as threads:
        held = features if stored else threads * _block(n, M)
        memory = held + row_bytes(n, n_levels)
        peak = max(memory + _copies(n, M, n_levels, solver, stored), LEAST)
        operations = _operations(n, d, M, n_levels, solver, stored, linear)
        if landmarks and SOLVERS[solver].second_order and stored and n < LandmarkCost.screened_from * M:
            operations = _landmark_operations(n, d, min(n, M), n_levels)
        choosing = _learning_seconds(n, d, n_levels) if learned else 0.0
        seconds = operations / (threads * _speed()) + OVERHEAD + choosing
    return Cost(int(memory), int(peak), stored, seconds, int(held), choosing)


def _block(n: int, M: int) -> int:
    """Bytes of one block of features."""
    return NUMBER * M * min(n, max(BLOCK_BYTES // (NUMBER * M), BLOCK_ROWS))


def _copies(n: int, M: int, q: int, solver: str, stored: bool) -> float:
    """Bytes of the features that a solver copies, and of its M x M matrices."""
    square = min(n, M) ** 2
    if not SOLVERS[solver].second_order:
        return NUMBER * (n * M + 2 * square)
    active = ACTIVE_COPIES * q * min(n, ACTIVE_ROWS * M) * M
    screened = SCREENED_SHARE * n * M * (1 if stored else q) if n >= SCREENED_FROM * M else 0
    return NUMBER * (max(active, screened) + square)


def _operations(n: int, d: int, M: int, q: int, solver: str, stored: bool, linear: bool) -> float:
    """Equivalent floating-point operations of the fit."""
    levels = 1 + NEXT_LEVEL * (q - 1)
    make = 0 if linear else COSINE + 2 * d
    small = min(n, M)
    if not SOLVERS[solver].second_order:
        return n * M * (make + ADMM_SWEEPS * TOUCH * levels) + 2 * n * M * small + 10 * small**3
    sweeps = FEWEST_SWEEPS + MORE_SWEEPS * min(1.0, SCREENED_FROM * M / n)
    return n * M * (make * (1 if stored else sweeps) + sweeps * TOUCH * levels) + 2 * HESSIANS * q * small**2 * M


def _landmark_operations(n: int, d: int, M: int, q: int) -> float:
    """Equivalent floating-point operations of a fit with few rows per landmark: Newton steps on all rows."""
    own = LandmarkCost()
    features = n * M * (2 * M + own.kernel_value * d) + own.decomposition * M**3
    return features + q * (own.summed_rows * n * M**2 + own.factors * M**3)


def _learning_seconds(n: int, d: int, q: int) -> float:
    """Seconds in which bandwidths and alpha are learned from a sample."""
    own, folds = LandmarkCost(), 1 if n >= ROTATE_BELOW else FOLDS
    train = (1 - HELD_OUT) * min(n, BANDWIDTH.max_rows) if folds == 1 else n * (1 - 1 / FOLDS)
    pilots = FOLDS if n < BANDWIDTH.few_rows else 1
    pilot = own.pilot * (min(train, BANDWIDTH.pilot_rows) / BANDWIDTH.pilot_rows) ** 2 * (1 + d / own.columns)
    alphas = own.alphas * min(q, MOST_LEVELS) * (train / own.alpha_rows) * min(1.0, train / BANDWIDTH.n_landmarks) ** 2
    rows, compared = count_pilot_rows(n), own.compared if n >= BANDWIDTH.large else 0.0
    if rows > BANDWIDTH.pilot_rows:
        compared += own.refined * (rows / BANDWIDTH.refined_rows) ** 2.5 * (1 + d / own.columns)
    return (pilots * pilot + folds * alphas + compared) * own.speed / _speed()


@dataclass(frozen=True)
class TabularCost:
    """Constants of the time of a default `TabularQuantileRegressor`, in seconds at `speed`, measured on one core."""

    speed: float = 48.6e9  # of `_speed`, where the others were measured
    pilot_rows: int = 800  # from which bandwidths are learned
    pilot: float = 2.4e-6  # per pair of these rows
    kernel: float = 1e-4  # per row: the normal equations of 1,000 landmarks
    tree_rows: int = 32_000  # more do not make trees larger
    trees: tuple[float, float] = (6e-5, 1.1e-5)  # per row of both forests, and per row and column
    judged_rows: int = 4000
    judging: tuple[float, float, float] = (0.04, 1.5e-4, 2e-5)  # constant, per judged row, per row
    shaped: float = 6e-3  # per row: the kernel with shapes, on all rows and without each of five folds


def estimate_tabular_seconds(n: int, d: int) -> float:
    """Estimate the seconds of a default fit of `TabularQuantileRegressor` on this machine, compilation apart.

    n is the number of rows, d that of encoded columns.
    """
    return sum(estimate_tabular_stages(n, d))


def estimate_tabular_stages(n: int, d: int) -> tuple[float, float, float]:
    """Estimate the seconds of its kernel, of growing its forests, and of weighing and calibrating on held-out rows."""
    own = TabularCost()
    kernel = own.pilot * min(n, own.pilot_rows) ** 2 + own.kernel * n * min(1.0, n / 1000) ** 2
    forests = min(n, own.tree_rows) * (own.trees[0] + own.trees[1] * d)
    judging = own.judging[0] + own.judging[1] * min(n, own.judged_rows) + own.judging[2] * n
    unit = own.speed / _speed()
    return kernel * unit, forests * unit, judging * unit


def estimate_shaped_seconds(n: int) -> float:
    """Estimate the seconds of the kernel of a `TabularQuantileRegressor` with shapes that is fitted to n rows."""
    own = TabularCost()
    return own.shaped * n * own.speed / _speed()


@cache
def _speed() -> float:
    """Floating-point operations per second of a matrix product on one thread, measured in a few milliseconds."""
    A = np.ones((256, 256))
    shortest = np.inf
    for _ in range(4):
        start = time.perf_counter()
        A @ A
        shortest = min(shortest, time.perf_counter() - start)
    return 2 * 256**3 / max(shortest, 1e-6)


def as_duration(seconds: float) -> str:
    """Format seconds for display, to one digit, such as 3 min."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{float(f'{seconds / size:.1g}'):g} {unit}"
    return f"{float(f'{seconds:.1g}'):g} s"
