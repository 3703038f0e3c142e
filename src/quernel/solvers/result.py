"""What a solver begins with and returns, and the record of its best certified iterate.

A checkpoint file holds one initial point and a fingerprint of the fit: an archive of arrays, preceded by `MAGIC` and by
the SHA-256 of the archive, so that a damaged file is refused.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel._files import write_atomically
from quernel.data import RowStateLike
from quernel.objective import Problem
from quernel.objective.duality_gap import (
    Certificate,
    NullModel,
    certify,
    certify_gradient,
    full_gradient,
    null_model,
    relative,
)
from quernel.solvers.progress import Progress, report, stop_requested

Array = NDArray[np.floating]

# Version of the file format: raise it when an older quernel would misread the new files.
FORMAT = 2
# First bytes of a checkpoint file.
MAGIC = b"quernel checkpoint\n"
# Relative tolerance of numbers in fingerprints: the same rows, summed in other blocks, differ by rounding.
ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class InitialPoint:
    """A warm start: a fit, and what its distance from the solution can be estimated from.

    Attributes
    ----------
    coef, intercept : arrays of shape (M, q) and (q,)
    n_rows : int
        Rows to which it was fitted.
    parameters : float
        Effective degrees of freedom of the fit.
    band : array of shape (q,) or None
        Distance from a kink within which rows are active, where that is known better than from `n_rows`.
    solved : bool
        Whether it may be the solution already, and only needs a certificate; e.g. that of nearly the same features.
    """

    coef: Array
    intercept: Array
    n_rows: int
    parameters: float
    band: Array | None = None
    solved: bool = False

    @classmethod
    def solution(cls, coef: Array, intercept: Array, n_rows: int, parameters: float, tol: float) -> InitialPoint:
        """A point whose F is within a share `tol` of the minimum.

        That is about the error of a fit to `parameters / tol` rows, which stands for `n_rows` where it is larger.
        """
        return cls(coef, intercept, max(n_rows, int(parameters / tol)), parameters, solved=True)


class Checkpoint:
    """Checkpoint file at `path` of the fit with this fingerprint (a JSON-serialisable dict)."""

    def __init__(self, path: str | os.PathLike[str], fingerprint: dict[str, Any]) -> None:
        self.path, self.fingerprint = Path(path), fingerprint

    def read(self) -> InitialPoint | None:
        """Load the initial point, or None if there is no file; ValueError if the file belongs to another fit."""
        if not self.path.exists():
            return None
        guess, header = read_checkpoint(self.path)
        known, written_by = header["fingerprint"], header["format"]
        if written_by != FORMAT:
            raise ValueError(f"{self.path} has format {written_by}, and this quernel writes {FORMAT}. Remove the file.")
        other = [name for name, value in self.fingerprint.items() if not _agree(known.get(name), value)]
        if other:
            raise ValueError(
                f"{self.path} is a checkpoint of another fit: it differs in {', '.join(other)}. Give another path, or "
                "remove the file to start afresh."
            )
        return guess

    def write(self, guess: InitialPoint) -> None:
        """Replace the file atomically: a reader finds the old file or the new one, never a partial one."""
        header = {
            "format": FORMAT,
            "fingerprint": self.fingerprint,
            "n_rows": guess.n_rows,
            "parameters": guess.parameters,
        }
        archive = io.BytesIO()
        np.savez(
            archive, header=json.dumps(header), coef=guess.coef, intercept=guess.intercept,
            band=np.empty(0) if guess.band is None else guess.band,
        )  # fmt: skip
        content = archive.getvalue()
        with write_atomically(self.path, overwrite=True) as part:
            part.write_bytes(MAGIC + hashlib.sha256(content).digest() + content)


def read_checkpoint(path: Path) -> tuple[InitialPoint, dict[str, Any]]:
    """Read a checkpoint file: the initial point, and a dict with `fingerprint` and `format`; ValueError if invalid."""
    try:
        content = path.read_bytes()
        start = len(MAGIC) + hashlib.sha256().digest_size
        if content[:start] != MAGIC + hashlib.sha256(content[start:]).digest():
            raise ValueError("The checksum differs.")
        with np.load(io.BytesIO(content[start:]), allow_pickle=False) as file:
            header = json.loads(str(file["header"]))
            band = file["band"] if len(file["band"]) else None
            guess = InitialPoint(
                file["coef"], file["intercept"], int(header["n_rows"]), float(header["parameters"]), band
            )
            return guess, {"fingerprint": dict(header["fingerprint"]), "format": int(header["format"])}
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path} is not a checkpoint of a fit, or it is damaged. Give another path, or remove the file."
        ) from error


def _agree(known: object, value: object) -> bool:
    """Whether two entries of fingerprints are equal; lists of numbers up to rounding, relative to their largest."""
    if not isinstance(value, list) or not isinstance(known, list) or len(known) != len(value):
        return bool(known == value)
    if not all(isinstance(one, float) for one in [*known, *value]):
        return all(map(_agree, known, value))
    return np.allclose(known, value, rtol=0, atol=ROUNDING * np.max(np.abs(value), initial=0))


# copy_duals(columns, out, places): see `BestIterate.record`.
CopyDuals = Callable[[NDArray[np.intp], Array, NDArray[np.intp]], None]
# Called with intermediate fits from which a solve can be continued.
Callback = Callable[[InitialPoint], None]


@dataclass(frozen=True)
class Limits:
    """When a solve ends: at a relative duality gap of `tol`, or after `max_iter` iterations of each column."""

    tol: float
    max_iter: int


class Status(Enum):
    """How a column's solve ended."""

    CONVERGED = "converged"
    ITERATION_LIMIT = "iteration limit"
    STOPPED = "stopped"


