"""The room of docs/develop.md keeps what every room promises."""

import runpy
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import coo_array
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from polyad import Checkpoint, LabelledTensor, Status, factor_match_score
from polyad.datasets import make_low_rank
from polyad.exceptions import InvalidInputError, InvalidTypeError
from polyad.report import html, write_report

ROOM = Path(__file__).parents[1] / "docs" / "toy_room.py"
RidgeCP = runpy.run_path(str(ROOM))["RidgeCP"]
X, TRUTH = make_low_rank((20, 6, 5), 2, noise=0.1, random_state=0)


def fitted(data=X, **parameters):
    return RidgeCP(2, random_state=0, **parameters).fit(data)


def test_it_finds_the_components_and_never_goes_up():
    model = fitted(ridge=1e-3)
    assert model.status_ is Status.CONVERGED
    assert factor_match_score(model.kruskal_, TRUTH) > 0.99
    assert (np.diff(model.history_.objective) <= 1e-12 * model.objective_).all()
    assert model.objective_ == pytest.approx(
        0.5 * np.sum((X - model.kruskal_.to_dense()) ** 2)
        + 0.5e-3 * np.sum((model.factors_[0] * model.weights_) ** 2)
    )


def test_new_samples_are_treated_like_those_of_the_fit():
    model = fitted()
    np.testing.assert_allclose(model.transform(X), clone(model).fit_transform(X), rtol=1e-9)
    np.testing.assert_allclose(model.transform(X[3:4]), model.transform(X)[3:4], rtol=1e-9)


def test_sparse_data_and_single_precision():
    dense, sparse, single = fitted(), fitted(coo_array(X)), fitted(X.astype(np.float32))
    np.testing.assert_allclose(sparse.weights_, dense.weights_, rtol=1e-6)
    np.testing.assert_allclose(single.weights_, dense.weights_, rtol=1e-3)
    assert {part.dtype for part in single.factors_} == {np.dtype(np.float32)}


def test_threads_and_restarts():
    one, two = fitted(n_init=3, n_jobs=1), fitted(n_init=3, n_jobs=2)
    for own, other in zip(one.factors_, two.factors_, strict=True):
        np.testing.assert_array_equal(own, other)
    assert one.objective_ <= fitted().objective_


def test_a_killed_fit_goes_on(tmp_path):
    def power_cut(iteration):
        if iteration.number == 5:
            raise RuntimeError

    saved = Checkpoint(tmp_path / "fit.polyad", every=1)
    with pytest.raises(RuntimeError):
        fitted(checkpoint=saved, callbacks=[power_cut])
    whole, resumed = fitted(), fitted(checkpoint=saved)
    assert resumed.n_iter_ == whole.n_iter_
    for own, other in zip(resumed.factors_, whole.factors_, strict=True):
        np.testing.assert_array_equal(own, other)


def test_a_fit_that_was_cut_short_goes_on():
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        model = fitted(max_iter=2)
    before = model.objective_
    model.set_params(max_iter=100, warm_start=True).fit(X)
    assert model.objective_ < before
    with pytest.raises(InvalidInputError, match="warm_start"):
        model.set_params(n_components=3).fit(X)


def test_labels_reach_the_tables():
    tensor = LabelledTensor(X, modes=["user", "item", "week"], labels={"item": list("abcdef")})
    model = fitted(tensor).set_output(transform="pandas")
    assert list(model.factor_table("item").index) == list("abcdef")
    assert list(model.transform(tensor).columns) == ["ridgecp0", "ridgecp1"]
    shuffled = tensor.align({"item": list("fedcba")})
    np.testing.assert_allclose(model.transform(shuffled), model.transform(tensor))


def test_what_cannot_be_fitted_is_refused(tmp_path):
    with pytest.raises(ValueError, match="ridge"):
        fitted(ridge=0.0)
    with pytest.raises(InvalidInputError, match="NaN"):
        fitted(np.where(X > 0, X, np.nan))
    with pytest.raises(InvalidTypeError, match=r"joblib\.dump"):
        fitted().save(tmp_path / "model.polyad")


def test_a_report_without_a_score(tmp_path, monkeypatch):
    monkeypatch.setattr(html, "_picture", lambda figure: "data:image/png;base64,")
    assert write_report(fitted(), tmp_path / "report.html").exists()
    with pytest.raises(InvalidTypeError, match="RidgeCP has none: leave out X"):
        write_report(fitted(), tmp_path / "other.html", X=X)
