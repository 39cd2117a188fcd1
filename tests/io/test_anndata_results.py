"""Results written into an AnnData: where they are, what they are, and what stays as it was."""

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import polyad
from polyad import (
    CP,
    QMF,
    QMFQ,
    KruskalTensor,
    LabelledTensor,
    NonnegativeCP,
    StochasticCP,
    SupervisedCP,
    WassersteinCP,
)
from polyad.exceptions import InvalidInputError, InvalidTypeError
from polyad.io import read_anndata, write_anndata
from tests.io.cells import CELLS, COUNTS, GENES, make, on_disk, save

QUICK = {"max_iter": 4, "tol": 0, "random_state": 0, "n_jobs": 1}
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture
def adata():
    return make(np.asarray)


def contents(adata):
    """Return what an AnnData holds besides its matrix."""
    return {place: sorted(getattr(adata, place)) for place in ("obsm", "varm", "uns", "obs", "var")}


EMPTY = {"obsm": [], "varm": [], "uns": [], "obs": [], "var": []}


# What is written.


def test_a_model_of_the_whole(adata):
    model = CP(2, random_state=0).fit(adata)
    assert write_anndata(model, adata) is None
    assert contents(adata) == EMPTY | {"obsm": ["X_cp"], "varm": ["cp"], "uns": ["cp"]}
    np.testing.assert_array_equal(adata.obsm["X_cp"], model.factors_[0] * model.weights_)
    np.testing.assert_array_equal(adata.varm["cp"], model.components_.T)
    assert adata.obsm["X_cp"].dtype == adata.varm["cp"].dtype == np.float32
    result = adata.uns["cp"]
    assert result["method"] == "CP"
    assert result["version"] == polyad.__version__
    assert result["status"] == model.status_.value
    assert result["n_iter"] == model.n_iter_
    assert result["objective"] == model.objective_
    np.testing.assert_array_equal(result["weights"], model.weights_)
    frame = model.history_.to_frame().reset_index()
    assert list(result["history"]) == list(frame)
    for name, values in result["history"].items():
        np.testing.assert_array_equal(values, frame[name])
    assert "factors" not in result


def test_features_and_loadings_give_the_data_back(adata):
    write_anndata(CP(8, random_state=0).fit(adata), adata)
    np.testing.assert_allclose(adata.obsm["X_cp"] @ adata.varm["cp"].T, adata.X, atol=1e-3)


def test_quantile_factorizations_write_their_transforms(adata):
    model = QMF(2, n_quantiles=5, **QUICK).fit(adata)
    write_anndata(model, adata)
    assert contents(adata) == EMPTY | {
        "obsm": ["X_qmf"],
        "varm": ["qmf", "qmf_quantile_weights", "qmf_quantiles"],
        "var": ["qmf_inflation"],
        "uns": ["qmf"],
    }
    np.testing.assert_array_equal(adata.varm["qmf_quantiles"], model.quantiles_)
    np.testing.assert_array_equal(adata.varm["qmf_quantile_weights"], model.quantile_weights_)
    inflation = model.quantile_table()["inflation"]
    np.testing.assert_array_equal(adata.var["qmf_inflation"], inflation)
    assert adata.var["qmf_inflation"].index.tolist() == GENES
    assert adata.uns["qmf"]["reconstruction_err"] == model.reconstruction_err_
    np.testing.assert_array_equal(adata.obsm["X_qmf"], model.factors_[0] * model.weights_)


def test_both_normalizations_of_qmfq(adata):
    model = QMFQ(2, n_quantiles=5, projector="svd", **QUICK).fit(adata)
    write_anndata(model, adata, key="both")
    for name in ("normalizing_quantiles", "normalizing_weights", "quantiles", "quantile_weights"):
        np.testing.assert_array_equal(adata.varm[f"both_{name}"], getattr(model, f"{name}_"))
    assert list(adata.var) == ["both_inflation"]


