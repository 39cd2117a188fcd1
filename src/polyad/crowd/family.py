"""What the models of a crowd share: how labels are read, and how classes are told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from sklearn.utils import ClassifierTags
from sklearn.utils.validation import check_is_fitted

from polyad.core.sklearn_compat import check_feature_names
from polyad.crowd.answers import Answers, matched, read_answers, with_gold
from polyad.estimators.base import PolyadEstimator, ReportSection
from polyad.estimators.documentation import documented
from polyad.exceptions import InvalidInputError, ModelFileError

if TYPE_CHECKING:
    import pandas as pd

    from polyad.estimators import saving

# How many items a report shows.
_SHOWN_ITEMS = 20


@documented
class CrowdEstimator(PolyadEstimator):
    """Base of the estimators that tell the classes of items from the labels of workers."""

    _accepts_nan: ClassVar[bool] = True

    classes_: np.ndarray
    probabilities_: np.ndarray
    class_shares_: np.ndarray
    columns: Any

    @property
    def _fitted_shape(self) -> tuple[int, ...]:
        return (len(self.probabilities_), self.n_features_in_)

    def _answers(self, X: Any) -> Answers:
        """Read labels, after a look at what their columns are called."""
        columns = self.columns
        if columns is not None:
            names = () if isinstance(columns, (str, dict)) else tuple(columns)
            is_text = all(isinstance(name, str) for name in names)
            if not is_text or len(names) != 3 or len(set(names)) != 3:
                message = (
                    f"columns={columns!r} does not name three columns. Give the names of the "
                    "columns of items, workers and labels, in this order, or None."
                )
                raise InvalidInputError(message)
            columns = names
        return read_answers(X, columns)

    def _remember(self, X: Any, given: Any) -> None:
        """Keep what new labels are compared with."""
        is_wide = hasattr(X, "columns") and not given.is_long
        check_feature_names(self, X if is_wide else None, reset=True)
        self.n_samples_seen_, self.n_features_in_ = given.shape
        self.modes_ = given.modes
        self.labels_ = list(given.names)

    def _read_new(self, X: Any) -> Answers:
        """Read new labels, by known workers or others."""
        check_is_fitted(self)
        answers = self._answers(X)
        is_wide = hasattr(X, "columns") and not answers.is_long
        if is_wide and (self.labels_[1] is None or answers.names[1] is None):
            # By position; workers with names are matched, whatever their order and number.
            check_feature_names(self, X, reset=False)
        return matched(answers, self)

    def _class_probabilities(self, answers: Answers) -> np.ndarray:
        """Return the probabilities of the classes of new items."""
        raise NotImplementedError

    def _best(self, probabilities: np.ndarray) -> np.ndarray:
        """Return the number of the likeliest class; of equal ones that of the largest share."""
        order = np.argsort(-self.class_shares_, kind="stable")
        found: np.ndarray = order[probabilities[:, order].argmax(axis=1)]
        return found

    def predict(self, X: Any) -> Any:
        """Return the likeliest class of each item.

        Parameters
        ----------
        X : long table, or matrix or table of shape (n_items, n_workers)
            Labels, as in ``fit``; the items may be new.

        Returns
        -------
        array of shape (n_items,), or Series
            Classes in the order of the rows; a Series with the items as index if they have names,
            as in a long table. Of classes that are equally likely, the one with the largest share.
        """
        answers = self._read_new(X)
        found = self.classes_[self._best(self._class_probabilities(answers))]
        if answers.names[0] is None:
            return found
        import pandas as pd

        return pd.Series(found, index=_item_index(answers))

    def predict_proba(self, X: Any) -> Any:
        """Return the probability of each class for each item.

        Parameters
        ----------
        X : long table, or matrix or table of shape (n_items, n_workers)
            Labels, as in ``fit``; the items may be new.

        Returns
        -------
        array of shape (n_items, n_classes), or DataFrame
            One column for each of ``classes_``; a DataFrame with the items as index if they have
            names, as in a long table.
        """
        answers = self._read_new(X)
        found = self._class_probabilities(answers)
        if answers.names[0] is None:
            return found
        import pandas as pd

        return pd.DataFrame(found, index=_item_index(answers), columns=self.classes_)

    def fit_predict(self, X: Any, y: Any = None) -> Any:
        """Fit the labels and return the likeliest class of each item.

        Parameters
        ----------
        X : long table, or matrix or table of shape (n_items, n_workers)
            Labels, as in ``fit``.
        y : mapping, Series or array-like, default=None
            Items whose class is known, as in ``fit``: they are told as they are known.

        Returns
        -------
        array of shape (n_items,), or Series
            As ``predict`` returns them.
        """
        self.fit(X, y)
        table = self.item_table()["class"]
        return table.to_numpy() if self.labels_[0] is None else table

    def score(self, X: Any, y: Any = None) -> float:
        """Return the share of items whose class is told right; without ``y``, how well labels fit.

        Parameters
        ----------
        X : long table, or matrix or table of shape (n_items, n_workers)
            Labels, as in ``fit``; the items may be new.
        y : mapping, Series or array-like, default=None
            The true classes of items, as in ``fit``: those of some are enough. None, of which
            nothing is known, gives the mean log-likelihood of a label with the tables and shares
            that were learned (:class:`DawidSkene`), or the share of labels that are the class
            which their item is given (:class:`MajorityVote`).
        """
        answers = self._read_new(X)
        if y is None:
            return self._score_labels(answers)
        joined, known = with_gold(answers, y)
        told = np.flatnonzero(known >= 0)
        found = self.classes_[self._best(self._class_probabilities(answers)[told])]
        return float(np.mean(joined.classes[known[told]] == found))

    def _score_labels(self, answers: Answers) -> float:
        """Return how well labels fit the model, where no class is known."""
        raise NotImplementedError

    def item_table(self) -> pd.DataFrame:
        """Return what was found for each item of the fit.

        Returns
        -------
        DataFrame
            One row per item: ``class``, its probability ``confidence``, and the next likeliest
            class, ``second``, with its ``probability`` (None and zero if there is one class only).
        """
        import pandas as pd

        check_is_fitted(self)
        own = self.probabilities_
        best, rows = self._best(own), np.arange(len(own))
        rest = own.copy()
        rest[rows, best] = -1.0
        second, is_only = rest.argmax(axis=1), own.shape[1] == 1
        columns = {
            "class": self.classes_[best],
            "confidence": own[rows, best],
            "second": None if is_only else self.classes_[second],
            "probability": 0.0 if is_only else own[rows, second],
        }
        return pd.DataFrame(columns, index=self._index(0))

    def _index(self, mode: int) -> pd.Index:
        """Return the names or the numbers of items (0) or workers (1)."""
        import pandas as pd

        names, size = self.labels_[mode], self._fitted_shape[mode]
        title = None if self.modes_ is None else self.modes_[mode]
        return pd.Index(np.arange(size) if names is None else names, name=title)

    def _report_sections(self) -> list[ReportSection]:
        table = self.item_table().sort_values("confidence", kind="stable").head(_SHOWN_ITEMS)
        text = (
            f"The {len(table)} items whose class is least certain, of {len(self.probabilities_)}. "
            "They gain most from another label."
        )
        return [ReportSection("Items in doubt", text, table=table)]

    @classmethod
    def _sizes(cls, learned: Any) -> saving.Sizes:
        own, width = learned["probabilities_"], learned["n_features_in_"]
        if not isinstance(own, np.ndarray) or own.ndim != 2 or not isinstance(width, int):
            message = "probabilities_ is not a matrix"
            raise ModelFileError(message)
        return {"N": 2, "n0": own.shape[0], "n1": width, "K": own.shape[1]}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = False
        tags.input_tags.categorical = True
        tags.input_tags.string = True
        tags.classifier_tags = ClassifierTags()  # of what has predict_proba
        return tags


def _item_index(answers: Answers) -> pd.Index:
    """Return the names of items that have some."""
    import pandas as pd

    names: Any = answers.names[0]
    index: pd.Index = pd.Index(names, name=answers.modes[0])
    return index
