"""Sinkhorn with dense plans, and the distances of Definitions 1 and 2."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.sparse import coo_array
from scipy.stats import wasserstein_distance as of_one_dimension

from polyad import LabelledTensor, wasserstein_distance
from polyad.exceptions import InvalidInputError, InvalidTypeError
from polyad.transport import grid_cost, one_identity_cost, random_cost, sinkhorn
from tests.transport.reference import value_of_plan


def metric(size, seed=0):
    """Distances of random points: a metric."""
    points = np.random.default_rng(seed).random((size, 3))
    return np.linalg.norm(points[:, None] - points, axis=2)


def distributions(shape, seed, axis=0):
    data = np.random.default_rng(seed).gamma(0.5, size=shape)
    return data / data.sum(axis=axis)


def test_one_minus_identity_is_the_total_variation():
    x, y = distributions((6, 2), 0).T
    found = wasserstein_distance(x, y, one_identity_cost(6))
    assert found == pytest.approx(0.5 * np.abs(x - y).sum(), rel=1e-9)


def test_against_one_dimension():
    x, y = distributions((9, 2), 1).T
    cost = np.abs(np.subtract.outer(np.arange(9.0), np.arange(9.0)))
    expected = of_one_dimension(np.arange(9), np.arange(9), x, y)
    assert wasserstein_distance(x, y, cost) == pytest.approx(expected, rel=1e-8)


@settings(max_examples=10)
@given(st.integers(0, 10**6))
def test_axioms_between_vectors(seed):
    cost = metric(5, seed)
    x, y, z = distributions((5, 3), seed).T
    there, back = wasserstein_distance(x, y, cost), wasserstein_distance(y, x, cost)
    assert there == pytest.approx(back, abs=1e-9)
    assert there > 0
    detour = wasserstein_distance(x, z, cost) + wasserstein_distance(z, y, cost)
    assert there <= detour + 1e-9
    assert wasserstein_distance(x, x, cost) == pytest.approx(0, abs=1e-9)


def evened(seed, shape=(3, 4, 2)):
    """A tensor whose fibres along a mode all have the same mass, for each mode."""
    data = np.random.default_rng(seed).random(shape) + 0.2
    for _ in range(500):
        for axis in range(3):
            data /= data.mean(axis=axis, keepdims=True)
    return data


def test_axioms_between_tensors():
    costs = [metric(3, 1), metric(4, 2), metric(2, 3)]
    x, y, z = (evened(seed) for seed in range(3))
    there = wasserstein_distance(x, y, costs)
    assert there > 0
    assert there == pytest.approx(wasserstein_distance(y, x, costs), rel=1e-8)
    assert wasserstein_distance(x, x, costs) == pytest.approx(0, abs=1e-9)
    detour = wasserstein_distance(x, z, costs) + wasserstein_distance(z, y, costs)
    assert there <= detour + 1e-9


def test_matrices_are_summed_over_columns_and_tensors_over_modes():
    cost = metric(4)
    x, y = distributions((4, 3), 3), distributions((4, 3), 4)
    columns = sum(wasserstein_distance(x[:, j], y[:, j], cost) for j in range(3))
    assert wasserstein_distance(x, y, cost) == pytest.approx(columns, rel=1e-9)
    x, y = evened(5), evened(6)
    costs = [metric(3, 1), metric(4, 2), metric(2, 3)]
    modes = sum(
        wasserstein_distance(
            np.moveaxis(x, mode, 0).reshape(x.shape[mode], -1),
            np.moveaxis(y, mode, 0).reshape(x.shape[mode], -1),
            costs[mode],
        )
        for mode in range(3)
    )
    assert wasserstein_distance(x, y, costs) == pytest.approx(modes, rel=1e-9)


def test_sparse_data_and_empty_columns():
    x, y = distributions((4, 5), 5), distributions((4, 5), 6)
    x[:, 2] = y[:, 2] = 0
    expected = wasserstein_distance(x, y, metric(4))
    found = wasserstein_distance(coo_array(x), coo_array(y), metric(4))
    assert found == pytest.approx(expected, rel=1e-12)


def test_counts_and_single_precision():
    x, y = np.array([3, 1, 0], np.int8), np.array([0, 1, 3], np.int8)
    cost = grid_cost(3)
    assert wasserstein_distance(x, y, cost) == pytest.approx(2.5)
    assert wasserstein_distance(coo_array(x[:, None]), coo_array(y[:, None]), cost) == (
        pytest.approx(2.5)
    )
    assert wasserstein_distance(x.astype(np.float32), y, cost) == pytest.approx(2.5)


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_the_unit_of_mass(scale):
    x, y = distributions((5, 2), 7).T
    expected = scale * wasserstein_distance(x, y, metric(5))
    assert wasserstein_distance(scale * x, scale * y, metric(5)) == pytest.approx(expected)


def test_entropy_vanishes():
    """The entropic value tends to the exact one; it is below, because the entropy is above 0."""
    x, y = distributions((5, 2), 8).T
    cost = metric(5)
    exact = wasserstein_distance(x, y, cost)
    found = [wasserstein_distance(x, y, cost, epsilon=epsilon) for epsilon in (0.1, 0.01, 0.001)]
    assert np.all(np.diff(found) > 0)
    assert found[-1] == pytest.approx(exact, abs=5e-3)
    assert found[-1] <= exact


def test_entropic_value_of_two_positions():
    """T = [[t, h - t], [h - t, t]] with h = 1/2 and t / (h - t) = exp(1 / epsilon)."""
    epsilon, half = 0.4, 0.5
    t = half / (1 + np.exp(-1 / epsilon))
    entries = np.array([t, t, half - t, half - t])
    expected = 2 * (half - t) + epsilon * np.sum(entries * np.log(entries))
    found = wasserstein_distance([0.5, 0.5], [0.5, 0.5], one_identity_cost(2), epsilon=epsilon)
    assert found == pytest.approx(expected, rel=1e-9)
    assert found != 0


def test_bad_arguments_are_refused():
    cost = one_identity_cost(3)
    with pytest.raises(InvalidInputError, match="masses of fibre 0 of mode 0 differ: 1 and 2"):
        wasserstein_distance([1, 0, 0], [0, 2, 0], cost)
    with pytest.raises(InvalidInputError, match=r"shape \(3, 1\) and y \(2, 1\)"):
        wasserstein_distance([1, 0, 0], [0, 1], cost)
    with pytest.raises(InvalidInputError, match=r"x is -1.0 at \(1, 0\)"):
        wasserstein_distance([2, -1, 0], [0, 1, 0], cost)
    with pytest.raises(InvalidInputError, match="epsilon=0"):
        wasserstein_distance([1, 0, 0], [0, 1, 0], cost, epsilon=0)
    with pytest.raises(InvalidInputError, match="2 cost matrices for data of shape"):
        wasserstein_distance(np.ones((3, 3, 3)), np.ones((3, 3, 3)), [cost, cost])
    with pytest.raises(InvalidInputError, match="1 cost matrices for data of shape"):
        wasserstein_distance(np.ones((3, 3, 3)), np.ones((3, 3, 3)), cost)
    with pytest.raises(InvalidInputError, match="mode 1 has the shape"):
        wasserstein_distance(np.ones((3, 2)), np.ones((3, 2)), [cost, cost])


@pytest.mark.parametrize("data", [None, 3.0, "text", [1j, 0, 0]])
def test_data_that_is_no_array_of_numbers_is_refused(data):
    with pytest.raises(InvalidTypeError, match=r"x is a .*; give an array of numbers"):
        wasserstein_distance(data, [1, 0, 0], one_identity_cost(3))


@pytest.mark.parametrize("cost", ["cosine", None, 3.0, np.True_])
def test_a_cost_that_is_no_matrix_is_refused(cost):
    with pytest.raises(InvalidTypeError, match=r"The cost is .*; give a matrix"):
        wasserstein_distance([1, 0, 0], [1, 0, 0], cost)


@pytest.mark.parametrize("epsilon", [0, -1.0, np.inf, np.nan, "small"])
def test_a_strength_that_is_none_is_refused(epsilon):
    with pytest.raises(InvalidInputError, match="must be a finite number above zero"):
        wasserstein_distance([1, 0, 0], [1, 0, 0], one_identity_cost(3), epsilon=epsilon)
    with pytest.raises(InvalidInputError, match="must be a finite number above zero"):
        sinkhorn([1, 0, 0], [1, 0, 0], one_identity_cost(3), epsilon=epsilon)


def test_entries_at_the_same_place_are_summed():
    x = coo_array(([0.5, 0.25, 0.25], ([0, 0, 1], [0, 0, 0])), shape=(3, 1))
    y = np.array([[0.0], [0.25], [0.75]])
    assert wasserstein_distance(x, y, one_identity_cost(3)) == pytest.approx(0.75)
    assert wasserstein_distance(x, x.toarray(), one_identity_cost(3)) == 0


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), size=st.integers(1, 8))
def test_against_the_whole_linear_program(seed, size):
    """All of the plan, zeros of the masses too, in one program of SciPy's."""
    generator = np.random.default_rng(seed)
    a, b = (generator.random(size) * (generator.random(size) < 0.6) for _ in range(2))
    a[0], b[-1] = a[0] + 0.1, b[-1] + 0.1
    b *= a.sum() / b.sum()
    cost = random_cost(size, seed)
    rows, columns = np.kron(np.eye(size), np.ones(size)), np.kron(np.ones(size), np.eye(size))
    program = linprog(cost.ravel(), A_eq=np.vstack([rows, columns]), b_eq=np.r_[a, b])
    assert wasserstein_distance(a, b, cost) == pytest.approx(program.fun, rel=1e-9, abs=1e-12)


