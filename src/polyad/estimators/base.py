"""PolyadEstimator: what every estimator has in common, whatever it learns. No mathematics.

Validation of new data against the fitted one, labels, scikit-learn tags, saving, and the warning of
a fit that did not converge.
"""

from __future__ import annotations

import dataclasses
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from polyad.core.arrays import is_finite
from polyad.core.sklearn_compat import check_feature_names
from polyad.data.label_values import find_labels, shown
from polyad.data.labels import LabelledTensor
from polyad.data.readers import TensorInput
from polyad.data.validation import as_tensor_input
from polyad.estimators import saving
from polyad.exceptions import (
    DataWarning,
    InvalidInputError,
    InvalidTypeError,
    ModelFileError,
    warn_user,
)
from polyad.fitting.archive import write_archive
from polyad.fitting.driver import FitError, FitResult
from polyad.fitting.status import Status

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    import pandas as pd
    from numpy.typing import NDArray

    from polyad.fitting.history import History
    from polyad.tensor.kruskal import KruskalTensor


@dataclass(frozen=True)
class Curve:
    """A line to draw, beside the straight one between its ends."""

    title: str
    x: NDArray[np.float64]
    y: NDArray[np.float64]


@dataclass(frozen=True)
class Pattern:
    """Numbers over a line or a plane, to draw; of a plane, the name and the places of each axis."""

    title: str
    values: NDArray[np.float64]
    axes: tuple[tuple[str, NDArray[np.float64]], ...] = ()


@dataclass(frozen=True)
class ReportSection:
    """A part of the report: a heading, a paragraph, a picture with its caption, a table.

    The picture is of curves or of patterns; it and the table may be left out.
    """

    title: str
    text: str
    curves: Sequence[Curve] = ()
    caption: str = ""
    table: pd.DataFrame | None = None
    patterns: Sequence[Pattern] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Learned:
    """What a fit has learned: each field is an attribute of the model, with its rule in files.

    A room adds its own by a subclass, whose fields are made by :func:`saving.attribute`.
    """


