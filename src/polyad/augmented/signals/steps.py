"""What all steps on signals have in common: parameters that can be read, set and stored."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from array_api_compat import device, is_array_api_obj

from polyad.core.arrays import namespace_of, to_numpy
from polyad.exceptions import InvalidInputError, InvalidTypeError

if TYPE_CHECKING:
    from polyad.core.arrays import Array


@dataclasses.dataclass
class SignalStep:
    """A step on signals, whose parameters are the fields of a dataclass.

    Parameters are read and set as those of scikit-learn, so that steps can be cloned and searched
    over as a part of an estimator.
    """

    def get_params(self, deep: bool = True) -> dict[str, Any]:  # noqa: FBT001, FBT002
        """Return the parameters by name.

        Parameters
        ----------
        deep : bool, default=True
            There is nothing deeper; scikit-learn asks for it.

        Returns
        -------
        dict
            The parameters.
        """
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def set_params(self, **parameters: Any) -> Self:
        """Set parameters by name.

        Parameters
        ----------
        **parameters : dict
            New values.

        Returns
        -------
        SignalStep
            The step itself.
        """
        known = self.get_params()
        for name in parameters:
            if name not in known:
                message = (
                    f"{type(self).__name__} has no parameter {name!r}. Its parameters are: "
                    f"{', '.join(known)}."
                )
                raise InvalidInputError(message)
        for name, value in vars(dataclasses.replace(self, **parameters)).items():
            setattr(self, name, value)
        return self

    def __post_init__(self) -> None:
        """Refuse parameters that have no meaning."""


def read_signals(signals: Any, of: str) -> tuple[Any, Array]:
    """Return the namespace and the numbers of signals, (samples, channels, times)."""
    if not is_array_api_obj(signals):
        signals = np.asarray(signals)
    if signals.ndim != 3:
        message = (
            f"{of} was given signals of shape {tuple(signals.shape)}. It needs (samples, channels, "
            "times); a single channel is signals[:, None, :]."
        )
        raise InvalidInputError(message)
    xp = namespace_of(signals)
    if not xp.isdtype(signals.dtype, "real floating"):
        if not xp.isdtype(signals.dtype, ("integral", "bool")):
            message = f"{of} was given signals of type {signals.dtype}. It needs real numbers."
            raise InvalidTypeError(message)
        signals = xp.astype(signals, xp.float64)
    return xp, signals


def like(array: Array, reference: Array) -> Array:
    """Bring an array to the namespace, device and number type of another."""
    xp = namespace_of(reference)
    own = array if namespace_of(array) is xp else to_numpy(array)
    return xp.asarray(own, dtype=reference.dtype, device=device(reference))


def moved_index(values: np.ndarray, reference: Array) -> Array:
    """Bring NumPy indices to the namespace and device of an array."""
    if isinstance(reference, np.ndarray):
        return values
    return namespace_of(reference).asarray(values, device=device(reference))


def copied(array: Array) -> Array:
    """Return a copy that can be written to."""
    return namespace_of(array).asarray(array, copy=True)


def check_between(value: float, name: str, low: float, high: float, of: object) -> None:
    """Refuse a number outside of an interval, or what is no number."""
    is_number = isinstance(value, (int, float, np.integer, np.floating))
    if not is_number or isinstance(value, bool) or not low <= value <= high or value == np.inf:
        message = (
            f"{type(of).__name__} was given {name}={value!r}. It must be a number between {low:g} "
            f"and {high:g}."
        )
        raise InvalidInputError(message)


def stored_step(step: Any) -> Any:
    """Return a step as a model file can hold it: names, numbers, lists; a function by its name."""
    if step is None or isinstance(step, str):
        return step
    if isinstance(step, SignalStep) and type(step).__name__ in _kinds():
        parameters = {name: _stored_value(value) for name, value in step.get_params().items()}
        return {"step": type(step).__name__, "parameters": parameters}
    return {"callable": getattr(step, "__qualname__", type(step).__qualname__)}


def restored_step(stored: Any) -> Any:
    """Return the step that a model file holds; a function that was not ours cannot be called."""
    if not isinstance(stored, dict):
        return stored
    if "callable" in stored:
        return Absent(str(stored["callable"]))
    kind = _kinds().get(stored.get("step", ""))
    parameters = stored.get("parameters")
    if kind is None or not isinstance(parameters, dict):
        message = f"The file names a step {stored.get('step')!r}, which polyad does not know."
        raise InvalidInputError(message)
    return kind(**{name: _restored_value(value) for name, value in parameters.items()})


@dataclasses.dataclass
class Absent:
    """The place of a function that a model file could name, but not hold."""

    name: str

    def __call__(self, *_: Any) -> Any:
        """Say what is missing."""
        message = (
            f"The model was saved with a function of your own, {self.name}, which a file does not "
            "hold. Set it again with set_params before the model is used."
        )
        raise InvalidInputError(message)


def _kinds() -> dict[str, type[SignalStep]]:
    from polyad.augmented import signals

    kinds = (getattr(signals, name) for name in signals.__all__)
    return {kind.__name__: kind for kind in kinds if issubclass(kind, SignalStep)}


def _stored_value(value: Any) -> Any:
    if isinstance(value, SignalStep) or callable(value):
        return stored_step(value)
    if isinstance(value, np.generic):
        return value.item()
    return [_stored_value(item) for item in value] if isinstance(value, (list, tuple)) else value


def _restored_value(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_restored_value(item) for item in value)
    return restored_step(value)
