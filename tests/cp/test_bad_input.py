"""Each wrong input gives one clear error before any work."""

import numpy as np
import pytest
from scipy.sparse import coo_array

import polyad
from polyad import CP, Checkpoint, KruskalTensor, NonnegativeCP, PoissonCP
from polyad.exceptions import CheckpointError, InvalidInputError, InvalidTypeError, PolyadError

X = np.random.default_rng(0).random((6, 5, 4))


def with_value(value):
    bad = X.copy()
    bad[1, 2, 3] = value
    return bad


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (np.zeros((0, 5, 4)), r"0 sample\(s\)"),
        (np.zeros((6, 0, 4)), r"0 feature\(s\)"),
        (np.zeros((6, 5, 0)), "0 entries in mode 2"),
        (np.zeros(5), "Expected 2D array"),
        (np.float64(3), "Expected 2D array"),
        (with_value(np.inf), r"infinity, first at \(1, 2, 3\)"),
        (coo_array(with_value(np.nan)), r"NaN, first at \(1, 2, 3\)"),
        (coo_array(with_value(-np.inf)), r"infinity, first at \(1, 2, 3\)"),
        (X.astype(complex), "Complex data not supported"),
        (X.astype(str), "does not hold numbers"),
        (with_value(1e200), "Scale the data"),
        (X * 1e-200, "Scale the data"),
        (X.astype(np.float32) * np.float32(1e20), "Scale the data"),
    ],
)
def test_data(data, says):
    with pytest.raises(PolyadError, match=says):
        CP(2).fit(data)


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"n_components": 0}, "n_components"),
        ({"n_components": -1}, "n_components"),
        ({"n_components": 1.5}, "n_components"),
        ({"n_components": 21}, "rank at most 20"),
        ({"ridge": -1.0}, "ridge"),
        ({"tol": -1e-3}, "tol"),
        ({"max_iter": 0}, "max_iter"),
        ({"n_init": 0}, "n_init"),
        ({"n_init": 10**30}, "n_init"),
        ({"missing": "ignore"}, "missing"),
        ({"init": "nndsvd"}, "not understood. Give 'svd', 'random', 'search', a Kruskal"),
        ({"init": "split"}, "'split' is for classes whose factors are not negative"),
        ({"init": 5}, "init=5 is not understood"),
        ({"init": [np.ones((6, 2)), np.ones((5, 2))]}, "factors of shape"),
        ({"init": [np.ones((6, 3)), np.ones((5, 3)), np.ones((4, 3))]}, "factors of shape"),
        ({"init": (np.ones(3), [np.ones((n, 2)) for n in X.shape])}, "weights of shape"),
        ({"init": [np.full((n, 2), np.nan) for n in X.shape]}, "NaN or infinity"),
        ({"n_components": True}, "n_components=True"),
        ({"fixed_modes": [0]}, r"init='svd' has none. Give the factors of all modes: init="),
        ({"fixed_modes": ["a"]}, "fixed_modes has 'a', a str; give the numbers of modes, 0..2"),
        ({"fixed_modes": [1.5]}, "fixed_modes has 1.5, a float"),
        ({"fixed_modes": np.array(2)}, r"fixed_modes has array\(2\), a ndarray"),
        ({"fixed_modes": [True]}, "fixed_modes has True, a bool"),
        ({"callbacks": [1]}, "callbacks has 1, a int; give functions"),
        ({"checkpoint": 5}, "checkpoint is a int; give a path"),
        ({"fixed_modes": [3]}, r"outside 0\.\.2"),
        ({"fixed_modes": [0, 1, 2]}, "nothing to fit"),
        ({"time_budget": 0.0}, "time_budget"),
        ({"n_jobs": 0}, "n_jobs"),
        ({"checkpoint": 3}, "give a path"),
        ({"checkpoint": "no/such/folder/file"}, "does not exist"),
        ({"random_state": "seed"}, "random_state"),
    ],
)
def test_parameters(parameters, says):
    with pytest.raises((PolyadError, ValueError, TypeError), match=says):
        CP(**{"n_components": 2, **parameters}).fit(X)


