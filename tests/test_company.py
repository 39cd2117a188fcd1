"""The features of a sample do not depend on the company it is transformed in.

Nor on the way in which its missing entries are told. Where the numbers go through the same
operations they are the same bit for bit; a product of matrices rounds by its size, and a row that
its entries do not determine shows rounding a million times: see ``TOLERANCE``.
"""

import warnings
from copy import copy

import numpy as np
import pytest
from scipy.sparse import coo_array
from sklearn.base import clone

from polyad import (
    CP,
    QMF,
    QMFQ,
    AugmentedCP,
    GeneralizedCP,
    LabelledTensor,
    NonnegativeCP,
    PoissonCP,
    SimilarityCP,
    StochasticCP,
    SupervisedCP,
    WassersteinCP,
)
from polyad.augmented.signals import Scaling
from polyad.exceptions import DataWarning, InvalidInputError

pytestmark = pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning", "ignore::polyad.exceptions.DataWarning"
)

#: Of the largest feature of a sample. In single precision also times the condition of the model.
TOLERANCE = {"float64": 1e-5, "float32": 1e-3}
RANK = 4
LOSSES = [
    *("gaussian", "poisson", "poisson-log", "bernoulli-odds", "bernoulli-logit", "gamma"),
    *("rayleigh", "huber", "beta", "negative-binomial"),
]

# Losses of numbers up to one, and one that hardly tells large means apart.
BOUNDED = ("bernoulli-odds", "bernoulli-logit", "beta", "negative-binomial")


def parts(shape=(24, 6, 5), seed=0):
    """Return nonnegative data of some components and noise."""
    rng = np.random.default_rng(seed)
    factors = [rng.random((n, 3)) for n in shape]
    letters = "abc"[: len(shape)]
    model = np.einsum(",".join(f"{k}r" for k in letters) + "->" + letters, *factors)
    return model / model.max() + 0.05 * rng.random(shape)


def data_of(loss):
    X = parts()
    if loss.startswith("bernoulli"):
        return (np.median(X) < X).astype(float)
    if loss in ("poisson", "poisson-log", "negative-binomial"):
        return np.random.default_rng(1).poisson(5 * X).astype(float)
    return 0.9 * X if loss == "beta" else X


def given_graph():
    similarity = np.random.default_rng(2).random((24, 24))
    return similarity + similarity.T


TENSOR_MODELS = {
    "CP": (CP(RANK, random_state=0, max_iter=50), parts()),
    "CP ridge": (CP(RANK, ridge=0.01, random_state=0, max_iter=50), parts()),
    "NonnegativeCP": (NonnegativeCP(RANK, random_state=0, max_iter=50), parts()),
    "NonnegativeCP mu": (NonnegativeCP(RANK, solver="mu", random_state=0, max_iter=50), parts()),
    "NonnegativeCP penalties": (
        NonnegativeCP(RANK, sparsity=0.05, ridge=0.01, random_state=0, max_iter=20),
        parts(),
    ),
    # From singular vectors, the cells that a sample has left tell next to nothing of one component.
    "PoissonCP mu": (
        PoissonCP(RANK, init="random", random_state=0, max_iter=50),
        data_of("poisson"),
    ),
    "PoissonCP pdnr": (
        PoissonCP(RANK, solver="pdnr", init="random", random_state=0, max_iter=50),
        data_of("poisson"),
    ),
    "StochasticCP": (StochasticCP(RANK, batch_size=8, max_iter=20, random_state=0), parts()),
    "StochasticCP no ridge": (
        StochasticCP(RANK, ridge=0.0, batch_size=8, max_iter=20, random_state=0),
        parts(),
    ),
    "StochasticCP graph": (
        StochasticCP(RANK, graph=given_graph(), batch_size=8, max_iter=20, random_state=0),
        parts(),
    ),
    # The best row of a sample with one observed cell is unique with a ridge alone.
    "SupervisedCP": (SupervisedCP(RANK, ridge=0.01, random_state=0, max_iter=20), parts()),
    "SimilarityCP": (SimilarityCP(RANK, random_state=0, max_iter=50), parts()),
    "SimilarityCP free": (
        SimilarityCP(RANK, similarity_weight=0.0, random_state=0, max_iter=50),
        parts(),
    ),
    **{
        f"GeneralizedCP {loss}": (
            # Samples of ones or zeros alone have their best odds at infinity, but for a ridge.
            GeneralizedCP(3, loss=loss, ridge=1e-3, random_state=0, max_iter=40),
            data_of(loss),
        )
        for loss in LOSSES
    },
}
OTHER_MODELS = {
    "GeneralizedCP adam": (
        GeneralizedCP(3, loss="poisson", solver="adam", random_state=0, max_iter=3, epoch_iter=20),
        coo_array(data_of("poisson") * (parts(seed=3) < 0.3)),
    ),
    "AugmentedCP": (
        AugmentedCP(RANK, augment=Scaling(), batch_size=8, max_iter=20, random_state=0),
        parts(),
    ),
    "WassersteinCP": (WassersteinCP(2, random_state=0, max_iter=4), coo_array(parts())),
    "QMF": (QMF(2, random_state=0, max_iter=8), parts((24, 12))),
    "QMFQ": (QMFQ(2, projector="nmf", inner_iter=20, random_state=0, max_iter=8), parts((24, 12))),
}
MODELS = {**TENSOR_MODELS, **OTHER_MODELS}
_fitted = {}

