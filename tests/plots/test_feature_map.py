"""The map of Figure 1 equals the formulas."""

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from quernel.plots import exponent_grid, feature_map, save_figure

FORMULAS = {
    ("agnostic", "uniform"): lambda r, g: 1 / (2 * r + g),
    ("agnostic", "leverage"): lambda r, g: g / (2 * r + g),
    ("realizable", "uniform"): lambda r, g: ((2 * r - 1) * g + 1) / (2 * r + g),
    ("realizable", "leverage"): lambda r, g: (2 * r + g - 1) / (2 * r + g),
}


@pytest.mark.parametrize(("case", "sampling"), FORMULAS)
def test_the_grid_equals_the_formula_where_there_is_a_theorem(case, sampling):
    r, gamma, c = exponent_grid(case, sampling)
    assert (r[0], r[-1]) == ((0, 0.5) if case == "agnostic" else (0.5, 1))
    R, G = np.meshgrid(r, gamma)
    silent = (2 * R + G < 1 - 1e-9) | (R == 0)
    assert np.isnan(c[silent]).all()
    np.testing.assert_allclose(c[~silent], FORMULAS[case, sampling](R[~silent], G[~silent]), atol=1e-13)
    assert silent.any() == (case == "agnostic")


def test_what_is_drawn_is_the_grid(tmp_path):
    figure = feature_map((0.6, 0.5))
    panels = figure.axes[:4]
    for ax, (case, sampling) in zip(panels, FORMULAS, strict=True):
        drawn = np.ma.filled(ax.collections[0].get_array(), np.nan).reshape(241, 241)
        np.testing.assert_array_equal(drawn, exponent_grid(case, sampling)[2])
        assert ax.get_title(loc="left") == f"{case.capitalize()}, {sampling} sampling"
        assert len(ax.lines) == (case == "realizable")  # the marked point, where it belongs
    assert save_figure(figure, tmp_path / "map.png").stat().st_size > 20_000


def test_unknown_cases_are_refused():
    with pytest.raises(ValueError, match="case must be one of"):
        exponent_grid("hopeless", "uniform")
