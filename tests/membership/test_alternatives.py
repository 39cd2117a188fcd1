"""The paper's other methods, on exact moments of a known model and against small twins."""

from itertools import product

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment, nnls

from polyad.exceptions import InvalidInputError
from polyad.membership.alternatives import (
    category_probabilities,
    hals,
    joint_diagonalization,
    meld,
    tensor_power,
)
from polyad.membership.alternatives.diagonalization import (
    DiagonalizationSolver,
    Diagonalized,
    _best_angle,
    _best_shear,
    balanced,
)
from polyad.membership.alternatives.hals import HalsSolver
from polyad.membership.alternatives.meld import (
    MatchingSolver,
    _variances,
    augmented,
)
from polyad.membership.alternatives.views import ThreeViews
from polyad.membership.solver import MomentProblem
from polyad.tensor.dense import DenseTensor
from polyad.tensor.products import khatri_rao


def exact(sizes=((4, 3), (2, 4, 3), (5, 3)), k=4, a0=0.7, seed=0, alpha=None):
    """Return the moments of a model with three groups of variables, and its stacked factors."""
    random = np.random.default_rng(seed)
    if alpha is None:
        alpha = random.dirichlet(np.full(k, 5.0)) * a0
    eta = alpha / (a0 * (a0 + 1))
    lam = 2 * eta / (a0 + 2)
    factors = [
        np.concatenate([random.dirichlet(np.full(d, 0.5), size=k).T for d in group])
        for group in sizes
    ]
    a, b, c = factors
    second = [(x * eta) @ y.T for x, y in ((a, b), (a, c), (b, c))]
    return np.einsum("ir,jr,kr->ijk", a * lam, b, c), second, factors, lam


def worst(found, factors):
    """Return the largest error of columns that sum to one, after assignment."""
    true = [factor / factor.sum(axis=0) for factor in factors]
    cost = sum(
        np.abs(f[:, :, None] - t[:, None, :]).max(axis=0) for f, t in zip(found, true, strict=True)
    )
    rows, columns = linear_sum_assignment(cost)
    return cost[rows, columns].max()


def diagonalization0(third, second, k, **options):
    return joint_diagonalization(third, second, k, plug_in=False, **options)


def hals_of_third(third, second, k, **options):
    return hals(third, k, max_iter=5000, tol=1e-14, **options)


def meld_identity(third, second, k, **options):
    return meld(third, second, k, alpha0=0.7, optimal=False, tol=1e-13, **options)


def meld_optimal(third, second, k, **options):
    return meld(third, second, k, alpha0=0.7, tol=1e-13, **options)


@pytest.mark.parametrize(
    ("method", "k"),
    [
        *product((tensor_power, diagonalization0, joint_diagonalization), (1, 2, 4)),
        # Alternating methods converge slowly: the others show more components.
        *product((hals_of_third, meld_identity, meld_optimal), (1, 2)),
    ],
)
def test_exact_moments_give_the_model(method, k):
    third, second, factors, lam = exact(k=k, seed=2)
    found, weights = method(third, second, k, random_state=0)
    assert worst(found, factors) < 1e-6
    n_triples = 2 * 3 * 2
    np.testing.assert_allclose(np.sort(weights), np.sort(lam * n_triples), rtol=1e-5)


def test_the_power_method_of_one_coin_workers():
    """Class labels: eta and lam are both the class weights."""
    weights = np.array([0.7, 0.3])
    coins = [np.array([[p, 1 - q], [1 - p, q]]) for p, q in ((0.9, 0.8), (0.7, 0.7), (0.6, 0.95))]
    a, b, c = coins
    second = [(x * weights) @ y.T for x, y in ((a, b), (a, c), (b, c))]
    third = np.einsum("ir,jr,kr->ijk", a * weights, b, c)
    found, got = tensor_power(third, second, 2, random_state=0)
    for mine, true in zip(found, coins, strict=True):
        np.testing.assert_allclose(mine, true, atol=1e-9)
    np.testing.assert_allclose(got, weights, atol=1e-9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda third, second: (third[0], second, 2), "three modes"),
        (lambda third, second: (third * np.nan, second, 2), "third has entries that are not"),
        (lambda third, second: (third, second[::-1], 2), "second must be the pair moments"),
        (lambda third, second: (third, [np.inf * pair for pair in second], 2), "second has"),
        (lambda third, second: (third, second, 8), "n_components=8 is above the smallest"),
        (lambda third, second: (third, second, 5), "rank 4, below n_components=5"),
        (lambda third, second: (third, second, 0), "at least 1"),
        (lambda third, second: (third, second, 2.5), "whole number"),
    ],
)
def test_moments_that_cannot_be_decomposed_are_refused(change, message):
    third, second, *_ = exact()
    with pytest.raises(InvalidInputError, match=message):
        tensor_power(*change(third, second))


