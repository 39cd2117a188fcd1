"""What is delivered is what is reported: ``objective_`` is that of the model the user gets.

Each class has its formula here once more, in plain NumPy, of the arrays that the model has.
"""

import warnings
from functools import partial

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.sparse import coo_array
from scipy.special import logsumexp, rel_entr
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from polyad import (
    CP,
    QMF,
    QMFQ,
    GeneralizedCP,
    NonnegativeCP,
    PoissonCP,
    SimilarityCP,
    StochasticCP,
    SupervisedCP,
    WassersteinCP,
)
from polyad.fitting.driver import FitError
from polyad.quantile import parameters
from polyad.tensor.kruskal import KruskalTensor

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

SHAPE = (9, 6, 5)
RANDOM = np.random.default_rng(0)
COUNTS = RANDOM.poisson(
    2 * np.einsum("ir,jr,kr->ijk", *(RANDOM.random((n, 2)) + 0.1 for n in SHAPE))
).astype(float)
REAL = RANDOM.normal(size=SHAPE) + 1.0
POSITIVE = RANDOM.gamma(2.0, size=SHAPE)
BITS = (COUNTS > 0).astype(float)
LABELS = RANDOM.integers(0, 2, SHAPE[0])
SIMILAR = RANDOM.random((6, 6))
SIMILAR = SIMILAR + SIMILAR.T
SEEN = RANDOM.random(SHAPE) < 0.8


def squares(x, m):
    return 0.5 * (x - m) ** 2


def kullback_leibler(x, m):
    return rel_entr(x, m) - x + m


def odds(x, m):
    return np.log1p(m) - x * np.log(np.where(x > 0, m, 1.0))


def gamma(x, m):
    return x / m - 1.0 - np.log(x / m)


def in_the_scale_of_the_fit(model):
    others, scale = model._model().others, model._model().scale
    return [model.factors_[0] * (model.weights_ / scale), *others]


def plain(loss):
    return lambda model, x, seen: loss(x[seen], model.kruskal_.to_dense()[seen]).sum()


def penalised(loss):
    """Add the penalties, of factors with the weights inside them."""

    def objective(model, x, seen):
        total = plain(loss)(model, x, seen)
        for factor in in_the_scale_of_the_fit(model):
            total += getattr(model, "sparsity", 0.0) * factor.sum()
            total += 0.5 * model.ridge * (factor**2).sum()
        return total

    return objective


def rough(model, x, seen):
    total = plain(squares)(model, x, seen)
    similar = SIMILAR * (1 - np.eye(6))
    degrees = similar.sum(axis=0)
    laplacian = np.eye(6) - similar / np.sqrt(np.outer(degrees, degrees))
    columns = model.factors_[1]
    roughness = np.einsum("ir,ij,jr->r", columns, laplacian, columns)
    return total + 0.5 * model.similarity_weight * roughness @ model.weights_**2


def labelled(model, x, seen):
    """The label term has the classifier that is best for the rows."""
    rows = model.factors_[0] * model.weights_ / np.sqrt((x[seen] ** 2).sum() / len(x))
    n = rows.shape[1]

    def label_term(numbers):
        weights, intercept = numbers[: 2 * n].reshape(n, 2), numbers[2 * n :]
        z = rows @ weights + intercept
        loss = np.mean(logsumexp(z, axis=1) - z[np.arange(len(z)), LABELS])
        return loss + 0.5 * model.label_ridge * np.sum(weights**2)

    best = minimize(label_term, np.zeros(2 * n + 2), tol=1e-12).fun
    term = 0.5 * model.label_weight * (x[seen] ** 2).sum() * best
    return plain(squares)(model, x, seen) + term