def test_nothing_has_no_distance():
    with pytest.raises(InvalidInputError, match="mode 0 has no positions"):
        wasserstein_distance([], [], np.zeros((0, 0)))


def test_a_table_of_costs_is_matched_by_label():
    cost, words = random_cost(4, 0), list("dbac")
    table = pd.DataFrame(cost, index=words, columns=words).loc[list("abcd"), list("cabd")]
    x, y = np.random.default_rng(0).dirichlet(np.ones(4), 2)
    expected = wasserstein_distance(x, y, cost)
    series = pd.Series(x, words), pd.Series(y, words)
    assert wasserstein_distance(*series, table) == expected
    tensors = [
        LabelledTensor(values[:, None], modes=["word", "text"], labels=[words, None])
        for values in (x, y)
    ]
    assert wasserstein_distance(*tensors, table) == expected
    assert wasserstein_distance(tensors[0], y[:, None], table) == expected
    with pytest.raises(InvalidInputError, match="but the data has no labels"):
        wasserstein_distance(x, y, table)


def test_entries_of_other_labels_are_not_compared():
    cost = one_identity_cost(2)
    x = pd.Series([1.0, 0.0], index=["a", "b"])
    assert wasserstein_distance(x, x.to_numpy(), cost) == 0
    with pytest.raises(InvalidInputError, match="another order of them, in mode 0"):
        wasserstein_distance(x, x[["b", "a"]], cost)
    values = coo_array(np.eye(2))
    one = LabelledTensor(values, modes=["word", "text"], labels={"text": [1, 2]})
    two = LabelledTensor(values, modes=["word", "text"], labels={"text": [1, 3]})
    assert wasserstein_distance(one, one, cost) == 0
    with pytest.raises(InvalidInputError, match="in mode 1"):
        wasserstein_distance(one, two, cost)


