"""What only dictionaries promise: codes, masses, batches, metrics, refusals, barycenters."""

import itertools

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import parametrize_with_checks

import polyad
from polyad import LabelledTensor, WassersteinCPDictionary, WassersteinDictionary
from polyad.core.threads import OutOfTimeError, ended_when
from polyad.dictionary import wasserstein_barycenter
from polyad.dictionary.loss import Samples
from polyad.dictionary.solver import DictionaryProblem, DictionarySolver
from polyad.exceptions import (
    InvalidInputError,
    InvalidTypeError,
    ModelFileError,
    TransportWarning,
)
from polyad.report import write_report
from polyad.transport import MatrixGeometry, grid_geometry

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
BOTH = (WassersteinDictionary, WassersteinCPDictionary)


def bumps(n_samples=10, n=16, seed=0):
    """Return mixtures of two bumps on a line."""
    t = np.linspace(0, 1, n)
    two = np.exp(-((t - np.array([[0.25], [0.75]])) ** 2) / 0.005)
    return np.random.default_rng(seed).dirichlet([1, 1], n_samples) @ two


def images(n_samples=6, seed=0):
    rng = np.random.default_rng(seed)
    return rng.poisson(2.0, (n_samples, 5, 4)).astype(float) + (np.arange(20) == 3).reshape(5, 4)


def small(kind, **options):
    given = {"n_components": 2, "epsilon": 0.05, "max_iter": 3, "random_state": 0, **options}
    return kind(**given)


def bregman(X, weights, K, n_iter):
    """Return the barycenter by the projections of the specification."""
    b = np.ones_like(X)
    for _ in range(n_iter):
        a = X / (b @ K)
        q = np.exp(np.sum(weights[:, None] * np.log(b * (a @ K)), axis=0))
        b = q / (a @ K)
    return q / q.sum()


def test_one_mode_is_the_same_for_both():
    X = bumps()
    one, two = (small(kind).fit(X) for kind in BOTH)
    np.testing.assert_allclose(one.atoms_, two.components_, atol=1e-12)
    np.testing.assert_allclose(one.codes_, two.transform(X), atol=1e-9)
    assert one.objective_ == two.objective_


@pytest.mark.parametrize("kind", BOTH)
def test_the_epsilon_that_is_chosen_is_told(kind):
    model = small(kind, epsilon="auto").fit(images())
    assert model.epsilon_ == pytest.approx((1 / 4) ** 2)  # the way to the nearest of five cells
    same = small(kind, epsilon=model.epsilon_).fit(images())
    assert same.objective_ == model.objective_
    assert same.epsilon_ == model.epsilon_
    assert model.set_params(epsilon=0.5).epsilon_ == same.epsilon_


@pytest.mark.parametrize("kind", BOTH)
def test_codes_atoms_and_masses(kind):
    X = images()
    model = small(kind).fit(X)
    codes = model.transform(X)
    np.testing.assert_allclose(codes.sum(axis=1), 1.0)
    assert codes.min() >= 0
    atoms = model.atoms_
    np.testing.assert_array_equal(atoms, model.components_)
    np.testing.assert_allclose(model.codes_.sum(axis=1), 1.0)
    np.testing.assert_allclose(atoms.sum(axis=(1, 2)), 1.0)
    np.testing.assert_allclose(model.masses_, X.sum(axis=(1, 2)))
    mixed = np.tensordot(codes, atoms, axes=1)
    np.testing.assert_allclose(model.inverse_transform(codes), mixed, atol=1e-12)
    assert -model.score(X) * len(X) == pytest.approx(model.objective_, rel=1e-6)
    # Twice the mass is the same distribution, whatever else is there.
    np.testing.assert_allclose(model.transform(2 * X[1:3]), codes[1:3], atol=1e-7)


