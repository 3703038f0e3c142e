"""Compiled block functions of two-piece losses give what the array operations give."""

import numpy as np
import pytest

from quernel.data import ArrayRows, InMemoryDesign
from quernel.losses import LOSSES, Absolute, Hinge, Pinball
from quernel.objective import Problem, blocks

N, M = 3000, 7
TWO_PIECE = {"pinball": Pinball([0.1, 0.5, 0.97]), "absolute": Absolute(n_columns=2), "hinge": Hinge(n_columns=2)}


def make(loss, weighted):
    rng = np.random.default_rng(0)
    Phi, y = rng.normal(size=(N, M)), rng.normal(size=N)
    if loss.margin:
        y = np.where(rng.random((N, loss.n_columns)) < 0.5, -1.0, 1.0)
    weight = rng.integers(0, 3, N).astype(float) if weighted else None
    problem = Problem(InMemoryDesign(ArrayRows(Phi, y, weight), features=Phi), loss, 1e-3)
    low, high = loss.domain
    anchor = np.asfortranarray(rng.uniform(low, high, (N, loss.n_columns)))
    anchor[::3] = np.where(rng.random(anchor[::3].shape) < 0.5, low, high)
    state = problem.rows.new_state(anchor=anchor)
    problem.set_coefficients(state, rng.normal(size=(M, loss.n_columns)), rng.normal(size=loss.n_columns))
    problem.set_direction(state, rng.normal(size=(M, loss.n_columns)), rng.normal(size=loss.n_columns))
    return problem, state, rng.uniform(0.1, 1, loss.n_columns)


def steps(problem, state, width):
    """All that a solver reads of the rows, twice, with a step in between."""
    seen = []
    for share_of_step in (0.01, 0.5):
        sums = problem.smoothed_gradient(state, width)
        seen += [
            sums.phi_t_dual,
            sums.mean_dual,
            sums.positive,
            sums.negative,
            sums.loss,
            sums.fenchel_gap,
            sums.active,
        ]
        seen += problem.eval_along_direction(state, width, np.full(len(width), share_of_step))
        for anchored in (np.zeros(len(width), bool), np.ones(len(width), bool)):
            for few in (np.zeros(len(width), bool), np.ones(len(width), bool)):
                for curvature in problem.curvature(state, width, few, anchored):
                    seen += [curvature.surplus, curvature.rows, curvature.h, curvature.gram, curvature.cross]
        problem.step(state, np.full(len(width), share_of_step))
    return [part for part in seen if part is not None]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", TWO_PIECE)
def test_compiled_steps_are_the_plain_ones(name, weighted, monkeypatch):
    monkeypatch.setattr(blocks, "COMPILED_ROWS", N + 1)
    plain = steps(*make(TWO_PIECE[name], weighted))
    monkeypatch.setattr(blocks, "COMPILED_ROWS", 0)
    compiled = steps(*make(TWO_PIECE[name], weighted))
    assert len(plain) == len(compiled)
    for ours, theirs in zip(compiled, plain, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-13)


def test_the_comparison_would_see_a_wrong_step(monkeypatch):
    monkeypatch.setattr(blocks, "COMPILED_ROWS", 0)
    problem, state, width = make(TWO_PIECE["pinball"], False)
    right, (again, remembered, _) = steps(problem, state, width), make(TWO_PIECE["pinball"], False)
    wrong = steps(again, remembered, 1.001 * width)
    assert not np.allclose(right[0], wrong[0], rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("share", [0.0, 1.0])  # never and always from the last phi_t_dual
def test_a_gradient_updated_by_what_changed_is_the_gradient(share, monkeypatch):
    problem, state, width = make(TWO_PIECE["pinball"], True)
    monkeypatch.setattr(blocks, "FEW_CHANGED", share)
    first = problem.smoothed_gradient(state, width).phi_t_dual
    problem.step(state, np.full(3, 0.02))
    second = problem.smoothed_gradient(state, width).phi_t_dual
    state.blocks[0].pop("phi_t_dual")
    np.testing.assert_allclose(second, problem.smoothed_gradient(state, width).phi_t_dual, rtol=1e-11, atol=1e-14)
    assert not np.allclose(first, second, rtol=1e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_only_two_lines_that_meet_at_zero_are_two_piece(name):
    assert LOSSES[name]().is_two_piece == (name in TWO_PIECE)
