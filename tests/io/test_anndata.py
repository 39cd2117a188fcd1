"""AnnData into estimators and tensors: matrices, names, layers, groups of cells."""

import sys
import warnings

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline

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
    load,
)
from polyad import io as pio
from polyad.exceptions import InvalidInputError, InvalidTypeError, MissingPackageError
from polyad.metrics import explained_variation
from polyad.selection import select_rank
from tests.io.cells import CELLS, COUNTS, GENES, make, on_disk

CONTAINERS = {
    "dense": np.asarray,
    "csr_matrix": sp.csr_matrix,
    "csc_matrix": sp.csc_matrix,
    "csr_array": sp.csr_array,
    "csc_array": sp.csc_array,
    "fortran": np.asfortranarray,
}
QUICK = {"max_iter": 1, "tol": 0, "random_state": 0, "n_jobs": 1}
MODELS = [
    CP(2, **QUICK),
    GeneralizedCP(2, **QUICK),
    NonnegativeCP(2, **QUICK),
    PoissonCP(2, **QUICK),
    SimilarityCP(2, **QUICK),
    StochasticCP(2, **QUICK),
    SupervisedCP(2, **QUICK),
    WassersteinCP(2, **QUICK),
    QMF(2, n_quantiles=4, **QUICK),
    QMFQ(2, n_quantiles=4, projector="svd", **QUICK),
]
CLASSES = np.arange(len(CELLS)) % 2


