"""KernelClassifier: support vector machines and logistic regression behind the same words."""

import warnings

import mpmath
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer, load_iris, load_wine, make_blobs, make_circles, make_moons
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks

from quernel import KernelClassifier
from quernel.losses import Huber, SmoothedHinge

NAMES = ["hinge", "squared_hinge", "smoothed_hinge", "logistic"]
SMALL = {"n_components": 60, "random_state": 0}


@parametrize_with_checks(
    [
        KernelClassifier("logistic"),
        KernelClassifier("squared_hinge", n_components="exact"),
        KernelClassifier("logistic", multiclass="ovr", kernel="linear"),
        KernelClassifier("logistic", multiclass="ovr", fit_intercept=False),
    ]
)
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_extreme_class_weights_give_the_optimum_also_without_an_intercept(n_classes):
    """A linear rule without an intercept calls x and -x different names, however heavy one class is.

    So the optimum itself cannot give nearly all rows to that class, as scikit-learn's check of class weights expects
    (its own LogisticRegression(fit_intercept=False) does not): that configuration is held against the optimum here,
    and passes the check with an intercept.
    """
    X, y = make_blobs(centers=n_classes, random_state=0, cluster_std=20)
    heavy = {0: 1000.0, 1: 1e-4, 2: 1e-4}
    weight = np.array([heavy[label] for label in y])
    how = {"kernel": "linear", "multiclass": "ovr", "class_weight": {k: heavy[k] for k in range(n_classes)}}
    ours = KernelClassifier("logistic", fit_intercept=False, **how).fit(X, y)
    assert np.all(ours.duality_gap_ <= 1e-6)
    for column, label in enumerate([1] if n_classes == 2 else range(3)):
        theirs = LogisticRegression(
            C=1 / (2 * weight.sum() * ours.alpha_), fit_intercept=False, tol=1e-12, solver="newton-cholesky"
        ).fit(X, y == label, sample_weight=weight)
        np.testing.assert_allclose(ours.coef_[:, column], theirs.coef_[0], rtol=1e-6)
    assert not np.any((ours.predict(X) == 0) & (ours.predict(-X) == 0))
    assert np.mean(KernelClassifier("logistic", **how).fit(X, y).predict(X) == 0) == 1


@pytest.fixture(scope="module")
def moons():
    return make_moons(300, noise=0.25, random_state=0)


@pytest.fixture(scope="module")
def iris():
    return load_iris(return_X_y=True)


def scaled(data):
    return StandardScaler().fit_transform(data[0]), data[1]


DATA = {
    "moons": lambda: make_moons(400, noise=0.3, random_state=1),
    "circles": lambda: make_circles(400, noise=0.15, factor=0.5, random_state=1),
    "breast cancer": lambda: scaled(load_breast_cancer(return_X_y=True)),
}


@pytest.mark.parametrize("alpha", [1e-3, 1e-4])
@pytest.mark.parametrize("name", DATA)
def test_exact_hinge_is_scikit_learns_svm(name, alpha):
    X, y = DATA[name]()
    bandwidth = 1.0 if X.shape[1] == 2 else 6.0
    ours = KernelClassifier("hinge", n_components="exact", bandwidth=bandwidth, alpha=alpha, tol=1e-9).fit(X, y)
    theirs = SVC(C=1 / (2 * len(X) * alpha), gamma=1 / (2 * bandwidth**2), tol=1e-6).fit(X, y)
    np.testing.assert_allclose(ours.decision_function(X), theirs.decision_function(X), atol=1e-3)
    assert ours.score(X, y) == theirs.score(X, y)
    other = SVC(C=2 / (2 * len(X) * alpha), gamma=1 / (2 * bandwidth**2), tol=1e-6).fit(X, y)
    assert np.abs(ours.decision_function(X) - other.decision_function(X)).max() > 1e-3, "negative control"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n_components", [60, "exact"])