def test_parameters_make_the_same_model(adata):
    model = QMF(2, n_quantiles=5, divergence="frobenius", batch_size=3, **QUICK).fit(adata)
    write_anndata(model, adata)
    parameters = adata.uns["qmf"]["params"]
    assert parameters["divergence"] == "frobenius"
    assert parameters["batch_size"] == 3
    assert not {"checkpoint", "callbacks", "time_budget"} & set(parameters)
    again = QMF(**parameters).fit(adata)
    np.testing.assert_array_equal(again.weights_, model.weights_)


def test_parameters_that_are_objects_are_told_in_words(adata):
    start = KruskalTensor(np.ones(2), [np.ones((30, 2)), np.eye(8)[:, :2]])
    model = CP(2, init=start, fixed_modes=(1,), max_iter=np.int64(50)).fit(adata)
    write_anndata(model, adata, key="a")
    parameters = adata.uns["a"]["params"]
    assert parameters["init"] == "<KruskalTensor of shape (30, 8)>"
    assert parameters["fixed_modes"].tolist() == [1]
    assert type(parameters["max_iter"]) is int
    seeded = CP(2, random_state=np.random.RandomState(0)).fit(adata)
    write_anndata(seeded, adata, key="b")
    assert adata.uns["b"]["params"]["random_state"] == "<RandomState>"
    costs = {"var": np.ones((8, 8)) - np.eye(8)}
    write_anndata(WassersteinCP(2, costs=costs, **QUICK).fit(adata), adata, key="c")
    assert adata.uns["c"]["params"]["costs"] == "<dict>"


def test_arrays_of_torch_become_numpy(adata):
    model = CP(2, random_state=0).fit(torch.from_numpy(COUNTS))
    write_anndata(model, adata)
    assert type(adata.obsm["X_cp"]) is type(adata.uns["cp"]["weights"]) is np.ndarray
    np.testing.assert_array_equal(adata.varm["cp"], model.factors_[1].numpy())


# Files.


MODELS = {
    "cp": CP(2, fixed_modes=(), random_state=0),
    "stochastic": StochasticCP(2, **QUICK),
    "wasserstein": WassersteinCP(2, costs=[None, 1 - np.eye(8)], **QUICK),
    "qmf": QMF(2, n_quantiles=4, **QUICK),
    "qmfq": QMFQ(2, n_quantiles=4, projector="svd", **QUICK),
}


def assert_same(mine, theirs):
    """Compare nested dicts of arrays, numbers and text, with their types."""
    if isinstance(theirs, dict):
        assert set(mine) == set(theirs)
        for name, value in theirs.items():
            assert_same(mine[name], value)
    elif isinstance(theirs, np.ndarray):
        assert isinstance(mine, np.ndarray)
        np.testing.assert_array_equal(mine, theirs)
    else:
        assert type(mine) is type(theirs)
        assert mine == theirs


@pytest.mark.parametrize("name", MODELS)
def test_a_file_gives_everything_back(adata, tmp_path, name):
    write_anndata(MODELS[name].fit(adata), adata, key="r")
    save(adata, tmp_path / "cells.h5ad")
    back = ad.read_h5ad(tmp_path / "cells.h5ad")
    assert contents(back) == contents(adata)
    assert_same(back.uns["r"], adata.uns["r"])
    for place in ("obsm", "varm"):
        for key, values in getattr(adata, place).items():
            np.testing.assert_array_equal(getattr(back, place)[key], values)
            assert getattr(back, place)[key].dtype == values.dtype
    pd.testing.assert_frame_equal(back.var, adata.var, check_index_type=False)


def test_a_file_with_further_modes(adata, tmp_path):
    adata.obs["day"] = pd.to_datetime(["2024-01-01", "2024-01-02", "2024-01-03"] * 10)
    adata.obs["lane"] = [1, 2] * 15
    model = CP(2, random_state=0).fit(read_anndata(adata, by=["day", "lane"]))
    write_anndata(model, adata, key="bulk")
    del adata.obs["day"]  # anndata writes no dates
    save(adata, tmp_path / "cells.h5ad")
    back = ad.read_h5ad(tmp_path / "cells.h5ad").uns["bulk"]
    assert_same(back, adata.uns["bulk"])
    assert back["labels"]["lane"].tolist() == [1, 2]
    assert back["labels"]["day"][0].startswith("2024-01-01")
    np.testing.assert_array_equal(back["factors"]["day"], model.factors_[0])


