r"""Split and merge for components of any sign: see :mod:`polyad.cp.moves` for what moves are for.

Let :math:`E` be what a model leaves, the negative derivative of the loss in the model values over
its curvature; of squares, the residual. Near the model the loss is then a constant and
:math:`\tfrac12 \|E - D\|^2`, where :math:`D` is what a move adds.

*Split.* Component :math:`T_r` gives way to the two that fit :math:`T_r + E` best, by a few rounds
of alternating least squares. They gain :math:`\tfrac12 \|E\|^2` less half the square of what they
leave. The fits of all components are made together: one product with the data serves all of them.

*Merge.* Two components give way to the best one in place of their sum. They live in the span of two
vectors in each mode, so that the power method works on a core of :math:`2 \times 2 \times \dots`
numbers. Half the square of what it leaves of the sum is lost.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.core.arrays import to_numpy
from polyad.cp.moves import most_alike
from polyad.tensor.products import gram_product

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from polyad.core.arrays import Array

    Matrix = NDArray[np.float64]
    #: Given columns for each mode, the MTTKRP of what a model leaves in a mode.
    Pull = Callable[[list[Array], int], Array]

# How far the halves of a component are apart at first, and rounds of their improvement.
_FIRST_CONTRAST = 0.9
_SPLIT_ROUNDS = 5
# Rounds of the power method, on a core of few numbers.
_MERGE_ROUNDS = 30
# Eigenvalues of normal matrices below this part of the largest are rounding.
_SINGULAR = 1e-10


def signed_moves(
    pull: Pull, factors: Sequence[Array], asarray: Callable[[Array], Array]
) -> Callable[[int], list[Matrix]]:
    """Return what makes the moves from a model: factors with one split and two others merged.

    The first is that with the largest difference of gain and loss; each further one splits the next
    best component, with the pair that is best for it. They follow from the model alone. There are
    three components at least.
    """
    own = [to_numpy(factor).astype(np.float64) for factor in factors]
    n_components = own[0].shape[1]
    merges = {pair: merged(own, *pair) for pair in most_alike(own)[: 2 * n_components]}

    def ranked(turn: int) -> list[tuple[float, int, tuple[int, int], list[Matrix]]]:
        generator = np.random.default_rng(turn)
        halves, gains = split_all(pull, own, asarray, generator)
        moves = []
        for r in range(n_components):
            pairs = [pair for pair in merges if r not in pair]
            if pairs:
                pair = min(pairs, key=lambda pair: merges[pair][1])
                columns = [half[:, [r, n_components + r]] for half in halves]
                moves.append((gains[r] - merges[pair][1], r, pair, columns))
        return sorted(moves, key=lambda move: -move[0])

    first = ranked(0)

    def made(attempt: int) -> list[Matrix]:
        turn, place = divmod(attempt, len(first))
        _, r, pair, columns = (ranked(turn) if turn else first)[place]
        kept = [k for k in range(n_components) if k != r and k not in pair]
        joined = merges[pair][0]
        parts = zip(own, joined, columns, strict=True)
        return [np.hstack([old[:, kept], one[:, None], two]) for old, one, two in parts]

    return made


def split_all(
    pull: Pull,
    own: Sequence[Matrix],
    asarray: Callable[[Array], Array],
    generator: np.random.Generator,
) -> tuple[list[Matrix], NDArray[np.float64]]:
    """Return two components in place of each, all first ones before all second ones, and gains."""
    n_components = own[0].shape[1]
    twice = [np.hstack([factor, factor]) for factor in own]
    halves = []
    for factor in own:
        sides = generator.choice([_FIRST_CONTRAST, -_FIRST_CONTRAST], factor.shape)
        halves.append(np.hstack([factor * (1.0 + sides), factor * (1.0 - sides)]))
    pairs = [np.array([r, n_components + r]) for r in range(n_components)]
    fitted = np.zeros(n_components)
    for turn in range(_SPLIT_ROUNDS):
        for mode in (*range(1, len(own)), 0):
            rest = to_numpy(pull([asarray(half) for half in halves], mode)).astype(np.float64)
            # What the component itself has to do with its halves, of which E knows nothing.
            inner = [np.sum(a * b, axis=0) for a, b in zip(twice, halves, strict=True)]
            target = rest + twice[mode] * math.prod(inner[:mode] + inner[mode + 1 :])
            solved = np.empty_like(halves[mode])
            for pair in pairs:
                normal = gram_product([half[:, pair] for half in halves], mode)
                solved[:, pair] = target[:, pair] @ np.linalg.pinv(
                    normal, _SINGULAR, hermitian=True
                )
            halves[mode] = solved
            if turn == _SPLIT_ROUNDS - 1 and mode == 0:
                # At the minimum over a mode |Y - two|² = |Y|² - <two, Y>.
                fitted = np.sum(solved * target, axis=0).reshape(2, -1).sum(axis=0)
    rest = to_numpy(pull([asarray(factor) for factor in own], 0)).astype(np.float64)
    with_rest = np.sum(rest * own[0], axis=0)
    squares = math.prod(np.sum(factor**2, axis=0) for factor in own)
    return halves, 0.5 * (fitted - 2.0 * with_rest - squares)


def merged(own: Sequence[Matrix], i: int, j: int) -> tuple[list[NDArray[Any]], float]:
    """Return the best component in place of the sum of two, a vector per mode, and its loss."""
    bases, corners = zip(*(np.linalg.qr(factor[:, [i, j]]) for factor in own), strict=True)
    # It begins with the larger of the two.
    sizes = math.prod(np.linalg.norm(c, axis=0) for c in corners)
    vectors = [c[:, int(np.argmax(sizes))] for c in corners]
    vectors = [v / (np.linalg.norm(v) or 1.0) for v in vectors]
    length = 0.0
    for _ in range(_MERGE_ROUNDS):
        for mode, corner in enumerate(corners):
            inner = [c.T @ v for c, v in zip(corners, vectors, strict=True)]
            best = corner @ math.prod(inner[:mode] + inner[mode + 1 :])
            length = float(np.linalg.norm(best))
            vectors[mode] = best / (length or 1.0)
    total = float(np.sum(gram_product(corners)))
    columns = [basis @ v for basis, v in zip(bases, vectors, strict=True)]
    columns[0] = columns[0] * length
    return columns, 0.5 * max(total - length**2, 0.0)
