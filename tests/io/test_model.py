"""Model files: what is saved comes back, hostile and damaged files are refused, old ones load."""

import io
import json
import os
import pickle
import warnings
import zipfile
from copy import deepcopy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tensorly
import torch
from scipy.sparse import coo_array
from sklearn.exceptions import NotFittedError

import polyad
from polyad import CP, QMF, GeneralizedCP, KruskalTensor, LabelledTensor, Status
from polyad.datasets import make_low_rank, make_sparse
from polyad.exceptions import (
    InvalidInputError,
    InvalidTypeError,
    ModelFileError,
    PolyadError,
)
from polyad.fitting.archive import write_archive
from polyad.losses import BetaDivergenceLoss, CustomLoss, GaussianLoss, HuberLoss

DATA = Path(__file__).parent.parent / "stored"
SHAPE = (7, 5, 4)


def dense():
    return make_low_rank(SHAPE, 2, noise=0.1, random_state=0)[0]


def sparse():
    return make_sparse(SHAPE, 60, random_state=0)


def labelled(second=("v", "w", "x", "y", "z"), third=("p", "q", "r", "s")):
    samples = [f"sample {k}" for k in range(SHAPE[0])]
    return LabelledTensor(
        sparse(), modes=("sample", "word", "place"), labels=[samples, list(second), list(third)]
    )


def wide():
    values = np.random.default_rng(0).random((9, 4))
    return pd.DataFrame(values, columns=list("abcd"), index=pd.Index(list("qwertzuio")))


def with_holes():
    data = dense().copy()
    data[1, 2, 3] = np.nan
    return data


INPUTS = {
    "dense": dense,
    "sparse": sparse,
    "float32": lambda: dense().astype(np.float32),
    "sparse float32": lambda: sparse().astype(np.float32),
    "torch": lambda: torch.from_numpy(dense()),
    "missing entries": with_holes,
    "text labels": labelled,
    "integer labels": lambda: labelled(second=[3, 1, 4, 15, 9]),
    "date labels": lambda: labelled(second=pd.date_range("2024-01-01", periods=5)),
    "wide pandas": wide,
}


def reload(model, folder):
    model.save(folder / "m.polyad")
    return polyad.load(folder / "m.polyad")


def fitted(X, **parameters):
    return CP(2, random_state=0, tol=1e-4, **parameters).fit(X)


def same(a, b):
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    return len(a) == len(b) and all(
        x is y if x is None else same(x, y) for x, y in zip(a, b, strict=True)
    )


@pytest.mark.parametrize("kind", INPUTS)
def test_a_loaded_model_is_the_saved_one(tmp_path, kind):
    X = INPUTS[kind]()
    model = fitted(X)
    loaded = reload(model, tmp_path)
    assert type(loaded) is CP
    assert same([np.asarray(factor) for factor in model.factors_], loaded.factors_)
    assert same(np.asarray(model.weights_), loaded.weights_)
    assert same(model.labels_, loaded.labels_)
    assert loaded.modes_ == model.modes_
    assert loaded.status_ is model.status_
    assert (loaded.n_iter_, loaded.objective_) == (model.n_iter_, model.objective_)
    assert loaded.history_.records == model.history_.records
    assert loaded.n_features_in_ == model.n_features_in_
    assert loaded.n_samples_seen_ == model.n_samples_seen_
    features = loaded.transform(X)
    np.testing.assert_array_equal(np.asarray(features), np.asarray(model.transform(X)))
    assert type(features) is type(model.transform(X))
    pd.testing.assert_frame_equal(loaded.factor_table(1), model.factor_table(1))


@pytest.mark.parametrize("kind", INPUTS)
def test_a_loaded_model_scores_the_same(tmp_path, kind):
    X = INPUTS[kind]()
    model = fitted(X)
    assert reload(model, tmp_path).score(X) == model.score(X)


def test_a_loaded_torch_model_goes_on_learning_from_torch(tmp_path):
    X = torch.from_numpy(dense())
    loaded = reload(fitted(X), tmp_path).partial_fit(X)
    assert loaded.n_samples_seen_ == 2 * SHAPE[0]


