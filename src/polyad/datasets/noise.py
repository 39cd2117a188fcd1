"""Noise in counts: zeros that become nonzero, after section 4.3 of the SWIFT paper."""

from __future__ import annotations

import math
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import coo_array, issparse
from sklearn.utils import check_random_state

from polyad.data.entries import summed_coo
from polyad.data.labels import LabelledTensor
from polyad.data.validation import check_seed
from polyad.exceptions import InvalidInputError, InvalidTypeError
from polyad.tensor.sparse import canonicalize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

# Above this share of nonzeros the zeros are listed, which then takes no more memory than the
# nonzeros do; below it they are guessed, and at least every second guess is right.
_LISTED = 0.25


def add_noise(X: Any, p: float, *, random_state: int | np.random.RandomState | None = None) -> Any:
    """Turn some zeros of a tensor of counts into counts.

    As many zeros as there are nonzeros are chosen at random, or all zeros if they are fewer. Each
    of them becomes, with probability ``p``, a number drawn uniformly from 1 to the largest entry:
    always 1 if the tensor is binary. Nothing else changes.

    Parameters
    ----------
    X : LabelledTensor, sparse array or ndarray
        Whole numbers, none negative. Sparse data is never made dense and may have any number of
        cells.
    p : float
        From 0 to 1.
    random_state : int, RandomState instance or None, default=None
        Seeds the numbers.

    Returns
    -------
    LabelledTensor, coo_array or ndarray
        A copy with noise: labelled if ``X`` is, sparse if ``X`` is, of the same floating point
        type (float64 for integers).

    References
    ----------
    A. Afshar, K. Yin, S. Yan, C. Qian, J. C. Ho, H. Park, J. Sun, "SWIFT: Scalable Wasserstein
    Factorization for Sparse Nonnegative Tensors", AAAI 2021.

    Examples
    --------
    >>> from polyad.datasets import add_noise, make_sparse
    >>> X = make_sparse((100, 80, 60), 500, random_state=0)
    >>> noisy = add_noise(X, 0.2, random_state=0)
    >>> X.nnz, noisy.nnz
    (473, 569)
    """
    if not isinstance(p, Real) or not 0 <= float(p) <= 1:
        message = f"p={p!r} is not a probability; give a number from 0 to 1."
        raise InvalidInputError(message)
    check_seed(random_state)
    generator = check_random_state(random_state)
    if isinstance(X, LabelledTensor):
        noisy = _noisy(X.data, float(p), generator)
        return LabelledTensor(noisy, modes=X.modes, labels=X.labels)
    is_array = issparse(X) or (isinstance(X, np.ndarray) and X.ndim > 0)
    if not is_array or X.dtype.kind not in "fiub":
        message = (
            f"X must be a LabelledTensor, a scipy sparse array or a NumPy array of numbers, got "
            f"{type(X).__name__}. Convert it first."
        )
        raise InvalidTypeError(message)
    return _noisy(X, float(p), generator)


def _noisy(X: Any, p: float, generator: np.random.RandomState) -> Any:
    """Add noise to a dense or sparse array."""
    is_sparse: bool = issparse(X)
    if is_sparse:
        stored = canonicalize(coo_array(X))
        coords, values = np.stack(stored.coords), stored.data
        nonzero = np.flatnonzero(values)
        new_coords, new_values = _noise(
            coords[:, nonzero], values[nonzero], stored.shape, p, generator
        )
        return summed_coo(
            tuple(np.concatenate([coords, new_coords.astype(coords.dtype)], axis=1)),
            np.concatenate([values, new_values.astype(values.dtype)]),
            stored.shape,
        )
    dense = np.array(X, dtype=X.dtype if X.dtype in (np.float32, np.float64) else np.float64)
    nonzero_coords = np.stack(np.nonzero(dense))
    new_coords, new_values = _noise(
        nonzero_coords, dense[tuple(nonzero_coords)], dense.shape, p, generator
    )
    dense[tuple(new_coords)] = new_values
    return dense


def _noise(
    coords: NDArray[Any],
    values: NDArray[Any],
    shape: Sequence[int],
    p: float,
    generator: np.random.RandomState,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return where and what the noise is, given the nonzeros."""
    if values.size and not (np.isfinite(values).all() and values.min() >= 0):
        message = "The noise is one of counts, but X has entries that are negative or not finite."
        raise InvalidInputError(message)
    if (values != np.round(values)).any():
        first = values[values != np.round(values)][0]
        message = (
            f"The noise is one of counts, but X has entries that are not whole, such as {first}. "
            "Round or scale them."
        )
        raise InvalidInputError(message)
    # Python's integers: the number of cells may be beyond 64 bits.
    n_cells = math.prod(int(size) for size in shape)
    n_chosen = min(values.size, n_cells - values.size)
    # To choose n zeros and to flip each with probability p is to flip a binomial number of them.
    n_flipped = int(generator.binomial(n_chosen, p))
    choose = _listed_zeros if values.size > _LISTED * n_cells else _guessed_zeros
    places = choose(coords, shape, n_flipped, generator)
    largest = float(values.max()) if values.size else 1.0
    return places, np.floor(generator.uniform(size=n_flipped) * largest) + 1.0


def _listed_zeros(
    coords: NDArray[Any], shape: Sequence[int], n: int, generator: np.random.RandomState
) -> NDArray[Any]:
    """Choose n of the zeros of a tensor that has few."""
    is_zero = np.ones(math.prod(shape), dtype=bool)
    is_zero[np.ravel_multi_index(tuple(coords), tuple(shape))] = False
    chosen = generator.permutation(np.flatnonzero(is_zero))[:n]
    return np.stack(np.unravel_index(chosen, tuple(shape)))


def _guessed_zeros(
    coords: NDArray[Any], shape: Sequence[int], n: int, generator: np.random.RandomState
) -> NDArray[Any]:
    """Choose n of the zeros of a tensor that has many, without listing them.

    Cells are drawn at random. Those that are taken, by a nonzero or by an earlier draw, are drawn
    again.
    """
    taken = coords.astype(np.int64)
    n_nonzeros = taken.shape[1]
    while taken.shape[1] < n_nonzeros + n:
        n_missing = n_nonzeros + n - taken.shape[1]
        drawn = np.stack(
            [generator.randint(size, size=n_missing, dtype=np.int64) for size in shape]
        )
        cells = np.concatenate([taken, drawn], axis=1)
        # A stable sort: of equal cells the one that was there first comes first.
        order = np.lexsort(cells)
        in_order = cells[:, order]
        repeats = np.flatnonzero((in_order[:, 1:] == in_order[:, :-1]).all(axis=0)) + 1
        taken = np.delete(cells, order[repeats], axis=1)
    return taken[:, n_nonzeros:]
