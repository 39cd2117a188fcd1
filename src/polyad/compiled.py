"""How the library compiles its kernels: Numba, cached, without the interpreter lock.

No kernel starts threads: each works on a block that :func:`polyad.threads.run_blocks` hands it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

from numba import njit

if TYPE_CHECKING:
    from collections.abc import Callable

Function = TypeVar("Function", bound="Callable[..., Any]")

_REGROUP = {"contract", "nsz", "reassoc"}
_IN_ORDER = {"contract", "nsz"}


def kernel(function: Function) -> Function:
    """Compile a function that runs without the interpreter lock, and keep its type.

    The compiler may fuse multiplications with additions and regroup sums, the same way in each
    call; infinities and NaN keep their meaning.
    """
    compiled = njit(cache=True, nogil=True, error_model="numpy", fastmath=_REGROUP)(function)
    return cast("Function", compiled)


def ordered_kernel(function: Function) -> Function:
    """Compile like :func:`kernel`, but keep the order of all sums.

    For compensated arithmetic and the splitting of numbers, which regrouping would cancel.
    """
    compiled = njit(cache=True, nogil=True, error_model="numpy", fastmath=_IN_ORDER)(function)
    return cast("Function", compiled)


#: How a function of a number is compiled that every caller gets a copy of, with sums in their
#: order: a loop over it can then be vectorised. For the ``jit_options`` of ``overload``.
INLINED: Any = {
    "nogil": True,
    "error_model": "numpy",
    "forceinline": True,
    "fastmath": _IN_ORDER,
}
