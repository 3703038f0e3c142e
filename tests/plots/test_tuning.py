"""Pictures of tuning show what the model holds."""

import numpy as np
import pandas as pd
import pytest

from quernel import KernelQuantileRegressor, KernelQuantileRegressorCV
from quernel.plots import ImportanceDisplay, PathDisplay
from support.models import plain_regressor


@pytest.fixture(scope="module")
def searched():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.uniform(0, 1, (80, 2)), columns=["wind", "noise"])
    y = np.sin(5 * X["wind"]) + 0.1 * rng.standard_normal(80)
    settings = {"n_components": 40, "random_state": 0, "bandwidths": "learned", "cv": 3}
    return KernelQuantileRegressorCV(0.5, alphas=[1e-3, 1e-5, 1e-4], **settings).fit(X, y)


def test_the_path_is_that_of_the_search(searched):
    path = PathDisplay.compute(searched)
    assert path.losses.shape == (3, 3)
    assert path.losses[path.chosen] == -searched.best_score_ == path.losses.min()
    assert path.alphas[path.chosen[1]] == searched.alpha_
    ax = PathDisplay.from_estimator(searched).ax_
    chosen = ax.lines[-1]
    assert (chosen.get_xdata()[0], chosen.get_ydata()[0]) == (searched.alpha_, -searched.best_score_)
    assert ax.get_xscale() == "log"
    assert len(ax.lines) == 4  # three bandwidths and the dot
    assert "± one standard error" in [text.get_text() for text in ax.get_legend().get_texts()]


def test_importance_orders_columns_by_name(searched):
    ax = ImportanceDisplay.from_estimator(searched).ax_
    assert [label.get_text() for label in ax.get_yticklabels()] == ["noise", "wind"]
    widths = [bar.get_width() for bar in ax.patches]
    assert widths[1] == 1
    assert widths[0] < 0.5


def test_importance_and_choice_measure_a_flag_by_its_distance():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.random(300) < 0.1, rng.standard_normal(300)]).astype(float)
    y = 3 * X[:, 0] + X[:, 1] + 0.1 * rng.standard_normal(300)
    model = KernelQuantileRegressor(n_components=40, bandwidth="learned", random_state=0).fit(X, y)
    shown = ImportanceDisplay.from_estimator(model)
    expected = np.array([1.0, X[:, 1].std()]) / model.bandwidth_
    np.testing.assert_allclose(shown.importance, expected / expected.max(), rtol=1e-9)
    assert "standard deviation" not in shown.ax_.get_xlabel()
    assert "of two values: their distance" in str(model.bandwidth_choice_)


def test_models_without_these_are_refused():
    X, y = np.random.default_rng(0).random((50, 2)), np.arange(50.0)
    model = plain_regressor(n_components=20, random_state=0).fit(X, y)
    with pytest.raises(ValueError, match="has no path of ridge weights"):
        PathDisplay.from_estimator(model)
    with pytest.raises(ValueError, match="no learned bandwidths"):
        ImportanceDisplay.from_estimator(model)
