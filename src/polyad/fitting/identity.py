"""What makes two fits the same one, so that a checkpoint is continued by its own fit alone.

The identity of a fit has its class, its data, and every parameter of the estimator but those that
change no number, so that none can be forgotten. Numbers and names stand for themselves, all else
for a digest of its content:

- arrays by type, shape and numbers; tables with their labels; generators by their state;
- objects by their class and their state, as :func:`copy.copy` would take it;
- functions, and the methods of classes, by their code, the defaults and the values around them that
  they use; those of installed packages by name.

What has no content that could be compared, as an open file, is refused.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import math
import re
import sys
from collections.abc import Mapping, Set
from pathlib import PurePath
from types import CellType, CodeType, FunctionType, MemberDescriptorType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse
from array_api_compat import is_array_api_obj, is_pydata_sparse_array

from polyad.core.arrays import to_numpy
from polyad.exceptions import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Parameters that change how long a fit runs and who watches it, but none of its numbers.
UNCOUNTED = frozenset(
    (
        *("callbacks", "checkpoint", "max_iter", "n_jobs"),
        *("time_budget", "tol", "verbose", "warm_start"),
    )
)
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))
# Lists of at most so many numbers or names are shown in messages as they are.
_SHORT = 12
_DIGEST = re.compile("([^ ]+ )?[0-9a-f]{32}")


def fit_identity(
    method: type,
    parameters: Mapping[str, Any],
    content: Mapping[str, Any],
    uncounted: Set[str] = UNCOUNTED,
) -> dict[str, Any]:
    """Return what must be the same for a checkpoint to be of the same fit, as a file can hold it.

    The start is the one that was asked for, not that of a warm start, which goes on from where the
    checkpoint is. ``content`` is the data as it was given, ``uncounted`` the parameters that change
    no number.
    """
    if parameters["checkpoint"] is None:
        return {}
    if parameters["n_init"] > 1:
        # A single fit can be prolonged; of several, those that are over stay as they ended.
        uncounted = uncounted - {"max_iter", "tol"}
    counted = {name: value for name, value in parameters.items() if name not in uncounted}
    known = {name: identify(value, name) for name, value in {**content, **counted}.items()}
    return {"class": f"{method.__module__}.{method.__qualname__}", **known}


def identify(value: Any, name: str) -> Any:
    """Return a number, a name or a short list of them as it is, and a digest of anything else."""
    short = isinstance(value, (list, tuple)) and len(value) <= _SHORT
    items = [_scalar(item) for item in (value if short else [value])]
    if all(_is_shown(item) for item in items):
        return items if short else items[0]
    digest = _Digest(name)
    digest.add(value)
    return f"{type(value).__name__} {digest.hexdigest()}"


def is_digest(value: Any) -> bool:
    """Say whether an entry of an identity is the digest of something, or a list of them."""
    if isinstance(value, list):
        return bool(value) and all(map(is_digest, value))
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def digest_of(value: Any) -> str:
    """Return a short name for the content of a value."""
    digest = _Digest("value")
    digest.add(value)
    return digest.hexdigest()


def _scalar(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _is_shown(value: Any) -> bool:
    is_plain = value is None or isinstance(value, (bool, int, float, str))
    # NaN is unequal to itself, and would make a fit unequal to itself.
    return is_plain and not (isinstance(value, float) and math.isnan(value))


class _Digest:
    """Takes in values, one after another."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._sink = hashlib.blake2b(digest_size=16)
        # Objects refer to each other in circles. They are kept, so that no number is used twice.
        self._seen: dict[int, tuple[int, Any]] = {}

    def hexdigest(self) -> str:
        """Return the digest of all that was added."""
        return self._sink.hexdigest()

    def add(self, value: Any) -> None:
        """Take in a value."""
        value = _scalar(value)
        if type(value) in _PLAIN:
            self._tag(f"{type(value).__name__} {value!r}")
        elif is_array_api_obj(value) and not is_pydata_sparse_array(value):
            self._add_array(to_numpy(value))
        elif scipy.sparse.issparse(value):
            self._add_sparse(value)
        elif hasattr(value, "to_numpy"):  # a table, a column or an index
            names = (getattr(value, name, None) for name in ("index", "columns", "name"))
            kept = [None if callable(item) else item for item in names]
            self._add_all("table", [type(value).__name__, value.to_numpy(), *kept])
        elif isinstance(value, Mapping):
            keys = sorted(value, key=repr)
            self._add_all("mapping", [part for key in keys for part in (key, value[key])])
        elif isinstance(value, Set):
            self._add_all("set", sorted(value, key=repr))
        elif isinstance(value, (list, tuple, range)):
            self._add_all("sequence", value)
        else:
            self._add_once(value)

    def _tag(self, text: str) -> None:
        data = text.encode("utf-8", "surrogatepass")
        self._sink.update(b"%d:" % len(data))
        self._sink.update(data)

    def _add_all(self, kind: str, values: Iterable[Any]) -> None:
        parts = list(values)
        self._tag(f"{kind} of {len(parts)}")
        for part in parts:
            self.add(part)

    def _add_array(self, array: np.ndarray) -> None:
        self._tag(f"array {array.dtype.str} {array.shape}")
        if array.dtype.hasobject:
            self._add_all("objects", array.reshape(-1).tolist())
        elif array.nbytes:
            self._sink.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    def _add_sparse(self, matrix: Any) -> None:
        stored = matrix.tocoo()
        self._add_all("sparse", [stored.shape, *stored.coords, stored.data])

    def _add_once(self, value: Any) -> None:
        """Take in what may refer to itself."""
        if id(value) in self._seen:
            self._tag(f"seen {self._seen[id(value)][0]}")
            return
        self._seen[id(value)] = len(self._seen), value
        name = _installed_name(value)
        if name is not None:
            self._tag(f"installed {name}")
        elif isinstance(value, type):
            self._add_class(value)
        elif isinstance(value, FunctionType):
            self._add_function(value)
        elif isinstance(value, CodeType):
            names = (value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars)
            self._add_all("code", [value.co_code, value.co_consts, *names])
        elif hasattr(value, "py_func"):  # compiled by Numba
            self._add_all("compiled", [value.py_func])
        else:
            self._add_object(value)

    def _add_class(self, value: type) -> None:
        own = [base for base in value.__mro__ if _installed_name(base) is None]
        self._tag(f"class {value.__qualname__} of {len(own)}")
        for base in own:
            for name, member in sorted(vars(base).items()):
                # What Python adds to a class says nothing about what it does.
                if name == "_abc_impl" or (name.startswith("__") and name != "__call__"):
                    continue
                self._tag(name)
                self.add(_behind(member))

    def _add_function(self, value: FunctionType) -> None:
        self._add_all("function", [value.__code__, value.__defaults__, value.__kwdefaults__])
        cells = [_content(cell) for cell in value.__closure__ or ()]
        self._add_all("values", [cells, _globals_of(value), vars(value)])

    def _add_object(self, value: Any) -> None:
        """Take in an object, as far as Python itself can take it apart."""
        try:
            parts = value.__reduce_ex__(4)
        except TypeError as error:
            message = (
                f"{self._name} has a {type(value).__name__} inside ({value!r:.80}), of which a "
                "checkpoint cannot tell whether it is the same when the fit goes on. Use "
                "checkpoint=None, or functions and objects that are made of numbers, names, arrays "
                "and other functions."
            )
            raise CheckpointError(message) from error
        # The third part is the state; items of lists and mappings come as iterators.
        made = [part if k < 3 or part is None else list(part) for k, part in enumerate(parts)]
        self._add_all("object", [type(value), *made])