def in_batches(model, x, seen):
    """The penalty of the other factors counts once for each batch."""
    rows, *others = in_the_scale_of_the_fit(model)
    n_batches = -(-len(x) // model.batch_size)
    size = (rows**2).sum() + n_batches * sum((factor**2).sum() for factor in others)
    return (plain(squares)(model, x, seen) + 0.5 * model.ridge * size) / len(x)


def transported(model, x, seen):
    return -len(x) * model.score(x)


FEW = {"tol": 0.0, "max_iter": 4, "random_state": 0}
CASES = {
    "CP": (CP(2, **FEW), REAL, plain(squares)),
    "CP, ridge": (CP(2, ridge=0.5, **FEW), REAL, penalised(squares)),
    "NonnegativeCP": (
        NonnegativeCP(2, sparsity=0.1, ridge=0.5, **FEW),
        POSITIVE,
        penalised(squares),
    ),
    "NonnegativeCP, mu": (NonnegativeCP(2, solver="mu", **FEW), POSITIVE, plain(squares)),
    "PoissonCP": (PoissonCP(2, inner_iter=1, **FEW), COUNTS, plain(kullback_leibler)),
    "GeneralizedCP, gaussian": (GeneralizedCP(2, ridge=0.5, **FEW), REAL, penalised(squares)),
    "GeneralizedCP, poisson": (
        GeneralizedCP(2, loss="poisson", **FEW),
        COUNTS,
        plain(kullback_leibler),
    ),
    "GeneralizedCP, bernoulli": (GeneralizedCP(2, loss="bernoulli", **FEW), BITS, plain(odds)),
    "GeneralizedCP, gamma": (GeneralizedCP(2, loss="gamma", **FEW), POSITIVE, plain(gamma)),
    "GeneralizedCP, adam": (
        GeneralizedCP(2, loss="bernoulli", solver="adam", epoch_iter=5, **FEW),
        BITS,
        plain(odds),
    ),
    "SimilarityCP": (
        SimilarityCP(2, similarities={1: SIMILAR}, similarity_weight=0.3, **FEW),
        POSITIVE,
        rough,
    ),
    "SupervisedCP": (SupervisedCP(2, label_weight=0.5, **FEW), POSITIVE, labelled),
    "StochasticCP": (StochasticCP(2, batch_size=4, ridge=0.5, **FEW), REAL, in_batches),
    "WassersteinCP": (
        WassersteinCP(2, costs={1: 1.0 - np.eye(6)}, inner_iter=1, **FEW),
        COUNTS,
        transported,
    ),
}
SPARSE_ONLY = {"GeneralizedCP, adam"}
DENSE_ONLY = {"GeneralizedCP, gamma"}
COMPLETE_ONLY = {"WassersteinCP"}


def fitted(name, data, **options):
    model = CASES[name][0]
    model = type(model)(**{**model.get_params(), **options})
    return model.fit(data, LABELS if name == "SupervisedCP" else None)


def same(model, name, data, seen):
    assert model.objective_ == pytest.approx(CASES[name][2](model, data, seen), rel=1e-6)


@pytest.mark.parametrize("name", [name for name in CASES if name not in SPARSE_ONLY])
def test_the_objective_is_that_of_the_model(name):
    data = CASES[name][1]
    same(fitted(name, data), name, data, np.ones(SHAPE, bool))


@pytest.mark.parametrize("name", [name for name in CASES if name not in DENSE_ONLY])
def test_the_objective_of_sparse_data_is_that_of_the_model(name):
    data = CASES[name][1] * BITS
    same(fitted(name, coo_array(data)), name, data, np.ones(SHAPE, bool))


@pytest.mark.parametrize(
    "name", [name for name in CASES if name not in {*SPARSE_ONLY, *COMPLETE_ONLY}]
)
def test_the_objective_of_masked_data_is_that_of_the_model(name):
    data = CASES[name][1]
    same(fitted(name, np.where(SEEN, data, np.nan)), name, data, SEEN)


# Multiplicative updates take no unobserved entries of sparse data.
@pytest.mark.parametrize(
    "name",
    sorted({*CASES} - {*SPARSE_ONLY, *DENSE_ONLY, *COMPLETE_ONLY, "NonnegativeCP, mu"}),
)
def test_the_objective_of_unobserved_entries_is_that_of_the_model(name):
    data = CASES[name][1]
    where = np.nonzero(SEEN)
    stored = coo_array((data[where], where), shape=SHAPE)
    same(fitted(name, stored, missing="unobserved"), name, data, SEEN)


@pytest.mark.parametrize("name", [name for name in CASES if name != "StochasticCP"])
@pytest.mark.parametrize("max_iter", [1, 7])
def test_the_final_step_never_makes_it_worse(name, max_iter):
    data = CASES[name][1]
    model = fitted(name, coo_array(data) if name in SPARSE_ONLY else data, max_iter=max_iter)
    best = min(model.history_.objective)
    assert model.objective_ <= best + 1e-12 * abs(best)


@pytest.mark.parametrize("name", [name for name in CASES if name not in SPARSE_ONLY])
def test_more_starts_are_never_worse_than_the_best_of_them(name):
    data = CASES[name][1]
    options = {"init": "random", "max_iter": 1}
    # The seeds of several starts are drawn one after the other.
    random = np.random.RandomState(3)
    single = [fitted(name, data, random_state=random, **options).objective_ for _ in range(5)]
    several = fitted(name, data, random_state=np.random.RandomState(3), n_init=5, **options)
    assert several.objective_ == min(single)


# Matrices.


def quantile_objective(model, x, seen):
    model_of_x = model.inverse_transform(model.factors_[0] * model.weights_)
    divergence = np.mean(squares(x, model_of_x)[seen])
    scale = np.mean(((x - np.nanmean(np.where(seen, x, np.nan), axis=0)) ** 2)[seen]) / 2
    free = [
        np.log(model.factors_[1] * model._lengths),
        np.log(model.factors_[0] * model.weights_ / model._lengths),
    ]
    penalty = 0.5 * model.ridge * scale * sum(np.mean(part**2) for part in free)
    return divergence + penalty


MATRIX = RANDOM.gamma(2.0, size=(12, 7))
QUANTILE = {"divergence": "frobenius", "tol": 0.0, "max_iter": 4}


@pytest.mark.parametrize("solver", ["adam", "newton"])
@pytest.mark.parametrize("masked", [False, True])
def test_the_objective_of_quantile_factors_is_that_of_the_model(solver, masked):
    seen = np.random.default_rng(1).random(MATRIX.shape) < (0.8 if masked else 2.0)
    data = np.where(seen, MATRIX, np.nan)
    model = QMF(2, solver=solver, ridge=0.1, random_state=0, **QUANTILE).fit(data)
    assert model.objective_ == pytest.approx(quantile_objective(model, MATRIX, seen), rel=1e-6)
    assert model.objective_ <= min(model.history_.objective)


@pytest.mark.parametrize("kind", [QMF, partial(QMFQ, projector="nmf")])
def test_more_starts_of_quantile_factors_are_never_worse(kind):
    random = np.random.RandomState(3)
    single = [kind(2, random_state=random, **QUANTILE).fit(MATRIX).objective_ for _ in range(3)]
    several = kind(2, random_state=np.random.RandomState(3), n_init=3, **QUANTILE).fit(MATRIX)
    assert several.objective_ == min(single)


def test_projected_quantile_factors_report_what_they_deliver():
    model = QMFQ(2, random_state=0, **QUANTILE).fit(MATRIX)
    assert model.objective_ == pytest.approx(model.reconstruction_err_, rel=1e-7)


# Interrupts.


def test_ctrl_c_in_the_final_step_keeps_the_state_before_it(monkeypatch):
    def interrupted(_self, _state):
        raise KeyboardInterrupt

    data = CASES["PoissonCP"][1]
    monkeypatch.setattr("polyad.cp.poisson.solver.PoissonSolver.finish", interrupted)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", ConvergenceWarning)
        model = fitted("PoissonCP", data)
    assert model.status_.value == "interrupted"
    assert "interrupted" in str(told[-1].message)
    same(model, "PoissonCP", data, np.ones(SHAPE, bool))
    assert model.objective_ == min(model.history_.objective)


# Numbers that are not finite.


def broken_normalisation(tensor, *_fixed):
    return KruskalTensor(np.full_like(tensor.weights, np.inf), tensor.factors)


@pytest.mark.parametrize("name", [*CASES, "QMF", "QMFQ"])
def test_nothing_that_is_not_finite_leaves_a_fit(name, monkeypatch):
    if name in CASES:
        data, model = CASES[name][1], clone(CASES[name][0])
        data = coo_array(data) if name in SPARSE_ONLY else data
    else:
        data, model = MATRIX, {"QMF": QMF, "QMFQ": QMFQ}[name](2, random_state=0, **QUANTILE)
    y = LABELS if name == "SupervisedCP" else None
    with monkeypatch.context() as patch:
        for family in ("cp", "quantile"):
            patch.setattr(f"polyad.{family}.family.normalize_components", broken_normalisation)
        with pytest.raises(FitError, match=r"after iteration 4 is not finite in weights_"):
            model.fit(data, y)
        assert not hasattr(model, "weights_")
    before = model.fit(data, y).weights_
    with monkeypatch.context() as patch:
        for family in ("cp", "quantile"):
            patch.setattr(f"polyad.{family}.family.normalize_components", broken_normalisation)
        with pytest.raises(FitError):
            model.fit(data, y)
    assert model.weights_ is before
    assert np.isfinite(model.transform(data)).all()


def test_exponentials_and_their_products_are_float32_numbers():
    for free in (1e3, -1e3):
        size = parameters.factor(np.full((1, 1), free), nonnegative=True)
        product = np.float32(size * size)[0, 0]
        assert np.isfinite(product)
        assert product >= np.finfo(np.float32).tiny


def test_a_single_one_in_float32_gives_a_finite_model():
    X = np.zeros((12, 8), np.float32)
    X[0, 0] = 1.0
    options = {"divergence": "frobenius", "solver": "newton", "ridge": 0}
    model = QMF(2, random_state=19, **options).fit(X)
    for array in (model.weights_, *model.factors_, model.transform(X)):
        assert array.dtype == np.float32
        assert np.isfinite(array).all()


def test_a_learning_rate_that_is_too_large_does_not_converge():
    with pytest.warns(ConvergenceWarning, match="learning_rate"):
        model = QMF(2, solver="adam", learning_rate=10.0, random_state=0).fit(MATRIX)
    assert model.status_.value == "diverged"