#: In single precision one of those that do the same operations on its numbers.
DOUBLE_ONLY = {
    *("CP ridge", "NonnegativeCP penalties", "SimilarityCP free"),
    *("StochasticCP no ridge", "StochasticCP graph"),
    *(f"GeneralizedCP {loss}" for loss in LOSSES if loss not in ("poisson", "bernoulli-logit")),
}


def each(names):
    """Parametrise a test by models and types of numbers."""
    pairs = [(name, "float64") for name in names]
    pairs += [(name, "float32") for name in names if name not in DOUBLE_ONLY]
    return pytest.mark.parametrize(("name", "dtype"), pairs)


def fitted(name, dtype):
    """Return a fitted model and its first samples, made once."""
    if (name, dtype) not in _fitted:
        model, X = MODELS[name]
        data = X.astype(dtype)
        model = clone(model).fit(data, np.arange(24) % 2)
        dense = data.toarray() if isinstance(data, coo_array) else data
        _fitted[name, dtype] = model, dense[:7]
    return _fitted[name, dtype]


def given(model, samples):
    """Return samples as the model was fitted: sparse or dense."""
    is_sampled = isinstance(model, GeneralizedCP) and model.solver == "adam"
    is_sparse = isinstance(model, WassersteinCP) or is_sampled
    return coo_array(samples) if is_sparse else samples


def assert_same(found, expected, dtype):
    """Compare the features of samples, each in its own size."""
    found, expected = np.asarray(found, float), np.asarray(expected, float)
    assert np.isfinite(found).all()
    size = np.abs(expected).max(axis=1, keepdims=True)
    assert (np.abs(found - expected) <= TOLERANCE[dtype] * size + 1e-30).all()


def one_by_one(model, samples):
    alone = np.split(samples, len(samples))
    return np.concatenate([model.transform(given(model, sample)) for sample in alone])


def with_holes(samples):
    """Hide entries: half of them, all but one or two, none, all."""
    hidden = np.random.default_rng(5).random(samples.shape) < 0.5
    flat = hidden.reshape(len(samples), -1)
    flat[:4] = True
    flat[0, 7] = flat[1, [3, 11]] = False
    flat[2] = False
    return hidden


@each(MODELS)
def test_alone_repeated_and_in_any_order(name, dtype):
    model, samples = fitted(name, dtype)
    samples = samples[:3]
    if name not in ("GeneralizedCP gamma", "GeneralizedCP rayleigh"):  # which take no zeros
        samples = np.concatenate([samples, np.zeros_like(samples[:1])])
    together = model.transform(given(model, samples))
    assert_same(one_by_one(model, samples), together, dtype)
    assert_same(model.transform(given(model, samples[::-1]))[::-1], together, dtype)
    repeated = np.repeat(samples, 2, axis=0)
    assert_same(model.transform(given(model, repeated))[::2], together, dtype)