def _installed_name(value: Any) -> str | None:
    """Return where a function or class of an installed package is found, if it is one."""
    if isinstance(value, ModuleType):
        return value.__name__ if _is_installed(value.__name__) else None
    if isinstance(value, np.ufunc):  # those that are made of functions have a space in their name
        return None if " " in value.__name__ else f"ufunc.{value.__name__}"
    module = getattr(value, "__module__", None)
    name = getattr(value, "__qualname__", getattr(value, "__name__", None))
    if not (isinstance(module, str) and isinstance(name, str) and _is_installed(module)):
        return None
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}.{name}" if found is value else None


def _is_installed(module: str) -> bool:
    package = module.partition(".")[0]
    if package == "polyad" or package in sys.stdlib_module_names:
        return True
    place = getattr(sys.modules.get(package), "__file__", None) or ""
    return not {"site-packages", "dist-packages"}.isdisjoint(PurePath(place).parts)


def _behind(member: Any) -> Any:
    """Return what a property or another member of a class calls."""
    if isinstance(member, property):
        return [member.fget, member.fset]
    if isinstance(member, (staticmethod, classmethod)):
        return member.__func__
    if isinstance(member, functools.cached_property):
        return member.func
    return None if isinstance(member, MemberDescriptorType) else member


def _content(cell: CellType) -> list[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:  # of a variable that has no value yet
        return []


def _globals_of(function: FunctionType) -> dict[str, Any]:
    """Return the values that a function, or one inside it, looks up outside of itself."""
    codes = [function.__code__]
    for code in codes:
        codes += [const for const in code.co_consts if isinstance(const, CodeType)]
    steps = [step for code in codes for step in dis.get_instructions(code)]
    names = {step.argval for step in steps if step.opname == "LOAD_GLOBAL"}
    found = {name: value for name, value in function.__globals__.items() if name in names}
    # Of a module of the user's own, that is what may be taken from it.
    taken = {name for code in codes for name in code.co_names}
    return {
        name: {own: item for own, item in vars(value).items() if own in taken}
        if isinstance(value, ModuleType) and not _is_installed(value.__name__)
        else value
        for name, value in found.items()
    }
