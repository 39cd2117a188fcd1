"""TensorEstimator: what every estimator of polyad has in common. No mathematics.

Validation of new data against the fitted one, labels, scikit-learn tags, tables of factors,
saving, and the warning of a fit that did not converge.
"""

from __future__ import annotations

from contextlib import contextmanager
from numbers import Integral
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from polyad.core.arrays import Array, is_finite, to_numpy
from polyad.core.sklearn_compat import check_feature_names, output_config
from polyad.data.label_values import find_labels, shown
from polyad.data.labels import LabelledTensor
from polyad.data.validation import TensorInput, as_tensor_input
from polyad.estimators import saving
from polyad.exceptions import (
    DataWarning,
    InvalidInputError,
    InvalidTypeError,
    ModelFileError,
    Status,
    warn_user,
)
from polyad.fitting.archive import write_archive
from polyad.fitting.driver import FitError, FitResult
from polyad.tensor.kruskal import KruskalTensor
from polyad.tensor.products import kruskal_to_dense

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    import pandas as pd

    from polyad.fitting.history import History

# The largest dense array that a method makes unasked, in numbers (4 GiB of float64).
_LARGEST_DENSE = 2**29


class TensorEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Base of the estimators. Mode 0 holds the samples."""

    #: Whether NaN in dense input means a missing entry.
    _accepts_nan: ClassVar[bool] = False
    #: What ``score`` returns, in words.
    _score_name: ClassVar[str] = "explained variation"
    #: Parameters that a saved model leaves out, because they are code or places of one machine.
    _unsaved_parameters: ClassVar[tuple[str, ...]] = ("callbacks", "checkpoint")

    #: What a fit learns, with the rules that a model file must follow; see ``saving``.
    _learned: ClassVar[dict[str, saving.Rule]] = {
        "factors_": saving.per_mode(saving.array("n", "R")),
        "weights_": saving.array("R", low=0.0),
        "modes_": saving.mode_names,
        "labels_": saving.mode_labels,
        "history_": saving.history,
        "n_iter_": saving.size_of("n_iter"),
        "status_": saving.status,
        "objective_": saving.number(finite=False),
        "n_features_in_": saving.size_of("n1"),
        "n_samples_seen_": saving.size_of("n0"),
        "feature_names_in_": saving.optional(saving.labels("n1", kinds="U")),
    }

    factors_: list[Array]
    weights_: Array
    modes_: tuple[str, ...] | None
    labels_: list[np.ndarray | None]
    history_: History
    status_: Status
    n_iter_: int
    objective_: float

    @property
    def _values_are_means(self) -> bool:
        """Whether the values of ``kruskal_`` are means of the data, and not odds or logarithms."""
        return True

    def _validate_params(self) -> None:
        """Check the parameters as scikit-learn does, which takes True for 1, and refuse that."""
        for name, rules in self._parameter_constraints.items():
            value = getattr(self, name)
            if isinstance(value, bool) and not any(
                rule is object or rule in ("boolean", "verbose") for rule in rules
            ):
                message = (
                    f"{name}={value} is neither a number nor anything else that {name} can be."
                )
                raise InvalidTypeError(message)
        super()._validate_params()

    def _validate_fit(self, X: Any, *, mask: Any = None) -> TensorInput:
        """Validate training data; what was fitted before stays until the new fit is done."""
        return as_tensor_input(X, allow_nan=self._accepts_nan, mask=mask)

    @contextmanager
    def _storing(self, result: FitResult[Any], broken: FitError | None = None) -> Iterator[None]:
        """Let a result be kept; what was fitted before stays if it is not finite.

        ``broken`` is the error that ended the fit, if one did, which is then raised.
        """
        before = dict(vars(self))
        try:
            yield
            wrong = [
                name
                for name in self._rules()
                if name != "labels_" and not is_finite(vars(self).get(name))
            ]
            if wrong:
                message = (
                    f"The model that {type(self).__name__} has after iteration "
                    f"{result.history.n_iter} is not finite in {', '.join(wrong)}, so it is not "
                    "kept. Use float64 input, scale the data, or add a penalty."
                )
                raise broken or FitError(message, result)
        except BaseException:
            self.__dict__ = before
            raise

    def _remember(self, X: Any, given: TensorInput) -> None:
        """Keep what new samples are compared with: names and labels."""
        self._check_feature_names_of(X, given, reset=True)
        self.n_features_in_ = given.shape[1]
        self.modes_ = given.modes
        self.labels_ = list(given.labels)

    def _validate_new(self, X: Any, *, mask: Any = None, for_features: bool = False) -> TensorInput:
        """Validate new samples against the modes that the model was fitted to.

        Samples of nothing have features, alone as beside others, but nothing to score or to learn.
        """
        check_is_fitted(self)
        given = as_tensor_input(X, allow_nan=self._accepts_nan, mask=mask, is_new=for_features)
        self._check_order(given)
        self._check_feature_names_of(X, given, reset=False)
        return self._in_the_shape_of_the_model(given)

    def _check_order(self, given: TensorInput) -> None:
        """Refuse samples with more or fewer modes than the model has."""
        expected = tuple(int(factor.shape[0]) for factor in self.factors_)
        if len(given.shape) != len(expected):
            message = (
                f"X has {len(given.shape)} modes, of shape {given.shape}, but "
                f"{type(self).__name__} was fitted to {len(expected)} modes: new samples have the "
                f"shape (n_samples, {', '.join(map(str, expected[1:]))})."
            )
            raise InvalidInputError(message)

    def _in_the_shape_of_the_model(self, given: TensorInput) -> TensorInput:
        """Bring labelled samples to the modes of the model, and refuse other sizes."""
        expected = tuple(int(factor.shape[0]) for factor in self.factors_)
        given = self._aligned(given)
        for mode in range(1, len(expected)):
            if given.shape[mode] != expected[mode]:
                raise self._wrong_size(given, mode, expected)
        return given

    def _wrong_size(
        self, given: TensorInput, mode: int, expected: tuple[int, ...]
    ) -> InvalidInputError:
        if len(expected) == 2:  # the wording of scikit-learn, which its users search for
            return InvalidInputError(
                f"X has {given.shape[1]} features, but {type(self).__name__} is expecting "
                f"{expected[1]} features as input."
            )
        return InvalidInputError(
            f"X has the size {given.shape[mode]} in {given.mode_title(mode)}, but "
            f"{type(self).__name__} was fitted to the size {expected[mode]}. New samples have the "
            f"shape (n_samples, {', '.join(map(str, expected[1:]))}); labelled data is brought to "
            "it by label (polyad.LabelledTensor)."
        )

    def _aligned(self, given: TensorInput) -> TensorInput:
        """Bring the modes of labelled samples into the order and size of the model's."""
        given = self._in_the_order_of_the_model(given)
        names = given.modes or tuple(f"mode {mode}" for mode in range(len(given.shape)))
        pairs = list(zip(self.labels_, given.labels, strict=True))
        for mode, (mine, theirs) in enumerate(pairs):
            if mode == 0 or mine is None or theirs is None or np.array_equal(mine, theirs):
                continue
            strangers = theirs[find_labels(mine, theirs) < 0]
            if len(strangers):
                raise self._unknown_labels(strangers, mode, names[mode])
            # The samples may repeat a label, which a LabelledTensor does not allow.
            tensor = LabelledTensor(given.data, modes=names, labels=[None, *given.labels[1:]])
            tensor = tensor.align({names[mode]: mine})
            given = TensorInput(tensor.data, given.modes, (given.labels[0], *tensor.labels[1:]))
        return given

    def _in_the_order_of_the_model(self, given: TensorInput) -> TensorInput:
        """Bring named modes into the order of the fit."""
        if self.modes_ is None or given.modes is None or given.modes == self.modes_:
            return given
        if sorted(given.modes) != sorted(self.modes_):
            message = (
                f"X has the modes {given.modes}, but {type(self).__name__} was fitted to the modes "
                f"{self.modes_}: give the same names."
            )
            raise InvalidInputError(message)
        return given.transposed([given.modes.index(name) for name in self.modes_])

    def _unknown_labels(self, strangers: np.ndarray, mode: int, name: str) -> InvalidInputError:
        known = self.labels_[mode]
        types = ""
        if known is not None and known.dtype.kind != strangers.dtype.kind:
            types = f", of type {strangers.dtype} where the model has {known.dtype}"
        table = " or X = X[:, model.labels_[1]] on an AnnData" if name == "var" else ""
        return InvalidInputError(
            f"X has {len(strangers)} labels in mode {name!r} that {type(self).__name__} was not "
            f"fitted to: {shown(strangers)}{types}. Leave them out with X = X.align({{{name!r}: "
            f"model.labels_[{mode}]}}, unknown='drop') on a LabelledTensor{table}, or fit again "
            "with samples that have them."
        )

    def _check_feature_names_of(self, X: Any, given: TensorInput, *, reset: bool) -> None:
        """Let scikit-learn record or compare the column names of a table."""
        if not reset and given.labels[1] is not None and not hasattr(X, "columns"):
            return  # not a table, but labelled: matched by label
        check_feature_names(self, X if len(given.shape) == 2 else None, reset=reset)

    # The loss of single entries, for the choice of the rank. Methods whose loss is not the squared
    # error override the next two.

    def _entry_values(self, coords: np.ndarray) -> np.ndarray:
        """Return what the model says of some entries of the data it was fitted to.

        Parameters
        ----------
        coords : array of int of shape (n_modes, n)
            Where they are.
        """
        return self.kruskal_.values_at(coords).astype(np.float64)

    def _entry_loss(self, values: np.ndarray, expected: np.ndarray) -> np.ndarray:
        """Return the loss of each of some entries for what the fitted model says of them.

        Parameters
        ----------
        values : array of float64 of shape (n,)
            Entries of the data.
        expected : array of float64 of shape (n,)
            What ``_entry_values`` says of them.
        """
        squares: np.ndarray = (values - expected) ** 2
        return squares

    def _entry_fill(self, expected: np.ndarray) -> np.ndarray:
        """Return the data whose loss is lowest at given entries of the model.

        An entry that is to be left out of a fit without being missing is filled with it, again
        after each fit. That is the mean of the data where the loss is a likelihood of the
        exponential family, whatever its link: then this is expectation maximization. It depends
        on the parameters alone, and is NaN where the estimator takes no such data.

        Parameters
        ----------
        expected : array of float64 of shape (n,)
            Of ``_entry_values``.
        """
        return expected

    def _report_ending(self) -> None:
        """Warn once, with the advice of the status, if the fit did not end as it should."""
        if not self.status_.is_success:
            warn_user(f"{type(self).__name__}: {self.status_.advice}", ConvergenceWarning)

    def _warn_about_data(self, message: str) -> None:
        warn_user(f"{type(self).__name__}: {message}", DataWarning)

    def _named(self, features: Array, labels: np.ndarray | None) -> Any:
        """Give features the labels of their samples, if ``set_output`` asks for a pandas table.

        scikit-learn, which turns features into tables, does not know labels of tensors.
        """
        if labels is None or output_config("transform", self)["dense"] != "pandas":
            return features
        import pandas as pd

        return pd.DataFrame(to_numpy(features), index=labels, columns=self.get_feature_names_out())

    # What users read from a fitted estimator.

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
        from array_api_compat import array_namespace

        xp = array_namespace(self.weights_)
        selector = xp.eye(n_components, dtype=self.weights_.dtype)
        return kruskal_to_dense(xp.ones_like(self.weights_), [selector, *tail])

    @property
    def _n_features_out(self) -> int:
        return int(self.weights_.shape[0])

    def factor_table(self, mode: int | str) -> pd.DataFrame:
        """Return the factor of a mode as a table: one row per label, one column per component.

        Parameters
        ----------
        mode : int or str
            The number or the name of the mode.
        """
        import pandas as pd

        number = self._mode_number(mode)
        labels = self.labels_[number]
        factor = to_numpy(self.factors_[number])
        index = pd.Index(np.arange(factor.shape[0]) if labels is None else labels)
        index.name = None if self.modes_ is None else self.modes_[number]
        return pd.DataFrame(factor, index=index, columns=self.get_feature_names_out())

    def top(self, component: int, mode: int | str, k: int = 10) -> pd.Series:
        """Return the ``k`` labels of a mode with the largest entries in a component.

        Parameters
        ----------
        component : int
            The number of the component.
        mode : int or str
            The number or the name of the mode.
        k : int
            How many labels; the largest by absolute value come first.
        """
        table = self.factor_table(mode)
        n_components = table.shape[1]
        if not _is_whole(component) or not 0 <= component < n_components:
            message = f"component={component!r} does not exist; there are 0..{n_components - 1}."
            raise InvalidInputError(message)
        if not _is_whole(k) or k < 0:
            message = f"k={k!r} is not a number of labels; give a whole number of zero or more."
            raise InvalidInputError(message)
        column = table.iloc[:, component]
        order = np.argsort(-np.abs(column.to_numpy()), kind="stable")[:k]
        return column.iloc[order]

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

    # Saving.

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to one file of arrays and JSON, without pickle.

        Read it with :func:`polyad.load`. Arrays of other namespaces are stored as NumPy arrays.
        Callbacks, the checkpoint path and code of your own are not stored.

        Parameters
        ----------
        path : path-like
            The file to create or replace; it is replaced only once the new one is complete.
        """
        if type(self).__module__.partition(".")[0] != "polyad":
            message = (
                f"{type(self).__name__} is not an estimator of polyad but of "
                f"{type(self).__module__}, and polyad.load makes no others: the file could not be "
                "read. Keep it with joblib.dump(model, path)."
            )
            raise InvalidTypeError(message)
        self._validate_params()
        parameters = {
            name: self._saved_parameter(name, value)
            for name, value in self.get_params(deep=False).items()
            if name not in self._unsaved_parameters
        }
        learned = {
            name: saving.portable(getattr(self, name))
            for name in self._rules()
            if self.__sklearn_is_fitted__() and hasattr(self, name)
        }
        content = {"class": type(self).__name__, "parameters": parameters, "learned": learned}
        write_archive(path, "model", content)

    def _saved_parameter(self, name: str, value: Any) -> Any:
        """Return a parameter as a model file holds it."""
        return saving.portable(value)

    @classmethod
    def _restored_parameter(cls, name: str, stored: Any) -> Any:
        """Undo :meth:`_saved_parameter`."""
        return stored

    @classmethod
    def _restore(cls, content: dict[str, Any]) -> Self:
        """Make an estimator from what :meth:`save` wrote, after checking all of it."""
        model = cls()
        parameters, learned = content["parameters"], content["learned"]
        if not set(model.get_params(deep=False)) >= parameters.keys():
            message = f"the parameters are not those of {cls.__name__}"
            raise ModelFileError(message)
        for name, stored in parameters.items():
            setattr(model, name, cls._restored_parameter(name, stored))
        model._validate_params()
        strangers = sorted(learned.keys() - cls._rules().keys())
        if strangers:
            message = f"{strangers[0]!r} is not an attribute that a {cls.__name__} learns"
            raise ModelFileError(message)
        if not learned:
            return model
        saving.check_learned(learned, cls._rules())
        for name, value in learned.items():
            # scikit-learn holds names as objects, which a file cannot.
            is_names = name == "feature_names_in_"
            setattr(model, name, np.asarray(value, dtype=object) if is_names else value)
        model._check_restored()
        return model

    @classmethod
    def _rules(cls) -> dict[str, saving.Rule]:
        """Return the rule of each attribute that a fitted estimator has."""
        return {
            name: rule
            for owner in reversed(cls.__mro__)
            for name, rule in vars(owner).get("_learned", {}).items()
        }

    def _check_restored(self) -> None:
        """Refuse a model file whose attributes do not fit together in a way that no rule says."""
        if any(factor.dtype != self.weights_.dtype for factor in self.factors_):
            message = "weights_ and factors_ are not of the same type"
            raise ModelFileError(message)
        names, own = getattr(self, "feature_names_in_", None), self.labels_[1]
        if names is not None and own is not None and not np.array_equal(names, own):
            message = "feature_names_in_ and labels_ are not the same"
            raise ModelFileError(message)

    # scikit-learn.

    def __sklearn_is_fitted__(self) -> bool:
        # Names and labels are there from the start of a fit, which may fail.
        return hasattr(self, "factors_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.three_d_array = True
        tags.input_tags.allow_nan = self._accepts_nan
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
