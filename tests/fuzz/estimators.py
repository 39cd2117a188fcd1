"""Cases of estimators: any class on any data with any parameters, and what must hold then."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse
from sklearn.base import clone

import polyad
from polyad import LabelledTensor
from tests.fuzz.data import Data, Rng, random_data
from tests.fuzz.judge import RefusedError, close, demand, finite, judged, promised, same_bits
from tests.fuzz.parameters import WISHES, Wish, draw_loss, random_parameters

if TYPE_CHECKING:
    from collections.abc import Callable

NAMES = (*WISHES, "GeneralizedCP", "GeneralizedCP")
NONNEGATIVE = ("NonnegativeCP", "PoissonCP", "SupervisedCP", "SimilarityCP", "WassersteinCP")
# Relative errors that are rounding, of an objective and of features.
ROUNDING = {"float32": 1e-4, "float64": 1e-9}
ROWS = {"float32": 1e-2, "float64": 1e-5}


@dataclass
class Fitted:
    """A fitted model and what it was fitted to."""

    model: Any
    data: Data
    rng: Rng

    @property
    def dtype(self) -> str:
        return str(self.model.factors_[0].dtype)

    @property
    def scale(self) -> float:
        return float(np.nanmax(np.abs(self.data.values.astype(float)), initial=0.0))

    def again(self, **parameters: Any) -> Any:
        """Fit a copy to the same data."""
        model = clone(self.model).set_params(**parameters)
        with promised(f"fit again with {parameters}"):
            fit(model, self.data)
        return model

    def features(self, X: Any = None, **arguments: Any) -> np.ndarray:
        """Return what ``transform`` says, of the training data by default."""
        if X is None:
            X, arguments = self.data.X, self.data.arguments
        with promised("transform"):
            return np.asarray(self.model.transform(X, **arguments))

    def predicted(self, features: np.ndarray) -> np.ndarray:
        with promised("inverse_transform"):
            return np.asarray(self.model.inverse_transform(features))


def fit(model: Any, data: Data) -> Any:
    y = data.classes if type(model).__name__ == "SupervisedCP" else None
    return model.fit(data.X, y, **data.arguments)


def case(rng: Rng, number: int, say: Callable[[str], None]) -> bool:
    """Run one random case; say what it is, and whether it came to a fitted model."""
    name = NAMES[number % len(NAMES)]
    estimator = getattr(polyad, name)
    own: dict[str, Any] = {}
    wish = WISHES.get(name)
    if wish is None:
        own["loss"], sign = draw_loss(rng)
        wish = Wish(sign)
    data = random_data(rng, wish)
    drawn, broken = random_parameters(rng, estimator, data)
    drawn = {**own, **drawn}
    drawn.setdefault("random_state", int(rng.integers(1000)))
    say(f"{name}({_shown(drawn)}) on {data.words}" + (f", nonsense {broken}" if broken else ""))
    before = _frozen(data)
    try:
        with judged("fit"):
            model = fit(estimator(**drawn), data)
    except RefusedError:
        same_bits(before, _frozen(data), "input changed by a fit that was refused")
        return False
    same_bits(before, _frozen(data), "input changed by fit")
    if broken is not None:
        _no_boolean_number(estimator, broken, drawn[broken])
    fitted = Fitted(model, data, rng)
    check_learned(fitted)
    for check in rng.choice(len(CHECKS), 3, replace=False):
        CHECKS[check](fitted)
    same_bits(before, _frozen(data), "input changed after fit")
    return True


def _no_boolean_number(estimator: type, name: str, value: Any) -> None:
    rules = estimator._parameter_constraints[name]
    takes = any(rule in ("boolean", object) or rule == "verbose" for rule in rules)
    demand(takes or not isinstance(value, bool), f"{name}={value} is taken for a number")


def _shown(parameters: dict[str, Any]) -> str:
    words = {
        name: repr(value) if len(repr(value)) < 40 else f"<{type(value).__name__}>"
        for name, value in parameters.items()
    }
    return ", ".join(f"{name}={word}" for name, word in words.items())


def _frozen(data: Data) -> list[np.ndarray]:
    """Return copies of everything that a fit could change in its input."""
    X = data.X.data if isinstance(data.X, LabelledTensor) else data.X
    if sparse.issparse(X):
        parts = [X.data, *(X.coords if hasattr(X, "coords") else (X.indices, X.indptr))]
    else:
        parts = [np.asarray(X)]
    return [np.array(part) for part in (*parts, *data.arguments.values(), data.classes)]


# What holds of every fitted model.


def check_learned(fitted: Fitted) -> None:
    model, data = fitted.model, fitted.data
    for name in vars(model).keys() - model.get_params(deep=False).keys():
        finite(getattr(model, name), name)
    rank = int(model.n_components)
    shapes = [factor.shape for factor in model.factors_]
    demand(shapes == [(n, rank) for n in data.values.shape], f"factors_ have the shapes {shapes}")
    demand(model.weights_.shape == (rank,), "weights_ has another shape")
    wanted = "float32" if data.values.dtype == np.float32 else "float64"
    demand({str(f.dtype) for f in model.factors_} == {wanted}, f"factors_ are not {wanted}")
    if _is_nonnegative(model):
        demand(all((factor >= 0).all() for factor in model.factors_), "factors_ below zero")
        demand((model.weights_ >= 0).all(), "weights_ below zero")
    check_history(fitted)


def _is_nonnegative(model: Any) -> bool:
    name = type(model).__name__
    if name == "GeneralizedCP":
        return model.loss in ("poisson", "gamma", "rayleigh", "beta", "bernoulli-odds")
    return name in NONNEGATIVE or (name == "QMF" and bool(model.nonnegative))


def check_history(fitted: Fitted) -> None:
    model = fitted.model
    objective = np.array(model.history_.objective)
    finite(objective, "history_")
    finite(float(model.objective_), "objective_")
    slack = ROUNDING[fitted.dtype] * max(abs(objective[0]), abs(float(model.objective_)))
    if promises_descent(model):
        rise = float(np.diff(objective).max(initial=0.0))
        demand(rise <= slack, f"the objective rises by {rise:.3g} of {objective[0]:.3g}")
        best = float(objective.min())
        demand(model.objective_ <= best + slack, f"objective_ {model.objective_} is above {best}")


def promises_descent(model: Any) -> bool:
    name = type(model).__name__
    if name == "WassersteinCP":
        return model.transport == "exact"
    if name == "GeneralizedCP":
        return model.solver != "adam"
    return name in ("CP", "NonnegativeCP", "PoissonCP", "SupervisedCP", "SimilarityCP")


# What holds of every fitted model, of which each case tries a few.


def features_of_training(fitted: Fitted) -> None:
    """``fit_transform`` and ``transform`` give rows that predict the same."""
    model, data = fitted.model, fitted.data
    is_fixed = 0 in [mode % data.values.ndim for mode in getattr(model, "fixed_modes", ())]
    if is_fixed or not has_unique_predictions(model):
        return
    copy = clone(model)
    y = data.classes if type(model).__name__ == "SupervisedCP" else None
    with promised("fit_transform"):
        first = np.asarray(copy.fit_transform(data.X, y, **data.arguments))
    predicted = [fitted.predicted(features) for features in (first, fitted.features())]
    seen = ~np.isnan(data.values.astype(float))
    tol = ROWS[fitted.dtype]
    close(*(p[seen] for p in predicted), tol, "fit_transform and transform", fitted.scale)


def has_unique_predictions(model: Any) -> bool:
    """Whether the row of a sample has one best prediction of its observed entries."""
    name = type(model).__name__
    convex = ("CP", "NonnegativeCP", "StochasticCP", "SupervisedCP", "SimilarityCP")
    return name in convex and getattr(model, "missing", "zero") == "zero"


def one_alone(fitted: Fitted) -> None:
    """A sample has the same features alone and in company."""
    model, data = fitted.model, fitted.data
    if getattr(model, "costs_", [None])[0] is not None:
        return  # samples with a cost between them know each other, as the docstring says
    number = int(fitted.rng.integers(data.values.shape[0]))
    X, arguments = one_sample(data, number)
    together = fitted.features()[number]
    try:
        with judged("transform of one sample"):
            alone = np.asarray(model.transform(X, **arguments))[0]
    except RefusedError as error:
        demand("leaves the range" in str(error), f"in company accepted, alone refused: {error}")
        return
    close(together, alone, ROWS[fitted.dtype], f"sample {number} in company and alone")


def one_sample(data: Data, number: int) -> tuple[Any, dict[str, Any]]:
    """Return a single sample in the container that all of them have."""
    arguments = {name: value[number : number + 1] for name, value in data.arguments.items()}
    X = data.X.data if isinstance(data.X, LabelledTensor) else data.X
    if isinstance(X, sparse.coo_array):
        own = X.coords[0] == number
        coords = (np.zeros(int(own.sum()), dtype=int), *(row[own] for row in X.coords[1:]))
        return sparse.coo_array((X.data[own], coords), shape=(1, *X.shape[1:])), arguments
    if hasattr(X, "iloc"):
        return X.iloc[number : number + 1], arguments
    return X[number : number + 1], arguments


def predictions(fitted: Fitted) -> None:
    """Predictions and the score are finite."""
    finite(fitted.predicted(fitted.features()), "inverse_transform")
    data = fitted.data
    with promised("score"):
        y = data.classes if type(fitted.model).__name__ == "SupervisedCP" else None
        finite(float(fitted.model.score(data.X, y, **data.arguments)), "score")


def sparse_and_dense(fitted: Fitted) -> None:
    """The container of complete data makes no difference for its features."""
    model, values = fitted.model, fitted.data.values
    if np.isnan(values.astype(float)).any() or getattr(model, "missing", "zero") != "zero":
        return
    if not has_unique_predictions(model):
        return
    dense = fitted.predicted(fitted.features(values))
    stored = fitted.predicted(fitted.features(sparse.coo_array(values)))
    close(dense, stored, ROWS[fitted.dtype], "features of dense and sparse data", fitted.scale)


def threads(fitted: Fitted) -> None:
    """The number of threads makes no difference."""
    one, two = fitted.again(n_jobs=1), fitted.again(n_jobs=2)
    same_bits(one.factors_, two.factors_, "factors_ of one and two threads")


def twice(fitted: Fitted) -> None:
    """The same seed gives the same numbers."""
    same_bits(fitted.model.factors_, fitted.again().factors_, "factors_ of the same seed")


def saved(fitted: Fitted) -> None:
    """A model from a file gives the same features, bit for bit."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.polyad"
        try:
            with judged("save"):
                fitted.model.save(path)
        except RefusedError:
            return
        with promised("load"):
            loaded = polyad.load(path)
    if getattr(loaded, "loss", None) == "custom":  # functions are not in files
        loaded.set_params(loss=fitted.model.loss)
    copy = Fitted(loaded, fitted.data, fitted.rng)
    same_bits(fitted.features(), copy.features(), "features of a saved model")


