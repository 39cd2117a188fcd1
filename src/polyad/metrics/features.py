"""What features are good for: nested cross-validation of a classifier on them.

The score of a fold comes from samples that had no part in anything before it: the scaling, the
strength of the penalty and the coefficients are all learned from the other folds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from joblib import Parallel, delayed
from scipy.sparse import issparse
from sklearn.base import clone, is_classifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import check_scoring
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    KFold,
    StratifiedGroupKFold,
    StratifiedKFold,
    check_cv,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state

from polyad.core.arrays import to_numpy
from polyad.core.threads import resolve_n_jobs, thread_limit
from polyad.data.validation import as_tensor_input, check_seed
from polyad.exceptions import InvalidInputError, InvalidTypeError

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

# The strengths that the inner folds choose from: C of scikit-learn, small is a strong penalty.
STRENGTHS = tuple(float(c) for c in np.logspace(-3, 3, 7))
_INNER_FOLDS = 5


@dataclass(frozen=True)
class FeatureEvaluation:
    """The scores of a classifier on features, one per fold.

    Attributes
    ----------
    scores : array of shape (n_folds,)
        The score of each test fold.
    strengths : tuple of (float or None)
        The ``C`` that the inner folds chose in each fold; None for an estimator of your own
        that does not choose one.
    sizes : tuple of int
        The number of samples in each test fold.
    scoring : str
        What the scores are.
    """

    scores: NDArray[np.float64]
    strengths: tuple[float | None, ...]
    sizes: tuple[int, ...]
    scoring: str

    @property
    def mean(self) -> float:
        """The mean score over the folds."""
        return float(np.mean(self.scores))

    @property
    def std(self) -> float:
        """The standard deviation of the score over the folds (with ``n - 1``)."""
        return float(np.std(self.scores, ddof=1)) if len(self.scores) > 1 else math.nan

    def to_frame(self) -> pd.DataFrame:
        """Return one row per fold: its score, the chosen strength and the number of samples."""
        import pandas as pd

        columns = {
            self.scoring: self.scores,
            "strength": np.array(self.strengths, dtype=float),
            "n_samples": self.sizes,
        }
        return pd.DataFrame(columns).rename_axis("fold")

    def __repr__(self) -> str:
        return (
            f"FeatureEvaluation({self.scoring} {self.mean:.3f} ± {self.std:.3f} over "
            f"{len(self.scores)} folds)"
        )


def evaluate_features(  # noqa: PLR0913  (options by keyword, as scikit-learn's cross_validate)
    features: Any,
    y: Any,
    *,
    estimator: Any = None,
    cv: Any = 5,
    scoring: Any = "accuracy",
    groups: Any = None,
    random_state: int | np.random.RandomState | None = None,
    n_jobs: int | None = None,
) -> FeatureEvaluation:
    """Score a classifier on features by nested cross-validation.

    Parameters
    ----------
    features : array-like of shape (n_samples, n_features)
        NumPy, torch, pandas, polars, sparse or labelled; for example what ``transform`` returns.
    y : array-like of shape (n_samples,)
        The class of each sample: two classes or more.
    estimator : {'ridge', 'lasso'} or scikit-learn estimator, default=None
        Logistic regression on standardized features with a ridge (None means this) or lasso
        penalty, whose strength ``C`` is chosen by folds inside the training folds, by the same
        ``scoring``. An estimator of your own is used as it is: put scaling and the choice of
        parameters into it (``Pipeline``, ``GridSearchCV``).
    cv : int, splitter or iterable of (train, test), default=5
        The outer folds. A number makes shuffled folds that keep the shares of the classes.
    scoring : str or callable, default='accuracy'
        Any scorer of scikit-learn, for example ``'average_precision'`` (the area under the
        precision-recall curve; its mean over the classes if there are more than two).
    groups : array-like of shape (n_samples,), default=None
        Samples of one group, as of one patient, are never on both sides of a split, inner splits
        included.
    random_state : int, RandomState instance or None, default=None
        Seeds the folds and the classifier.
    n_jobs : int, default=None
        The number of folds that are computed at once; None means one. The scores do not depend
        on it.

    Returns
    -------
    FeatureEvaluation
        With ``scores``, ``mean``, ``std``, ``strengths`` and ``to_frame()``.

    Notes
    -----
    The features themselves are not fitted here. If the decomposition that made them has seen the
    test samples, without their classes, the scores say how well these samples are described, not
    how well later ones will be: put the decomposition and a classifier into a ``Pipeline`` for
    that.

    Examples
    --------
    >>> import numpy as np
    >>> from polyad.metrics import evaluate_features
    >>> generator = np.random.default_rng(0)
    >>> y = np.repeat(["cat", "dog"], 30)
    >>> features = generator.standard_normal((60, 3)) + 3.0 * (y == "dog")[:, None]
    >>> evaluate_features(features, y, cv=3, random_state=0)
    FeatureEvaluation(accuracy 1.000 ± 0.000 over 3 folds)
    """
    _check_estimator(estimator)
    data = _read_features(features)
    target = _read_column(y, "y", data.shape[0], features)
    belonging = None if groups is None else _read_column(groups, "groups", data.shape[0], features)
    check_seed(random_state)
    resolve_n_jobs(n_jobs)  # refuses what is no number of jobs
    seed = int(check_random_state(random_state).randint(2**31 - 1))
    splits = _outer_splits(data, target, belonging, cv=cv, estimator=estimator, seed=seed)
    jobs = []
    for train, test in splits:
        inside = None if belonging is None else belonging[train]
        model = _build(estimator, target[train], inside, scoring=scoring, seed=seed)
        if isinstance(model, GridSearchCV) and issparse(data):
            # Sparse features keep their zeros: they are scaled, not centred.
            model.set_params(estimator__standardscaler__with_mean=False)
        jobs.append(delayed(_score_fold)(model, data, target, (train, test, inside), scoring))
    workers = None if n_jobs is None else min(n_jobs, len(jobs))
    done: list[tuple[float, float | None]] = Parallel(n_jobs=workers)(jobs)
    return FeatureEvaluation(
        scores=np.array([score for score, _ in done]),
        strengths=tuple(strength for _, strength in done),
        sizes=tuple(len(test) for _, test in splits),
        scoring=scoring if isinstance(scoring, str) else getattr(scoring, "__name__", "score"),
    )


def _check_estimator(estimator: Any) -> None:
    if estimator is None or (isinstance(estimator, str) and estimator in ("ridge", "lasso")):
        return
    if isinstance(estimator, str):
        message = f"estimator={estimator!r} is not known; give 'ridge', 'lasso' or an estimator."
        raise InvalidInputError(message)
    is_class = isinstance(estimator, type)
    if is_class or not (hasattr(estimator, "fit") and hasattr(estimator, "get_params")):
        given = f"the class {estimator.__name__}" if is_class else f"a {type(estimator).__name__}"
        message = (
            f"estimator is {given}; give 'ridge', 'lasso' or an estimator of scikit-learn (an "
            "object, not its class)."
        )
        raise InvalidTypeError(message)


def _read_features(features: Any) -> Any:
    """Return the features as a NumPy array or a sparse matrix of numbers."""
    given = as_tensor_input(features)
    if len(given.shape) != 2:
        message = (
            f"features have the shape {given.shape}; (n_samples, n_features) is needed, as "
            "transform returns them."
        )
        raise InvalidInputError(message)
    return given.data.tocsr() if given.is_sparse else to_numpy(given.data)


def _read_column(values: Any, name: str, n_samples: int, features: Any) -> NDArray[Any]:
    """Return one value per sample; refuse a table in another order than the features."""
    ours: Any = getattr(features, "index", None)
    theirs: Any = getattr(values, "index", None)
    if hasattr(ours, "equals") and hasattr(theirs, "equals") and not ours.equals(theirs):
        message = (
            f"features and {name} have different indexes, so their rows may not belong together. "
            f"Bring them into one order first: {name} = {name}.loc[features.index]."
        )
        raise InvalidInputError(message)
    column = to_numpy(values)
    if column.ndim == 2 and column.shape[1] == 1:
        column = column[:, 0]
    if column.shape != (n_samples,):
        message = (
            f"{name} has the shape {column.shape}, but there are {n_samples} samples: give one "
            f"value per sample, of shape ({n_samples},)."
        )
        raise InvalidInputError(message)
    missing = column != column  # noqa: PLR0124  (NaN and None-like values of any type)
    if column.dtype.kind == "O":
        missing = missing | np.array([value is None for value in column])
    if bool(np.any(missing)):
        message = f"{name} is missing for {int(np.sum(missing))} samples: leave these out first."
        raise InvalidInputError(message)
    return column


def _outer_splits(
    data: Any, y: NDArray[Any], groups: NDArray[Any] | None, *, cv: Any, estimator: Any, seed: int
) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """Return the samples of each training and test fold."""
    classifies = estimator is None or isinstance(estimator, str) or is_classifier(estimator)
    if classifies:
        _check_classes(y, cv)
    if isinstance(cv, int | np.integer) and not isinstance(cv, bool):
        if cv < 2:
            message = f"cv={cv} makes no folds; give 2 or more, or a splitter."
            raise InvalidInputError(message)
        splitter = _folds(int(cv), classifies=classifies, grouped=groups is not None, seed=seed)
    elif isinstance(cv, Iterable) and not isinstance(cv, str):
        given = [_read_fold(fold, len(y), cv) for fold in cv]
        if not given:
            raise _no_folds(cv)
        return given
    else:
        splitter = _given_splitter(cv, y, classifies=classifies)
    return [_read_fold(fold, len(y), cv) for fold in splitter.split(data, y, groups)]


def _read_fold(fold: Any, n_samples: int, cv: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the positions of the training and test samples of a fold."""
    pair = fold if isinstance(fold, tuple | list) and len(fold) == 2 else (None, None)
    parts = [np.asarray(part) for part in pair]
    # scikit-learn takes a column of True and False for the positions of True.
    parts = [np.flatnonzero(part) if _is_mask(part, n_samples) else part for part in parts]
    for part in parts:
        if part.ndim != 1 or part.size == 0 or part.dtype.kind not in "iu":
            raise _no_folds(cv)
        if part.min() < -n_samples or part.max() >= n_samples:
            raise _no_folds(cv)
    return parts[0], parts[1]