def test_every_loss_is_certified_for_two_and_three_classes(moons, iris, name, n_components):
    for (X, y), columns in ((moons, 1), (iris, 3)):
        model = KernelClassifier(name, n_components=n_components, random_state=0).fit(X, y)
        problems = 1 if name == "logistic" else columns
        assert model.duality_gap_.shape == model.objective_.shape == (problems,)
        assert np.all(model.duality_gap_ <= 1e-6)
        assert model.coef_.shape == (model.n_components_, columns)
        assert model.intercept_.shape == (columns,)
        assert model.decision_function(X).shape == ((len(X),) if columns == 1 else (len(X), 3))
        assert model.score(X, y) > 0.9


@pytest.mark.parametrize("name", NAMES)
def test_one_against_the_rest_is_each_alone(iris, name):
    X, y = iris
    how = {"alpha": 1e-3, "bandwidth": 1.0, "tol": 1e-9, **SMALL}
    together = KernelClassifier(name, multiclass="ovr", **how).fit(X, y)
    for k in range(3):
        alone = KernelClassifier(name, **how).fit(X, y == k)
        np.testing.assert_allclose(together.decision_function(X)[:, k], alone.decision_function(X), atol=1e-4)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("alpha", [1e-2, 1e-4])
def test_multinomial_is_scikit_learns(iris, alpha, intercept):
    X, y = iris
    weight = np.random.default_rng(0).uniform(0.2, 2, len(X))
    ours = KernelClassifier("logistic", kernel="linear", alpha=alpha, fit_intercept=intercept, tol=1e-9)
    ours.fit(X, y, sample_weight=weight)
    theirs = LogisticRegression(
        C=1 / (2 * weight.sum() * alpha), tol=1e-10, fit_intercept=intercept, solver="newton-cholesky", max_iter=1000
    ).fit(X, y, sample_weight=weight)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-4)

    def F(model, coef):
        chance = model.predict_proba(X)[np.arange(len(X)), y]
        return -(weight / weight.sum()) @ np.log(chance) + alpha * np.sum(coef**2)

    assert ours.objective_[0] == pytest.approx(F(ours, ours.coef_), rel=1e-9)
    assert ours.objective_[0] == pytest.approx(F(theirs, theirs.coef_), rel=1e-6)
    assert ours.duality_gap_[0] * ours.objective_[0] >= ours.objective_[0] - F(theirs, theirs.coef_) - 1e-12
    ovr = KernelClassifier("logistic", multiclass="ovr", kernel="linear", alpha=alpha, fit_intercept=intercept)
    assert np.abs(ovr.fit(X, y).predict_proba(X) - ours.predict_proba(X)).max() > 1e-2, "negative control"


def test_multinomial_gap_is_a_bound_wherever_it_stops(iris):
    X, y = iris
    how = {"alpha": 1e-4, "bandwidth": 1.0, **SMALL}
    best = KernelClassifier("logistic", tol=1e-10, **how).fit(X, y).objective_[0]
    for steps in (1, 2, 3):
        with pytest.warns(UserWarning, match="relative duality gap"):
            early = KernelClassifier("logistic", tol=1e-12, max_iter=steps, **how).fit(X, y)
        scale = early.objective_[0]
        assert early.duality_gap_[0] * scale >= (scale - best) * (1 - 1e-9)
        assert early.duality_gap_[0] > 1e-12


