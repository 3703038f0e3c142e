"""Checkpoints and warm starts: begin a fit from coefficients that were found before.

A checkpoint file holds one initial point for the solver (`solvers.result.InitialPoint`) and a fingerprint of data and
parameters: an archive of arrays, preceded by `MAGIC` and by the SHA-256 of the archive, so that a damaged file is
refused. The solution is certified by its duality gap whatever the initial point was, so that a wrong file could cost
time but not accuracy: the fingerprint only keeps users from mixing up files.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from quernel._files import follow_link, write_atomically
from quernel.estimators.inputs import FitData
from quernel.losses import Loss
from quernel.solvers import Result
from quernel.solvers.result import InitialPoint
from quernel.tuning.data_summary import DataSummary
from quernel.tuning.plan import FitPlan

# Version of the file format: raise it when an older quernel would misread the new files.
FORMAT = 2
# First bytes of a checkpoint file.
MAGIC = b"quernel checkpoint\n"
# Relative tolerance of numbers in fingerprints: the same rows, summed in other blocks, differ by rounding.
ROUNDING = 1e-9
# Parameters left out of the fingerprint: they change how far or how fast a fit goes, not its solution.
NOT_COMPARED = (
    *("max_iter", "max_seconds", "max_memory", "verbose", "tol", "warm_start", "recalibrate"),
    *("inference", "tails", "tail_level"),
)


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


def check_checkpoint(estimator: Any, path: Any) -> None:
    """Validate `checkpoint` before any work: a writable path, and a fit that can be resumed and repeated."""
    if path is None:
        return
    if not isinstance(path, str | os.PathLike):
        raise ValueError(f"checkpoint must be the path of a file, or None; got {path!r}.")
    if not Path(path).parent.is_dir() or Path(path).is_dir():
        raise ValueError(f"checkpoint={os.fspath(path)!r} is a folder, or in a folder that is missing. Give a file.")
    if isinstance(estimator.random_state, bool) or not isinstance(estimator.random_state, int | np.integer):
        raise ValueError(
            "A fit can resume from a checkpoint only with the same random features: checkpoint needs an integer as "
            f"random_state; got {estimator.random_state!r}."
        )
    for what, instead in estimator._restrictions("warm_starts"):
        raise ValueError(f"checkpoint is not for {what}, which cannot resume. Use {instead}, or leave it out.")


def fingerprint(estimator: Any, data: FitData, plan: FitPlan, feature_map: Any) -> dict[str, Any]:
    """Identify a fit by its data (numbers of rows and columns, ranges, means) and by its parameters.

    The keys appear in the error message that lists how two fits differ. Data are described by statistics of all rows
    that are the same, up to rounding, in memory and out of core: `max_memory` may change between two fits.
    """
    summary = data.summary
    target = summary.target_moments
    settings = {
        name: _format_param(value)
        for name, value in estimator.get_params(deep=False).items()
        if name not in NOT_COMPARED
    }
    return {
        "number of rows": summary.n_rows,
        "number of columns": summary.n_columns,
        "names of columns": [] if data.names is None else [str(name) for name in data.names],
        "inputs": np.vstack([summary.range, summary.mean]).T.tolist(),
        "target": np.vstack([target.range, target.mean]).T.tolist(),
        "alpha_": _floats(plan.alpha),
        "features": [feature_map.n_components_, [] if plan.bandwidth is None else _floats(plan.bandwidth)],
        **settings,
    }


def _agree(known: Any, value: Any) -> bool:
    """Whether two entries of fingerprints are equal; lists of numbers up to rounding, relative to their largest."""
    if not isinstance(value, list) or not isinstance(known, list) or len(known) != len(value):
        return bool(known == value)
    if not all(isinstance(one, float) for one in [*known, *value]):
        return all(map(_agree, known, value))
    return np.allclose(known, value, rtol=0, atol=ROUNDING * np.max(np.abs(value), initial=0))


def _floats(values: Any) -> list[float]:
    """Numbers as a list that JSON can hold."""
    return [float(value) for value in np.ravel(values)]


def _format_digits(values: Any) -> list[str]:
    """Numbers as text, to nine digits."""
    return [f"{value:.9g}" for value in np.ravel(values)]


def _format_param(value: Any) -> str:
    """A parameter as text; numbers and arrays of numbers to nine digits, anything else by its repr."""
    if isinstance(value, np.ndarray | list | tuple | float) and np.asarray(value).dtype.kind in "fi":
        return ", ".join(_format_digits(value))
    return repr(value)


@dataclass(frozen=True, eq=False)
class WarmStart:
    """Where a fit begins: from the last fit of the same estimator, from a checkpoint, or from scratch.

    Attributes
    ----------
    plan : FitPlan or None
        That of the last fit, kept but for alpha where a number is given now; None makes a new one.
    feature_map : fitted feature map of the last fit, or None
    initial : InitialPoint or None
        Solution of the last fit.
    path : path or None
        Checkpoint file given to `fit`; a point read from it takes precedence over `initial`.
    """

    plan: FitPlan | None = None
    feature_map: Any = None
    initial: InitialPoint | None = None
    path: Any = None

    @classmethod
    def from_model(cls, model: Any, summary: DataSummary, loss: Loss, path: Any) -> WarmStart:
        """Warm start of a model that is about to be fitted to the summarised data."""
        if not can_warm_start(model, summary.n_columns, loss.n_columns):
            return cls(path=path)
        plan: FitPlan = model.plan_
        if model.alpha != "auto" and plan.alpha != (alpha := model._initial_alpha(summary, loss)):
            plan = replace(plan, alpha=alpha, alpha_reason="given", alpha_choice=None)
        initial = InitialPoint(model.coef_, model.intercept_, model._n_rows, model._parameters or len(model.coef_))
        return cls(plan, model.feature_map_, initial, path)

    def open_checkpoint(self, model: Any, data: FitData, plan: FitPlan, feature_map: Any) -> Checkpoint | None:
        """The checkpoint of this fit, if a path was given; the features are part of its fingerprint."""
        return None if self.path is None else Checkpoint(self.path, fingerprint(model, data, plan, feature_map))

    def solver_kwargs(self, checkpoint: Checkpoint | None) -> dict[str, Any]:
        """Keyword arguments for the solver: the initial point, and a callback that writes the checkpoint."""
        if checkpoint is not None:
            return {"initial": checkpoint.read() or self.initial, "callback": checkpoint.write}
        return {} if self.initial is None else {"initial": self.initial}

    def remove_checkpoint(self) -> None:
        """Delete the checkpoint file of a fit that is done; one that was stopped may resume from it."""
        if self.path is not None:
            follow_link(Path(self.path)).unlink(missing_ok=True)


def warm_start_state(model: Any, summary: DataSummary, result: Result) -> dict[str, Any]:
    """Private attributes of a fitted model that a later warm start needs."""
    return {
        "_fitted_as": _settings(model, summary.n_columns, result.coef.shape[1]),
        "_n_rows": summary.n_rows,
        "_parameters": float(result.parameters),
    }


def can_warm_start(model: Any, n_columns: int, n_fits: int) -> bool:
    """Whether the next fit starts from the last one: `warm_start`, and nothing that the features depend on changed."""
    if not model.warm_start or not hasattr(model, "coef_"):
        return False
    return getattr(model, "_fitted_as", None) == _settings(model, n_columns, n_fits)


def _settings(model: Any, n_columns: int, n_fits: int) -> str:
    """All that the feature map and the shape of the coefficients depend on, as text."""
    return repr((model.kernel, model.bandwidth, model.n_components, model.sampling, n_columns, n_fits))
