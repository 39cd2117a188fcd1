"""CP on labelled data, as a user with a table of events meets it, and inside scikit-learn."""

import warnings

import joblib
import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
import xarray as xr
from scipy.sparse import coo_array, csr_array
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from polyad import CP, LabelledTensor
from polyad.datasets import make_low_rank
from polyad.exceptions import InvalidInputError, UnknownLabelWarning

MODES = ["patient", "diagnosis", "drug"]
DIAGNOSES = ["angina", "asthma", "gout", "migraine"]
DRUGS = ["aspirin", "codeine", "inhaler", "statin", "triptan"]


def table(n_patients=12, seed=0, prefix="p"):
    """Events of two groups of patients: of the heart and of the lungs."""
    generator = np.random.default_rng(seed)
    rows = []
    for k in range(n_patients):
        usual = [(0, 0), (0, 3)] if k % 2 else [(1, 2), (1, 1)]
        others = [(generator.integers(4), generator.integers(5)) for _ in range(2)]
        for diagnosis, drug in usual * 3 + others:
            rows.append((f"{prefix}{k:02d}", DIAGNOSES[diagnosis], DRUGS[drug]))
    return pd.DataFrame(rows, columns=MODES)


def catalogue():
    """All labels of the two modes that are the same for all patients."""
    return {"diagnosis": DIAGNOSES, "drug": DRUGS}


def events(frame, **options):
    return LabelledTensor.from_frame(frame, modes=MODES, **{"labels": catalogue(), **options})


@pytest.fixture
def model():
    return CP(2, random_state=0).fit(events(table()))


# Tables of factors.


def to_polars(frame):
    return pl.DataFrame({name: frame[name].tolist() for name in frame})


@pytest.mark.parametrize("convert", [pd.DataFrame, to_polars], ids=["pandas", "polars"])
def test_a_table_of_events_becomes_labelled_factors(convert):
    model = CP(2, random_state=0).fit(events(convert(table())))
    assert model.modes_ == tuple(MODES)
    for mode, labels in enumerate(([f"p{k:02d}" for k in range(12)], DIAGNOSES, DRUGS)):
        factors = model.factor_table(mode)
        assert factors.index.tolist() == labels
        assert factors.index.name == MODES[mode]
        assert factors.columns.tolist() == ["component 0", "component 1"]
        np.testing.assert_array_equal(factors.to_numpy(), model.factors_[mode])
        pd.testing.assert_frame_equal(factors, model.factor_table(MODES[mode]))
        pd.testing.assert_frame_equal(factors, model.factor_table(mode - 3))


def test_the_groups_of_the_table_are_found(model):
    tops = {model.top(r, "diagnosis", 1).index[0]: r for r in range(2)}
    assert set(tops) == {"angina", "asthma"}
    heart = model.factor_table("patient").iloc[:, tops["angina"]].abs()
    assert (
        heart[[k % 2 == 1 for k in range(12)]].min() > heart[[k % 2 == 0 for k in range(12)]].max()
    )
    assert set(model.top(tops["asthma"], "drug", 2).index) == {"inhaler", "codeine"}


def test_top_gives_the_largest_first(model):
    column = model.factor_table("drug")["component 1"]
    top = model.top(1, "drug", 3)
    assert isinstance(top, pd.Series)
    assert top.name == "component 1"
    assert top.index.name == "drug"
    expected = column.abs().sort_values(ascending=False, kind="stable").index[:3]
    assert top.index.tolist() == expected.tolist()
    np.testing.assert_array_equal(top.to_numpy(), column[top.index].to_numpy())
    pd.testing.assert_series_equal(top, model.top(1, 2, 3))
    sizes = model.factor_table("drug")["component 0"].abs()
    assert set(model.top(0, "drug", 100).index) == set(sizes.index[sizes >= 1e-3 * sizes.max()])
    assert len(model.top(0, "drug", 0)) == 0