def test_unknown_columns_are_still_refused_after_loading(tmp_path):
    model = fitted(wide())
    loaded = reload(model, tmp_path)
    assert loaded.feature_names_in_.dtype == object
    assert list(loaded.feature_names_in_) == list(model.feature_names_in_)
    with pytest.raises(ValueError, match="feature names"):
        loaded.transform(wide().rename(columns={"a": "other"}))


@pytest.mark.parametrize("kind", ["dense", "sparse", "text labels"])
@pytest.mark.parametrize("batches_before", [0, 1])
def test_a_loaded_model_goes_on_learning(tmp_path, kind, batches_before):
    X = INPUTS[kind]()
    model = fitted(X, ridge=0.01)
    model.labels_[0] = None
    more = X.data if kind == "text labels" else X
    for _ in range(batches_before):
        model.partial_fit(more)
    loaded = reload(model, tmp_path)
    model.partial_fit(more)
    loaded.partial_fit(more)
    assert same(model.factors_, loaded.factors_)
    assert same(model.weights_, loaded.weights_)
    assert loaded.n_samples_seen_ == model.n_samples_seen_ == (2 + batches_before) * SHAPE[0]


def test_a_loaded_model_goes_on_from_where_it_was(tmp_path):
    X = dense()
    model = CP(2, random_state=0, tol=1e-12, warm_start=True).fit(X)
    loaded = reload(model, tmp_path).fit(X)
    assert loaded.n_iter_ < model.n_iter_ / 2
    assert loaded.objective_ <= model.objective_ * (1 + 1e-12)


def test_a_warm_start_of_a_torch_model_takes_torch_data(tmp_path):
    X = torch.from_numpy(dense())
    loaded = reload(CP(2, random_state=0, warm_start=True).fit(X), tmp_path).fit(X)
    assert isinstance(loaded.weights_, torch.Tensor)


@pytest.mark.parametrize("status", [Status.MAX_ITER, Status.STOPPED])
def test_every_ending_is_kept(tmp_path, status):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stop = [lambda _: True] if status is Status.STOPPED else None
        model = CP(2, max_iter=2, tol=0, callbacks=stop, random_state=0).fit(dense())
    assert reload(model, tmp_path).status_ is status


# Parameters.

FACTORS = [np.random.default_rng(1).random((size, 2)) for size in SHAPE]


def test_an_unfitted_model_stays_unfitted(tmp_path):
    loaded = reload(CP(3, tol=0.5, ridge=1e-3), tmp_path)
    assert loaded.get_params() == CP(3, tol=0.5, ridge=1e-3).get_params()
    with pytest.raises(NotFittedError):
        loaded.transform(dense())


def test_a_refused_first_fit_leaves_an_unfitted_model(tmp_path):
    model = CP(100)
    with pytest.raises(PolyadError):
        model.fit(dense())
    for one in (model, reload(model, tmp_path)):
        with pytest.raises(NotFittedError):
            one.transform(dense())


@pytest.mark.parametrize(
    "init",
    [
        KruskalTensor(np.array([2.0, 1.0]), FACTORS),
        FACTORS,
        (np.array([2.0, 1.0]), FACTORS),
        [torch.from_numpy(factor) for factor in FACTORS],
        tensorly.cp_tensor.CPTensor((np.array([2.0, 1.0]), FACTORS)),
        {"weights": np.array([2.0, 1.0]), "factors": FACTORS},
    ],
    ids=["KruskalTensor", "list", "pair", "torch", "tensorly", "dict"],
)
def test_a_given_start_is_kept(tmp_path, init):
    model = CP(2, init=init, max_iter=300).fit(dense())
    again = reload(model, tmp_path).fit(dense())
    assert same(again.factors_, model.factors_)