class PolyadEstimator(BaseEstimator):
    """Base of the estimators. Mode 0 holds the samples."""

    #: Whether NaN in dense input means a missing entry.
    _accepts_nan: ClassVar[bool] = False
    #: Whether ``fit`` takes samples batch by batch.
    _reads_batches: ClassVar[bool] = False
    #: Whether samples that were left out tell a good model, by ``score``: a choice of the number
    #: of components then hides samples, not entries, and compares fits by ``_compared``.
    _scores_samples: ClassVar[bool] = False
    #: What to look at if iterations did not suffice, besides the advice of the status.
    _max_iter_advice: ClassVar[str] = ""
    #: What ``score`` returns, in words.
    _score_name: ClassVar[str]
    #: Parameters that a saved model leaves out, because they are code or places of one machine.
    _unsaved_parameters: ClassVar[tuple[str, ...]] = ("callbacks", "checkpoint")
    #: How files hold the parameters that are not numbers, names or arrays.
    _codecs: ClassVar[dict[str, saving.Codec]] = {}
    #: What a fit learns.
    _learns: ClassVar[type[Learned]] = Learned

    modes_: tuple[str, ...] | None
    labels_: list[np.ndarray | None]
    history_: History
    status_: Status
    n_iter_: int
    objective_: float
    n_features_in_: int
    n_samples_seen_: int

    # The rules of what every fit leaves.
    _RULES: ClassVar[dict[str, saving.Rule]] = {
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

    @property
    def _fitted_shape(self) -> tuple[int, ...]:
        """The shape of the data of the fit."""
        raise NotImplementedError

    # The names and labels of samples as they are given, if they are not those of the factors.

    @property
    def _known_modes(self) -> tuple[str, ...] | None:
        return self.modes_

    @property
    def _known_labels(self) -> list[np.ndarray | None]:
        return self.labels_

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
    def _all_or_nothing(self) -> Iterator[None]:
        """Let the model change; whatever goes wrong meanwhile leaves it as it was."""
        before = dict(vars(self))
        try:
            yield
        except BaseException:
            self.__dict__ = before
            raise

    def _keep(self, learned: Learned) -> None:
        """Make what was learned the attributes of the model."""
        self.__dict__.update(vars(learned))

    def _keep_result(
        self, learned: Learned, result: FitResult[Any], broken: FitError | None = None
    ) -> None:
        """Keep what was learned and how, unless it is not finite.

        ``broken`` is the error that ended the fit, if one did.
        """
        found = {**vars(learned), "objective_": result.objective}
        wrong = [name for name, value in found.items() if not is_finite(value)]
        if wrong:
            message = (
                f"The model that {type(self).__name__} has after iteration "
                f"{result.history.n_iter} is not finite in {', '.join(wrong)}, so it is not "
                "kept. Use float64 input, scale the data, or add a penalty."
            )
            raise broken or FitError(message, result)
        self._keep(learned)
        self.history_ = result.history
        self.status_ = result.status or Status.DIVERGED
        self.n_iter_ = result.history.n_iter
        self.objective_ = result.objective

    def _model(self) -> Any:
        """Return what was learned, from the attributes."""
        check_is_fitted(self)
        names = (field.name for field in dataclasses.fields(self._learns))
        return self._learns(**{name: getattr(self, name) for name in names})

    def _remember(self, X: Any, given: TensorInput) -> None:
        """Keep what new samples are compared with: names and labels."""
        self._check_feature_names_of(X, given, reset=True)
        self.n_features_in_ = given.shape[1]
        self.modes_ = given.modes
        self.labels_ = list(given.labels)
        self.n_samples_seen_ = self._fitted_shape[0]

    def _validate_new(self, X: Any, *, mask: Any = None, for_features: bool = False) -> TensorInput:
        """Validate new samples against the modes that the model was fitted to.

        Samples of nothing have features, alone as beside others, but nothing to score or to learn.
        """
        check_is_fitted(self)
        given = as_tensor_input(X, allow_nan=self._accepts_nan, mask=mask, is_new=for_features)
        if hasattr(X, "columns") and given.modes != self._known_modes:
            # Tables lose and change the names of their axes easily; their columns are compared.
            given = dataclasses.replace(given, modes=None)
        self._check_order(given)
        self._check_feature_names_of(X, given, reset=False)
        return self._in_the_shape_of_the_model(given)

    def _check_order(self, given: TensorInput) -> None:
        """Refuse samples with more or fewer modes than the model has."""
        expected = self._fitted_shape
        if len(given.shape) != len(expected):
            message = (
                f"X has {len(given.shape)} modes, of shape {given.shape}, but "
                f"{type(self).__name__} was fitted to {len(expected)} modes: new samples have the "
                f"shape (n_samples, {', '.join(map(str, expected[1:]))})."
            )
            raise InvalidInputError(message)

    def _in_the_shape_of_the_model(self, given: TensorInput) -> TensorInput:
        """Bring labelled samples to the modes of the model, and refuse other sizes."""
        expected = self._fitted_shape
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
        pairs = list(zip(self._known_labels, given.labels, strict=True))
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
        known = self._known_modes
        if known is None or given.modes is None or given.modes == known:
            return given
        if sorted(given.modes) != sorted(known):
            message = (
                f"X has the modes {given.modes}, but {type(self).__name__} was fitted to the modes "
                f"{known}: give the same names."
            )
            raise InvalidInputError(message)
        return given.transposed([given.modes.index(name) for name in known])

    def _unknown_labels(self, strangers: np.ndarray, mode: int, name: str) -> InvalidInputError:
        known = self._known_labels[mode]
        types = ""
        if known is not None and known.dtype.kind != strangers.dtype.kind:
            types = f", of type {strangers.dtype} where the model has {known.dtype}"
        way = "model.align(X)"
        if not hasattr(self, "align"):
            way = f"X.align({{{name!r}: model.labels_[{mode}]}}, unknown='drop')"
        table = " or with X = X[:, model.labels_[1]] on an AnnData" if name == "var" else ""
        return InvalidInputError(
            f"X has {len(strangers)} labels in mode {name!r} that {type(self).__name__} was not "
            f"fitted to: {shown(strangers)}{types}. Leave them out with X = {way}, which says what "
            f"is lost{table}, or fit again with samples that have them."
        )

    def _check_feature_names_of(self, X: Any, given: TensorInput, *, reset: bool) -> None:
        """Let scikit-learn record or compare the column names of a table."""
        if not reset and given.labels[1] is not None and not hasattr(X, "columns"):
            return  # not a table, but labelled: matched by label
        check_feature_names(self, X if len(given.shape) == 2 else None, reset=reset)

    def _report_ending(self) -> None:
        """Warn once, with the advice of the status, if the fit did not end as it should."""
        if self.status_.is_success:
            return
        message = f"{type(self).__name__}: {self.status_.advice}"
        if self.status_ is Status.MAX_ITER:
            message += self._max_iter_advice
        warn_user(message, ConvergenceWarning)

    def _warn_about_data(self, message: str) -> None:
        warn_user(f"{type(self).__name__}: {message}", DataWarning)

    # What a class has to show besides its components. Reports and tables ask for it here.

    def _report_sections(self) -> list[ReportSection]:
        return []

    def _learned_tables(self) -> dict[str, np.ndarray]:
        """Return what was learned of each feature besides the loadings: a row or a number each."""
        return {}

    def _compared(self) -> KruskalTensor:
        """Return what two fits that agree have in common; the first mode is that of the samples."""
        message = f"{type(self).__name__} does not say what its fits are compared by."
        raise InvalidTypeError(message)

    def _transform_curves(self, features: Any, max_features: int) -> list[Curve]:
        """Return the learned transforms of some features, or of those that are bent most."""
        message = f"{type(self).__name__} learns no transforms of features, as QMF does."
        raise InvalidTypeError(message)

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
            name: self._codec(name).pack(value, self)
            for name, value in self.get_params(deep=False).items()
            if name not in self._unsaved_parameters
        }
        learned = {
            name: saving.stored_value(getattr(self, name))
            for name in self._rules()
            if self.__sklearn_is_fitted__() and hasattr(self, name)
        }
        content = {"class": type(self).__name__, "parameters": parameters, "learned": learned}
        write_archive(path, "model", content)

    @classmethod
    def _codec(cls, name: str) -> saving.Codec:
        return cls._codecs.get(name, saving.PLAIN)

    @classmethod
    def _restore(cls, content: dict[str, Any]) -> Self:
        """Make an estimator from what :meth:`save` wrote, after checking all of it."""
        model = cls()
        parameters, learned = content["parameters"], content["learned"]
        if not set(model.get_params(deep=False)) >= parameters.keys():
            message = f"the parameters are not those of {cls.__name__}"
            raise ModelFileError(message)
        for name, stored in parameters.items():
            setattr(model, name, cls._codec(name).unpack(stored))
        model._validate_params()
        strangers = sorted(learned.keys() - cls._rules().keys())
        if strangers:
            message = f"{strangers[0]!r} is not an attribute that a {cls.__name__} learns"
            raise ModelFileError(message)
        if not learned:
            return model
        saving.check_learned(learned, cls._rules(), cls._sizes)
        for name, value in learned.items():
            # scikit-learn holds names as objects, which a file cannot.
            is_names = name == "feature_names_in_"
            setattr(model, name, np.asarray(value, dtype=object) if is_names else value)
        model._check_restored()
        return model

    @classmethod
    def _rules(cls) -> dict[str, saving.Rule]:
        """Return the rule of each attribute that a fitted estimator has."""
        own = {field.name: field.metadata["rule"] for field in dataclasses.fields(cls._learns)}
        return {**own, **cls._RULES}

    @classmethod
    def _sizes(cls, learned: Any) -> saving.Sizes:
        """Return the sizes that the rules of files speak of."""
        raise NotImplementedError

    def _check_restored(self) -> None:
        """Refuse a model file whose attributes do not fit together in a way that no rule says."""
        names, own = getattr(self, "feature_names_in_", None), self._known_labels[1]
        if names is not None and own is not None and not np.array_equal(names, own):
            message = "feature_names_in_ and labels_ are not the same"
            raise ModelFileError(message)

    # scikit-learn.

    @classmethod
    @cache
    def _get_param_names(cls) -> list[str]:
        # Every fit asks several times, and reading a signature takes longer than the checks.
        names: list[str] = super()._get_param_names()
        return names

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "labels_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.three_d_array = True
        tags.input_tags.allow_nan = self._accepts_nan
        return tags
