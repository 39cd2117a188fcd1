"""The two references agree with each other, with the spec's numbers and with the objective."""

import numpy as np
import pytest
from experiments.swift.reference import (
    direct_iteration,
    fold,
    khatri_rao,
    objective,
    published_iteration,
    transport,
    unfold,
)


def problem(shape=(5, 4, 3), n_components=2, seed=0):
    generator = np.random.default_rng(seed)
    X = generator.poisson(0.3, size=shape).astype(float)
    costs = []
    for size in shape:
        cost = generator.uniform(0.2, 1.0, size=(size, size))
        cost = (cost + cost.T) / 2
        np.fill_diagonal(cost, 0.0)
        costs.append(cost)
    return X, costs, [generator.uniform(0.1, 1.0, size=(size, n_components)) for size in shape]


@pytest.mark.parametrize("seed", range(4))
def test_published_and_direct_iterates_are_the_same(seed):
    X, costs, factors = problem((5, 4, 6), 3, seed)
    published = direct = factors
    for _ in range(5):
        published = published_iteration(X, costs, published, 10.0, 1.0)
        direct = direct_iteration(X, costs, direct, 10.0, 1.0)
        for ours, theirs in zip(published, direct, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-12)


@pytest.mark.parametrize("shape", [(5, 4), (5, 4, 3), (3, 4, 2, 3)])
def test_the_objective_falls_where_the_transport_is_exact(shape):
    X, costs, factors = problem(shape)
    values = [objective(X, costs, factors, 2.0, 0.5)]
    for _ in range(3):
        factors = published_iteration(X, costs, factors, 2.0, 0.5, n_sinkhorn=200)
        values.append(objective(X, costs, factors, 2.0, 0.5))
    assert (np.diff(values) < 0).all()


def test_the_closed_objective_is_that_of_the_plans():
    """Equation 7 term by term, with the plans written out."""
    rho, lam = 3.0, 0.7
    X, costs, factors = problem((4, 3, 3))
    total = 0.0
    for mode, cost in enumerate(costs):
        x, xhat = unfold(X, mode), factors[mode] @ khatri_rao(factors, mode).T
        for x_j, xhat_j in zip(x.T, xhat.T, strict=True):
            if not x_j.any():
                total += lam * xhat_j.sum()
                continue
            T = plan(x_j, xhat_j, cost, rho, lam)
            positive = T[T > 0]
            total += (cost * T).sum() + (positive * np.log(positive)).sum() / rho
            total += lam * (divergence(T.sum(axis=1), xhat_j) + divergence(T.sum(axis=0), x_j))
    assert objective(X, costs, factors, rho, lam) == pytest.approx(total, rel=1e-10)


def plan(x, xhat, cost, rho, lam):
    K, power = np.exp(-rho * cost - 1.0), lam * rho / (lam * rho + 1.0)
    u = np.ones_like(x)
    for _ in range(3000):
        v = (x / (K.T @ u)) ** power
        u = (xhat / (K @ v)) ** power
    return u[:, None] * K * v


def divergence(a, b):
    positive = a > 0
    return (a[positive] * np.log(a[positive] / b[positive])).sum() - a.sum() + b.sum()


def test_one_cell():
    """The closed form for a mode of one entry."""
    delta = transport(np.array([[5.0]]), np.array([[2.0]]), np.zeros((1, 1)), 3.0, 0.7, 200)
    assert delta[0, 0] == pytest.approx(2.0908745875778862, rel=1e-12)


def test_two_cells():
    x, xhat = np.array([[3.0], [0.0]]), np.array([[1.0], [2.0]])
    delta = transport(x, xhat, np.array([[0.0, 1.0], [1.0, 0.0]]), 10.0, 1.0, 2000)
    np.testing.assert_allclose(delta[:, 0], [1.23030353, 0.93081363], rtol=1e-8)


def test_unfolding_and_khatri_rao_fit_together():
    shape = (3, 4, 2, 5)
    generator = np.random.default_rng(0)
    factors = [generator.random((size, 2)) for size in shape]
    tensor = np.einsum("ar,br,cr,dr->abcd", *factors)
    for mode in range(4):
        np.testing.assert_allclose(
            unfold(tensor, mode), factors[mode] @ khatri_rao(factors, mode).T, rtol=1e-12
        )
        np.testing.assert_array_equal(fold(unfold(tensor, mode), mode, shape), tensor)
