"""The sums of a loss and their gradients: against a twin, differences, and each other."""

import numpy as np
import pytest
import torch
from scipy.sparse import coo_array

from polyad import GeneralizedCP
from polyad.core.threads import thread_limit
from polyad.cp.generalized import tiles
from polyad.cp.generalized.problem import DenseProblem, ZerosProblem, build_problem
from polyad.data.validation import as_tensor_input
from polyad.losses.names import read_loss
from tests.cp.generalized.examples import LOSS, NAMES, TAKES_ZERO, data_for, factors_for, twin

SHAPES = [(6, 5), (6, 5, 4), (4, 3, 3, 2)]
each_loss = pytest.mark.parametrize("name", NAMES)


def problem_of(data, name, missing="zero"):
    return build_problem(as_tensor_input(data, allow_nan=True), missing, LOSS[name])


def assert_equal_sums(problem, expected, factors):
    value, gradients = problem.evaluate(factors)
    assert value == pytest.approx(expected[0], rel=1e-10, abs=1e-9)
    assert problem.value(factors) == pytest.approx(expected[0], rel=1e-10, abs=1e-9)
    for own, other in zip(gradients, expected[1], strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-9, atol=1e-9)


@each_loss
@pytest.mark.parametrize("shape", SHAPES)
def test_all_kinds_of_data_equal_the_twin(name, shape):
    X, factors = data_for(name, shape), factors_for(name, shape)
    observed = np.random.default_rng(2).random(shape) < 0.7
    holed = np.where(observed, X, np.nan)
    stored = coo_array((X[observed], np.nonzero(observed)), shape=shape)
    whole, some = twin(LOSS[name], X, factors), twin(LOSS[name], X, factors, observed)
    assert_equal_sums(problem_of(X, name), whole, factors)
    assert_equal_sums(problem_of(np.asfortranarray(X), name), whole, factors)
    assert_equal_sums(problem_of(holed, name), some, factors)
    assert_equal_sums(problem_of(np.asfortranarray(holed), name), some, factors)
    assert_equal_sums(problem_of(stored, name, "unobserved"), some, factors)
    if name in TAKES_ZERO:
        assert_equal_sums(problem_of(coo_array(X), name), whole, factors)
    if name != "custom":  # its functions are those of NumPy
        assert_equal_sums(problem_of(torch.asarray(X), name), whole, factors)
        assert_equal_sums(problem_of(torch.asarray(holed), name), some, factors)


