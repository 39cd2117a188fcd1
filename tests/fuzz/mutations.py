"""Changes that a stranger could make to a model file: of its content, and of its bytes."""

import math

import numpy as np

from polyad.fitting import History, Status

STRANGE = (
    *(None, True, False, 0, 1, -1, 2, 7, 10**6, 10**30, -(10**400), 0.0, -1.0, 0.5, 1e-300, 1e300),
    *(math.nan, math.inf, -math.inf, "", "text", "x" * 1000, [], (), {}, [1], {"name": "text"}),
    *(Status.STALLED, History(), np.zeros(0), np.array(1.0), np.array("text")),
)
STRANGE_TYPES = ("f4", ">f8", "f2", "i8", "u1", "?", "c16", "U7", "M8[s]")
STRANGE_NUMBERS = (math.nan, math.inf, -math.inf, -1.0, 0.0, 1e-300, 1e300, 1e30, -1e30)


def mutated(content, rng):
    """Return what was changed, in words, and a content with one or two changes.

    Parameters
    ----------
    content : dict
        Of a model file, as ``read_archive`` returns it; it stays as it is.
    rng : numpy.random.Generator
        Decides.
    """
    says = []
    for _ in range(int(rng.choice([1, 1, 1, 2]))):
        places = list(_places(content))
        place = places[rng.integers(len(places))]
        if rng.random() < 0.1:
            other = places[rng.integers(len(places))]
            first, second = _at(content, place), _at(content, other)
            if place[: len(other)] == other or other[: len(place)] == place:
                continue
            content = _replaced(_replaced(content, place, second), other, first)
            says.append(f"{_path(place)} and {_path(other)} change places")
            continue
        what, value = _changed(_at(content, place), rng)
        content = _replaced(content, place, value)
        says.append(f"{_path(place)} {what}")
    return "; ".join(says), content


def mutated_bytes(data, rng):
    """Return what was changed, in words, and the bytes of a file with one change."""
    start, stop = sorted(int(k) for k in rng.integers(0, len(data) + 1, size=2))
    kind = rng.integers(5)
    if kind == 0:
        return f"cut at {start}", data[:start]
    if kind == 1:
        return f"without {start}:{stop}", data[:start] + data[stop:]
    if kind == 2:
        return f"{start}:{stop} twice", data[:stop] + data[start:]
    if kind == 3:
        return f"zeros at {start}:{stop}", data[:start] + bytes(stop - start) + data[stop:]
    place, bit = int(rng.integers(len(data))), int(rng.integers(8))
    changed = bytearray(data)
    changed[place] ^= 1 << bit
    return f"bit {bit} of byte {place} flipped", bytes(changed)


def _places(value, path=()):
    """Yield the path of everything in a content, the content itself excepted."""
    if path:
        yield path
    if isinstance(value, History):
        value = value.records[:1]  # one stands for all
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _places(item, (*path, key))
    elif isinstance(value, list | tuple):
        for key, item in enumerate(value):
            yield from _places(item, (*path, key))


def _at(value, path):
    for key in path:
        value = (value.records if isinstance(value, History) else value)[key]
    return value


def _replaced(value, path, item):
    """Return a copy of nested containers with another item at a place."""
    if not path:
        return item
    if isinstance(value, History):
        copy = History()
        copy.records = _replaced(value.records, path, item)
        return copy
    key, *rest = path
    inner = _replaced(value[key], rest, item)
    if isinstance(value, dict):
        return {**value, key: inner}
    return type(value)([*value[:key], inner, *value[key + 1 :]])


def _changed(value, rng):
    """Return what was changed, and the changed value."""
    if isinstance(value, np.ndarray) and rng.random() < 0.85:
        return _changed_array(value, rng)
    if isinstance(value, dict | list | tuple) and len(value) and rng.random() < 0.7:
        return _changed_container(value, rng)
    number = rng.integers(len(STRANGE))
    return f"is {str(STRANGE[number])[:30]!r}", STRANGE[number]


def _changed_container(value, rng):
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = keys[rng.integers(len(keys))]
    kind = rng.integers(3)
    if isinstance(value, dict):
        if kind == 0:
            return f"has no {key!r}", {own: value[own] for own in keys if own != key}
        name = str(rng.choice(["added_", "_added", "added", "transform", "__class__", "~"]))
        name = key + "x" if name == "~" else name
        return f"has {name!r}", {**value, name: value[key]}
    if kind == 0:
        return f"has no item {key}", type(value)([*value[:key], *value[key + 1 :]])
    if kind == 1:
        return f"has item {key} twice", type(value)([*value[: key + 1], *value[key:]])
    other = tuple if isinstance(value, list) else list
    return f"is a {other.__name__}", other(value)


def _changed_array(array, rng):
    changes = [_of_another_shape, _of_another_type, _in_another_order, _with_other_numbers]
    return changes[rng.integers(len(changes))](array, rng)


def _of_another_shape(array, rng):
    kind = rng.integers(5)
    if kind == 0:
        return "is flat", array.ravel()
    if kind == 1:
        return "has one axis more", array[None]
    if kind == 2 and array.ndim > 1:
        return "is transposed", array.T.copy()
    if array.ndim == 0:
        return "has two entries", np.resize(array, 2)
    axis, shape = int(rng.integers(array.ndim)), list(array.shape)
    size = shape[axis] + int(rng.choice([-shape[axis], 1 - shape[axis], -1, 1, 5000]))
    shape[axis] = max(size, 0)
    return f"has the shape {shape}", np.resize(array, shape)


def _of_another_type(array, rng):
    name = str(rng.choice(STRANGE_TYPES))
    plain = array if array.dtype.kind in "fiub" else np.arange(array.size).reshape(array.shape)
    with np.errstate(all="ignore"):
        return f"has the type {name}", plain.astype("i8" if name[0] == "M" else "f8").astype(name)


def _in_another_order(array, rng):
    if array.size > 1 and rng.random() < 0.5:
        copy = array.copy()
        copy.flat[1] = copy.flat[0]
        return "has its first entry twice", copy
    axis = int(rng.integers(max(array.ndim, 1)))
    return f"is turned round along axis {axis}", np.flip(array, axis if array.ndim else ()).copy()


def _with_other_numbers(array, rng):
    if array.dtype.kind != "f" or not array.size:
        return "is without entries", array[:0] if array.ndim else array
    number, copy = float(rng.choice(STRANGE_NUMBERS)), array.copy()
    with np.errstate(all="ignore"):
        if rng.random() < 0.5:
            copy.flat[int(rng.integers(copy.size))] = number
            return f"has an entry {number}", copy
        return f"is times {number}", (copy * number).astype(copy.dtype)


def _path(place):
    return ".".join(map(str, place))
