"""Lines of the speed table for the other losses: beside ridge regression, and beside scikit-learn's classifiers."""

from collections.abc import Iterator

import numpy as np

from benchmarks.goals import Row, at_most, reported, times_faster
from benchmarks.speed import lifted, ridge
from quernel import KernelClassifier, KernelRegressor
from quernel.bench import time_best
from quernel.losses import EpsilonInsensitive, Huber

ALPHA = 1e-4
READY = {"kernel": "linear", "alpha": ALPHA, "fit_intercept": False}


def losses_beside_ridge() -> Iterator[Row]:
    Phi, y = lifted(200_000, 300)
    side = np.where(y > np.median(y), 1, -1)
    baseline, _ = time_best(lambda: ridge(Phi, y, ALPHA))
    for name, model, target, goal in (
        ("hinge", KernelClassifier("hinge", **READY), side, 1.5),
        ("epsilon-insensitive (0.1)", KernelRegressor(EpsilonInsensitive(0.1), **READY), y, 1.5),
        ("Huber (1.35)", KernelRegressor(Huber(1.35), **READY), y, 1.5),
        ("squared", KernelRegressor("squared", **READY), y, 1.5),
        ("logistic", KernelClassifier("logistic", **READY), side, 6),
    ):
        ours, _ = time_best(lambda model=model, target=target: model.fit(Phi, target))
        assert np.all(model.duality_gap_ <= 1e-6)
        yield at_most(f"{name} fit / ridge, n=200,000, M=300, alpha {ALPHA:g}", ours, baseline, goal)


def moons(n: int, noise: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    from sklearn.datasets import make_moons

    X, y = make_moons(n + 20_000, noise=noise, random_state=0)
    return X[:n], y[:n], X[n:], y[n:]


def random_feature_classifiers() -> Iterator[Row]:
    """Whole fits of (X, y); the accuracy on held-out rows is part of the line."""
    from sklearn.kernel_approximation import RBFSampler
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.svm import LinearSVC

    n, M = 100_000, 500
    X, y, new, truth = moons(n, 0.3)
    for loss, peer, name in (
        ("hinge", LinearSVC(loss="hinge", C=1 / (2 * n * ALPHA)), "LinearSVC"),
        ("logistic", LogisticRegression(C=1 / (2 * n * ALPHA)), "LogisticRegression"),
    ):
        theirs = make_pipeline(RBFSampler(gamma=0.5 / 0.5**2, n_components=M, random_state=0), peer)
        ours = KernelClassifier(loss, bandwidth=0.5, n_components=M, alpha=ALPHA, random_state=0)
        slow, _ = time_best(lambda theirs=theirs: theirs.fit(X, y), repeats=1)
        fast, _ = time_best(lambda ours=ours: ours.fit(X, y))
        scores = f"accuracy {ours.score(new, truth):.4f} and {theirs.score(new, truth):.4f}"
        yield times_faster(f"{loss} classifier / RBFSampler + {name}, n=100,000, M=500; {scores}", fast, slow, 5)


def exact_support_vector_machine() -> Iterator[Row]:
    from sklearn.svm import SVC

    n = 20_000
    X, y, new, truth = moons(n, 0.3)
    ours = KernelClassifier("hinge", n_components="exact", bandwidth=0.5, alpha=ALPHA)
    theirs = SVC(C=1 / (2 * n * ALPHA), gamma=0.5 / 0.5**2, tol=1e-6)
    slow, _ = time_best(lambda: theirs.fit(X, y), repeats=1)
    fast, _ = time_best(lambda: ours.fit(X, y))
    scores = f"accuracy {ours.score(new, truth):.4f} and {theirs.score(new, truth):.4f}"
    yield reported(f"exact kernel SVM / SVC(tol=1e-6), n=20,000; {scores}", fast, slow)


LINES = (losses_beside_ridge, random_feature_classifiers, exact_support_vector_machine)
