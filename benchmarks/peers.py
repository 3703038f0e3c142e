"""Lines of the speed table: quernel beside packages that not every machine has."""

from collections.abc import Iterator

from benchmarks.goals import LEVELS, Row, not_measured, times_faster
from quernel import KernelQuantileRegressor
from quernel.bench import Outcome, Task, run, time_best
from quernel.datasets import make_homoscedastic

PATIENCE = 600.0


def exact_beside_kernel_packages() -> Iterator[Row]:
    """kernlab and TorchKM solve the same problem as n_components="exact"."""
    task = Task(n=2_000, level=0.1, alpha=1e-4, fit_intercept=True)
    ours = run("quernel.bench:QUERNEL", task, threads=None)
    for peer in ("benchmarks.systems.r:KQR", "benchmarks.systems.torchkm:KQR"):
        theirs = run(peer, task, time_limit=PATIENCE, threads=None)
        what = f"exact, against {theirs.system}, n=2,000, level 0.1, alpha 1e-4"
        if theirs.done and ours.done:
            excess = theirs.objective / ours.lower_bound - 1
            yield times_faster(
                f"{what} (its objective: {excess:.0e} above the bound)", ours.seconds, theirs.seconds, 50
            )
        else:
            yield not_measured(what, ">= 50", theirs.status if ours.done else ours.status, ours.seconds)


UNPENALISED = (
    "benchmarks.systems.r:FN",
    "benchmarks.systems.r:PFN",
    "benchmarks.systems.r:PFNB",
    "benchmarks.systems.pyfixest:FRISCH_NEWTON",
)


def hard_fits_beside_interior_points() -> Iterator[Row]:
    """The fastest of the solvers of alpha = 0 whose mean loss is within 1e-3 of our certified objective; one thread."""
    for bandwidth, goal in ((0.2, 8), (1.0, 25)):
        task = Task(n=200_000, level=0.5, alpha=1e-8, M=100, bandwidth=bandwidth)
        ours = run("quernel.bench:QUERNEL", task, time_limit=PATIENCE)
        peers = [run(peer, task, time_limit=PATIENCE) for peer in UNPENALISED]
        able = [peer for peer in peers if peer.done and peer.loss <= ours.objective * (1 + 1e-3)]
        what = f"n=200,000, M=100, bandwidth {bandwidth:g}, alpha 1e-8, one thread"
        if able:
            fastest = min(able, key=lambda peer: peer.seconds)
            yield times_faster(f"{what}, against {fastest.system} (the fastest)", ours.seconds, fastest.seconds, goal)
        else:
            what += ", against R quantreg fn, pfn, pfnb and pyfixest"
            yield not_measured(what, f">= {goal}", "; ".join(_shortcoming(peer, ours) for peer in peers), ours.seconds)


def _shortcoming(peer: Outcome, ours: Outcome) -> str:
    """Why a peer does not count."""
    if not peer.done:
        return f"{peer.system}: {peer.status}"
    return f"{peer.system}: {peer.seconds:.3g} s, but a mean loss {peer.loss / ours.objective:.3g} times our objective"


def predictions_beside_lightgbm() -> Iterator[Row]:
    what = "predict, 5 levels, M=500, rows per second against LightGBM (5 models, 100 trees)"
    try:
        from lightgbm import LGBMRegressor
    except ImportError:
        yield not_measured(what, ">= 3", "not installed")
        return
    X, y, _ = make_homoscedastic(20_000, random_state=0)
    new, _, _ = make_homoscedastic(200_000, random_state=1)
    model = KernelQuantileRegressor(LEVELS, bandwidth="auto", n_components=500, random_state=0).fit(X, y)
    trees = [LGBMRegressor(objective="quantile", alpha=a, n_estimators=100, verbose=-1).fit(X, y) for a in LEVELS]
    ours, _ = time_best(lambda: model.predict(new))
    theirs, _ = time_best(lambda: [tree.predict(new) for tree in trees])
    yield times_faster(what, ours, theirs, 3)


LINES = [exact_beside_kernel_packages, hard_fits_beside_interior_points, predictions_beside_lightgbm]