def test_a_search_cut_short_is_told():
    x, y = distributions((6, 2), 9).T
    with pytest.warns(RuntimeWarning, match="had not converged after max_iter=2"):
        wasserstein_distance(x, y, metric(6), epsilon=0.01, max_iter=2)


# Sinkhorn with dense plans.


def test_balanced_plans_have_their_marginals():
    a, b = distributions((5,), 10), distributions((7,), 11)
    cost = np.random.default_rng(0).random((5, 7))
    for epsilon in (1.0, 0.05, 0.01):
        result = sinkhorn(a, b, cost, epsilon=epsilon, max_iter=100_000)
        assert result.converged
        np.testing.assert_allclose(result.plan.sum(axis=1), a, rtol=1e-7)
        np.testing.assert_allclose(result.plan.sum(axis=0), b, rtol=1e-6)


@pytest.mark.parametrize(("epsilon", "penalty"), [(0.1, 1.0), (0.02, 5.0), (0.5, 0.1)])
def test_unbalanced_plans_are_stationary(epsilon, penalty):
    a, b = distributions((4,), 12) * 3, distributions((4,), 13)
    cost = grid_cost(4)
    result = sinkhorn(a, b, cost, epsilon=epsilon, marginal_penalty=penalty, tol=1e-12)
    assert result.converged
    T = result.plan
    gradient = (
        cost
        + epsilon * (np.log(T) + 1)
        + penalty * np.log(T.sum(axis=1) / a)[:, None]
        + penalty * np.log(T.sum(axis=0) / b)
    )
    np.testing.assert_allclose(gradient, 0, atol=1e-9)
    value = value_of_plan(T, cost, b, a, 1 / epsilon, penalty)
    assert result.value == pytest.approx(value, rel=1e-12)


