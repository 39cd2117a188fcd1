r"""The classes of samples, as ``y`` tells them, and logistic regression on the rows of a factor.

For rows :math:`g_i` and classes :math:`y_i`, minimise over weights :math:`V` and intercept
:math:`c`

.. math:: \tfrac1n \sum_i \ell(y_i;\, g_i V + c) + \tfrac{\rho}{2} \|V\|^2, \qquad
    \ell(y; z) = \log \sum_k e^{z_k} - z_y .

Two classes are two columns that are each other's negative. The Hessian of :math:`\ell` in
:math:`z` never exceeds :math:`\tfrac12 I` (Böhning 1992), which makes a preconditioner.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.linalg
import scipy.optimize

from polyad.data.label_values import as_text, shown
from polyad.exceptions import InvalidInputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

# The largest curvature of the logistic loss in the scores.
_CURVATURE = 0.5
# A ridge of the preconditioner only, at the level of rounding, for rows of less than full rank.
_JITTER = 1e-12
_UNLABELLED = (
    "Samples without a class are marked by -1 where classes are integers, and by None or NaN "
    "otherwise."
)


@dataclass(frozen=True)
class Labels:
    """The classes of the samples that have one."""

    #: Which samples, increasing.
    positions: NDArray[np.intp]
    #: The number of the class of each.
    codes: NDArray[np.intp]
    #: The classes, two or more, sorted.
    classes: NDArray[Any]

    @property
    def n_classes(self) -> int:
        """How many classes there are."""
        return len(self.classes)

    def __len__(self) -> int:
        return len(self.positions)


def scores(
    rows: NDArray[Any], weights: NDArray[Any], intercept: NDArray[Any]
) -> NDArray[np.float64]:
    """Return one number per row and class, whose softmax is the probability of the class."""
    return np.asarray(rows @ weights + intercept)


def softmax(z: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the probabilities of the classes, one row per sample."""
    exponentials = np.exp(z - z.max(axis=1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis=1, keepdims=True))


def losses(z: NDArray[np.float64], codes: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return the negative log-probability of the true class of each row."""
    above = z - z[np.arange(len(codes)), codes][:, None]
    top = above.max(axis=1)
    return np.asarray(top + np.log(np.exp(above - top[:, None]).sum(axis=1)))


def surplus(z: NDArray[np.float64], codes: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return the gradient of each row's loss: its probabilities minus one at the true class."""
    gradient = softmax(z)
    gradient[np.arange(len(codes)), codes] -= 1.0
    return gradient


def fit_logistic(
    rows: NDArray[np.float64],
    labels: Labels,
    ridge: float,
    start: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None,
    *,
    max_iter: int = 500,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return weights (R, n_classes) and intercept, fitted to the rows of the labelled samples.

    Quasi-Newton steps from ``start``, by default zero and the shares of the classes, after a change
    of variables by the curvature bound, which makes the steps independent of the scale and
    correlation of the columns. The objective never ends above where it started.
    """
    n, rank = rows.shape
    codes, n_classes = labels.codes, labels.n_classes
    if start is None:
        shares = np.log(np.bincount(codes, minlength=n_classes) / n)
        start = (np.zeros((rank, n_classes)), shares - shares.mean())
    design = np.concatenate([rows, np.ones((n, 1))], axis=1)
    penalty = np.append(np.full(rank, ridge), 0.0)
    bound = _CURVATURE * (design.T @ design) / n
    bound[np.diag_indices(rank + 1)] += penalty + _JITTER * np.trace(bound)
    factor = scipy.linalg.cholesky(bound)

    def objective(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        theta = scipy.linalg.solve_triangular(factor, flat.reshape(rank + 1, n_classes))
        z = design @ theta
        shrunk = penalty[:, None] * theta
        value = float(np.mean(losses(z, codes))) + 0.5 * float(np.sum(shrunk * theta))
        gradient = design.T @ surplus(z, codes) / n + shrunk
        return value, scipy.linalg.solve_triangular(factor, gradient, trans="T").ravel()

    first = np.concatenate([start[0], start[1][None, :]])
    flat = (factor @ first).ravel()
    found = scipy.optimize.minimize(
        objective,
        flat,
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": max_iter, "ftol": 1e-14, "gtol": 1e-9},
    )
    if not found.fun < objective(flat)[0]:
        return start
    theta = scipy.linalg.solve_triangular(factor, found.x.reshape(rank + 1, n_classes))
    # Scores that rise by the same number for all classes mean nothing: rounding is taken off.
    theta = theta - theta.mean(axis=1, keepdims=True)
    return np.ascontiguousarray(theta[:-1]), np.ascontiguousarray(theta[-1])


def split_unlabelled(y: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return the classes of the labelled samples, in their own type, and which samples those are.

    Unlabelled are -1 among integers, and None and NaN (NA of pandas) among all others.
    """
    if y.dtype.kind == "O":
        known = np.array([not _is_nothing(value) for value in y], dtype=bool)
        values = _in_own_type(y[known])
    elif y.dtype.kind == "f":
        known = ~np.isnan(y)
        values = y[known]
    else:
        known, values = np.ones(len(y), dtype=bool), y
    if values.dtype.kind == "i":
        labelled = values != -1
        known[known] = labelled
        values = values[labelled]
    return values, known


def _is_nothing(value: Any) -> bool:
    """Recognise None, NaN and the missing values of pandas, none of which equals itself."""
    if value is None:
        return True
    different = value != value  # noqa: PLR0124  (true of NaN alone)
    return type(different).__name__ == "NAType" or (
        isinstance(different, bool | np.bool_) and bool(different)
    )


def _in_own_type(objects: NDArray[Any]) -> NDArray[Any]:
    """Turn objects into an array of text, numbers or booleans; mixtures are refused."""
    kinds = sorted({_kind(value) for value in objects})
    if len(kinds) > 1:
        message = (
            f"Unknown label type: y mixes {' and '.join(kinds)}. Give classes of one type: text or "
            f"integers. {_UNLABELLED}"
        )
        raise InvalidInputError(message)
    if kinds == ["text"]:
        return as_text(objects, of="y")
    return np.array(objects.tolist())


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return "text"
    if isinstance(value, bool | np.bool_):
        return "booleans"
    return "numbers" if isinstance(value, int | float | np.number) else type(value).__name__


def read_labels(values: NDArray[Any], known: NDArray[np.bool_]) -> Labels:
    """Give the classes of the labelled samples numbers."""
    classes, codes = np.unique(values, return_inverse=True)
    if len(classes) < 2:
        found = "no labelled sample" if not len(classes) else f"only one class, {shown(classes)}"
        message = f"y has {found}, and two classes or more are needed to tell apart. {_UNLABELLED}"
        if classes.dtype.kind == "i" and not known.all():
            message += " If -1 is a class of yours, call the classes 0 and 1, for example."
        raise InvalidInputError(message)
    return Labels(np.flatnonzero(known), codes.reshape(-1), classes)
