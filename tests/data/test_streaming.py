"""Out-of-core rows give the sums, certificates and solutions of the same rows in memory; row state spills to disk."""

import gc
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from quernel._machine import parallel_map
from quernel.data import ArrayRows, InMemoryDesign, streaming, sum_tuples
from quernel.data.sources import MemmapRows
from quernel.data.streaming import SpilledRowState, StreamedDesign, _tree_reduce
from quernel.features import RandomFeatures
from quernel.kernels import Gaussian
from quernel.losses import Hinge, Huber, Logistic, Loss, Pinball
from quernel.objective import Problem
from quernel.solvers import SOLVERS, newton
from quernel.solvers.result import InitialPoint

N, M = 60_000, 60
LEVELS = Pinball(np.array([0.1, 0.5, 0.9]))


def data(n: int = N, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(n, 3))
    return X, np.sin(4 * X.sum(axis=1)) + (0.3 + X[:, 0]) * rng.standard_normal(n)


def feature_map(n_components: int = M) -> RandomFeatures:
    return RandomFeatures(kernel=Gaussian(0.8), n_components=n_components, random_state=0).fit(np.zeros((1, 3)))


def streamed(
    X, y, weight=None, *, max_memory: int = 20_000_000, threads: int = 1, components: int = M
) -> StreamedDesign:
    w = np.ones(len(y)) if weight is None else weight
    return StreamedDesign(
        MemmapRows(X, y, weight), feature_map(components), total=w.sum(), largest=w.max(), max_memory=max_memory,
        threads=threads,
    )  # fmt: skip


def both(X, y, weight=None, **options) -> tuple[InMemoryDesign, StreamedDesign]:
    return InMemoryDesign(ArrayRows(X, y, weight), feature_map()), streamed(X, y, weight, **options)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("max_memory", [20_000_000, 1])
def test_value_and_gradient_are_those_of_the_rows_in_memory(threads, max_memory):
    X, y = data()
    weight = np.random.default_rng(1).integers(0, 3, len(y)).astype(float)
    coef, intercept = np.random.default_rng(2).standard_normal((M, 3)), np.array([-0.5, 0.0, 0.5])
    found = []
    for rows in both(X, y, weight, threads=threads, max_memory=max_memory):
        problem, state = Problem(rows, LEVELS, 1e-3), rows.new_state()
        problem.set_coefficients(state, coef, intercept)
        dual_sums = problem.smoothed_gradient(state, np.full(3, 1e-3))
        found.append(
            (problem.objective(dual_sums, coef, intercept), dual_sums.phi_t_dual, dual_sums.mean_dual, state.sweeps)
        )
    (value, force, balance, sweeps), (far_value, far_force, far_balance, far_sweeps) = found
    np.testing.assert_allclose(far_value, value, rtol=1e-12)
    np.testing.assert_allclose(far_force, force, rtol=0, atol=1e-12 * np.abs(force).max())
    np.testing.assert_allclose(far_balance, balance, rtol=0, atol=1e-12)
    assert far_sweeps == sweeps


def solved(rows, loss: Loss, alpha: float, tol: float, fit_intercept: bool = True):
    return SOLVERS["newton"](Problem(rows, loss, alpha, fit_intercept=fit_intercept), tol=tol)


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("alpha", [1e-2, 1e-5])
@pytest.mark.parametrize("size", [3_000, N])
def test_the_same_certified_solution(alpha, fit_intercept, size):
    X, y = data(size)
    weight = np.random.default_rng(1).integers(0, 3, len(y)).astype(float)
    in_memory, out_of_core = (solved(rows, LEVELS, alpha, 1e-9, fit_intercept) for rows in both(X, y, weight))
    assert out_of_core.relative_gap.max() <= 1e-9
    np.testing.assert_allclose(out_of_core.objective, in_memory.objective, rtol=1e-9)
    assert len(out_of_core.dual) == 0


@pytest.mark.parametrize("loss", [Huber(0.3), Hinge(), Logistic()], ids=lambda loss: type(loss).__name__)
def test_the_same_for_other_losses(loss):
    X, y = data()
    y = np.where(y > 0.3, 1.0, -1.0) if loss.margin else y
    in_memory, out_of_core = (solved(rows, loss, 1e-4, 1e-8) for rows in both(X, y))
    assert out_of_core.relative_gap.max() <= 1e-8
    np.testing.assert_allclose(out_of_core.objective, in_memory.objective, rtol=1e-8)


class Labels(MemmapRows):
    """Two targets: whether y is above either of two numbers."""

    def stream(self, blocks, *, X=True):
        for piece in super().stream(blocks, X=X):
            yield piece._replace(y=labels(piece.y))


