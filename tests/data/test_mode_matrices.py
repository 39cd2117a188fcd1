"""Matrices of the modes: one reader for costs, similarities and graphs, and one form in files."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import xarray as xr
from scipy.sparse import csr_array

from polyad import LabelledTensor, SimilarityCP, StochasticCP, WassersteinCP
from polyad.data.mode_matrices import read_similarities, restored_matrices, stored_matrices
from polyad.exceptions import InvalidInputError
from polyad.transport import validate_cost, wasserstein_distance

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
LABELS = list("dbac")
ORDER = [2, 0, 3, 1]


def similarity(n=4):
    matrix = np.random.default_rng(0).random((n, n))
    return matrix + matrix.T


def tables(matrix, labels=LABELS, order=ORDER):
    """Return labelled tables of every package, in another order than the labels."""
    shuffled, names = matrix[np.ix_(order, order)], [labels[k] for k in order]
    coords = {"row": names, "column": names}
    plain = pl.DataFrame(shuffled, schema=names)
    return {
        "pandas": pd.DataFrame(shuffled, index=names, columns=names),
        "polars": plain,
        "polars with names": plain.clone().insert_column(0, pl.Series("word", names)),
        "xarray": xr.DataArray(shuffled, dims=["row", "column"], coords=coords),
    }


@pytest.mark.parametrize("kind", tables(similarity()))
def test_tables_are_taken_by_label(kind):
    matrix = similarity()
    np.fill_diagonal(matrix, 0.0)
    table = tables(matrix)[kind]
    np.testing.assert_array_equal(read_similarities(table, 4, LABELS, "S"), matrix)
    np.testing.assert_array_equal(validate_cost(table, 4, LABELS), matrix)
    with pytest.raises(InvalidInputError, match="S has no row for 1 of its labels, first 'e'"):
        read_similarities(table, 4, list("abce"), "S")


@pytest.mark.parametrize("kind", tables(similarity()))
def test_models_take_tables_by_label(kind):
    X = np.random.default_rng(1).random((4, 4, 3))
    given = LabelledTensor(X, modes=["patient", "code", "drug"], labels=[LABELS, LABELS, None])
    matrix = similarity()
    options = {"random_state": 0, "max_iter": 2, "tol": 0.0}
    for name, of_samples in ((SimilarityCP, False), (StochasticCP, True)):
        expected, found = (
            name(2, **options, **({"graph": S} if of_samples else {"similarities": {"code": S}}))
            .fit(given)
            .factors_
            for S in (matrix, tables(matrix)[kind])
        )
        assert all(map(np.array_equal, found, expected))


@pytest.mark.parametrize("kind", tables(similarity()))
def test_tables_with_labels_are_refused_for_data_that_has_none(kind):
    X = np.random.default_rng(1).random((4, 4, 3))
    table = tables(similarity() * (1 - np.eye(4)))[kind]
    cost = {"costs": {1: table}}
    for model in (
        SimilarityCP(similarities={1: table}),
        WassersteinCP(**cost),
        StochasticCP(graph=table),
    ):
        with pytest.raises(InvalidInputError, match=r"but the data has no labels .*to_numpy\(\)"):
            model.fit(X)
    with pytest.raises(InvalidInputError, match="but the data has no labels"):
        StochasticCP(graph=table).partial_fit(X)
    with pytest.raises(InvalidInputError, match="but the data has no labels"):
        wasserstein_distance(X[0], X[1], [table, np.zeros((3, 3))])


def test_a_table_that_only_counts_is_a_matrix():
    matrix = read_similarities(similarity(), 4, None, "S")
    counted = pd.DataFrame(similarity())
    stored = restored_matrices(stored_matrices([counted]))[0]
    coords = {"row": range(4), "column": range(4)}
    array = xr.DataArray(similarity(), dims=["row", "column"], coords=coords)
    for table in (counted, stored, pl.DataFrame(similarity()), array):
        np.testing.assert_array_equal(read_similarities(table, 4, None, "S"), matrix)
    for other in (counted.iloc[::-1, ::-1], counted.add_prefix("c"), counted.loc[[0, 2], [0, 2]]):
        with pytest.raises(InvalidInputError, match="but the data has no labels"):
            read_similarities(other, len(other), None, "S")


def test_what_is_given_is_left_as_it_is():
    unsorted = csr_array(
        (np.array([1.0, 2.0, 1.0, 3.0, 2.0, 3.0]), [2, 1, 2, 0, 0, 1], [0, 2, 4, 6]), shape=(3, 3)
    )
    stored = unsorted.data.copy(), unsorted.indices.copy()
    unsorted[0, 1], unsorted[1, 0]
    with pytest.raises(InvalidInputError, match="not symmetric"):
        read_similarities(unsorted, 3, None, "S")
    np.testing.assert_array_equal(unsorted.data, stored[0])
    np.testing.assert_array_equal(unsorted.indices, stored[1])


def test_rounding_is_averaged_and_the_diagonal_is_of_any_size():
    matrix = similarity()
    uneven = matrix + 1e9 * np.eye(4)
    uneven[0, 1] *= 1 + 1e-9
    for form in (uneven, csr_array(uneven)):
        read = read_similarities(form, 4, None, "S")
        read = read if isinstance(read, np.ndarray) else read.toarray()
        np.testing.assert_array_equal(read, read.T)
        np.testing.assert_allclose(read, matrix - np.diag(np.diag(matrix)))
        uneven[2, 3] += 0.1  # much beside the similarities, little beside the diagonal
        with pytest.raises(InvalidInputError, match=r"not symmetric: .* at \(2, 3\)"):
            read_similarities(uneven, 4, None, "S")
        uneven[2, 3] = uneven[3, 2]


def test_the_largest_numbers_are_read():
    matrix = np.full((2, 2), 1.7e308)
    np.testing.assert_array_equal(read_similarities(matrix, 2, None, "S")[0], [0.0, 1.7e308])


@pytest.mark.parametrize("kind", tables(similarity()))
def test_tables_in_files_keep_their_labels(kind):
    stored = stored_matrices({"code": tables(similarity())[kind], np.int64(2): "cosine"})
    again = restored_matrices(stored)
    assert again[2] == "cosine"
    np.testing.assert_array_equal(
        read_similarities(again["code"], 4, LABELS, "S"),
        read_similarities(similarity(), 4, None, "S"),
    )


def test_functions_are_replaced_by_what_they_gave():
    found = [np.zeros((2, 2)), np.ones((3, 3)), np.ones((4, 4))]
    given = [np.zeros, "cosine", np.ones]
    kept = restored_matrices(stored_matrices(given, found))
    assert list(kept) == [1, 2]
    assert kept[1] == "cosine"
    np.testing.assert_array_equal(kept[2], found[2])
    named = restored_matrices(stored_matrices({"b": np.ones}, found, ("a", "b", "c")))
    np.testing.assert_array_equal(named["b"], found[1])
    assert restored_matrices(stored_matrices({1: np.ones})) == {}


def test_the_same_mistakes_are_told_in_the_same_words():
    X = np.ones((4, 4, 3))
    for given in ({7: "cosine"}, ["cosine"], {1: "euclidean"}, {1: None, -2: None}, 3):
        said = []
        for name, parameter in ((SimilarityCP, "similarities"), (WassersteinCP, "costs")):
            with pytest.raises((InvalidInputError, TypeError)) as error:
                name(2, **{parameter: given}).fit(X)
            said.append(str(error.value).replace(parameter, "it").split(". ", maxsplit=1)[0])
        assert said[0] == said[1]
