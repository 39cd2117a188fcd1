"""SimilarityCP as its users meet it: forms of similarities, labels, files, errors."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import coo_array, coo_matrix, csr_array, eye_array
from sklearn.model_selection import GridSearchCV

import polyad
from polyad import LabelledTensor, SimilarityCP
from polyad.exceptions import InvalidInputError, ModelFileError, PolyadError
from polyad.fitting.archive import read_archive, write_archive
from polyad.selection import select_rank

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
X = np.random.default_rng(0).random((10, 5, 4))
S = np.random.default_rng(1).random((5, 5))
S = S + S.T
QUICK = {"random_state": 0, "max_iter": 5, "tol": 0, "similarity_weight": 1.0}
NAMES = ["gout", "asthma", "angina", "flu", "mumps"]


def labelled(data=X):
    return LabelledTensor(data, modes=["patient", "code", "drug"], labels={"code": NAMES})


def changed(row, column, value):
    matrix = S.copy()
    matrix[row, column] = value
    return matrix


@pytest.mark.parametrize(
    "similarities",
    [
        {1: S},
        {-2: S},
        {np.int64(1): S, 2: None},
        [None, S, None],
        (None, S.tolist(), None),
        {1: csr_array(S)},
        {1: coo_matrix(S)},
        {1: pd.DataFrame(S)},
        {1: torch.tensor(S)},
        {1: 7 * S + 3 * np.eye(5)},
    ],
)
def test_forms_of_the_same_similarity(similarities):
    expected = SimilarityCP(2, similarities={1: S}, **QUICK).fit(X)
    model = SimilarityCP(2, similarities=similarities, **QUICK).fit(X)
    for left, right in zip(model.factors_, expected.factors_, strict=True):
        np.testing.assert_allclose(left, right, atol=1e-10)


def test_names_of_modes_and_weights_of_modes():
    model = SimilarityCP(2, similarities={"code": S}, **QUICK).fit(labelled())
    assert model.roughness_[1].all()
    assert not model.roughness_[2].any()
    both = SimilarityCP(2, **{**QUICK, "similarity_weight": [0.0, 1.0, 0.0]})
    both.set_params(similarities=[None, S, np.ones((4, 4))]).fit(X)
    np.testing.assert_allclose(both.factors_[1], model.factors_[1], atol=1e-12)
    assert both.roughness_[2].all()  # told, though it has no say


def test_tables_are_matched_by_label():
    expected = SimilarityCP(2, similarities={"code": S}, **QUICK).fit(labelled())
    table = pd.DataFrame(S, index=NAMES, columns=NAMES)
    table.loc["extra"] = 0.5
    table["extra"] = 0.5
    order = ["mumps", "extra", "gout", "flu", "angina", "asthma"]
    table = table.loc[order, order[::-1]]
    model = SimilarityCP(2, similarities={"code": table}, **QUICK).fit(labelled())
    np.testing.assert_allclose(model.factors_[1], expected.factors_[1], atol=1e-12)
    assert model.factor_table("code").index.tolist() == NAMES
    shuffled = labelled().align({"code": NAMES[::-1]})
    np.testing.assert_allclose(model.transform(shuffled), model.transform(labelled()))


@pytest.mark.parametrize(
    ("similarities", "says"),
    [
        ("euclidean", "similarities names 'euclidean' for mode 1. Known names are 'cosine'"),
        ({1: "euclidean"}, "names 'euclidean' for mode 1"),
        (S, "similarities is a ndarray"),
        (3, "similarities is a int"),
        ([S, None], "has 2 entries; the data has 3 modes"),
        ({0: np.ones((10, 10))}, "entry for mode 0, the samples"),
        ({3: S}, r"entry for mode 3; the data has the modes 0..2"),
        ({"code": S}, "mode 'code'; the data has the modes 0..2, which have no names"),
        ({1.5: S}, "entry for mode 1.5"),
        ({1: S, -2: S}, "names mode 1 twice"),
        ({1: S[:4]}, r"The similarity of mode 1 has the shape \(4, 5\); \(5, 5\) is needed"),
        ({2: S}, r"The similarity of mode 2 has the shape \(5, 5\); \(4, 4\) is needed"),
        ({1: S.astype(complex)}, "no matrix of numbers: it is of type complex128"),
        ({1: [["a"] * 5] * 5}, "no matrix of numbers: it is of type <U1"),
        ({1: [[1.0], [1.0, 2.0]]}, "no matrix of numbers"),
        ({1: changed(2, 3, np.nan)}, r"mode 1 is not finite: nan at \(2, 3\)"),
        ({1: csr_array(changed(2, 3, np.inf))}, r"mode 1 is not finite: inf at \(2, 3\)"),
        ({1: changed(4, 0, -0.1)}, r"mode 1 is negative: -0.1 at \(4, 0\)"),
        ({1: csr_array(changed(4, 0, -0.1))}, r"mode 1 is negative: -0.1 at \(4, 0\)"),
        ({1: changed(1, 3, 9.0)}, r"not symmetric: 9 at \(1, 3\) and .* at \(3, 1\)"),
        ({1: csr_array(changed(1, 3, 9.0))}, r"not symmetric: 9 at \(1, 3\) and .* at \(3, 1\)"),
    ],
)
def test_unusable_similarities(similarities, says):
    with pytest.raises(PolyadError, match=says):
        SimilarityCP(2, similarities=similarities).fit(X)


def test_unusable_tables():
    names = ["gout", "asthma", "angina", "flu"]
    short = pd.DataFrame(S[:4, :4], index=names, columns=names)
    with pytest.raises(PolyadError, match=r"mode 1 \('code'\) has no row .*, first 'mumps'"):
        SimilarityCP(2, similarities={"code": short}).fit(labelled())
    other = pd.DataFrame(S, index=NAMES, columns=[*NAMES[:4], "measles"])
    with pytest.raises(PolyadError, match="has no column for 1 of its labels, first 'mumps'"):
        SimilarityCP(2, similarities={"code": other}).fit(labelled())
    repeated = pd.DataFrame(S, index=["a"] * 5, columns=["a"] * 5)
    with pytest.raises(PolyadError, match="row label twice: 'a'"):
        SimilarityCP(2, similarities={"code": repeated}).fit(labelled())


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"similarity_weight": -1.0}, "similarity_weight"),
        ({"similarity_weight": [1.0, 1.0]}, "similarity_weight=.* is not usable for 3 modes"),
        ({"similarity_weight": [0.0, np.nan, 1.0]}, "similarity_weight=.* is not usable"),
        ({"ridge": [1.0, 0.0, 0.0]}, r"modes \[0\] are penalised"),
        ({"init": [np.full((n, 2), -1.0) for n in X.shape]}, "the negative number -1 at"),
    ],
)
def test_bad_parameters(parameters, says):
    with pytest.raises((PolyadError, ValueError), match=says):
        SimilarityCP(2, **parameters).fit(X)


def test_given_similarities_are_left_as_they_are():
    dense, sparse = S.copy(), csr_array(S)
    SimilarityCP(2, similarities={1: dense}, **QUICK).fit(X)
    SimilarityCP(2, similarities={1: sparse}, **QUICK).fit(X)
    assert np.array_equal(dense, S)
    assert np.array_equal(sparse.toarray(), S)


@pytest.mark.parametrize(
    "similarities",
    [
        "presence",
        None,
        {1: S, 2: "cosine"},
        [None, csr_array(S), None],
        {"code": pd.DataFrame(S, index=NAMES, columns=NAMES)},
    ],
)
def test_saved_and_loaded(tmp_path, similarities):
    model = SimilarityCP(2, similarities=similarities, **QUICK).fit(labelled())
    model.save(tmp_path / "model")
    again = polyad.load(tmp_path / "model")
    assert np.array_equal(again.transform(X), model.transform(X))
    assert np.array_equal(again.roughness_, model.roughness_)
    # The similarities are there to fit again.
    assert np.array_equal(again.fit(labelled()).factors_[1], model.factors_[1])


def test_a_file_whose_parts_do_not_fit_is_refused(tmp_path):
    path = tmp_path / "model"
    SimilarityCP(2, similarities={1: S}, **QUICK).fit(X).save(path)
    good = read_archive(path, "model")
    for part, name, value in (
        ("learned", "roughness_", np.ones((2, 2))),
        ("learned", "roughness_", "text"),
        ("parameters", "similarities", {"form": "dict"}),
        ("parameters", "similarities", 5),
    ):
        content = {**good, part: {**good[part], name: value}}
        write_archive(path, "model", content)
        with pytest.raises(ModelFileError):
            polyad.load(path)


def test_a_fixed_mode_is_kept_and_warm_start_goes_on():
    init = [np.random.default_rng(0).random((n, 2)) + 0.1 for n in X.shape]
    options = {"init": init, "similarities": {1: S}, "similarity_weight": 1.0}
    for fixed in ([1], [2], [0]):
        model = SimilarityCP(2, **options, fixed_modes=fixed, max_iter=10, tol=0).fit(X)
        assert np.array_equal(model.factors_[fixed[0]], init[fixed[0]])
        assert (np.diff(model.history_.objective) <= 1e-9 * model.history_.objective[0]).all()
        if fixed != [0]:
            fitted = model.factors_[0] * model.weights_
            np.testing.assert_allclose(model.transform(X), fitted, atol=1e-8)
    model = SimilarityCP(2, **options, warm_start=True, max_iter=5).fit(X)
    before = model.objective_
    assert model.fit(X).objective_ <= before * (1 + 1e-9)


def test_inside_scikit_learn_and_selection():
    model = SimilarityCP(2, similarities={1: S}, **QUICK)
    search = GridSearchCV(model, {"similarity_weight": [0.0, 1.0]}, cv=2).fit(X)
    assert search.best_score_ <= 1.0
    table = model.set_output(transform="pandas").fit_transform(X)
    assert table.columns.tolist() == ["similaritycp0", "similaritycp1"]
    assert {"relative_error", "roughness"} <= set(model.history_.to_frame().columns)
    chosen = select_rank(
        SimilarityCP(similarities={1: S}, max_iter=20), X, ranks=[1, 2], random_state=0
    )
    assert chosen.best_rank in (1, 2)


def test_sparse_data_with_labels():
    data = LabelledTensor(
        coo_array(X * (X > 0.5)), modes=["patient", "code", "drug"], labels={"code": NAMES}
    )
    model = SimilarityCP(2, **QUICK).fit(data)
    assert model.top(0, "code", k=2).index.isin(NAMES).all()


def test_weights_that_are_no_numbers():
    model = SimilarityCP(2, similarity_weight=["a", "b", "c"])
    with pytest.raises(PolyadError, match=r"similarity_weight=.*is not usable for 3 modes"):
        model.fit(np.ones((5, 4, 3)))


def test_a_file_with_an_absurd_similarity_takes_no_memory(tmp_path):
    SimilarityCP(2, similarities={1: eye_array(3)}).save(tmp_path / "model")
    content = read_archive(tmp_path / "model", "model")
    content["parameters"]["similarities"]["entries"][0][1]["shape"] = [10**12, 10**12]
    write_archive(tmp_path / "model", "model", content)
    loaded = polyad.load(tmp_path / "model")
    with pytest.raises(InvalidInputError, match="shape"):
        loaded.fit(np.ones((4, 3)))