def test_multinomial_objective_has_all_digits_beside_a_weight_that_outweighs_all_others():
    """The heavy row's loss is log(1 + 1e-12) or so, and the null model's entropy is as small."""
    rng = np.random.default_rng(0)
    X, y, weight = rng.standard_normal((10, 3)), np.arange(10) % 3, rng.uniform(1, 2, 10)
    weight[0] = 1e13
    model = KernelClassifier("logistic", kernel="linear", alpha=3e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the gap, relative to so small an objective, is not reached
        model.fit(X, y, sample_weight=weight)
    with mpmath.workdps(50):
        w = [mpmath.mpf(one) for one in weight.tolist()]
        total = mpmath.fsum(w)
        coef, intercept, rows = model.coef_.tolist(), model.intercept_.tolist(), X.tolist()

        def loss(row, label):
            scores = [
                b + mpmath.fsum(x * c[k] for x, c in zip(row, coef, strict=True)) for k, b in enumerate(intercept)
            ]
            return mpmath.log(mpmath.fsum(mpmath.exp(one - scores[label]) for one in scores))

        ridge = model.alpha_ * mpmath.fsum(mpmath.mpf(c) ** 2 for row in coef for c in row)
        F = mpmath.fsum(v * loss(row, k) for v, row, k in zip(w, rows, y.tolist(), strict=True)) / total + ridge
        shares = [mpmath.fsum(v for v, one in zip(w, y, strict=True) if one == k) / total for k in range(3)]
        null = -mpmath.fsum(share * mpmath.log(share) for share in shares)
        assert abs(model.objective_[0] - F) <= 1e-9 * F
        assert null * (1 + 1e-12) >= F


def test_multinomial_over_many_rows_leaves_directions_out():
    rng = np.random.default_rng(0)
    X = rng.random((26_000, 2))
    y = np.argmax(np.column_stack([X, np.full(len(X), 0.6)]) + 0.2 * rng.standard_normal((len(X), 3)), axis=1)
    model = KernelClassifier("logistic", n_components=80, bandwidth=1.0, alpha=1e-4, random_state=0).fit(X, y)
    assert model.duality_gap_[0] <= 1e-6
    Phi = model.feature_map_.transform(X)
    peer = LogisticRegression(C=1 / (2 * len(X) * 1e-4), tol=1e-8, max_iter=1000).fit(Phi, y)
    np.testing.assert_allclose(model.predict_proba(X), peer.predict_proba(Phi), atol=2e-3)


@pytest.mark.parametrize("name", ["hinge", "squared_hinge", "smoothed_hinge", "logistic"])
def test_many_rows_give_what_the_plain_loop_gives(name):
    """Screening, samples and left-out directions change the work, not the answer."""
    rng = np.random.default_rng(0)
    X = rng.random((40_000, 2))
    y = np.sin(6 * X[:, 0]) + X[:, 1] + 0.3 * rng.standard_normal(len(X)) > 0.5
    how = {"n_components": 80, "bandwidth": 0.5, "alpha": 1e-4, "random_state": 0}
    model = KernelClassifier(name, **how).fit(X, y)
    assert model.duality_gap_[0] <= 1e-6
    tight = KernelClassifier(name, tol=1e-9, **how).fit(X, y)
    assert model.objective_[0] <= tight.objective_[0] * (1 + 1e-6)
    assert model.score(X, y) > 0.85


@pytest.mark.parametrize(
    ("name", "peer"),
    [
        ("hinge", LinearSVC(loss="hinge", C=1 / (4000 * 1e-4), max_iter=10**5)),
        ("logistic", LogisticRegression(C=1 / (4000 * 1e-4), max_iter=1000)),
    ],
)
def test_no_less_accurate_than_scikit_learns_random_features(name, peer):
    """Over ten draws of as many features, no more than a standard error below; half the features would be noticed."""
    X, y = make_moons(12_000, noise=0.2, random_state=0)
    train, held = slice(0, 2000), slice(2000, None)

    def ours(seed, M):
        model = KernelClassifier(name, bandwidth=0.3, n_components=M, alpha=1e-4, random_state=seed)
        return model.fit(X[train], y[train]).score(X[held], y[held])

    def theirs(seed):
        lift = RBFSampler(gamma=0.5 / 0.3**2, n_components=40, random_state=seed).fit(X)
        return peer.fit(lift.transform(X[train]), y[train]).score(lift.transform(X[held]), y[held])

    peers = np.array([theirs(seed) for seed in range(10)])
    for M, enough in ((40, True), (10, False)):
        gain = np.array([ours(seed, M) for seed in range(10)]) - peers
        assert (gain.mean() >= -gain.std(ddof=1) / np.sqrt(10)) == enough, (M, gain.mean(), gain.std())


@pytest.mark.parametrize("name", NAMES)
def test_weights_and_class_weights_are_repeated_rows(moons, name):
    X, y = moons[0][:80], moons[1][:80]
    count = np.random.default_rng(0).integers(1, 4, 80)
    how = {"alpha": 1e-3, "bandwidth": 0.5, "n_components": 30, "sampling": "qmc", "random_state": 0, "tol": 1e-10}
    weighted = KernelClassifier(name, **how).fit(X, y, sample_weight=count)
    repeated = KernelClassifier(name, **how).fit(np.repeat(X, count, axis=0), np.repeat(y, count))
    np.testing.assert_allclose(weighted.decision_function(X), repeated.decision_function(X), atol=1e-3)
    by_class = KernelClassifier(name, class_weight={0: 3, 1: 1}, **how).fit(X, y)
    by_row = KernelClassifier(name, **how).fit(X, y, sample_weight=np.where(y == 0, 3.0, 1.0))
    np.testing.assert_allclose(by_class.decision_function(X), by_row.decision_function(X), atol=1e-6)
    assert np.mean(by_class.predict(X) == 0) >= np.mean(KernelClassifier(name, **how).fit(X, y).predict(X) == 0)


def test_balanced_classes_weigh_the_same(moons):
    X, y = moons
    rare = np.concatenate([np.flatnonzero(y == 0), np.flatnonzero(y == 1)[:15]])
    how = {"alpha": 1e-2, **SMALL}
    plain = KernelClassifier("logistic", **how).fit(X[rare], y[rare]).predict(X)
    even = KernelClassifier("logistic", class_weight="balanced", **how).fit(X[rare], y[rare]).predict(X)
    assert np.mean(plain == 1) + 0.05 < np.mean(even == 1) < 0.65
    counts = np.bincount(y[rare])
    given = {k: len(rare) / (2 * counts[k]) for k in (0, 1)}
    by_hand = KernelClassifier("logistic", class_weight=given, **how).fit(X[rare], y[rare])
    np.testing.assert_array_equal(by_hand.predict(X), even)


def test_probabilities_of_the_logistic_loss_are_calibrated():
    rng = np.random.default_rng(0)
    X = rng.random((6000, 1))
    chance = 1 / (1 + np.exp(-4 * np.sin(6 * X[:, 0])))
    y = rng.random(6000) < chance
    model = KernelClassifier("logistic", n_components=60, random_state=0).fit(X, y)
    assert np.mean(np.abs(model.predict_proba(X)[:, 1] - chance)) < 0.03
    np.testing.assert_allclose(np.exp(model.predict_log_proba(X)), model.predict_proba(X))
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1)