@dataclass(frozen=True, eq=False)
class Result:
    """The fits of q columns, with their certificates and the work done.

    Attributes
    ----------
    coef, intercept : arrays of shape (M, q) and (q,)
    dual : array of shape (n, q)
        Duals that prove the gap; (0, q) out of core, where they stay with the rows.
    objective, gap, relative_gap : arrays of shape (q,)
        F, a bound gap >= F - min F, and the gap relative to max(F, F0 / 1000).
    null_objective : array of shape (q,)
        F0, the objective of the best constant.
    status : tuple of Status
        One per column.
    iterations : array of shape (q,)
        Newton steps or rounds of ADMM.
    sweeps : float
        Passes over the features of all rows.
    hessian_rows : int
        Rows summed into Hessians.
    active_rows : tuple of int
        Active rows of each column in the last stage of screening; empty where nothing was screened.
    parameters : float
        Effective degrees of freedom of the fits; 0 if unknown.
    """

    coef: Array
    intercept: Array
    dual: Array
    objective: Array
    gap: Array
    relative_gap: Array
    null_objective: Array
    status: tuple[Status, ...]
    iterations: NDArray[np.intp]
    sweeps: float
    hessian_rows: int
    active_rows: tuple[int, ...] = ()
    parameters: float = 0.0

    def take(self, columns: NDArray[np.intp]) -> Result:
        """The fits of some of the columns; the work remains that of all."""
        arrays = ("coef", "intercept", "dual", "objective", "gap", "relative_gap", "null_objective", "iterations")
        some = {name: getattr(self, name)[..., columns] for name in arrays}
        return replace(self, status=tuple(self.status[k] for k in columns), **some)

    @property
    def converged(self) -> bool:
        """Whether every column reached its tolerance."""
        return all(status is Status.CONVERGED for status in self.status)