@pytest.mark.parametrize("kind", BOTH)
def test_masses_come_back(kind):
    X = images()
    model = small(kind, max_iter=1).fit(X.astype(np.float32))
    back = model.inverse_transform(model.codes_, masses=model.masses_)
    assert back.dtype == np.float32
    np.testing.assert_allclose(back.sum(axis=(1, 2)), X.sum(axis=(1, 2)), rtol=1e-5)
    for masses, told in (
        (np.ones((6, 1)), "shape"),
        (np.ones(3), "6 finite numbers"),
        (3.0, "shape"),
        (np.full(6, np.nan), "not finite"),
        (-np.ones(6), "negative"),
        (np.full(6, 1e39), "not finite"),  # in single precision
    ):
        with pytest.raises(InvalidInputError, match=told):
            model.inverse_transform(model.codes_, masses)
    for masses in ("abc", np.ones(6, complex), {1: 2}):
        with pytest.raises(InvalidTypeError, match="no real numbers"):
            model.inverse_transform(model.codes_, masses)


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("grid", [(20,), (5, 4), (5, 2, 2)])
def test_the_report_shows_atoms(kind, grid, tmp_path):
    model = small(kind, max_iter=1, epsilon=1.0).fit(images().reshape(-1, *grid))
    section = model._report_sections()[0]
    assert [own.values.shape for own in section.patterns] == [grid[:2]] * 2
    np.testing.assert_allclose([own.values.sum() for own in section.patterns], 1.0)
    assert section.table["share of all samples"].sum() == pytest.approx(1.0)
    assert section.table["samples it is most of"].sum() == 6
    assert ("sums over" in section.caption) == (len(grid) == 3)
    if grid == (5, 4):
        page = write_report(model, tmp_path / "report.html").read_text("utf-8")
        assert f"{kind.__name__} with 2 components" in page
        assert "<h2>Atoms</h2>" in page


def test_the_advice_is_about_dictionaries():
    with pytest.warns(ConvergenceWarning, match="max_iter") as caught:
        small(WassersteinCPDictionary, max_iter=1, tol=0.0).fit(images())
    assert not any("weights_" in str(own.message) for own in caught)


def test_one_atom_is_the_barycenter():
    X = bumps(4)
    for epsilon in (0.02, 0.1):
        model = WassersteinDictionary(1, epsilon=epsilon, max_iter=30, tol=1e-9, tau=1e-3).fit(X)
        middle = wasserstein_barycenter(X, epsilon=epsilon, tol=1e-11)
        np.testing.assert_allclose(model.atoms_[0], middle, atol=2e-5)


@pytest.mark.parametrize("epsilon", [0.02, 1.2e-3])
@pytest.mark.filterwarnings("ignore:wasserstein_barycenter")
def test_barycenter_is_that_of_bregman_projections(epsilon):
    X = bumps(3, n=30) + 1e-3
    X /= X.sum(axis=1, keepdims=True)
    weights = np.array([0.5, 0.3, 0.2])
    geometry = grid_geometry((30,), epsilon=epsilon)
    K = np.exp(-geometry.cost_matrix() / epsilon)
    assert geometry.is_plain(X) == (epsilon == 0.02)
    found = wasserstein_barycenter(5 * X, weights, geometry=geometry, tol=0.0, max_iter=300)
    np.testing.assert_allclose(found, bregman(X, weights, K, 300), rtol=1e-9)


@pytest.mark.parametrize(("epsilon", "spread"), [(0.002, 0.05916), (0.01, 0.08660)])
def test_barycenter_of_gaussians(epsilon, spread):
    t = np.linspace(0, 1, 101)
    X = np.exp(-0.5 * ((t - np.array([[0.2], [0.5], [0.8]])) / 0.05) ** 2)
    middle = wasserstein_barycenter(X, epsilon=epsilon)
    assert t @ middle == pytest.approx(0.5, abs=1e-6)
    assert np.sqrt((t - 0.5) ** 2 @ middle) == pytest.approx(spread, abs=2e-5)