@pytest.mark.parametrize("method", ["sigmoid", "isotonic"])
def test_the_curves_of_probabilities_are_scikit_learns(moons, iris, method):
    for X, y in (moons, iris):
        model = KernelClassifier("hinge", calibration=method, **SMALL).fit(X, y)
        inner = clone(model).set_params(calibration=None, alpha=model.alpha_)
        expected = CalibratedClassifierCV(inner, method=method, ensemble=False).fit(X, y).predict_proba(3 * X)
        np.testing.assert_allclose(model.predict_proba(3 * X), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("method", ["sigmoid", "isotonic"])
def test_each_class_needs_a_row_for_every_fold(moons, method):
    X, y = moons
    few = np.where(np.arange(len(y)) < 4, "rare", np.where(y == y[0], "one", "two"))
    with pytest.raises(
        ValueError, match=rf"calibration='{method}' needs at least 5 rows of each class.*'rare'\)? has 4"
    ):
        KernelClassifier("hinge", calibration=method, **SMALL).fit(X, few)


@pytest.mark.parametrize("method", ["sigmoid", "isotonic"])
def test_the_hinge_gives_probabilities_on_request(moons, iris, method):
    for X, y in (moons, iris):
        model = KernelClassifier("hinge", calibration=method, **SMALL).fit(X, y)
        chance = model.predict_proba(X)
        assert chance.shape == (len(X), len(model.classes_))
        np.testing.assert_allclose(chance.sum(axis=1), 1)
        assert np.mean(model.classes_[chance.argmax(axis=1)] == y) > 0.9
    plain = KernelClassifier("hinge", **SMALL).fit(*moons)
    np.testing.assert_array_equal(
        plain.predict(moons[0]), KernelClassifier("hinge", calibration=method, **SMALL).fit(*moons).predict(moons[0])
    )
    with pytest.raises(AttributeError, match=r"predict_proba"):
        plain.predict_proba(moons[0])


@pytest.mark.parametrize(
    "labels",
    [
        np.array(["no", "yes"]),
        np.array([False, True]),
        np.array([-3, 7]),
        np.array([0.0, 2.0]),
        np.array(["b", "a"], object),
    ],
)
def test_labels_come_back_as_they_were_given(moons, labels):
    X, y = moons
    model = KernelClassifier(**SMALL).fit(X, labels[y])
    assert set(model.predict(X).tolist()) == set(labels.tolist())
    assert model.score(X, labels[y]) > 0.9


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.zeros(300), "at least 2 classes; y has one class only"),
        (np.linspace(0, 1, 300), "Unknown label type.*KernelRegressor"),
        (np.array([1, "a"] * 150, dtype=object), r"mixes labels of different types \(int, text\)"),
        (np.where(np.arange(300) == 3, np.nan, np.arange(300) % 2), "contains NaN or infinity: 1 of 300 labels"),
        (np.eye(2)[np.arange(300) % 2], "1d array"),
        (None, "requires y to be passed"),
        (np.arange(10) % 2, "X has 300 rows but y has 10 entries"),
    ],
)
def test_odd_labels_are_refused(moons, y, message):
    with pytest.raises(ValueError, match=message):
        KernelClassifier(**SMALL).fit(moons[0], y)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": "hinges"}, r"Unknown loss 'hinges'\. Known: 'hinge', 'squared_hinge', 'smoothed_hinge', 'logistic'"),
        ({"loss": "huber"}, "is one of the residual. Use KernelRegressor"),
        ({"loss": Huber()}, "is one of the residual. Use KernelRegressor"),
        ({"loss": SmoothedHinge([0.5, 1.0])}, "must be of one column here"),
        ({"loss": None}, "loss must be one of 'hinge'"),
        ({"multiclass": "all"}, "Unknown multiclass 'all'"),
        ({"multiclass": "multinomial"}, "multinomial' needs loss='logistic'; got 'hinge'"),
        ({"class_weight": "even"}, "Unknown class_weight 'even'"),
        ({"class_weight": {5: 1.0}}, r"names classes that y does not have: \[5\]"),
        ({"class_weight": {0: -1.0}}, "class_weight must be positive numbers"),
        ({"calibration": "platt"}, "Unknown calibration 'platt'"),
        (
            {"loss": "logistic", "multiclass": "multinomial", "solver": "admm"},
            "is for solver='newton'; got solver='admm'. Use multiclass='ovr'",
        ),
        ({"alpha": -1}, "alpha must be a positive"),
    ],
)
def test_unfit_settings_are_refused_before_any_work(moons, settings, message):
    with pytest.raises(ValueError, match=message):
        KernelClassifier(**{**SMALL, **settings}).fit(*moons)