@each([name for name in MODELS if MODELS[name][0]._accepts_nan])
def test_alone_and_beside_others_with_missing_entries(name, dtype):
    model, samples = fitted(name, dtype)
    samples = samples[:5]
    hidden = with_holes(samples)
    holed = np.where(hidden, np.nan, samples)
    together = model.transform(holed)
    assert (together[3] == model.transform(holed[3:4])[0]).all()  # of nothing but NaN
    alone = [model.transform(sample) for sample in np.split(holed, len(holed))]
    assert_same(np.concatenate(alone), together, dtype)
    np.testing.assert_array_equal(model.transform(samples, mask=~hidden), together)
    assert_same(model.transform(np.concatenate([samples, holed, samples]))[5:10], together, dtype)


@each([name for name in TENSOR_MODELS if name != "NonnegativeCP mu"])
def test_all_ways_to_say_missing(name, dtype):
    model, samples = fitted(name, dtype)
    hidden = with_holes(samples)
    expected = model.transform(np.where(hidden, np.nan, samples))
    observing = copy(model).set_params(missing="unobserved")
    places = np.nonzero(~hidden)
    stored = coo_array((samples[places], places), shape=samples.shape)
    alone = coo_array((samples[1][~hidden[1]], np.nonzero(~hidden[1:2])), shape=(1, 6, 5))
    for given_samples, own in ((stored, slice(None)), (alone, slice(1, 2))):
        found, known = observing.transform(given_samples), expected[own]
        if name == "PoissonCP pdnr":
            # Newton's steps have no ridge: where cells are fewer than components, many rows have
            # the same best model of these cells, and rounding tells which of them is found.
            cells = (~hidden[own]).reshape(len(found), -1)
            models = [model.inverse_transform(rows).reshape(cells.shape) for rows in (found, known)]
            assert_same(*(np.where(cells, rows, 0.0) for rows in models), dtype)
            is_known = cells.sum(axis=1) >= RANK
            found, known = found[is_known], known[is_known]
        assert_same(found, known, dtype)
    nothing = coo_array((1, 6, 5), dtype=dtype)
    assert_same(observing.transform(nothing), expected[3:4], dtype)


def test_labels_that_a_sample_lacks_are_missing_entries():
    names = ["one", "two", "three", "four", "five", "six"]
    X = parts()
    labelled = LabelledTensor(
        coo_array(X), modes=["sample", "thing", "place"], labels=[None, names, None]
    )
    model = CP(RANK, missing="unobserved", random_state=0).fit(labelled)
    sample = X[:1].copy()
    sample[:, 2:] = np.nan
    few = LabelledTensor(
        coo_array(X[:1, 1::-1]), modes=labelled.modes, labels=[None, ["two", "one"], None]
    )
    assert_same(model.transform(few), model.transform(sample), "float64")


@each([name for name in MODELS if not name.endswith(BOUNDED)])
def test_samples_of_all_scales_beside_each_other(name, dtype):
    """Data of extreme size is divided by a power of two, which other samples must not see."""
    model, samples = fitted(name, dtype)
    scales = np.array([1e-9, 1e9, 1.0, 1e-9, 1e-16, 1e9, 1.0], dtype)
    mixed = samples * scales.reshape(-1, *(1,) * (samples.ndim - 1))
    assert_same(one_by_one(model, mixed), model.transform(given(model, mixed)), dtype)


