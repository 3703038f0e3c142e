"""Random nasty problems, each from its seed and number alone, and their fits by the public estimators.

Sizes are log-uniform, n in 2 ... 5,000 and M in 1 ... 2,000, with caps where the certain optimum would take minutes
(`SIZES`). All else is drawn from what breaks solvers: levels 1e-4 ... 0.9999, alpha 1e-12 ... 1e3, weights over many
decades and zero, ties, constant, Cauchy, binary and integer y, offsets to 1e12, scales 1e-12 ... 1e12, collinear,
repeated and badly scaled features, few iterations.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from benchmarks.attack_losses import MARGIN, REGRESSION, LossByHand
from quernel import KernelClassifier, KernelQuantileRegressor, KernelRegressor, losses
from quernel.data import Piece
from quernel.solvers import screening as driver

Array = NDArray[np.floating]


@dataclass(frozen=True)
class Sizes:
    """Ranges of n and M (columns of X with the kernel itself), and the cap on n M min(n, M) q."""

    n: tuple[int, int] = (2, 5000)
    M: tuple[int, int] = (1, 2000)
    work: float = 3e8


# How often each way to solve is drawn, and its sizes. ADMM and the certain optimum of joint and multinomial problems
# couple all columns; the kernel itself needs an 80-bit Gram matrix.
SHARES = {
    "newton": 0.36, "screened": 0.14, "streamed": 0.06, "float32": 0.06, "admm": 0.12, "joint": 0.09,
    "multinomial": 0.08, "exact": 0.09,
}  # fmt: skip
SIZES = {
    "joint": Sizes(n=(2, 400), M=(1, 150), work=4e6),
    "multinomial": Sizes(n=(3, 2000), M=(1, 300), work=2e7),
    "exact": Sizes(n=(2, 300), M=(1, 6)),
    "admm": Sizes(work=1e8),
    "screened": Sizes(n=(100, 5000), M=(1, 300)),
}
MAX_SECONDS = 5.0


@dataclass(frozen=True, eq=False)
class Attack:
    """One problem: what is fitted, how, and to which rows."""

    number: int
    solver: str
    loss: LossByHand
    levels: tuple[float, ...]
    X: Array
    y: Array
    weight: Array | None
    alpha: float
    intercept: bool
    tol: float
    max_iter: int
    bandwidth: float = 1.0
    kernel: str = "linear"
    traits: dict[str, Any] = field(default_factory=dict)

    @property
    def classes(self) -> NDArray[np.intp]:
        """Labels of rows with a positive weight."""
        kept = slice(None) if self.weight is None else self.weight > 0
        return np.unique(self.y[kept])


@dataclass(frozen=True, eq=False)
class Answer:
    """What a user gets: coefficients (M, q), intercepts (q,), F, relative gaps, features if not X, warnings, errors."""

    coef: Array
    intercept: Array
    objective: Array
    gap: Array
    warned: bool
    features: Array | None = None
    error: str = ""
    refused: bool = False
    stopped_by: str | None = None


def draw_attack(seed: int, number: int) -> Attack:
    """Problem `number` of this seed."""
    rng = np.random.default_rng([seed, number])
    solver = str(rng.choice(list(SHARES), p=list(SHARES.values())))
    loss, levels = _draw_loss(rng, solver)
    n, M = _draw_size(rng, solver, len(levels))
    X, x_traits = _draw_features(rng, n, M) if solver != "exact" else (_draw_inputs(rng, n, M), {})
    weight, w_kind = _draw_weight(rng, n)
    if loss.margin:
        y, y_traits = _draw_labels(rng, X, weight, 2 if solver != "multinomial" else int(rng.integers(3, 6))), {}
        if solver != "multinomial" and n > 5 and rng.random() < 0.25:
            y = _draw_labels(rng, X, weight, 3)
    else:
        y, y_traits = _draw_target(rng, X)
    scale = float(np.median(np.abs(y - np.median(y)))) or float(np.abs(y).max()) or 1.0
    if loss.name in ("huber", "epsilon_insensitive", "smoothed_pinball", "logcosh"):
        loss = replace(loss, length=float(scale * 10 ** rng.uniform(-3, 1.5)))
    max_iter = int(rng.integers(1, 30)) if rng.random() < 0.12 else 1000
    return Attack(
        number, solver, loss, levels, X, y, weight,
        alpha=float(10 ** rng.uniform(-12, 3)),
        intercept=bool(rng.random() < 0.7),
        tol=float(rng.choice([1e-6, 1e-3, 1e-8], p=[0.7, 0.15, 0.15])),
        max_iter=max_iter,
        bandwidth=float(10 ** rng.uniform(-1, 1.5)),
        kernel=str(rng.choice(["gaussian", "laplacian"])) if solver == "exact" else "linear",
        traits={**x_traits, **y_traits, "weight": w_kind},
    )  # fmt: skip


def _draw_loss(rng: np.random.Generator, solver: str) -> tuple[LossByHand, tuple[float, ...]]:
    if solver == "multinomial":
        return LossByHand("logistic"), (0.5,)
    if solver == "joint":
        name = "pinball"
    elif solver == "exact" or rng.random() < 0.35:
        name = str(rng.choice(["pinball", "pinball", "huber", "hinge", "logistic", "epsilon_insensitive"]))
    else:
        name = str(rng.choice([*REGRESSION, *MARGIN]))
    width = 0.5 if name == "smoothed_hinge" else 1.0
    if name == "smoothed_hinge":
        width = float(10 ** rng.uniform(-2, 0.5))
    low, high = (2, 5) if solver == "joint" else (1, 4)
    n_levels = int(rng.integers(low, high)) if name == "pinball" else 1
    levels = tuple(sorted({_draw_level(rng) for _ in range(n_levels)}))
    if solver == "joint" and len(levels) < 2:
        levels = (levels[0] / 2, levels[0])
    return LossByHand(name, levels[0], width), levels


def _draw_level(rng: np.random.Generator) -> float:
    kind = rng.integers(3)
    if kind == 0:
        return float(rng.choice([0.1, 0.25, 0.5, 0.75, 0.9]))
    if kind == 1:
        return float(rng.uniform(0.01, 0.99))
    tail = float(10 ** rng.uniform(-4, -1))
    return tail if rng.random() < 0.5 else 1 - tail


def _draw_size(rng: np.random.Generator, solver: str, q: int) -> tuple[int, int]:
    sizes = SIZES.get(solver, Sizes())
    while True:
        n, M = (int(np.exp(rng.uniform(np.log(low), np.log(high + 1)))) for low, high in (sizes.n, sizes.M))
        if solver == "screened" and n < 16 * M:
            continue
        if n * M * min(n, M) * q <= sizes.work:
            return n, M


def _draw_inputs(rng: np.random.Generator, n: int, d: int) -> Array:
    X = rng.uniform(-2, 2, (n, d))
    if rng.random() < 0.3:
        X = X[rng.integers(max(n // 3, 1), size=n)]
    return X


def _draw_features(rng: np.random.Generator, n: int, M: int) -> tuple[Array, dict[str, Any]]:
    kind = str(rng.choice(["normal", "waves", "cauchy", "binary", "integers"], p=[0.3, 0.4, 0.1, 0.1, 0.1]))
    if kind == "waves":
        points = rng.uniform(-1, 1, (n, 3))
        frequencies = rng.standard_normal((3, M)) * 10 ** rng.uniform(-1, 1)
        X = np.sqrt(2 / M) * np.cos(points @ frequencies + rng.uniform(0, 2 * np.pi, M))
    elif kind == "cauchy":
        X = rng.standard_cauchy((n, M))
    elif kind == "binary":
        X = (rng.random((n, M)) < 10 ** rng.uniform(-2, -0.3)).astype(float)
    else:
        X = rng.standard_normal((n, M))
        X = np.round(3 * X) if kind == "integers" else X
    faults = []
    if rng.random() < 0.15:
        faults.append("collinear")
        X = X[:, rng.integers(max(M // 3, 1), size=M)] * rng.choice([1.0, -1.0, 2.0], M)
    if rng.random() < 0.15:
        faults.append("repeated")
        X = X[rng.integers(max(n // int(rng.integers(2, 20)), 1), size=n)]
    if rng.random() < 0.2:
        faults.append("wild scales")
        X = X * 10 ** (rng.uniform(-1, 1, M) * rng.uniform(1, 8))
    if rng.random() < 0.15:
        faults.append("far offsets")
        X = X + (rng.random(M) < 0.5) * 10 ** rng.uniform(1, 10, M)
    if rng.random() < 0.1:
        faults.append("constant column")
        X[:, rng.integers(M)] = rng.choice([0.0, 1.0, 1e6])
    return np.ascontiguousarray(X), {"X": kind, "faults": faults}


def _draw_target(rng: np.random.Generator, X: Array) -> tuple[Array, dict[str, Any]]:
    n = len(X)
    scaled = X / np.maximum(np.abs(X).max(axis=0), 1e-300)
    signal = scaled @ (rng.standard_normal(X.shape[1]) * (rng.random(X.shape[1]) < 0.3)) * 10 ** rng.uniform(-1, 1)
    kind = str(
        rng.choice(
            ["noisy", "exact", "noise", "cauchy", "constant", "binary", "integers", "ties", "spread"],
            p=[0.25, 0.07, 0.1, 0.13, 0.05, 0.1, 0.1, 0.1, 0.1],
        )
    )
    noise = rng.standard_normal(n)
    y = {
        "noisy": signal + noise,
        "exact": signal,
        "noise": noise,
        "cauchy": signal + rng.standard_cauchy(n),
        "constant": np.full(n, rng.normal()),
        "binary": (signal + noise > 0.5).astype(float),
        "integers": rng.poisson(np.exp(np.clip(signal, -2, 3))).astype(float),
        "ties": np.round(signal + noise),
        "spread": signal + noise * np.exp(np.clip(signal, -3, 3)),
    }[kind]
    scale = 1.0 if rng.random() < 0.5 else float(10 ** rng.uniform(-12, 12))
    offset = 0.0 if rng.random() < 0.5 else float(rng.choice([-1, 1]) * 10 ** rng.uniform(0, 12))
    return scale * y + offset, {"y": kind, "scale": scale, "offset": offset}


def _draw_labels(rng: np.random.Generator, X: Array, weight: Array | None, n_classes: int) -> Array:
    """Labels 0 ... K - 1, often separable, often rare, of at least two classes among rows with a weight."""
    scaled = X / np.maximum(np.abs(X).max(axis=0), 1e-300)
    score = scaled @ rng.standard_normal(X.shape[1]) + rng.choice([0.0, 0.3, 3.0]) * rng.standard_normal(len(X))
    cuts = np.quantile(score, np.sort(rng.uniform(0.02, 0.98, n_classes - 1)))
    y = np.searchsorted(cuts, score, side="right").astype(float)
    counting = np.arange(len(y)) if weight is None else np.flatnonzero(weight > 0)
    y[counting[: min(n_classes, len(counting))]] = np.arange(min(n_classes, len(counting)))
    return y


def _draw_weight(rng: np.random.Generator, n: int) -> tuple[Array | None, str]:
    kind = str(rng.choice(["none", "uniform", "zeros", "decades", "huge"], p=[0.5, 0.1, 0.15, 0.15, 0.1]))
    if kind == "none":
        return None, kind
    weight = rng.uniform(0.1, 2, n)
    if kind == "zeros":
        weight = rng.integers(0, 3, n).astype(float)
    elif kind == "decades":
        weight = 10 ** (rng.uniform(-1, 1, n) * rng.uniform(2, 10))
    elif kind == "huge":
        weight[rng.integers(n, size=1 + n // 50)] *= 10 ** rng.uniform(3, 14)
    weight[:3] = np.where(weight[:3] > 0, weight[:3], 1.0)
    return weight, kind


class SmallBlocks:
    """Rows in memory that stream in blocks of 7 to 64 rows, as those of a file do."""

    names = None

    def __init__(self, X: Array, y: Array, weight: Array | None) -> None:
        self._parts = X, y, weight
        self.n_rows, self.n_columns = X.shape
        size = max(7, min(64, len(y) // 5))
        self.spans = [slice(start, min(start + size, len(y))) for start in range(0, len(y), size)]
        self.weighted = weight is not None

    def stream(self, blocks: range, *, X: bool = True) -> Iterator[Piece]:
        features, y, weight = self._parts
        for k in blocks:
            span = self.spans[k]
            yield Piece(features[span] if X else None, y[span], None if weight is None else weight[span])

    def place(self, k: int) -> str:
        return f"block {k}"


def build_estimator(attack: Attack) -> Any:
    """The unfitted estimator of a problem."""
    common = {
        "kernel": attack.kernel, "alpha": attack.alpha, "fit_intercept": attack.intercept, "tol": attack.tol,
        "max_iter": attack.max_iter, "max_seconds": MAX_SECONDS, "random_state": 0,
        "solver": "admm" if attack.solver == "admm" else "newton",
        "dtype": "float32" if attack.solver == "float32" else "float64",
    }  # fmt: skip
    if attack.solver == "exact":
        common |= {"n_components": "exact", "bandwidth": attack.bandwidth}
    loss = attack.loss
    if loss.name == "pinball":
        noncrossing = "joint" if attack.solver == "joint" else "rearrange"
        return KernelQuantileRegressor(list(attack.levels), noncrossing=noncrossing, recalibrate=False, **common)
    params: dict[str, float] = {}
    if loss.name in ("expectile", "smoothed_pinball"):
        params["level" if loss.name == "expectile" else "levels"] = loss.level
    lengths = {"huber": "threshold", "epsilon_insensitive": "epsilon", "logcosh": "scale"}
    if loss.name in lengths or loss.name.startswith("smoothed"):
        params[lengths.get(loss.name, "width")] = loss.length
    made = losses.LOSSES[loss.name](**params)
    if not loss.margin:
        return KernelRegressor(made, **common)
    return KernelClassifier(made, multiclass="multinomial" if attack.solver == "multinomial" else "ovr", **common)


@contextmanager
def _screening_small_problems(wanted: bool) -> Iterator[None]:
    """Context in which problems of any size are screened: the library does so from two million entries on only."""
    before = driver.OPTIONS
    if wanted:
        driver.OPTIONS = replace(before, small=0)
    try:
        yield
    finally:
        driver.OPTIONS = before


def _is_refusal(error: Exception) -> bool:
    """Whether this is a ValueError that the library raised itself: not one of numpy's that it ran into."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return (
        type(error) is ValueError and "quernel" in Path(last.filename).parts and (last.line or "").startswith("raise ")
    )


def solve_attack(attack: Attack) -> Answer:
    """Fit the estimator, and collect all that its user sees."""
    model = build_estimator(attack)
    none = np.zeros((0, 0))
    with warnings.catch_warnings(record=True) as caught, _screening_small_problems(attack.solver == "screened"):
        warnings.simplefilter("always")
        try:
            if attack.solver == "streamed":
                model.fit(SmallBlocks(attack.X, attack.y, attack.weight))
            else:
                model.fit(attack.X, attack.y, sample_weight=attack.weight)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            return Answer(none, none, none, none, False, error=text, refused=_is_refusal(error))
    if model.stopped_by_ == "interrupt":  # Ctrl-C ends a fit; here it is meant for the run
        raise KeyboardInterrupt
    warned = any(issubclass(one.category, ConvergenceWarning) for one in caught)
    features = model.feature_map_.transform(attack.X) if attack.solver == "exact" else None
    return Answer(
        model.coef_,
        model.intercept_,
        model.objective_,
        model.duality_gap_,
        warned,
        features,
        stopped_by=model.stopped_by_,
    )
