"""Where a fit begins: anew, from the model's last fit (`warm_start`), or from a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from quernel.estimators.checkpoint import Checkpoint, fingerprint
from quernel.estimators.overview import Overview
from quernel.losses import Loss
from quernel.solvers import Result
from quernel.solvers.guess import Guess


@dataclass
class Beginning:
    """What an earlier fit left: `again` says that its features are used, `guess` is its solution."""

    again: bool
    guess: Guess | None
    path: Any
    checkpoint: Checkpoint | None = None

    @classmethod
    def of(cls, model: Any, view: Overview, loss: Loss, path: Any) -> Beginning:
        """For a fit of this model to these rows."""
        if not continues(model, view.n_columns, loss.n_columns):
            return cls(False, None, path)
        guess = Guess(model.coef_, model.intercept_, model._n_rows, model._parameters or len(model.coef_))
        return cls(True, guess, path)

    def words(self, model: Any, view: Overview) -> dict[str, Any]:
        """What the solver is told of it, once the features are known."""
        if self.path is None:
            return {} if self.guess is None else {"guess": self.guess}
        self.checkpoint = Checkpoint(self.path, fingerprint(model, view))
        return {"guess": self.checkpoint.read() or self.guess, "keep": self.checkpoint.write}

    def finish(self, model: Any, view: Overview, result: Result) -> None:
        """Remember what the next fit may begin from."""
        model._fitted_as = _settings(model, view.n_columns, result.coef.shape[1])
        model._n_rows, model._parameters = view.n_rows, float(result.parameters)
        if self.checkpoint is not None:
            self.checkpoint.remove()


def continues(model: Any, n_columns: int, n_fits: int) -> bool:
    """Whether a fit goes on from the model's last one: `warm_start`, and nothing changed that features depend on."""
    if not model.warm_start or not hasattr(model, "coef_"):
        return False
    return getattr(model, "_fitted_as", None) == _settings(model, n_columns, n_fits)


def _settings(model: Any, n_columns: int, n_fits: int) -> str:
    return repr((model.kernel, model.bandwidth, model.n_components, model.sampling, n_columns, n_fits))
