r"""The data of a generalized fit, and the sum of a loss over it with its gradients.

Four kinds share the interface of :class:`GeneralizedProblem`: dense NumPy data, with or without a
mask, in tiles; dense data of other namespaces; sparse data of which only the stored entries were
observed; and sparse data whose other entries are zeros.

With :math:`D = f'(X, M)`, zero where nothing was observed, the gradient in the factor of a mode is
the MTTKRP of :math:`D` (Hong, Kolda and Duersch 2020, theorem 3). Dense data is worked through in
tiles (see ``tiles``); all modes share two products per tile. The derivatives of sparse data are
sparse, at the coordinates of its entries.

If the entries that sparse data does not store are zeros, the sum is that of the zeros over all
cells, plus a correction at each stored entry. The first part has a closed form for the Gaussian
loss, :math:`\tfrac12 \|M\|^2`, and for the Poisson loss, :math:`\sum m`; otherwise it is computed
cell by cell in tiles, which is for small tensors.

Data of a loss that has a unit is divided by a power of two close to its mean size if that is far
from one, which is exact; the loss follows (``Loss.divided``). ``exponent`` remembers it, and
``unit`` is what a sum of the loss has to be multiplied by.

Data over many decades is fitted slice by slice of it. The derivative of a loss of degree p in a row
of a factor goes with the size of that row's slice to the power p - 1, and the curvature with p - 2.
A fit in which all rows share a unit would hardly see the small slices of a loss that does. Sizes
are geometric means, so that those of several modes multiply to the sizes of the entries.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from array_api_compat import device, is_numpy_array
from scipy.sparse import coo_array

from polyad.core.arrays import Array, namespace_of, to_numpy
from polyad.core.threads import as_slices, cut_evenly
from polyad.cp.generalized.tiles import TiledMatrix
from polyad.cp.problem import FitData
from polyad.fitting.quasi_newton import QuasiNewton
from polyad.losses import GaussianLoss, PoissonLoss
from polyad.losses.checks import check_domain, check_loss
from polyad.losses.loss import ZERO_MARGIN, Loss
from polyad.tensor.dense import DenseTensor
from polyad.tensor.products import (
    cheapest_cut,
    contract_columns,
    gram_product,
    khatri_rao,
    kruskal_to_dense,
)
from polyad.tensor.sparse import SparseTensor, canonicalize

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from polyad.data.readers import TensorInput
    from polyad.data.validation import Missing

    Matrix = NDArray[np.float64]
    Exponents = NDArray[np.float64]

# Mean sizes of the data, as powers of two, for which the margin of a loss is small as it is.
_MAX_EXPONENT = 10
# Powers of two by which slices of a mode may differ without being treated apart, and by which they
# do at most.
_SLICE_RANGE, _LOWEST_EXPONENT = 5, -1000
# Cells of dense data that are read at a time.
_CHUNK = 1 << 18
# Cells of a sparse tensor that are visited one by one in each evaluation.
MAX_CELLS = 20_000_000
_CONSTANT_STEPS = 100
# Parts of a model whose losses tell how curved the loss is there.
_NEARBY = (0.99, 1.0, 1.01)
# The part of a sum that is rounding, and the loss of an entry that is as good as none.
_ROUNDING = 1e-12
_NEGLIGIBLE_LOSS = 1e-9


def find_exponent(data: Any, loss: Loss, *, zeros: bool) -> int:
    """Return the power of two to divide data by, or zero if it has no unit or a good one.

    ``zeros`` says that entries that sparse data does not store are zeros.
    """
    if loss.degree is None:
        return 0
    stored = data.data if isinstance(data, coo_array) else data
    xp = namespace_of(stored)
    known = ~xp.isnan(stored)
    n_known = int(xp.sum(xp.astype(known, xp.int64)))
    total = float(xp.sum(xp.where(known, xp.abs(stored), xp.zeros_like(stored)), dtype=xp.float64))
    cells = math.prod(data.shape) if zeros and isinstance(data, coo_array) else n_known
    exponent = math.frexp(total / cells)[1] if total > 0 else 0
    return exponent if abs(exponent) > _MAX_EXPONENT else 0


def scaled_ridge(problem: GeneralizedProblem, ridge: float, n_free: int) -> float:
    """Return a ridge, given in the unit of the data, for factors of data that was divided by it.

    If the data was divided by s, each of n free factors is by ``s^(1/n)`` and the objective by
    ``s^p``, where p is the degree of the loss.
    """
    degree = problem.loss.degree or 0.0
    return float(ridge * 2.0 ** (problem.exponent * (2.0 / n_free - degree)))


def slice_exponents(problem: GeneralizedProblem) -> list[Exponents]:
    """Return powers of two that are the sizes of the slices of each mode, up to a common factor.

    Their mean square is one, as factors are balanced over the modes. Modes whose slices are of
    comfortable sizes have zeros, and so have losses without a bound, whose model values may have
    another unit than the data, or none.
    """
    sums = [np.zeros(size) for size in problem.shape]
    counts = [np.zeros(size) for size in problem.shape]
    if problem.loss.lower != 0:
        return sums
    if isinstance(problem.tensor, SparseTensor):
        powers, known = _powers(problem.tensor.values)
        for mode, coords in enumerate(problem.tensor.coords):
            sums[mode] += np.bincount(coords, powers, minlength=problem.shape[mode])
            counts[mode] += np.bincount(coords, known, minlength=problem.shape[mode])
    else:
        _add_dense(problem, sums, counts)
    return [_scaled(*own) for own in zip(sums, counts, strict=True)]


def _add_dense(problem: Any, sums: list[Exponents], counts: list[Exponents]) -> None:
    """Add up the exponents of dense data over the slices of all modes."""
    n_cells = prod(problem.shape[1:])
    modes = range(len(problem.shape))
    for rows in as_slices(cut_evenly(problem.shape[0], max(1, _CHUNK // n_cells))):
        powers, known = _powers(to_numpy(problem.tensor.array[rows, ...]))
        if problem.observed is not None:
            observed = to_numpy(problem.observed[rows, ...])
            powers, known = powers * observed, known & observed
        for mode in modes:
            place = rows if mode == 0 else slice(None)
            others = tuple(k for k in modes if k != mode)
            sums[mode][place] += powers.sum(axis=others)
            counts[mode][place] += known.sum(axis=others)


def _powers(values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return the exponents of numbers above zero, zeros for others, and which are above."""
    known = values > 0
    return np.where(known, np.frexp(values)[1], 0), known


