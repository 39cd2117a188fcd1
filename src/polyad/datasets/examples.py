"""Tensors to try things on: random ones of known components, and the digits of scikit-learn."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import coo_array
from sklearn.utils import check_random_state

from polyad.data.labels import LabelledTensor
from polyad.data.validation import check_seed
from polyad.exceptions import InvalidInputError
from polyad.tensor.kruskal import KruskalTensor
from polyad.tensor.sparse import canonicalize

if TYPE_CHECKING:
    from collections.abc import Sequence


def make_low_rank(
    shape: Sequence[int],
    n_components: int,
    *,
    noise: float = 0.0,
    nonnegative: bool = False,
    random_state: int | np.random.RandomState | None = None,
) -> tuple[np.ndarray, KruskalTensor]:
    """Make a dense tensor of low rank with Gaussian noise.

    Parameters
    ----------
    shape : sequence of int
        The size of each mode.
    n_components : int
        The rank.
    noise : float
        The norm of the noise as a part of the norm of the tensor.
    nonnegative : bool
        Whether the factors have no negative entries. The noise may still make some.
    random_state : int, RandomState instance or None
        Seeds the numbers.

    Returns
    -------
    tensor : array
        The tensor with noise.
    truth : KruskalTensor
        The components without noise.

    Examples
    --------
    >>> from polyad.datasets import make_low_rank
    >>> tensor, truth = make_low_rank((6, 5, 4), 2, noise=0.1, random_state=0)
    >>> tensor.shape, truth.n_components
    ((6, 5, 4), 2)
    """
    _check_shape(shape)
    if not _is_whole(n_components) or n_components < 1:
        message = f"n_components={n_components!r} makes no tensor; give a whole number above zero."
        raise InvalidInputError(message)
    _check_number("noise", noise)
    check_seed(random_state)
    generator = check_random_state(random_state)
    draw = generator.uniform if nonnegative else generator.standard_normal
    factors = [draw(size=(size, n_components)) for size in shape]
    truth = KruskalTensor(np.ones(n_components), factors)
    clean = truth.to_dense()
    error = generator.standard_normal(size=clean.shape)
    scale = noise * np.sqrt(np.sum(clean**2) / np.sum(error**2))
    return clean + scale * error, truth


def make_sparse(
    shape: Sequence[int],
    n_draws: int,
    *,
    skew: float = 1.0,
    random_state: int | np.random.RandomState | None = None,
) -> coo_array:
    """Make a sparse tensor of counts whose indices follow a power law, like words or users do.

    Parameters
    ----------
    shape : sequence of int
        The size of each mode.
    n_draws : int
        The sum of all counts. The number of nonzeros is a little lower: repeated indices add up.
    skew : float
        Index ``i`` of a mode is drawn with a probability proportional to ``1 / (i + 1)**skew``,
        in an order shuffled for each mode. Zero makes all equally likely.
    random_state : int, RandomState instance or None
        Seeds the numbers.

    Examples
    --------
    >>> from polyad.datasets import make_sparse
    >>> make_sparse((100, 80, 60), 500, random_state=0).shape
    (100, 80, 60)
    """
    _check_shape(shape)
    if not _is_whole(n_draws) or n_draws < 1:
        message = f"n_draws={n_draws!r} makes no tensor; give a whole number above zero."
        raise InvalidInputError(message)
    _check_number("skew", skew)
    check_seed(random_state)
    generator = check_random_state(random_state)
    coords = []
    for size in shape:
        with np.errstate(over="ignore"):  # what is divided by infinity is never drawn
            cumulative = np.cumsum(1.0 / np.arange(1, size + 1) ** float(skew))
        ranks = np.searchsorted(cumulative, generator.uniform(0, cumulative[-1], n_draws))
        coords.append(generator.permutation(size)[ranks])
    return canonicalize(coo_array((np.ones(n_draws), tuple(coords)), shape=tuple(shape)))


def _check_shape(shape: Sequence[int]) -> None:
    sizes = tuple(shape) if np.iterable(shape) else ()
    if len(sizes) < 2 or not all(_is_whole(size) and size > 0 for size in sizes):
        message = f"shape={shape!r} is not that of a tensor; give two or more positive sizes."
        raise InvalidInputError(message)


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _check_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) < math.inf:
        message = f"{name}={value!r} is not usable; give a finite number that is not negative."
        raise InvalidInputError(message)


def load_digits() -> tuple[LabelledTensor, np.ndarray]:
    """Return the 1797 digits of scikit-learn as images x rows x columns, and what they show.

    Returns
    -------
    images : LabelledTensor of shape (1797, 8, 8)
        Grey values from 0 to 16.
    digits : array of shape (1797,)
        The digit of each image.

    Examples
    --------
    >>> from polyad.datasets import load_digits
    >>> images, digits = load_digits()
    >>> images.shape
    (1797, 8, 8)
    """
    from sklearn.datasets import load_digits as load

    bunch = load()
    images = LabelledTensor(bunch.images, modes=("image", "row", "column"))
    return images, bunch.target
