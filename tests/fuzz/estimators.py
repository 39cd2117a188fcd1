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
from polyad.dictionary.reading import geometry_of
from polyad.dictionary.solver import _CODE_RIDGE
from polyad.exceptions import NumericalError
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
# Beyond that, components are next to dependent.
CONDITION = 1e6
# The same for the few entries of a sample, and the relative error of features beyond it.
CONDITION_OF_A_SAMPLE, UNTOLD = 1e4, 1e-3


def case(rng: Rng, number: int, say: Callable[[str], None]) -> bool:
    """Run one random case; say what it is, and whether it came to a fitted model."""
    name = NAMES[number % len(NAMES)]
    estimator = getattr(polyad, name)
    loss, sign = draw_loss(rng)
    data = random_data(rng, WISHES.get(name, Wish(sign)))
    drawn, broken = random_parameters(rng, estimator, data)
    drawn = {"random_state": int(rng.integers(1000)), **drawn}
    if name == "GeneralizedCP":
        drawn.setdefault("loss", loss)
    say(f"{name}({_shown(drawn)}) on {data.words}" + (f", nonsense {broken}" if broken else ""))
    before = _frozen(data)
    fitted = Fitted(estimator(**drawn), data, rng)
    try:
        with judged("fit"):
            fitted.fit(fitted.model)
    except RefusedError as error:
        # What has no fit is refused before it starts.
        is_late = isinstance(error.__cause__, NumericalError) and "at the start" not in str(error)
        demand(not is_late, str(error))
        same_bits(before, _frozen(data), "input changed by a fit that was refused")
        return False
    if isinstance(drawn.get(broken), bool):
        rules = estimator._parameter_constraints[broken]
        takes = any(rule is object or rule in ("boolean", "verbose") for rule in rules)
        demand(takes, f"{broken}={drawn[broken]} is taken for a number")
    check_learned(fitted)
    check_history(fitted)
    for check in rng.choice(len(CHECKS), 3, replace=False):
        CHECKS[check](fitted)
    same_bits(before, _frozen(data), "input changed")
    return True


def _shown(parameters: dict[str, Any]) -> str:
    words = {name: " ".join(repr(value).split()) for name, value in parameters.items()}
    return ", ".join(f"{k}={v if len(v) < 40 else v[:40] + '...'}" for k, v in words.items())


def _frozen(data: Data) -> list[np.ndarray]:
    """Return copies of everything that a fit could change in its input."""
    X = data.X.data if isinstance(data.X, LabelledTensor) else data.X
    coords = getattr(X, "coords", ()) if sparse.issparse(X) else ()
    parts = (X.data if sparse.issparse(X) else X, *coords, *data.arguments.values(), data.classes)
    return [np.array(part) for part in parts]


@dataclass
class Fitted:
    """A model and what it is fitted to."""

    model: Any
    data: Data
    rng: Rng

    def __post_init__(self) -> None:
        self.name = type(self.model).__name__
        self.y = self.data.classes if self.name == "SupervisedCP" else None
        self.values = np.asarray(self.data.values, dtype=float)
        self.observed = ~np.isnan(self.values)
        self.scale = float(np.abs(self.values[self.observed]).max(initial=0.0))

    @property
    def has_components(self) -> bool:
        """Whether the model is a sum of components with weights and factors."""
        return hasattr(self.model, "factors_")

    @property
    def dtype(self) -> str:
        return str(learned_arrays(self.model)[0].dtype)

    def fit(self, model: Any) -> Any:
        return model.fit(self.data.X, self.y, **self.data.arguments)

    def again(self, **parameters: Any) -> Any:
        """Fit a copy to the same data."""
        with promised(f"fit again with {parameters}"):
            return self.fit(clone(self.model).set_params(**parameters))

    def features(self, X: Any = None, **arguments: Any) -> np.ndarray:
        """Return what ``transform`` says, of the training data by default."""
        given = (self.data.X, self.data.arguments) if X is None else (X, arguments)
        with promised("transform"):
            return np.asarray(self.model.transform(given[0], **given[1]))

    def predicted(self, features: np.ndarray) -> np.ndarray:
        with promised("inverse_transform"):
            return np.asarray(self.model.inverse_transform(features))

    @property
    def has_unique_predictions(self) -> bool:
        """Whether the row of a sample has one best prediction of its observed entries."""
        convex = ("CP", "NonnegativeCP", "StochasticCP", "SupervisedCP", "SimilarityCP")
        return self.name in convex and self.model.missing == "zero"

    @property
    def is_nonnegative(self) -> bool:
        if self.name == "GeneralizedCP":
            return self.model.loss in ("poisson", "gamma", "rayleigh", "beta", "bernoulli-odds")
        return self.name in NONNEGATIVE or (self.name == "QMF" and bool(self.model.nonnegative))

    @property
    def promises_descent(self) -> bool:
        if self.name == "WassersteinCP":
            return bool(self.model.transport == "exact")
        if self.name == "AugmentedCP":
            return self.model.batch_size is None
        is_adam = self.name == "GeneralizedCP" and self.model.solver == "adam"
        return self.name not in ("StochasticCP", "QMF", "QMFQ") and not is_adam