def quietly(method, *arguments):
    """Call a method without the warning that the fit was short."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return method(*arguments)


# Estimators.


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_every_estimator_reads_the_matrix_and_the_names(model):
    """All public methods give the numbers of the plain array, whatever holds the data."""
    adata = make(np.asarray)
    quietly(model.fit, COUNTS, CLASSES)
    features, score = model.transform(COUNTS), model.score(COUNTS, CLASSES)
    first = quietly(model.fit_transform, COUNTS, CLASSES)
    np.testing.assert_array_equal(quietly(model.fit_transform, adata, CLASSES), first)
    assert model.modes_ == ("obs", "var")
    assert [own.tolist() for own in model.labels_] == [CELLS, GENES]
    np.testing.assert_array_equal(model.transform(adata), features)
    assert model.score(adata, CLASSES) == score
    assert model.factor_table("var").index.tolist() == GENES
    assert model.factor_table("obs").index.name == "obs"


@pytest.mark.parametrize("container", CONTAINERS)
def test_every_container(container):
    convert = CONTAINERS[container]
    expected = PoissonCP(2, **QUICK)
    quietly(expected.fit, convert(COUNTS))
    model = PoissonCP(2, **QUICK)
    quietly(model.fit, make(convert))
    for mine, theirs in zip(model.factors_, expected.factors_, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_array_equal(
        model.transform(make(convert)), expected.transform(convert(COUNTS))
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("convert", [np.asarray, sp.csr_matrix])
def test_the_type_of_the_numbers_is_kept(convert, dtype):
    adata = make(convert, dtype)
    model = CP(2, random_state=0).fit(adata)
    assert {factor.dtype for factor in model.factors_} == {np.dtype(dtype)}
    assert model.transform(adata).dtype == dtype
    assert pio.read_anndata(adata).dtype == dtype


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool"])
def test_whole_numbers_become_float64(dtype):
    assert CP(2, random_state=0).fit(make(sp.csr_matrix, dtype)).weights_.dtype == np.float64


@pytest.mark.parametrize("convert", [np.asarray, sp.csr_matrix, sp.csc_array])
def test_genes_of_new_cells_come_in_any_order(convert):
    adata = make(convert)
    model = CP(2, random_state=0).fit(adata)
    shuffled = adata[:7, GENES[::-1]]
    assert shuffled.is_view
    np.testing.assert_allclose(model.transform(shuffled), model.transform(adata)[:7], atol=1e-6)
    assert shuffled.is_view
    assert model.score(adata[:, GENES[::-1]]) == pytest.approx(model.score(adata))


def test_genes_that_the_model_does_not_know_are_named_with_a_remedy_that_works():
    adata = make(sp.csr_matrix)
    model = CP(2, random_state=0).fit(adata[:, GENES[2:]])
    with pytest.raises(InvalidInputError, match=r"'TP53', 'MYC'.*X\[:, model.labels_\[1\]\]"):
        model.transform(adata)
    remedy = adata[:, model.labels_[1]]
    np.testing.assert_array_equal(model.transform(remedy), model.transform(adata[:, GENES[2:]]))


def test_genes_that_new_cells_lack():
    """Not stored is zero in sparse data; dense data does not tell."""
    model = CP(2, random_state=0).fit(make(sp.csr_matrix))
    zeroed = COUNTS.copy()
    zeroed[:, -2:] = 0
    lacking = make(sp.csr_matrix)[:, GENES[:-2]]
    np.testing.assert_allclose(
        model.transform(lacking), model.transform(sp.csr_array(zeroed)), atol=1e-6
    )
    with pytest.raises(InvalidInputError, match="'CD19', 'CD8A'"):
        model.transform(make(np.asarray)[:, GENES[:-2]])


def test_tables_and_anndata_of_the_same_genes_match():
    adata = make(np.asarray)
    model = CP(2, random_state=0).fit(adata.to_df())
    assert model.feature_names_in_.tolist() == GENES
    expected = model.transform(adata.to_df())
    np.testing.assert_allclose(model.transform(adata[:, GENES[::-1]]), expected, atol=1e-6)


def test_parts_of_an_anndata_are_read_as_what_they_are():
    """Arrays, tables and sparse data of views have types of anndata."""
    adata = make(np.asarray)
    adata.layers["sparse"] = sp.csr_matrix(COUNTS)
    adata.obsm["table"] = pd.DataFrame(COUNTS[:, :3], index=CELLS, columns=list("abc"))
    view = adata[:20, GENES[::-1]]
    expected = CP(2, random_state=0).fit(COUNTS[:20, ::-1]).weights_
    for part in (view.X, view.layers["sparse"], view):
        np.testing.assert_allclose(CP(2, random_state=0).fit(part).weights_, expected, rtol=1e-5)
    model = CP(2, random_state=0).fit(view.obsm["table"])
    assert model.labels_[1].tolist() == list("abc")
    raw = make(np.asarray)
    raw.raw = adata
    model = CP(2, random_state=0).fit(raw[:, GENES[:2]].raw)
    assert model.labels_[1].tolist() == GENES
    with pytest.raises(InvalidTypeError, match=r"anndata\.\S+Layers\. Accepted are"):
        CP(2).fit(adata.layers)


def test_sparse_data_for_an_estimator_of_dense_data_comes_with_advice_that_works():
    adata = make(sp.csr_matrix)
    model = QMF(2, n_quantiles=4, **QUICK)
    with pytest.raises(InvalidTypeError, match=r"adata\.to_df\(\)"):
        model.fit(adata)
    quietly(model.fit, adata.to_df())
    assert model.labels_[1].tolist() == GENES


@pytest.mark.parametrize("convert", [np.asarray, sp.csr_matrix, sp.csc_matrix])
def test_a_file_that_is_not_in_memory_is_read(tmp_path, convert):
    adata = make(convert)
    expected = CP(2, random_state=0).fit(adata)
    with on_disk(adata, tmp_path / "cells.h5ad") as backed:
        assert backed.isbacked
        model = CP(2, random_state=0).fit(backed)
        np.testing.assert_array_equal(model.transform(backed), expected.transform(adata))
        of_matrix = CP(2, random_state=0).fit(backed.X[...] if convert is np.asarray else backed.X)
        np.testing.assert_array_equal(of_matrix.weights_, expected.weights_)
        assert backed.isbacked
    assert model.labels_[1].tolist() == GENES


def test_a_part_of_a_file(tmp_path):
    adata = make(np.asarray)
    with on_disk(adata, tmp_path / "cells.h5ad") as backed:
        model = CP(2, random_state=0).fit(backed[:, GENES[::-1]])
    np.testing.assert_allclose(model.weights_, CP(2, random_state=0).fit(adata).weights_, rtol=1e-5)


def test_a_part_that_anndata_cannot_read(monkeypatch):
    """Some versions of anndata fail to cut sparse data on disk."""

    def broken(self):
        message = "'backed_csr_matrix' object has no attribute '_validate_indices'"
        raise AttributeError(message)

    adata = make(sp.csr_matrix)
    monkeypatch.setattr(ad.AnnData, "X", property(broken))
    with pytest.raises(InvalidInputError, match=r"_validate_indices.*adata\.to_memory\(\)"):
        CP(2).fit(adata)


def test_features_carry_the_names_of_the_cells():
    adata = make(np.asarray)
    model = CP(2, random_state=0).set_output(transform="pandas").fit(adata)
    assert model.transform(adata[:5]).index.tolist() == CELLS[:5]


def test_inside_scikit_learn():
    adata = make(sp.csr_matrix)
    pipe = make_pipeline(NonnegativeCP(2, random_state=0), LogisticRegression())
    pipe.fit(adata, CLASSES)
    assert pipe.predict(adata[:4]).shape == (4,)
    assert cross_val_score(pipe, adata, CLASSES, cv=3).shape == (3,)
    search = GridSearchCV(NonnegativeCP(random_state=0), {"n_components": [1, 2]}, cv=3).fit(adata)
    assert search.best_estimator_.labels_[1].tolist() == GENES


def test_the_rest_of_the_package_takes_it_too(tmp_path):
    adata = make(sp.csr_matrix)
    model = CP(2, random_state=0).fit(adata[:20])
    score = model.score(adata[:20])
    assert explained_variation(adata[:20], model) == pytest.approx(score, abs=1e-5)
    model.save(tmp_path / "model.polyad")
    loaded = load(tmp_path / "model.polyad")
    assert (loaded.modes_, loaded.labels_[1].tolist()) == (("obs", "var"), GENES)
    np.testing.assert_array_equal(loaded.transform(adata), model.transform(adata))
    model.partial_fit(adata[20:, GENES[::-1]])
    assert model.labels_[0].tolist() == CELLS
    batches = [adata[:10], adata[10:20], adata[20:]]
    online = StochasticCP(2, **QUICK)
    quietly(online.fit, batches)
    assert online.labels_[0].tolist() == CELLS
    chosen = select_rank(CP(tol=1e-2), adata, [1, 2], n_repeats=2, random_state=0)
    assert chosen.best_rank in (1, 2)


def test_nothing_of_the_data_is_changed():
    adata = make(sp.csr_matrix)
    before = adata.copy()
    CP(2, random_state=0).fit(adata).transform(adata)
    assert (adata.X != before.X).nnz == 0
    assert list(adata.obsm) == list(adata.varm) == list(adata.uns) == []


@pytest.mark.parametrize(
    ("rename", "message"),
    [
        ("var_names", r"'MYC' occurs more than once.*adata\.var_names_make_unique\(\)"),
        ("obs_names", r"'c01' occurs more than once.*adata\.obs_names_make_unique\(\)"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*names are not unique")
def test_names_must_be_unique(rename, message):
    adata = make(np.asarray)
    names = getattr(adata, rename).to_numpy().copy()
    names[0] = names[1]
    setattr(adata, rename, names)
    for use in (CP(2).fit, pio.read_anndata):
        with pytest.raises(InvalidInputError, match=message):
            use(adata)
    getattr(adata, f"{rename}_make_unique")()
    CP(2, random_state=0).fit(adata)


def test_an_anndata_without_a_matrix():
    adata = ad.AnnData(obs=pd.DataFrame(index=CELLS), var=pd.DataFrame(index=GENES))
    with pytest.raises(InvalidInputError, match=r"no X\. Its layers are: none"):
        CP(2).fit(adata)
    adata.layers["counts"] = COUNTS
    with pytest.raises(InvalidInputError, match=r"Its layers are: 'counts'; polyad\.io"):
        CP(2).fit(adata)
    assert CP(2, random_state=0).fit(pio.read_anndata(adata, layer="counts")).n_features_in_ == 8


def test_an_anndata_without_cells_or_with_nan():
    with pytest.raises(InvalidInputError, match="0 sample"):
        CP(2).fit(make(np.asarray)[:0])
    adata = make(np.asarray)
    adata.X[3, 2] = np.nan
    assert CP(2, random_state=0).fit(adata).n_features_in_ == 8
    with pytest.raises(InvalidInputError, match=r"NaN, first at \(3, 2\)"):
        QMFQ(2).fit(adata)


# Tensors.


@pytest.mark.parametrize("convert", CONTAINERS.values())
def test_a_matrix_as_a_tensor(convert):
    tensor = pio.read_anndata(make(convert))
    assert tensor.modes == ("obs", "var")
    assert [own.tolist() for own in tensor.labels] == [CELLS, GENES]
    assert tensor.is_sparse == sp.issparse(convert(COUNTS))
    np.testing.assert_array_equal(tensor.to_dense(), COUNTS)


@pytest.mark.parametrize("convert", [np.asarray, sp.csr_matrix])
def test_layers(convert):
    adata = make(convert)
    adata.layers["twice"] = convert(2 * COUNTS)
    np.testing.assert_array_equal(
        pio.read_anndata(adata, layer="twice").to_dense(), 2 * adata.to_df().to_numpy()
    )
    tensor = pio.read_anndata(adata, layer=["twice", None])
    assert tensor.modes == ("obs", "var", "layer")
    assert tensor.labels[2].tolist() == ["twice", "X"]
    assert tensor.is_sparse == sp.issparse(adata.X)
    assert tensor.dtype == np.float32
    np.testing.assert_array_equal(tensor.to_dense(), np.stack([2 * COUNTS, COUNTS], axis=-1))
    assert pio.read_anndata(adata, layer=("twice",)).shape == (*COUNTS.shape, 1)


def test_layers_of_different_kinds():
    adata = make(sp.csr_matrix)
    adata.layers["dense"] = 3.0 * COUNTS
    tensor = pio.read_anndata(adata, layer=[None, "dense"])
    assert not tensor.is_sparse
    np.testing.assert_array_equal(tensor.to_dense(), np.stack([COUNTS, 3 * COUNTS], axis=-1))


def with_groups(convert=np.asarray, dtype="float32"):
    adata = make(convert, dtype)
    adata.obs["donor"] = [f"d{k % 3}" for k in range(len(CELLS))]
    kinds = pd.Categorical(["T" if k < 15 else "B" for k in range(len(CELLS))], ["T", "NK", "B"])
    adata.obs["kind"] = kinds
    # Donor d2 has no B cells.
    adata.obs.loc[adata.obs["donor"] == "d2", "kind"] = "T"
    return adata


def by_hand(adata, columns, method):
    """Group with pandas."""
    frame = adata.to_df().astype(float)
    keys = [adata.obs[name].astype(str) for name in columns]
    return frame.groupby(keys).agg(method)


@pytest.mark.parametrize("convert", [np.asarray, sp.csr_matrix, sp.csc_array])
@pytest.mark.parametrize("aggregate", ["mean", "sum"])
def test_groups_of_cells(convert, aggregate):
    adata = with_groups(convert)
    tensor = pio.read_anndata(adata, by=["donor", "kind"], aggregate=aggregate)
    assert tensor.modes == ("donor", "kind", "var")
    # Categories in their own order, without the one that no cell has.
    assert [own.tolist() for own in tensor.labels] == [["d0", "d1", "d2"], ["T", "B"], GENES]
    assert tensor.is_sparse == (aggregate == "sum" and sp.issparse(adata.X))
    assert tensor.dtype == np.float32
    dense = tensor.to_dense()
    expected = by_hand(adata, ["donor", "kind"], aggregate)
    for (donor, kind), row in expected.iterrows():
        own = dense[tensor.labels[0] == donor, tensor.labels[1] == kind][0]
        np.testing.assert_allclose(own, row, rtol=1e-6)
    empty = dense[2, 1]
    assert np.isnan(empty).all() if aggregate == "mean" else (empty == 0).all()
    assert np.isfinite(np.delete(dense.reshape(6, -1), 5, axis=0)).all()


def test_groups_of_one_column_and_several_layers():
    adata = with_groups(sp.csr_matrix)
    adata.layers["twice"] = 2 * adata.X
    tensor = pio.read_anndata(adata, by="donor")
    assert tensor.modes == ("donor", "var")
    np.testing.assert_allclose(tensor.to_dense(), by_hand(adata, ["donor"], "mean"), rtol=1e-6)
    both = pio.read_anndata(adata, by="donor", layer=[None, "twice"], aggregate="sum")
    assert both.modes == ("donor", "var", "layer")
    assert both.is_sparse
    total = by_hand(adata, ["donor"], "sum").to_numpy()
    np.testing.assert_allclose(both.to_dense(), np.stack([total, 2 * total], axis=-1), rtol=1e-6)


def test_sums_of_many_small_numbers_are_exact():
    """In float32 steps, a sum would stop growing at 2**24."""
    adata = ad.AnnData(np.array([[2**24], *[[1]] * 19], dtype=np.float32))
    adata.obs["all"] = "a"
    total = pio.read_anndata(adata, by="all", aggregate="sum").to_dense()
    assert total[0, 0] == np.float32(2**24 + 19)
    assert total.dtype == np.float32


def test_a_fit_to_groups_leaves_out_what_is_missing():
    tensor = pio.read_anndata(with_groups(), by=["donor", "kind"])
    model = CP(1, random_state=0).fit(tensor)
    assert np.isfinite(model.kruskal_.to_dense()).all()
    assert model.factor_table("kind").index.tolist() == ["T", "B"]


def test_paths_are_read(tmp_path):
    adata = make(sp.csr_matrix)
    with on_disk(adata, tmp_path / "cells.h5ad"):
        pass
    for path in (tmp_path / "cells.h5ad", str(tmp_path / "cells.h5ad")):
        tensor = pio.read_anndata(path)
        np.testing.assert_array_equal(tensor.to_dense(), COUNTS)
        assert tensor.labels[1].tolist() == GENES
    with pytest.raises(InvalidInputError, match=r"cells.loom' is no \.h5ad file"):
        pio.read_anndata(tmp_path / "cells.loom")
    with pytest.raises(FileNotFoundError):
        pio.read_anndata(tmp_path / "other.h5ad")


def test_without_anndata(monkeypatch):
    monkeypatch.setitem(sys.modules, "anndata", None)
    with pytest.raises(MissingPackageError, match="pip install anndata"):
        pio.read_anndata("cells.h5ad")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": "raw"}, r"layer='raw' is not a layer of the AnnData; its layers are: 'a', 'b'"),
        ({"layer": ["a", "raw"]}, "layer='raw' is not a layer"),
        ({"layer": []}, "names no layer"),
        ({"layer": 3}, "layer=3 is not the name of a layer"),
        ({"layer": ["a", 3]}, "is not the name of a layer"),
        ({"layer": ["a", "a"]}, "must be unique, but 'a'"),
        ({"by": "batch"}, "by='batch' is not a column of obs; its columns are: 'donor', 'kind'"),
        ({"by": []}, r"by=\[\] is not the name of a column"),
        ({"by": 3}, "by=3 is not the name of a column"),
        ({"by": ["donor", 3]}, "is not the name of a column"),
        ({"by": ["donor", "donor"]}, "'donor' more than once"),
        ({"by": "var"}, "Give the column another name"),
        ({"by": "some"}, r"missing for 1 cells.*adata\[adata\.obs\['some'\]\.notna\(\)\]"),
        ({"aggregate": "median"}, "aggregate='median' has no meaning; give 'mean' or 'sum'"),
    ],
)
def test_bad_requests(options, message):
    adata = with_groups()
    adata.layers["a"] = adata.layers["b"] = COUNTS
    adata.obs["var"] = "v"
    adata.obs["some"] = [None, *"x" * (len(CELLS) - 1)]
    with pytest.raises((InvalidInputError, InvalidTypeError), match=message):
        pio.read_anndata(adata, **options)


@pytest.mark.parametrize("given", [COUNTS, pd.DataFrame(COUNTS), None, 3])
def test_what_is_no_anndata(given):
    with pytest.raises(InvalidTypeError, match=rf"A {type(given).__name__} was given; an AnnData"):
        pio.read_anndata(given)


def test_groups_that_do_not_fit_into_memory():
    n = 2000
    adata = ad.AnnData(sp.csr_matrix(np.ones((n, 200), dtype=np.float32)))
    adata.obs["one"] = adata.obs["two"] = np.arange(n)
    with pytest.raises(InvalidInputError, match=r"\(2000, 2000, 200\), would take 5.96 GiB"):
        pio.read_anndata(adata, by=["one", "two"])
    tensor = pio.read_anndata(adata, by=["one", "two"], aggregate="sum")
    assert (tensor.shape, tensor.data.nnz) == ((n, n, 200), n * 200)