def test_dates_and_numbers_stay_what_they_are():
    days = pd.date_range("2024-02-27", periods=4)
    tensor = LabelledTensor(
        np.random.default_rng(0).random((5, 4, 3)),
        modes=["sample", "day", "size"],
        labels={"day": days, "size": [1.5, 2.5, 10.0]},
    )
    model = CP(2, random_state=0).fit(tensor)
    assert isinstance(model.factor_table("day").index, pd.DatetimeIndex)
    assert model.factor_table("day").index.tolist() == days.tolist()
    assert model.factor_table("size").index.tolist() == [1.5, 2.5, 10.0]
    assert model.factor_table("sample").index.tolist() == [0, 1, 2, 3, 4]
    assert model.factor_table("sample").index.name == "sample"


@pytest.mark.parametrize("mode", ["nurse", "", "Drug"])
def test_an_unknown_name_of_a_mode_lists_the_names(model, mode):
    for ask in (model.factor_table, lambda mode: model.top(0, mode)):
        with pytest.raises(InvalidInputError, match="'patient', 'diagnosis', 'drug'"):
            ask(mode)


@pytest.mark.parametrize("mode", [3, -4, 100, 1.5, None])
def test_an_unknown_number_of_a_mode(model, mode):
    with pytest.raises(InvalidInputError, match=rf"mode={mode} does not exist; there are 0\.\.2"):
        model.factor_table(mode)


@pytest.mark.parametrize("component", [2, -1, 0.5, None, "cp0"])
def test_an_unknown_component(model, component):
    with pytest.raises(InvalidInputError, match=rf"component={component!r}.*0\.\.1"):
        model.top(component, "drug")


def test_a_model_without_names_has_numbers():
    model = CP(2, random_state=0).fit(np.random.default_rng(0).random((5, 4, 3)))
    assert model.factor_table(1).index.tolist() == [0, 1, 2, 3]
    assert model.factor_table(1).index.name is None
    with pytest.raises(InvalidInputError, match="the names are: none"):
        model.factor_table("drug")


@pytest.mark.parametrize(
    "use", [lambda m: m.factor_table(0), lambda m: m.top(0, 0), lambda m: m.kruskal_]
)
def test_an_unfitted_model_has_no_tables(use):
    with pytest.raises(NotFittedError):
        use(CP(2))


# New samples.


def test_labels_in_another_order_are_matched(model):
    new = table(6, seed=1, prefix="new")
    expected = model.transform(events(new))
    shuffled = events(new, labels={"diagnosis": DIAGNOSES[::-1], "drug": DRUGS[2:] + DRUGS[:2]})
    np.testing.assert_allclose(model.transform(shuffled), expected, atol=1e-12)
    assert model.score(shuffled) == pytest.approx(model.score(events(new)))


def test_labels_that_are_missing_from_new_samples_are_zeros(model):
    few = pd.DataFrame([("new", "asthma", "inhaler"), ("new", "angina", "statin")], columns=MODES)
    found = LabelledTensor.from_frame(few, modes=MODES)
    assert found.shape == (1, 2, 2)
    full = np.zeros((1, 4, 5))
    full[0, 1, 2] = full[0, 0, 3] = 1.0
    np.testing.assert_allclose(model.transform(found), model.transform(full), atol=1e-12)


def test_an_unlabelled_array_of_the_right_shape_is_taken_as_it_is(model):
    new = events(table(6, seed=1))
    for plain in (new.data, new.to_dense()):
        np.testing.assert_allclose(model.transform(plain), model.transform(new), atol=1e-12)


def test_unknown_labels_are_named_with_a_remedy_that_works(model):
    new = table(3, seed=1)
    strange = pd.concat(
        [
            new,
            pd.DataFrame(
                [("p00", "asthma", "opium"), ("p01", "asthma", "laudanum")], columns=MODES
            ),
        ]
    )
    X = LabelledTensor.from_frame(strange, modes=MODES)
    with pytest.raises(InvalidInputError, match=r"'drug'.*'laudanum', 'opium'") as caught:
        model.transform(X)
    # Do what the message says.
    message = str(caught.value)
    remedy = message[message.index("model.align(") : message.index(", which says")]
    with pytest.warns(UnknownLabelWarning, match="opium"):
        X = eval(remedy, {"X": X, "model": model})
    np.testing.assert_allclose(model.transform(X), model.transform(events(new)), atol=1e-12)


def strange_events():
    """Events of two patients: three of what the model knows, two of diagnoses, three of drugs."""
    rows = [("p00", "asthma", "inhaler")] * 3 + [("p01", "plague", "aspirin")] * 2
    rows += [("p00", "gout", drug) for drug in ("opium", "laudanum", "opium")]
    return pd.DataFrame(rows, columns=MODES)