def labels(y):
    return np.where(y[:, None] > np.array([-0.5, 0.5]), 1.0, -1.0)


def test_a_target_of_its_own_for_every_column():
    X, y = data()
    loss = Hinge().take(np.array([0, 0]))
    in_memory = solved(InMemoryDesign(ArrayRows(X, labels(y)), feature_map()), loss, 1e-4, 1e-7)
    rows = StreamedDesign(Labels(X, y), feature_map(), total=len(y), largest=1.0, max_memory=20_000_000)
    out_of_core = solved(rows, loss, 1e-4, 1e-7)
    np.testing.assert_allclose(out_of_core.objective, in_memory.objective, rtol=1e-7)
    one = solved(streamed(X, labels(y)[:, 1]), Hinge(), 1e-4, 1e-7)
    np.testing.assert_allclose(out_of_core.objective[1], one.objective[0], rtol=1e-7)


@pytest.mark.parametrize("order", ["target", "column"])
def test_sorted_rows_cost_little_more(order):
    X, y = data()
    by = np.argsort(y if order == "target" else X[:, 0])
    mixed, in_order = solved(streamed(X, y), LEVELS, 1e-4, 1e-9), solved(streamed(X[by], y[by]), LEVELS, 1e-4, 1e-9)
    np.testing.assert_allclose(in_order.objective, mixed.objective, rtol=1e-9)
    assert in_order.sweeps <= 1.5 * mixed.sweeps
    assert in_order.hessian_rows <= 1.5 * mixed.hessian_rows


def test_screening_that_does_not_pay_ends_in_the_plain_loop():
    X, y = data(16_000)
    rows = streamed(X, y)
    plain = newton.solve(Problem(rows, LEVELS, 1e-4), tol=1e-8)
    np.testing.assert_allclose(plain.objective, solved(rows, LEVELS, 1e-4, 1e-8).objective, rtol=1e-8)
    assert plain.relative_gap.max() <= 1e-8


def test_a_sample_is_random_and_smaller_ones_are_its_beginning():
    X, y = data()
    order = np.argsort(y)
    rows, rng = streamed(X[order], y[order]), np.random.default_rng(0)
    large, small = rows.sample(2_000, rng), rows.sample(500, rng)
    np.testing.assert_array_equal(large.target[:500], small.target)
    assert np.abs(small.target.mean() - y.mean()) < 4 * y.std() / np.sqrt(500)
    assert len(np.unique(large.target)) == 2_000
    assert np.abs(np.mean(y[order][:500]) - y.mean()) > 1  # what the first rows of the file would have said


