"""KruskalResult: what users read from a model that is a sum of components."""

from __future__ import annotations

import dataclasses
import math
from numbers import Integral
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from sklearn.utils.validation import check_is_fitted

from polyad.core.arrays import Array, namespace_of, to_numpy
from polyad.data.alignment import align_to
from polyad.data.labels import LabelledTensor
from polyad.data.validation import as_tensor_input, read_features
from polyad.estimators import components, saving
from polyad.estimators.base import Learned, PolyadEstimator
from polyad.exceptions import InvalidInputError, ModelFileError
from polyad.tensor.kruskal import KruskalTensor
from polyad.tensor.products import kruskal_to_dense

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

# The largest dense array that a method makes unasked, in numbers (4 GiB of float64).
_LARGEST_DENSE = 2**29


@dataclasses.dataclass(frozen=True, kw_only=True)
class KruskalLearned(Learned):
    """Components: a factor for each mode, with a weight for each column."""

    factors_: list[Array] = saving.attribute(saving.per_mode(saving.array("n", "R")))
    weights_: Array = saving.attribute(saving.array("R", low=0.0))


class KruskalResult(PolyadEstimator):
    """Base of the estimators that learn components."""

    _score_name: ClassVar[str] = "explained variation"
    _max_iter_advice: ClassVar[str] = (
        " If weights_ keep growing, components cancel each other: fewer components stop that, and "
        "so does a small ridge in estimators that have one."
    )
    _learns = KruskalLearned
    #: What the mean loss of held-out entries is at most if the model is right, and what to try
    #: where it is larger or grows with the rank.
    _heldout_limit: ClassVar[float] = math.inf
    _heldout_advice: ClassVar[str] = (
        "Larger models follow noise, or a few large entries: try logarithms of the entries, a "
        "ridge, or GeneralizedCP(loss='huber')."
    )

    factors_: list[Array]
    weights_: Array

    @property
    def _values_are_means(self) -> bool:
        """Whether the values of ``kruskal_`` are means of the data, and not odds or logarithms."""
        return True

    @property
    def _fitted_shape(self) -> tuple[int, ...]:
        return tuple(int(factor.shape[0]) for factor in self.factors_)

    @property
    def _n_features_out(self) -> int:
        return int(self.weights_.shape[0])

    @property
    def _features_of_fit(self) -> Array:
        """The features of the samples of the fit."""
        return self.factors_[0] * self.weights_[None, :]

    @property
    def kruskal_(self) -> KruskalTensor:
        """The decomposition as one object, which unpacks as ``weights, factors``."""
        check_is_fitted(self)
        return KruskalTensor(self.weights_, self.factors_)

    @property
    def components_(self) -> Array:
        """The pattern of each component over the modes other than the samples.

        An array of shape ``(n_components, *shape[1:])``, such that ``transform(X) @ components_``
        approximates a matrix ``X``.
        """
        check_is_fitted(self, "factors_")
        tail = self.factors_[1:]
        n_components = int(self.weights_.shape[0])
        self._check_dense_size((n_components, *(int(f.shape[0]) for f in tail)), "components_")
        xp = namespace_of(self.weights_)
        selector = xp.eye(n_components, dtype=self.weights_.dtype)
        return kruskal_to_dense(xp.ones_like(self.weights_), [selector, *tail])

    def factor_table(self, mode: int | str) -> pd.DataFrame:
        """Return the factor of a mode as a table: one row per label, one column per component.

        Parameters
        ----------
        mode : int or str
            The number or the name of the mode.

        Returns
        -------
        DataFrame
            Columns are called ``component 0``, ``component 1``, ... by the numbers that ``top``
            takes. Entries below the rounding of the largest of their column are zero.
        """
        import pandas as pd

        number = self._mode_number(mode)
        entries = to_numpy(self.factors_[number])
        sizes = np.abs(entries)
        is_dust = sizes < np.finfo(entries.dtype).eps * sizes.max(axis=0)
        return pd.DataFrame(
            np.where(is_dust, 0.0, entries).astype(entries.dtype),
            index=self._index_of(number),
            columns=components.names(entries.shape[1]),
        )

    def _index_of(self, mode: int) -> pd.Index:
        """Return the labels of a mode, or its positions."""
        import pandas as pd

        labels = self.labels_[mode]
        index = pd.Index(np.arange(len(self.factors_[mode])) if labels is None else labels)
        index.name = None if self.modes_ is None else self.modes_[mode]
        return index

    def _comparable(self) -> KruskalTensor:
        """Return components whose entries of a mode can be compared with each other."""
        weights, factors = self.kruskal_
        return KruskalTensor(to_numpy(weights), [to_numpy(factor) for factor in factors])

    def top(
        self,
        component: int,
        mode: int | str,
        k: int = 10,
        *,
        by: Literal["weight", "lift"] = "weight",
    ) -> pd.Series:
        """Return the labels of a mode that lead a component, or that tell it from the others.

        Parameters
        ----------
        component : int
            The number of the component, from 0.
        mode : int or str
            The number or the name of the mode.
        k : int
            At most so many labels. Entries below a thousandth of the largest are left out.
        by : {'weight', 'lift'}, default='weight'
            ``'weight'``: the labels with the largest entries, by absolute value. ``'lift'``: the
            distinctive ones. The lift of a label is its share of the component over its share of
            the whole model: 3 means that it is three times as frequent in the component. Only the
            labels that hold 95 percent of the component are compared. Lifts that agree to a tenth
            come in the order of their weights.

        Returns
        -------
        Series
            The entries, or the lifts, by label. Those of a :class:`~polyad.QMF`, whose loadings
            have no scale, are loadings times the mean slope of the transform of their feature: in
            the unit of the data.
        """
        import pandas as pd

        number = self._mode_number(mode)
        tensor = self._comparable()
        n_components = len(tensor.weights)
        if not _is_whole(component) or not 0 <= component < n_components:
            message = f"component={component!r} does not exist; there are 0..{n_components - 1}."
            raise InvalidInputError(message)
        if not _is_whole(k) or k < 0:
            message = f"k={k!r} is not a number of labels; give a whole number of zero or more."
            raise InvalidInputError(message)
        name = components.names(n_components)[component]
        factor = tensor.factors[number]
        if not isinstance(by, str) or by not in ("weight", "lift"):
            message = f"by={by!r} has no meaning; give 'weight' or 'lift'."
            raise InvalidInputError(message)
        if by == "weight":
            column = factor[:, component]
            order = components.by_weight(column)[:k]
        else:
            shares = components.label_shares(factor)
            column = components.lifts(shares, components.mass_shares(*tensor))[:, component]
            order = components.by_lift(shares[:, component], column)[:k]
            name = f"lift in {name}"
        return pd.Series(column[order], index=self._index_of(number)[order], name=name)

    def summary(self, k: int = 3) -> pd.DataFrame:
        """Return what each component is made of: one row per component.

        A component that is one sample, or that every sample has, is seldom a finding: the table
        tells, and a :class:`~polyad.exceptions.DataWarning` names components of which one sample
        holds more than half. Another one tells if a second start of the fit ended as low, within a
        thousandth, with other components (a match below 0.9).

        Parameters
        ----------
        k : int, default=3
            At most so many leading and distinctive labels of each mode.

        Returns
        -------
        DataFrame
            Rounded, of absolute values; ``MODE`` stands for the name of each mode:

            * ``weight``: as in ``weights_``;
            * ``share``: the share of the component in the sum of all of them;
            * ``largest MODE``, of the samples: the share of one sample, the largest;
            * ``effective MODE``: how many samples, or labels, the component has, as equal ones
              would count: one over the sum of the squares of their shares;
            * ``leading MODE``: the labels of the largest entries, as :meth:`top` gives them, if
              above a tenth of the largest; ``(-)`` marks entries below zero;
            * ``distinctive MODE``: the labels of the largest lifts, as of ``top(by="lift")``, with
              their lifts, if above 1.1;
            * ``overlap``, ``overlaps with``: the largest cosine of its pattern over the modes other
              than the samples with that of another component, and which one that is, from 0.1 up;
            * ``note``: what to be careful with, in words.
        """
        check_is_fitted(self)
        if not _is_whole(k) or k < 1:
            message = f"k={k!r} is not a number of labels; give a whole number of one or more."
            raise InvalidInputError(message)
        table = self._summary(int(k))
        samples = self._mode_title(0)
        dominated = table.index[table[f"largest {samples}"] > components.MOST]
        if len(dominated):
            self._warn_about_data(
                f"one {samples} holds most of {', '.join(dominated)}: that tells of one sample, "
                "not of a pattern. Equal totals of all samples (sample_total of "
                "LabelledTensor.from_frame), logarithms or presence (entries), or fewer "
                "components, may help."
            )
        if self.history_.rival:
            self._warn_about_data(self.history_.rival)
        return table

    def _summary(self, k: int) -> pd.DataFrame:
        """Return the summary without a warning."""
        titles = [self._mode_title(mode) for mode in range(len(self.factors_))]
        weights = to_numpy(self.weights_)
        return components.summarize(self._comparable(), weights, titles, self.labels_, k)

    def _mode_title(self, mode: int) -> str:
        """Return the name of a mode, or its number."""
        return f"mode {mode}" if self.modes_ is None else self.modes_[mode]

    def align(self, new: Any, *, value: str | None = None) -> LabelledTensor:
        """Bring new labelled data to the labels of the model, as ``transform`` takes it.

        Labels that the model does not know are left out, and labels that the data lacks are zero
        in sparse data. One :class:`~polyad.exceptions.UnknownLabelWarning` says, for all modes,
        which labels were unknown and which part of the data is kept.

        Parameters
        ----------
        new : LabelledTensor, DataFrame, xarray.DataArray or AnnData
            Samples with the modes of the model, in any order. A table that has a column for each
            mode of the model is a long one, as of :meth:`polyad.LabelledTensor.from_frame`.
        value : str, optional
            The column of values of a long table; by default every row counts 1.

        Returns
        -------
        LabelledTensor
            The samples as given, also those of which nothing is kept. What was done to the entries
            before the fit, such as a logarithm, has to be done to them too.
        """
        check_is_fitted(self)
        modes, known = self._known_modes, self._known_labels
        # A table of samples x features has two modes: for more, it can only be a long one.
        is_long = type(new).__name__ == "DataFrame" and modes is not None and len(modes) > 2
        if modes is not None and (is_long or set(modes) <= set(getattr(new, "columns", ()))):
            new = LabelledTensor.from_frame(new, modes=modes, value=value)
            # The labels of a mode that the model has none for are positions.
            sizes = zip(known, self._fitted_shape, strict=True)
            known = [np.arange(size) if own is None else own for own, size in sizes]
        elif value is not None:
            message = (
                f"value={value!r} is for a long table with the columns {modes}; new is a "
                f"{type(new).__name__} without these. Leave value out."
            )
            raise InvalidInputError(message)
        given = as_tensor_input(new, allow_nan=True, is_new=True)
        if hasattr(new, "columns") and given.modes != modes:
            given = dataclasses.replace(given, modes=None)
        self._check_order(given)
        return align_to(self._in_the_order_of_the_model(given), known, modes)

    def _mode_number(self, mode: int | str) -> int:
        check_is_fitted(self)
        n_modes = len(self.factors_)
        if isinstance(mode, str):
            if self.modes_ is not None and mode in self.modes_:
                return self.modes_.index(mode)
            names = "none" if self.modes_ is None else ", ".join(map(repr, self.modes_))
            message = f"mode={mode!r} is not a name of a mode; the names are: {names}."
            raise InvalidInputError(message)
        if not _is_whole(mode) or not -n_modes <= mode < n_modes:
            message = f"mode={mode!r} does not exist; there are 0..{n_modes - 1}."
            raise InvalidInputError(message)
        return mode % n_modes

    def _check_dense_size(self, shape: Sequence[int], what: str) -> None:
        """Refuse to make an array that would not fit, and say what to use instead."""
        size = 1
        for n in shape:
            size *= int(n)
        if size > _LARGEST_DENSE:
            message = (
                f"{what} of shape {tuple(shape)} would take {size * 8 / 2**30:.3g} GiB. Use the "
                "factors (factors_, factor_table) or single entries (kruskal_.values_at(coords))."
            )
            raise InvalidInputError(message)

    def inverse_transform(self, X: Array) -> Array:
        """Return the samples that features stand for.

        Parameters
        ----------
        X : array of shape (n_samples, n_components)
            Features, as ``transform`` returns them.

        Returns
        -------
        array of shape (n_samples, n_1, ...)
            The sum of the components, each times its feature.
        """
        check_is_fitted(self)
        features = read_features(X, int(self.weights_.shape[0]))
        xp = namespace_of(self.weights_)
        rows = xp.asarray(features, dtype=self.weights_.dtype)
        shape = [int(rows.shape[0]), *(int(factor.shape[0]) for factor in self.factors_[1:])]
        self._check_dense_size(shape, "inverse_transform")
        return kruskal_to_dense(xp.ones_like(self.weights_), [rows, *self.factors_[1:]])

    # The loss of single entries, for the choice of the rank. Methods whose loss is not the squared
    # error override some of the next three.

    def _entry_values(self, coords: np.ndarray) -> np.ndarray:
        """Return what the model says of some entries of the data it was fitted to."""
        return self.kruskal_.values_at(coords).astype(np.float64)

    def _entry_loss(self, values: np.ndarray, expected: np.ndarray) -> np.ndarray:
        """Return the loss of each of some entries for what the fitted model says of them."""
        squares: np.ndarray = (values - expected) ** 2
        return squares

    def _entry_fill(self, expected: np.ndarray) -> np.ndarray:
        """Return the data whose loss is lowest at given entries of the model.

        An entry that is to be left out of a fit without being missing is filled with it, again
        after each fit. That is the mean of the data where the loss is a likelihood of the
        exponential family, whatever its link: then this is expectation maximization. It depends
        on the parameters alone, and is NaN where the estimator takes no such data.
        """
        return expected

    # Files.

    @classmethod
    def _sizes(cls, learned: Any) -> saving.Sizes:
        return saving.sizes_of_factors(learned["factors_"])

    def _check_restored(self) -> None:
        super()._check_restored()
        if any(factor.dtype != self.weights_.dtype for factor in self.factors_):
            message = "weights_ and factors_ are not of the same type"
            raise ModelFileError(message)


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
