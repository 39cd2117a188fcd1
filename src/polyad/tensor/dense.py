"""Dense tensors as an alternating solver sees them: two passes over the data per sweep.

Updating N factors one after another by a full matrix product each reads the data N times. The
modes are cut into two groups instead (a dimension tree of one level): the contraction of the data
with the factors of one group serves all updates of the other, and a sweep reads the data twice,
whatever its order. The result of a contraction is small: one column per component and entry of
the group.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import fsum, prod
from typing import TYPE_CHECKING

import numpy as np
from array_api_compat import is_numpy_array

from polyad.core.arrays import namespace_of
from polyad.core.threads import cut, run_blocks
from polyad.exceptions import InvalidInputError, InvalidTypeError
from polyad.tensor.products import (
    cheapest_cut,
    check_factors,
    check_mode,
    contiguous,
    contract_columns,
    contract_outside,
    mttkrp,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from polyad.core.arrays import Array

# Entries squared at a time: the block and its squares fit the second-level cache.
_NORM_BLOCK = 1 << 15
# Up to this size the sum takes less time than handing its parts to other threads.
_SERIAL_NORM = 1 << 20
# How many times as much as the cheapest cut the cut after mode 0 may cost.
_FIRST_CUT_LEAD = 4


@dataclass(frozen=True)
class Contraction:
    """The data contracted with the factors of all modes outside a group."""

    #: (n_components, n_k of the modes...)
    partial: Array
    #: The modes of ``partial``, in its order.
    modes: tuple[int, ...]

    def mttkrp(self, factors: Sequence[Array], mode: int) -> Array:
        """Return the MTTKRP of a mode of the group, by the other factors as they are now."""
        if mode not in self.modes:
            message = f"mode={mode} is not in the group of this contraction, {self.modes}."
            raise InvalidInputError(message)
        place = self.modes.index(mode)
        in_group = [factors[k] for k in self.modes]
        return contiguous(contract_columns(self.partial, in_group, place, place + 1).T)


class DenseTensor:
    """A dense tensor with the products that the alternating solvers need.

    Parameters
    ----------
    array : array of shape (n_0, ..., n_N)
        Real floating point, at least two modes. C order and, for NumPy, Fortran order are read in
        place; any other layout is copied once, here.

    Attributes
    ----------
    array : array
        The array as it was given.
    shape : tuple of int
    ndim : int
    dtype : dtype
    xp : module
        The array namespace; results are its arrays.
    mode_groups : tuple of tuple of int
        The order in which a sweep visits the modes. The modes of a group share one pass over the
        data. The last group ends with mode 0, so that after a sweep the factor of the samples is
        optimal for the others. ``((1, 2), (0,))`` for a tensor of order 3, unless mode 0 is so
        short that another cut is several times cheaper.

    Examples
    --------
    >>> import numpy as np
    >>> from polyad.tensor.dense import DenseTensor
    >>> tensor = DenseTensor(np.ones((4, 3, 2)))
    >>> factors = [np.ones((n, 2)) for n in tensor.shape]
    >>> for group in tensor.mode_groups:
    ...     contraction = tensor.contract(factors, group)
    ...     for mode in group:
    ...         print(mode, contraction.mttkrp(factors, mode)[0])
    1 [8. 8.]
    2 [12. 12.]
    0 [6. 6.]
    """

    def __init__(self, array: Array) -> None:
        self.array = array
        self.xp = namespace_of(array)
        self.shape: tuple[int, ...] = tuple(array.shape)
        self.ndim = len(self.shape)
        self.dtype = array.dtype
        if self.ndim < 2:
            message = f"A tensor needs at least two modes, got an array of shape {self.shape}."
            raise InvalidInputError(message)
        if not self.xp.isdtype(self.dtype, "real floating"):
            message = f"A dense tensor must be of a real floating dtype, got {self.dtype}."
            raise InvalidTypeError(message)
        self._data, self._is_mirrored = _in_c_order(array)
        self.mode_groups = _mode_groups(self.shape)

    def contract(self, factors: Sequence[Array], group: Sequence[int]) -> Contraction:
        """Contract every mode outside a group, in one pass over the data.

        Parameters
        ----------
        factors : sequence of arrays of shape (n_k, n_components)
            One per mode; those of the group are not read.
        group : sequence of int
            Modes that follow one another, in any order, as in ``mode_groups``.

        Returns
        -------
        Contraction

        Notes
        -----
        Costs two operations per entry and component and memory for ``n_components`` times the
        size of the group.
        """
        check_factors(factors, self.shape)
        modes = sorted(check_mode(mode, self.ndim) for mode in group)
        first, stop = modes[0], modes[-1] + 1
        if len(modes) != stop - first or len(modes) == self.ndim:
            message = f"group={tuple(group)} is not a run of some of the {self.ndim} modes."
            raise InvalidInputError(message)
        if self._is_mirrored:
            factors, first, stop = factors[::-1], self.ndim - stop, self.ndim - first
            modes.reverse()
        partial = contract_outside(self._data, factors, first, stop)
        return Contraction(partial, tuple(modes))

    def mttkrp(self, factors: Sequence[Array], mode: int) -> Array:
        """Return the matricized tensor times Khatri-Rao product of one mode.

        Parameters
        ----------
        factors : sequence of arrays of shape (n_k, n_components)
        mode : int

        Returns
        -------
        array of shape (n_mode, n_components)
        """
        return mttkrp(self._data.T if self._is_mirrored else self._data, factors, mode)

    def norm_squared(self) -> float:
        """Return the sum of the squares of all entries.

        Added up in double precision, in blocks that depend on the size alone, so that NumPy gives
        the same number for any number of threads.
        """
        flat = self.xp.reshape(self._data, (-1,))
        size = prod(self.shape)
        blocks = cut(size, _NORM_BLOCK)
        sums = np.zeros(len(blocks))

        def add(k: int, block: tuple[int, int]) -> None:
            part = self.xp.astype(flat[slice(*block)], self.xp.float64)
            sums[k] = float(self.xp.sum(part * part))

        if size > _SERIAL_NORM:
            run_blocks(add, enumerate(blocks))
        else:
            for k, block in enumerate(blocks):
                add(k, block)
        return fsum(sums)


def _in_c_order(array: Array) -> tuple[Array, bool]:
    """Return the entries in C order, and whether the modes are reversed for that."""
    if not is_numpy_array(array):
        # The array API knows no layout: flattening copies where the memory is not in C order.
        xp = namespace_of(array)
        return xp.reshape(xp.reshape(array, (-1,)), array.shape), False
    is_mirrored = array.flags.f_contiguous and not array.flags.c_contiguous
    return (array.T, True) if is_mirrored else (np.ascontiguousarray(array), False)


def _mode_groups(shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Cut the modes where the contractions are cheapest, after mode 0 where that costs little.

    The cut after mode 0 gets a lead, so that the order of the updates, which decides the optimum
    that is found, seldom depends on the shape.
    """
    cheapest = cheapest_cut(shape)
    first_cost, least_cost = (prod(shape[:cut]) + prod(shape[cut:]) for cut in (1, cheapest))
    cut = 1 if first_cost <= _FIRST_CUT_LEAD * least_cost else cheapest
    return tuple(range(cut, len(shape))), (*range(1, cut), 0)