def test_barycenter_refuses():
    X = bumps(3)
    for options, told in (
        ({"weights": [1, 1]}, "3 numbers"),
        ({"weights": [0, 0, 0]}, "all zero"),
        ({"weights": [1, -1, 1]}, "3 numbers"),
        ({"geometry": grid_geometry((4, 4), epsilon=1.0)}, "of a grid"),
        ({"geometry": grid_geometry((16,), epsilon=1.0), "epsilon": 0.5}, "has its own"),
        *(({"max_iter": given}, "max_iter=") for given in (0, -3, 1.5, "a", True)),
        *(({"tol": given}, "tol=") for given in (np.nan, -1.0, np.inf, "a", None)),
        ({"epsilon": 1e-13}, "Increase epsilon"),
    ):
        with pytest.raises(InvalidInputError, match=told):
            wasserstein_barycenter(X, **options)
    for options in (
        *({"weights": given} for given in ("abc", np.ones(3, complex), {"a": 1}, [object()] * 3)),
        *({"geometry": given} for given in (5, "sqeuclidean", np.ones((16, 16)))),
    ):
        with pytest.raises(InvalidTypeError, match="give"):
            wasserstein_barycenter(X, **options)
    with pytest.warns(TransportWarning, match="still differ"):
        wasserstein_barycenter(X, max_iter=2)


def test_weights_of_barycenters():
    X = bumps(3) + 0.01
    even = polyad.wasserstein_barycenter(X, epsilon=0.05)
    np.testing.assert_array_equal(even, wasserstein_barycenter(X, [1e308] * 3, epsilon=0.05))
    # A sample of weight zero does not count, even if it has no mass.
    without = wasserstein_barycenter(X[1:], [2, 1], epsilon=0.05)
    for other in (X[0], 0 * X[0], np.arange(16.0)):
        given = np.stack([other, X[1], X[2]])
        np.testing.assert_array_equal(
            wasserstein_barycenter(given, [0, 2, 1], epsilon=0.05), without
        )
    X[2] = 0.0
    with pytest.raises(InvalidInputError, match="positions 2"):
        wasserstein_barycenter(X, [0, 2, 1])


@pytest.mark.parametrize("epsilon", [1e-3, 1.0, 100.0])
def test_any_epsilon(epsilon):
    X = bumps(1, n=32)
    X[X < 0.1] = 0.0
    model = small(WassersteinDictionary, epsilon=epsilon, max_iter=1).fit(X)
    assert np.isfinite(model.atoms_).all()
    assert np.all(np.diff(model.history_.objective) <= 0)


def test_single_sample_and_more_atoms_than_samples():
    model = small(WassersteinDictionary).fit(images(1))
    assert model.codes_.shape == (1, 2)
    assert small(WassersteinDictionary, n_components=1).fit(images(1)).objective_ < 1e-6


def test_a_matrix_as_metric():
    X = bumps()
    geometry = grid_geometry((16,), epsilon=1.0)
    one = small(WassersteinDictionary).fit(X)
    two = small(WassersteinDictionary, metric=geometry.cost_matrix()).fit(X)
    np.testing.assert_allclose(one.atoms_, two.atoms_, atol=1e-9)


def test_a_fit_of_mostly_noise_goes_on_until_sweeps_bring_little():
    """Its losses are a small part of epsilon, which must not pass for convergence."""
    rng = np.random.default_rng(0)
    X = np.einsum("ir,jr,kr->ijk", *(rng.random((n, 3)) for n in (12, 8, 8)))
    X += rng.uniform(0, 3, X.shape)
    options = {"n_components": 3, "epsilon": 0.05, "max_iter": 40, "tau": 0.01}
    model = small(WassersteinCPDictionary, **options).fit(X)
    values = model.history_.objective
    assert values[-1] < 0.1 * len(X) * 0.05
    assert model.status_.name == "CONVERGED"
    assert len(values) > 3
    assert values[-2] - values[-1] <= 1e-3 * max(values[-2], 1e-3 * len(X) * 0.05)
    assert values[1] - values[-1] > 0.02 * values[1]


