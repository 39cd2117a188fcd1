r"""Where the fit of a crowd begins: the vote of the majority, or the moments of three groups.

Workers are split into three groups. The votes :math:`x_g` of the groups on an item are independent
given its class, so that :math:`\mathrm{E}[x_1 \circ x_2 \circ x_3] = \sum_k \pi_k\, \mu_{1k} \circ
\mu_{2k} \circ \mu_{3k}`: a CP decomposition gives what each group says of each class, up to scale
[1]_. A worker of one group is then compared with the others: :math:`\mathrm{E}[x_w x_g^T] =
\theta_w D \mu_g^T` with a diagonal :math:`D`, which is solved for :math:`\theta_w` and its columns
scaled.

References
----------
.. [1] Y. Zhang, X. Chen, D. Zhou, M. I. Jordan, "Spectral methods meet EM: a provably optimal
   algorithm for crowdsourcing", Journal of Machine Learning Research 17 (2016).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import linear_sum_assignment

from polyad.crowd.problem import vote_shares
from polyad.exceptions import InvalidInputError
from polyad.membership.alternatives import tensor_power
from polyad.membership.solver import decompose

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from polyad.crowd.problem import CrowdProblem, Numbers

#: Gives the factors (labels, classes) of three groups, of any scale, in any order of classes, from
#: the third moment, the pair moments, and a seed.
Decomposer = Callable[["Numbers", "Sequence[Numbers]", int], "Sequence[Numbers]"]

_N_GROUPS = 3
# Random starts and sweeps of a decomposition. It need not converge: iterations follow. Single
# starts may end without one of the classes.
_N_STARTS, _N_SWEEPS = 4, 300
# The least probability of a label in what the moments say of a worker, as the authors have it.
_LEAST = 1e-6


def by_descent(third: Numbers, second: Sequence[Numbers], seed: int) -> Sequence[Numbers]:
    """Decompose by coordinate descent, the default of mixed memberships."""
    return decompose(
        third, len(third), n_init=_N_STARTS, max_iter=_N_SWEEPS, random_state=seed
    ).factors


def by_power(third: Numbers, second: Sequence[Numbers], seed: int) -> Sequence[Numbers]:
    """Decompose by the tensor power method."""
    factors, weights = tensor_power(third, second, len(third), random_state=seed)
    return [np.abs(factors[0]) * np.abs(weights), *map(np.abs, factors[1:])]


#: The decompositions that starts are named after.
DECOMPOSERS: dict[str, Decomposer] = {"moments": by_descent, "power": by_power}


def majority_start(problem: CrowdProblem, number: int, seed: int) -> Numbers:
    """Return the shares of votes: of all workers, and in later starts of a random half of them."""
    if number == 0:
        return vote_shares(problem)
    half = np.random.default_rng(seed).random(problem.n_workers) < 0.5
    return vote_shares(problem, half)


def moment_start(problem: CrowdProblem, decomposer: Decomposer, number: int, seed: int) -> Numbers:
    """Return posteriors by the moments of three groups of workers.

    The first start splits workers by their number modulo three, as the paper does, later ones at
    random. A split whose moments do not tell the classes apart begins from the votes.
    """
    order = np.arange(problem.n_workers)
    if number > 0:
        order = np.random.default_rng(seed).permutation(order)
    groups = order % _N_GROUPS
    votes = [problem.votes(groups == g) for g in range(_N_GROUPS)]
    third, second = moments(votes)
    try:
        factors = decomposer(third, second, seed)
    except (InvalidInputError, np.linalg.LinAlgError):
        return majority_start(problem, number, seed)
    group_tables, shares = named_classes(factors)
    table = worker_tables(problem, groups, votes, group_tables)
    return problem.posteriors(np.log(table), np.log(shares))[0]


def moments(votes: Sequence[Numbers]) -> tuple[Numbers, list[Numbers]]:
    """Return the third moment of the votes of three groups, and their pair moments."""
    first, second, third = votes
    n_items, n_classes = first.shape
    cube = np.stack([(first[:, [k]] * second).T @ third for k in range(n_classes)])
    pairs = [first.T @ second, first.T @ third, second.T @ third]
    return cube / n_items, [pair / n_items for pair in pairs]


def named_classes(factors: Sequence[Numbers]) -> tuple[list[Numbers], Numbers]:
    """Return factors whose columns sum to one, each the class that it calls best, and shares."""
    sums = [np.maximum(factor.sum(axis=0), np.finfo(float).tiny) for factor in factors]
    scaled = [factor / total for factor, total in zip(factors, sums, strict=True)]
    # A class is called by its own name more often than others are.
    _, columns = linear_sum_assignment(sum(scaled[1:], scaled[0]), maximize=True)
    weights = np.prod(sums, axis=0)[columns]
    shares = np.maximum(weights / max(float(weights.sum()), np.finfo(float).tiny), _LEAST)
    return [factor[:, columns] for factor in scaled], shares / shares.sum()


def worker_tables(
    problem: CrowdProblem,
    groups: NDArray[np.intp],
    votes: Sequence[Numbers],
    group_tables: Sequence[Numbers],
) -> Numbers:
    """Return probabilities (workers, labels, classes) by comparing workers with other groups."""
    table = np.zeros((problem.n_workers, problem.n_classes, problem.n_classes))
    for g in range(_N_GROUPS):
        compared = problem.counts(votes[g]) @ np.linalg.pinv(group_tables[g].T)
        table += np.where((groups != g)[:, None, None], compared, 0.0)
    sums = np.maximum(table, 0.0).sum(axis=1, keepdims=True)
    table = np.maximum(table / np.where(sums > 0, sums, 1.0), _LEAST)
    return np.asarray(table / table.sum(axis=1, keepdims=True))