def noisy(seed=0, scale=0.02, **options):
    third, second, *_ = exact(seed=seed, **options)
    random = np.random.default_rng(seed)
    return (
        third + scale * random.standard_normal(third.shape) * third.max(),
        [pair + scale * random.standard_normal(pair.shape) * pair.max() for pair in second],
    )


def test_hals_steps_as_its_twin():
    third, _ = noisy()
    solver = HalsSolver(MomentProblem(DenseTensor(third)))
    state = solver.random(3, 0)
    factors = [factor.copy() for factor in state.factors]
    for mode, (s, t) in ((1, (0, 2)), (2, (0, 1)), (0, (1, 2))):
        order = np.moveaxis(third, mode, 0)
        rhs = np.einsum("ijk,jr,kr->ir", order, factors[s], factors[t])
        gram = (factors[s].T @ factors[s]) * (factors[t].T @ factors[t])
        for r in range(3):
            gradient = factors[mode] @ gram[:, r] - rhs[:, r]
            factors[mode][:, r] = np.maximum(factors[mode][:, r] - gradient / gram[r, r], 0.0)
    found = solver.step(state).factors
    model = np.einsum("ir,jr,kr->ijk", *factors)
    np.testing.assert_allclose(np.einsum("ir,jr,kr->ijk", *found), model, atol=1e-12)


def test_meld_minimises_the_weighted_error_of_all_moments():
    """Against the sum over moments as the paper writes it, and a general minimiser."""
    third, second = noisy(sizes=((2, 3), (3, 2), (4,)), k=2)
    target, precision = augmented(ThreeViews(third, *second), 0.7)
    weights = precision * np.random.default_rng(1).uniform(0.5, 2, size=precision.shape)
    solver = MatchingSolver(target, weights)
    factors = [np.random.default_rng(2).uniform(size=(n, 2)) for n in target.shape]
    a, b, c = (factor[:-1] / factor[-1] for factor in factors)
    lam = np.prod([factor[-1] for factor in factors], axis=0)
    ratio = 2.7 / 2
    missed = third - np.einsum("ir,jr,kr->ijk", a * lam, b, c)
    wanted = np.sum(weights[:-1, :-1, :-1] * missed**2)
    corners = weights[:-1, :-1, -1], weights[:-1, -1, :-1], weights[-1, :-1, :-1]
    for pair, corner, x, y in zip(second, corners, (a, a, b), (b, c, c), strict=True):
        wanted += np.sum(corner / ratio**2 * (pair - ratio * (x * lam) @ y.T) ** 2)
    state = solver.init(factors)
    assert solver.objective(state) == pytest.approx(wanted / 2)
    values = [solver.objective(state)]
    for _ in range(5):
        state = solver.step(state)
        values.append(solver.objective(state))
    assert (np.diff(values) <= 0).all()
    # The last factor that was updated is at its minimum: no row can be improved.
    product = khatri_rao(state.factors[:2])
    for row, (weight, value) in enumerate(
        zip(np.moveaxis(weights, 2, 0), np.moveaxis(target, 2, 0), strict=True)
    ):
        root = np.sqrt(weight.ravel())
        best, norm = nnls(product * root[:, None], value.ravel() * root)
        left = root * (product @ state.factors[2][row] - value.ravel())
        assert np.linalg.norm(left) <= norm * (1 + 1e-3) + 1e-9, best