def test_a_sample_takes_its_share_of_the_memory_and_no_less_than_is_always_taken():
    X, y = data(100)
    allowed = 200_000_000
    wide = MemmapRows(np.tile(X, (1, 100)), y)
    of_wide = StreamedDesign(wide, feature_map(), total=100, largest=1, max_memory=allowed)
    usual, tiny = streamed(X, y, max_memory=allowed), streamed(X, y, max_memory=1)
    assert (usual.most_stored, usual.most_sampled) == (allowed // 4 // (8 * M), allowed // 4 // (8 * 4))
    assert (
        of_wide.most_stored == of_wide.most_sampled == allowed // 4 // (8 * 301)
    )  # raw rows wider than their features
    assert (tiny.most_stored, tiny.most_sampled) == (16_000_000 // (8 * M), 16_000_000 // (8 * 4))


@pytest.mark.parametrize("weighted", [False, True])
def test_a_sample_too_large_to_store_its_features_is_the_same_sample(weighted):
    X, y = data()
    weight = np.random.default_rng(1).uniform(0.5, 2, len(y)) if weighted else None
    basis = np.linalg.qr(np.random.default_rng(2).standard_normal((M, 7)))[0]
    stored = streamed(X, y, weight).sample(3_000, np.random.default_rng(0), basis)
    raw = streamed(X, y, weight).sample(3_000, np.random.default_rng(0), basis, stored=False)
    assert stored.cached
    assert not raw.cached
    np.testing.assert_allclose(raw.take_rows(np.arange(3_000)), stored.as_array("compared"), rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(raw.share, stored.share)
    np.testing.assert_array_equal(raw.target, stored.target)


@pytest.mark.parametrize("initial", [None, InitialPoint(np.zeros((300, 3)), np.zeros(3), 1_000, 50.0)])
def test_many_features_and_hardly_any_memory(initial, monkeypatch):
    X, y = data(8_000)
    monkeypatch.setattr(
        streaming, "OPTIONS", replace(streaming.OPTIONS, always_sampled=1_000_000)
    )  # less than the first sample takes
    rows = streamed(X, y, max_memory=1, components=300)
    assert rows.most_stored < 8 * 300
    found = SOLVERS["newton"](Problem(rows, LEVELS, 1e-4), tol=1e-4, initial=initial)
    assert found.relative_gap.max() <= 1e-4


def test_larger_samples_than_can_be_stored_leave_fewer_active_rows(monkeypatch):
    X, y = data(400_000)
    monkeypatch.setattr(streaming, "OPTIONS", replace(streaming.OPTIONS, always_sampled=2_000_000))
    larger = solved(streamed(X, y, max_memory=1), LEVELS, 1e-4, 1e-5)
    monkeypatch.setattr(StreamedDesign, "most_sampled", 2_000_000 // (8 * M))
    stored = solved(streamed(X, y, max_memory=1), LEVELS, 1e-4, 1e-5)
    assert max(larger.relative_gap.max(), stored.relative_gap.max()) <= 1e-5
    assert sum(larger.active_rows) < 0.7 * sum(stored.active_rows)
    assert larger.sweeps <= stored.sweeps


def test_a_full_shelf_goes_on_on_disk(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    state = SpilledRowState(3, 1_000)
    for k in range(3):
        with state.open(k) as block:
            block["a"] = np.full((60, 2), float(k))
    assert state.on_disk == 2
    assert state._end > 2 * 60 * 2 * 8
    assert list(tmp_path.iterdir()) == [], "the file has no name"
    for k in range(3):
        with state.open(k) as block:
            assert np.all(block["a"] == k)
    end = state._end
    for size in (60, 10, 60):  # the same place, as long as there is room
        with state.open(2) as block:
            block["a"] = np.full((size, 2), 7.0)
    assert state._end == end
    with state.open(2) as block:
        block["b"] = np.full((300, 2), 8.0)
    assert state._end > end + 300 * 2 * 8
    with state.open(1) as block, state.open(2) as other:
        assert np.all(block["a"] == 1)
        assert (other["a"].shape, other["a"].max(), other["b"].max()) == ((60, 2), 7, 8)
    some = state.take(np.array([1]))
    with some.open(2) as block:
        assert block["a"].shape == (60, 1)
    file = state._file
    del state, some, block
    gc.collect()
    assert file.closed
    assert not list(tmp_path.iterdir())


KILLED = """
import sys, tempfile
import numpy as np
from quernel.data.streaming import SpilledRowState
tempfile.tempdir = sys.argv[1]
memory = SpilledRowState(2, 0)
with memory.open(0) as block:
    block["a"] = np.ones((1000, 100))
assert memory.on_disk == 1
print("written", flush=True)
sys.stdin.read()
"""


def test_nothing_is_left_of_the_shelf_of_a_process_that_was_killed(tmp_path):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", KILLED, tmp_path], **pipes) as process:
        assert process.stdout.readline() == "written\n"
        process.send_signal(signal.SIGKILL)
    assert list(tmp_path.iterdir()) == []


FULL = """
import numpy as np, resource, signal
from quernel.data.streaming import SpilledRowState

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
shelf = SpilledRowState(3, room=0)
try:
    for k in range(3):
        with shelf.open(k) as block:
            block["residual"] = np.zeros((1_000, 1))
except OSError:
    print("refused")
"""


def test_a_disk_that_is_full_is_said_once():
    ran = subprocess.run([sys.executable, "-c", FULL], capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr) == ("refused\n", "")


def test_threads_share_a_shelf():
    state = SpilledRowState(40, 1_000)

    def fill(k):
        for turn in range(20):
            with state.open(k) as block:
                assert np.all(block.get("a", k + turn - 1) == k + turn - 1)
                block["a"] = np.full((50 + 10 * (turn % 3), 1), float(k + turn))

    parallel_map(fill, range(40), 4)
    assert state.on_disk >= 38


def test_answers_are_joined_in_order_and_never_many_wait():
    most = 0

    def join(answers):
        nonlocal most
        most = max(most, len(answers))
        return [x for answer in answers for x in answer]

    assert _tree_reduce(([k] for k in range(1_000)), join) == list(range(1_000))
    assert most < 64
    assert sum_tuples([(1, 2), (3, 4)]) == (4, 6)


def test_what_needs_all_rows_is_refused():
    X, y = data(1_000)
    with pytest.raises(ValueError, match="read from files in every pass"):
        SOLVERS["admm"](Problem(streamed(X, y), Pinball(np.array([0.5])), 1e-3))
    with pytest.raises(ValueError, match="must start empty"):
        streamed(X, y).new_state(anchor=np.zeros((1_000, 1)))