@each_loss
def test_gradient_by_central_differences(name):
    problem = problem_of(data_for(name), name)
    factors = factors_for(name)
    _, gradients = problem.evaluate(factors)
    generator = np.random.default_rng(3)
    for mode, gradient in enumerate(gradients):
        for _ in range(4):
            place = tuple(generator.integers(0, n) for n in gradient.shape)
            values = []
            for step in (1e-6, -1e-6):
                moved = [factor.copy() for factor in factors]
                moved[mode][place] += step
                values.append(problem.evaluate(moved)[0])
            numeric = (values[0] - values[1]) / 2e-6
            assert gradient[place] == pytest.approx(numeric, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("name", ["bernoulli-odds", "gamma"])
@pytest.mark.parametrize("shape", [(1000, 700), (30, 100, 90), (3, 40_000)])
def test_many_tiles_and_threads(name, shape):
    X, factors = data_for(name, shape), factors_for(name, shape)
    problem = problem_of(X, name)
    assert len(problem.cells.blocks()[0]) * len(problem.cells.blocks()[1]) > 1 or X.size < 2**18
    results = []
    for n_jobs in (1, 2, 3):
        with thread_limit(n_jobs):
            results.append(problem.evaluate(factors))
    assert_equal_sums(problem, twin(LOSS[name], X, factors), factors)
    for other in results[1:]:
        assert other[0] == results[0][0]
        for left, right in zip(results[0][1], other[1], strict=True):
            assert left.tobytes() == right.tobytes()


@pytest.mark.parametrize("shape", [(1, 1), (1, 5000), (77, 1), (513, 257), (70_000, 3)])
def test_tiles_cover_every_cell_once(shape):
    seen = np.zeros(shape, int)
    rows, columns = tiles.TiledMatrix(shape).blocks()
    for tall in rows:
        for wide in columns:
            for tile in tiles.tiles(tall, wide):
                seen[tile] += 1
    assert (seen == 1).all()


@pytest.mark.parametrize("power", [-40, -12, 12, 40])
@pytest.mark.parametrize("kind", [np.asarray, coo_array, torch.asarray])
@pytest.mark.parametrize("name", ["gaussian", "poisson", "huber", "beta"])
def test_the_unit_of_the_data(name, kind, power):
    """Data and model in another unit: the sums follow the degree of the loss."""
    unit = 2.0**power
    X, factors = data_for(name), factors_for(name)
    problem = problem_of(kind(X), name)
    scaled = build_problem(as_tensor_input(kind(X * unit)), "zero", LOSS[name].divided(1 / unit))
    assert abs(scaled.exponent - power) <= 4
    moved = [factors[0] * 2.0 ** (power - scaled.exponent), *factors[1:]]
    value = scaled.evaluate(moved)[0] * scaled.unit
    expected = problem.evaluate(factors)[0] * unit ** LOSS[name].degree
    assert value == pytest.approx(expected, rel=1e-7)


def test_comfortable_data_is_left_as_it_is():
    problem = problem_of(data_for("poisson"), "poisson")
    assert problem.exponent == 0
    assert problem.unit == 1.0
    assert problem_of(1e9 * data_for("poisson"), "poisson-log").exponent == 0


@each_loss
def test_best_constant(name):
    X = data_for(name)
    problems = [problem_of(X, name)]
    if name in TAKES_ZERO:
        problems.append(problem_of(coo_array(X), name))
    for problem in problems:
        m, value = problem.constant
        assert value == pytest.approx(np.sum(LOSS[name].value(X, np.full_like(X, m))))
        for other in (m + 0.01, m - 0.01):
            assert np.sum(LOSS[name].value(X, np.full_like(X, other))) > value


def test_constants_at_one_end():
    ones = problem_of(np.ones((3, 4)), "bernoulli-odds")
    assert ones.constant == (np.inf, 0.0)
    zeros = problem_of(np.zeros((3, 4)), "bernoulli-logit")
    assert zeros.constant == (-np.inf, 0.0)
    assert not zeros.is_zero
    assert problem_of(np.zeros((3, 4)), "bernoulli-odds").is_zero


def test_sparse_zeros_that_are_too_many():
    coords = tuple(np.random.default_rng(0).integers(0, 1000, (3, 50)))
    huge = as_tensor_input(coo_array((np.ones(50), coords), shape=(1000,) * 3))
    assert not build_problem(huge, "zero", read_loss("bernoulli")).is_exact
    for name in ("gaussian", "poisson"):
        problem = build_problem(huge, "zero", read_loss(name))
        assert isinstance(problem, ZerosProblem)
        assert problem.is_exact
        factors = factors_for(name, (1000,) * 3, 2)
        assert np.isfinite(problem.evaluate(factors)[0])


def test_slices_without_observations():
    X = data_for("poisson")
    X[2] = np.nan
    X[:, :, 3] = np.nan
    problem = problem_of(X, "poisson")
    assert problem.unobserved_slices() == [(0, 2), (2, 3)]
    assert problem.observed_slices(1) is None


def test_the_best_constant_is_found_once_for_a_fit(monkeypatch):
    passes, plain = [], DenseProblem.evaluate_constant

    def counted(self, m):
        passes.append(m)
        return plain(self, m)

    monkeypatch.setattr(DenseProblem, "evaluate_constant", counted)
    GeneralizedCP(1, loss="poisson", n_init=3, max_iter=2, tol=1.0).fit(data_for("poisson"))
    assert len(passes) == 1