def _is_mask(part: NDArray[Any], n_samples: int) -> bool:
    return part.dtype.kind == "b" and part.shape == (n_samples,)


def _given_splitter(cv: Any, y: NDArray[Any], *, classifies: bool) -> Any:
    """Return the splitter that a user gave."""
    try:
        return check_cv(cv, y, classifier=classifies)
    except ValueError:
        raise _no_folds(cv) from None


def _no_folds(cv: Any) -> InvalidInputError:
    return InvalidInputError(
        f"cv={cv!r:.200} has no folds; give a number of 2 or more, a splitter of scikit-learn, or "
        "a list of (train, test), the positions of the samples of each fold."
    )


def _check_classes(y: NDArray[Any], cv: Any) -> None:
    classes, counts = np.unique(y, return_counts=True)
    if len(classes) < 2:
        message = f"y has {len(classes)} class; a classifier needs two or more."
        raise InvalidInputError(message)
    if y.dtype.kind == "f" and not np.array_equal(y, np.round(y)):
        message = (
            "y holds numbers that are not whole: classes are needed. Cut it into classes, or give "
            "a regressor as the estimator and a scoring such as 'r2'."
        )
        raise InvalidInputError(message)
    if isinstance(cv, int | np.integer) and counts.min() < cv:
        rare = classes[counts.argmin()]
        message = (
            f"The class {rare} has {counts.min()} samples, fewer than the {cv} folds. Give a "
            "smaller cv, or leave out or join rare classes."
        )
        raise InvalidInputError(message)


