"""QMFQ: projectors, their derivatives, the whole gradient, and the estimator."""

import numpy as np
import pandas as pd
import pytest

import polyad
from polyad import QMFQ
from polyad.exceptions import InvalidInputError
from polyad.quantile.features import feature_table, read_divergence
from polyad.quantile.parameters import joined, parted, softmax
from polyad.quantile.projected.problem import (
    ProjectedObjective,
    Transforms,
    deflating_quantiles,
    first_transforms,
    to_deflating_gaps,
)
from polyad.quantile.projected.projectors import (
    NMFProjector,
    SVDProjector,
    linear_scores,
    nonnegative_scores,
)
from tests.quantile.planted import planted, small
from tests.quantile.twin import transported

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

PROJECTORS = [NMFProjector(2, 7), NMFProjector(3, 60), SVDProjector(1), SVDProjector(2)]


def kullback_leibler(Z, model):
    return (Z * np.log(Z / model) - Z + model).sum()


def product(projection):
    return projection.loadings @ projection.scores


@pytest.mark.parametrize("shape", [(9, 6), (6, 9), (300, 7)])
@pytest.mark.parametrize("projector", PROJECTORS, ids=str)
def test_projectors_have_the_derivative_of_what_they_compute(shape, projector):
    rng = np.random.default_rng(0)
    Z, G = rng.gamma(2.0, size=shape), rng.normal(size=shape)
    start = projector.start(shape, 0)
    gradient = projector.project(Z, start).pull(G)
    for _ in range(4):
        direction, step = rng.normal(size=shape) * Z, 1e-6
        ends = [
            product(projector.project(Z + sign * step * direction, start, with_pull=False))
            for sign in (1, -1)
        ]
        numeric = (G * (ends[0] - ends[1])).sum() / (2 * step)
        scale = np.linalg.norm(gradient) * np.linalg.norm(direction)
        assert (gradient * direction).sum() == pytest.approx(numeric, abs=1e-7 * scale)


def test_updates_are_those_of_lee_and_seung_with_the_best_scores_at_the_end():
    rng = np.random.default_rng(0)
    Z = rng.gamma(1.0, size=(200, 300))  # in several blocks
    projector = NMFProjector(4, 5)
    U, V = projector.start(Z.shape, 1)
    found = projector.project(Z, [U, V])
    for _ in range(5):
        V = V * (U.T @ (Z / (U @ V))) / U.sum(axis=0)[:, None]
        U = U * ((Z / (U @ V)) @ V.T) / V.sum(axis=1)
    np.testing.assert_allclose(found.loadings, U, rtol=1e-10)
    np.testing.assert_allclose(found.scores, nonnegative_scores(Z, U).T, atol=1e-9)
    assert kullback_leibler(Z, product(found)) < kullback_leibler(Z, U @ V)


def test_dependent_loadings_keep_the_derivative_finite():
    rng = np.random.default_rng(0)
    Z, G = rng.gamma(1.0, size=(20, 9)), rng.normal(size=(20, 9))
    U = np.repeat(rng.gamma(1.0, size=(20, 1)), 2, axis=1)  # two equal components stay equal
    V = np.repeat(rng.gamma(1.0, size=(1, 9)), 2, axis=0)
    twice = NMFProjector(2, 30).project(Z, [U, V])
    once = NMFProjector(1, 30).project(Z, [U[:, :1], 2 * V[:1]])
    np.testing.assert_allclose(product(twice), product(once), rtol=1e-8)
    np.testing.assert_allclose(twice.pull(G), once.pull(G), atol=1e-6)


def test_the_svd_projector_is_the_nearest_matrix():
    for shape in [(7, 5), (5, 7)]:
        Z = np.random.default_rng(0).normal(size=shape)
        u, s, v = np.linalg.svd(Z, full_matrices=False)
        np.testing.assert_allclose(
            product(SVDProjector(2).project(Z, [])), (u[:, :2] * s[:2]) @ v[:2], atol=1e-12
        )


def test_equal_singular_values_keep_the_derivative_finite():
    Z = np.diag([3.0, 2.0, 2.0, 1.0])
    gradient = SVDProjector(2).project(Z, []).pull(np.ones((4, 4)))
    assert np.isfinite(gradient).all()
    assert np.isfinite(SVDProjector(1).project(np.zeros((3, 3)), []).pull(np.ones((3, 3)))).all()


