"""Features whose numbers are too small to count in the divergence are told."""

import warnings

import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler

from polyad import QMF, QMFQ
from polyad.exceptions import DataWarning

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

QUICK = pytest.mark.parametrize(
    "model", [QMF(1, max_iter=1), QMFQ(1, projector="svd", max_iter=1)], ids=["QMF", "QMFQ"]
)


def measured(missing=False):
    rng = np.random.default_rng(0)
    X = rng.gamma(2.0, size=(20, 8))
    if missing:
        X[rng.random(X.shape) < 0.1] = np.nan
    return X


@QUICK
def test_units_that_hide_half_of_the_features_are_told(model):
    with pytest.warns(DataWarning, match=r"half of the features have .* StandardScaler"):
        model.fit(measured() * 100.0 ** np.arange(8))


def test_missing_entries_are_left_out_of_it():
    X = measured(missing=True)
    with pytest.warns(DataWarning, match="half of the features have"):
        QMF(1, max_iter=1).fit(X * 100.0 ** np.arange(8))


@QUICK
def test_even_features_constant_features_and_other_units_are_not_told(model):
    X = measured()
    constant = np.ones((20, 12))
    scaled = StandardScaler(with_mean=False).fit_transform(X * 100.0 ** np.arange(8))
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        for even in (X, 1e-9 * X, scaled, np.hstack([X, constant]), constant):
            model.fit(even)