@pytest.mark.parametrize(
    "name", ["CP", "CP ridge", "NonnegativeCP", "StochasticCP", "SupervisedCP"]
)
def test_a_row_that_is_not_determined_is_the_shortest(name):
    """By the pseudo-inverse where the solution is positive, as it is for one entry."""
    model, samples = fitted(name, "float64")
    sample = np.full_like(samples[:1], np.nan)
    sample[0, 2, 3] = 0.7
    others, scale = model._model().others, model._model().scale
    design = np.prod([factor[k] for factor, k in zip(others, (2, 3), strict=True)], axis=0)
    ridge = float(getattr(model, "ridge", 0.0))
    expected = 0.7 * design / (design @ design + ridge) * scale
    np.testing.assert_allclose(model.transform(sample)[0], expected, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("sparse", [False, True])
@each([name for name in TENSOR_MODELS if not name.startswith("Generalized")])
def test_fit_transform_is_transform_of_the_fit(name, dtype, sparse):
    if sparse and name == "NonnegativeCP mu":
        return  # multiplicative updates take no sparse data with missing entries
    model, X = TENSOR_MODELS[name]
    hidden = np.random.default_rng(7).random(X.shape) < 0.4
    if not name.startswith("PoissonCP"):  # of whose best rows, if many, fit may end at another
        hidden[:7] = with_holes(X[:7])
    holed = np.where(hidden, np.nan, X).astype(dtype)
    model = clone(model)
    if sparse:
        holed = coo_array((X[~hidden].astype(dtype), np.nonzero(~hidden)), shape=X.shape)
        model.set_params(missing="unobserved")
    y = np.arange(24) % 2
    features = model.fit_transform(holed, y)
    assert_same(features, model.transform(holed), dtype)


def test_batches_may_hold_nothing_but_missing_entries():
    X = parts()
    model = StochasticCP(2, random_state=0, max_iter=5).fit(X)
    holed = np.where(with_holes(X[:7]), np.nan, X[:7])
    features = model.transform(list(np.split(holed, 7)))
    assert_same(features, model.transform(holed), "float64")


@pytest.mark.parametrize("name", ["CP", "StochasticCP", "QMF", "PoissonCP mu"])
def test_nothing_has_no_score(name):
    model, samples = fitted(name, "float64")
    with pytest.raises(InvalidInputError, match="Every entry is NaN"):
        model.score(np.full_like(samples, np.nan))


def test_torch_rows_end_for_themselves():
    torch = pytest.importorskip("torch")
    model, samples = fitted("NonnegativeCP", "float64")
    mixed = samples * np.array([1e-9, 1e9, 1.0, 1e-3, 1.0, 1e3, 1.0])[:, None, None]
    both = [
        np.concatenate([model.transform(torch.asarray(row)).numpy() for row in rows])
        for rows in (np.split(mixed, 7), [mixed])
    ]
    assert_same(*both, "float64")


NEGATIVE = -parts()


@pytest.mark.parametrize("data", ["dense", "sparse", "missing", "mostly"])
@pytest.mark.parametrize("model", [NonnegativeCP(2), SupervisedCP(2), SimilarityCP(2)])
def test_negative_data_that_leaves_nothing_is_told(model, data):
    X = NEGATIVE.copy()
    if data == "missing":
        X[np.random.default_rng(0).random(X.shape) < 0.3] = np.nan
    elif data == "mostly":
        X[0, 0, 0] = 1e-3
    X = coo_array(X) if data == "sparse" else X
    with pytest.warns(DataWarning, match="every component is zero.*entries are negative.*Use CP"):
        clone(model).set_params(random_state=0).fit(X, np.arange(24) % 2)


@pytest.mark.parametrize("model", [CP(2, ridge=1e6), NonnegativeCP(2, sparsity=1e6)])
def test_a_penalty_that_leaves_nothing_is_told(model):
    with pytest.warns(DataWarning, match="every component is zero.*smaller penalties"):
        clone(model).fit(parts())


@pytest.mark.filterwarnings("error::polyad.exceptions.DataWarning")
@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_small_models_are_not_nothing(scale):
    X = scale * parts()
    factors = [np.random.default_rng(0).random((n, 2)) * 1e12 for n in X.shape]
    NonnegativeCP(2, random_state=0).fit(X)
    CP(2, init=factors, fixed_modes=[1, 2]).fit(X)


@pytest.mark.parametrize("kind", [CP, NonnegativeCP, SimilarityCP])
def test_a_small_component_is_not_lost_beside_large_ones(kind):
    """Single precision, and squares of the components that differ by its digits and more."""
    sizes = np.array([1e4, 1e4, 1.0])[:, None]
    rows = np.abs(np.random.default_rng(0).standard_normal((12, 3))) + 0.1
    X = (rows @ (sizes * np.eye(3, 5))).astype(np.float32)[:, :, None]
    X[0, 0, 0] = np.nan
    parameters = {"similarities": {1: np.eye(5)}} if kind is SimilarityCP else {}
    init = [rows, np.eye(5, 3) * sizes.T, np.ones((1, 3))]
    model = kind(3, init=init, max_iter=1, tol=1.0, **parameters)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X)
    together, alone = model.transform(X)[5], model.transform(X[5:6])[0]
    np.testing.assert_allclose(together, alone, rtol=1e-4)