@pytest.mark.parametrize("shape", [(7, 4), (6, 3)])
@pytest.mark.parametrize("projector", [NMFProjector(2, 8), SVDProjector(2)], ids=str)
def test_all_four_blocks_of_the_gradient_by_differences(projector, shape, monkeypatch):
    # Transports within their tolerance of those before are taken as they are, and then the
    # objective does not answer to a difference.
    for module in ("problem", "projected.problem"):
        monkeypatch.setattr(f"polyad.quantile.{module}.TRANSPORT_TOL", 1e-13)
    X = small(*shape)
    table = feature_table(X / X.max(axis=0), read_divergence("kl"))
    objective = ProjectedObjective(table, projector, 0.01)
    rng = np.random.default_rng(0)
    free = [part + 0.4 * rng.normal(size=part.shape) for part in first_transforms(table.shape, 4)]
    start = projector.start(table.shape, 0)
    found = objective.evaluate([*free, *start], [])
    shapes, point, step = [part.shape for part in free], joined(free), 1e-5

    def value(vector):
        parameters = [*parted(vector, shapes), *start]
        return objective.evaluate(parameters, found.potentials, with_gradient=False).value

    numeric = np.array(
        [
            (value(point + step * e) - value(point - step * e)) / (2 * step)
            for e in np.eye(point.size)
        ]
    )
    blocks = zip(Transforms._fields, found.gradient[:4], parted(numeric, shapes), strict=True)
    for name, own, other in blocks:
        np.testing.assert_allclose(own, other, atol=1e-6 * np.abs(other).max(), err_msg=name)
    assert all((part == 0).all() for part in found.gradient[4:])


def test_the_first_transform_is_that_of_the_twin():
    X = small(n_samples=9, n_features=3)
    table = feature_table(X, read_divergence("kl"))
    rng = np.random.default_rng(0)
    given = Transforms(
        *(part + 0.4 * rng.normal(size=part.shape) for part in first_transforms(table.shape, 5))
    )
    objective = ProjectedObjective(table, SVDProjector(1), 0.01)
    found = objective.deflate(given, None, np.empty((3, 5)))
    B, Q = softmax(given.deflating_logits), deflating_quantiles(given.deflating_gaps)
    for i in range(3):
        expected = transported(X[:, i], np.full(9, 1 / 9), B[i], Q[i], 0.01)
        np.testing.assert_allclose(found[i], expected, rtol=1e-7)
    np.testing.assert_allclose(to_deflating_gaps(Q), given.deflating_gaps)


def test_scores_are_at_their_minimum():
    rng = np.random.default_rng(0)
    loadings, Z = rng.gamma(0.5, size=(30, 3)), rng.gamma(1.0, size=(30, 8))
    scores = nonnegative_scores(Z, loadings)
    gradient = (1 - Z / (loadings @ scores.T)).T @ loadings
    assert (scores >= 0).all()
    assert (gradient > -1e-7).all()
    assert np.abs(gradient * scores).max() < 1e-7
    expected = np.linalg.lstsq(loadings, Z, rcond=None)[0].T
    np.testing.assert_allclose(linear_scores(Z, loadings), expected)


# The estimator.


@pytest.mark.parametrize(
    ("options", "limit"), [({}, 0.12), ({"projector": "nmf", "max_iter": 30}, 0.3)]
)
def test_the_toy_of_the_paper_is_reached(options, limit):
    """NMF stays at 1.46 (see the test of QMF)."""
    X = planted()
    parameters = {"n_quantiles": 8, "random_state": 0, "max_iter": 50, "tol": 0, **options}
    model = QMFQ(8, **parameters).fit(X)
    assert model.objective_ < limit
    # What is reconstructed from the features is what the iterations have minimised.
    assert model.reconstruction_err_ == pytest.approx(model.objective_, rel=1e-7)
    features = model.factors_[0] * model.weights_
    np.testing.assert_allclose(model.transform(X), features, atol=1e-6 * np.abs(features).max())
    np.testing.assert_array_equal(model.quantiles_[:, 0], X.min(axis=0))
    np.testing.assert_array_equal(model.quantiles_[:, -1], X.max(axis=0))


