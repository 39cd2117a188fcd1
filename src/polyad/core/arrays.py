"""Arrays of any namespace: the type that stands for them, and the way back to NumPy."""

from __future__ import annotations

import math
from typing import Any

import array_api_compat
import numpy as np

#: An array of any array-API namespace: NumPy, torch, ...
Array = Any


def to_numpy(array: Array) -> np.ndarray:
    """Return an array of any namespace and device as a NumPy array."""
    if isinstance(array, np.ndarray):
        return array
    if array_api_compat.is_torch_array(array):
        array = array.detach().cpu()
        if str(array.dtype) == "torch.bfloat16":  # NumPy has no such type
            array = array.float()
    elif array_api_compat.is_cupy_array(array):
        array = array.get()
    return np.asarray(array)


def namespace_of(array: Array, *others: Array) -> Any:
    """Return the namespace of arrays: for those of NumPy, NumPy itself.

    It follows the array API. The wrapped NumPy of ``array_api_compat`` asks for the namespace
    again in most functions, which is what loops over small arrays would spend their time on.
    """
    if isinstance(array, np.ndarray) and (not others or namespace_of(*others) is np):
        return np
    found = array_api_compat.array_namespace(array, *others)
    return np if array_api_compat.is_numpy_namespace(found) else found


def is_finite(value: Any) -> bool:
    """Say whether all numbers of a number, an array or a list of them are finite."""
    if isinstance(value, (list, tuple)):
        return all(is_finite(item) for item in value)
    if isinstance(value, float):
        return math.isfinite(value)
    if not array_api_compat.is_array_api_obj(value):
        return True
    xp = namespace_of(value)
    is_number = xp.isdtype(value.dtype, "real floating")
    return not is_number or bool(xp.all(xp.isfinite(value)))