@pytest.mark.parametrize("kind", BOTH)
def test_batches(kind):
    X = images(9)
    model = small(kind)
    model.partial_fit(X[:6])
    before = model.score(X[6:])
    model.partial_fit(X[6:])
    assert model.n_samples_seen_ == 9
    assert model.score(X[6:]) > before
    np.testing.assert_allclose(model.masses_, X.sum(axis=(1, 2)))
    np.testing.assert_allclose(model._features_of_fit[6:], model.transform(X[6:]), atol=1e-6)


def test_batches_of_a_file(tmp_path):
    model = small(WassersteinCPDictionary).partial_fit(images(4)).partial_fit(images(3, seed=1))
    model.save(tmp_path / "model")
    assert polyad.load(tmp_path / "model").n_samples_seen_ == 7


@pytest.mark.parametrize(
    ("mode", "damage", "told"),
    [
        (1, lambda own: 0 * own, "mass is not one"),
        (2, lambda own: own[:-1], "mass is not one"),
        (0, lambda own: 0 * own, "codes that sum to one"),
    ],
)
def test_damaged_factors_are_not_loaded(mode, damage, told, tmp_path):
    model = small(WassersteinCPDictionary, max_iter=1).fit(images())
    model.factors_[mode] = damage(model.factors_[mode])
    model.save(tmp_path / "model")
    with pytest.raises(ModelFileError, match=told):
        polyad.load(tmp_path / "model")


@pytest.mark.parametrize("kind", BOTH)
def test_refusals(kind):
    X = images()
    empty = X.copy()
    empty[[1, 4]] = 0.0
    with pytest.raises(InvalidInputError, match="2 samples have no mass, at the positions 1, 4"):
        small(kind).fit(empty)
    hole = X.copy()
    hole[2, 3, 1] = np.nan
    for data, options in ((hole, {}), (X, {"mask": ~np.isnan(hole)})):
        with pytest.raises(InvalidInputError, match=r"NaN|Missing entries are not taken"):
            small(kind).fit(data, **options)
    with pytest.raises(InvalidInputError, match="Negative values"):
        small(kind).fit(-X)
    for options, told in (
        ({"tau": [1.0, 2.0, 3.0]}, "tau="),
        ({"tau": -1.0}, "tau"),
        ({"metric": np.zeros((3, 3))}, "cells"),
        ({"metric": np.zeros((20, 20)), "periodic": True}, "metric is a matrix"),
        ({"axis_weights": [1.0]}, "each of 2 axes"),
        ({"axis_weights": ["a", "b"]}, "each of 2 axes"),
        ({"metric": 1e308 * (1.0 - np.eye(20))}, "Increase epsilon"),
        ({"epsilon": 1e-320}, "Increase epsilon"),
    ):
        with pytest.raises(ValueError, match=told):
            small(kind, **options).fit(X)
    with pytest.raises(InvalidTypeError, match="epsilon of its own"):
        small(kind, metric=grid_geometry((5, 4), 1.0)).fit(X)
    model = small(kind).fit(X)
    with pytest.raises(InvalidInputError, match="Use fit"):
        model.set_params(n_components=3).partial_fit(X)
    with pytest.raises(InvalidInputError, match="warm_start=True goes on"):
        model.set_params(warm_start=True).fit(X)


@pytest.mark.parametrize("kind", BOTH)
def test_warm_start_goes_on(kind):
    X = images()
    model = small(kind, warm_start=True).fit(X)
    first = model.objective_
    model.fit(X)
    assert model.objective_ <= first + 1e-9
    assert model.history_.objective[0] == pytest.approx(first, rel=1e-6)


def test_labels_of_a_grid():
    X = LabelledTensor(images(), modes=["day", "hour", "place"], labels=[None, None, list("abcd")])
    model = small(WassersteinCPDictionary).fit(X)
    assert model.factor_table("place").index.tolist() == list("abcd")


