"""The mathematics of dictionaries against closed forms, twins and brute force."""

import itertools

import numpy as np
import pytest
from scipy.optimize import linprog, minimize

from polyad.dictionary.loss import Conjugate, Samples
from polyad.dictionary.newton import (
    Block,
    Effort,
    dense_model,
    loss_of,
    project_simplex,
    solve_block,
)
from polyad.dictionary.solver import DictionaryProblem, DictionarySolver
from polyad.fitting import FitOptions, fit_best
from polyad.transport import MatrixGeometry, grid_geometry

EXACT = Effort(1e-11, 80, 80)


def line(n, epsilon):
    return grid_geometry((n,), epsilon=epsilon, metric="euclidean")


def two_cells():
    return Samples.of(np.array([[0.7, 0.3]]), MatrixGeometry([[0, 1], [1, 0]], epsilon=0.5))


def losses(samples, model):
    return loss_of(samples, model, np.zeros_like(samples.values), EXACT)[0]


def random_samples(geometry, n_samples=4, seed=0):
    rng = np.random.default_rng(seed)
    values = rng.dirichlet(np.full(geometry.n_cells, 0.5), n_samples)
    values[values < 0.02] = 0.0
    values /= values.sum(axis=1, keepdims=True)
    return Samples.of(values.reshape(-1, *geometry.shape), geometry)


def sinkhorn_loss(x, y, cost, epsilon, n_iter=5000):
    """Return the entropic loss by plain Sinkhorn steps."""
    K = np.exp(-cost / epsilon)
    b = np.ones_like(y)
    for _ in range(n_iter):
        a = x / (K @ b)
        b = y / (K.T @ a)
    plan = a[:, None] * K * b
    logs = np.log(np.where(plan > 0, plan, 1.0))
    return float(np.sum(cost * plan) + epsilon * np.sum(plan * logs))


def test_two_cells_to_the_printed_digits():
    samples = two_cells()
    assert samples.blurred()[0, 0] == pytest.approx(0.6523188312, abs=1e-10)
    assert samples.least[0] == pytest.approx(-0.3688961565, abs=1e-10)
    assert losses(samples, np.array([[0.7, 0.3]]))[0] == pytest.approx(-0.3632485021, abs=1e-10)
    assert losses(samples, np.array([[0.5, 0.5]]))[0] == pytest.approx(-0.3212671584, abs=1e-10)


@pytest.mark.parametrize(
    ("tau", "code", "objective"),
    [
        (0.1, 0.6461259893, -0.3666701070),
        (1.0, 0.6049604697, -0.3527862859),
        (10.0, 0.5251373578, -0.3286105134),
    ],
)
def test_codes_of_two_cells_to_the_printed_digits(tau, code, objective):
    samples = two_cells()
    block = Block([np.array([[0.5, 0.5]]), np.eye(2)], 0, tau, (2,))
    found, _ = solve_block(samples, block, np.zeros((1, 2)), EXACT)
    assert found[0, 0] == pytest.approx(code, abs=1e-8)
    value = losses(samples, found)[0] + 0.5 * tau * np.sum((found - 0.5) ** 2)
    assert value == pytest.approx(objective, abs=1e-10)


def test_the_blur_of_six_cells():
    x = np.array([[0.1, 0.2, 0.3, 0.2, 0.1, 0.1]])
    samples = Samples.of(x, line(6, 0.3))
    expected = [0.13473942, 0.19134302, 0.22122090, 0.19311622, 0.14740141, 0.11217904]
    np.testing.assert_allclose(samples.blurred()[0], expected, atol=1e-8)
    assert losses(samples, samples.blurred())[0] == pytest.approx(samples.least[0], abs=1e-12)


