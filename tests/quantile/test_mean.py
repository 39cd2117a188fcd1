"""The mean of the reconstructions of several fits."""

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV

from polyad import QMF, LabelledTensor, Status
from polyad.exceptions import InvalidInputError, InvalidTypeError
from polyad.quantile import MeanQMF
from polyad.report import write_report
from tests.quantile.planted import small

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
X = small()
FEW = QMF(2, n_quantiles=4, max_iter=4, tol=0.0)


def fitted(data=X, **options):
    return MeanQMF(FEW, **{"n_fits": 3, "random_state": 0, **options}).fit(data)


def test_it_is_the_mean_of_what_its_fits_reconstruct():
    model = fitted()
    parts = [one.transform(X) for one in model.estimators_]
    np.testing.assert_array_equal(model.transform(X), np.hstack(parts))
    pairs = zip(model.estimators_, parts, strict=True)
    expected = sum(one.inverse_transform(part) for one, part in pairs) / 3
    found = model.inverse_transform(model.transform(X))
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    divergence = (X * np.log(X / expected) - X + expected).mean()
    assert model.score(X) == pytest.approx(-divergence, rel=1e-5)
    assert model.score(X) > np.mean([one.score(X) for one in model.estimators_])
    starts = {one.random_state for one in model.estimators_}
    assert len(starts) == 3
    np.testing.assert_array_equal(fitted().transform(X), model.transform(X))


def test_one_fit_is_a_fit():
    model = fitted(n_fits=1)
    (one,) = model.estimators_
    again = clone(FEW).set_params(random_state=one.random_state).fit(X)
    np.testing.assert_array_equal(model.transform(X), again.transform(X))
    assert model.score(X) == pytest.approx(again.score(X), rel=1e-12)


def test_its_estimator_is_not_changed_and_copies_are_the_same():
    given = QMF(2, n_quantiles=4, max_iter=2)
    model = MeanQMF(given, n_fits=2, random_state=0).fit(X)
    assert given.random_state is None
    assert not hasattr(given, "factors_")
    for copied in (pickle.loads(pickle.dumps(model)), clone(model).fit(X)):
        np.testing.assert_array_equal(copied.transform(X), model.transform(X))
    search = GridSearchCV(model, {"estimator__n_components": [1, 2]}, cv=2).fit(X)
    assert set(search.best_params_) == {"estimator__n_components"}


def test_missing_entries_are_predicted():
    gaps = X.copy()
    gaps[::3, 1] = np.nan
    model = fitted(gaps)
    found = model.inverse_transform(model.transform(gaps))
    assert np.isfinite(found).all()
    seen = ~np.isnan(gaps)
    divergence = (X * np.log(X / found) - X + found)[seen].mean()
    assert model.score(gaps) == pytest.approx(-divergence, rel=1e-5)


def test_tables_have_the_names_of_all_scores_and_the_labels_of_samples():
    names = [f"sample {k}" for k in range(len(X))]
    table = pd.DataFrame(X, index=names, columns=[f"gene {k}" for k in range(X.shape[1])])
    tensor = LabelledTensor(X, modes=["sample", "gene"], labels=[names, list(table.columns)])
    for data in (table, tensor):
        model = fitted(data, n_fits=2).set_output(transform="pandas")
        found = model.transform(data)
        assert list(found.columns) == [f"meanqmf{k}" for k in range(4)]
        assert list(found.index) == names
        np.testing.assert_array_equal(found, fitted(n_fits=2).transform(X))
        assert model.inverse_transform(found).shape == X.shape
    model = fitted(table)
    assert list(model.feature_names_in_) == list(table.columns)
    model.fit(X[:, :5])
    assert model.n_features_in_ == 5
    assert not hasattr(model, "feature_names_in_")
    assert fitted(X.astype(np.float32)).transform(X.astype(np.float32)).dtype == np.float32


def test_an_interrupt_ends_all_fits_and_keeps_what_there_is():
    seen = []

    def interrupt(record):
        seen.append(record)
        if len(seen) == 6:  # in the second fit of four iterations
            raise KeyboardInterrupt

    model = MeanQMF(clone(FEW).set_params(callbacks=interrupt), n_fits=3, random_state=0).fit(X)
    statuses = [one.status_ is Status.INTERRUPTED for one in model.estimators_]
    assert statuses == [False, True]
    assert model.transform(X).shape == (len(X), 4)


def test_what_it_refuses(tmp_path):
    with pytest.raises(NotFittedError):
        MeanQMF(FEW).transform(X)
    with pytest.raises(ValueError, match="'estimator' parameter of MeanQMF must be an instance"):
        MeanQMF(MeanQMF(FEW)).fit(X)
    with pytest.raises(ValueError, match="'n_fits' parameter"):
        MeanQMF(FEW, n_fits=0).fit(X)
    with pytest.raises(InvalidInputError, match="which all fits would write to"):
        MeanQMF(QMF(checkpoint=tmp_path / "state")).fit(X)
    with pytest.raises(InvalidInputError, match=r"\(n_samples, 6\) is needed"):
        fitted().inverse_transform(np.ones((1, 2)))
    with pytest.raises(InvalidTypeError, match="one of estimators_"):
        write_report(fitted(), tmp_path / "report.html")
