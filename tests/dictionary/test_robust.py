"""Starts that lead nowhere, coarse grids, and samples of single cells."""

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from polyad import WassersteinDictionary
from polyad.dictionary import newton
from polyad.dictionary.loss import Samples
from polyad.dictionary.newton import Effort, loss_of
from polyad.dictionary.solver import DictionaryProblem
from polyad.exceptions import DataWarning
from polyad.transport import grid_geometry


@pytest.mark.parametrize("size", [1.0, 1e6, 1e12])
def test_a_lost_start_gives_the_loss_of_zero(size):
    """The loss is a bound from below: a start from which no step succeeds must not be it."""
    rng = np.random.default_rng(0)
    values = rng.dirichlet(np.ones(12), 4).reshape(4, 4, 3)
    samples = Samples.of(values, grid_geometry((4, 3), epsilon=0.1))
    model = rng.dirichlet(np.ones(12), 4).reshape(4, 4, 3)
    effort = Effort(1e-11)
    expected, _ = loss_of(samples, model, np.zeros_like(model), effort)
    found, _ = loss_of(samples, model, size * rng.normal(size=model.shape), effort)
    np.testing.assert_allclose(found, expected, atol=1e-9)


POINTS = np.zeros((6, 5, 4))
POINTS.reshape(6, -1)[np.arange(6), [0, 3, 7, 11, 15, 19]] = 1.0
CELLS = np.random.default_rng(0).random((5, 4, 3))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    ("X", "options"),
    [
        ((10 * CELLS).astype(int), {}),
        (CELLS[:, ::-1], {"axis_weights": (1, 2)}),
        (CELLS, {"metric": "cityblock", "periodic": True, "tau": 0.0}),
        (POINTS, {}),
    ],
)
def test_what_is_delivered_is_what_is_reported(X, options):
    model = WassersteinDictionary(2, max_iter=2, random_state=0, **options)
    codes = model.fit_transform(X)
    assert 0.0 <= model.objective_ <= model.history_.objective[-1] * (1 + 1e-4)
    assert model.objective_ == pytest.approx(-len(X) * model.score(X), rel=1e-6)
    np.testing.assert_allclose(model.transform(X), codes, atol=1e-4)
    np.testing.assert_allclose(model.transform(X[1:2]), codes[1:2], atol=1e-4)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_an_epsilon_that_hardly_moves_mass_is_told():
    model = WassersteinDictionary(1, epsilon=0.1, max_iter=1, random_state=0)
    with pytest.warns(DataWarning, match="nearest cell"):
        model.fit(CELLS[:2, :2, :2])
    assert 0.0 <= model.objective_ < np.inf


def test_an_interrupt_of_the_final_codes_keeps_the_fit(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("polyad.dictionary.solver.DictionarySolver.finish", interrupted)
    model = WassersteinDictionary(2, max_iter=1, random_state=0)
    with pytest.warns(ConvergenceWarning, match="interrupted"):
        model.fit(CELLS)
    assert model.atoms_.shape == (2, 4, 3)
    np.testing.assert_allclose(model.codes_.sum(axis=1), 1.0)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_equations_that_are_singular_but_for_rounding_are_left_in_silence():
    """Steps that overflow are not taken, and NumPy says nothing of them."""
    X = np.exp(np.random.default_rng(17).standard_cauchy((2, 7, 5)).clip(-30, 30))
    X[:, 0, 0] += 1
    model = WassersteinDictionary(2, debias=True, max_iter=4, tau=0.0, tol=0.0, random_state=17)
    assert np.isfinite(model.fit(X).objective_)


@pytest.mark.parametrize("seed", [1, 3])
def test_final_codes_do_not_stumble_over_rounding(seed, monkeypatch):
    """No step near the solution is halved: what is left is measured to more than its rounding."""
    X = np.random.default_rng(seed).random((6, 12, 12))
    X /= X.sum(axis=(1, 2), keepdims=True)
    problem = DictionaryProblem(Samples.of(X, grid_geometry((12, 12), epsilon=0.02)), (12, 12))
    sizes = []
    measured = newton._residual
    monkeypatch.setattr(newton, "_residual", lambda *a: sizes.append(measured(*a)) or sizes[-1])
    atoms = problem.start(4, "random", 0)[1:]
    followed, steps = newton._follow, []
    monkeypatch.setattr(newton, "_follow", lambda *a: steps.append(1) or followed(*a))
    problem.codes(atoms)
    assert len(sizes) == 2 * len(steps)
    assert all(np.all(size >= 0) for size in sizes)