@pytest.mark.parametrize("convert", [pd.DataFrame, to_polars, events], ids=["pandas", "polars", ""])
def test_align_tells_of_all_modes_at_once(model, convert):
    """As the same table with only the known rows, for all patients."""
    frame = strange_events()
    given = events(frame, labels={}) if convert is events else convert(frame)
    with pytest.warns(UnknownLabelWarning) as caught:
        aligned = model.align(given)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert str(caught[0].message) == (
        "1 of 3 labels of mode 'diagnosis' are unknown to the model: 'plague'; 2 of 4 labels of "
        "mode 'drug' are unknown to the model: 'laudanum', 'opium'. 25% of the entries are kept "
        "(1 of 4), with 38% of their sum. 1 samples are left without an entry."
    )
    known = events(frame.iloc[:3], labels={"patient": ["p00", "p01"], **catalogue()})
    assert aligned.modes == tuple(MODES)
    np.testing.assert_array_equal(aligned.to_dense(), known.to_dense())
    np.testing.assert_array_equal(model.transform(aligned), model.transform(known))


def test_align_is_silent_where_all_is_known(model):
    frame = table(3, seed=1).assign(count=2.0)
    aligned = model.align(frame, value="count")
    np.testing.assert_array_equal(aligned.to_dense(), 2 * events(frame).to_dense())
    turned = LabelledTensor.from_frame(frame, modes=MODES[::-1], value="count")
    np.testing.assert_array_equal(model.align(turned).to_dense(), aligned.to_dense())


def test_align_takes_numbers_for_positions_where_the_model_has_no_labels():
    X = LabelledTensor(events(table()).data, modes=MODES, labels={"diagnosis": DIAGNOSES})
    model = CP(2, random_state=0).fit(X)
    frame = pd.DataFrame({"patient": ["new"], "diagnosis": ["asthma"], "drug": [3]})
    aligned = model.align(frame)
    assert aligned.shape == (1, 4, 5)
    assert aligned.to_dense()[0, 1, 3] == 1.0
    assert model.transform(aligned).shape == (1, 2)
    with pytest.warns(UnknownLabelWarning, match="1 of 2 labels of mode 'drug'.*: 7"):
        model.align(pd.concat([frame, frame.assign(drug=7)]))


def test_align_refuses_what_it_cannot_bring(model):
    codes = table(2).assign(drug=7)
    with pytest.raises(InvalidInputError, match=r"Nothing.*'drug'.*of type int64 where the model"):
        model.align(codes)
    with pytest.raises(InvalidInputError, match="Leave value out"):
        model.align(events(table(2)), value="count")
    with pytest.raises(InvalidInputError, match="2 modes"):
        model.align(events(table(2)).sel(drug="aspirin"))
    with pytest.raises(InvalidInputError, match=r"no column 'drug'.*rename the column"):
        model.align(table(2).rename(columns={"drug": "medication"}))
    with pytest.raises(NotFittedError):
        CP(2).align(table(2))


def test_align_of_a_wide_table(wide):
    model = CP(2, random_state=0).fit(wide)
    more = wide.assign(e=1.0, f=0.0)[list("fbdcae")]
    with pytest.warns(UnknownLabelWarning, match=r"2 of 6 labels of mode 'mode 1'.*'f', 'e'"):
        aligned = model.align(more)
    np.testing.assert_array_equal(model.transform(aligned), model.transform(wide))
    with pytest.raises(InvalidInputError, match="no entries for 1 labels"):
        model.align(wide[list("abc")])


def test_unknown_labels_of_another_type_are_explained():
    numbered = LabelledTensor(coo_array(np.eye(3)), modes=["a", "b"], labels={"b": [1, 2, 3]})
    as_text = LabelledTensor(coo_array(np.eye(3)), modes=["a", "b"], labels={"b": ["1", "2", "3"]})
    model = CP(1, random_state=0, init="random").fit(numbered)
    with pytest.raises(InvalidInputError, match="of type <U1 where the model has int64"):
        model.transform(as_text)


