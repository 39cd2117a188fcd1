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
    return read.portable() if type(read) in LOSSES.values() else CustomLoss.name


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


def read_loss(loss: Any, parameter: str = "loss") -> Loss:
    """Return the loss that a parameter of an estimator asks for.

    It is a name, a loss, or an object that has the functions of a :class:`CustomLoss` as methods.
    """
    if isinstance(loss, Loss):
        return loss
    names = ", ".join(map(repr, (*LOSSES, *_ALIASES)))
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
    if isinstance(loss, type) or value is None or derivative is None:
        message = (
            f"{parameter} is a {type(loss).__name__}. Give a name ({names}) or a Loss, such as "
            "HuberLoss(0.5) or CustomLoss(value, derivative)."
        )
        raise InvalidTypeError(message)
    optional: dict[str, Any] = {name: getattr(loss, name, None) for name in _OPTIONAL}
    return CustomLoss(value, derivative, lower=getattr(loss, "lower", -math.inf), **optional)
