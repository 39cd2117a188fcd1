"""The data of a Poisson fit, sorted for each mode, and what is done to the rows of one factor."""

from __future__ import annotations

from dataclasses import dataclass
from math import fsum, log, prod
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy.sparse import coo_array

from polyad.core.arrays import Array, to_numpy
from polyad.core.threads import Blocks, cut_by_work, run_blocks
from polyad.cp.poisson import kernels
from polyad.cp.poisson.kernels import Model, Rows, Rules, Slices
from polyad.cp.problem import FitData
from polyad.tensor.dense import DenseTensor
from polyad.tensor.sparse import SparseTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from polyad.data.validation import Missing


Method = Literal["mu", "pdnr"]

# Nonzeros of one call of a kernel: long against a call, short against a fit. A row counts as some
# nonzeros more, for what is done once for it.
_BLOCK = 1 << 13
_ROW_COST = 8
# A model value of zero where something was counted has an infinite divergence. It is taken for
# this part of the largest count, which costs about 460 per count: far more than any real misfit.
_LEAST = 1e-200
# What Numba asks of an array: it would compile a kernel again for one that cannot be written to.
_LAYOUT: tuple[Literal["C", "A", "W"], ...] = ("C", "A", "W")
# A full solution of the rows: the gain of each share is then one to this precision, whatever the
# size of the share.
_EXACT = (500, 1e-11)
_UPDATES: dict[Method, Callable[..., None]] = {
    "mu": kernels.multiplicative_rows,
    "pdnr": kernels.newton_rows,
}


@dataclass(frozen=True)
class RowUpdate:
    """A factor after its update, and how the update went."""

    rows: NDArray[np.float64]
    violation: float
    """The KKT violation of the mode before."""
    sweeps: int
    """The largest number of updates that a row took."""
    divergence: float
    """That of the data from the model after the update, if it was asked for."""


def build_problem(data: Any, missing: Missing) -> CountProblem:
    """Bring validated data, not negative, to the form of a Poisson fit; NaN is missing."""
    if isinstance(data, coo_array):
        stored = SparseTensor(data)
        nonzeros = _tensor(stored.values, stored.coords, stored.shape, stored.values > 0)
        if missing == "zero":
            return CountProblem(nonzeros)
        everything = np.ones(stored.nnz, bool)
        observed = _tensor(np.ones(stored.nnz), stored.coords, stored.shape, everything)
        return CountProblem(nonzeros, observed)
    array = to_numpy(data)
    coords = np.nonzero(array)  # NaN is not zero
    values = array[coords]
    known = ~np.isnan(values)
    nonzeros = _tensor(values, coords, array.shape, known)
    if known.all():
        return CountProblem(nonzeros)
    return CountProblem(nonzeros, DenseTensor((~np.isnan(array)).astype(np.float64)))


def _tensor(
    values: NDArray[Any], coords: Sequence[NDArray[Any]], shape: Any, kept: NDArray[Any]
) -> SparseTensor:
    place: Any = tuple(row[kept] for row in coords)
    return SparseTensor(coo_array((values[kept], place), shape=shape))


