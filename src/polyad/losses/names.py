"""Losses by name: as parameters of estimators give them, and as model files hold them."""

from __future__ import annotations

import math
from typing import Any

from polyad.exceptions import InvalidInputError, InvalidTypeError
from polyad.losses.continuous import (
    BetaDivergenceLoss,
    GammaLoss,
    GaussianLoss,
    HuberLoss,
    RayleighLoss,
)
from polyad.losses.discrete import (
    BernoulliLogitLoss,
    BernoulliOddsLoss,
    NegativeBinomialLoss,
    PoissonLogLoss,
    PoissonLoss,
)
from polyad.losses.loss import CustomLoss, Loss

#: The losses that ``loss=`` knows by name.
LOSSES: dict[str, type[Loss]] = {
    kind.name: kind
    for kind in (
        *(GaussianLoss, PoissonLoss, PoissonLogLoss, BernoulliOddsLoss, BernoulliLogitLoss),
        *(GammaLoss, RayleighLoss, HuberLoss, BetaDivergenceLoss, NegativeBinomialLoss),
    )
}
# What an object may have besides a value and a derivative.
_OPTIONAL = ("curvature", "accepts", "mean")
_ALIASES = {"bernoulli": "bernoulli-odds", "kl": "poisson", "frobenius": "gaussian"}


def stored_loss(loss: Any, parameter: str = "loss") -> Any:
    """Return a loss as a model file holds it: a name, or a dict of the name and the parameters.

    Code of the user's own is not kept, and is called :attr:`CustomLoss.name`.
    """
    if isinstance(loss, str):
        return restored_loss(loss, parameter)
    read = read_loss(loss, parameter)
    return read.stored() if type(read) in LOSSES.values() else CustomLoss.name


def restored_loss(content: Any, parameter: str = "loss") -> Any:
    """Undo :func:`stored_loss`."""
    name, own = content, {}
    if isinstance(content, dict):
        own = dict(content)
        name = own.pop("name")
    if name == CustomLoss.name:
        return name
    found = read_loss(name, parameter)
    return type(found)(**own) if isinstance(content, dict) else name


def read_loss(loss: Any, parameter: str = "loss", *, of_means: bool = False) -> Loss:
    """Return the loss that a parameter of an estimator asks for.

    It is a name, a loss, or an object that has the functions of a :class:`CustomLoss` as methods.
    Errors offer the names of losses ``of_means`` alone if the model values must be such.
    """
    if isinstance(loss, Loss):
        _check_attributes(loss, parameter)
        return loss
    names = ", ".join(
        repr(name)
        for name in (*LOSSES, *_ALIASES)
        if not of_means or LOSSES[_ALIASES.get(name, name)]().has_means
    )
    if isinstance(loss, str):
        name = _ALIASES.get(loss, loss)
        if name in LOSSES:
            return LOSSES[name]()
        if name == CustomLoss.name:
            message = (
                f"{parameter}='custom' stands for one of your own, which a model file does not "
                f"hold. Set it again, for example model.set_params({parameter}=CustomLoss(value, "
                "derivative))."
            )
            raise InvalidInputError(message)
        message = (
            f"{parameter}={loss!r} is not known. Give one of {names}, or a loss with parameters "
            "of its own from polyad.losses, such as HuberLoss(0.5) or CustomLoss(value, "
            "derivative)."
        )
        raise InvalidInputError(message)
    value, derivative = (getattr(loss, name, None) for name in ("value", "derivative"))
    is_class = isinstance(loss, type)
    if is_class and value is not None and derivative is not None:
        message = (
            f"{parameter} is the class {loss.__name__}, not a loss made of it. Give "
            f"{loss.__name__}(), with its parameters if it has some."
        )
        raise InvalidTypeError(message)
    if value is None or derivative is None:
        given = f"the class {loss.__name__}" if is_class else f"a {type(loss).__name__}"
        message = (
            f"{parameter} is {given}. Give a name ({names}) or a Loss, such as "
            "HuberLoss(0.5) or CustomLoss(value, derivative)."
        )
        raise InvalidTypeError(message)
    optional: dict[str, Any] = {name: getattr(loss, name, None) for name in _OPTIONAL}
    return CustomLoss(value, derivative, lower=getattr(loss, "lower", -math.inf), **optional)


def _check_attributes(loss: Loss, parameter: str) -> None:
    """Refuse a loss of the user's own class that lacks a name, or has a bound that no fit keeps."""
    kind = type(loss).__name__
    if not isinstance(getattr(loss, "name", None), str):
        message = (
            f"{parameter} is a {kind}, a Loss without a name, by which messages call it. Give the "
            f'class one: name = "{kind.lower()}".'
        )
        raise InvalidTypeError(message)
    if loss.lower not in (0.0, -math.inf):
        message = (
            f"{parameter} is a {kind} with lower={loss.lower!r}; give 0 or minus infinity (no "
            "bound)."
        )
        raise InvalidInputError(message)