def _scaled(sums: Exponents, counts: Exponents) -> Exponents:
    """Return the mean exponents of the slices, such that their powers have the mean square one."""
    seen = counts > 0
    means = sums / np.maximum(counts, 1.0)
    largest = np.max(means, initial=-np.inf, where=seen)
    below = np.where(seen, np.maximum(means - largest, _LOWEST_EXPONENT), 0.0)
    if np.min(below) >= -_SLICE_RANGE:
        return np.zeros_like(below)
    exponents: Exponents = np.rint(below - 0.5 * np.log2(np.mean(np.exp2(2.0 * below))))
    return exponents


def build_problem(
    given: TensorInput, missing: Missing, loss: Loss, exponent: int | None = None
) -> GeneralizedProblem:
    """Check validated data against a loss, and bring it to the form of a fit.

    NaN in dense data is missing. ``exponent`` is the power of two to divide by; by default the data
    decides.
    """
    zeros = missing == "zero"
    if isinstance(given.data, coo_array):
        # Entries at the same place are summed first: it is their sum that the loss must accept.
        given = replace(given, data=canonicalize(given.data))
    check_domain(given, loss, zeros=zeros)
    data = given.data
    check_loss(loss, data.data if isinstance(data, coo_array) else data)
    if exponent is None:
        exponent = find_exponent(data, loss, zeros=zeros)
    loss = loss.divided(2.0**exponent)
    if isinstance(data, coo_array):
        return (ZerosProblem if zeros else ObservedProblem)(SparseTensor(data), loss, exponent)
    xp = namespace_of(data)
    unknown = xp.isnan(data)
    observed = None
    if bool(xp.any(unknown)):
        observed = ~unknown
        # Any number that the loss accepts: it does not count.
        flat = xp.reshape(data, (-1,))
        known = flat[int(xp.argmax(xp.astype(xp.reshape(observed, (-1,)), xp.uint8)))]
        data = xp.where(observed, data, known)
    kind = DenseProblem if is_numpy_array(data) else ArrayProblem
    return kind(data, observed, loss, exponent)