def learned_arrays(model: Any) -> list[np.ndarray]:
    """Return the factors of a model, or the parameters of its columns."""
    if hasattr(model, "atoms_") and not hasattr(model, "factors_"):
        return [model.codes_, model.atoms_]
    return list(getattr(model, "factors_", None) or model.theta_)


# What holds of every fitted model.


def check_learned(fitted: Fitted) -> None:
    model, data = fitted.model, fitted.data
    for name in vars(model).keys() - model.get_params(deep=False).keys():
        finite(getattr(model, name), name)
    rank = int(model.n_components)
    if hasattr(model, "atoms_") and not fitted.has_components:
        demand(model.atoms_.shape == (rank, *data.values.shape[1:]), "atoms_ has another shape")
        return
    if not fitted.has_components:
        shapes = {array.shape[1] for array in model.theta_}
        demand(shapes == {rank} and model.alpha_.shape == (rank,), "theta_ has another shape")
        return
    shapes = [factor.shape for factor in model.factors_]
    demand(shapes == [(n, rank) for n in data.values.shape], f"factors_ have the shapes {shapes}")
    demand(model.weights_.shape == (rank,), "weights_ has another shape")
    wanted = "float32" if data.values.dtype == np.float32 else "float64"
    demand({str(f.dtype) for f in model.factors_} == {wanted}, f"factors_ are not {wanted}")
    if fitted.is_nonnegative:
        lowest = min(float(array.min()) for array in (model.weights_, *model.factors_))
        demand(lowest >= 0, f"factors_ below zero: {lowest}")


def cost_of_codes(model: Any, shape: tuple[int, ...]) -> float:
    """Return what the codes of a dictionary may cost, which have a ridge in the end."""
    epsilon = model.epsilon if isinstance(model.epsilon, str) else float(model.epsilon)
    options = {"periodic": model.periodic, "weights": model.axis_weights, "epsilon": epsilon}
    geometry = geometry_of(shape[1:], model.metric, **options)
    return 1.01 * _CODE_RIDGE * float(geometry.epsilon) * shape[0]


def check_history(fitted: Fitted) -> None:
    delivered = float(fitted.model.objective_)
    objective = np.array(fitted.model.history_.objective)
    finite(objective, "history_")
    if fitted.promises_descent:
        # A loss of nearly nothing is the rest of what the entries themselves would cost.
        loss = getattr(fitted.model, "loss", "")
        is_squared = getattr(loss, "name", loss) == "gaussian"
        counts = fitted.name in ("PoissonCP", "GeneralizedCP", "WassersteinCP") and not is_squared
        entries = np.abs(fitted.values[fitted.observed])
        costs = (entries + (fitted.name == "GeneralizedCP")) if counts else entries**2
        slack = ROUNDING[fitted.dtype] * max(abs(objective[0]), abs(delivered), float(costs.sum()))
        rise, best = float(np.diff(objective).max(initial=0.0)), float(objective.min())
        demand(rise <= slack, f"the objective rises by {rise:.3g} of {objective[0]:.3g}")
        if "Dictionary" in fitted.name:
            slack += cost_of_codes(fitted.model, fitted.values.shape)
        demand(delivered <= best + slack, f"objective_ {delivered} is above {best} of history_")


# What holds of every fitted model too, of which each case tries a few.


def features_of_training(fitted: Fitted) -> None:
    """``fit_transform`` and ``transform`` give rows that predict the same."""
    data, model = fitted.data, fitted.model
    fixed = [mode % data.values.ndim for mode in getattr(model, "fixed_modes", ())]
    if 0 in fixed or not fitted.has_unique_predictions:
        return
    with promised("fit_transform"):
        first = np.asarray(clone(model).fit_transform(data.X, fitted.y, **data.arguments))
    one, two = (fitted.predicted(features) for features in (first, fitted.features()))
    seen, tol = fitted.observed, ROWS[fitted.dtype]
    close(one[seen], two[seen], tol, "fit_transform and transform", fitted.scale)


def one_alone(fitted: Fitted) -> None:
    """A sample has the same features alone and in company."""
    if getattr(fitted.model, "costs_", [None])[0] is not None:
        return  # samples with a cost between them know each other, as the docstring says
    number = int(fitted.rng.integers(fitted.values.shape[0]))
    X, arguments = one_sample(fitted.data, number)
    together = fitted.features()[number]
    try:
        with judged("transform of one sample"):
            alone = np.asarray(fitted.model.transform(X, **arguments))[0]
    except RefusedError as error:
        demand("leaves the range" in str(error), f"in company accepted, alone refused: {error}")
        return
    if not fitted.has_components:
        close(together, alone, ROWS[fitted.dtype], f"sample {number} in company and alone")
        return
    components = np.asarray(fitted.model.components_).reshape(len(alone), -1)
    # A best row may be infinite, such as that of ones only, and rounding decides what components
    # that are next to dependent share: their predictions agree all the same.
    if fitted.name == "GeneralizedCP" or np.linalg.cond(components) > CONDITION:
        together, alone = (fitted.predicted(row[None]) for row in (together, alone))
    close(together, alone, ROWS[fitted.dtype], f"sample {number} in company and alone")


