"""The mathematics of the crowd against loops, enumeration and identities."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import digamma, gammaln

from polyad.crowd.answers import answers_of
from polyad.crowd.kernels import fill_rises, fill_slopes
from polyad.crowd.problem import CrowdProblem, vote_shares
from polyad.crowd.solver import CrowdSolver
from polyad.crowd.start import (
    DECOMPOSERS,
    majority_start,
    moment_start,
    moments,
    named_classes,
    worker_tables,
)
from tests.crowd.twin import em_step, enumerated, marginal_bound, planted


def problem_of(items, workers, labels, n_classes=None, gold=None, n_items=None):
    n_items = max(items) + 1 if n_items is None else n_items
    shape = (n_items, max(workers) + 1)
    classes = np.arange(max(labels) + 1 if n_classes is None else n_classes)
    parts = tuple(np.asarray(part) for part in (items, workers, labels))
    return CrowdProblem(answers_of(parts, shape, (None, None), classes), gold)


def test_a_step_is_that_of_the_loops():
    items, workers, labels, _ = planted()
    problem = problem_of(items, workers, labels)
    solver = CrowdSolver(problem, strength=0.0)
    q = np.random.default_rng(1).dirichlet(np.ones(3), size=problem.n_items)
    state = solver.init(q)
    for _ in range(3):
        q, likelihood, counts = em_step(items, workers, labels, q, problem.n_workers)
        np.testing.assert_allclose(solver.posteriors(state), q, atol=1e-7)
        np.testing.assert_allclose(state.counts.transpose(0, 2, 1), counts, atol=1e-6)
        assert solver.objective(state) == pytest.approx(-likelihood, abs=1e-5)
        state = solver.step(state)


def test_posteriors_are_those_of_enumeration():
    rng = np.random.default_rng(2)
    items, workers = np.repeat(np.arange(4), 3), np.tile(np.arange(3), 4)
    labels = rng.integers(3, size=12)
    tables, shares = rng.dirichlet(np.ones(3), size=(3, 3)), rng.dirichlet(np.ones(3))
    expected, likelihood = enumerated(items, workers, labels, tables, shares, 4)
    logs = np.log(tables).transpose(0, 2, 1)
    found, total = problem_of(items, workers, labels, 3).posteriors(
        np.ascontiguousarray(logs), np.log(shares)
    )
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert total == pytest.approx(likelihood)


@pytest.mark.parametrize("n_classes", [2, 4, 5])
def test_a_pass_counts_the_posteriors_that_it_does_not_keep(n_classes):
    """Also of items in several blocks, and of those whose class is known."""
    items, workers, labels, truth = planted(700, 5, n_classes, seed=n_classes)
    problem = problem_of(items, workers, labels, n_classes, np.where(truth == 1, 1, -1))
    rng = np.random.default_rng(0)
    logs = np.log(rng.dirichlet(np.ones(n_classes), size=(5, n_classes)).transpose(0, 2, 1))
    shares = np.log(rng.dirichlet(np.ones(n_classes)))
    posteriors, likelihood = problem.posteriors(logs, shares)
    counts, sizes, total = problem.expected(logs, shares)
    np.testing.assert_allclose(counts, problem.counts(posteriors), atol=1e-10)
    np.testing.assert_allclose(sizes, posteriors.sum(axis=0))
    assert total == pytest.approx(likelihood, rel=1e-12)


def test_the_bound_has_its_terms():
    """With a prior: the likelihood of mean logs, divergences, and the priors of shares and rows."""
    items, workers, labels, _ = planted(seed=3)
    problem = problem_of(items, workers, labels)
    solver = CrowdSolver(problem)
    state = solver.step(solver.init(vote_shares(problem)))
    after = state.counts + state.prior
    logs = digamma(after) - digamma(after.sum(axis=1, keepdims=True))
    likelihood = problem.posteriors(logs, np.log(state.shares))[1]
    hopes = np.full((3, 3), 1 / 3) + np.eye(3)
    bound = likelihood + marginal_bound(state.counts, state.prior, logs)
    bound += np.log(state.shares).sum() + (hopes * np.log(state.prior) - 0.2 * state.prior).sum()
    assert solver.objective(state) == pytest.approx(-bound, rel=1e-12)


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    strength=st.sampled_from([None, 0.0, 0.3, 5.0]),
    variant=st.sampled_from(["full", "one-coin"]),
    share=st.sampled_from([0.1, 0.5, 1.0]),
)
def test_no_step_raises_the_objective(seed, strength, variant, share):
    items, workers, labels, truth = planted(n_items=30, share=share, right=0.6, seed=seed)
    gold = np.where(np.arange(30) % 7 == 0, truth, -1)
    problem = problem_of([*items, 29], [*workers, 6], [*labels, 0], 4, gold, n_items=30)
    solver = CrowdSolver(problem, variant, strength)
    state = solver.init(majority_start(problem, 1, seed))
    for _ in range(30):
        after = solver.step(state)
        assert solver.objective(after) <= solver.objective(state) + 4 * solver.floor
        state = after
    assert (solver.posteriors(state).argmax(axis=1)[gold >= 0] == gold[gold >= 0]).all()


def test_the_learned_strength_is_that_of_the_crowd():
    """Rows of many workers drawn from one Dirichlet distribution tell its strength and mean."""
    rng = np.random.default_rng(0)
    n_workers, n_items, truth = 300, 120, np.arange(120) % 2
    mean, strength = np.array([[0.8, 0.2], [0.3, 0.7]]), 6.0
    tables = np.array([[rng.dirichlet(strength * row) for row in mean] for _ in range(n_workers)])
    items, workers = np.indices((n_items, n_workers)).reshape(2, -1)
    labels = (rng.random(items.size) < tables[workers, truth[items], 1]).astype(int)
    solver = CrowdSolver(problem_of(items, workers, labels, gold=truth))
    state = solver.init(np.eye(2)[truth])
    for _ in range(100):
        state = solver.step(state)
    np.testing.assert_allclose(state.prior.sum(axis=0), strength, rtol=0.2)
    np.testing.assert_allclose(state.prior.T / state.prior.sum(axis=0)[:, None], mean, atol=0.03)


def test_one_coin_counts_right_and_wrong():
    items, workers, labels, _ = planted()
    problem = problem_of(items, workers, labels)
    solver = CrowdSolver(problem, "one-coin", 0.0)
    q = vote_shares(problem)
    state = solver.init(q)
    right = np.zeros(problem.n_workers)
    np.add.at(right, workers, q[items, labels])
    np.testing.assert_allclose(state.counts[:, 0, 0], right)
    np.testing.assert_allclose(state.counts.sum(axis=(1, 2)), np.bincount(workers))
    share = right / np.bincount(workers)
    table = solver.confusions(state.counts, state.prior)
    np.testing.assert_allclose(table[:, 0, 0], share)
    np.testing.assert_allclose(table[:, 1, 0], (1 - share) / 2)
    np.testing.assert_allclose(table.sum(axis=1), 1.0)


@pytest.fixture(scope="module")
def exact():
    """Groups of one worker each, with votes on endless items: weights, tables, moments."""
    rng = np.random.default_rng(1)
    shares = np.array([0.5, 0.3, 0.2])
    tables = [0.7 * np.eye(3) + 0.3 * rng.dirichlet(np.ones(3), size=3).T for _ in range(3)]
    third = np.einsum("k,ak,bk,ck->abc", shares, *tables)
    pairs = [np.einsum("k,ak,bk->ab", shares, tables[g], tables[h]) for g, h in ((0, 1), (0, 2))]
    pairs.append(np.einsum("k,ak,bk->ab", shares, tables[1], tables[2]))
    return shares, tables, third, pairs


@pytest.mark.parametrize("name", DECOMPOSERS)
def test_exact_moments_give_the_tables(exact, name):
    shares, tables, third, pairs = exact
    found, weights = named_classes(DECOMPOSERS[name](third, pairs, 0))
    np.testing.assert_allclose(found, tables, atol=0.02 if name == "moments" else 1e-6)
    np.testing.assert_allclose(weights, shares, atol=0.03 if name == "moments" else 1e-6)


def test_moments_are_means_over_items():
    rng = np.random.default_rng(0)
    votes = [rng.integers(3, size=(5, 3)).astype(float) for _ in range(3)]
    third, pairs = moments(votes)
    np.testing.assert_allclose(third, np.einsum("ia,ib,ic->abc", *votes) / 5)
    np.testing.assert_allclose(pairs[2], votes[1].T @ votes[2] / 5)


def test_workers_follow_from_their_groups():
    """With the tables of the groups known, those of workers are recovered from many items."""
    items, workers, labels, truth = planted(6000, 6, 3, share=1.0, seed=4)
    problem = problem_of(items, workers, labels)
    groups = np.arange(6) % 3
    votes = [problem.votes(groups == g) for g in range(3)]
    true = np.stack([vote[truth == k].mean(axis=0) for vote in votes for k in range(3)])
    own = [block.T / block.T.sum(axis=0) for block in true.reshape(3, 3, 3)]
    found = worker_tables(problem, groups, votes, own)
    expected = problem.counts(np.eye(3)[truth])
    expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found, expected, atol=0.05)


def test_moments_that_tell_nothing_begin_with_the_votes():
    items, workers = np.indices((5, 3)).reshape(2, -1)
    problem = problem_of(items, workers, np.zeros(15, dtype=int), 2)
    start = moment_start(problem, DECOMPOSERS["power"], 0, 0)
    np.testing.assert_array_equal(start, majority_start(problem, 0, 0))


def test_gamma_functions_are_those_of_scipy():
    """To rounding, from next to nothing to strong priors, and at the root of the derivative."""
    x = np.concatenate([np.logspace(-12, 9, 500), [1.4616321449683622]])
    slopes = np.empty_like(x)
    fill_slopes(x, slopes)
    np.testing.assert_allclose(slopes, digamma(x), rtol=4e-15, atol=4e-15)
    # A rise by a whole number is a sum of logarithms, however large what it starts from.
    rises, fives = np.empty_like(x), np.full_like(x, 5.0)
    fill_rises(x, fives, rises)
    wanted = np.log(x[:, None] + np.arange(5)).sum(axis=1)
    np.testing.assert_allclose(rises, wanted, rtol=4e-15, atol=4e-14)
    small, parts = x[x < 10], np.random.default_rng(0).gamma(0.5, size=(x < 10).sum())
    rises = np.empty_like(small)
    fill_rises(small, parts, rises)
    np.testing.assert_allclose(rises, gammaln(small + parts) - gammaln(small), atol=4e-14)


def test_a_strong_prior_leaves_no_rounding_in_the_bound():
    """Labels that tell nothing, and a prior of a million: the objective does not rise."""
    problem = problem_of([0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 0, 1])
    solver = CrowdSolver(problem, strength=1e6)
    state = solver.init(vote_shares(problem))
    for _ in range(5):
        after = solver.step(state)
        assert solver.objective(after) <= solver.objective(state) + solver.floor
        state = after