class GeneralizedProblem(FitData, ABC):
    """Data, as a loss sees it, which is the loss of data that was divided by its unit."""

    #: The number of observed entries, and their mean.
    n_observed: int
    mean: float
    #: The sum of what ``loss.evaluate`` leaves out.
    offset: float
    #: Whether ``evaluate`` can be afforded.
    is_exact: bool = True

    def __init__(self, tensor: DenseTensor | SparseTensor, loss: Loss, exponent: int) -> None:
        super().__init__(tensor)
        self.loss = loss
        self.exponent = exponent
        self.unit = float(2.0 ** (exponent * (loss.degree or 0.0)))

    @abstractmethod
    def evaluate(self, factors: Sequence[Matrix]) -> tuple[float, list[Matrix]]:
        """Return the sum of the loss over the observed entries, and its gradient in each factor."""

    def value(self, factors: Sequence[Matrix]) -> float:
        """Return the sum of the loss over the observed entries alone."""
        return self.evaluate(factors)[0]

    def pull(self, factors: Sequence[Matrix]) -> Callable[[Sequence[Matrix], int], Matrix]:
        """Return the map of columns to their MTTKRP with what a model leaves of the data.

        That is the negative derivative of the loss over its mean curvature. A component that is
        zero in a mode changes no model value, and its gradient there is the product asked for.
        """
        own, rank = list(factors), factors[0].shape[1]
        parts = [self.evaluate([own[0] * part, *own[1:]])[0] for part in _NEARBY]
        bend = (parts[0] - 2.0 * parts[1] + parts[2]) / (_NEARBY[2] - 1.0) ** 2
        curvature = bend / max(float(np.sum(gram_product(own))), np.finfo(float).tiny)
        if not (math.isfinite(curvature) and curvature > 0):
            curvature = 1.0

        def pulled(columns: Sequence[Matrix], mode: int) -> Matrix:
            both = [
                np.hstack([f, 0.0 * c if k == mode else c])
                for k, (f, c) in enumerate(zip(own, columns, strict=True))
            ]
            gradient = self.evaluate(both)[1][mode]
            return gradient[:, rank:] / -curvature

        return pulled

    @abstractmethod
    def evaluate_constant(self, m: float) -> tuple[float, float]:
        """Return the sum of the loss, and its derivative, if every model value is the same."""

    @abstractmethod
    def observed_slices(self, mode: int) -> NDArray[np.bool_] | None:
        """Say of each slice of a mode whether it has observations; None if all have."""

    @property
    def is_zero(self) -> bool:
        """Whether every entry is zero and a model of zeros says so."""
        return super().is_zero and float(self.loss.mean(np.zeros(1))[0]) == 0.0

    @property
    def is_unobserved(self) -> bool:
        """Whether no entry was observed."""
        return self.n_observed == 0

    def asarray(self, array: Array) -> Array:
        """Bring an array to NumPy memory and double precision, in which the fit runs."""
        return np.require(to_numpy(array), np.float64, ("C", "A", "W"))

    def result(self, array: Matrix) -> Array:
        """Bring an array to the namespace, device and number type of the data."""
        return super().asarray(array)

    @cached_property
    def constant(self) -> tuple[float, float]:
        """The best model value for all entries together, and the sum of the loss there."""
        loss = self.loss
        best = loss.constant(self.mean)
        if best is None:
            method = QuasiNewton(self._at_constant, loss.lower)
            state = method.begin(np.array([max(self.mean, loss.lower)]))
            for _ in range(_CONSTANT_STEPS):
                state = method.step(state)
            best = float(state.point[0])
        if not math.isfinite(best):
            # All entries are at one end of what the loss can say: there it is right.
            return best, 0.0
        return best, self.evaluate_constant(best)[0]

    def rounding(self) -> float:
        """Return a sum of the loss that is no different from zero.

        It is a tiny part of the sum at a constant that is clearly wrong, half of the best one, in
        the unit that the loss itself has.
        """
        best, sum_there = self.constant
        if self.is_zero:
            return abs(sum_there) + _NEGLIGIBLE_LOSS * self.n_observed
        if not math.isfinite(best):
            # Certain data, such as all ones: what is left of the loss falls forever.
            return _NEGLIGIBLE_LOSS * self.n_observed
        return _ROUNDING * (abs(self.offset) + abs(self.evaluate_constant(0.5 * best)[0]))

    def _at_constant(self, point: Matrix) -> tuple[float, Matrix]:
        value, slope = self.evaluate_constant(float(point[0]))
        return value, np.array([slope])

    def unobserved_slices(self) -> list[tuple[int, int]]:
        """Return the modes of dense data that have slices without observations, and the first."""
        if not isinstance(self.tensor, DenseTensor):
            return []
        seen = [self.observed_slices(mode) for mode in range(len(self.shape))]
        return [
            (mode, int(np.argmin(own)))
            for mode, own in enumerate(seen)
            if own is not None and not own.all()
        ]


