"""Samples in batches, each beside its augmented twin, as matrices about their mean.

A sample is augmented as it was given, and both it and its twin then go through ``preprocess``:
what is decomposed are the features of signals, what is augmented are the signals.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from array_api_compat import array_namespace, device, is_array_api_obj

from polyad.core.arrays import to_numpy
from polyad.cp.rules import double, epsilon_of
from polyad.data.batches import matching
from polyad.exceptions import InvalidInputError, InvalidTypeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from polyad.core.arrays import Array
    from polyad.data.batches import Batch, SampleSource

# Units of rounding by which a mean may miss.
_ROUNDING_OF_MEANS = 4.0
# Generators of twins and of the order of samples come from the same seed.
_TWINS = 1


@dataclass(frozen=True)
class Centre:
    """The mean of samples, and the mean of their squared distances from it."""

    #: How many samples these are of.
    n_samples: int
    #: (p,) of the entries of a sample.
    mean: Array
    spread: float

    @property
    def unit(self) -> float:
        """The size of a sample about the mean, one if there is none."""
        return math.sqrt(self.spread) if self.spread > 0 else 1.0


@dataclass(frozen=True)
class View:
    """Some samples about the mean, in its unit: a matrix with a row each."""

    matrix: Array
    #: (n,) in double precision.
    squares: Array


class AugmentedData:
    """Batches of samples with their twins.

    Parameters
    ----------
    source : SampleSource
        The samples as they were given.
    augment : callable, array or None
        ``augment(batch, generator)``, or a twin for each sample.
    preprocess : callable or None
        Makes the tensors that are decomposed.
    center : bool
        Whether the mean is subtracted.
    """

    #: The name of a start, or the factors of a given one.
    start: str | list[Array]

    def __init__(self, source: SampleSource, augment: Any, preprocess: Any, *, center: bool):
        self.source = source
        self.augment = augment
        self.preprocess = preprocess
        self.center = center
        head = source.head.data
        first = self.tensors(head[: min(int(head.shape[0]), 2), ...])
        #: An array of the kind that all arrays of the fit are of.
        self.like = first
        #: The shape of a sample.
        self.shape = tuple(int(n) for n in first.shape[1:])

    @property
    def n_batches(self) -> int | None:
        """The number of batches of a sweep, if it is known."""
        return self.source.n_batches

    def asarray(self, array: Array) -> Array:
        """Bring an array to the namespace, device and number type of the data."""
        return like(array, self.like)

    def batches(self, generator: np.random.Generator | None = None) -> Iterator[Batch]:
        """Give the batches of a sweep."""
        return self.source.sweep(generator)

    def tensors(self, samples: Array, what: str = "preprocess") -> Array:
        """Return what is decomposed of samples."""
        if self.preprocess is None:
            return samples
        return read_output(self.preprocess(samples), samples, what, same_shape=False)

    def matrix(self, samples: Array) -> Array:
        """Return the tensors of samples as a matrix with a row for each sample."""
        return flat(self.tensors(samples))

    def twins(self, batch: Batch, *key: int) -> Array | None:
        """Return the tensors of the augmented samples of a batch, as a matrix.

        The numbers of ``key``, a seed among them, are all that they depend on.
        """
        if self.augment is None:
            return None
        samples = batch.given.data
        if callable(self.augment):
            generator = np.random.default_rng([_TWINS, *key])
            changed = read_output(self.augment(samples, generator), samples, "augment")
        else:
            changed = read_output(_taken(self.augment, batch.positions), samples, "augment")
        return flat(self.tensors(changed, "preprocess, after augment,"))

    def first_tensor(self, generator: np.random.Generator | None) -> Array:
        """Return the tensor of the first batch that tells something, about its own mean."""
        matrix = self.matrix(self.source.first_informative(generator).given.data)
        about = self.view(matrix, self.moved_centre(None, matrix)).matrix
        return array_namespace(about).reshape(about, (int(about.shape[0]), *self.shape))

    def centre(self) -> Centre:
        """Return the centre of all samples, in one pass over them."""
        batches = self.batches()
        found = self.moved_centre(None, self.matrix(next(batches).given.data))
        for batch in batches:
            found = self.moved_centre(found, self.matrix(batch.given.data))
        return found

    def moved_centre(self, centre: Centre | None, matrix: Array) -> Centre:
        """Return the centre of the samples before and of some more."""
        xp = array_namespace(matrix)
        n = int(matrix.shape[0])
        mean = xp.mean(matrix, axis=0) if self.center else xp.zeros_like(matrix[0, :])
        spread = float(xp.sum(squares_of(matrix - mean[None, :]))) / n
        # Samples that are all the same differ from their mean by rounding.
        rounding = _ROUNDING_OF_MEANS * epsilon_of(matrix.dtype)
        if spread <= rounding**2 * float(xp.sum(double(mean) ** 2)):
            spread = 0.0
        if centre is None:
            return Centre(n, mean, spread)
        total = centre.n_samples + n
        share = n / total
        between = mean - centre.mean
        # Chan, Golub and LeVeque: means and squares of two groups of samples.
        distance = float(xp.sum(double(between) ** 2))
        spread = (1.0 - share) * (centre.spread + share * distance) + share * spread
        return Centre(total, centre.mean + share * between, spread)

    def view(self, matrix: Array, centre: Centre, positions: np.ndarray | None = None) -> View:
        """Return samples about the centre and in its unit; refuse what is not finite."""
        about = (matrix - centre.mean[None, :]) if self.center else matrix
        about = about * (1.0 / centre.unit if centre.spread > 0 else 0.0)
        squares = squares_of(about)
        sound = to_numpy(array_namespace(squares).isfinite(squares))
        if not sound.all():
            raise _not_finite(np.flatnonzero(~sound), positions, self)
        return View(about, squares)


def _taken(array: Any, positions: np.ndarray) -> Array:
    """Return some samples of an array in memory or on disk."""
    if not is_array_api_obj(array) or isinstance(array, np.ndarray):
        return np.asarray(array[positions])
    xp = array_namespace(array)
    return xp.take(array, xp.asarray(positions, device=device(array)), axis=0)


def flat(tensors: Array) -> Array:
    """Return tensors as a matrix with a row for each sample."""
    xp = array_namespace(tensors)
    return xp.reshape(tensors, (int(tensors.shape[0]), math.prod(tensors.shape[1:])))


def like(array: Array, reference: Array) -> Array:
    """Bring an array to the namespace, device and number type of another."""
    xp = array_namespace(reference)
    own = array if array_namespace(array) is xp else to_numpy(array)
    return xp.asarray(own, dtype=reference.dtype, device=device(reference))


def squares_of(matrix: Array) -> Array:
    """Return the squared length of each row, summed in double precision if that is cheap."""
    xp = array_namespace(matrix)
    return double(xp.vecdot(matrix, matrix))


def read_augmentation(augment: Any, n_samples: int | None, shape: tuple[int, ...]) -> Any:
    """Return a function, an array with a twin for each sample, or None."""
    if augment is None or callable(augment):
        return augment
    if not (hasattr(augment, "shape") and hasattr(augment, "__getitem__")):
        message = (
            f"augment={augment!r:.80} is a {type(augment).__name__}. Give a function "
            "augment(batch, generator) that returns a batch of the same shape, an array with an "
            "augmented twin for each sample, or None. polyad.augmented.signals has some."
        )
        raise InvalidTypeError(message)
    expected = (n_samples, *shape)
    if tuple(augment.shape) != expected:
        message = (
            f"augment has the shape {tuple(augment.shape)}, but X has {expected}: an array of "
            "augmented samples needs a twin for each."
        )
        raise InvalidInputError(message)
    return augment


def read_preprocess(preprocess: Any) -> Callable[[Array], Array] | None:
    """Return the function that makes tensors of samples, or None."""
    if preprocess is None or callable(preprocess):
        return preprocess
    message = (
        f"preprocess={preprocess!r:.80} is a {type(preprocess).__name__}. Give a function of a "
        "batch that returns a tensor with a sample for each, such as "
        "polyad.augmented.signals.STFT(), or None. One of your own is not kept in a model file: "
        "set it again, model.set_params(preprocess=function)."
    )
    raise InvalidTypeError(message)


def read_output(made: Any, samples: Array, what: str, *, same_shape: bool = True) -> Array:
    """Check what a user's function made of samples, and bring it to their kind of array."""
    shape = getattr(made, "shape", None)
    if not isinstance(shape, tuple):
        message = (
            f"{what} returned a {type(made).__name__} for an array of shape "
            f"{tuple(samples.shape)}; an array is needed."
        )
        raise InvalidTypeError(message)
    is_wrong = tuple(shape) != tuple(samples.shape) if same_shape else _is_no_batch(shape, samples)
    if is_wrong:
        needed = "of the same shape" if same_shape else "with as many samples and 2 or more modes"
        message = (
            f"{what} returned an array of shape {tuple(shape)} for one of shape "
            f"{tuple(samples.shape)}; an array {needed} is needed."
        )
        raise InvalidInputError(message)
    return matching(made, samples)


def _is_no_batch(shape: tuple[int, ...], samples: Array) -> bool:
    return len(shape) < 2 or shape[0] != samples.shape[0] or 0 in shape


def _not_finite(
    bad: np.ndarray, positions: np.ndarray | None, data: AugmentedData
) -> InvalidInputError:
    places = bad if positions is None else positions[bad]
    shown = ", ".join(map(str, places[:5].tolist())) + (", ..." if len(places) > 5 else "")
    made = [name for name in ("augment", "preprocess") if getattr(data, name) is not None]
    by = f" after {' and '.join(made)}" if made else ""
    return InvalidInputError(
        f"{len(places)} samples are not finite{by}, or too large: {shown}. Leave them out, or "
        "scale them."
    )