def test_zero_masses():
    result = sinkhorn([0, 1, 2], [3, 0], np.ones((3, 2)), epsilon=0.1)
    np.testing.assert_allclose(result.plan, [[0, 0], [1, 0], [2, 0]], rtol=1e-9)
    nothing = sinkhorn([0, 0], [1, 0], np.zeros((2, 2)), epsilon=0.1, marginal_penalty=2)
    assert np.all(nothing.plan == 0)
    assert nothing.value == pytest.approx(2.0)


def test_sinkhorn_refuses_bad_arguments():
    cost = random_cost(2, 0)
    with pytest.raises(InvalidInputError, match="masses of a and b differ"):
        sinkhorn([1, 0], [1, 1], cost, epsilon=0.1)
    with pytest.raises(InvalidInputError, match="a must be a vector of finite masses"):
        sinkhorn([1, -1], [1, 1], cost, epsilon=0.1)
    with pytest.raises(InvalidInputError, match="cost must be finite"):
        sinkhorn([1, 1, 1], [1, 1], cost, epsilon=0.1)
    with pytest.raises(InvalidInputError, match="marginal_penalty=0"):
        sinkhorn([1, 1], [1, 1], cost, epsilon=0.1, marginal_penalty=0)
    with pytest.raises(InvalidInputError, match="epsilon=nan"):
        sinkhorn([1, 1], [1, 1], cost, epsilon=float("nan"))
    with pytest.raises(InvalidInputError, match="tol='' must be a number"):
        sinkhorn([1, 1], [1, 1], cost, epsilon=0.1, tol="")
    with pytest.raises(InvalidInputError, match="max_iter=0 must be a whole number"):
        sinkhorn([1, 1], [1, 1], cost, epsilon=0.1, max_iter=0)
    with pytest.raises(InvalidTypeError, match="a is a dict; give an array of numbers"):
        sinkhorn({}, [1, 1], cost, epsilon=0.1)
    with pytest.raises(InvalidTypeError, match="cost is a dict; give an array of numbers"):
        sinkhorn([1, 1], [1, 1], {}, epsilon=0.1)
    with pytest.raises(InvalidInputError, match="and epsilon is 1e-300: plans"):
        sinkhorn([1, 1], [1, 1], cost, epsilon=1e-300)