class DenseProblem(GeneralizedProblem):
    """Dense NumPy data, with numbers that the loss accepts where nothing was observed.

    It is divided by two to the power ``exponent`` tile by tile.
    """

    tensor: DenseTensor

    def __init__(
        self,
        array: NDArray[Any],
        observed: NDArray[np.bool_] | None,
        loss: Loss,
        exponent: int,
    ) -> None:
        super().__init__(DenseTensor(array), loss, exponent)
        self.norm_squared *= 4.0**-exponent
        self.observed = observed
        # An array in Fortran order is read as its transpose in C order.
        is_mirrored = array.flags.f_contiguous and not array.flags.c_contiguous
        self._order = list(range(array.ndim))[:: -1 if is_mirrored else 1]
        own = np.transpose(array, self._order)
        self._cut = cheapest_cut(own.shape)
        self.cells = TiledMatrix(
            (prod(own.shape[: self._cut]), prod(own.shape[self._cut :])),
            own,
            2.0**-exponent,
            None if observed is None else np.transpose(observed, self._order),
        )
        self.n_observed = array.size if observed is None else int(np.count_nonzero(observed))
        self.mean = self.cells.sum(lambda x: x) / max(self.n_observed, 1)
        self.offset = self.cells.sum(loss.offset)

    def evaluate(self, factors: Sequence[Matrix]) -> tuple[float, list[Matrix]]:
        """Return the sum of the loss and its gradients."""
        sides = _split([factors[k] for k in self._order], self._cut)
        sums = self.cells.evaluate(self.loss, *map(khatri_rao, sides))
        parts = [*_contracted(sums.left, sides[0]), *_contracted(sums.right, sides[1])]
        gradients = [parts[self._order.index(k)] for k in range(len(parts))]
        return sums.value + self.offset, gradients

    def evaluate_constant(self, m: float) -> tuple[float, float]:
        """Return the sum of the loss and its derivative at a constant model."""
        value = self.cells.sum(lambda x: self.loss.value(x, np.full_like(x, m)))
        return value, self.cells.sum(lambda x: self.loss.derivative(x, np.full_like(x, m)))

    def observed_slices(self, mode: int) -> NDArray[np.bool_] | None:
        """Say of each slice whether it has observations."""
        return _observed_slices(self.observed, mode)