# Their data has a sample of zeros, which has no mass to move and is refused by its position.
EMPTY = "a sample without mass is refused"
EXPECTED = {"check_estimators_dtypes": EMPTY, "check_fit2d_1feature": EMPTY}


@parametrize_with_checks(
    [small(WassersteinDictionary, max_iter=2, epsilon=1.0)],
    expected_failed_checks=lambda _: EXPECTED,
)
def test_scikit_learn(estimator, check):
    check(estimator)


def test_debiased_atoms_are_not_blurred():
    """The atom of equal samples is their blur, and without bias it is about the sample."""
    t = np.linspace(0, 1, 10)
    X = np.tile(np.exp(-((t - 0.5) ** 2) / 0.02), (2, 1))
    sample, apart = X[0] / X[0].sum(), []
    for debias in (False, True):
        model = small(
            WassersteinDictionary, n_components=1, max_iter=8, tol=0.0, debias=debias
        ).fit(X)
        values = model.history_.objective
        assert all(after <= before for before, after in itertools.pairwise(values))
        np.testing.assert_allclose(model.transform(X), model.codes_, atol=1e-6)
        assert -model.score(X) * len(X) == pytest.approx(model.objective_, rel=1e-3, abs=1e-9)
        apart.append(0.5 * np.abs(model.atoms_[0] - sample).sum())
    assert apart[1] < 0.4 * apart[0]
    skewed = np.triu(np.ones((10, 10)), 1)
    with pytest.raises(InvalidInputError, match="symmetric cost"):
        small(WassersteinDictionary, metric=skewed, debias=True).fit(X)


@pytest.mark.parametrize("kind", BOTH)
def test_batches_descend(kind):
    X = images(n_samples=7)
    # During a batch atoms are held by a tau of 0.1 at least: both have that.
    model = small(kind, batch_size=3, tau=0.1).fit(X)
    values = model.history_.objective
    assert all(after <= before for before, after in itertools.pairwise(values))
    assert values[-1] < values[0]
    whole, same = small(kind, tau=0.1).fit(X), small(kind, batch_size=7, tau=0.1).fit(X)
    np.testing.assert_array_equal(whole.codes_, same.codes_)
    assert model.objective_ != whole.objective_
    assert model.objective_ < 1.2 * whole.objective_


def test_costs_of_one_way():
    """Mass of the samples may only move up the line: an atom below them would cost too much."""
    index = np.arange(8)
    cost = np.where(index > index[:, None], 0.1 * (index - index[:, None]), 10.0)
    np.fill_diagonal(cost, 0.0)
    X = np.zeros((3, 8))
    X[:, 3] = 1.0
    up = wasserstein_barycenter(X, geometry=MatrixGeometry(cost, epsilon=0.1))
    down = wasserstein_barycenter(X, geometry=MatrixGeometry(cost.T, epsilon=0.1))
    np.testing.assert_allclose(up, np.exp(-cost[3] / 0.1) / np.exp(-cost[3] / 0.1).sum(), atol=1e-6)
    assert up[:3].sum() < 1e-10
    assert down[4:].sum() < 1e-10
    options = {"n_components": 1, "metric": cost, "epsilon": 0.1, "max_iter": 30, "tol": 1e-9}
    model = small(WassersteinDictionary, **options).fit(X)
    np.testing.assert_allclose(model.atoms_[0], up, atol=1e-4)


def test_the_time_budget_ends_a_sweep():
    """Sweeps at a tiny epsilon take long: they are given up between blocks of samples."""
    values = images() / images().sum(axis=(1, 2), keepdims=True)
    problem = DictionaryProblem(Samples.of(values, grid_geometry((5, 4), 0.05)), (20,))
    solver = DictionarySolver(problem, (0.1, 0.1), "sweeps")
    state = solver.begin(problem.start(2, "samples", 0))
    assert solver.gives_up_steps
    with ended_when(lambda: True), pytest.raises(OutOfTimeError):
        solver.step(state)