def test_an_anndata_on_disk_gets_its_results_in_memory(adata, tmp_path):
    model = CP(2, random_state=0).fit(adata)
    with on_disk(adata, tmp_path / "cells.h5ad") as backed:
        write_anndata(model, backed)
        np.testing.assert_array_equal(backed.varm["cp"], model.components_.T)
        assert backed.isbacked
        copy = write_anndata(model, backed, key="other", copy=True)
        assert not copy.isbacked
        np.testing.assert_array_equal(copy.X, adata.X)
        assert sorted(copy.varm) == ["cp", "other"]
        assert list(backed.varm) == ["cp"]
        with pytest.raises(InvalidInputError, match=r"part of an AnnData on disk.*to_memory\(\)"):
            write_anndata(model, backed[:5])
    assert contents(ad.read_h5ad(tmp_path / "cells.h5ad")) == EMPTY


# Copies, views, and what was there before.


def test_a_copy_leaves_the_original_alone(adata):
    model = QMF(2, n_quantiles=4, **QUICK).fit(adata)
    copy = write_anndata(model, adata, copy=True)
    assert contents(adata) == EMPTY
    np.testing.assert_array_equal(copy.obsm["X_qmf"], model.factors_[0] * model.weights_)
    copy.X[0, 0] = -1.0
    copy.uns["qmf"]["weights"][0] = -1.0
    copy.varm["qmf"][0] = -1.0
    assert (adata.X >= 0).all()
    assert (model.weights_ > 0).all()
    assert (model.factors_[1] >= 0).all()


