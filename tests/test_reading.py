"""What people read from components: the summary, leading and distinctive labels."""

import os
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import polyad
from polyad import CP, QMF, LabelledTensor, NonnegativeCP, PoissonCP
from polyad.exceptions import DataWarning, InvalidInputError
from polyad.io import tensor_from_events

DATA = Path(os.environ.get("POLYAD_DATA", ""), "ehr")
MODES = ["patient", "diagnosis", "drug"]
DRUGS = ["aspirin", "codeine", "inhaler", "statin", "triptan"]


def model_of(weights, factors, labels=None):
    """Return a model whose components are given: no iteration changes them."""
    shape = [len(factor) for factor in factors]
    names = [None, None, DRUGS[: shape[2]]] if labels is None else labels
    X = LabelledTensor(np.ones(shape), modes=MODES, labels=names)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = CP(len(weights), max_iter=1, random_state=0).fit(X)
    model.weights_, model.factors_ = np.asarray(weights), [np.asarray(f) for f in factors]
    return model


def random_model(*, signed, seed=0):
    rng = np.random.default_rng(seed)
    draw = rng.standard_normal if signed else rng.random
    return model_of(np.array([5.0, 2.0, 1.0]), [draw((n, 3)) for n in (7, 6, 5)])


@pytest.mark.parametrize("signed", [False, True])
def test_numbers_are_those_of_the_dense_components(signed):
    """Twin: every component as an array, its absolute entries counted."""
    model = random_model(signed=signed)
    table = model.summary(k=5)
    single = [
        w * np.einsum("i,j,k->ijk", *(f[:, r] for f in model.factors_))
        for r, w in enumerate(model.weights_)
    ]
    mass = np.array([np.abs(own).sum() for own in single])
    np.testing.assert_allclose(table["share"], mass / mass.sum(), atol=6e-4)
    whole = np.abs(single).sum(axis=0)
    for mode, name in enumerate(MODES):
        others = tuple(k for k in range(3) if k != mode)
        shares = np.array([np.abs(own).sum(axis=others) for own in single]) / mass[:, None]
        np.testing.assert_allclose(
            table[f"effective {name}"], 1 / (shares**2).sum(axis=1), atol=0.06
        )
        if mode == 0:
            np.testing.assert_allclose(table["largest patient"], shares.max(axis=1), atol=6e-4)
        lift = shares / (whole.sum(axis=others) / whole.sum())
        for r in range(3):
            found = model.top(r, name, by="lift")
            assert found.name == f"lift in component {r}"
            order = np.argsort(-shares[r])
            counted = order[: int(np.searchsorted(np.cumsum(shares[r][order]), 0.95)) + 1]
            index = model.factor_table(name).index
            assert set(found.index) == set(index[counted])
            np.testing.assert_allclose(found, lift[r][index.get_indexer(found.index)])
            assert (np.diff(found.round(1)) <= 0).all()
    flat = np.asarray(model.components_).reshape(3, -1)
    flat = flat / np.linalg.norm(flat, axis=1, keepdims=True)
    cosines = np.abs(flat @ flat.T)
    np.fill_diagonal(cosines, 0)
    np.testing.assert_allclose(table["overlap"], cosines.max(axis=1), atol=6e-4)
    for r, other in enumerate(cosines.argmax(axis=1)):
        expected = f"component {other}" if cosines[r, other] >= 0.1 else ""
        assert table["overlaps with"].iloc[r] == expected


def test_labels_in_words():
    """Everybody has aspirin; what is special about a component comes by lift."""
    drugs = [[0.9, 0.9], [0.0, 0.1], [0.3, 0.0], [-0.05, 0.0], [1e-46, 0.3]]
    model = model_of([1.0, 1.0], [np.ones((4, 2)), np.eye(2), drugs])
    table = model.summary()
    assert table["leading drug"].tolist() == ["aspirin, inhaler", "aspirin, triptan, codeine"]
    assert table["distinctive drug"].tolist() == [
        "inhaler (2.0x)",
        "triptan (2.0x), codeine (2.0x)",
    ]
    assert model.top(0, "drug", 2).index.tolist() == ["aspirin", "inhaler"]
    # What is nothing is not listed, nor written as 1e-46.
    assert model.top(0, "drug").index.tolist() == ["aspirin", "inhaler", "statin"]
    assert model.factor_table("drug").loc["triptan", "component 0"] == 0.0
    drugs[2][0] = -0.3
    negative = model_of([1.0, 1.0], [np.ones((4, 2)), np.eye(2), drugs]).summary()
    assert negative["leading drug"].iloc[0] == "aspirin, inhaler (-)"


def test_a_component_of_one_sample_is_told():
    patients = np.ones((10, 3))
    patients[1:, 1] = 0.05
    drugs = np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 0.02]])
    model = model_of([1.0, 1.0, 1.0], [patients, drugs[:, [0, 1, 0]], drugs])
    with pytest.warns(DataWarning, match=r"one patient holds most of component 1: .*from_frame"):
        table = model.summary()
    assert table["note"].tolist() == [
        "every patient has it, about equally; much like component 2",
        "one patient holds 69%",
        "every patient has it, about equally; much like component 0",
    ]