class ArrayProblem(GeneralizedProblem):
    """Dense data of another namespace, such as torch, which computes the sums where it is."""

    tensor: DenseTensor

    def __init__(self, array: Array, observed: Array | None, loss: Loss, exponent: int) -> None:
        super().__init__(DenseTensor(array), loss, exponent)
        self.norm_squared *= 4.0**-exponent
        xp = namespace_of(array)
        self.observed = observed
        self._data = xp.astype(array, xp.float64) * 2.0**-exponent
        self.n_observed = prod(self.shape)
        if observed is not None:
            self.n_observed = int(xp.sum(xp.astype(observed, xp.int64)))
        self.mean = self._sum(self._data) / max(self.n_observed, 1)
        self.offset = self._sum(loss.offset(self._data))

    def evaluate(self, factors: Sequence[Matrix]) -> tuple[float, list[Matrix]]:
        """Return the sum of the loss and its gradients."""
        xp = namespace_of(self._data)
        own = [xp.asarray(factor, device=device(self._data)) for factor in factors]
        value, slope = self.loss.evaluate(self._data, kruskal_to_dense(None, own))
        if self.observed is not None:
            slope = xp.where(self.observed, slope, xp.zeros_like(slope))
        slopes = DenseTensor(slope)
        gradients = [to_numpy(slopes.mttkrp(own, mode)) for mode in range(len(own))]
        return self._sum(value) + self.offset, gradients

    def evaluate_constant(self, m: float) -> tuple[float, float]:
        """Return the sum of the loss and its derivative at a constant model."""
        model = namespace_of(self._data).full_like(self._data, m)
        value = self._sum(self.loss.value(self._data, model))
        return value, self._sum(self.loss.derivative(self._data, model))

    def observed_slices(self, mode: int) -> NDArray[np.bool_] | None:
        """Say of each slice whether it has observations."""
        return _observed_slices(None if self.observed is None else to_numpy(self.observed), mode)

    def _sum(self, values: Array) -> float:
        xp = namespace_of(values)
        if self.observed is not None:
            values = xp.where(self.observed, values, xp.zeros_like(values))
        return float(xp.sum(values))


class ObservedProblem(GeneralizedProblem):
    """Sparse data of which only the stored entries were observed, stored zeros too."""

    tensor: SparseTensor

    def __init__(self, tensor: SparseTensor, loss: Loss, exponent: int) -> None:
        dtype = tensor.dtype
        if exponent or dtype != np.float64:
            tensor = SparseTensor(tensor.to_coo().astype(np.float64) * 2.0**-exponent)
        super().__init__(tensor, loss, exponent)
        self.dtype = dtype
        self.n_observed = tensor.nnz
        values = tensor.values
        self.mean = float(np.sum(values)) / max(1, self.n_observed)
        self.offset = float(np.sum(loss.offset(values)))

    def result(self, array: Matrix) -> Array:
        """Bring an array to the number type of the data."""
        return array.astype(self.dtype)

    def evaluate(self, factors: Sequence[Matrix]) -> tuple[float, list[Matrix]]:
        """Return the sum of the loss and its gradients."""
        with np.errstate(all="ignore"):  # what is not finite shows in the sum
            model = self.tensor.values_of(factors)
            value, slope = self.loss.evaluate(self.tensor.values, model)
        slopes = self.tensor.with_values(slope)
        gradients = [slopes.mttkrp(factors, mode) for mode in range(len(factors))]
        return float(np.sum(value)) + self.offset, gradients

    def evaluate_constant(self, m: float) -> tuple[float, float]:
        """Return the sum of the loss and its derivative at a constant model."""
        values = self.tensor.values
        model = np.full_like(values, m)
        slope = float(np.sum(self.loss.derivative(values, model)))
        return float(np.sum(self.loss.value(values, model))), slope

    def observed_slices(self, mode: int) -> NDArray[np.bool_] | None:
        """Say of each slice whether it has observations."""
        seen: NDArray[np.bool_] = np.zeros(self.shape[mode], bool)
        seen[self.tensor.coords[mode]] = True
        return None if seen.all() else seen