def _folds(n: int, *, classifies: bool, grouped: bool, seed: int) -> Any:
    if classifies:
        kind = StratifiedGroupKFold if grouped else StratifiedKFold
    else:
        kind = GroupKFold if grouped else KFold
    return kind(n_splits=n, shuffle=True, random_state=seed)


def _build(
    estimator: Any, y: NDArray[Any], groups: NDArray[Any] | None, *, scoring: Any, seed: int
) -> Any:
    """Return the model of one fold, not fitted, with inner folds that its training data allows."""
    if estimator is not None and not isinstance(estimator, str):
        return clone(estimator)
    folds = int(min(_INNER_FOLDS, np.unique(y, return_counts=True)[1].min()))
    if groups is not None:
        folds = min(folds, len(np.unique(groups)))
    if folds < 2:
        message = (
            "The training folds have a class with one sample, or one group, only: no inner folds "
            "can be made. Use fewer outer folds or more data, or give an estimator of your own."
        )
        raise InvalidInputError(message)
    classifier = _logistic(1.0 if estimator == "lasso" else 0.0, seed)
    inner = _folds(folds, classifies=True, grouped=groups is not None, seed=seed)
    grid = {"logisticregression__C": list(STRENGTHS)}
    pipeline = make_pipeline(StandardScaler(), classifier)
    return GridSearchCV(pipeline, grid, cv=inner, scoring=scoring, error_score="raise")


def _logistic(l1_ratio: float, seed: int) -> LogisticRegression:
    """Make the classifier in the words of the scikit-learn that is installed."""
    import sklearn

    solver = "saga" if l1_ratio else "lbfgs"
    old = tuple(int(part) for part in sklearn.__version__.split(".")[:2]) < (1, 8)
    penalty: dict[str, Any] = {"l1_ratio": l1_ratio}
    if old:
        penalty = {"penalty": "l1" if l1_ratio else "l2"}
    # A lasso path needs many cheap steps; three digits of the coefficients decide no class.
    limits = {"max_iter": 5000, "tol": 1e-3} if l1_ratio else {"max_iter": 2000}
    return LogisticRegression(solver=solver, random_state=seed, **penalty, **limits)


def _score_fold(
    model: Any, data: Any, y: NDArray[Any], fold: tuple[Any, Any, Any], scoring: Any
) -> tuple[float, float | None]:
    """Fit on the training fold and score on the test fold."""
    train, test, groups = fold
    searches = isinstance(model, GridSearchCV)
    if searches and len(np.unique(y[train])) < len(np.unique(y)):
        message = "A training fold lacks a class. Use fewer folds, or leave out rare classes."
        raise InvalidInputError(message)
    scorer = check_scoring(model, scoring=scoring)
    if searches:
        # Products this small only lose by threads, and rounding then depends on their number.
        with thread_limit(1):
            model.fit(data[train], y[train], groups=groups)
    else:
        model.fit(data[train], y[train])
    best = getattr(model, "best_params_", {})
    strength = next((v for k, v in best.items() if k.rpartition("__")[2] == "C"), None)
    return float(scorer(model, data[test], y[test])), strength
