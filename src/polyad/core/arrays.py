"""Arrays of any namespace: the type that stands for them, and the way back to NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

#: An array of any array-API namespace: NumPy, torch, ...
Array = Any


def to_numpy(array: Array) -> np.ndarray:
    """Return an array of any namespace and device as a NumPy array."""
    if isinstance(array, np.ndarray):
        return array
    from array_api_compat import is_cupy_array, is_torch_array

    if is_torch_array(array):
        array = array.detach().cpu()
        if str(array.dtype) == "torch.bfloat16":  # NumPy has no such type
            array = array.float()
    elif is_cupy_array(array):
        array = array.get()
    return np.asarray(array)


def namespace_of(array: Array) -> Any:
    """Return the namespace of one array: for NumPy at once, where asking takes as long as adding.

    That is what loops over small arrays spend most of their time on.
    """
    if type(array) is np.ndarray:
        from array_api_compat import numpy

        return numpy
    from array_api_compat import array_namespace

    return array_namespace(array)


def is_finite(value: Any) -> bool:
    """Say whether all numbers of a number, an array or a list of them are finite."""
    if isinstance(value, (list, tuple)):
        return all(is_finite(item) for item in value)
    if isinstance(value, float):
        return math.isfinite(value)
    from array_api_compat import array_namespace, is_array_api_obj

    if not is_array_api_obj(value):
        return True
    xp = array_namespace(value)
    is_number = xp.isdtype(value.dtype, "real floating")
    return not is_number or bool(xp.all(xp.isfinite(value)))
