"""Losses by name: as parameters of estimators give them, and as model files hold them."""

from __future__ import annotations

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
_ALIASES = {"bernoulli": "bernoulli-odds"}


def stored_loss(loss: Any) -> Any:
    """Return a loss as a model file holds it: a name, or a dict of the name and the parameters.

    Code of the user's own is not kept, and is called :attr:`CustomLoss.name`.

    Parameters
    ----------
    loss : str or Loss
        As the estimator has it.
    """
    if isinstance(loss, str):
        return restored_loss(loss)
    return loss.portable() if type(loss) in LOSSES.values() else CustomLoss.name


def restored_loss(content: Any) -> Any:
    """Undo :func:`stored_loss`.

    Parameters
    ----------
    content : str or dict
        What the file holds.
    """
    name, parameters = content, {}
    if isinstance(content, dict):
        parameters = dict(content)
        name = parameters.pop("name")
    if name == CustomLoss.name:
        return name
    found = read_loss(name)
    return type(found)(**parameters) if isinstance(content, dict) else name


def read_loss(loss: Any) -> Loss:
    """Return the loss that a user asked for.

    Parameters
    ----------
    loss : str or Loss
        A name of :data:`LOSSES`, ``'bernoulli'`` for ``'bernoulli-odds'``, or a loss.
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
                "loss='custom' stands for a loss of your own, which a model file does not hold. "
                "Set it again, for example model.set_params(loss=CustomLoss(value, derivative))."
            )
            raise InvalidInputError(message)
        message = (
            f"loss={loss!r} is not known. Give one of {names}, or a loss with parameters of its "
            "own from polyad.losses, such as HuberLoss(0.5) or CustomLoss(value, "
            "derivative)."
        )
        raise InvalidInputError(message)
    message = (
        f"loss is a {type(loss).__name__}. Give a name ({names}) or a Loss, such as HuberLoss(0.5) "
        "or CustomLoss(value, derivative)."
    )
    raise InvalidTypeError(message)