@pytest.mark.parametrize("name", NAMES)
def test_the_papers_solver_finds_the_same_classifier(moons, name):
    ours, exact = (
        KernelClassifier(name, solver=solver, tol=1e-4, max_iter=5000, class_weight="balanced", **SMALL).fit(*moons)
        for solver in ("admm", "newton")
    )
    assert ours.duality_gap_[0] <= 1e-4
    assert exact.objective_[0] * (1 - 1e-4) <= ours.objective_[0] <= exact.objective_[0] * (1 + 1e-4)
    assert np.mean(ours.predict(moons[0]) == exact.predict(moons[0])) > 0.98


def test_the_papers_solver_takes_classes_one_against_the_rest():
    X, y = load_iris(return_X_y=True)
    one_by_one, auto = (
        KernelClassifier("logistic", solver=solver, multiclass=way, tol=1e-4, **SMALL).fit(X, y)
        for solver, way in (("newton", "ovr"), ("admm", "auto"))
    )
    assert auto.objective_.shape == (3,)
    np.testing.assert_allclose(auto.objective_, one_by_one.objective_, rtol=2e-4)
    assert auto.predict_proba(X).shape == (150, 3)


def test_rows_of_weight_zero_are_left_out(moons):
    X, y = moons
    with pytest.raises(ValueError, match="one class only"):
        KernelClassifier(**SMALL).fit(X, y, sample_weight=(y == 1).astype(float))


def test_in_cross_validation():
    X, y = scaled(load_wine(return_X_y=True))
    assert cross_val_score(KernelClassifier("logistic", random_state=0), X, y, cv=3).mean() > 0.93