@dataclass(frozen=True)
class Solver:
    """A solver, called like a function, and what it can do: ask this before the first pass, not for its name.

    Attributes
    ----------
    solve : callable
        solve(problem, *, tol, max_iter) -> Result, with further arguments for what it can do.
    warm_starts : bool
        Whether it takes `initial`, an `InitialPoint`, and hands intermediate ones to `callback`.
    out_of_core : bool
        Whether it makes passes over row blocks, wherever they are; if not, all features must be one array in memory.
    float32 : bool
        Whether it works on float32 features.
    polishes : bool
        Whether it continues small problems below `tol` down to rounding error, unless `polish=False`.
    second_order : bool
        Whether it takes Newton steps on active rows: few passes over the rows, each level with Hessians of its own. If
        not, its cost is that of hundreds of passes after one factorization (`tuning.cost`).
    """

    solve: Callable[..., Result]
    warm_starts: bool = False
    out_of_core: bool = False
    float32: bool = False
    polishes: bool = False
    second_order: bool = False

    def __call__(
        self,
        problem: Problem,
        *,
        tol: float = 1e-6,
        max_iter: int = 1000,
        initial: InitialPoint | None = None,
        callback: Callback | None = None,
        polish: bool = True,
        **options: Any,
    ) -> Result:
        """Minimise F for every column to a relative duality gap of at most `tol`.

        `initial`, `callback` and `polish` save work or digits only: solvers that cannot use them go without.
        """
        if self.warm_starts:
            options |= {"initial": initial, "callback": callback}
        if self.polishes:
            options |= {"polish": polish}
        return self.solve(problem, tol=tol, max_iter=max_iter, **options)


def statuses(relative_gap: Array, tol: float) -> tuple[Status, ...]:
    """Converged where the relative gap is at most `tol`."""
    otherwise = Status.STOPPED if stop_requested() else Status.ITERATION_LIMIT
    return tuple(Status.CONVERGED if gap <= tol else otherwise for gap in relative_gap)


def or_null(result: Result, constant: Array, tol: float) -> Result:
    """The result or, in columns where it is better, the null model, with the constants of all outputs.

    Any certificate bounds min F from below by  F - gap,  and duals of zero by 0, since losses are not negative; the
    better bound is kept.
    """
    null = result.null_objective
    known = np.isfinite(result.objective) & np.isfinite(result.gap)
    worse = ~(result.objective <= null)
    objective = np.where(worse, null, result.objective)
    proved = np.where(known, result.gap - np.where(known, result.objective - objective, 0), np.inf)
    no_bound = ~(proved <= objective)
    gap = np.where(no_bound, objective, np.maximum(proved, np.finfo(float).eps * objective))
    rel = relative(gap, objective, null)
    return replace(
        result,
        coef=np.where(worse, 0.0, result.coef),
        intercept=np.where(worse, constant, result.intercept),
        dual=np.where(no_bound, 0.0, result.dual),
        objective=objective,
        gap=gap,
        relative_gap=rel,
        status=statuses(rel, tol),
    )


def recertify(problem: Problem, result: Result, tol: float, null: NullModel | None = None) -> Result:
    """The same fits and duals, with their duality gap in this problem; its null model where that is better."""
    state, null = problem.rows.new_state(anchor=result.dual), null or null_model(problem)
    problem.set_coefficients(state, result.coef, result.intercept)
    known = certify(problem, state, result.coef, result.intercept, null)
    sweeps = result.sweeps + state.sweeps
    found = replace(result, objective=known.objective, gap=known.gap, null_objective=null.objective, sweeps=sweeps)
    return or_null(found, null.constant, tol)


def certify_point(problem: Problem, coef: Array, intercept: Array, null: NullModel, tol: float) -> Result:
    """A fit as a result, certified with the slopes of the loss as duals, in one pass over the rows."""
    state, best = problem.rows.new_state(), BestIterate(problem, null, tol)
    intercept = problem.round_intercept(coef, intercept)
    gradient = full_gradient(problem, state, coef, intercept)
    found = certify_gradient(problem, state, gradient, coef, intercept, null)
    best.update(np.arange(problem.n_columns), coef, intercept, state, found, 0)
    return replace(best.result(), sweeps=state.sweeps)


def after(first: Result | None, then: Result) -> Result:
    """The later result, with the work of both added up."""
    if first is None:
        return then
    return replace(
        then,
        iterations=then.iterations + first.iterations,
        sweeps=then.sweeps + first.sweeps,
        hessian_rows=then.hessian_rows + first.hessian_rows,
    )


