"""Samples of cells: uniform, never mistaken, free of bias; and the kernels against NumPy twins."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_array

from polyad.core.compiled import kernel
from polyad.core.threads import thread_limit
from polyad.cp.generalized import kernels
from polyad.cp.generalized.random_cells import (
    Sampler,
    Strata,
    Tangent,
    known_gradient,
    sum_over_all,
    tangent_at,
)
from polyad.losses import (
    BernoulliLogitLoss,
    BernoulliOddsLoss,
    GaussianLoss,
    HuberLoss,
    PoissonLogLoss,
    PoissonLoss,
)
from polyad.tensor.sparse import SparseTensor
from tests.cp.generalized.planted import dense_model, exact_gradient, exact_sum, random_sparse

SHAPE = (6, 5, 4)


def strata_of(tensor, listed=0):
    return Strata(SparseTensor(tensor), listed)


def cells_of(strata, sample):
    """Return the coordinates of a sample, one row each."""
    return (sample.rows.astype(np.int64) - strata.offsets[:-1, None]).T


def keys(coords, shape):
    return np.ravel_multi_index(tuple(coords.T), shape)


@pytest.mark.parametrize("listed", [0, 10**6])
@pytest.mark.parametrize("n_draws", [1, 10, 60, 400])
def test_zeros_are_never_stored_cells(n_draws, listed):
    tensor = random_sparse(SHAPE, n_draws)
    strata = strata_of(tensor, listed)
    stored = set(keys(np.stack(tensor.coords, axis=1), SHAPE).tolist())
    sampler = Sampler(strata, 7, 50, 0)
    for counter in range(20):
        sample = sampler.draw(3, counter)
        drawn = keys(cells_of(strata, sample), SHAPE)
        assert stored.isdisjoint(drawn[sampler.n_stored :].tolist())
        assert stored.issuperset(drawn[: sampler.n_stored].tolist())
        assert (sample.values == tensor.toarray().ravel()[drawn]).all()


@pytest.mark.parametrize("n_draws", [12, 100])
def test_every_cell_is_equally_likely(n_draws):
    """Also with lists, and with strata that the number of draws does not divide."""
    tensor = random_sparse(SHAPE, n_draws)
    strata = strata_of(tensor)
    assert (strata.unstored is None) == (n_draws == 12)
    sampler = Sampler(strata, 7, 11, 0)
    n_rounds = 4000
    counts = np.zeros(math.prod(SHAPE))
    for counter in range(n_rounds):
        np.add.at(counts, keys(cells_of(strata, sampler.draw(0, counter)), SHAPE), sampler.weights)
    # The variance of a count is at most that of independent draws: weight times rounds.
    error = np.sqrt(sampler.weights.max() * n_rounds)
    assert np.abs(counts - n_rounds).max() < 4.5 * error
    assert np.sum(counts) == pytest.approx(n_rounds * math.prod(SHAPE))


def test_more_cells_than_64_bits_count():
    side, n_modes = 10_000, 5
    generator = np.random.default_rng(0)
    coords = tuple(generator.integers(0, side, size=(n_modes, 50)))
    strata = strata_of(coo_array((np.ones(50), coords), shape=(side,) * n_modes))
    assert strata.n_unstored == side**n_modes - 50 > 2**64
    sampler = Sampler(strata, 10, 1000, 0)
    sample = sampler.draw(0, 0)
    cells = cells_of(strata, sample)
    assert cells.min() >= 0
    assert cells.max() < side
    assert sampler.total(np.ones(1010)) == pytest.approx(float(side) ** n_modes)
    spread = cells[10:].mean(axis=0) / side
    assert np.abs(spread - 0.5).max() < 4 / math.sqrt(12 * 1000)


def test_lookup_compares_coordinates():
    """Cells whose linear numbers agree modulo 2**64 are different cells."""
    shape = (2**31 - 1, 2**31 - 1, 8)
    coords = np.array([[5, 9, 2**31 - 2], [7, 3, 2**31 - 2], [1, 0, 7]], dtype=np.uint64)
    strata = strata_of(coo_array((np.ones(3), tuple(coords.astype(np.int64))), shape=shape))
    points = np.concatenate([coords, coords[::-1], coords + np.uint64(1)], axis=1)
    points = points.astype(strata.row_type)
    is_stored = kernel(kernels.is_stored)
    found = [
        is_stored(strata.stored.coords, strata.table, points, s) for s in range(points.shape[1])
    ]
    wanted = {tuple(column) for column in coords.T.tolist()}
    assert found == [tuple(column) in wanted for column in points.T.tolist()]


@given(
    shape=st.lists(st.integers(1, 6), min_size=2, max_size=4).map(tuple),
    n_draws=st.integers(1, 40),
    seed=st.integers(0, 99),
)
@settings(max_examples=20, deadline=None)
def test_sorting_agrees_with_numpy(shape, n_draws, seed):
    strata = strata_of(random_sparse(shape, n_draws, seed=seed))
    sample = Sampler(strata, 9, 13, 0).draw(seed, 1)
    n_modes, n_cells = sample.rows.shape
    flat = sample.rows.ravel()
    assert (sample.order == np.argsort(flat, kind="stable") % max(1, n_cells)).all()
    assert (sample.starts == np.searchsorted(np.sort(flat), np.arange(strata.n_rows + 1))).all()
    assert sample.starts[-1] == n_modes * n_cells


def test_samples_depend_on_seed_counter_and_purpose_alone():
    strata = strata_of(random_sparse((30, 20, 10), 300))
    sampler = Sampler(strata, 100, 100, 0)
    samples = {}
    for n_jobs in (1, 2, 5):
        with thread_limit(n_jobs):
            samples[n_jobs] = [s.rows.copy() for s in sampler.draw_many(1, range(3, 20))]
    for a, b, counter in zip(samples[1], samples[2], range(3, 20), strict=True):
        assert (a == b).all()
        assert (a == sampler.draw(1, counter).rows).all()
    assert (samples[1][4] == samples[5][4]).all()
    others = [sampler.draw(2, 3), sampler.draw(1, 4), Sampler(strata, 100, 100, 1).draw(1, 3)]
    for other in others:
        assert (other.rows != samples[1][0]).mean() > 0.5


LOSSES = [
    PoissonLoss(),
    BernoulliOddsLoss(),
    BernoulliLogitLoss(),
    GaussianLoss(),
    PoissonLogLoss(),
    HuberLoss(0.5),
]


def gradient_of(sampler, sample, factors, loss, tangent):
    """Return the gradient that a sample gives, from the kernels."""
    stack = np.concatenate(factors)
    model = np.empty(sampler.n_cells)
    kernels.model_values(stack, sample.rows, (0, model.size), model)
    slopes = sampler.weights * (loss.derivative(sample.values, model) - tangent.slope(model))
    known = known_gradient(tangent, factors, 0.0)
    out = np.full_like(stack, np.nan)
    function = kernels.gradient_rows_3 if len(factors) == 3 else kernels.gradient_rows
    for mode in range(len(factors)):
        first, last = sampler.strata.offsets[mode : mode + 2]
        block = (mode, int(first), int(last))
        function(kernels.Terms(stack, sample, slopes, known), block, out)
    terms = loss.value(sample.values, model) - tangent.value(model)
    return sampler.total(terms) + sum_over_all(tangent, factors), out


@pytest.mark.parametrize(
    ("loss", "tangent"),
    [
        *((loss, None) for loss in LOSSES),
        (LOSSES[0], Tangent(0.0, 0.0)),
        (LOSSES[-1], Tangent(0.3, -0.2)),
    ],
    ids=lambda given: getattr(given, "name", str(given)),
)
def test_objective_and_gradient_are_unbiased(loss, tangent):
    """Their means over many samples are those of all cells, whatever the control variate."""
    tensor = random_sparse(SHAPE, 15)
    tensor.data = np.minimum(tensor.data, 1.0)
    generator = np.random.default_rng(0)
    factors = [generator.uniform(0.1, 1.0, (n, 2)) for n in SHAPE]
    strata = strata_of(tensor)
    sampler = Sampler(strata, 5, 8, 0)
    tangent = tangent_at(loss, 0.2) if tangent is None else tangent
    found = []
    for counter in range(500):
        sample = sampler.draw(9, counter)
        value, gradient = gradient_of(sampler, sample, factors, loss, tangent)
        found.append(np.append(gradient.ravel(), value))
    exact = np.concatenate(exact_gradient(loss, tensor, factors)).ravel()
    exact = np.append(exact, exact_sum(loss, tensor, factors))
    error = np.std(found, axis=0, ddof=1) / math.sqrt(len(found))
    distance = np.abs(np.mean(found, axis=0) - exact) / (error + 1e-12)
    assert distance.max() < 4


@pytest.mark.parametrize("loss", [PoissonLoss(), GaussianLoss()], ids=lambda loss: loss.name)
def test_zeros_of_poisson_and_squares_have_no_error(loss):
    tensor = random_sparse((20, 10, 8), 40)
    generator = np.random.default_rng(0)
    factors = [generator.uniform(0.1, 1.0, (n, 3)) for n in tensor.shape]
    strata = strata_of(tensor)
    sampler = Sampler(strata, tensor.nnz, 4, 0)
    value, gradient = gradient_of(sampler, sampler.draw(0, 0), factors, loss, tangent_at(loss, 0.3))
    assert value == pytest.approx(exact_sum(loss, tensor, factors), rel=1e-9)
    exact = np.concatenate(exact_gradient(loss, tensor, factors))
    np.testing.assert_allclose(gradient, exact, rtol=1e-7, atol=1e-9 * np.abs(exact).max())


@pytest.mark.parametrize("rank", [1, 5, 130])
@pytest.mark.parametrize("shape", [(7, 6), (6, 5, 4), (4, 3, 3, 2)])
def test_all_cells_give_the_exact_gradient(shape, rank):
    loss = BernoulliLogitLoss()
    tensor = random_sparse(shape, 10)
    tensor.data[:] = 1.0
    generator = np.random.default_rng(0)
    factors = [generator.standard_normal((n, rank)) / rank**0.3 for n in shape]
    strata = strata_of(tensor, 10**4)
    sampler = Sampler(strata, 10**4, 10**4, 0)
    assert sampler.exact
    assert (sampler.weights == 1).all()
    value, gradient = gradient_of(
        sampler, sampler.draw(0, 0), factors, loss, tangent_at(loss, -0.3)
    )
    assert value == pytest.approx(exact_sum(loss, tensor, factors))
    exact = np.concatenate(exact_gradient(loss, tensor, factors))
    np.testing.assert_allclose(gradient, exact, atol=1e-10 * np.abs(exact).max())


def test_empty_full_and_explicit_zeros():
    empty = strata_of(coo_array(SHAPE))
    sampler = Sampler(empty, 10, 10, 0)
    assert (sampler.n_stored, sampler.n_unstored) == (0, 10)
    assert sampler.total(np.ones(10)) == pytest.approx(120)
    full = strata_of(coo_array(np.arange(1.0, 121).reshape(SHAPE)))
    sampler = Sampler(full, 50, 10, 0)
    assert (sampler.n_stored, sampler.n_unstored) == (50, 0)
    assert sampler.draw(0, 0).values.min() > 0
    coords = (np.array([0, 1]), np.array([0, 1]), np.array([0, 1]))
    zeros = strata_of(coo_array((np.array([0.0, 2.0]), coords), shape=SHAPE))
    assert zeros.n_stored == 2
    assert Sampler(zeros, 5, 5, 0).draw(0, 0).values[:2].tolist() == [0.0, 2.0]


def test_standard_error_is_that_of_repeated_samples():
    strata = strata_of(random_sparse((20, 20, 20), 500))
    generator = np.random.default_rng(0)
    table = generator.standard_exponential((20, 20, 20))
    sampler = Sampler(strata, 100, 200, 0)
    totals, errors = [], []
    for counter in range(400):
        terms = table[tuple(cells_of(strata, sampler.draw(0, counter)).T)]
        totals.append(sampler.total(terms))
        errors.append(sampler.standard_error(terms))
    assert np.mean(errors) == pytest.approx(np.std(totals), rel=0.15)
    everything = Sampler(strata_of(random_sparse(SHAPE, 9), 120), 120, 120, 0)
    assert everything.standard_error(np.arange(120.0)) == 0


@pytest.mark.parametrize("shape", [(5, 4), (5, 4, 3), (4, 3, 2, 2)])
def test_known_part_is_the_gradient_of_its_sum(shape):
    generator = np.random.default_rng(0)
    factors = [generator.standard_normal((n, 3)) for n in shape]
    tangent, ridge = Tangent(0.7, -0.4), 0.3
    model = dense_model(factors)
    assert sum_over_all(tangent, factors) == pytest.approx(np.sum(tangent.value(model)))
    known = known_gradient(tangent, factors, ridge)
    for mode, factor in enumerate(factors):
        row = known.linear[mode] + factor @ known.square[mode]
        for i, r in ((0, 0), (1, 2)):
            moved = []
            for step in (1e-5, -1e-5):
                changed = [f.copy() for f in factors]
                changed[mode][i, r] += step
                size = 0.5 * ridge * np.sum(changed[mode] ** 2)
                moved.append(sum_over_all(tangent, changed) + size)
            assert row[i, r] == pytest.approx((moved[0] - moved[1]) / 2e-5, rel=1e-6, abs=1e-6)