@pytest.mark.parametrize("fixed", [{1}, frozenset({1}), range(1, 2), [1], (1,), np.array([1])])
def test_fixed_modes_are_kept(tmp_path, fixed):
    model = CP(2, init=FACTORS, fixed_modes=fixed).fit(dense())
    again = reload(model, tmp_path).fit(dense())
    assert list(again.fixed_modes) == [1]
    assert same(again.factors_, model.factors_)


def test_parameters_of_numpy_types_are_usable_after_loading(tmp_path):
    """As a GridSearchCV over ``np.arange(1, 4)`` sets them."""
    model = CP(np.int64(2), tol=np.float64(1e-3), warm_start=np.bool_(False), n_init=np.int32(1))
    loaded = reload(model, tmp_path)
    assert type(loaded.n_components) is int
    loaded.fit(dense())


@pytest.mark.parametrize(
    ("seed", "expected"), [(5, 5), (None, None), (np.random.RandomState(0), None)]
)
def test_a_seed_is_kept_and_a_running_generator_is_not(tmp_path, seed, expected):
    assert reload(CP(2, random_state=seed), tmp_path).random_state == expected


def test_code_and_places_of_one_machine_are_left_out(tmp_path):
    model = CP(2, random_state=0, callbacks=[print], checkpoint=tmp_path / "night.polyad")
    model.callbacks = [lambda _: None]
    loaded = reload(model.fit(dense()), tmp_path)
    assert loaded.callbacks is None
    assert loaded.checkpoint is None


def test_what_cannot_be_saved_is_named(tmp_path):
    with pytest.raises(InvalidTypeError, match=r"parameters\.init.*object"):
        CP(2, init=object()).save(tmp_path / "m.polyad")
    assert os.listdir(tmp_path) == []


class OwnLoss(GaussianLoss):
    """Half the loss of its parent, under the same name."""

    def value(self, x, m):
        return 0.5 * super().value(x, m)

    def derivative(self, x, m):
        return 0.5 * super().derivative(x, m)


class Unnamed(OwnLoss):
    name = "mine"


@pytest.mark.parametrize(
    "loss", [OwnLoss(), Unnamed(), CustomLoss(lambda x, m: (x - m) ** 2, lambda x, m: 2 * (m - x))]
)
def test_a_loss_of_ones_own_is_set_again_after_loading(tmp_path, loss):
    model = GeneralizedCP(2, loss=loss, random_state=0, max_iter=300).fit(dense())
    loaded = reload(reload(model, tmp_path), tmp_path)
    assert same(loaded.factors_, model.factors_)
    with pytest.raises(InvalidInputError, match=r"of your own.*set_params\(loss="):
        loaded.transform(dense())
    features = loaded.set_params(loss=loss).transform(dense())
    np.testing.assert_array_equal(features, model.transform(dense()))


@pytest.mark.parametrize(
    "loss", ["poisson", "bernoulli", HuberLoss(0.7), BetaDivergenceLoss(beta=0.5), GaussianLoss()]
)
def test_losses_of_polyad_are_kept(tmp_path, loss):
    loaded = reload(GeneralizedCP(2, loss=loss), tmp_path)
    assert type(loaded.loss) is type(loss)
    assert loaded.loss == loss or vars(loaded.loss) == vars(loss)


def test_a_divergence_is_kept_as_a_loss_is(tmp_path):
    for divergence in ("kl", "frobenius", "huber", HuberLoss(0.7), BetaDivergenceLoss(1.5)):
        assert reload(QMF(2, divergence=divergence), tmp_path).divergence == divergence


def test_a_divergence_of_ones_own_is_set_again_after_loading(tmp_path):
    loaded = reload(QMF(2, divergence=CustomLoss(np.subtract, np.subtract)), tmp_path)
    assert reload(loaded, tmp_path).divergence == "custom"
    with pytest.raises(InvalidInputError, match=r"of your own.*set_params\(divergence="):
        loaded.fit(np.abs(dense()[0]))


def test_a_model_that_fit_would_refuse_is_not_saved(tmp_path):
    for model in (CP(2, tol=-1.0), CP(2, max_iter="many"), GeneralizedCP(2, loss="unknown")):
        with pytest.raises(ValueError, match=r"tol|max_iter|loss"):
            model.save(tmp_path / "m.polyad")
    assert os.listdir(tmp_path) == []