@pytest.mark.parametrize("epsilon", [1e-3, 0.05, 1.0, 100.0])
def test_value_gradient_and_curvature_of_the_conjugate(epsilon):
    samples = random_samples(grid_geometry((3, 4), epsilon=epsilon))
    rng = np.random.default_rng(1)
    at, way = (epsilon * rng.normal(size=samples.values.shape) for _ in range(2))
    conjugate = Conjugate.at(samples, at)
    np.testing.assert_allclose(conjugate.mean.sum(axis=(1, 2)), 1.0, rtol=1e-12)
    cost = samples.geometry.cost_matrix()
    x, flat = samples.values.reshape(4, -1), at.reshape(4, -1)
    for i in range(4):
        exponents = (flat[i] - cost) / epsilon
        high = exponents.max(axis=1)
        own = high + np.log(np.exp(exponents - high[:, None]).sum(axis=1))
        seen = x[i] > 0
        twin = epsilon * np.sum(x[i, seen] * (own[seen] - np.log(x[i, seen])))
        assert conjugate.value[i] == pytest.approx(twin, rel=1e-10, abs=1e-12 * epsilon)
    above, below = (Conjugate.at(samples, at + s * 1e-5 * way) for s in (1, -1))
    slope = (above.value - below.value) / 2e-5
    expected = np.sum(conjugate.mean * way, axis=(1, 2))
    np.testing.assert_allclose(slope, expected, atol=1e-8 * epsilon)
    bend = epsilon * (above.mean - below.mean) / 2e-5
    curvature = conjugate.mean * way - conjugate.returned(way, slice(None))
    np.testing.assert_allclose(curvature, bend, atol=1e-8 * epsilon)


@pytest.mark.parametrize("epsilon", [0.05, 0.5])
def test_the_loss_is_that_of_sinkhorn(epsilon):
    samples = random_samples(grid_geometry((3, 3), epsilon=epsilon))
    model = np.random.default_rng(2).dirichlet(np.ones(9), 4)
    found = losses(samples, model.reshape(-1, 3, 3))
    cost = samples.geometry.cost_matrix()
    for i in range(4):
        twin = sinkhorn_loss(samples.values[i].ravel(), model[i], cost, epsilon)
        assert found[i] == pytest.approx(twin, abs=1e-9)


def test_the_loss_between_the_linear_program_and_independence():
    cost = grid_geometry((5,), epsilon=1.0).cost_matrix()
    x, y = np.random.default_rng(0).dirichlet(np.ones(5), 2)
    sums = np.vstack([np.kron(np.eye(5), np.ones(5)), np.kron(np.ones(5), np.eye(5))])
    program = linprog(cost.ravel(), A_eq=sums, b_eq=np.concatenate([x, y])).fun
    small = Samples.of(x[None], grid_geometry((5,), epsilon=1e-3))
    assert losses(small, y[None])[0] == pytest.approx(program, abs=1e-2)
    large = Samples.of(x[None], grid_geometry((5,), epsilon=100.0))
    expected = x @ cost @ y + 100.0 * (x @ np.log(x) + y @ np.log(y))
    assert losses(large, y[None])[0] == pytest.approx(expected, abs=1e-3)


BLOCKS = {"codes": (0, (12,)), "atoms": (1, (12,)), "rows": (1, (3, 4)), "columns": (2, (3, 4))}


def block_case(name, tau, epsilon=0.1):
    mode, modes = BLOCKS[name]
    samples = random_samples(grid_geometry((3, 4), epsilon=epsilon))
    rng = np.random.default_rng(3)
    factors = [rng.dirichlet(np.ones(2), 4), *(rng.dirichlet(np.ones(n), 2).T for n in modes)]
    return samples, Block(factors, mode, tau, (3, 4))


@pytest.mark.parametrize("name", BLOCKS)
def test_adjoints(name):
    samples, block = block_case(name, 1.0)
    rng = np.random.default_rng(4)
    factor, values = rng.normal(size=block.origin.shape), rng.normal(size=samples.values.shape)
    left = np.sum(block.model(factor) * values)
    assert left == pytest.approx(np.sum(factor * block.adjoint(values)), rel=1e-12)


def solved(samples, block, effort=EXACT):
    start = loss_of(samples, block.model(block.origin), np.zeros_like(samples.values), EXACT)[1]
    return solve_block(samples, block, start, effort)


def primal(samples, block, factor):
    near = 0.5 * block.tau * np.sum((factor - block.origin) ** 2)
    return losses(samples, block.model(factor)).sum() + near


def duality_gap(samples, block, factor, dual):
    pull, tau = block.adjoint(dual), block.tau
    if tau > 0:
        best = project_simplex(block.origin + pull / tau, axis=block.simplex)
        second = np.sum(pull * best) - 0.5 * tau * np.sum((best - block.origin) ** 2)
    else:
        second = pull.max(axis=block.simplex).sum()
    bound = -(Conjugate.at(samples, -dual).value.sum() + second)
    return primal(samples, block, factor) - bound