def one_sample(data: Data, number: int) -> tuple[Any, dict[str, Any]]:
    """Return a single sample in the container that all of them have."""
    arguments = {name: value[number : number + 1] for name, value in data.arguments.items()}
    X = data.X.data if isinstance(data.X, LabelledTensor) else data.X
    if isinstance(X, sparse.coo_array):
        own = X.coords[0] == number
        coords = (np.zeros(int(own.sum()), dtype=int), *(row[own] for row in X.coords[1:]))
        return sparse.coo_array((X.data[own], coords), shape=(1, *X.shape[1:])), arguments
    return getattr(X, "iloc", X)[number : number + 1], arguments


def predictions(fitted: Fitted) -> None:
    """Predictions and the score are finite."""
    if fitted.has_components:
        finite(fitted.predicted(fitted.features()), "inverse_transform")
    with promised("score"):
        score = fitted.model.score(fitted.data.X, fitted.y, **fitted.data.arguments)
    finite(float(score), "score")


def sparse_and_dense(fitted: Fitted) -> None:
    """The container of complete data makes no difference for its features."""
    if not fitted.observed.all() or not fitted.has_unique_predictions:
        return
    values, tol = fitted.data.values, ROWS[fitted.dtype]
    one, two = (fitted.predicted(fitted.features(X)) for X in (values, sparse.coo_array(values)))
    close(one, two, tol, "features of dense and sparse data", fitted.scale)


def threads(fitted: Fitted) -> None:
    """The number of threads makes no difference."""
    one, two = fitted.again(n_jobs=1), fitted.again(n_jobs=2)
    same_bits(learned_arrays(one), learned_arrays(two), "factors_ of one and two threads")


def twice(fitted: Fitted) -> None:
    """The same seed gives the same numbers."""
    again = fitted.again()
    same_bits(learned_arrays(fitted.model), learned_arrays(again), "factors_ of the same seed")


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
    for name in ("loss", "divergence"):  # functions are not in files
        if getattr(loaded, name, None) == "custom":
            loaded.set_params(**{name: getattr(fitted.model, name)})
    copy = Fitted(loaded, fitted.data, fitted.rng)
    same_bits(fitted.features(), copy.features(), "features of a saved model")


def tables(fitted: Fitted) -> None:
    """A fit leaves the parameters alone, and what users read exists for every mode."""
    model = fitted.model
    mine, theirs = model.get_params(), clone(model).get_params()
    demand(str(mine) == str(theirs), "a clone has other parameters")
    if hasattr(model, "theta_"):
        demand(model.theta_table().shape[1] == model.n_components, "theta_table")
    if not fitted.has_components:
        return
    with promised("tables"):
        finite(np.asarray(model.components_), "components_")
        for mode, factor in enumerate(model.factors_):
            demand(model.factor_table(mode).shape == factor.shape, "factor_table")
        repr(model), model.top(0, 1, 3, by="lift"), model.history_.to_frame()
        finite(model._summary(3).select_dtypes("number").to_numpy(), "summary")


def ways_to_miss(fitted: Fitted) -> None:
    """NaN, a mask and entries that are not stored say the same of what is missing."""
    model, values, observed = fitted.model, fitted.data.values, fitted.observed
    if observed.all() or not hasattr(model, "missing"):
        return
    stored = sparse.coo_array((values[observed], np.nonzero(observed)), shape=values.shape)
    by_nan = fitted.features(values)
    by_mask = fitted.features(np.where(observed, values, values.dtype.type(1)), mask=observed)
    close(by_nan, by_mask, ROWS[fitted.dtype], "features with NaN and with a mask")
    kept = model.missing
    try:
        with judged("transform of unobserved entries"):
            by_absence = np.asarray(model.set_params(missing="unobserved").transform(stored))
    except RefusedError:  # not of all solvers
        return
    finally:
        model.set_params(missing=kept)
    components = np.asarray(model.components_, dtype=float).reshape(by_nan.shape[1], -1)
    told = np.array([tells_apart(components, seen) for seen in observed.reshape(len(observed), -1)])
    if getattr(model, "loss", None) == "bernoulli-logit":
        told[:] = False  # the best row of entries that can be separated is infinite
    what = "features with NaN and of unobserved entries"
    close(by_nan[told], by_absence[told], ROWS[fitted.dtype], what)
    close(by_nan[~told], by_absence[~told], max(ROWS[fitted.dtype], UNTOLD), what)


def tells_apart(components: np.ndarray, seen: np.ndarray) -> bool:
    """Whether the entries of a sample determine how much of each component it has.

    Where they do not, the shortest of many rows is meant, and rounding moves it.
    """
    if np.count_nonzero(seen) < len(components):
        return False
    return bool(np.linalg.cond(components[:, seen]) <= CONDITION_OF_A_SAMPLE)


CHECKS: tuple[Callable[[Fitted], None], ...] = (
    *(features_of_training, one_alone, predictions, sparse_and_dense, threads, twice, saved),
    *(tables, ways_to_miss),
)
