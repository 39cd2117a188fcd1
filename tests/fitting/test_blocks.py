"""BCD-PR: descent, exact and inexact steps, stationarity, and a constrained CP (eq. 26)."""

import itertools

import numpy as np
import pytest

from polyad.exceptions import InvalidInputError
from polyad.fitting import BlockProblem, FitOptions, Status, minimize_blocks
from polyad.tensor import kruskal_to_dense, mttkrp
from polyad.tensor.products import gram_product


class BoxCP(BlockProblem):
    """Least squares CP of a tensor, factors between zero and one (eq. 26 of the paper)."""

    least = 0.0

    def __init__(self, tensor, wrong=0.0):
        self.tensor, self.wrong = tensor, wrong
        self.gaps = []

    def value(self, blocks, memory):
        return 0.5 * float(np.sum((self.tensor - kruskal_to_dense(None, blocks)) ** 2)), memory

    def minimize(self, number, blocks, memory, tau, gap):
        """Projected gradient steps, until they bring less than the gap."""
        self.gaps.append(gap)
        normal = gram_product(blocks, skip=number) + tau * np.eye(blocks[0].shape[1])
        right = mttkrp(self.tensor, blocks, number) + tau * blocks[number]
        length = 1.0 / np.linalg.norm(normal, 2)
        found = blocks[number]
        for _ in range(500):
            moved = self.project(number, found - length * (found @ normal - right))
            brought = np.sum((moved - found) ** 2) / length
            found = moved
            if brought < 1e-3 * gap:
                break
        return found + self.wrong * gap, memory

    def gradient(self, number, blocks, memory):
        normal = gram_product(blocks, skip=number)
        return blocks[number] @ normal - mttkrp(self.tensor, blocks, number)

    def project(self, number, block):
        return np.clip(block, 0.0, 1.0)


def box_case(seed=0):
    rng = np.random.default_rng(seed)
    truth = [rng.random((n, 2)) for n in (7, 6, 5)]
    return kruskal_to_dense(None, truth), [rng.random((n, 2)) for n in (7, 6, 5)]


@pytest.mark.parametrize(
    "tau", [1e-3, 0.1, [0.1, 0.2, 0.3], lambda sweep: 1.0 / sweep, lambda sweep: [0.1, 1.0, sweep]]
)
def test_constrained_cp_descends_to_a_stationary_point(tau):
    tensor, start = box_case()
    result = minimize_blocks(BoxCP(tensor), start, tau=tau, tol=1e-10, max_iter=25)
    values = result.history.objective
    assert all(after <= before for before, after in itertools.pairwise(values))
    assert values[-1] < 1e-2 * values[0]
    measured = [record["stationarity"] for record in result.history]
    assert measured[-1] < 0.05 * measured[0]
    assert all(block.min() >= 0.0 and block.max() <= 1.0 for block in result.state.blocks)


def test_each_step_brings_what_the_proximal_term_says():
    """Of exact steps: f_old - f_new >= tau / 2 |step|²; more where steps are longer."""
    tensor, start = box_case()
    for tau in (0.5, 50.0):
        problem = BoxCP(tensor)
        block, _ = problem.minimize(0, start, [], tau, 1e-10)
        before, after = problem.value(start, [])[0], problem.value([block, *start[1:]], [])[0]
        assert before - after >= 0.5 * tau * np.sum((block - start[0]) ** 2) - 1e-9


def test_stationarity_is_the_length_of_the_gradient_into_the_set():
    """Eq. 5: the projection on the cone of directions; at the bounds only what leads inside."""
    tensor, start = box_case()
    problem = BoxCP(tensor)
    start = [np.clip(3 * block - 1, 0.0, 1.0) for block in start]
    expected = 0.0
    for k, block in enumerate(start):
        own = -problem.gradient(k, start, [])
        own[(block == 0) & (own < 0)] = 0.0
        own[(block == 1) & (own > 0)] = 0.0
        expected += np.sum(own**2)
    result = minimize_blocks(problem, start, max_iter=1, tol=0.0)
    assert next(iter(result.history))["stationarity"] == pytest.approx(np.sqrt(expected), rel=1e-6)