@pytest.mark.parametrize("tau", [0.0, 0.01, 1.0, 30.0])
@pytest.mark.parametrize("name", BLOCKS)
def test_block_problems_have_no_duality_gap(name, tau):
    samples, block = block_case(name, tau)
    factor, dual = solved(samples, block)
    np.testing.assert_allclose(factor.sum(axis=block.simplex), 1.0, rtol=1e-12)
    assert factor.min() >= 0
    if tau > 0:  # Algorithms 2 and 3: the factor is the projection that the dual tells
        best = project_simplex(block.origin + block.adjoint(dual) / tau, axis=block.simplex)
        np.testing.assert_allclose(factor, best, atol=1e-5 / min(tau, 1))
    # Without a proximal term the equations of the last steps are singular but for damping.
    precision = 1e-9 if tau > 0 else 1e-8
    assert duality_gap(samples, block, factor, dual) == pytest.approx(0.0, abs=precision)


@pytest.mark.parametrize("gap", [1e-2, 1e-4])
@pytest.mark.parametrize("epsilon", [0.03, 0.3])
@pytest.mark.parametrize("tau", [0.0, 0.1])
@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_ends_within_the_gap_that_is_asked_for(name, tau, epsilon, gap):
    samples, block = block_case(name, tau, epsilon)
    factor, dual = solved(samples, block, Effort(gap))
    share = len(factor) if block.is_separable else 1
    assert -1e-9 <= duality_gap(samples, block, factor, dual) <= share * gap


@pytest.mark.parametrize("name", BLOCKS)
def test_block_problems_against_brute_force(name):
    samples, block = block_case(name, 0.1)
    factor, _ = solved(samples, block)
    axis = block.simplex
    dual = np.zeros_like(samples.values)

    def value(z):
        nonlocal dual
        raised = np.exp(z.reshape(factor.shape))
        tried = raised / raised.sum(axis=axis, keepdims=True)
        own, dual = loss_of(samples, block.model(tried), dual, Effort(1e-10))
        moved = tried - block.origin
        slope = block.tau * moved - block.adjoint(dual)
        slope = tried * (slope - np.sum(tried * slope, axis=axis, keepdims=True))
        return own.sum() + 0.5 * block.tau * np.sum(moved**2), slope.ravel()

    start = np.log(block.origin).ravel()
    found = minimize(value, start, jac=True, method="L-BFGS-B", options={"maxiter": 100})
    best = primal(samples, block, factor)
    assert best <= found.fun + 1e-8
    assert best == pytest.approx(found.fun, abs=1e-4)


@pytest.mark.parametrize("modes", [(12,), (3, 4)])
def test_losses_between_sweeps_are_known_to_a_part_of_what_these_bring(modes):
    samples = random_samples(grid_geometry((3, 4), epsilon=0.1), 8)
    problem = DictionaryProblem(samples, modes)
    solver = DictionarySolver(problem, (0.001, 0.001), "dictionary")
    state = solver.begin(problem.start(2, "samples", 0))
    for _ in range(8):
        before, state = state, solver.step(state)
        exact, _ = problem.value(state.blocks, [])
        assert exact - state.value == pytest.approx(0.0, abs=0.1 * (before.value - state.value))


def fitted(samples, modes, rank, tau, *, max_iter=4, tol=0.0, seed=0):
    problem = DictionaryProblem(samples, modes)
    solver = DictionarySolver(problem, (tau, tau), "dictionary")
    options = FitOptions(max_iter=max_iter, tol=tol)
    return solver, fit_best(
        solver, lambda _, s: solver.begin(problem.start(rank, "random", s)), [seed], options
    )


@pytest.mark.parametrize("tau", [1e-3, 0.1, 15.0])
@pytest.mark.parametrize("modes", [(12,), (3, 4)])
def test_sweeps_never_raise_the_loss(tau, modes):
    samples = random_samples(grid_geometry((3, 4), epsilon=0.1), n_samples=6)
    _, result = fitted(samples, modes, 2, tau)
    values = result.history.objective
    assert all(after <= before for before, after in itertools.pairwise(values))
    assert values[-1] < values[0]


def test_a_huge_tau_moves_nothing():
    samples, block = block_case("codes", 1e9)
    factor, _ = solved(samples, block)
    np.testing.assert_allclose(factor, block.origin, atol=1e-8)


