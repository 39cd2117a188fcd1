"""The objects of other packages: converted both ways, and accepted by estimators as they are."""

import sys

import numpy as np
import pandas as pd
import polars as pl
import pytest
import pyttb
import sparse
import tensorly
import torch
import xarray as xr
from scipy.sparse import coo_array

from polyad import CP, KruskalTensor, LabelledTensor
from polyad import io as pio
from polyad.exceptions import InvalidInputError, InvalidTypeError, MissingPackageError

SHAPE = (6, 5, 4)


@pytest.fixture
def array():
    return np.random.default_rng(0).standard_normal(SHAPE)


@pytest.fixture
def coo():
    generator = np.random.default_rng(1)
    dense = np.where(generator.random(SHAPE) < 0.4, generator.integers(1, 9, SHAPE), 0)
    return coo_array(dense.astype(float))


@pytest.fixture
def kruskal():
    generator = np.random.default_rng(2)
    return KruskalTensor(
        np.array([3.0, 1.0, 0.5]), [generator.standard_normal((n, 3)) for n in SHAPE]
    )


def full(kruskal):
    return np.einsum("r,ir,jr,kr->ijk", kruskal.weights, *kruskal.factors)


def assert_same_entries(tensor, expected):
    """Compare entry by entry, by index."""
    assert tuple(tensor.shape) == expected.shape
    for index in np.ndindex(*expected.shape):
        assert tensor[index] == expected[index], index


# TensorLy.


def test_tensorly_both_ways(kruskal):
    cp_tensor = pio.to_tensorly(kruskal)
    assert isinstance(cp_tensor, tensorly.cp_tensor.CPTensor)
    np.testing.assert_allclose(tensorly.cp_to_tensor(cp_tensor), full(kruskal), atol=1e-12)
    back = pio.from_tensorly(cp_tensor)
    assert isinstance(back, KruskalTensor)
    np.testing.assert_array_equal(back.weights, kruskal.weights)
    for mine, theirs in zip(back.factors, kruskal.factors, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_decomposition_of_tensorly_comes_in(array):
    cp_tensor = tensorly.decomposition.parafac(tensorly.tensor(array), 2, random_state=0)
    kruskal = pio.from_tensorly(cp_tensor)
    np.testing.assert_allclose(kruskal.to_dense(), tensorly.cp_to_tensor(cp_tensor), atol=1e-12)


@pytest.mark.parametrize("kind", ["float64", "float32", "torch"])
def test_tensorly_weights_of_none_are_ones(kruskal, kind):
    factors = [factor.astype("float32" if kind == "float32" else float) for factor in kruskal[1]]
    if kind == "torch":
        factors = [torch.from_numpy(factor) for factor in factors]
    back = pio.from_tensorly((None, factors))
    assert type(back.weights) is type(factors[0])
    assert back.weights.dtype == factors[0].dtype
    expected = np.einsum("ir,jr,kr->ijk", *kruskal.factors)
    np.testing.assert_allclose(np.asarray(back.to_dense()), expected, atol=1e-5)


def test_tensorly_reads_a_kruskal_tensor_as_it_is(kruskal):
    np.testing.assert_allclose(tensorly.cp_to_tensor(kruskal), full(kruskal), atol=1e-12)


def test_a_fitted_model_goes_to_tensorly_and_back_as_a_start(kruskal):
    X = kruskal.to_dense() + 0.01 * np.random.default_rng(0).standard_normal(SHAPE)
    model = CP(3, random_state=0, tol=1e-10, max_iter=2000).fit(X)
    again = CP(3, init=pio.to_tensorly(model.kruskal_)).fit(X)
    assert again.n_iter_ <= 2 < model.n_iter_
    assert again.objective_ == pytest.approx(model.objective_, rel=1e-8)


# pyttb: it stores its data in Fortran order.


def test_pyttb_ktensor_both_ways(kruskal):
    ktensor = pio.to_pyttb(kruskal)
    assert isinstance(ktensor, pyttb.ktensor)
    np.testing.assert_allclose(ktensor.full().double(), full(kruskal), atol=1e-12)
    back = pio.from_pyttb(ktensor)
    np.testing.assert_array_equal(back.weights, kruskal.weights)
    np.testing.assert_allclose(back.to_dense(), full(kruskal), atol=1e-12)


@pytest.mark.parametrize("order", ["C", "F"])
def test_pyttb_tensor_both_ways(array, order):
    tensor = pio.to_pyttb(np.array(array, order=order))
    assert isinstance(tensor, pyttb.tensor)
    assert_same_entries(tensor, array)
    assert_same_entries(pio.from_pyttb(tensor), array)


def test_pyttb_tensor_of_a_torch_tensor(array):
    assert_same_entries(pio.to_pyttb(torch.from_numpy(array)), array)


def test_pyttb_sptensor_both_ways(coo):
    tensor = pio.to_pyttb(coo)
    assert isinstance(tensor, pyttb.sptensor)
    assert tensor.nnz == coo.nnz
    assert_same_entries(tensor, coo.toarray())
    back = pio.from_pyttb(tensor)
    assert isinstance(back, coo_array)
    np.testing.assert_array_equal(back.toarray(), coo.toarray())


def test_pyttb_sptensor_sums_what_scipy_would_sum():
    repeated = coo_array((np.array([1.0, 2.0]), ([0, 0], [1, 1], [2, 2])), shape=(2, 3, 4))
    tensor = pio.to_pyttb(repeated)
    assert tensor.nnz == 1
    assert tensor[0, 1, 2] == 3.0


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4, 5)])
def test_pyttb_other_orders(shape):
    expected = np.arange(float(np.prod(shape))).reshape(shape)
    assert_same_entries(pio.to_pyttb(expected), expected)
    assert_same_entries(pio.from_pyttb(pio.to_pyttb(coo_array(expected))).toarray(), expected)


