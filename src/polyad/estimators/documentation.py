"""What estimators have in common is described once, and inserted into their docstrings.

A line ``{tol, verbose}`` in the docstring of a class that is :func:`documented`, or of one of its
methods, becomes the descriptions of those names, with the defaults of the constructor or method.
Lines that follow it, indented as a description is, are added to the last of them.
"""

from __future__ import annotations

import inspect
import re
from functools import partial
from typing import Any, TypeVar

Kind = TypeVar("Kind", bound=type[Any])

_SHARED = """\
X : tensor-like of shape (n_samples, n_1, ...)
    Samples. Labelled data is matched by label.
y : None
    Ignored.
mask : array of bool
    For dense data, True where an entry was observed.
n_components : int
    The rank: the number of components.
n_init : int
    How often to fit; the fit with the lowest objective is kept.
init : {'svd', 'split', 'random', 'search'}, KruskalTensor, (weights, factors) or list of factors
    Where to start: singular vectors, made nonnegative; a component that is split again and again;
    random numbers; or given nonnegative factors. ``'search'`` spends ``n_init`` fits on singular
    vectors and then on moves from the best model so far, each of which splits a component and
    merges two others. With the other names the first fit is that one and further ones are random.
max_iter : int
    The largest number of iterations.
tol : float
    Stop when an iteration lowers the objective by less than this part of it, or by no more than
    rounding. Zero always does ``max_iter`` iterations.
sparsity : float or sequence of float
    The weight :math:`\\lambda` of the sum of a factor's entries, for all modes or for each.
divergence : str or Loss
    How entries and model are compared: ``'kl'`` is the generalised Kullback-Leibler divergence,
    for data that is not negative, ``'frobenius'`` half the squared difference. Others are the
    losses of :mod:`polyad.losses` whose model values are in the unit of the data, by name or as
    objects, and one of your own, ``CustomLoss(value, derivative)``.
fixed_modes : sequence of int
    Modes whose factors are kept as given in ``init``.
missing : {'zero', 'unobserved'}
    What an entry that a sparse tensor does not store means. In dense data, NaN is always a
    missing entry.
time_budget : float
    Stop after this many seconds, over all restarts and with the final rows of the samples,
    which stay as the iterations left them where there is no time. Compiling does not count.
random_state : int, RandomState instance or None
    Seeds the start.
n_jobs : int
    The number of threads; None or -1 uses all. Results do not depend on it. Several fits may run
    side by side, if there are no callbacks and no progress bar.
warm_start : bool
    Whether ``fit`` goes on from the model of the fit before.
checkpoint : path or Checkpoint
    Where the running fit is saved. If the file exists and belongs to the same data and
    parameters, ``fit`` goes on from it and gives the result of an uninterrupted fit.
callbacks : sequence of callable
    Called with an :class:`~polyad.fitting.Iteration` after each iteration; one that returns
    True stops the fit.
verbose : int
    1 shows a progress bar, 2 also logs each iteration to the logger ``polyad`` at level INFO.
weights_ : array of shape (n_components,)
    The size of each component, decreasing.
components_ : array of shape (n_components, n_1, n_2, ...)
    The pattern of each component over the modes other than the samples.
kruskal_ : KruskalTensor
    Weights and factors as one object.
labels_ : list of (array or None)
    The labels of the entries of each mode.
modes_ : tuple of str or None
    The names of the modes.
history_ : History
    The objective and the time at each iteration; ``history_.starts_to_frame()`` tells how each
    start ended.
n_iter_ : int
    The number of iterations.
status_ : Status
    How the fit ended.
n_samples_seen_ : int
    The number of samples of ``fit``.
n_features_in_ : int
    The number of entries of mode 1.
feature_names_in_ : array of str
    The labels of mode 1, if X was a table whose columns have names.
"""
_DESCRIPTIONS = {
    entry.partition(" : ")[0]: entry for entry in re.split(r"\n(?=\w)", _SHARED.strip())
}
_NONE = inspect.Parameter.empty
_PLACE = re.compile(r"^( *)\{(\w+(?:, \w+)*)\}$", flags=re.MULTILINE)


def documented(kind: Kind) -> Kind:
    """Insert the shared descriptions into the docstrings of a class, if it has any (``-OO``)."""
    for owner in (kind, *filter(inspect.isfunction, vars(kind).values())):
        if owner.__doc__ is not None and _PLACE.search(owner.__doc__):
            parameters = inspect.signature(owner).parameters.values()
            named = {given.name: given.default for given in parameters}
            defaults = {name: value for name, value in named.items() if value is not _NONE}
            fill = partial(_described, defaults=defaults)
            owner.__doc__ = _PLACE.sub(fill, owner.__doc__)
    return kind


def _described(place: re.Match[str], defaults: dict[str, Any]) -> str:
    indent, names = place.groups()
    lines = []
    for name in names.split(", "):
        head, *text = _DESCRIPTIONS[name].splitlines()
        has_default = name in defaults and not head.endswith(" : None")
        if head == "n_init : int" and defaults.get(name) == "auto":
            head += " or 'auto'"
        told = f"{head}, default={_shown(defaults[name])}" if has_default else head
        lines += [indent + line for line in (told, *text)]
    return "\n".join(lines)


def _shown(default: object) -> str:
    # 1e-05 is written 1e-5.
    return re.sub(r"e-0(\d)$", r"e-\1", repr(default))