# Hostile files.


class Exploit:
    def __reduce__(self):
        return (os.system, ("touch exploited",))


def contents_of(model):
    """Return what ``save`` gives to the archive."""
    model.save("plain.polyad")
    from polyad.fitting.archive import read_archive

    content = read_archive("plain.polyad", "model")
    os.remove("plain.polyad")
    return content


@pytest.fixture(scope="module")
def whole():
    return contents_of(fitted(labelled()))


@pytest.fixture
def content(whole, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return deepcopy(whole)


def refuse(content, says, path="hostile.polyad"):
    write_archive(path, "model", content)
    with pytest.raises(ModelFileError, match=says) as caught:
        polyad.load(path)
    assert path in str(caught.value)
    assert os.listdir() == [path]


@pytest.mark.parametrize(
    "name",
    ["load", "os", "__version__", "KruskalTensor", "LabelledTensor", "io", "Status", "", "eval"],
)
def test_only_estimators_are_made(content, name):
    refuse({**content, "class": name}, "no estimator")


@pytest.mark.parametrize("name", [None, 5, ["CP"], {"CP": 1}])
def test_a_class_that_is_no_name_is_refused(content, name):
    refuse({**content, "class": name}, "not a usable model")


@pytest.mark.parametrize("name", ["unknown", "fit", "__class__", "n_components__x", "weights_"])
def test_only_parameters_of_the_class_are_set(content, name):
    refuse({**content, "parameters": {name: 1}}, "the parameters are not those of CP")


@pytest.mark.parametrize(
    "name",
    [
        *("fit", "transform", "components_", "kruskal_", "save", "_restore", "n_components"),
        *("__class__", "__dict__", "__len__", "__reduce__"),
        *("_sklearn_output_config", "_metadata_request", "anything"),
    ],
)
def test_only_what_a_model_learns_is_set(content, name):
    content["learned"][name] = {"transform": "pandas"}
    refuse(content, "not an attribute that a CP learns")


@pytest.mark.parametrize("part", ["class", "parameters", "learned"])
def test_a_missing_part_is_refused(content, part):
    del content[part]
    refuse(content, "not a usable model")


@pytest.mark.parametrize("part", ["parameters", "learned"])
@pytest.mark.parametrize("value", [None, [1, 2], "text", 3])
def test_a_part_of_the_wrong_type_is_refused(content, part, value):
    refuse({**content, part: value}, "not a usable model")


NEEDED = ["factors_", "weights_", "labels_", "modes_", "history_", "status_", "n_iter_"]


@pytest.mark.parametrize("name", [*NEEDED, "objective_", "_lengths", "_online_sums"])
def test_a_missing_attribute_is_named(content, name):
    del content["learned"][name]
    refuse(content, f"lacks {name}")


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name in NEEDED for value in ("os.system", {"a": 1}, 1.5)]
    + [
        ("factors_", [np.ones((3, 2)), np.ones((4, 3))]),
        ("factors_", [np.ones((3, 2)), np.ones((4, 2))]),
        ("factors_", [np.ones((3, 2), dtype=int)] * 3),
        ("factors_", [np.full((3, 2), "text")] * 3),
        ("factors_", np.ones((3, 3, 2))),
        ("factors_", []),
        ("weights_", np.ones(5)),
        ("weights_", np.array(1.0)),
        ("weights_", np.array(["a", "b"])),
        ("labels_", [None, None]),
        ("labels_", [None, None, np.array(["just one"])]),
        ("labels_", [None, None, "abcd"]),
        ("modes_", ("a", "b")),
        ("modes_", (1, 2, 3)),
        ("objective_", "0"),
    ],
)
def test_an_attribute_of_the_wrong_kind_is_refused(content, name, value):
    content["learned"][name] = value
    refuse(content, "not a usable model")