class BestIterate:
    """The lowest objective and the highest lower bound of every column so far; at first those of the null model.

    The bound need not be that of the fit: duals of one iterate prove  min F >= F - gap  whatever the coefficients, so
    that the gap of the lowest F is its distance from the highest bound. No fit is ever worse than the null model,
    unless `from_null` is False: then the first certificate is taken, whatever it is.
    """

    def __init__(self, problem: Problem, null: NullModel, tol: float, *, from_null: bool = True) -> None:
        q = problem.n_columns
        self.tol = tol
        self.null = null
        self.coef = np.zeros((problem.rows.n_features, q))
        self.intercept = null.constant.copy()
        self.dual = np.zeros((problem.rows.n_duals, q), order="F")
        # Losses are not negative, so that duals of zero bound min F by 0. A problem with screened rows is only a model
        # of F, of which the null model says nothing.
        self.is_null = np.full(q, from_null and problem.screened is None)
        self.objective = np.where(self.is_null, null.objective, np.inf)
        self.error = np.where(self.is_null, null.error, 0.0)
        self.gap = self.objective + self.error
        self.relative_gap = self._relative()
        self.iterations = np.zeros(q, dtype=np.intp)
        self.sweeps = 0.0
        self.hessian_rows = 0

    def _relative(self) -> Array:
        """The gap relative to max(F, F0 / 1000), (q,)."""
        with np.errstate(invalid="ignore"):  # inf / inf before the first certificate
            rel = relative(self.gap, self.objective, self.null.objective)
        return np.where(np.isnan(rel), np.inf, rel)

    def record(
        self, index: NDArray[np.intp], fit: tuple[Array, Array], certificate: Certificate, copy_duals: CopyDuals
    ) -> NDArray[np.bool_]:
        """Record a certified fit (coef, intercept) of the columns `index`; returns where F or its bound has improved.

        copy_duals(columns, out, places) copies the duals of the fit: those at the positions `columns` of `index` to
        the columns `places` of `out` (n, q).
        """
        (coef, intercept), objective, gap = fit, certificate.objective, certificate.gap
        known, errors = self.objective[index], self.error[index] + certificate.error
        # Lower than the null model beyond doubt; among other fits rounding may decide.
        lower = np.where(self.is_null[index], objective + errors < known, objective < known)
        least = np.where(lower, objective, known)
        with np.errstate(invalid="ignore"):  # inf - inf
            before = np.where(lower, self.gap[index] - (known - objective) + errors, self.gap[index])
            proved = np.where(lower, gap, gap - (objective - known) + errors)
        tighter = proved < np.where(np.isnan(before), np.inf, before)
        place = index[lower]
        self.coef[:, place], self.intercept[place] = coef[:, lower], intercept[lower]
        copy_duals(np.flatnonzero(tighter), self.dual, index[tighter])
        smallest = np.where(tighter, proved, np.where(np.isnan(before), np.inf, before))
        self.objective[index] = least
        self.error[index] = np.where(lower, certificate.error, self.error[index])
        self.gap[index] = np.maximum(smallest, self.error[index])
        self.is_null[index] &= ~lower
        self.relative_gap = self._relative()
        return lower | tighter

    def update(
        self,
        index: NDArray[np.intp],
        coef: Array,
        intercept: Array,
        state: RowStateLike,
        certificate: Certificate,
        iteration: int,
    ) -> None:
        """Record a fit of the columns `index` that was certified with the multipliers of `state`."""
        before = np.max(self.relative_gap)
        self.record(index, (coef, intercept), certificate, partial(state.copy_columns, "anchor"))
        self.iterations[index] = iteration
        if (now := float(np.max(self.relative_gap))) < before or iteration == 0:
            report(Progress(iteration, len(index), now))

    def result(self) -> Result:
        """The result so far."""
        rel = self.relative_gap
        return Result(
            self.coef, self.intercept, self.dual, self.objective, self.gap, rel, self.null.objective,
            statuses(rel, self.tol), self.iterations, self.sweeps, self.hessian_rows,
        )  # fmt: skip
