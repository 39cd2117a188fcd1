"""Soft operators for torch tensors, with derivatives for ``backward``.

The functions of :mod:`polyad.soft` under the same names and with the same arguments. Tensors may
live on any device and require gradients: values, criteria, weights, quantiles and levels get them.
Results are on the device and of the type of the values. The transports are solved on the processor,
in float64; gradients are the exact ones of the solved transport, of which nothing but the
potentials is kept.

>>> import torch
>>> from polyad.soft.torch import soft_rank
>>> x = torch.tensor([0.3, 0.1, 0.9, 0.5], requires_grad=True)
>>> ranks = soft_rank(x, epsilon=0.1)
>>> ranks[0].backward()
>>> x.grad
tensor([ 2.1230, -0.9193,  0.1422, -1.3459])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from polyad import soft
from polyad.exceptions import InvalidTypeError, MissingPackageError

try:
    import torch
except ImportError as error:
    message = "polyad.soft.torch needs torch: pip install 'polyad[torch]'."
    raise MissingPackageError(message) from error

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

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
    x: torch.Tensor,
    *,
    n_targets: int | None = None,
    weights: torch.Tensor | None = None,
    target_weights: torch.Tensor | None = None,
    epsilon: float = 1e-2,
    squash: Squash = True,
    cost: str | Cost = "squared",
    n_iter: int | None = None,
    tol: float = 1e-9,
    axis: int | tuple[int, ...] = -1,
) -> torch.Tensor:
    """Return the soft ranks of a tensor; see :func:`polyad.soft.soft_rank`."""
    tensors = {"weights": weights, "target_weights": target_weights}
    settings = _settings(epsilon, squash, cost, n_iter, tol, axis)
    return _apply(soft.soft_rank, {"x": x, **tensors}, {"n_targets": n_targets, **settings})


def soft_sort(
    x: torch.Tensor,
    *,
    n_targets: int | None = None,
    top_k: int | None = None,
    weights: torch.Tensor | None = None,
    target_weights: torch.Tensor | None = None,
    epsilon: float = 1e-2,
    squash: Squash = True,
    cost: str | Cost = "squared",
    n_iter: int | None = None,
    tol: float = 1e-9,
    axis: int | tuple[int, ...] = -1,
) -> torch.Tensor:
    """Return a tensor softly sorted; see :func:`polyad.soft.soft_sort`."""
    tensors = {"weights": weights, "target_weights": target_weights}
    settings = _settings(epsilon, squash, cost, n_iter, tol, axis)
    options = {"n_targets": n_targets, "top_k": top_k, **settings}
    return _apply(soft.soft_sort, {"x": x, **tensors}, options)


def soft_sort_with(
    x: torch.Tensor,
    criterion: torch.Tensor,
    *,
    n_targets: int | None = None,
    top_k: int | None = None,
    weights: torch.Tensor | None = None,
    target_weights: torch.Tensor | None = None,
    epsilon: float = 1e-2,
    squash: Squash = True,
    cost: str | Cost = "squared",
    n_iter: int | None = None,
    tol: float = 1e-9,
    axis: int | tuple[int, ...] = -1,
) -> torch.Tensor:
    """Return a tensor softly sorted by a criterion; see :func:`polyad.soft.soft_sort_with`."""
    tensors = {"weights": weights, "target_weights": target_weights}
    settings = _settings(epsilon, squash, cost, n_iter, tol, axis)
    options = {"n_targets": n_targets, "top_k": top_k, **settings}
    return _apply(soft.soft_sort_with, {"x": x, "criterion": criterion, **tensors}, options)


def soft_topk_mask(
    x: torch.Tensor,
    k: int = 1,
    *,
    weights: torch.Tensor | None = None,
    epsilon: float = 1e-2,
    squash: Squash = True,
    cost: str | Cost = "squared",
    n_iter: int | None = None,
    tol: float = 1e-9,
    axis: int | tuple[int, ...] = -1,
) -> torch.Tensor:
    """Return how much values belong to the largest; see :func:`polyad.soft.soft_topk_mask`."""
    settings = _settings(epsilon, squash, cost, n_iter, tol, axis)
    return _apply(soft.soft_topk_mask, {"x": x, "weights": weights}, {"k": k, **settings})


def soft_quantile(
    x: torch.Tensor,
    levels: torch.Tensor | float = 0.5,
    *,
    width: float | None = None,
    weights: torch.Tensor | None = None,
    epsilon: float = 1e-2,
    squash: Squash = True,
    cost: str | Cost = "squared",
    n_iter: int | None = None,
    tol: float = 1e-9,
    axis: int | tuple[int, ...] = -1,
) -> torch.Tensor:
    """Return soft quantiles of a tensor; see :func:`polyad.soft.soft_quantile`."""
    asked = levels if isinstance(levels, torch.Tensor) else _to_levels(levels)
    settings = _settings(epsilon, squash, cost, n_iter, tol, axis)
    tensors = {"x": x, "levels": asked, "weights": weights}
    return _apply(soft.soft_quantile, tensors, {"width": width, **settings})


def quantile_normalize(
    x: torch.Tensor,
    quantiles: torch.Tensor,
    *,
    weights: torch.Tensor | None = None,
    target_weights: torch.Tensor | None = None,
    epsilon: float = 1e-2,
    squash: Squash = True,
    cost: str | Cost = "squared",
    n_iter: int | None = None,
    tol: float = 1e-9,
    axis: int | tuple[int, ...] = -1,
) -> torch.Tensor:
    """Give a tensor the distribution of quantiles; see :func:`polyad.soft.quantile_normalize`."""
    tensors = {"x": x, "quantiles": quantiles, "weights": weights, "target_weights": target_weights}
    settings = _settings(epsilon, squash, cost, n_iter, tol, axis)
    return _apply(soft.quantile_normalize, tensors, settings)


def quantize(
    x: torch.Tensor,
    n_levels: int = 10,
    *,
    weights: torch.Tensor | None = None,
    epsilon: float = 1e-2,
    squash: Squash = True,
    cost: str | Cost = "squared",
    n_iter: int | None = None,
    tol: float = 1e-9,
    axis: int | tuple[int, ...] = -1,
) -> torch.Tensor:
    """Bring the values of a tensor near a few levels; see :func:`polyad.soft.quantize`."""
    settings = _settings(epsilon, squash, cost, n_iter, tol, axis)
    return _apply(soft.quantize, {"x": x, "weights": weights}, {"n_levels": n_levels, **settings})


def _settings(
    epsilon: float,
    squash: Squash,
    cost: str | Cost,
    n_iter: int | None,
    tol: float,
    axis: int | tuple[int, ...],
) -> dict[str, Any]:
    return {
        "epsilon": epsilon,
        "squash": squash,
        "cost": cost,
        "n_iter": n_iter,
        "tol": tol,
        "axis": axis,
    }


def _apply(
    function: Callable[..., Any],
    tensors: dict[str, torch.Tensor | None],
    options: dict[str, Any],
) -> torch.Tensor:
    for name, tensor in tensors.items():
        if tensor is not None and not isinstance(tensor, torch.Tensor):
            kind = type(tensor).__name__
            message = f"{name} is a {kind}; polyad.soft.torch takes tensors, polyad.soft arrays."
            raise InvalidTypeError(message)
    given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    operator: Callable[..., torch.Tensor] = _Operator.apply
    return operator(function, options, tuple(given), *given.values())


class _Operator(torch.autograd.Function):
    """A soft operator of named tensors, whose derivative is its pullback."""

    @staticmethod
    def forward(
        ctx: Any,
        function: Callable[..., Any],
        options: dict[str, Any],
        names: tuple[str, ...],
        *tensors: torch.Tensor,
    ) -> torch.Tensor:
        arrays = {name: _to_numpy(tensor) for name, tensor in zip(names, tensors, strict=True)}
        value, ctx.pullback = soft.vjp(function, **arrays, **options)
        # The arguments stay known, such that a derivative of the derivative finds its way to them
        # and is refused, instead of being zero. Their values are not needed again.
        ctx.names, ctx.tensors = names, tensors
        x = tensors[0]
        kind = x.dtype if x.is_floating_point() else torch.get_default_dtype()
        return torch.from_numpy(value).to(x.device, kind)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        needed = ctx.needs_input_grad[3:]
        pull: Callable[..., tuple[Any, ...]] = _Pullback.apply
        gradients = pull(ctx.pullback, ctx.names, needed, gradient, *ctx.tensors)
        return (None, None, None, *gradients)


class _Pullback(torch.autograd.Function):
    """The derivative of an operator, as a function that has no derivative of its own."""

    @staticmethod
    def forward(
        ctx: Any,
        pullback: Callable[..., Any],
        names: tuple[str, ...],
        needed: tuple[bool, ...],
        gradient: torch.Tensor,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor | None, ...]:
        found = pullback(_to_numpy(gradient))
        return tuple(
            torch.from_numpy(getattr(found, name)).to(tensor.device, tensor.dtype)
            if wanted
            else None
            for name, tensor, wanted in zip(names, tensors, needed, strict=True)
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        message = (
            "The operators of polyad.soft.torch can be differentiated once; a second derivative "
            "was asked for. Detach the gradient, or take differences of first derivatives."
        )
        raise NotImplementedError(message)


def _to_levels(levels: Any) -> torch.Tensor:
    """Return numbers as levels, as precise as they are."""
    try:
        return torch.as_tensor(levels, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        message = f"levels={levels!r} must be a number, a tensor or numbers between 0 and 1."
        raise InvalidTypeError(message) from None


def _to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """Return a tensor as an array that NumPy has a type for."""
    tensor = tensor.detach().cpu()
    if tensor.dtype in (torch.bfloat16, torch.float16):
        tensor = tensor.float()
    array: np.ndarray = tensor.numpy()
    return array