def test_pyttb_empty_sptensor():
    back = pio.from_pyttb(pyttb.sptensor(shape=SHAPE))
    assert back.shape == SHAPE
    assert back.nnz == 0
    assert pio.to_pyttb(back).nnz == 0


def test_pyttb_labels_are_not_kept_but_entries_are(coo):
    labelled = LabelledTensor(coo, modes=list("abc"))
    assert_same_entries(pio.to_pyttb(labelled), coo.toarray())


def test_a_decomposition_of_pyttb_comes_in(array):
    ktensor, _, _ = pyttb.cp_als(pyttb.tensor(array), 2, printitn=0, init="nvecs")
    np.testing.assert_allclose(
        pio.from_pyttb(ktensor).to_dense(), ktensor.full().double(), atol=1e-10
    )


def test_pyttb_kinds_that_are_no_tensor_are_refused(kruskal):
    ttensor = pyttb.ttensor(pyttb.tensor(np.ones((1, 1, 1))), [np.ones((n, 1)) for n in SHAPE])
    with pytest.raises(InvalidTypeError, match="pyttb ttensor"):
        pio.from_pyttb(ttensor)
    with pytest.raises(InvalidTypeError, match="pyttb ktensor"):
        CP(2).fit(pio.to_pyttb(kruskal))


# pydata/sparse.


def test_sparse_both_ways(coo):
    there = pio.to_sparse(coo)
    assert isinstance(there, sparse.COO)
    assert there.nnz == coo.nnz
    np.testing.assert_array_equal(there.todense(), coo.toarray())
    back = pio.from_sparse(there)
    assert isinstance(back, coo_array)
    np.testing.assert_array_equal(back.toarray(), coo.toarray())


@pytest.mark.parametrize("make", [sparse.GCXS, sparse.DOK, sparse.COO])
def test_every_format_of_sparse_comes_in(coo, make):
    tensor = make.from_numpy(coo.toarray())
    np.testing.assert_array_equal(pio.from_sparse(tensor).toarray(), coo.toarray())


def test_sparse_of_a_labelled_tensor(coo):
    there = pio.to_sparse(LabelledTensor(coo, modes=list("abc")))
    np.testing.assert_array_equal(there.todense(), coo.toarray())


def test_sparse_sums_what_scipy_would_sum():
    repeated = coo_array((np.array([1.0, 2.0]), ([0, 0], [1, 1], [2, 2])), shape=(2, 3, 4))
    there = pio.to_sparse(repeated)
    assert there.nnz == 1
    assert there.todense()[0, 1, 2] == 3.0


@pytest.mark.parametrize("fill", [1.0, np.nan])
@pytest.mark.parametrize("make", [sparse.COO, sparse.GCXS])
def test_another_fill_value_is_refused(coo, fill, make):
    tensor = make.from_numpy(coo.toarray(), fill_value=fill)
    for use in (pio.from_sparse, CP(2).fit):
        with pytest.raises(InvalidInputError, match=f"fill value {fill}"):
            use(tensor)


def test_dense_data_is_not_sparse(array):
    for convert in (pio.to_sparse, pio.from_sparse):
        with pytest.raises(InvalidTypeError, match="dense ndarray was given"):
            convert(array)


# xarray.


@pytest.fixture
def coords():
    return {"when": pd.date_range("2024-01-01", periods=6), "who": list("vwxyz")}


def test_xarray_both_ways_dense(array, coords):
    there = xr.DataArray(array, dims=["when", "who", "what"], coords=coords)
    labelled = pio.from_xarray(there)
    assert labelled.modes == ("when", "who", "what")
    np.testing.assert_array_equal(labelled.labels[0], coords["when"].to_numpy())
    assert labelled.labels[1].tolist() == coords["who"]
    assert labelled.labels[2] is None
    xr.testing.assert_identical(pio.to_xarray(labelled), there)


def test_xarray_both_ways_sparse(coo, coords):
    there = xr.DataArray(pio.to_sparse(coo), dims=["when", "who", "what"], coords=coords)
    labelled = pio.from_xarray(there)
    assert labelled.is_sparse
    np.testing.assert_array_equal(labelled.to_dense(), coo.toarray())
    back = pio.to_xarray(labelled)
    assert isinstance(back.data, sparse.COO)
    np.testing.assert_array_equal(back.data.todense(), coo.toarray())
    assert back["who"].to_numpy().tolist() == coords["who"]


