"""Nonnegative CP of tensors with negative entries, against twins of a few lines."""

import numpy as np
import pytest

from polyad.exceptions import InvalidInputError
from polyad.membership.solver import (
    UPDATES,
    MomentSolver,
    ParallelQuadratic,
    decompose,
    lower_bound,
    moment_problem,
)
from polyad.tensor import DenseTensor


def model_of(factors):
    return np.einsum("ah,bh,ch->abc", *factors)


def planted(shape=(7, 8, 9), n_components=3, noise=0.0, seed=0):
    rng = np.random.default_rng(seed)
    factors = [rng.gamma(0.5, size=(size, n_components)) for size in shape]
    return factors, model_of(factors) + noise * rng.normal(size=shape)


def sweep_of_the_paper(tensor, factors, bounded):
    """Section 4 of the paper as it stands, but for modes in the order 1, 2, 0."""
    a, b, c = factors
    letters = {1: "abc,ah,ch->bh", 2: "abc,ah,bh->ch", 0: "abc,bh,ch->ah"}
    for mode in (1, 2, 0):
        x, y = [f for k, f in enumerate((a, b, c)) if k != mode]
        q = (x.T @ x) * (y.T @ y)
        z = -np.einsum(letters[mode], tensor, x, y)
        phi = 1e-12 * np.abs(z).max()
        if bounded:
            reach = np.sqrt(np.diag(z @ np.linalg.inv(q) @ z.T) / np.linalg.eigvalsh(q)[0])
            phi = phi + 0.5 * np.maximum(np.outer(reach, np.diag(q)) - np.abs(z), 0)
        old = (a, b, c)[mode]
        new = old * (np.maximum(-z, 0) + phi) / (old @ q + np.maximum(z, 0) + phi)
        a, b, c = (new if k == mode else f for k, f in enumerate((a, b, c)))
    return [a, b, c]


@pytest.mark.parametrize("update", ["pqp", "eps"])
def test_a_step_is_that_of_the_paper(update):
    _, tensor = planted(noise=0.5)
    solver = MomentSolver(moment_problem(DenseTensor(tensor), update), update)
    state = solver.random(3, seed=1)
    expected = model_of(sweep_of_the_paper(tensor, state.factors, bounded=update == "pqp"))
    np.testing.assert_allclose(model_of(solver.step(state).factors), expected, rtol=1e-10)


def test_a_step_of_wnmf_is_that_of_the_paper():
    _, tensor = planted(noise=0.5)
    solver = MomentSolver(moment_problem(DenseTensor(tensor), "wnmf"), "wnmf")
    state = solver.random(3, seed=1)
    seen, factors = tensor > 0, list(state.factors)
    letters = {1: "abc,ah,ch->bh", 2: "abc,ah,bh->ch", 0: "abc,bh,ch->ah"}
    for mode in (1, 2, 0):
        others = [f for k, f in enumerate(factors) if k != mode]
        above = np.einsum(letters[mode], seen * tensor, *others)
        below = np.einsum(letters[mode], seen * model_of(factors), *others)
        factors[mode] = factors[mode] * above / below
    np.testing.assert_allclose(model_of(solver.step(state).factors), model_of(factors), rtol=1e-9)


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_no_sweep_raises_the_residual(update, noise):
    _, tensor = planted(noise=noise, seed=2)
    assert noise == 0 or (tensor < 0).mean() > 0.2
    solver = MomentSolver(moment_problem(DenseTensor(tensor), update), update)
    state = solver.random(4, seed=0)
    seen = tensor > 0 if update == "wnmf" else np.ones(tensor.shape, bool)
    for _ in range(30):
        before, state = state, solver.step(state)
        assert all((factor >= 0).all() for factor in state.factors)
        old, new = (np.sum((seen * (tensor - model_of(s.factors))) ** 2) for s in (before, state))
        assert new <= old * (1 + 1e-12)
        told = 2 * solver.objective(state) + np.sum((seen * tensor) ** 2)
        assert told == pytest.approx(new, abs=1e-9 * np.sum(tensor**2))


@pytest.mark.parametrize("update", UPDATES)
def test_the_truth_is_a_fixed_point(update):
    factors, tensor = planted()
    solver = MomentSolver(moment_problem(DenseTensor(tensor), update), update)
    state = solver.step(solver.init(factors))
    np.testing.assert_allclose(model_of(state.factors), tensor, atol=1e-9)


@pytest.mark.parametrize("update", ["nnls", "eps"])
def test_planted_factors_are_found(update):
    factors, tensor = planted()
    found = decompose(tensor, 3, update=update, max_iter=1000, tol=1e-7, n_init=2, random_state=0)
    assert found.residual < 1e-2 * np.linalg.norm(tensor)
    for mine, theirs in zip(found.factors, factors, strict=True):
        cosines = (mine / np.linalg.norm(mine, axis=0)).T @ (
            theirs / np.linalg.norm(theirs, axis=0)
        )
        assert (cosines.max(axis=0) > 0.99).all()


def test_a_positive_tensor_whose_factors_are_not():
    """The example of the paper (spec d12): the best nonnegative model misses something."""
    tensor = np.stack([[[1.0, 3.0], [2.0, 2.0]], [[2.0, 2.0], [2.0, 2.0]]], axis=2)
    exact = np.einsum("a,b,c->abc", [1, 1], [2, 2], [1, 1]) + np.einsum(
        "a,b,c->abc", [1, 0], [-1, 1], [1, 0]
    )
    np.testing.assert_array_equal(tensor, exact)
    found = decompose(tensor, 2, max_iter=500, tol=0.0, n_init=2, random_state=0)
    assert found.residual > 0.05
    assert min(factor.min() for factor in found.factors) >= 0


def test_starts_and_threads():
    _, tensor = planted(noise=1.0)
    one, again, more = (
        decompose(tensor, 3, n_init=n, max_iter=50, random_state=3) for n in (1, 1, 4)
    )
    assert all(map(np.array_equal, one.factors, again.factors))
    assert more.residual <= one.residual


def test_phi_of_collinear_components_is_its_least_value():
    assert not lower_bound(np.ones((2, 2)), np.ones((5, 2))).any()
    rule = ParallelQuadratic(bounded=True)
    assert np.isfinite(rule.solve(np.ones((2, 2)), np.ones((5, 2)), np.ones((5, 2)), 0)).all()


@pytest.mark.parametrize("tensor", [np.zeros((3, 3, 3)), -np.ones((3, 4, 5))])
@pytest.mark.parametrize("update", UPDATES)
def test_nothing_to_find_gives_nothing(tensor, update):
    found = decompose(tensor, 2, update=update, max_iter=200, random_state=0)
    assert all(np.isfinite(factor).all() for factor in found.factors)
    # Where no entry is positive, wnmf has nothing to fit.
    assert update == "wnmf" or np.abs(model_of(found.factors)).max() < 0.1


def test_what_is_refused():
    with pytest.raises(InvalidInputError, match="'hals' is not one of"):
        decompose(np.ones((2, 2, 2)), 1, update="hals")