@pytest.mark.parametrize(
    "classes",
    [[1 + 1j, 2.0], [np.nan, 1.0], np.array(["2020-01-01", "2021-01-01"], "M8[D]")],
    ids=["complex", "missing", "dates"],
)
def test_classes_that_no_fit_has_are_refused(tmp_path, monkeypatch, classes):
    monkeypatch.chdir(tmp_path)
    X = np.random.default_rng(0).random((6, 4))
    content = contents_of(polyad.SupervisedCP(2, random_state=0).fit(X, [0, 1] * 3))
    content["learned"]["classes_"] = np.asarray(classes)
    refuse(content, "classes_")


def test_pickled_arrays_are_never_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fitted(labelled()).save("good.polyad")
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.array([Exploit()]), allow_pickle=True)
    with zipfile.ZipFile("good.polyad") as good, zipfile.ZipFile("bad.polyad", "w") as bad:
        for name in good.namelist():
            bad.writestr(name, stream.getvalue() if name == "array0.npy" else good.read(name))
    with pytest.raises(ModelFileError, match="pickled"):
        polyad.load("bad.polyad")
    Path("pickle.polyad").write_bytes(pickle.dumps(Exploit()))
    with pytest.raises(ModelFileError, match="not a whole polyad file"):
        polyad.load("pickle.polyad")
    assert not Path("exploited").exists()


def test_a_checkpoint_is_not_a_model(tmp_path):
    path = tmp_path / "night.polyad"
    with pytest.raises(RuntimeError, match="killed"):
        CP(2, random_state=0, checkpoint=polyad.Checkpoint(path, every=1), callbacks=[kill]).fit(
            dense()
        )
    assert path.exists()
    with pytest.raises(ModelFileError, match=r"is a polyad checkpoint file; .* fit again with it"):
        polyad.load(path)


def kill(iteration):
    if iteration.number >= 3:
        message = "killed"
        raise RuntimeError(message)


@pytest.mark.parametrize("part", [0.0, 0.3, 0.8, 0.99])
def test_a_truncated_model_is_refused(tmp_path, part):
    path = tmp_path / "m.polyad"
    fitted(dense()).save(path)
    path.write_bytes(path.read_bytes()[: int(part * path.stat().st_size)])
    with pytest.raises(ModelFileError, match="not a whole polyad file"):
        polyad.load(path)


def test_a_model_of_a_newer_version_says_what_to_install(tmp_path):
    fitted(dense()).save(tmp_path / "m.polyad")
    with zipfile.ZipFile(tmp_path / "m.polyad") as old:
        members = {name: old.read(name) for name in old.namelist()}
    manifest = {**json.loads(members["manifest.json"]), "version": 2, "polyad": "7.0"}
    with zipfile.ZipFile(tmp_path / "new.polyad", "w") as new:
        for name, data in members.items():
            new.writestr(name, json.dumps(manifest) if name == "manifest.json" else data)
    with pytest.raises(ModelFileError, match=r"Install polyad 7\.0 or newer"):
        polyad.load(tmp_path / "new.polyad")


# Files and folders.


def test_a_failed_save_keeps_the_model_before(tmp_path, monkeypatch):
    path = tmp_path / "m.polyad"
    first = fitted(dense())
    first.save(path)

    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np.lib.format, "write_array", full)
    with pytest.raises(OSError, match="No space left"):
        fitted(sparse()).save(path)
    monkeypatch.undo()
    assert same(polyad.load(path).factors_, first.factors_)
    assert os.listdir(tmp_path) == ["m.polyad"]


def test_a_model_replaces_another(tmp_path):
    path = tmp_path / "m.polyad"
    fitted(dense()).save(path)
    second = fitted(sparse())
    second.save(path)
    assert same(polyad.load(path).factors_, second.factors_)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"folder of m\.polyad does not exist.*nowhere"):
        fitted(dense()).save(tmp_path / "nowhere" / "m.polyad")
    with pytest.raises(FileNotFoundError):
        polyad.load(tmp_path / "nowhere" / "m.polyad")