def test_what_is_written_is_not_the_models_own(adata):
    model = CP(2, random_state=0).fit(read_anndata(with_layers(adata), layer=[None, "twice"]))
    before = [factor.copy() for factor in model.factors_]
    write_anndata(model, adata)
    for values in (adata.obsm["X_cp"], adata.varm["cp"], *adata.uns["cp"]["factors"].values()):
        values[:] = 7.0
    adata.uns["cp"]["labels"]["layer"][0] = "?"
    for mine, theirs in zip(model.factors_, before, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert model.labels_[2].tolist() == ["X", "twice"]


def test_a_view_becomes_an_anndata_of_its_own(adata):
    view = adata[:20, GENES[::-1]]
    model = CP(2, random_state=0).fit(view)
    write_anndata(model, view)
    assert not view.is_view
    np.testing.assert_array_equal(view.varm["cp"], model.components_.T)
    assert contents(adata) == EMPTY
    other = adata[:20]
    assert write_anndata(model, other, copy=True).varm["cp"].shape == (8, 2)
    assert other.is_view


def test_nothing_else_is_touched(adata):
    adata.obsm["X_pca"], adata.varm["PCs"] = np.zeros((30, 3)), np.zeros((8, 3))
    adata.uns["pca"] = {"variance": np.ones(3)}
    adata.uns["cp_colors"] = np.array(["red"])
    adata.var["cp"] = "x"
    adata.obs["cp"] = "x"
    before = adata.copy()
    write_anndata(CP(2, random_state=0).fit(adata), adata)
    for place in ("obsm", "varm"):
        for key, values in getattr(before, place).items():
            np.testing.assert_array_equal(getattr(adata, place)[key], values)
    assert_same(dict(before.uns), {k: v for k, v in adata.uns.items() if k != "cp"})
    pd.testing.assert_frame_equal(adata.var, before.var)
    pd.testing.assert_frame_equal(adata.obs, before.obs)
    np.testing.assert_array_equal(adata.X, before.X)


def test_earlier_results_of_the_same_name_are_replaced(adata):
    write_anndata(QMFQ(2, n_quantiles=4, projector="svd", **QUICK).fit(adata), adata, key="r")
    model = QMF(3, n_quantiles=4, **QUICK).fit(adata)
    write_anndata(model, adata, key="r")
    assert adata.obsm["X_r"].shape == (30, 3)
    assert sorted(adata.varm) == ["r", "r_quantile_weights", "r_quantiles"]
    write_anndata(CP(2, random_state=0).fit(adata), adata, key="r")
    assert contents(adata) == EMPTY | {"obsm": ["X_r"], "varm": ["r"], "uns": ["r"]}


def test_what_others_wrote_is_not_taken_for_earlier_results(adata):
    """A model of groups writes no obsm; that of scanpy's PCA stays."""
    adata.obs["batch"] = ["a", "b"] * 15
    adata.obsm["X_pca"], adata.uns["pca"] = np.zeros((30, 3)), {"params": {}, "variance": 1.0}
    adata.var["pca_inflation"] = 1.0
    model = CP(2, random_state=0).fit(read_anndata(adata, by="batch"))
    write_anndata(model, adata, key="pca")
    assert adata.obsm["X_pca"].shape == (30, 3)
    assert list(adata.var) == ["pca_inflation"]
    assert adata.uns["pca"]["method"] == "CP"


# Matching.


@pytest.mark.parametrize("convert", [np.asarray, sp.csr_matrix])
def test_cells_and_genes_are_matched_by_name(convert):
    adata = make(convert)
    model = CP(2, random_state=0).fit(adata)
    turned = adata[CELLS[::-1], GENES[::-1]].copy()
    write_anndata(model, turned)
    np.testing.assert_array_equal(turned.obsm["X_cp"], (model.factors_[0] * model.weights_)[::-1])
    np.testing.assert_array_equal(turned.varm["cp"], model.factors_[1][::-1])


def test_genes_that_were_not_in_the_fit_are_nan(adata):
    chosen = ["CD4", "MYC", "ACTB"]
    model = QMF(2, n_quantiles=4, **QUICK).fit(adata[:, chosen])
    write_anndata(model, adata)
    places = [GENES.index(gene) for gene in chosen]
    others = np.setdiff1d(np.arange(8), places)
    for key, values in {
        "qmf": model.factors_[1],
        "qmf_quantiles": model.quantiles_,
        "qmf_quantile_weights": model.quantile_weights_,
    }.items():
        np.testing.assert_array_equal(adata.varm[key][places], values)
        assert np.isnan(adata.varm[key][others]).all()
    assert adata.var["qmf_inflation"].isna().to_numpy().nonzero()[0].tolist() == others.tolist()
    assert np.isfinite(adata.obsm["X_qmf"]).all()


@pytest.mark.parametrize("convert", [np.asarray, sp.csr_matrix])
def test_cells_that_were_not_in_the_fit_are_transformed(convert):
    adata = make(convert)
    some, chosen = CELLS[3:20][::-1], GENES[:2:-1]
    model = NonnegativeCP(2, random_state=0).fit(adata[some, chosen])
    write_anndata(model, adata)
    features = pd.DataFrame(adata.obsm["X_nonnegativecp"], index=CELLS)
    np.testing.assert_array_equal(features.loc[some], model.factors_[0] * model.weights_)
    new = [cell for cell in CELLS if cell not in some]
    expected = model.transform(adata[new, chosen])
    np.testing.assert_allclose(features.loc[new], expected, rtol=1e-5, atol=1e-6)


def test_the_layer_of_new_cells(adata):
    with_layers(adata)
    model = CP(2, random_state=0).fit(read_anndata(adata[:20].copy(), layer="twice"))
    write_anndata(model, adata, layer="twice")
    expected = model.transform(read_anndata(adata, layer="twice"))
    np.testing.assert_allclose(adata.obsm["X_cp"], expected, rtol=1e-4, atol=1e-4)


def test_output_as_tables_makes_no_difference(adata):
    model = CP(2, random_state=0).fit(adata[:20])
    expected = write_anndata(model, adata, copy=True).obsm["X_cp"]
    for kind in ("pandas", "polars"):
        write_anndata(model.set_output(transform=kind), adata)
        assert type(adata.obsm["X_cp"]) is np.ndarray
        np.testing.assert_array_equal(adata.obsm["X_cp"], expected)


def test_features_of_a_classifier_have_not_seen_the_classes(adata):
    classes = np.arange(30) % 2
    model = SupervisedCP(2, **QUICK).fit(adata, classes)
    write_anndata(model, adata)
    np.testing.assert_array_equal(adata.obsm["X_supervisedcp"], model.transform(adata))
    assert not np.allclose(adata.obsm["X_supervisedcp"], model.factors_[0] * model.weights_)


def test_models_of_tables_and_arrays(adata):
    expected = write_anndata(CP(2, random_state=0).fit(adata), adata, copy=True)
    named = LabelledTensor(COUNTS, modes=["cell", "gene"], labels=[CELLS, GENES])
    for data in (adata.to_df(), COUNTS, named):
        copy = write_anndata(CP(2, random_state=0).fit(data), adata, copy=True)
        np.testing.assert_array_equal(copy.obsm["X_cp"], expected.obsm["X_cp"])
        np.testing.assert_array_equal(copy.varm["cp"], expected.varm["cp"])
    part = CP(2, random_state=0).fit(named.isel(cell=slice(20)))
    write_anndata(part, adata)
    np.testing.assert_allclose(adata.obsm["X_cp"][20:], part.transform(COUNTS[20:]), rtol=1e-5)
    table = CP(2, random_state=0).fit(adata.to_df()[:20])
    write_anndata(table, adata)
    np.testing.assert_array_equal(adata.varm["cp"], part.factors_[1])


@pytest.mark.filterwarnings("ignore:\\nAnnData expects .obs.index to contain strings")
@pytest.mark.parametrize("kind", [int, str])
def test_numbers_as_names(adata, kind):
    """An AnnData mostly holds names as text, a table may hold numbers."""
    frame = pd.DataFrame(COUNTS, index=np.arange(100, 130), columns=GENES)
    model = CP(2, random_state=0).fit(frame)
    assert model.labels_[0].dtype.kind == "i"
    adata.obs_names = pd.Index([kind(k) for k in range(129, 99, -1)])
    write_anndata(model, adata)
    np.testing.assert_array_equal(adata.obsm["X_cp"], (model.factors_[0] * model.weights_)[::-1])
    model.fit(adata)
    assert model.labels_[0].tolist() == [str(k) for k in range(129, 99, -1)]
    write_anndata(model, adata)
    np.testing.assert_array_equal(adata.obsm["X_cp"], model.factors_[0] * model.weights_)


# More modes.


def with_layers(adata):
    adata.layers["twice"] = 2 * adata.X
    return adata


def test_layers_as_a_mode(adata):
    tensor = read_anndata(with_layers(adata), layer=[None, "twice"])
    model = CP(2, random_state=0).fit(tensor)
    write_anndata(model, adata)
    np.testing.assert_array_equal(adata.obsm["X_cp"], model.factors_[0] * model.weights_)
    np.testing.assert_array_equal(adata.varm["cp"], model.factors_[1])
    assert list(adata.uns["cp"]["factors"]) == ["layer"]
    np.testing.assert_array_equal(adata.uns["cp"]["factors"]["layer"], model.factors_[2])
    assert adata.uns["cp"]["labels"]["layer"].tolist() == ["X", "twice"]


def test_new_cells_with_layers_as_a_mode(adata):
    tensor = read_anndata(with_layers(adata), layer=["twice", None])
    model = CP(2, random_state=0).fit(tensor.isel(obs=slice(20)))
    write_anndata(model, adata)
    np.testing.assert_allclose(adata.obsm["X_cp"], model.transform(tensor), rtol=1e-3, atol=1e-3)
    with pytest.raises(InvalidInputError, match=r"layer='twice' is for models of a matrix"):
        write_anndata(model, adata, layer="twice")


def test_groups_of_cells(adata):
    adata.obs["donor"] = [f"d{k % 5}" for k in range(30)]
    adata.obs["kind"] = ["B", "T", "T"] * 10
    model = CP(2, random_state=0).fit(read_anndata(adata, by=["donor", "kind"])[:4])
    write_anndata(model, adata, key="bulk")
    assert list(adata.obsm) == []
    np.testing.assert_array_equal(adata.varm["bulk"], model.factors_[2])
    result = adata.uns["bulk"]
    assert {name: own.tolist() for name, own in result["labels"].items()} == {
        "donor": ["d0", "d1", "d2", "d3"],
        "kind": ["B", "T"],
    }
    np.testing.assert_array_equal(result["factors"]["donor"], model.factors_[0])


# What is refused.


def test_a_model_that_is_not_fitted(adata):
    with pytest.raises(NotFittedError):
        write_anndata(CP(2), adata)


@pytest.mark.parametrize("kind", ["pipeline", "tensor", "class"])
def test_what_is_no_model(adata, kind):
    model = {
        "pipeline": make_pipeline(StandardScaler(), CP(2)),
        "tensor": KruskalTensor(np.ones(1), [np.ones((30, 1)), np.ones((8, 1))]),
        "class": CP,
    }[kind]
    with pytest.raises(InvalidTypeError, match="a fitted estimator of polyad is needed"):
        write_anndata(model, adata)


def test_what_is_no_anndata(adata):
    model = CP(2, random_state=0).fit(adata)
    for given in (COUNTS, adata.to_df(), None, "cells.h5ad"):
        with pytest.raises(InvalidTypeError, match="an AnnData is needed"):
            write_anndata(model, given)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": ""}, "key='' is no name"),
        ({"key": "a/b"}, "without '/'"),
        ({"key": 3}, "key=3 is a int"),
        ({"copy": "yes"}, "copy='yes' is not accepted"),
        ({"layer": "raw"}, "layer='raw' is not a layer of the AnnData; its layers are: none"),
        ({"layer": ["raw"]}, r"layer=\['raw'\] is not a layer"),
    ],
)
def test_bad_options(adata, options, message):
    model = CP(2, random_state=0).fit(adata)
    with pytest.raises((InvalidInputError, InvalidTypeError), match=message):
        write_anndata(model, adata, **options)
    assert contents(adata) == EMPTY


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (COUNTS[:20], "fitted to 20 samples without names, but adata has 30"),
        (COUNTS[:, :5], "fitted to 5 features without names, but adata has 8"),
        (COUNTS.reshape(30, 4, 2), "has the modes 3, and nothing tells which"),
        (
            LabelledTensor(COUNTS.T, modes=["var", "obs"], labels=[GENES, CELLS]),
            r"has the modes \('var', 'obs'\), and nothing tells",
        ),
        (
            pd.DataFrame(COUNTS, columns=[*GENES[:6], "XIST", "SRY"]),
            "adata lacks 2 of the 8 features that the model was fitted to: 'XIST', 'SRY'",
        ),
    ],
)
def test_models_that_do_not_match(adata, data, message):
    model = CP(2, random_state=0).fit(data)
    with pytest.raises(InvalidInputError, match=message):
        write_anndata(model, adata)
    assert contents(adata) == EMPTY


@pytest.mark.filterwarnings("ignore:.*names are not unique")
@pytest.mark.parametrize("names", ["obs_names", "var_names"])
def test_names_must_be_unique(adata, names):
    model = CP(2, random_state=0).fit(adata)
    own = getattr(adata, names).to_numpy().copy()
    setattr(adata, names, [own[1], *own[1:]])
    with pytest.raises(InvalidInputError, match=rf"adata\.{names}_make_unique\(\)"):
        write_anndata(model, adata)


def test_new_cells_that_cannot_be_transformed():
    adata = make(sp.csr_matrix)
    model = QMF(2, n_quantiles=4, **QUICK).fit(adata.to_df()[:20])
    message = r"10 of the 30 cells of adata were not in the fit.*Sparse data was given to QMF"
    with pytest.raises(InvalidTypeError, match=message):
        write_anndata(model, adata)
    assert contents(adata) == EMPTY
    write_anndata(QMF(2, n_quantiles=4, **QUICK).fit(adata.to_df()), adata)
    assert adata.obsm["X_qmf"].shape == (30, 2)