@pytest.mark.parametrize("name", ["n_init", "max_iter", "tol", "ridge", "random_state", "n_jobs"])
def test_true_is_no_number(name):
    with pytest.raises(InvalidTypeError, match=f"{name}=True is neither a number"):
        CP(**{"n_components": 2, name: True}).fit(X)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (X[0], "X has 2 modes"),
        (X[:, :3], "size 3 in mode 1, but CP was fitted to the size 5"),
        (X[:, :, :3], "size 3 in mode 2"),
        (with_value(np.inf), "infinity"),
        (X[:0], r"0 sample\(s\)"),
    ],
)
def test_transform(data, says):
    model = CP(2, random_state=0).fit(X)
    for method in (model.transform, model.score, model.partial_fit):
        with pytest.raises(PolyadError, match=says):
            method(data)


def test_inverse_transform():
    model = CP(2, random_state=0).fit(X)
    for bad in (np.ones((3, 5)), np.ones(2), np.ones((1, 2, 3)), [[1.0, np.nan]], [[np.inf, 1]]):
        with pytest.raises(PolyadError, match="as transform returns them"):
            model.inverse_transform(bad)


def test_warm_start_of_another_shape():
    model = CP(2, random_state=0, warm_start=True).fit(X)
    with pytest.raises(PolyadError, match="Use partial_fit for further samples"):
        model.fit(X[:3])
    assert model.factors_[0].shape == (6, 2)


def test_kruskal_init_with_weights():
    truth = KruskalTensor(
        np.array([2.0, 1.0]), [np.random.default_rng(0).random((n, 2)) for n in X.shape]
    )
    model = CP(2, init=truth, tol=1e-9).fit(truth.to_dense())
    assert model.n_iter_ <= 1
    assert model.objective_ < 1e-12


def test_a_checkpoint_error_comes_before_work(tmp_path):
    (tmp_path / "mine.txt").write_text("notes")
    calls = []
    with pytest.raises(CheckpointError, match="left alone"):
        CP(2, checkpoint=tmp_path / "mine.txt", callbacks=calls.append).fit(X)
    assert calls == []
    assert (tmp_path / "mine.txt").read_text() == "notes"


@pytest.mark.parametrize("every", ["a", 2.5, True])
def test_checkpoints_come_every_whole_number_of_iterations(every):
    with pytest.raises(InvalidTypeError, match=f"every={every!r}"):
        Checkpoint("fit.polyad", every=every)


@pytest.mark.parametrize("path", [5, None, b"model"])
def test_files_have_paths(path):
    model = CP(1, random_state=0).fit(X)
    for use in (Checkpoint, polyad.load, model.save):
        with pytest.raises(InvalidTypeError, match="The path is a"):
            use(path)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"k": 2.5}, "k=2.5"),
        ({"k": "a"}, "k='a'"),
        ({"k": -1}, "k=-1"),
        ({"k": True}, "k=True"),
        ({"component": True}, "component=True"),
        ({"mode": True}, "mode=True"),
    ],
)
def test_leading_labels(arguments, says):
    model = CP(2, random_state=0).fit(X)
    with pytest.raises(InvalidInputError, match=says):
        model.top(**{"component": 0, "mode": 1, **arguments})
    assert len(model.top(0, 1, k=np.int64(2))) == 2


@pytest.mark.parametrize("estimator", [CP, NonnegativeCP, PoissonCP])
def test_a_warm_start_has_the_components_of_the_model(estimator):
    model = estimator(2, warm_start=True, random_state=0).fit(X)
    with pytest.raises(InvalidInputError, match="a model of 2 components, but n_components=3"):
        model.set_params(n_components=3).fit(X)


class MyCP(CP):
    """Of a module that polyad does not know."""


def test_a_model_that_could_not_be_read_is_not_saved(tmp_path):
    with pytest.raises(InvalidTypeError, match=r"MyCP is not an estimator of polyad.*joblib"):
        MyCP(2).fit(X).save(tmp_path / "model")
    assert not (tmp_path / "model").exists()