class CountProblem(FitData):
    """Counts, as alternating Poisson regression sees them: the entries above zero.

    ``observed`` has one at each observed cell; by default all cells are.
    """

    tensor: SparseTensor

    def __init__(
        self, tensor: SparseTensor, observed: SparseTensor | DenseTensor | None = None
    ) -> None:
        super().__init__(tensor)
        self.observed = observed
        values = tensor.values.astype(np.float64)
        self.total = fsum(values)
        self.n_cells = prod(self.shape) if observed is None else round(observed.norm_squared())
        self.least = max(_LEAST * float(values.max(initial=0.0)), np.finfo(np.float64).tiny)
        self._offsets = np.cumsum([0, *self.shape])
        self._slices: dict[int, tuple[Slices, Blocks]] = {}

    @property
    def is_unobserved(self) -> bool:
        """Whether no cell was observed."""
        return self.n_cells == 0

    def asarray(self, array: Array) -> Array:
        """Bring an array to NumPy memory and double precision, in which the fit runs."""
        return np.require(to_numpy(array), np.float64, _LAYOUT)

    def column_masses(self, factors: Sequence[Array], mode: int) -> NDArray[np.float64]:
        """Return ``d``: what a unit of each component in a row adds to the sum of the model.

        The shape is (1, R) if it is the same for all rows, which it is if all cells are observed.
        """
        if self.observed is None:
            sums = [np.sum(factor, axis=0) for k, factor in enumerate(factors) if k != mode]
            product: NDArray[np.float64] = np.prod(sums, axis=0)[None, :]
            return product
        # Rounding of a dense product must not make a mass negative.
        masses: NDArray[np.float64] = np.maximum(self.observed.mttkrp(factors, mode), 0.0)
        return masses

    def update(
        self,
        factors: Sequence[Array],
        mode: int,
        method: Method,
        *,
        sweeps: int,
        tol: float,
        measures: bool = False,
    ) -> RowUpdate:
        """Improve the factor of one mode, which holds the weights, by up to so many sweeps.

        A row is done at ``tol``: of the KKT violation in shares of its sum, and for Newton's method
        of the gains. The divergence needs the products that are at hand, and no pass of its own.
        """
        slices, _ = self.slices(mode)
        d = self.column_masses(factors, mode)
        masses = np.zeros_like(factors[mode])
        masses[slices.targets] = (factors[mode] * d)[slices.targets]
        rules = Rules(sweeps, tol, self.least, measures)
        rows = self._run(_UPDATES[method], factors, mode, (masses, d), rules)
        result = masses * _inverse(d)
        violation = max(float(rows.violations.max(initial=0.0)), self._of_empty(factors, mode, d))
        divergence = self._divergence(masses, rows)
        return RowUpdate(result, violation, int(rows.sweeps.max(initial=0)), divergence)

    def solve(self, factors: Sequence[Array], mode: int) -> NDArray[np.float64]:
        """Return the best factor of one mode for the given others, whatever it is now."""
        d = self.column_masses(factors, mode)
        slices, _ = self.slices(mode)
        masses = np.zeros((self.shape[mode], d.shape[1]))
        if slices.targets.size:
            # The start depends on nothing but the sum of the slice, so that samples get the same
            # row in `fit` and in `transform` even if their best row is not unique.
            sums = np.add.reduceat(slices.values, slices.starts[:-1])
            masses[slices.targets] = sums[:, None] / d.shape[1]
        rules = Rules(*_EXACT, self.least, measures=False)
        self._run(kernels.newton_rows, factors, mode, (masses, d), rules)
        solution: NDArray[np.float64] = masses * _inverse(d)
        return solution

    def divergence(self, factors: Sequence[Array]) -> float:
        """Return the Kullback-Leibler divergence of the data from the model: half the deviance."""
        d = self.column_masses(factors, 0)
        masses = factors[0] * d
        rules = Rules(0, 0.0, self.least, measures=True)
        rows = self._run(kernels.divergence_rows, factors, 0, (masses.copy(), d), rules)
        return self._divergence(masses, rows)

    def _divergence(self, masses: NDArray[np.float64], rows: Rows) -> float:
        return float(np.sum(masses)) - self.total + float(np.sum(rows.divergences))

    def constant_divergence(self) -> float:
        """Return the divergence from the best model that is the same number everywhere."""
        if self.total == 0:
            return 0.0
        values = self.tensor.values.astype(np.float64)
        level = log(self.total) - log(self.n_cells)
        return float(np.sum(values * (np.log(values) - level)))

    def violation(self, factors: Sequence[Array], mode: int) -> float:
        """Return the KKT violation of one mode: zero if its factor is optimal, and only then."""
        return self.update(factors, mode, "mu", sweeps=1, tol=np.inf).violation

    def slices(self, mode: int) -> tuple[Slices, Blocks]:
        """Return the nonzeros sorted by one mode, and how they are cut, made on first use."""
        if mode not in self._slices:
            self._slices[mode] = self._sorted(mode)
        return self._slices[mode]

    def _sorted(self, mode: int) -> tuple[Slices, Blocks]:
        coords = self.tensor.coords
        order = np.argsort(coords[mode], kind="stable")
        rows = coords[mode][order]
        first = np.flatnonzero(np.diff(rows, prepend=-1))
        starts = np.append(first, rows.size).astype(np.int64)
        kind = np.uint32 if self._offsets[-1] < 2**32 else np.uint64
        others = [k for k in range(len(self.shape)) if k != mode]
        index = np.empty((rows.size, len(others)), kind)
        for column, k in enumerate(others):
            index[:, column] = coords[k][order] + self._offsets[k]
        values = self.tensor.values[order].astype(np.float64)
        slices = Slices(starts, rows[first].astype(np.int64), index, values)
        return slices, cut_by_work(np.diff(starts) + _ROW_COST, _BLOCK)

    def _run(
        self,
        kernel: Callable[..., None],
        factors: Sequence[Array],
        mode: int,
        state: tuple[NDArray[np.float64], NDArray[np.float64]],
        rules: Rules,
    ) -> Rows:
        """Call a kernel for all blocks of rows of a mode."""
        slices, blocks = self.slices(mode)
        masses, d = state
        model = Model(np.concatenate(list(factors)), _inverse(d))
        n_slices = slices.targets.size
        rows = Rows(masses, np.zeros(n_slices), np.zeros(n_slices, np.int64), np.zeros(n_slices))
        run_blocks(kernel, ((slices, block, model, rules, rows) for block in blocks))
        return rows

    def _of_empty(self, factors: Sequence[Array], mode: int, d: NDArray[np.float64]) -> float:
        """Return the violation of the rows that counted nothing: they should be zero."""
        empty = np.ones(self.shape[mode], bool)
        empty[self.slices(mode)[0].targets] = False
        masses = np.minimum((factors[mode] * d)[empty], 1.0)
        return float(masses.max(initial=0.0))


def _inverse(d: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return one over ``d``, and zero where it is zero."""
    return np.divide(1.0, d, out=np.zeros_like(d), where=d > 0)
