"""Soft operators for JAX arrays, with derivatives for ``grad`` and ``vjp``.

The functions of :mod:`polyad.soft` under the same names and with the same arguments. They work
inside ``jax.jit``, ``jax.vmap`` and reverse-mode differentiation: values, criteria, weights,
quantiles and levels get gradients. Everything else is a setting, a plain number that is known when
a function is traced. Results have the type of the values. The transports are solved on the
processor, in float64, by a callback; gradients are the exact ones of the solved transport, of which
nothing but the potentials is kept.

>>> import jax, jax.numpy as jnp
>>> from polyad.soft.jax import soft_rank
>>> x = jnp.array([0.3, 0.1, 0.9, 0.5])
>>> jax.grad(lambda x: soft_rank(x, epsilon=0.1)[0])(x)
Array([ 2.123..., -0.919...,  0.142..., -1.345...], dtype=float32)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from polyad.exceptions import InvalidTypeError, MissingPackageError
from polyad.soft.arguments import (
    Layout,
    Settings,
    read_array,
    read_count,
    read_levels,
    read_quantiles,
    read_settings,
    read_targets,
    read_top,
    read_values,
    read_weights,
    read_width,
)
from polyad.soft.formulas import (
    Evaluated,
    evaluate_normalize,
    evaluate_quantile,
    evaluate_quantize,
    evaluate_rank,
    evaluate_sort,
    evaluate_sort_with,
    evaluate_topk_mask,
    read_columns,
    read_sort_targets,
)

try:
    import jax
    import jax.numpy as jnp
except ImportError as error:
    message = "polyad.soft.jax needs jax: pip install 'polyad[jax]'."
    raise MissingPackageError(message) from error

if TYPE_CHECKING:
    from collections.abc import Callable

    from jax.typing import ArrayLike

    from polyad.soft.arguments import Squash
    from polyad.transport.rows import Cost

__all__ = [
    "quantile_normalize",
    "quantize",
    "soft_quantile",
    "soft_rank",
    "soft_sort",
    "soft_sort_with",
    "soft_topk_mask",
]


def soft_rank(
    x: ArrayLike,
    *,
    n_targets: int | None = None,
    weights: ArrayLike | None = None,
    target_weights: ArrayLike | None = None,
    epsilon: float = 1e-2,
    squash: Squash = True,
    cost: str | Cost = "squared",
    n_iter: int | None = None,
    tol: float = 1e-9,
    axis: int | tuple[int, ...] = -1,
) -> jax.Array:
    """Return the soft ranks of an array; see :func:`polyad.soft.soft_rank`."""
    settings = _settings(epsilon, squash, cost, n_iter, tol, axis)
    given = _read(x=x, weights=weights, target_weights=target_weights)
    shown, layout, n = _check(given, settings)
    n_targets = _plain("n_targets", n_targets)
    m = read_targets(n_targets, shown["target_weights"], layout, n).rows.shape[1]
    task = _Task(evaluate_rank, settings, (("n_targets", m),), n, (1, m))
    return _to_input(_apply(task, given, layout, x), layout)


def soft_sort(
    x: ArrayLike,
    *,
    n_targets: int | None = None,
    top_k: int | None = None,
    weights: ArrayLike | None = None,
    target_weights: ArrayLike | None = None,
    epsilon: float = 1e-2,
    squash: Squash = True,
    cost: str | Cost = "squared",
    n_iter: int | None = None,
    tol: float = 1e-9,
    axis: int | tuple[int, ...] = -1,
) -> jax.Array:
    """Return an array softly sorted; see :func:`polyad.soft.soft_sort`."""
    settings = _settings(epsilon, squash, cost, n_iter, tol, axis)
    given = _read(x=x, weights=weights, target_weights=target_weights)
    shown, layout, n = _check(given, settings)
    options, sizes = _sort_options(n_targets, top_k, shown["target_weights"], layout, n)
    value = _apply(_Task(evaluate_sort, settings, options, *sizes), given, layout, x)
    return jnp.moveaxis(value, -1, layout.axis)


def soft_sort_with(
    x: ArrayLike,
    criterion: ArrayLike,
    *,
    n_targets: int | None = None,
    top_k: int | None = None,
    weights: ArrayLike | None = None,
    target_weights: ArrayLike | None = None,
    epsilon: float = 1e-2,
    squash: Squash = True,
    cost: str | Cost = "squared",
    n_iter: int | None = None,
    tol: float = 1e-9,
    axis: int | tuple[int, ...] = -1,
) -> jax.Array:
    """Return an array softly sorted by a criterion; see :func:`polyad.soft.soft_sort_with`."""
    settings = _settings(epsilon, squash, cost, n_iter, tol, axis)
    given = _read(x=x, criterion=criterion, weights=weights, target_weights=target_weights)
    shown, layout, n = _check(given, settings, "criterion")
    n_columns = len(read_columns(read_array(shown["x"], "x"), layout))
    options, (m, solved) = _sort_options(n_targets, top_k, shown["target_weights"], layout, n)
    task = _Task(_evaluate_columns, settings, options, m * n_columns, solved)
    value = _apply(task, given, layout, x).reshape(*layout.leading, m, n_columns)
    ordered = jnp.moveaxis(value, -2, layout.axis)
    return ordered.reshape(*ordered.shape[:-1], *given["x"].shape[len(layout.shape) :])


def soft_topk_mask(
    x: ArrayLike,
    k: int = 1,
    *,
    weights: ArrayLike | None = None,
    epsilon: float = 1e-2,
    squash: Squash = True,
    cost: str | Cost = "squared",
    n_iter: int | None = None,
    tol: float = 1e-9,
    axis: int | tuple[int, ...] = -1,
) -> jax.Array:
    """Return how much values belong to the largest; see :func:`polyad.soft.soft_topk_mask`."""
    settings = _settings(epsilon, squash, cost, n_iter, tol, axis)
    given = _read(x=x, weights=weights)
    _, layout, n = _check(given, settings)
    count = read_top(_plain("k", k), "k", n)
    task = _Task(evaluate_topk_mask, settings, (("k", count),), n, (1, 2))
    return _to_input(_apply(task, given, layout, x), layout)


def soft_quantile(
    x: ArrayLike,
    levels: ArrayLike = 0.5,
    *,
    width: float | None = None,
    weights: ArrayLike | None = None,
    epsilon: float = 1e-2,
    squash: Squash = True,
    cost: str | Cost = "squared",
    n_iter: int | None = None,
    tol: float = 1e-9,
    axis: int | tuple[int, ...] = -1,
) -> jax.Array:
    """Return soft quantiles of an array; see :func:`polyad.soft.soft_quantile`."""
    settings = _settings(epsilon, squash, cost, n_iter, tol, axis)
    given = _read(x=x, levels=levels, weights=weights)
    shown, layout, n = _check(given, settings)
    k = read_levels(shown["levels"], layout).rows.shape[1]
    share = read_width(_plain("width", width), n)
    task = _Task(evaluate_quantile, settings, (("width", share),), k, (k, 3))
    value = _apply(task, given, layout, x)
    return value[..., 0] if shown["levels"].ndim == 0 else jnp.moveaxis(value, -1, layout.axis)


def quantile_normalize(
    x: ArrayLike,
    quantiles: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    target_weights: ArrayLike | None = None,
    epsilon: float = 1e-2,
    squash: Squash = True,
    cost: str | Cost = "squared",
    n_iter: int | None = None,
    tol: float = 1e-9,
    axis: int | tuple[int, ...] = -1,
) -> jax.Array:
    """Give an array the distribution of quantiles; see :func:`polyad.soft.quantile_normalize`."""
    settings = _settings(epsilon, squash, cost, n_iter, tol, axis)
    given = _read(x=x, quantiles=quantiles, weights=weights, target_weights=target_weights)
    shown, layout, n = _check(given, settings)
    m = read_quantiles(shown["quantiles"], layout).rows.shape[1]
    read_weights(shown["target_weights"], "target_weights", layout, m)
    task = _Task(evaluate_normalize, settings, (), n, (1, m))
    return _to_input(_apply(task, given, layout, x), layout)


def quantize(
    x: ArrayLike,
    n_levels: int = 10,
    *,
    weights: ArrayLike | None = None,
    epsilon: float = 1e-2,
    squash: Squash = True,
    cost: str | Cost = "squared",
    n_iter: int | None = None,
    tol: float = 1e-9,
    axis: int | tuple[int, ...] = -1,
) -> jax.Array:
    """Bring the values of an array near a few levels; see :func:`polyad.soft.quantize`."""
    settings = _settings(epsilon, squash, cost, n_iter, tol, axis)
    given = _read(x=x, weights=weights)
    _, layout, n = _check(given, settings)
    count = read_count(_plain("n_levels", n_levels), "n_levels") or n
    task = _Task(evaluate_quantize, settings, (("n_levels", count),), n, (1, count))
    return _to_input(_apply(task, given, layout, x), layout)


def _sort_options(
    n_targets: int | None, top_k: int | None, target_weights: Any, layout: Layout, n: int
) -> tuple[tuple[tuple[str, int | None], ...], tuple[int, tuple[int, int]]]:
    """Return the options of a sort, and the numbers of results and of potentials of a row."""
    n_targets, top_k = _plain("n_targets", n_targets), _plain("top_k", top_k)
    m = read_sort_targets(n_targets, top_k, target_weights, layout, n)[0].rows.shape[1]
    if top_k is None:
        return (("n_targets", m), ("top_k", None)), (m, (1, m))
    return (("n_targets", None), ("top_k", int(top_k))), (int(top_k), (1, m))


def _settings(
    epsilon: float,
    squash: Squash,
    cost: str | Cost,
    n_iter: int | None,
    tol: float,
    axis: int | tuple[int, ...],
) -> Settings:
    numbers = (_plain("epsilon", epsilon), _plain("squash", squash), cost)
    axes = tuple(_plain("axis", i) for i in axis) if isinstance(axis, tuple | list) else axis
    others = (_plain("n_iter", n_iter), _plain("tol", tol), _plain("axis", axes))
    return read_settings(*numbers, *others)


def _plain(name: str, setting: Any) -> Any:
    """Return a setting as a plain number; one that is traced has no number yet."""
    if isinstance(setting, jax.core.Tracer):
        message = (
            f"{name} is traced by JAX, but it is a setting: a plain number that is known when a "
            "function is traced. Bind it with functools.partial, or in jax.jit name it in "
            "static_argnames."
        )
        raise InvalidTypeError(message)
    return setting.item() if isinstance(setting, jax.Array) and setting.ndim == 0 else setting


def _read(**given: ArrayLike | None) -> dict[str, Any]:
    """Return what was given as arrays of float32 or float64. Complex ones are refused later."""
    arrays = {name: None if part is None else jnp.asarray(part) for name, part in given.items()}
    return {
        name: part if part is None or part.dtype.kind == "c" else part.astype(_kind(part))
        for name, part in arrays.items()
    }


def _kind(array: jax.Array) -> Any:
    if not jnp.issubdtype(array.dtype, jnp.floating):
        return jnp.result_type(float)
    return jnp.promote_types(array.dtype, jnp.float32)


def _check(
    given: dict[str, Any], settings: Settings, key: str = "x"
) -> tuple[dict[str, Any], Layout, int]:
    """Refuse what is known to be wrong; return arrays in NumPy, layout and length of a row.

    Those that are traced have no numbers yet: ones stand for them.
    """
    shown: dict[str, Any] = {name: _show(part) for name, part in given.items()}
    values, layout = read_values(shown[key], settings, key)
    n = values.shape[1]
    read_weights(shown["weights"], "weights", layout, n)
    return shown, layout, n


def _show(array: jax.Array | None) -> np.ndarray | None:
    if isinstance(array, jax.core.Tracer):
        return np.broadcast_to(np.ones((), array.dtype), array.shape)
    return None if array is None else np.asarray(array)


@dataclass(frozen=True)
class _Task:
    """A callback that computes in NumPy; those of equal fields are equal, and compiled once."""

    #: One of those in ``formulas``, and its arguments that are no arrays.
    evaluate: Callable[..., Evaluated]
    settings: Settings
    options: tuple[tuple[str, float | None], ...]
    #: Length of a row of the value.
    n_results: int
    #: Numbers of transports and of targets that belong to a row.
    potentials: tuple[int, int]
    #: Type of the arrays, float32 or float64.
    kind: str = "float32"

    def __call__(self, words: dict[str, Any], kept: Any, gradient: Any) -> Any:
        """Return the value and its potentials or, given a gradient, the gradients."""
        arguments: dict[str, Any] = {name: _rows(part, self.kind) for name, part in words.items()}
        if kept is not None:
            arguments["potentials"] = _rows(kept, "float64").reshape(-1, self.potentials[1])
        done = self.evaluate(**arguments, **dict(self.options), settings=self.settings)

        def pack(array: np.ndarray) -> np.ndarray:
            return array.view(np.uint32).reshape(*words["x"].shape[:-1], -1)

        if gradient is None:
            return pack(done.value), None if done.potentials is None else pack(done.potentials)
        gradients = done.pull(_rows(gradient, self.kind))
        return {name: pack(getattr(gradients, name)) for name in words}


def _rows(words: jax.Array, kind: str) -> np.ndarray:
    """Return words as rows of numbers that may be written to, as compiled kernels expect."""
    numbers = np.array(words).view(kind)
    return numbers.reshape(-1, numbers.shape[-1])


# All that goes to a callback or comes from it is made of words of 32 bits. Otherwise JAX rounds
# float64 where the callback runs in a thread that has not enabled it, as all but the calling one do
# inside ``with jax.enable_x64()``. Potentials also stay float64 where the values are float32.


@jax.custom_jvp
def _to_words(array: jax.Array) -> jax.Array:
    words = jax.lax.bitcast_convert_type(array, jnp.uint32)
    return words.reshape(*array.shape[:-1], -1)


@_to_words.defjvp
def _refuse(_primals: Any, _tangents: Any) -> Any:
    """Refuse a second derivative: words have none for JAX, and it would be zero."""
    message = "polyad.soft.jax has first derivatives only: use jax.grad or jax.vjp, once."
    raise InvalidTypeError(message)


def _to_numbers(words: jax.Array, kind: str) -> jax.Array:
    pairs = words if kind == "float32" else words.reshape(*words.shape[:-1], -1, 2)
    return jax.lax.bitcast_convert_type(pairs, np.dtype(kind))


def _apply(task: _Task, given: dict[str, Any], layout: Layout, x: ArrayLike) -> jax.Array:
    """Bring arrays to rows of one type, and return the rows of the value; JAX differentiates."""
    arrays = {name: part for name, part in given.items() if part is not None}
    kind = jnp.result_type(*arrays.values())

    def to_rows(part: jax.Array) -> jax.Array:
        if part.shape[: len(layout.shape)] == layout.shape:  # with further axes, what is sorted
            flat = part.reshape(*layout.shape, -1)
            last = range(-1 - len(layout.axes), -1)
            return jnp.moveaxis(flat, layout.axes, last).reshape(*layout.leading, -1).astype(kind)
        rows = jnp.moveaxis(part, layout.axis, -1) if part.ndim > 1 else jnp.atleast_1d(part)
        return jnp.broadcast_to(rows, (*layout.leading, rows.shape[-1])).astype(kind)

    value = _operate(
        replace(
            task,
            settings=replace(task.settings, axes=(-1,), tells_single=False),
            options=(*task.options, *((name, None) for name in given if name not in arrays)),
            kind=str(kind),
        ),
        {name: to_rows(part) for name, part in arrays.items()},
    )
    own = jnp.asarray(x).dtype
    is_float = jnp.issubdtype(own, jnp.floating)
    return value.astype(own if is_float else given["x"].dtype)


def _to_input(rows: jax.Array, layout: Layout) -> jax.Array:
    """Return rows in the shape of the input."""
    array = rows.reshape(*layout.leading, *(layout.shape[i] for i in layout.axes))
    return jnp.moveaxis(array, range(-len(layout.axes), 0), layout.axes)


def _evaluate_columns(x: Any, criterion: Any, **others: Any) -> Evaluated:
    """Evaluate a sort by a criterion of rows whose columns lie one after the other."""
    done = evaluate_sort_with(x.reshape(*criterion.shape, -1), criterion, **others)
    return replace(done, pull=lambda G: done.pull(np.reshape(G, done.value.shape)))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _operate(task: _Task, arrays: dict[str, jax.Array]) -> jax.Array:
    """Return the value of rows, whose axes in front are the same."""
    return _forward(task, arrays)[0]


def _forward(task: _Task, arrays: dict[str, jax.Array]) -> tuple[jax.Array, Any]:
    def shape(n: int, kind: str) -> jax.ShapeDtypeStruct:
        n_words = n * np.dtype(kind).itemsize // 4
        return jax.ShapeDtypeStruct((*arrays["x"].shape[:-1], n_words), jnp.uint32)

    # A fixed number of iterations has no potentials to keep: the way back makes them again.
    potentials = shape(math.prod(task.potentials), "float64")
    shapes = shape(task.n_results, task.kind), None if task.settings.n_iter else potentials
    words = {name: _to_words(part) for name, part in arrays.items()}
    value, kept = jax.pure_callback(task, shapes, words, None, None, vmap_method="broadcast_all")
    return _to_numbers(value, task.kind), (words, kept)


def _backward(task: _Task, saved: Any, gradient: jax.Array) -> tuple[dict[str, jax.Array]]:
    words, kept = saved
    found = jax.pure_callback(
        *(task, words, words, kept, _to_words(gradient)), vmap_method="broadcast_all"
    )
    return ({name: _to_numbers(part, task.kind) for name, part in found.items()},)


_operate.defvjp(_forward, _backward)
