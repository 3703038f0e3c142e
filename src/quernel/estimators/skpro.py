"""Estimators of quantiles as probabilistic regressors of skpro; needs ``pip install "quernel[skpro]"``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from sklearn.base import clone

from quernel.estimators.quantile import KernelQuantileRegressor
from quernel.estimators.tabular import TabularQuantileRegressor

try:
    from skpro.distributions import QPD_Empirical
    from skpro.regression.base import BaseProbaRegressor
except ImportError as error:
    raise ImportError('quernel.estimators.skpro needs skpro: pip install "quernel[skpro]".') from error

if TYPE_CHECKING:
    import pandas as pd

# Outermost levels of the distributions of a model that predicts any level, and how many levels they have.
OUTERMOST, N_LEVELS = (0.005, 0.995), 99


class SkproQuantileRegressor(BaseProbaRegressor):
    """A quantile regressor of quernel with the interface of skpro, for its pipelines, searches and metrics.

    `predict_quantiles` and `predict_interval` are those of the estimator. `predict_proba` is the discrete distribution
    of 99 quantiles at evenly spaced levels, and `predict` its mean.

    Parameters
    ----------
    estimator : TabularQuantileRegressor, KernelQuantileRegressor or None, default=None
        None is a `TabularQuantileRegressor`, which predicts any level. A kernel predicts levels between the outermost
        of its `quantiles`: fit such as ``quantiles=[0.01, 0.1, 0.5, 0.9, 0.99]``.

    Attributes
    ----------
    estimator_ : the fitted estimator

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from quernel import KernelQuantileRegressor
    >>> from quernel.estimators.skpro import SkproQuantileRegressor
    >>> x = pd.DataFrame({"x": np.linspace(0, 1, 100)})
    >>> kernel = KernelQuantileRegressor([0.01, 0.5, 0.99], n_components=20, random_state=0)
    >>> model = SkproQuantileRegressor(kernel).fit(x, x["x"] ** 2)
    >>> model.predict_interval(x, coverage=0.9).shape
    (100, 2)
    """

    _tags: ClassVar[dict[str, Any]] = {
        "capability:missing": True,
        "capability:multioutput": False,
        "X_inner_mtype": "pd_DataFrame_Table",
        "y_inner_mtype": "pd_DataFrame_Table",
    }

    def __init__(self, estimator: Any = None) -> None:
        self.estimator = estimator
        super().__init__()

    def _fit(self, X: pd.DataFrame, y: pd.DataFrame) -> SkproQuantileRegressor:
        model = TabularQuantileRegressor(random_state=0) if self.estimator is None else clone(self.estimator)
        self.estimator_ = model.fit(_name_by_text(X), y.iloc[:, 0])
        self._target = y.columns
        return self

    def _predict_quantiles(self, X: pd.DataFrame, alpha: list[float]) -> pd.DataFrame:
        """Quantiles of the rows, with a column (target, level) for each level."""
        import pandas as pd

        curves = self.estimator_.predict(_name_by_text(X), quantiles=np.asarray(alpha, dtype=float))
        return pd.DataFrame(curves, X.index, pd.MultiIndex.from_product([self._target, alpha]))

    def _predict_proba(self, X: pd.DataFrame) -> QPD_Empirical:
        ends = OUTERMOST
        if isinstance(self.estimator_, KernelQuantileRegressor):
            ends = min(self.estimator_.quantiles_), max(self.estimator_.quantiles_)
        curves = self._predict_quantiles(X, np.unique(np.linspace(*ends, N_LEVELS)).tolist())
        by_level = curves.T.droplevel(0).stack().to_frame(self._target[0])  # rows are (level, row of X)
        return QPD_Empirical(by_level, index=X.index, columns=self._target)

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:  # noqa: ARG003
        """Return the parameters with which skpro's tests try this class."""
        kernel = KernelQuantileRegressor(
            [0.01, 0.1, 0.5, 0.9, 0.99], bandwidth="auto", n_components=20, alpha=1e-2, random_state=0
        )
        return [{"estimator": kernel}, {}]


def _name_by_text(X: pd.DataFrame) -> pd.DataFrame:
    """Return a frame whose column names are text: skpro allows others, scikit-learn no mixture of them."""
    return X.set_axis(X.columns.astype(str), axis=1)