def test_saving_onto_a_folder_is_an_error(tmp_path):
    (tmp_path / "m.polyad").mkdir()
    with pytest.raises(OSError, match="This is a folder"):
        fitted(dense()).save(tmp_path / "m.polyad")
    assert os.listdir(tmp_path) == ["m.polyad"]


@pytest.mark.parametrize("convert", [str, Path, os.fspath])
def test_any_kind_of_path(tmp_path, convert):
    path = convert(tmp_path / "ümläut model.polyad")
    fitted(dense()).save(path)
    assert polyad.load(path).n_features_in_ == SHAPE[1]


# Files of released versions.


def write_archive_of_this_version(path):
    """Write the model of ``tests/stored``.

    Run ``write_archive_of_this_version("tests/stored/model-v2.polyad")`` once when the format gets
    version 2, and add a test for it. The file of a released version is never written again.
    """
    i, j, k = np.indices((4, 3, 3))
    visits = LabelledTensor(
        coo_array(np.where((i + j + k) % 3 == 0, 0.0, 1.0 + i * j + k)),
        modes=("patient", "day", "drug"),
        labels=[
            ["ann", "bob", "cem", "dée"],
            pd.date_range("2024-02-28", periods=3),
            ["aspirin", "codeine", "statin"],
        ],
    )
    CP(2, ridge=0.01, tol=1e-6, random_state=0, callbacks=[]).fit(visits).save(path)


V1_WEIGHTS = [15.589014274778, 8.722764056311]
V1_FACTORS = [
    [
        [0.226710721855, 0.273237895659],
        [0.432990887628, -0.081364705429],
        [0.561817866763, -0.51373807739],
        [0.667444248169, 0.809193440981],
    ],
    [
        [0.307476588705, -0.015416900969],
        [0.544223300387, -0.474269414163],
        [0.780563352146, 0.880244762525],
    ],
    [
        [0.533725026735, 0.046384443839],
        [0.558280788418, -0.602870335344],
        [0.635185136097, 0.796489699954],
    ],
]
# Of a new patient with one prescription of codeine on the second day.
V1_FEATURES = [[0.282137454256, 0.262543767189]]


def test_models_of_version_1_load():
    assert (DATA / "model-v1.polyad").stat().st_size < 10_000
    model = polyad.load(DATA / "model-v1.polyad")
    # Every parameter as it was, whatever the defaults are now.
    kept = {"n_components": 2, "ridge": 0.01, "tol": 1e-6, "random_state": 0, "max_iter": 500}
    assert {**model.get_params(), **kept} == model.get_params()
    assert (model.init, model.fixed_modes, model.missing) == ("svd", (), "zero")
    assert model.modes_ == ("patient", "day", "drug")
    assert model.labels_[0].tolist() == ["ann", "bob", "cem", "dée"]
    assert model.labels_[1].tolist() == pd.date_range("2024-02-28", periods=3).to_numpy().tolist()
    assert model.labels_[2].tolist() == ["aspirin", "codeine", "statin"]
    assert model.status_ is Status.CONVERGED
    assert model.n_iter_ == len(model.history_) - 1 == 9
    np.testing.assert_allclose(model.weights_, V1_WEIGHTS, rtol=1e-11)
    for factor, stored in zip(model.factors_, V1_FACTORS, strict=True):
        np.testing.assert_allclose(factor, stored, atol=1e-11)
    new = pd.DataFrame(
        {"patient": ["eve"], "day": pd.to_datetime(["2024-02-29"]), "drug": ["codeine"]}
    )
    events = LabelledTensor.from_frame(new, modes=["patient", "day", "drug"])
    np.testing.assert_allclose(model.transform(events), V1_FEATURES, atol=1e-9)


def test_the_archive_can_be_written_again(tmp_path):
    write_archive_of_this_version(tmp_path / "m.polyad")
    model, stored = polyad.load(tmp_path / "m.polyad"), polyad.load(DATA / "model-v1.polyad")
    assert polyad.factor_match_score(model.kruskal_, stored.kruskal_, weights=True) > 0.999
