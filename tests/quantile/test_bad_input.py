"""One clear error for each thing that cannot be done, before any work starts."""

import re

import numpy as np
import pytest
import scipy.sparse

import polyad
from polyad import QMF, QMFQ
from polyad.exceptions import (
    CheckpointError,
    InvalidInputError,
    InvalidTypeError,
    ModelFileError,
)
from tests.quantile.planted import small

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

BOTH = pytest.mark.parametrize("estimator", [QMF, QMFQ])


def negative():
    X = small()
    X[2, 3] = -1.0
    return X


@BOTH
@pytest.mark.parametrize(
    ("parameters", "X", "words"),
    [
        ({}, negative(), r"Negative values.*first -\S+ at \(2, 3\).*divergence='frobenius'"),
        ({}, np.ones((3, 4, 5)), "has 3 modes"),
        ({}, np.full((4, 4), np.inf), "infinity"),
        ({}, np.array([["a", "b"], ["c", "d"]]), "does not hold numbers"),
        ({"n_components": 9}, small(), r"n_components=9 is too large.*rank at most 8"),
        ({"n_components": 0}, small(), "n_components"),
        ({"n_quantiles": 1}, small(), "n_quantiles"),
        ({"epsilon": 0.0}, small(), "epsilon"),
        ({"epsilon": -1.0}, small(), "epsilon"),
        ({"epsilon": 1e-20}, small(), "epsilon"),
        ({"epsilon": 1e300}, small(), "epsilon"),
        ({"divergence": "bernoulli-logit"}, small() > 1, "no entries of the data.*'kl', 'frob"),
        ({"divergence": "gamma"}, small() * 0, "'gamma' is for numbers above zero"),
        ({"divergence": "euclid"}, small(), "'euclid' is not known.*'kl', 'frobenius'"),
        ({"solver": "sgd"}, small(), "solver"),
        ({"learning_rate": 0.0}, small(), "learning_rate"),
        ({"max_iter": 0}, small(), "max_iter"),
        ({"tol": -1.0}, small(), "tol"),
        ({"n_jobs": 0}, small(), "n_jobs=0"),
    ],
)
def test_values_that_are_refused(estimator, parameters, X, words):
    with pytest.raises(ValueError, match=words):
        estimator(**parameters).fit(X)


@BOTH
def test_types_that_are_refused(estimator):
    with pytest.raises(InvalidTypeError, match=r"Sparse data.*X.toarray\(\)"):
        estimator().fit(scipy.sparse.csr_array(small()))
    for divergence in (3, object(), QMF):
        with pytest.raises(
            InvalidTypeError, match=r"divergence is (a|the class) \w+\. Give a name"
        ):
            estimator(divergence=divergence).fit(small())
    with pytest.raises(InvalidTypeError, match="callbacks"):
        estimator(callbacks=[3]).fit(small())


def test_the_names_that_are_offered_for_a_divergence_are_taken():
    with pytest.raises(InvalidInputError, match="divergence='foo' is not known") as error:
        QMF(divergence="foo").fit(small())
    offered = re.findall(r"'([a-z-]+)'", str(error.value).partition("Give one of")[2])
    assert {"kl", "frobenius"} < set(offered)
    assert not {"bernoulli", "poisson-log"} & set(offered)
    for name in offered:
        QMF(1, divergence=name, max_iter=1, random_state=0).fit(small(n_samples=5, n_features=4))


