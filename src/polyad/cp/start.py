"""Where a fit starts: random factors, leading singular vectors, or given ones."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.linalg import norm
from scipy.sparse import coo_array, csr_array

from polyad.core.arrays import Array, namespace_of, to_numpy
from polyad.core.threads import cut
from polyad.cp.problem import FitData, comfortable_exponent
from polyad.cp.rules import epsilon_of
from polyad.exceptions import InvalidInputError, InvalidTypeError
from polyad.tensor.dense import DenseTensor
from polyad.tensor.products import gram_product, unfold
from polyad.tensor.sparse import SparseTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray


#: The names that classes with nonnegative factors take for ``init``.
NONNEGATIVE_STARTS = ("svd", "split", "random", "search")

# Subspace iteration on the Gram matrix: enough for a start, which needs no exact vectors.
_OVERSAMPLING = 8
_POWER_STEPS = 3
_EXACT_STEPS = 12
# A basis of so many rows is made orthogonal by its Gram matrix: QR would cost more than all else.
_TALL = 4096
# The part of the margins in a start of singular pairs, and of an even spread in the margins.
_MIXED_IN = 0.1
_EVEN = 0.01


def names_of(starts: Sequence[str]) -> str:
    """Return names of starts as a user writes them."""
    return ", ".join(map(repr, starts))


def make_start(problem: FitData, n_components: int, kind: str, seed: int) -> list[Array]:
    """Return factors of any sign to begin with: singular vectors, or random numbers."""
    make = svd_start if kind == "svd" else random_start
    return of_the_size_of(problem, make(problem, n_components, seed))


def of_the_size_of(problem: FitData, factors: list[Array]) -> list[Array]:
    """Scale factors so that the model is as large as the data: a ridge then acts as it will."""
    xp = namespace_of(factors[0])
    size = float(xp.sum(gram_product(factors)))
    share = (problem.norm_squared / size) ** (0.5 / len(factors)) if size > 0 else 1.0
    return [factor * share for factor in factors]


def random_start(problem: FitData, n_components: int, seed: int) -> list[Array]:
    """Return factors with independent standard normal entries."""
    generator = np.random.default_rng(seed)
    return [
        problem.asarray(generator.standard_normal((size, n_components))) for size in problem.shape
    ]


def svd_start(
    problem: FitData, n_components: int, seed: int, n_steps: int = _POWER_STEPS
) -> list[Array]:
    """Return the leading left singular vectors of each unfolding, found by randomized iteration.

    A mode with fewer entries than there are components gets random columns for the rest. Missing
    entries count as zero. Nothing larger than the data is formed.
    """
    generator = np.random.default_rng(seed)
    factors = []
    for mode, size in enumerate(problem.shape):
        width = min(n_components, size)
        block = min(width + _OVERSAMPLING, size)
        guess = problem.asarray(generator.standard_normal((size, block)))
        operator = gram_operator(problem.tensor, mode, block)
        vectors = leading_vectors(operator, guess, width, n_steps)
        fill = problem.asarray(generator.standard_normal((size, n_components - width)))
        xp = namespace_of(vectors)
        factors.append(xp.concat([vectors, fill / max(1, size) ** 0.5], axis=1))
    return factors


def nonnegative_svd_start(problem: FitData, n_components: int, seed: int) -> list[Array]:
    """Return nonnegative factors made of singular vectors, nearly the same for every seed.

    Of a tensor, the sizes of the leading singular vectors of each unfolding. Of a matrix, whose
    vectors come in pairs, the larger of the two nonnegative parts of each pair (NNDSVD, Boutsidis
    and Gallopoulos 2008), with some of the margins of the data mixed in: no entry is zero where
    something is to be explained.
    """
    data = FitData(of_comfortable_size(problem.tensor))
    if len(problem.shape) > 2:
        vectors = svd_start(data, n_components, seed, _EXACT_STEPS)
        return [problem.asarray(without_zeros(factor)) for factor in vectors]
    width = min(n_components, *problem.shape)
    left = svd_start(data, width, seed, _EXACT_STEPS)[0]
    pairs = to_numpy(left).astype(np.float64), transposed_product(data.tensor, left)
    sizes = [[norm(np.maximum(sign * part, 0), axis=0) for part in pairs] for sign in (1, -1)]
    positive, negative = map(math.prod, sizes)
    signs = np.where(positive >= negative, 1.0, -1.0)
    # Components beyond the rank of the matrix, whose pairs are rounding, are random.
    kept = np.maximum(positive, negative)
    is_found = kept > max(problem.shape) * epsilon_of(left.dtype) * kept.max()
    n_random = n_components - int(is_found.sum())
    generator = np.random.default_rng(seed)
    factors = []
    for part, margin in zip(pairs, positive_margins(data.tensor), strict=True):
        rest = generator.uniform(0.1, 1.0, (len(part), n_random)) * margin[:, None]
        columns = np.hstack([np.maximum(signs * part, 0)[:, is_found], rest])
        sums = columns.sum(axis=0)
        factors.append(columns + _MIXED_IN * sums * margin[:, None])
    return [problem.asarray(factor) for factor in factors]


def without_zeros(factor: Array) -> Array:
    """Return the sizes of numbers, and a little more.

    An entry of zero stays zero under multiplication, and is slow to leave otherwise.
    """
    xp = namespace_of(factor)
    sizes = xp.abs(factor)
    return sizes + 0.01 * float(xp.mean(sizes))


def transposed_product(tensor: DenseTensor | SparseTensor, left: Array) -> NDArray[np.float64]:
    """Return the transpose of a matrix times another one."""
    matrix = tensor.array if isinstance(tensor, DenseTensor) else csr_array(tensor.to_coo())
    product: NDArray[np.float64] = to_numpy(matrix.T @ left).astype(np.float64)
    return product


def of_comfortable_size(tensor: DenseTensor | SparseTensor) -> DenseTensor | SparseTensor:
    """Return data whose squares are in the range of its number type, if need be by division.

    Sparse data is also brought to double precision, in which its fits run.
    """
    if isinstance(tensor, DenseTensor):
        exponent = comfortable_exponent(tensor.array)
        return DenseTensor(tensor.array * 2.0**-exponent) if exponent else tensor
    wide = tensor.values.astype(np.float64, copy=False)
    exponent = comfortable_exponent(wide)
    if not exponent and wide is tensor.values:
        return tensor
    entries: Any = (wide * 2.0**-exponent, tensor.coords)
    return SparseTensor(coo_array(entries, shape=tensor.shape))


def positive_margins(tensor: DenseTensor | SparseTensor) -> list[NDArray[np.float64]]:
    """Return the sums of the positive entries over all modes but one, as parts of their sum.

    A little is spread evenly: a slice of zeros is not impossible for every method.
    """
    margins = []
    for mode, size in enumerate(tensor.shape):
        if isinstance(tensor, DenseTensor):
            xp = namespace_of(tensor.array)
            positive = xp.clip(tensor.array, min=0)
            others = tuple(k for k in range(len(tensor.shape)) if k != mode)
            sums: NDArray[Any] = to_numpy(xp.sum(positive, axis=others)).astype(np.float64)
        else:
            positive = np.maximum(tensor.values, 0).astype(np.float64)
            sums = np.bincount(tensor.coords[mode], positive, size)
        total = sums.sum()
        even = np.full(size, 1.0 / max(size, 1))
        margins.append((1 - _EVEN) * sums / total + _EVEN * even if total > 0 else even)
    return margins


def leading_vectors(
    apply: Callable[[Array], Array], guess: Array, width: int, n_steps: int = _POWER_STEPS
) -> Array:
    """Return approximate leading eigenvectors of a positive semi-definite operator.

    ``guess`` is a random start, a little wider than ``width``; ``apply`` takes as many columns.
    """
    xp = namespace_of(guess)
    basis = _orthonormal(guess)
    for _ in range(n_steps):
        basis = _orthonormal(apply(basis))
    # Rayleigh-Ritz: the best vectors inside the subspace. eigh sorts upwards.
    projected = basis.T @ apply(basis)
    _, rotation = xp.linalg.eigh((projected + projected.T) / 2)
    return basis @ xp.flip(rotation, axis=1)[:, :width]


def _orthonormal(matrix: Array) -> Array:
    """Return an orthonormal basis of the columns of a matrix.

    A tall matrix of unit columns, ``A`` with ``AᵀA = V D Vᵀ``, has the basis ``A V D^(-1/2)``,
    which is orthogonal up to rounding times the condition of ``AᵀA``. If that is more than half of
    the digits, as for data of lower rank than the basis is wide, it is left to QR.
    """
    xp = namespace_of(matrix)
    if matrix.shape[0] >= _TALL:
        lengths = xp.sqrt(xp.sum(matrix * matrix, axis=0))
        if bool(xp.all(lengths > 0)):
            gram = (matrix.T @ matrix) / (lengths[:, None] * lengths[None, :])
            values, vectors = xp.linalg.eigh(gram)
            if float(values[0]) > epsilon_of(matrix.dtype) ** 0.5 * float(values[-1]):
                return matrix @ (vectors / lengths[:, None] / xp.sqrt(values)[None, :])
    return xp.linalg.qr(matrix)[0]


def gram_operator(
    tensor: DenseTensor | SparseTensor, mode: int, block: int
) -> Callable[[Array], Array]:
    """Return the map ``Q -> U (Uᵀ Q)``, where ``U`` is the unfolding of the tensor in a mode."""
    if isinstance(tensor, DenseTensor):
        matrix = unfold(tensor.array, mode)
        return lambda basis: matrix @ (matrix.T @ basis)
    pieces = _column_pieces(tensor, mode, block)
    return lambda basis: sum((piece @ (piece.T @ basis) for piece in pieces), 0 * basis)


def _column_pieces(tensor: SparseTensor, mode: int, block: int) -> list[csr_array]:
    """Cut a sparse unfolding, without its empty columns, into pieces of few columns.

    ``Uᵀ Q`` of a piece then never has more numbers than the data.
    """
    others = [tensor.coords[k] for k in range(tensor.ndim) if k != mode]
    order = np.lexsort(others)
    changes = np.zeros(tensor.nnz, dtype=bool)
    for row in others:
        ordered = row[order]
        changes[1:] |= ordered[1:] != ordered[:-1]
    column = np.cumsum(changes)
    rows, values = tensor.coords[mode][order], tensor.values[order]
    width = max(1, tensor.nnz // block)
    pieces = []
    n_columns = int(column[-1]) + 1 if tensor.nnz else 0
    for first, last in cut(n_columns, width):
        begin, end = np.searchsorted(column, [first, last])
        entries = (values[begin:end], (rows[begin:end], column[begin:end] - first))
        pieces.append(csr_array(entries, shape=(tensor.shape[mode], last - first)))
    return pieces


def given_start(
    problem: FitData, n_components: int, init: Any, *, any_samples: bool = False
) -> list[Array]:
    """Read factors that a user gave.

    The weights and the scale of the data go to the first mode that is not fixed.
    With ``any_samples`` the factor of the samples may have any number of rows.
    """
    # Classes of batches, which take any samples, have no search.
    names = ("svd", "random") if any_samples else ("svd", "random", "search")
    weights, factors = _parts(init, names)
    carrier = next(mode for mode in range(len(problem.shape)) if mode not in problem.fixed_modes)
    shapes = [tuple(factor.shape) for factor in factors]
    expected = [(size, n_components) for size in problem.shape]
    if any_samples and shapes:
        expected[0] = (shapes[0][0], n_components)
    if shapes != expected:
        message = f"init has factors of shape {shapes}; this fit needs {expected}."
        raise InvalidInputError(message)
    if weights is not None:
        if tuple(weights.shape) != (n_components,):
            message = f"init has weights of shape {tuple(weights.shape)}, not ({n_components},)."
            raise InvalidInputError(message)
        factors[carrier] = factors[carrier] * weights[None, :]
    # The data may have been rescaled; the start follows it.
    factors[carrier] = factors[carrier] * 2.0**-problem.exponent
    with np.errstate(over="ignore"):
        cast = [problem.asarray(factor) for factor in factors]
    if not all(np.isfinite(to_numpy(factor)).all() for factor in cast):
        message = "init contains NaN or infinity, or numbers beyond the type of the data."
        raise InvalidInputError(message)
    return cast


def given_nonnegative_start(problem: FitData, n_components: int, init: Any) -> list[Array]:
    """Read factors that a user gave, and refuse negative numbers."""
    if isinstance(init, str):
        message = (
            f"init={init!r} is not understood. Give {names_of(NONNEGATIVE_STARTS)}, or factors "
            "that are not negative: a KruskalTensor, a pair (weights, factors) or a list of "
            "factors."
        )
        raise InvalidInputError(message)
    factors = given_start(problem, n_components, init)
    for mode, factor in enumerate(factors):
        bad = np.argwhere(to_numpy(factor) < 0)
        if bad.size:
            place = tuple(int(k) for k in bad[0])
            message = (
                f"init has the negative number {float(factor[place]):.6g} at {place} of the factor "
                f"of mode {mode}. This model starts from factors that are not negative."
            )
            raise InvalidInputError(message)
    return factors


def _parts(init: Any, names: Sequence[str]) -> tuple[np.ndarray | None, list[np.ndarray]]:
    """Split what was given, which is none of the names, into weights and factors of floats."""
    weights, factors = None, init
    if hasattr(init, "weights") and hasattr(init, "factors"):
        weights, factors = init.weights, init.factors
    elif isinstance(init, dict) and set(init) == {"weights", "factors"}:
        weights, factors = init["weights"], init["factors"]
    elif isinstance(init, tuple) and len(init) == 2 and isinstance(init[1], (list, tuple)):
        weights, factors = init
    try:
        matrices = [to_numpy(factor).astype(float) for factor in factors]
        return (None if weights is None else to_numpy(weights).astype(float)), matrices
    except (TypeError, ValueError) as error:
        message = (
            f"init={init!r} is not understood. Give {names_of(names)}, a KruskalTensor, a pair "
            "(weights, factors), or a list with one factor per mode."
        )
        if init == "split":
            message += " 'split' is for classes whose factors are not negative."
        if init == "search":
            message += " 'search' is for classes that fit all of the data at once."
        raise InvalidTypeError(message) from error