def test_xarray_coordinates_name_the_factors(array, coords):
    model = CP(2, random_state=0).fit(
        xr.DataArray(array, dims=["when", "who", "what"], coords=coords)
    )
    assert model.factor_table("who").index.tolist() == coords["who"]
    assert model.factor_table("when").index.equals(pd.Index(coords["when"], name="when"))


@pytest.mark.parametrize("is_sparse", [False, True])
def test_xarray_in_another_order_is_matched_by_label(array, coo, coords, is_sparse):
    dense, order = coo.toarray() if is_sparse else array, [3, 0, 4, 2, 1]
    there, shuffled = (
        xr.DataArray(
            pio.to_sparse(coo_array(dense[:, pick])) if is_sparse else dense[:, pick],
            dims=["when", "who", "what"],
            coords={**coords, "who": np.array(coords["who"])[pick]},
        )
        for pick in (range(5), order)
    )
    model = CP(2, random_state=0).fit(there)
    np.testing.assert_allclose(model.transform(shuffled), model.transform(there), atol=1e-12)
    assert model.score(shuffled) == pytest.approx(model.score(there))


def test_a_mask_goes_with_the_labels(array, coords):
    """The mask is in the order of the given array, not in that of the model."""
    there = xr.DataArray(array, dims=["when", "who", "what"], coords=coords)
    mask = np.random.default_rng(3).random(SHAPE) < 0.7
    model = CP(2, random_state=0).fit(there)
    order = [3, 0, 4, 2, 1]
    np.testing.assert_allclose(
        model.transform(there.isel(who=order), mask=mask[:, order]),
        model.transform(there, mask=mask),
        atol=1e-10,
    )


# Estimators take each of them as it is.

DENSE_FORMS = {
    "torch": torch.from_numpy,
    "fortran": np.asfortranarray,
    "nested lists": lambda x: x.tolist(),
    "pyttb": pyttb.tensor,
    "xarray": lambda x: xr.DataArray(x, dims=["a", "b", "c"]),
    "labelled": lambda x: LabelledTensor(x, modes=["a", "b", "c"]),
}
SPARSE_FORMS = {
    "pyttb": pio.to_pyttb,
    "sparse.COO": pio.to_sparse,
    "xarray": lambda x: xr.DataArray(pio.to_sparse(x), dims=["a", "b", "c"]),
    "labelled": lambda x: LabelledTensor(x, modes=["a", "b", "c"]),
}


@pytest.mark.parametrize(
    ("convert", "is_sparse"),
    [(form, False) for form in DENSE_FORMS.values()]
    + [(form, True) for form in SPARSE_FORMS.values()],
    ids=[*DENSE_FORMS, *(f"{name}, sparse" for name in SPARSE_FORMS)],
)
def test_an_estimator_sees_the_same_numbers(array, coo, convert, is_sparse):
    plain = coo if is_sparse else array
    expected = CP(2, random_state=0).fit(plain)
    model = CP(2, random_state=0).fit(convert(plain))
    for mine, theirs in zip(model.factors_, expected.factors_, strict=True):
        np.testing.assert_allclose(np.asarray(mine), theirs, atol=1e-6)
    features = np.asarray(expected.transform(convert(plain)))
    np.testing.assert_allclose(features, expected.transform(plain), atol=1e-10)
    assert model.score(convert(plain)) == pytest.approx(expected.score(plain), rel=1e-6)


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_a_wide_table_is_a_matrix_with_named_columns(frame):
    values = np.random.default_rng(0).random((9, 4))
    table = frame({name: values[:, k] for k, name in enumerate("abcd")})
    model, expected = CP(2, random_state=0).fit(table), CP(2, random_state=0).fit(values)
    np.testing.assert_allclose(model.transform(table), expected.transform(values), atol=1e-10)
    assert model.factor_table(1).index.tolist() == list("abcd")
    assert model.feature_names_in_.tolist() == list("abcd")


# Packages that are not there.


@pytest.mark.parametrize(
    ("package", "use"),
    [
        ("tensorly.cp_tensor", lambda k, _: pio.to_tensorly(k)),
        ("pyttb", lambda k, _: pio.to_pyttb(k)),
        ("sparse", lambda _, c: pio.to_sparse(c)),
        ("xarray", lambda _, c: pio.to_xarray(LabelledTensor(c, modes=list("abc")))),
        ("sparse", lambda _, c: pio.to_xarray(LabelledTensor(c, modes=list("abc")))),
    ],
)
def test_a_missing_package_is_named(monkeypatch, kruskal, coo, package, use):
    monkeypatch.setitem(sys.modules, package, None)
    name = package.partition(".")[0]
    with pytest.raises(MissingPackageError, match=f"pip install {name}"):
        use(kruskal, coo)
    with pytest.raises(ImportError):
        use(kruskal, coo)