@pytest.mark.parametrize("method", ["transform", "score", "partial_fit"])
def test_every_method_checks_labels(model, method):
    strange = table(3).replace({"drug": {"aspirin": "opium"}})
    with pytest.raises(InvalidInputError, match="opium"):
        getattr(model, method)(LabelledTensor.from_frame(strange, modes=MODES))


def test_dense_samples_without_some_labels_are_refused(model):
    dense = LabelledTensor(
        np.ones((2, 4, 2)), modes=MODES, labels={"diagnosis": DIAGNOSES, "drug": DRUGS[:2]}
    )
    with pytest.raises(InvalidInputError, match="no entries for 3 labels of mode 'drug'"):
        model.transform(dense)


@pytest.mark.parametrize("modes", [["patient", "drug", "disease"], ["person", "diagnosis", "drug"]])
def test_other_names_of_modes_are_refused(model, modes):
    other = LabelledTensor(np.ones((2, 4, 5)), modes=modes)
    with pytest.raises(InvalidInputError, match="give the same names"):
        model.transform(other)


def test_another_number_of_modes_is_refused(model):
    with pytest.raises(InvalidInputError, match=r"fitted to 3 modes.*\(n_samples, 4, 5\)"):
        model.transform(LabelledTensor(np.ones((2, 4)), modes=MODES[:2]))


def test_another_size_is_refused(model):
    with pytest.raises(InvalidInputError, match=r"size 3 in mode 1.*fitted to the size 4"):
        model.transform(np.ones((2, 3, 5)))


def test_a_model_of_plain_arrays_takes_labelled_samples():
    X = events(table())
    model = CP(2, random_state=0).fit(X.to_dense())
    np.testing.assert_allclose(model.transform(X), model.transform(X.to_dense()), atol=1e-12)


def test_new_samples_do_not_change_the_model(model):
    before = [labels.copy() for labels in model.labels_]
    model.transform(events(table(3, prefix="new"), labels={"drug": DRUGS[::-1]}))
    for mine, theirs in zip(model.labels_, before, strict=True):
        np.testing.assert_array_equal(mine, theirs)


# Learning from more samples.


def test_partial_fit_appends_the_labels_of_the_samples(model):
    model.partial_fit(events(table(3, seed=1, prefix="new"), labels={"drug": DRUGS[::-1]}))
    names = [f"p{k:02d}" for k in range(12)] + ["new00", "new01", "new02"]
    assert model.factor_table("patient").index.tolist() == names
    assert model.factor_table("drug").index.tolist() == DRUGS
    assert model.n_samples_seen_ == 15


def test_partial_fit_matches_labels_in_another_order():
    first, second = events(table()), table(6, seed=1, prefix="new")
    one = CP(2, random_state=0).fit(first).partial_fit(events(second))
    two = (
        CP(2, random_state=0)
        .fit(first)
        .partial_fit(events(second, labels={"diagnosis": DIAGNOSES[::-1], "drug": DRUGS[::-1]}))
    )
    for mine, theirs in zip(one.factors_, two.factors_, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-12)


def test_partial_fit_with_samples_without_labels(model):
    more = events(table(3, prefix="new")).data
    with pytest.raises(InvalidInputError, match=r"set model\.labels_\[0\] = None"):
        model.partial_fit(more)
    model.labels_[0] = None
    model.partial_fit(more)
    assert model.labels_[0] is None
    assert model.labels_[1] is not None


def test_a_second_fit_forgets_the_labels_of_the_first(model):
    model.fit(np.random.default_rng(0).random((5, 4, 3)))
    assert model.modes_ is None
    assert model.labels_ == [None, None, None]


def test_a_refused_fit_leaves_names_and_labels_of_the_model(model):
    before = model.factor_table("drug")
    with pytest.raises(InvalidInputError, match="n_components"):
        model.fit(
            LabelledTensor(np.ones((2, 1)), modes=["row", "column"], labels={"row": ["a", "b"]})
        )
    pd.testing.assert_frame_equal(model.factor_table("drug"), before)
    assert model.n_features_in_ == len(DIAGNOSES)
    assert model.transform(events(table(3))).shape == (3, 2)


# Wide tables.


@pytest.fixture
def wide():
    values = np.random.default_rng(0).random((10, 4))
    return pd.DataFrame(values, columns=list("abcd"), index=[f"row {k}" for k in range(10)])