def test_what_only_qmf_refuses():
    with pytest.raises(InvalidInputError, match="batch_size=3 is for solver='adam'"):
        QMF(solver="newton", batch_size=3).fit(small())
    for wrong in ({"batch_size": 0}, {"ridge": -1.0}, {"ridge": 1e300}, {"init": "nmf"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            QMF(**wrong).fit(small())
    with pytest.raises(ValueError, match="projector"):
        QMFQ(projector="pca").fit(small())


@BOTH
def test_a_fitted_model_refuses(estimator):
    X = small()
    model = estimator(2, max_iter=2, random_state=0).fit(X)
    with pytest.raises(ValueError, match="X has 7 features"):
        model.transform(X[:, :7])
    with pytest.raises(InvalidInputError, match="Negative values"):
        model.transform(-X)
    with pytest.raises(InvalidInputError, match=r"shape \(15, 3\); \(n_samples, 2\)"):
        model.inverse_transform(np.ones((15, 3)))
    with pytest.raises(InvalidInputError, match="not finite"):
        model.inverse_transform(np.full((1, 2), np.nan))
    with pytest.raises(InvalidInputError, match="complex128; real numbers"):
        model.inverse_transform(np.full((1, 2), 1j))
    with pytest.raises(InvalidInputError, match="do not form an array of numbers"):
        model.inverse_transform([["a", "b"]])
    for feature in (8, -9, "gene", True, 1.5, [1], None):
        with pytest.raises(InvalidInputError, match="does not exist; there are 8"):
            model.transform_table(feature)
    with pytest.raises(InvalidInputError, match="n_points"):
        model.transform_table(0, n_points=1)
    with pytest.raises(InvalidInputError, match=r"warm_start=True.*shape \(15, 8\)"):
        model.set_params(warm_start=True).fit(X[:9])
    with pytest.raises(InvalidInputError, match=r"16 quantiles.*n_quantiles=4"):
        model.set_params(n_quantiles=4).fit(X)


@BOTH
def test_a_failed_fit_leaves_the_model_as_it_was(estimator):
    X = small()
    model = estimator(2, max_iter=2, random_state=0).fit(X)
    before = model.transform(X)
    with pytest.raises(InvalidInputError):
        model.fit(-X)
    np.testing.assert_array_equal(model.transform(X), before)


def test_a_checkpoint_that_is_a_folder_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="is a folder"):
        QMF(checkpoint=tmp_path).fit(small())


@BOTH
@pytest.mark.parametrize("change", [{"epsilon": 0.1}, {"n_quantiles": 5}, {"random_state": 1}])
def test_a_checkpoint_of_another_fit_is_refused(tmp_path, estimator, change):
    parameters = {"random_state": 0, "max_iter": 2, "checkpoint": tmp_path / "state"}
    estimator(**parameters).fit(small())
    with pytest.raises(CheckpointError, match=next(iter(change))):
        estimator(**{**parameters, **change}).fit(small())
    with pytest.raises(CheckpointError, match="data"):
        estimator(**parameters).fit(small(seed=1))


class Own:
    """A divergence made of two functions."""

    def __init__(self, value, derivative):
        self.value, self.derivative = value, derivative


def half(x, y):
    return 0.5 * (x - y) ** 2


def slope(x, y):
    return y - x


@BOTH
@pytest.mark.parametrize(
    ("value", "derivative", "words"),
    [
        (lambda x, y: None, slope, "value.*gave object numbers"),
        (lambda x, y: 1j * half(x, y), slope, "gave complex128"),
        (
            lambda x, y: half(x, y).sum(),
            slope,
            r"gave the shape \(\) for arrays of shape \(8, 15\)",
        ),
        (lambda x, y: half(x, y).T, slope, r"gave the shape \(15, 8\)"),
        (half, lambda x, y: 1.0, r"derivative.*gave the shape \(\)"),
        (lambda x, y: np.where(x > 1, np.nan, half(x, y)), slope, "is nan.*Give lower=0"),
        (lambda x, y: -half(x, y), lambda x, y: x - y, "never negative"),
        (half, lambda x, y: x - y, "derivative.*is not the derivative.*100%"),
        (half, lambda x, y: 2 * (y - x), "is not the derivative"),
        (lambda x, y: np.square(np.subtract(x, y, out=x)), slope, "changes its arguments"),
    ],
)
def test_divergences_that_are_none(estimator, value, derivative, words):
    with pytest.raises((InvalidInputError, InvalidTypeError), match=words):
        estimator(divergence=Own(value, derivative)).fit(small())


@BOTH
@pytest.mark.filterwarnings("ignore:.*hardly count:polyad.exceptions.DataWarning")
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_divergences_that_are_taken(estimator, scale):
    X = scale * small(n_samples=6, n_features=4)
    X[:, 0], X[:, 1] = 0.0, scale
    several = (
        Own(lambda x, y: np.abs(x - y), lambda x, y: np.sign(y - x)),
        Own(lambda x, y: half(x, y).tolist(), lambda x, y: slope(x, y).tolist()),
        Own(lambda x, y: 1.0 + half(x, y), slope),
    )
    for own in several if scale == 1.0 else several[-1:]:
        model = estimator(divergence=own, max_iter=2, random_state=0).fit(X)
        assert np.isfinite(model.transform(X)).all()


@BOTH
def test_a_file_with_negative_quantiles_is_refused_where_the_divergence_needs_positive_ones(
    estimator, tmp_path
):
    X = small()
    for divergence in ("kl", "frobenius"):
        model = estimator(divergence=divergence, max_iter=2, random_state=0).fit(X)
        model.quantiles_[2, 0] = -1e30
        model.save(tmp_path / divergence)
    with pytest.raises(ModelFileError, match="quantiles_ has negative numbers"):
        polyad.load(tmp_path / "kl")
    assert np.isfinite(polyad.load(tmp_path / "frobenius").score(X))