def test_the_variances_of_meld_are_those_of_indicators():
    """Against probabilities from the mixed moments of the Dirichlet distribution."""
    sizes = ((2,), (3,), (2,))
    _, _, (a, b, c), lam = exact(sizes=sizes, k=2)
    alpha = lam * 0.7 * 1.7 * 2.7 / 2
    one = np.eye(2)
    pair = (alpha[:, None] * (alpha + one)) / (0.7 * 1.7)
    triple = alpha[:, None, None] * (alpha[:, None] + one[:, :, None])
    triple = triple * (alpha + one[:, None, :] + one) / (0.7 * 1.7 * 2.7)
    probability = np.einsum("ghm,ig,jh,km->ijk", triple, a, b, c)
    pairs = np.einsum("gh,ig,jh->ij", pair, a, b)
    factors = [np.concatenate([f * lam ** (1 / 3), lam[None] ** (1 / 3)]) for f in (a, b, c)]
    found = _variances(factors, 0.7)
    wanted = np.clip(probability, 0.01, 0.99)
    np.testing.assert_allclose(found[:-1, :-1, :-1], wanted * (1 - wanted), rtol=1e-9)
    wanted = np.clip(pairs, 0.01, 0.99)
    np.testing.assert_allclose(found[:-1, :-1, -1], wanted * (1 - wanted), rtol=1e-9)


def test_a_diagonalization_is_a_change_of_coordinates_with_less_off_the_diagonals():
    random = np.random.default_rng(0)
    mixing = random.standard_normal((4, 4))
    clean = np.einsum("ar,lr,br->lab", mixing, random.standard_normal((6, 4)), mixing)
    noise = random.standard_normal(clean.shape) * 0.05
    matrices = clean + noise + noise.transpose(0, 2, 1)
    state, solver = Diagonalized(matrices, np.eye(4)), DiagonalizationSolver()
    values = [solver.objective(state)]
    for _ in range(30):
        state = solver.step(state)
        values.append(solver.objective(state))
    moved = state.transform @ matrices @ state.transform.T
    np.testing.assert_allclose(state.matrices, moved, atol=1e-8 * np.abs(moved).max())
    inverse = np.linalg.inv(mixing)
    truth = balanced(Diagonalized(inverse @ matrices @ inverse.T, inverse))
    assert values[-1] < solver.objective(truth) < values[0]


def test_the_best_shear_and_angle_are_best():
    random = np.random.default_rng(3)
    matrices = random.standard_normal((5, 4, 4))
    matrices += matrices.transpose(0, 2, 1)

    def off(change):
        moved = change @ matrices @ change.T
        return np.sum(moved**2) - np.sum(np.einsum("laa->la", moved) ** 2)

    def shear(amount):
        change = np.eye(4)
        change[0, 2] = amount
        return off(change)

    def turn(angle):
        change = np.eye(4)
        change[[0, 0, 2, 2], [0, 2, 0, 2]] = (
            np.cos(angle),
            np.sin(angle),
            -np.sin(angle),
            np.cos(angle),
        )
        return off(change)

    for function, best in ((shear, _best_shear), (turn, _best_angle)):
        found = best(matrices, 0, 2)
        grid = np.linspace(-1.6, 1.6, 2001)
        assert function(found) <= min(map(function, grid)) + 1e-9


@pytest.mark.parametrize("method", [tensor_power, joint_diagonalization, meld_optimal])
def test_a_seed_gives_the_same_numbers_and_moments_stay(method):
    third, second = noisy()
    kept = third.copy(), [pair.copy() for pair in second]
    one, again = (method(third, second, 3, random_state=7) for _ in range(2))
    for left, right in zip(one[0], again[0], strict=True):
        np.testing.assert_array_equal(left, right)
    np.testing.assert_array_equal(third, kept[0])
    for left, right in zip(second, kept[1], strict=True):
        np.testing.assert_array_equal(left, right)


def test_category_probabilities():
    factor = np.array([[2.0, -1.0], [2.0, 3.0], [0.0, -1.0], [-1.0, -1.0], [5.0, -2.0]])
    first, second = category_probabilities(factor, [2, 3])
    np.testing.assert_allclose(first, [[0.5, 0.0], [0.5, 1.0]])
    np.testing.assert_allclose(second, [[0.0, 1 / 3], [0.0, 1 / 3], [1.0, 1 / 3]])
    with pytest.raises(InvalidInputError, match="sums to 4; the factor has 5"):
        category_probabilities(factor, [2, 2])


def test_alpha0_is_checked():
    third, second = noisy()
    with pytest.raises(InvalidInputError, match="alpha0"):
        meld(third, second, 2, alpha0=0.0)