def test_one_sample_and_one_atom_are_the_blur():
    samples = random_samples(line(6, 0.3), n_samples=1)
    _, result = fitted(samples, (6,), 1, 1e-4, max_iter=5)
    np.testing.assert_allclose(result.state.blocks[1][:, 0], samples.blurred()[0], atol=1e-5)
    assert result.state.value == pytest.approx(0.0, abs=1e-9)


def test_a_dead_atom_begins_again_as_the_worst_sample():
    samples = random_samples(line(8, 0.05), n_samples=5)
    problem = DictionaryProblem(samples, (8,))
    blocks = problem.start(2, "samples", 0)
    blocks[0] = np.tile([1.0, 0.0], (5, 1))
    value, memory = problem.value(blocks, [])
    revived = problem.revived(blocks, memory)
    worst = int(np.argmax(memory[1]))
    np.testing.assert_allclose(revived[1][:, 1], samples.blurred()[worst], rtol=1e-10)
    assert problem.value(revived, memory)[0] == pytest.approx(value, abs=1e-9)


def test_of_more_dead_atoms_than_samples_as_many_begin_again():
    samples = random_samples(line(8, 0.05), n_samples=1)
    problem = DictionaryProblem(samples, (8,))
    blocks = problem.start(3, "random", 0)
    blocks[0] = np.array([[1.0, 0.0, 0.0]])
    value, memory = problem.value(blocks, [])
    revived = problem.revived(blocks, memory)
    np.testing.assert_allclose(revived[1][:, 1], samples.blurred()[0], rtol=1e-10)
    np.testing.assert_array_equal(revived[1][:, 2], blocks[1][:, 2])
    assert problem.value(revived, memory)[0] == pytest.approx(value, abs=1e-9)


def test_projection_on_the_simplex():
    values = np.random.default_rng(0).normal(size=(5, 7))
    for axis in (0, 1):
        found = project_simplex(values, axis)
        np.testing.assert_allclose(found.sum(axis=axis), 1.0)
        np.testing.assert_allclose(project_simplex(found, axis), found, atol=1e-14)
        np.testing.assert_allclose(project_simplex(values + 3.0, axis), found, atol=1e-13)
        other = np.random.default_rng(1).dirichlet(np.ones(values.shape[axis]))
        other = other[None, :] if axis else other[:, None]
        # The angle between what is left and any way into the simplex is not acute.
        assert np.all(np.sum((values - found) * (other - found), axis=axis) <= 1e-12)


def test_dense_model_is_the_sum_of_outer_products():
    rng = np.random.default_rng(0)
    factors = [rng.random((n, 2)) for n in (5, 3, 4)]
    twin = np.einsum("ir,jr,kr->ijk", *factors)
    np.testing.assert_allclose(dense_model(factors, (3, 4)), twin)


@pytest.mark.parametrize("modes", [(20,), (5, 4)])
def test_on_a_torus_moved_data_has_moved_atoms(modes):
    """Sweeps from a moved start over moved samples give the same codes, and moved atoms."""
    geometry = grid_geometry((5, 4), epsilon=0.05, metric="euclidean", periodic=True)
    samples = random_samples(geometry, n_samples=5)
    codes, *factors = DictionaryProblem(samples, modes).start(2, "random", 0)

    def moved(values, first):
        axes = tuple(range(first, first + 2))
        return np.roll(values, (2, 3), axis=axes)

    if len(modes) == 1:
        turned = [moved(factors[0].reshape(5, 4, 2), 0).reshape(20, 2)]
    else:
        turned = [np.roll(own, by, axis=0) for own, by in zip(factors, (2, 3), strict=True)]
    found = []
    for values, atoms in ((samples.values, factors), (moved(samples.values, 1), turned)):
        problem = DictionaryProblem(Samples.of(values, geometry), modes)
        solver = DictionarySolver(problem, (0.1, 0.1), "dictionary")
        state = solver.begin([codes, *atoms])
        for _ in range(3):
            state = solver.step(state)
        found.append((state.blocks[0], dense_model([np.eye(2), *state.blocks[1:]], (5, 4))))
    np.testing.assert_allclose(found[1][0], found[0][0], atol=1e-6)
    np.testing.assert_allclose(found[1][1], moved(found[0][1], 1), atol=1e-6)
    assert np.abs(found[0][1] - found[1][1]).max() > 1e-3
