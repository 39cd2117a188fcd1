"""Model files: one zip of ``.npy`` arrays and versioned JSON, read without pickle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polyad
from polyad.estimators.base import PolyadEstimator
from polyad.exceptions import ModelFileError
from polyad.fitting.archive import read_archive

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping


def load(path: str | os.PathLike[str]) -> Any:
    """Read an estimator that was written by its ``save``.

    A file from an untrusted source can be refused but cannot run code: only arrays, numbers and
    text are read, and only estimators of polyad are made.

    Parameters
    ----------
    path : path-like
        The file.

    Returns
    -------
    estimator
        Of the class that was saved, fitted if it was.

    Raises
    ------
    ModelFileError
        If the file is damaged, not a model, or of a newer version.

    Examples
    --------
    >>> import numpy as np, os, tempfile
    >>> import polyad
    >>> model = polyad.CP(2, random_state=0).fit(np.random.default_rng(0).random((6, 5, 4)))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "model.polyad")
    ...     model.save(path)
    ...     same = polyad.load(path)
    >>> bool((same.weights_ == model.weights_).all())
    True
    """
    return restored(read_archive(path, "model"), path)


def restored(content: dict[str, Any], path: object) -> Any:
    """Make the estimator of a file, or say what is wrong with it."""
    try:
        return _estimator_class(content)._restore(content)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        message = f"{path} is not a usable model: {error!s:.500}."
        raise ModelFileError(message) from error


def _estimator_class(content: Mapping[str, Any]) -> type[PolyadEstimator]:
    """Return the estimator of that name, if polyad has it."""
    name = content["class"]
    found = getattr(polyad, name) if name in polyad.__all__ else None
    if not (isinstance(found, type) and issubclass(found, PolyadEstimator)):
        message = f"polyad has no estimator {name!r}"
        raise ModelFileError(message)
    return found
