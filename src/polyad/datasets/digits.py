"""Handwritten digits that come with scikit-learn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polyad.data.labels import LabelledTensor

if TYPE_CHECKING:
    import numpy as np


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
