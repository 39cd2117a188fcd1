"""The least-squares problems of CP: what a sweep over the modes does to the factors.

Two cases share the interface of :class:`Problem`. If every entry is known, the normal matrix of a
mode is one small matrix for all its rows, and dense and sparse data differ only in how they
compute the MTTKRP. If some entries are missing, each row has a normal matrix of its own, summed
over its observed entries: the fit is to the observed entries exactly, without imputation.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
from array_api_compat import device
from scipy.sparse import coo_array

from polyad.core.arrays import Array, namespace_of, to_numpy
from polyad.core.threads import as_slices, cut
from polyad.cp.rules import UpdateRule, double, epsilon_of
from polyad.tensor.dense import DenseTensor
from polyad.tensor.products import gram_product, kruskal_to_dense
from polyad.tensor.sparse import SparseTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from polyad.cp.similarity.solver import Smoothness
    from polyad.cp.supervised.classifier import Labels
    from polyad.data.validation import Missing

# Sizes of the largest entry, as powers of two, within which no sum of a sweep can overflow or
# lose digits to underflow.
_COMFORTABLE = {"float32": 16, "float64": 200}
# A model whose terms are larger than the data by this factor is a difference of large numbers.
_CANCELLING = 100.0
# Numbers of the normal matrices that are formed at a time (32 MiB): a long mode has many rows.
_NORMALS_AT_A_TIME = 1 << 22
# Entries of single precision that are widened at a time (128 MiB).
_WIDENED_AT_A_TIME = 1 << 24
# Columns of pairwise products that are contracted at a time: bounds the memory of a masked sweep.
_PAIRS_AT_A_TIME = 64


def build_problem(data: Any, missing: Missing, *, rescale: bool = True) -> Problem:
    """Choose the problem for validated data, in which NaN is missing if it is dense.

    ``rescale`` multiplies data of extreme size by a power of two, which is exact; the problem
    remembers it as ``exponent``.
    """
    stored = data.data if isinstance(data, coo_array) else data
    xp = namespace_of(stored)
    unknown = None if isinstance(data, coo_array) else xp.isnan(data)
    if unknown is not None and bool(xp.any(unknown)):
        stored = data = xp.where(unknown, xp.zeros_like(data), data)
    else:
        unknown = None
    exponent = comfortable_exponent(stored) if rescale else 0
    if exponent:
        data = data * 2.0**-exponent
    problem: Problem
    if isinstance(data, coo_array):
        tensor = SparseTensor(data)
        problem = CompleteProblem(tensor) if missing == "zero" else ObservedSparse(tensor)
    elif unknown is not None:
        problem = ObservedDense(data, ~unknown)
    else:
        problem = CompleteProblem(DenseTensor(data))
    problem.exponent = exponent
    return problem


def comfortable_exponent(stored: Array) -> int:
    """Return the power of two to divide by, or zero if the numbers are of a comfortable size."""
    xp = namespace_of(stored)
    if math.prod(stored.shape) == 0:
        return 0
    size = max(abs(float(xp.max(stored))), abs(float(xp.min(stored))))
    exponent = math.frexp(size)[1] if size > 0 else 0
    limit = _COMFORTABLE["float32" if stored.dtype == xp.float32 else "float64"]
    return exponent if abs(exponent) > limit else 0


class FitData:
    """The data of a fit, whatever its loss, with zeros for what is not known."""

    #: The data was divided by two to this power.
    exponent: int = 0
    #: Modes whose factors stay those of the start.
    fixed_modes: Sequence[int] = ()
    #: The name of a start, or the factors of a given one.
    start: str | list[Array] = "random"

    def __init__(self, tensor: DenseTensor | SparseTensor) -> None:
        self.tensor = tensor
        self.shape = tensor.shape
        self.dtype = tensor.dtype
        self.norm_squared = tensor.norm_squared()
        #: The part of ``norm_squared`` below which a residual is rounding: it is a difference of
        #: sums as large as the norm, of which at most half a unit has been seen to be lost.
        self.precision = 2.0 * epsilon_of(tensor.dtype)

    @property
    def is_zero(self) -> bool:
        """Whether the data, and so its best model, is zero everywhere."""
        return self.norm_squared == 0

    @property
    def is_unobserved(self) -> bool:
        """Whether no entry at all was observed."""
        return False

    def asarray(self, array: Array) -> Array:
        """Bring an array to the namespace, device and number type of the data."""
        like = self.tensor.array if isinstance(self.tensor, DenseTensor) else self.tensor.values
        xp = namespace_of(like)
        own = array if namespace_of(array) is xp else to_numpy(array)
        return xp.asarray(own, dtype=like.dtype, device=device(like))

    def unobserved_slices(self) -> list[tuple[int, int]]:
        """Return the modes of dense data that have slices without observations, and the first."""
        return []

    def seen(self, mode: int) -> np.ndarray | None:
        """Say which rows of a mode have observations, the others being zero; None if all have."""
        return None


class Problem(FitData, ABC):
    """Data, as least squares sees it."""

    #: The classes of samples, in a fit that has them.
    labels: Labels
    #: How rough components are over similar entries, in a fit that has similarities.
    smoothness: Smoothness

    @abstractmethod
    def sweep(self, factors: list[Array], rule: UpdateRule, fixed_modes: Collection[int]) -> float:
        """Apply a rule to each free mode in turn, mode 0 last, in place.

        Returns the squared residual, without penalties.
        """

    @abstractmethod
    def minimizer(self, factors: Sequence[Array], mode: int, rule: UpdateRule) -> Array:
        """Return the factor of one mode that a rule gives for the other factors."""

    @abstractmethod
    def residual(self, factors: Sequence[Array]) -> float:
        """Return the squared residual."""

    @abstractmethod
    def pull(self, factors: Sequence[Array]) -> Callable[[Sequence[Array], int], Array]:
        """Return the map of columns to their MTTKRP with what a model leaves of the data."""

    def fit_samples(self, factors: Sequence[Array], rule: UpdateRule) -> tuple[Array, float]:
        """Return the factor of mode 0 that a rule gives, and the squared residual with it."""
        rows = self.minimizer(factors, 0, rule)
        return rows, self.residual([rows, *factors[1:]])


class CompleteProblem(Problem):
    """Every entry is known; in sparse data, those not stored are zero."""

    def sweep(self, factors: list[Array], rule: UpdateRule, fixed_modes: Collection[int]) -> float:
        """Minimise over each free mode; modes of a group share one pass over the data."""
        for group in self.tensor.mode_groups:
            if all(k in fixed_modes for k in group):
                continue
            contraction = self.tensor.contract(factors, group)
            for mode in group:
                if mode in fixed_modes:
                    continue
                rhs, normal = contraction.mttkrp(factors, mode), _gram(factors, mode)
                factors[mode] = rule.solve(normal, rhs, factors[mode], mode)
                last = factors[mode]
        return self._residual(normal, rhs, last)

    def minimizer(self, factors: Sequence[Array], mode: int, rule: UpdateRule) -> Array:
        """Return the best factor of one mode."""
        rhs = self.tensor.mttkrp(factors, mode)
        return rule.solve(_gram(factors, mode), rhs, factors[mode], mode)

    def residual(self, factors: Sequence[Array]) -> float:
        """Return ``|X|² - 2 <X, model> + |model|²``."""
        return self._residual(_gram(factors, 0), self.tensor.mttkrp(factors, 0), factors[0])

    def pull(self, factors: Sequence[Array]) -> Callable[[Sequence[Array], int], Array]:
        """As for every problem; the part of the model needs no more than the factors."""

        def pulled(columns: Sequence[Array], mode: int) -> Array:
            inner = [f.T @ c for f, c in zip(factors, columns, strict=True)]
            of_model = factors[mode] @ math.prod(inner[:mode] + inner[mode + 1 :])
            return self.tensor.mttkrp(columns, mode) - of_model

        return pulled

    def fit_samples(self, factors: Sequence[Array], rule: UpdateRule) -> tuple[Array, float]:
        """As for every problem, in one pass over the data."""
        rhs, normal = self.tensor.mttkrp(factors, 0), _gram(factors, 0)
        rows = rule.solve(normal, rhs, factors[0], 0)
        return rows, self._residual(normal, rhs, rows)

    def _residual(self, normal: Array, rhs: Array, factor: Array) -> float:
        """Return the squared residual from the normal equations of a mode and its factor."""
        xp, wide = namespace_of(rhs), double(factor)
        inner = float(xp.sum(double(rhs) * wide))
        model = float(xp.sum(normal * gram_product([wide])))
        residual = self.norm_squared - 2.0 * inner + model
        if not math.isfinite(residual):
            return math.nan
        # Components that cancel each other are much larger than the data, and so are the rounding
        # errors of their difference: what is below them is not known to be small.
        unknown = model > _CANCELLING * self.norm_squared
        return max(residual, self.precision * model if unknown else 0.0)


class ObservedProblem(Problem):
    """Only some entries are known, and only those count.

    Rows with fewer observations than components are underdetermined: rules give nearly the shortest
    of their solutions (``determined`` in ``rules.py``). Rows without observations are zero. A row
    depends on its own observations and the factors of the other modes, and on no other row.
    """

    def _shift(self, factors: Sequence[Array], mode: int) -> float:
        """Return what is added to the diagonals of normal matrices, at the level of rounding.

        Entries where the model has nothing, or next to nothing, say nothing of their row. The sums
        are in double precision, whatever the data is: at the level of single precision, a component
        would be lost beside others that are a thousand times as large.
        """
        normal = _gram(factors, mode)
        trace = float(namespace_of(normal).linalg.trace(normal))
        return math.ulp(1.0) * trace * self.shape[mode] / math.prod(self.shape)

    def sweep(self, factors: list[Array], rule: UpdateRule, fixed_modes: Collection[int]) -> float:
        """Minimise over each free mode in turn."""
        for mode in (*range(1, len(factors)), 0):
            if mode not in fixed_modes:
                factors[mode] = self.minimizer(factors, mode, rule)
        return self.residual(factors)


class ObservedSparse(ObservedProblem):
    """The stored entries of a sparse tensor are the observed ones, stored zeros too."""

    tensor: SparseTensor

    def minimizer(self, factors: Sequence[Array], mode: int, rule: UpdateRule) -> Array:
        """Solve one small system per row; a row without observations is zero."""
        return rule.solve_observed(self.tensor, factors, mode, self._shift(factors, mode))

    def pull(self, factors: Sequence[Array]) -> Callable[[Sequence[Array], int], Array]:
        """As for every problem: what is left is at the stored entries."""
        left = self.tensor.values - self.tensor.values_of(factors)
        return self.tensor.with_values(left).mttkrp

    def residual(self, factors: Sequence[Array]) -> float:
        """Return the squared residual over the stored entries."""
        difference = self.tensor.values.astype(np.float64) - self.tensor.values_of(factors)
        return float(np.sum(difference * difference))

    @property
    def is_unobserved(self) -> bool:
        """Whether nothing is stored."""
        return self.tensor.nnz == 0

    def seen(self, mode: int) -> np.ndarray | None:
        """Say which rows of a mode have stored entries."""
        return np.bincount(self.tensor.coords[mode], minlength=self.shape[mode]) > 0


class ObservedDense(ObservedProblem):
    """Dense data, with any finite number where it is not ``observed``.

    The normal matrices of all rows are one MTTKRP of the mask with the pairwise products of the
    columns of the factors: ``G[i, r, s] = sum_j mask[i, j] (a_r a_s)(j) (b_r b_s)(j) ...``.
    """

    tensor: DenseTensor

    def __init__(self, array: Array, observed: Array) -> None:
        xp = namespace_of(array)
        super().__init__(DenseTensor(xp.where(observed, array, xp.zeros_like(array))))
        self.mask = DenseTensor(xp.astype(observed, array.dtype))
        modes = range(len(self.shape))
        outside = [tuple(k for k in modes if k != mode) for mode in modes]
        self._counts = [xp.sum(self.mask.array, axis=others) for others in outside]
        self._complete = [xp.all(observed, axis=others) for others in outside]

    def unobserved_slices(self) -> list[tuple[int, int]]:
        """Return the modes that have slices without observations, and the first of them."""
        xp = namespace_of(self.mask.array)
        return [
            (mode, int(xp.argmin(counts)))
            for mode, counts in enumerate(self._counts)
            if bool(xp.any(counts == 0))
        ]

    def seen(self, mode: int) -> np.ndarray | None:
        """Say which rows of a mode have observations."""
        return to_numpy(self._counts[mode] > 0)

    def minimizer(self, factors: Sequence[Array], mode: int, rule: UpdateRule) -> Array:
        """Solve one small system per row, a block of rows at a time.

        Sums are made in double precision, as those of sparse data are: a row that its observations
        hardly determine would show the rounding of single precision.
        """
        xp = namespace_of(factors[mode])
        n, rank = (int(size) for size in factors[mode].shape)
        step = max(1, _NORMALS_AT_A_TIME // rank**2)
        if self.dtype != xp.float64:
            step = max(1, min(step, _WIDENED_AT_A_TIME * n // math.prod(self.shape)))
        wide = [double(factor) for factor in factors]
        seen = self._counts[mode] > 0
        shift = self._shift(factors, mode) * xp.eye(rank, dtype=xp.float64)
        solved = []
        for rows in as_slices(cut(n, step)):
            place = (*(slice(None),) * mode, rows, ...)
            data, mask = (DenseTensor(double(own.array[place])) for own in (self.tensor, self.mask))
            own = [f[rows, :] if k == mode else f for k, f in enumerate(wide)]
            normal, rhs = _normal_matrices(mask, own, mode), data.mttkrp(own, mode)
            found = rule.solve_rows(normal + shift, rhs, own[mode], mode)
            complete = self._complete[mode][rows]
            if rule.prefers_shared and bool(xp.any(complete)):
                # As in data without missing entries: a row must not depend on what others miss.
                alone = rule.solve(_gram(own, mode), xp.astype(rhs, self.dtype), own[mode], mode)
                found = xp.where(complete[:, None], double(alone), found)
            solved.append(xp.where(seen[rows][:, None], found, xp.zeros_like(found)))
        return xp.astype(xp.concat(solved, axis=0), self.dtype, copy=False)

    def residual(self, factors: Sequence[Array]) -> float:
        """Return the squared residual over the observed entries."""
        return self._left(factors).norm_squared()

    def pull(self, factors: Sequence[Array]) -> Callable[[Sequence[Array], int], Array]:
        """As for every problem: nothing is left where nothing was observed."""
        return self._left(factors).mttkrp

    def _left(self, factors: Sequence[Array]) -> DenseTensor:
        xp = namespace_of(factors[0])
        ones = xp.ones(int(factors[0].shape[1]), dtype=self.dtype)
        return DenseTensor(self.mask.array * (self.tensor.array - kruskal_to_dense(ones, factors)))


def _normal_matrices(mask: DenseTensor, factors: Sequence[Array], mode: int) -> Array:
    """Return an array of shape (rows of the mask in the mode, R, R)."""
    xp = namespace_of(factors[mode])
    rank = int(factors[mode].shape[1])
    rows, columns = np.tril_indices(rank)
    blocks = []
    for chosen in as_slices(cut(len(rows), _PAIRS_AT_A_TIME)):
        left, right = xp.asarray(rows[chosen]), xp.asarray(columns[chosen])
        pairs = [
            xp.take(factor, left, axis=1) * xp.take(factor, right, axis=1) for factor in factors
        ]
        blocks.append(mask.mttkrp(pairs, mode))
    lower = xp.concat(blocks, axis=1)
    position = np.zeros((rank, rank), dtype=np.int64)
    position[rows, columns] = position[columns, rows] = np.arange(len(rows))
    full = xp.take(lower, xp.asarray(position.ravel()), axis=1)
    return xp.reshape(full, (-1, rank, rank))


def _gram(factors: Sequence[Array], mode: int) -> Array:
    """Return the normal matrix of a mode; its small eigenvalues need double precision."""
    return gram_product([double(factor) for factor in factors], mode)