def parameters_kept(fitted: Fitted) -> None:
    """A fit leaves the parameters alone, and a clone has them."""
    mine, theirs = fitted.model.get_params(), clone(fitted.model).get_params()
    demand(mine.keys() == theirs.keys(), "clone has other parameters")
    for name, value in mine.items():
        demand(str(value) == str(theirs[name]), f"clone has another {name}")


def tables(fitted: Fitted) -> None:
    """What users read from a model exists for every mode and component."""
    model = fitted.model
    with promised("tables"):
        finite(np.asarray(model.components_), "components_")
        for mode in range(fitted.data.values.ndim):
            demand(model.factor_table(mode).shape == model.factors_[mode].shape, "factor_table")
        model.top(0, 1, 3)
        repr(model)
        model.history_.to_frame()


def ways_to_miss(fitted: Fitted) -> None:
    """NaN, a mask and entries that are not stored say the same of what is missing."""
    model, values = fitted.model, fitted.data.values
    if not model._accepts_nan or not hasattr(model, "missing"):
        return
    values = values if values.dtype.kind == "f" else values.astype(float)
    observed = ~np.isnan(values)
    if fitted.data.is_sparse or observed.all() or not observed.any():
        return
    by_nan = fitted.features(values)
    by_mask = fitted.features(np.where(observed, values, 1.0).astype(values.dtype), mask=observed)
    coords = np.nonzero(observed)
    kept = model.missing
    model.set_params(missing="unobserved")
    try:
        with judged("transform of unobserved entries"):
            stored = sparse.coo_array((values[coords], coords), shape=values.shape)
            by_absence = np.asarray(model.transform(stored))
    except RefusedError:
        by_absence = by_nan
    finally:
        model.set_params(missing=kept)
    close(by_nan, by_mask, ROWS[fitted.dtype], "features with NaN and with a mask")
    close(by_nan, by_absence, ROWS[fitted.dtype], "features with NaN and without stored entries")


CHECKS: tuple[Callable[[Fitted], None], ...] = (
    *(features_of_training, one_alone, predictions, sparse_and_dense, threads, twice, saved),
    *(parameters_kept, tables, ways_to_miss),
)
