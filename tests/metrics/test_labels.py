"""Measures of labelled data: entries are compared with the model by label, not by place."""

import numpy as np
import pytest
from scipy.sparse import coo_array

from polyad import CP, LabelledTensor, NonnegativeCP
from polyad.exceptions import InvalidInputError
from polyad.metrics import core_consistency, explained_variation, poisson_deviance, relative_error


def shuffled(X, seed=0):
    """Return labelled data, and the same with samples, entries and modes in another order."""
    labels = {
        "sample": [f"s{k}" for k in range(X.shape[0])],
        "word": [f"w{k}" for k in range(X.shape[1])],
    }
    plain = LabelledTensor(X, modes=["sample", "word", "day"], labels=labels)
    generator = np.random.default_rng(seed)
    rows, words = (generator.permutation(n) for n in X.shape[:2])
    data = X.toarray() if isinstance(X, coo_array) else X
    mixed = np.transpose(data[rows][:, words], (0, 2, 1))
    mixed = coo_array(mixed) if isinstance(X, coo_array) else mixed
    labels = {
        "sample": np.array(labels["sample"])[rows],
        "word": np.array(labels["word"])[words],
    }
    return plain, LabelledTensor(mixed, modes=["sample", "day", "word"], labels=labels)


@pytest.mark.parametrize("convert", [np.asarray, coo_array])
@pytest.mark.parametrize(
    "measure", [explained_variation, relative_error, poisson_deviance, core_consistency]
)
def test_labelled_data_is_compared_by_label(measure, convert):
    X = np.random.default_rng(0).poisson(2.0, (8, 7, 6)).astype(float)
    plain, mixed = shuffled(convert(X))
    model = NonnegativeCP(2, random_state=0).fit(plain)
    assert measure(mixed, model) == pytest.approx(measure(X, model), rel=1e-9)


def test_samples_that_the_model_has_not_seen_are_refused():
    X = np.random.default_rng(0).random((4, 3, 2))
    plain = LabelledTensor(X, modes=list("abc"), labels={"a": list("pqrs")})
    other = LabelledTensor(X, modes=list("abc"), labels={"a": list("pqrz")})
    model = CP(1, random_state=0).fit(plain)
    with pytest.raises(InvalidInputError, match=r"lacks 1 of the samples .* 's'"):
        explained_variation(other, model)


def test_core_consistency_refuses_unobserved_entries():
    X = coo_array(np.random.default_rng(0).random((4, 3, 2)))
    model = CP(1, random_state=0, missing="unobserved").fit(X)
    with pytest.raises(InvalidInputError, match="unobserved entries"):
        core_consistency(X, model)
