"""Samples in batches, each beside its augmented twin, as matrices about their mean.

A sample is augmented as it was given, and both it and its twin then go through ``preprocess``:
what is decomposed are the features of signals, what is augmented are the signals.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from array_api_compat import device, is_array_api_obj, is_numpy_array

from polyad.augmented.signals.steps import SignalStep, like
from polyad.augmented.signals.stft import STFT
from polyad.augmented.views import Centre, Projection, View, project_samples, squares_of
from polyad.core.arrays import namespace_of, to_numpy
from polyad.cp.rules import double, epsilon_of
from polyad.data.batches import MemorySource, matching
from polyad.exceptions import InvalidInputError, InvalidTypeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from polyad.core.arrays import Array
    from polyad.data.batches import Batch, SampleSource
    from polyad.data.readers import TensorInput

# Units of rounding by which a mean may miss.
_ROUNDING_OF_MEANS = 4.0
# Generators of twins and of the order of samples come from the same seed.
_TWINS = 1


@dataclass(frozen=True)
class Preprocess:
    """Makes tensors of samples, whose channels (mode 1) are divided by a scale each first.

    Both may be None, for samples that are taken as they are.
    """

    function: Callable[[Array], Array] | None
    #: (n_1,)
    scales: Array | None

    def __call__(self, samples: Array, out: Array | None = None) -> Array:
        """Return the tensors, as arrays of the kind of the samples; ours are written to ``out``."""
        if self.function is None:
            return samples
        if self.scales is not None:
            sizes = (1, -1, *(1 for _ in samples.shape[2:]))
            scales = like(self.scales, samples)
            samples = samples / namespace_of(samples).reshape(scales, sizes)
        elif not isinstance(self.function, SignalStep):
            # A function of a user's own may write to what it is given.
            samples = namespace_of(samples).asarray(samples, copy=True)
        if type(self.function) is STFT:
            return self.function(samples, out=out)
        return read_output(self.function(samples), samples, "preprocess", same_shape=False)


def channel_scales(samples: Array) -> Array:
    """Return the standard deviation of each channel (mode 1), one where it does not change."""
    xp = namespace_of(samples)
    others = (0, *range(2, samples.ndim))
    spread = xp.sqrt(
        xp.mean((samples - xp.mean(samples, axis=others, keepdims=True)) ** 2, axis=others)
    )
    mean = xp.abs(xp.mean(samples, axis=others))
    # A channel that does not change differs from its mean by rounding.
    changes = spread > 16.0 * epsilon_of(samples.dtype) * mean
    return xp.where(changes, spread, xp.ones_like(spread))


class AugmentedData:
    """Batches of samples with their twins.

    Parameters
    ----------
    source : SampleSource
        The samples as they were given.
    augment : callable, array or None
        ``augment(batch, generator)``, or a twin for each sample.
    preprocess : Preprocess
        Makes the tensors that are decomposed.
    center : bool
        Whether the mean is subtracted.
    """

    #: The name of a start, or the factors of a given one.
    start: str | list[Array]

    def __init__(
        self, source: SampleSource, augment: Any, preprocess: Preprocess, *, center: bool
    ) -> None:
        self.source = source
        self.augment = augment
        self.preprocess = preprocess
        self.center = center
        #: The number of batches of a sweep, if it is known.
        self.n_batches = source.n_batches
        first = preprocess(source.head.data[:1, ...])
        #: An array of the kind that all arrays of the fit are of.
        self.like = first
        #: The shape of a sample.
        self.shape = tuple(int(n) for n in first.shape[1:])
        # Where tensors of samples and of twins are written to.
        self._places = [self.like[:0, ...], self.like[:0, ...]]
        # Of samples and of twins, where a position always has the same: sums of a sweep that later
        # ones need not take again.
        stays = isinstance(source, MemorySource) and is_numpy_array(first)
        self._squares = [
            np.full(source.head.shape[0], np.nan) if lasts else None
            for lasts in (stays, stays and not callable(augment))
        ]

    def asarray(self, array: Array) -> Array:
        """Bring an array to the namespace, device and number type of the data."""
        return like(array, self.like)

    def matrix(self, samples: Array, number: int = 0) -> Array:
        """Return the tensors of samples (0) or twins (1) as a matrix with a row for each sample.

        It may be written to by the next one of the same number.
        """
        tensors = self.preprocess(samples, self._place(int(samples.shape[0]), number))
        if tuple(tensors.shape[1:]) != self.shape:
            message = (
                f"preprocess made samples of shape {tuple(tensors.shape[1:])}, and before of shape "
                f"{self.shape}. It must make the same of every batch."
            )
            raise InvalidInputError(message)
        return flat(tensors)

    def _place(self, n: int, number: int) -> Array | None:
        """Return memory for n tensors, for one batch after another: new pages are slow."""
        is_ours = type(self.preprocess.function) is STFT and is_numpy_array(self.like)
        if not is_ours or self.source.n_batches == 1:
            return None
        if len(self._places[number]) < n:
            self._places[number] = np.empty((n, *self.shape), self.like.dtype)
        return self._places[number][:n]

    def twins(self, batch: Batch, *key: int) -> Array | None:
        """Return the tensors of the augmented samples of a batch, as a matrix.

        The numbers of ``key``, a seed among them, are all that they depend on.
        """
        if self.augment is None:
            return None
        samples = batch.given.data
        if callable(self.augment):
            generator = np.random.default_rng([_TWINS, *key])
            # A function of a user's own may write to what it is given.
            own = namespace_of(samples).asarray(samples, copy=True)
            changed = read_output(self.augment(own, generator), samples, "augment")
        else:
            changed = read_output(_taken(self.augment, batch.positions), samples, "augment")
        return self.matrix(changed, 1)

    def matrices(self, batch: Batch, *key: int) -> list[Array]:
        """Return the samples of a batch, and their twins if there are any."""
        twins = self.twins(batch, *key)
        samples = self.matrix(batch.given.data)
        return [samples] if twins is None else [samples, twins]

    def views(
        self, matrices: Sequence[Array], centre: Centre, positions: np.ndarray, *, moves: bool
    ) -> list[View]:
        """Return samples and twins about a centre, which ``moves`` or is that of the whole fit."""
        known = [None if moves else own for own in self._squares]
        pairs = zip(matrices, known, strict=False)
        return [View.of(own, centre, positions, squares) for own, squares in pairs]

    def first_tensor(self, generator: np.random.Generator | None) -> Array:
        """Return the tensor of the first batch that tells something, about its own mean."""
        matrix = self.matrix(self.source.first_informative(generator).given.data)
        about = View.of(matrix, self.moved_centre(None, matrix), copy=True).matrix
        return namespace_of(about).reshape(about, (int(about.shape[0]), *self.shape))

    def centre(self) -> Centre:
        """Return the centre of all samples, in one pass over them."""
        found, self.n_batches = None, 0
        for batch in self.source.sweep():
            matrix = self.matrix(batch.given.data)
            found = self.moved_centre(found, matrix, batch.positions)
            self.n_batches += 1
        return self.no_centre() if found is None else found

    def no_centre(self) -> Centre:
        """Return the centre of no samples, which those that come will move."""
        return Centre(0, self.asarray(np.zeros(math.prod(self.shape))), 0.0)

    def moved_centre(
        self, centre: Centre | None, matrix: Array, positions: np.ndarray | None = None
    ) -> Centre:
        """Return the centre of the samples before and of some more."""
        xp = namespace_of(matrix)
        n = int(matrix.shape[0])
        mean = xp.mean(matrix, axis=0) if self.center else xp.zeros_like(matrix[0, :])
        if not bool(xp.all(xp.isfinite(mean))):
            self._check_finite(squares_of(matrix), positions)
        spread = float(xp.sum(squares_of(matrix - mean[None, :]))) / n
        # Samples that are all the same differ from their mean by rounding.
        rounding = _ROUNDING_OF_MEANS * epsilon_of(matrix.dtype)
        least = rounding**2 * float(xp.sum(double(mean) ** 2))
        if centre is None:
            return Centre(n, mean, spread if spread > least else 0.0)
        total = centre.n_samples + n
        share = n / total
        between = mean - centre.mean
        # Chan, Golub and LeVeque: means and squares of two groups of samples.
        distance = float(xp.sum(double(between) ** 2))
        spread = (1.0 - share) * (centre.spread + share * distance) + share * spread
        return Centre(total, centre.mean + share * between, spread if spread > least else 0.0)

    def projections(self, views: Sequence[View], factors: Sequence[Array]) -> list[Projection]:
        """Return the products of samples with components; their squares are finite."""
        found = project_samples(views, factors)
        for view, own in zip(views, found, strict=True):
            self._check_finite(own.squares, view.positions)
        return found

    def _check_finite(self, squares: Array, positions: np.ndarray | None) -> None:
        """Refuse samples whose squares are not finite."""
        sound = to_numpy(namespace_of(squares).isfinite(squares))
        if sound.all():
            return
        bad = np.flatnonzero(~sound)
        places = (bad if positions is None else positions[bad]).tolist()
        made = [] if self.augment is None else ["augment"]
        made += [] if self.preprocess.function is None else ["preprocess"]
        by = f" after {' and '.join(made)}" if made else ""
        shown = ", ".join(map(str, places[:5])) + (", ..." if len(places) > 5 else "")
        message = (
            f"{len(places)} of the samples are not finite{by}, or too large: {shown}. Leave them "
            "out, or scale them."
        )
        raise InvalidInputError(message)


def _taken(array: Any, positions: np.ndarray) -> Array:
    """Return some samples of an array in memory or on disk."""
    if not is_array_api_obj(array) or isinstance(array, np.ndarray):
        is_run = bool((np.diff(positions) == 1).all())  # which is read without a copy
        return np.asarray(array[positions[0] : positions[-1] + 1] if is_run else array[positions])
    xp = namespace_of(array)
    return xp.take(array, xp.asarray(positions, device=device(array)), axis=0)


def first_batch(source: SampleSource) -> Array:
    """Return the first samples of a source: as many in memory as in batches of the same size."""
    if isinstance(source, MemorySource):
        return next(source.sweep()).given.data
    return source.head.data


def tensor_names(
    preprocess: Any, given: TensorInput, sizes: Sequence[int]
) -> tuple[tuple[str, ...] | None, list[np.ndarray | None]]:
    """Return the names and labels of the modes of tensors, as far as ``preprocess`` tells them."""
    tell = getattr(preprocess, "labels", None)
    if tell is None or len(given.shape) != 3:
        return None, [given.labels[0], *(None for _ in sizes)]
    channels = given.shape[1] if given.labels[1] is None else given.labels[1]
    modes, labels = tell(channels, given.shape[2])
    if [len(own) for own in labels] != list(sizes) or len(modes) != len(sizes):
        message = (
            f"preprocess.labels tells {len(modes)} modes of {[len(own) for own in labels]} labels, "
            f"but makes tensors of shape {tuple(sizes)}."
        )
        raise InvalidInputError(message)
    samples = "sample" if given.modes is None else given.modes[0]
    return (samples, *modes), [given.labels[0], *map(np.asarray, labels)]


def flat(tensors: Array) -> Array:
    """Return tensors as a matrix with a row for each sample."""
    xp = namespace_of(tensors)
    return xp.reshape(tensors, (int(tensors.shape[0]), math.prod(tensors.shape[1:])))


def read_augmentation(augment: Any, n_samples: int | None, shape: tuple[int, ...]) -> Any:
    """Return a function, an array with a twin for each sample, or None."""
    _refuse_class(augment, "augment")
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
    _refuse_class(preprocess, "preprocess")
    if preprocess is None:
        return None
    if callable(preprocess):
        function: Callable[[Array], Array] = preprocess
        return function
    message = (
        f"preprocess={preprocess!r:.80} is a {type(preprocess).__name__}. Give a function of a "
        "batch that returns a tensor with a sample for each, such as "
        "polyad.augmented.signals.STFT(), or None. One of your own is not kept in a model file: "
        "set it again, model.set_params(preprocess=function)."
    )
    raise InvalidTypeError(message)


def _refuse_class(step: Any, what: str) -> None:
    """Refuse a class in place of one of its objects: it would be called with the samples."""
    if isinstance(step, type):
        name = step.__name__
        message = f"{what} is the class {name}. Give an object of it: {what}={name}(...)."
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
    if not is_array_api_obj(made) or isinstance(made, np.ma.MaskedArray) or not _is_real(made):
        message = (
            f"{what} returned a {type(made).__name__} of {getattr(made, 'dtype', 'no type')}; an "
            "array of real numbers is needed."
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


def _is_real(made: Array) -> bool:
    kinds = ("real floating", "integral", "bool")
    try:
        return bool(namespace_of(made).isdtype(made.dtype, kinds))
    except TypeError:  # text and objects have no kind
        return False


def _is_no_batch(shape: tuple[int, ...], samples: Array) -> bool:
    return len(shape) < 2 or shape[0] != samples.shape[0] or 0 in shape