def test_gaps_are_summable():
    tensor, start = box_case()
    problem = BoxCP(tensor)
    result = minimize_blocks(problem, start, tau=0.1, tol=1e-9, max_iter=40)
    # Three blocks may each leave a tenth of the start, and then a fifth of all that is brought;
    # sweeps that belong to the same step have a third of the gap each time.
    limit = 3 * (0.1 + 0.2) / (1 - 1 / 3)
    assert sum(problem.gaps) <= limit * result.history.objective[0]
    assert problem.gaps[-1] < 1e-3 * problem.gaps[0]


def test_a_sweep_that_rises_is_not_kept():
    tensor, start = box_case()
    result = minimize_blocks(BoxCP(tensor, wrong=-1e6), start, tau=0.1, tol=1e-9, max_iter=5)
    values = result.history.objective
    assert all(after <= before for before, after in itertools.pairwise(values))


class Bowl(BlockProblem):
    """Without a gradient: the bound of the stationarity is told."""

    def value(self, blocks, memory):
        return float(sum(np.sum(block**2) for block in blocks)), memory

    def minimize(self, number, blocks, memory, tau, gap):
        return tau / (2 + tau) * blocks[number], memory


def test_without_gradients_the_bound_is_told():
    result = minimize_blocks(Bowl(), [np.ones(2), np.ones(3)], tau=2.0, max_iter=1, tol=0.0)
    assert result.state.stationarity == pytest.approx(2.0 * 0.5 * np.sqrt(5))
    assert result.status is Status.MAX_ITER


def test_options_and_bad_weights():
    seen = []
    options = FitOptions(max_iter=3, tol=0.0, callbacks=(seen.append,))
    minimize_blocks(Bowl(), [np.ones(2)], options=options)
    assert len(seen) == 3
    for tau in (-1.0, [1.0, 1.0], np.nan):
        with pytest.raises(InvalidInputError, match="not usable for 1 blocks"):
            minimize_blocks(Bowl(), [np.ones(2)], tau=tau)


class Valley(BlockProblem):
    """``|x - a|^2 / 2 + |y - b|^2 / 2 + c x y`` over numbers of any sign: exact, and narrow."""

    def __init__(self, curve=0.98, extrapolates=True):
        self.curve, self.extrapolates = curve, extrapolates
        self.starts = []

    def value(self, blocks, memory):
        x, y = blocks[0][0], blocks[1][0]
        return float(0.5 * (x - 1) ** 2 + 0.5 * (y + 2) ** 2 + self.curve * x * y), memory

    def minimize(self, number, blocks, memory, tau, gap):
        if number == 0:
            self.starts.append([block.copy() for block in blocks])
        pull = (1.0, -2.0)[number] - self.curve * blocks[1 - number]
        return (pull + tau * blocks[number]) / (1.0 + tau), memory


def valley_sweeps(curve, extrapolates, max_iter):
    problem = Valley(curve, extrapolates)
    result = minimize_blocks(problem, [np.zeros(1), np.zeros(1)], tau=0.0, tol=0, max_iter=max_iter)
    return problem, result


def test_momentum_is_that_of_nesterov():
    """Sweep k of a run begins at ``new + (k - 1) / (k + 2) (new - old)``."""
    problem, _ = valley_sweeps(0.98, True, 3)
    new, old = np.zeros(2), None
    for k, start in enumerate(problem.starts):
        ahead = new if old is None else new + k / (k + 3) * (new - old)
        np.testing.assert_allclose(np.ravel(start), ahead, atol=1e-12)
        x = 1.0 - 0.98 * ahead[1]
        new, old = np.array([x, -2.0 - 0.98 * x]), new
    assert len(problem.starts) > 2


def test_momentum_descends_and_is_quicker_along_a_valley():
    lowest = np.linalg.solve([[1, 0.98], [0.98, 1]], [1, -2])
    missed = {}
    for extrapolates in (False, True):
        problem, result = valley_sweeps(0.98, extrapolates, 40)
        values = result.history.objective
        assert all(after <= before for before, after in itertools.pairwise(values))
        missed[extrapolates] = values[-1] - problem.value(lowest[:, None], [])[0]
    assert missed[True] < 1e-3 * missed[False]