def test_a_wide_table_gives_labels_and_feature_names(wide):
    model = CP(2, random_state=0).fit(wide)
    assert model.feature_names_in_.tolist() == list("abcd")
    assert model.n_features_in_ == 4
    assert model.factor_table(1).index.tolist() == list("abcd")
    assert model.factor_table(0).index.tolist() == wide.index.tolist()
    np.testing.assert_allclose(
        model.transform(wide), CP(2, random_state=0).fit(wide.to_numpy()).transform(wide.to_numpy())
    )


def test_names_of_axes_become_modes(wide):
    named = wide.rename_axis(index="person", columns="gene")
    model = CP(2, random_state=0).set_output(transform="pandas").fit(named)
    assert model.modes_ == ("person", "gene")
    assert model.factor_table("gene").index.tolist() == list("abcd")
    # Other names, or none, of the axes of new tables do not matter: their columns do.
    features = model.transform(named)
    assert features.index.name == "person"
    for other in (wide, wide.rename_axis(index="id", columns="gene")):
        np.testing.assert_array_equal(model.transform(other), features)
    for one in (wide.rename_axis(index="person"), wide.rename_axis(index="x", columns="x")):
        assert CP(2, random_state=0).fit(one).modes_ is None


def test_other_columns_are_refused_as_scikit_learn_does(wide):
    model = CP(2, random_state=0).fit(wide)
    with pytest.raises(ValueError, match="feature names should match"):
        model.transform(wide.rename(columns={"a": "z"}))
    with pytest.raises(ValueError, match="same order"):
        model.transform(wide[list("badc")])
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        model.transform(wide.to_numpy())


def test_columns_of_a_table_are_matched_to_the_labels_of_a_model(wide):
    tensor = LabelledTensor(
        wide.to_numpy(), modes=["row", "column"], labels={"column": list("abcd")}
    )
    model = CP(2, random_state=0).fit(tensor)
    with pytest.warns(UserWarning, match="fitted without feature names"):
        features = model.transform(wide[list("dcba")])
    np.testing.assert_allclose(features, model.transform(tensor), atol=1e-12)


def test_features_as_a_table(wide, model):
    assert model.get_feature_names_out().tolist() == ["cp0", "cp1"]
    table_model = CP(2, random_state=0).set_output(transform="pandas").fit(wide)
    features = table_model.transform(wide)
    assert isinstance(features, pd.DataFrame)
    assert features.columns.tolist() == ["cp0", "cp1"]
    assert features.index.tolist() == wide.index.tolist()
    polars = CP(2, random_state=0).set_output(transform="polars").fit(wide).transform(wide)
    assert isinstance(polars, pl.DataFrame)
    expected = table_model.inverse_transform(features.to_numpy())
    np.testing.assert_allclose(table_model.inverse_transform(features), expected)


def test_features_of_a_tensor_as_a_table():
    X = events(table())
    features = CP(2, random_state=0).set_output(transform="pandas").fit_transform(X)
    assert isinstance(features, pd.DataFrame)
    assert features.shape == (12, 2)


# scikit-learn around it.


def test_a_clone_has_the_parameters_and_nothing_learned(model):
    start = [np.ones((3, 2))] * 3
    copy = clone(CP(2, init=start, ridge=0.1, fixed_modes=[1], callbacks=[print]))
    assert copy.get_params()["ridge"] == 0.1
    np.testing.assert_array_equal(copy.init[0], start[0])
    with pytest.raises(NotFittedError):
        clone(model).transform(events(table()))


@pytest.fixture
def cube():
    generator = np.random.default_rng(0)
    y = np.arange(40) % 2
    patterns = generator.random((2, 5, 4))
    return patterns[y] + 0.3 * generator.standard_normal((40, 5, 4)), y


def test_a_pipeline_of_a_tensor(cube):
    X, y = cube
    pipeline = make_pipeline(CP(2, random_state=0), StandardScaler(), LogisticRegression())
    assert pipeline.fit(X, y).score(X, y) > 0.9
    assert pipeline[:-1].get_feature_names_out().tolist() == ["cp0", "cp1"]