class ZerosProblem(ObservedProblem):
    """Sparse data whose entries that are not stored are zeros, which the loss must accept."""

    def __init__(self, tensor: SparseTensor, loss: Loss, exponent: int) -> None:
        super().__init__(tensor, loss, exponent)
        n_cells = prod(self.shape)
        self.has_closed_form = isinstance(loss, GaussianLoss | PoissonLoss)
        self.is_exact = self.has_closed_form or n_cells <= MAX_CELLS
        self.mean *= self.n_observed / n_cells
        self.n_zeros = n_cells - tensor.nnz
        self.n_observed = n_cells
        self.offset += self.n_zeros * float(loss.offset(np.zeros(1))[0])
        self._nothing = np.zeros_like(self.tensor.values)

    def evaluate(self, factors: Sequence[Matrix]) -> tuple[float, list[Matrix]]:
        """Return the sum of the loss and its gradients: zeros everywhere, and corrections."""
        total, parts = self._of_zeros(factors)
        with np.errstate(all="ignore"):  # what is not finite shows in the sum
            model = self.tensor.values_of(factors)
            value, slope = self.loss.evaluate(self.tensor.values, model)
            of_zero = self.loss.evaluate(self._nothing, model)
            total += float(np.sum(value - of_zero[0]))
            slopes = self.tensor.with_values(slope - of_zero[1])
        gradients = [part + slopes.mttkrp(factors, mode) for mode, part in enumerate(parts)]
        return total + self.offset, gradients

    def value(self, factors: Sequence[Matrix]) -> float:
        """Return the sum of the loss alone, for which nothing is sorted by its mode."""
        if self.has_closed_form:
            return super().value(factors)
        with np.errstate(all="ignore"):
            beyond = self.loss.beyond_zero(self.tensor.values, self.tensor.values_of(factors))[0]
        cells, sides = self._cells(factors)
        return cells.value(self.loss, *sides) + float(np.sum(beyond)) + self.offset

    def evaluate_constant(self, m: float) -> tuple[float, float]:
        """Return the sum of the loss and its derivative at a constant model."""
        value, slope = super().evaluate_constant(m)
        zero, model = np.zeros(1), np.full(1, m)
        return (
            value + self.n_zeros * float(self.loss.value(zero, model)[0]),
            slope + self.n_zeros * float(self.loss.derivative(zero, model)[0]),
        )

    def observed_slices(self, mode: int) -> NDArray[np.bool_] | None:
        """Return None: every entry is known."""
        return None

    def _of_zeros(self, factors: Sequence[Matrix]) -> tuple[float, list[Matrix]]:
        """Return the sum of the loss of zeros over all cells, and its gradients."""
        modes = range(len(factors))
        if isinstance(self.loss, GaussianLoss):
            square = 0.5 * float(np.sum(gram_product(factors)))
            return square, [factors[mode] @ gram_product(factors, mode) for mode in modes]
        if isinstance(self.loss, PoissonLoss):
            sums = [factor.sum(axis=0) for factor in factors]
            total = float(np.prod(sums, axis=0).sum()) + ZERO_MARGIN * self.n_observed
            others = [np.prod([sums[k] for k in modes if k != mode], axis=0) for mode in modes]
            return total, [
                np.broadcast_to(other, factor.shape)
                for other, factor in zip(others, factors, strict=True)
            ]
        sides = _split(factors, cheapest_cut(self.shape))
        cells, products = self._cells(factors)
        sums_of_cells = cells.evaluate(self.loss, *products)
        return sums_of_cells.value, [
            *_contracted(sums_of_cells.left, sides[0]),
            *_contracted(sums_of_cells.right, sides[1]),
        ]

    def _cells(self, factors: Sequence[Matrix]) -> tuple[TiledMatrix, list[Matrix]]:
        """Return zeros in all cells of a matrix, and the two sides of the model of it."""
        products = [khatri_rao(side) for side in _split(factors, cheapest_cut(self.shape))]
        return TiledMatrix((len(products[0]), len(products[1]))), products


def _split(factors: Sequence[Matrix], cut: int) -> tuple[Sequence[Matrix], Sequence[Matrix]]:
    return factors[:cut], factors[cut:]


def _contracted(sums: Matrix, factors: Sequence[Matrix]) -> list[Matrix]:
    """Turn derivatives in a Khatri-Rao product into those in each of its factors."""
    if len(factors) == 1:
        return [sums]
    shape = (sums.shape[1], *(factor.shape[0] for factor in factors))
    partial = np.ascontiguousarray(sums.T).reshape(shape)
    return [
        np.ascontiguousarray(contract_columns(partial, factors, k, k + 1).T)
        for k in range(len(factors))
    ]


def _observed_slices(observed: NDArray[np.bool_] | None, mode: int) -> NDArray[np.bool_] | None:
    if observed is None:
        return None
    others = tuple(k for k in range(observed.ndim) if k != mode)
    seen: NDArray[np.bool_] = np.asarray(observed.any(axis=others))
    return None if seen.all() else seen