def test_nothing_and_numbers_near_the_limits():
    factors = [np.ones((3, 2)) * [1.0, 0.0], np.full((2, 2), 1e200), np.full((2, 2), 1e-200)]
    table = model_of([1e300, 0.0], factors).summary()
    numbers = table.select_dtypes("number")
    assert np.isfinite(numbers.to_numpy()).all()
    assert table["share"].tolist() == [1.0, 0.0]
    assert table["effective patient"].tolist() == [3.0, 0.0]
    assert table["note"].iloc[1] == "nothing"
    nothing = model_of([0.0], [np.zeros((3, 1)), np.zeros((2, 1)), np.zeros((2, 1))])
    assert nothing.summary()["share"].tolist() == [0.0]
    assert len(nothing.top(0, "drug", by="lift")) <= 2


def test_a_saved_model_has_the_same_summary(tmp_path):
    X = LabelledTensor(
        np.random.default_rng(0).random((8, 4, 5)), modes=MODES, labels={"drug": DRUGS}
    )
    model = NonnegativeCP(2, random_state=0).fit(X)
    model.save(tmp_path / "model.polyad")
    loaded = polyad.load(tmp_path / "model.polyad")
    pd.testing.assert_frame_equal(loaded.summary(), model.summary())
    old = polyad.load(Path(__file__).parent / "stored" / "model-v1.polyad")
    assert np.isfinite(old._summary(3).select_dtypes("number").to_numpy()).all()
    alike = CP(2, random_state=0).fit(torch.from_numpy(X.data))
    named = CP(2, random_state=0).fit(X).summary()
    np.testing.assert_allclose(alike.summary()["share"], named["share"])
    assert list(alike.summary().columns[2:6]) == [
        "largest mode 0",
        *(f"effective mode {mode}" for mode in range(3)),
    ]


def test_loadings_of_quantile_models_are_read_in_the_unit_of_the_data():
    """A transform undoes the scale of the loadings of its feature, which must not matter."""
    rng = np.random.default_rng(0)
    X = np.exp(0.5 * rng.normal(size=(30, 2)) @ rng.normal(size=(2, 5)))
    model = QMF(2, n_quantiles=4, tol=0.5, random_state=0).fit(X)
    before, summary = model.top(0, 1), model.summary()
    model.factors_[1][:] *= 10.0 ** np.arange(0.0, 15.0, 3.0)[:, None]
    after = model.top(0, 1)
    assert after.index.tolist() == before.index.tolist()
    np.testing.assert_allclose(after, before)
    pd.testing.assert_frame_equal(model.summary(), summary)
    # The deviation of the quantiles over that of the products, in columns of length one.
    products = model.factors_[1] @ (model.factors_[0] * model.weights_).T
    shares = model.quantile_weights_
    spread = (shares * model.quantiles_**2).sum(1) - (shares * model.quantiles_).sum(1) ** 2
    expected = model.factors_[1][:, 0] * np.sqrt(spread) / products.std(axis=1)
    np.testing.assert_allclose(after, (expected / np.linalg.norm(expected))[after.index], rtol=1e-6)
    model.factors_[1][3] = 0.0
    assert 3 not in model.top(0, 1).index


def test_features_below_rounding_are_zero():
    model = random_model(signed=False)
    rows = np.array([[1.0, 3e-46, -1e-15], [3e-46, 1e-50, 0.0]])
    np.testing.assert_array_equal(
        model._named(rows, None), [[1.0, 0.0, -1e-15], [3e-46, 1e-50, 0.0]]
    )


@pytest.mark.skipif(not DATA.exists(), reason="POLYAD_DATA has no health records")
def test_lifts_of_health_records_are_over_the_frequencies_of_the_data():
    """A Poisson model has the sums of the data, so that its shares of labels are those there."""
    medications, diagnoses = (
        pd.read_csv(DATA / f"synthea2017_{name}.csv.gz") for name in ("medications", "conditions")
    )
    X = tensor_from_events(medications, diagnoses, min_patients=20)
    model = PoissonCP(4, tol=1e-3, random_state=0).fit(X)
    drugs = X.to_frame().groupby("medication", observed=True)["value"].sum()
    for r in range(4):
        lift = model.top(r, "medication", by="lift")
        entries = model.factor_table("medication")[f"component {r}"]
        expected = (entries / entries.sum())[lift.index] / (drugs / drugs.sum())[lift.index]
        np.testing.assert_allclose(lift, expected, rtol=0.02)
    table = model.summary()
    assert table["share"].sum() == pytest.approx(1.0, abs=2e-3)
    assert (table["effective medication"] < 20).all()
    with pytest.raises(InvalidInputError, match="look swapped"):
        tensor_from_events(diagnoses, medications)


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda m: m.top(0, "drug", by="size"), "by='size' has no meaning; give 'weight' or"),
        (lambda m: m.top(0, "drug", by=np.ones(2)), "has no meaning"),
        (lambda m: m.summary(0), "k=0 is not a number of labels"),
        (lambda m: m.summary("all"), "k='all' is not a number"),
    ],
)
def test_bad_requests(ask, says):
    with pytest.raises(InvalidInputError, match=says):
        ask(random_model(signed=False))