def test_a_pipeline_of_a_sparse_tensor():
    frame = table(20)
    X, y = events(frame), np.arange(20) % 2
    pipeline = make_pipeline(CP(2, random_state=0), LogisticRegression())
    for data in (X, X.data):
        assert pipeline.fit(data, y).score(data, y) > 0.9


def test_a_step_before_it_may_make_the_tensor():
    flat = np.random.default_rng(0).random((30, 20))
    to_cube = FunctionTransformer(lambda X: X.reshape(-1, 5, 4))
    assert make_pipeline(to_cube, CP(2, random_state=0)).fit_transform(flat).shape == (30, 2)


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_a_grid_search_over_a_dense_tensor(cube, n_jobs):
    X, _ = cube
    search = GridSearchCV(
        CP(random_state=0), {"n_components": np.arange(1, 4)}, cv=3, n_jobs=n_jobs
    )
    with joblib.parallel_config(backend="threading"):  # processes are those of test_processes.py
        search.fit(X)
    means = search.cv_results_["mean_test_score"]
    assert np.isfinite(means).all()
    assert means[1] > means[0] + 0.01
    assert search.best_estimator_.transform(X).shape == (40, search.best_params_["n_components"])


@pytest.mark.parametrize("convert", [torch.from_numpy, xr.DataArray], ids=["torch", "xarray"])
def test_a_grid_search_over_other_forms_of_a_tensor(cube, convert):
    X, _ = cube
    grid = {"n_components": [1, 2]}
    expected = GridSearchCV(CP(tol=1e-2, random_state=0), grid, cv=2).fit(X)
    search = GridSearchCV(CP(tol=1e-2, random_state=0), grid, cv=2).fit(convert(X))
    assert search.best_score_ == pytest.approx(expected.best_score_, rel=1e-4)
    assert search.best_params_ == expected.best_params_


def test_a_grid_search_of_a_pipeline(cube):
    X, y = cube
    pipeline = make_pipeline(CP(random_state=0), LogisticRegression())
    search = GridSearchCV(pipeline, {"cp__n_components": [1, 2], "cp__ridge": [0.0, 0.1]}, cv=2)
    assert search.fit(X, y).best_score_ > 0.8


def test_cross_validation_of_a_sparse_matrix():
    """scikit-learn cuts matrices by rows; scipy does not cut sparse arrays of higher order."""
    X = csr_array(np.random.default_rng(0).random((30, 8)) < 0.4)
    scores = cross_val_score(CP(2, random_state=0), X, cv=3)
    assert np.isfinite(scores).all()


def test_scores_are_the_explained_part(model):
    X = events(table())
    dense = X.to_dense()
    residual = dense - np.asarray(model.inverse_transform(model.transform(X)))
    expected = 1 - np.sum(residual**2) / np.sum(dense**2)
    assert model.score(X) == pytest.approx(expected)


def test_nothing_warns_in_ordinary_use():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = CP(2, random_state=0).fit(events(table()))
        model.transform(events(table(3, seed=2, prefix="new")))
        repr(model), model._repr_html_(), model.top(0, "drug")


def test_features_carry_the_names_of_the_samples():
    X = make_low_rank((6, 5, 4), 2, random_state=0)[0]
    names = [f"s{k}" for k in range(6)]
    data = LabelledTensor(X, modes=["sample", "b", "c"], labels=[names, None, None])
    table = CP(2, random_state=0).set_output(transform="pandas").fit_transform(data)
    assert table.index.tolist() == names


@pytest.mark.parametrize("container", [np.asarray, coo_array])
def test_named_modes_come_in_any_order(container):
    X = make_low_rank((6, 5, 4), 2, noise=0.1, random_state=0)[0]
    model = CP(2, random_state=0).fit(LabelledTensor(container(X), modes=["a", "b", "c"]))
    turned = LabelledTensor(container(X.transpose(2, 0, 1)), modes=["c", "a", "b"])
    np.testing.assert_allclose(model.transform(turned), model.transform(X), atol=1e-9)


def test_warnings_point_at_the_caller():
    X = make_low_rank((6, 5, 4), 2, noise=0.5, random_state=0)[0]
    for call in (CP(2, max_iter=1).fit, CP(2, max_iter=1).fit_transform):
        with pytest.warns(ConvergenceWarning) as caught:
            call(X)
        assert caught[0].filename == __file__