@pytest.mark.parametrize("options", [{"projector": "nmf", "inner_iter": 15}, {}])
def test_new_samples_are_normalised_projected_and_mapped_back(options):
    X = planted(n_samples=80, n_features=60, n_components=2)
    model = QMFQ(2, n_quantiles=8, random_state=0, max_iter=40, **options).fit(X[:60])
    normalized = model.normalize(X[60:])
    assert normalized.shape == (20, 60)
    assert (normalized > 0).all()
    # In each feature normalising keeps the order.
    order = np.argsort(X[60:, 5])
    assert (np.diff(normalized[order, 5]) >= 0).all()
    back = model.inverse_transform(model.transform(X[60:]))
    constant = np.abs(X[60:] - X[:60].mean(axis=0)).mean()
    assert np.abs(back - X[60:]).mean() < 0.3 * constant
    np.testing.assert_allclose(
        model.transform(X[60:]) @ model.components_, normalized, atol=0.3 * normalized.max()
    )


@pytest.mark.parametrize("options", [{"projector": "nmf"}, {}])
def test_a_warm_start_of_a_loaded_model_goes_on(tmp_path, options):
    X = small()
    model = QMFQ(2, inner_iter=8, max_iter=8, tol=0, random_state=0, **options).fit(X)
    model.save(tmp_path / "model")
    warm = polyad.load(tmp_path / "model").set_params(warm_start=True, max_iter=3).fit(X)
    assert warm.history_.objective[0] == pytest.approx(model.objective_, rel=0.02)


def test_odd_features_and_float32():
    X = small(n_samples=20, n_features=8)
    X[:, 0], X[:, 1], X[:, 2] = 2.0, 0.0, X[:, 2] > np.median(X[:, 2])
    for projector in ("nmf", "svd"):
        model = QMFQ(2, projector=projector, inner_iter=20, max_iter=20, random_state=0)
        features = model.fit_transform(X.astype(np.float32))
        assert features.dtype == np.float32
        back = model.inverse_transform(features)
        assert np.isfinite(back).all()
        assert (back[:, 0] == 2).all()
        assert (back[:, 1] == 0).all()


def test_tables():
    frame = pd.DataFrame(small(n_features=3), columns=["a", "b", "c"])
    model = QMFQ(2, max_iter=5).set_output(transform="pandas")
    assert list(model.fit_transform(frame).columns) == ["qmfq0", "qmfq1"]
    assert list(model.quantile_table().index) == ["a", "b", "c"]
    assert (np.diff(model.transform_table("b")["after"]) >= 0).all()


def test_missing_entries_are_refused():
    X = small()
    X[3, 4] = np.nan
    with pytest.raises(InvalidInputError, match="NaN"):
        QMFQ().fit(X)
    with pytest.raises(InvalidInputError, match="Use QMF, which leaves them out"):
        QMFQ().fit(small(), mask=~np.isnan(X))


def test_normalized_samples_are_tables_where_these_are_asked_for():
    X = small()
    names = [[f"sample {k}" for k in range(15)], [f"gene {k}" for k in range(8)]]
    frame = pd.DataFrame(X, index=names[0], columns=names[1])
    tensor = polyad.LabelledTensor(X, modes=["sample", "gene"], labels=names)
    for data in (frame, tensor):
        model = QMFQ(2, max_iter=3, tol=0.0).fit(data)
        plain = model.normalize(data)
        assert type(plain) is np.ndarray
        found = model.set_output(transform="pandas").normalize(data)
        assert [list(found.index), list(found.columns)] == names
        np.testing.assert_array_equal(found, plain)
    unnamed = QMFQ(2, max_iter=3, tol=0.0).set_output(transform="pandas").fit(X).normalize(X[:2])
    assert [list(unnamed.index), list(unnamed.columns)] == [[0, 1], list(range(8))]


def test_a_decomposition_that_has_one_start_is_fitted_once():
    X, few = small(), {"max_iter": 3, "tol": 0.0, "n_init": 3, "random_state": 0}
    model = QMFQ(2, **few).fit(X)
    assert len(model.history_.starts) == 1
    # A warm start is another one.
    model.set_params(warm_start=True).fit(X)
    assert len(model.history_.starts) == 2
    assert len(QMFQ(2, projector="nmf", inner_iter=3, **few).fit(X).history_.starts) == 3
