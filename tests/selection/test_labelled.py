"""Choice of the rank of labelled data: what is given by label or by name is found as in a fit."""

import warnings

import anndata
import numpy as np
import pandas as pd
import polars as pl
import pytest
import xarray as xr
from sklearn.exceptions import ConvergenceWarning

from polyad import CP, LabelledTensor, SimilarityCP, StochasticCP, SupervisedCP, WassersteinCP
from polyad.exceptions import InvalidInputError, InvalidTypeError
from polyad.selection import select_rank, tasks

SHAPE = (14, 6, 5)
MODES = ["patient", "diagnosis", "drug"]
LABELS = [[f"{name}{k:02d}" for k in range(n)] for name, n in zip("pdr", SHAPE, strict=True)]
BOTH = ["heldout", "stability"]


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch):
    """Hidden cells of sparse data need not settle to be the same numbers."""
    monkeypatch.setattr(tasks, "_MOST_ROUNDS", 2)


def counts(order=3):
    generator = np.random.default_rng(0)
    return generator.poisson(1.5, SHAPE[:order]).astype(float)


def dense_tensor():
    return LabelledTensor(counts(), modes=MODES, labels=LABELS)


def long_table():
    events = dense_tensor().to_frame()
    events = events[events["value"] > 0].sample(frac=1.0, random_state=0)
    return LabelledTensor.from_frame(events, modes=MODES, value="value")


def pandas_frame():
    return pd.DataFrame(counts(2), index=LABELS[0], columns=LABELS[1])


def data_array():
    return xr.DataArray(counts(), dims=MODES, coords=dict(zip(MODES, LABELS, strict=True)))


def polars_frame():
    return pl.from_pandas(pandas_frame())


def cells():
    frame = pandas_frame()
    names = [pd.DataFrame(index=index) for index in (frame.index, frame.columns)]
    return anndata.AnnData(frame.to_numpy(), obs=names[0], var=names[1])


WAYS_IN = [dense_tensor, long_table, pandas_frame, data_array, polars_frame, cells]


def between(mode):
    """Similarities between the entries of a mode, and as a table: shuffled, with a stranger."""
    generator = np.random.default_rng(mode + 1)
    matrix = generator.random((SHAPE[mode],) * 2)
    matrix = (matrix + matrix.T) * (1 - np.eye(SHAPE[mode]))
    labels = [*LABELS[mode], "stranger"]
    table = pd.DataFrame(np.pad(matrix, (0, 1)), index=labels, columns=labels)
    shuffled = generator.permutation(labels)
    return matrix, table.loc[shuffled, shuffled[::-1]]


def numbers(estimator, X, method=BOTH, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = select_rank(
            estimator, X, [2], method=method, n_repeats=2, random_state=0, **options
        )
    return found.to_frame()


@pytest.mark.parametrize("make", WAYS_IN)
def test_similarities_go_by_label(make):
    matrix, table = between(1)
    options = {"similarity_weight": 5.0, "max_iter": 3}
    by_position = numbers(SimilarityCP(similarities={1: matrix}, **options), make())
    by_label = numbers(SimilarityCP(similarities={1: table}, **options), make())
    pd.testing.assert_frame_equal(by_label, by_position, check_exact=True)
    other = numbers(SimilarityCP(similarities={1: matrix[::-1, ::-1]}, **options), make())
    assert not other.equals(by_position)


@pytest.mark.parametrize("make", [long_table, pandas_frame])
def test_a_graph_of_samples_goes_by_label(make):
    matrix, table = between(0)
    options = {"graph_weight": 5.0, "max_iter": 3, "batch_size": 7}
    by_position = numbers(StochasticCP(graph=matrix, **options), make(), "heldout")
    by_label = numbers(StochasticCP(graph=table, **options), make(), BOTH)
    heldout = by_label[by_label["measure"] == "heldout_loss"].reset_index(drop=True)
    pd.testing.assert_frame_equal(heldout, by_position, check_exact=True)


@pytest.mark.parametrize("make", [long_table, pandas_frame])
def test_classes_go_by_label_and_else_in_order(make):
    y = pd.Series(np.arange(SHAPE[0]) % 2, index=LABELS[0])
    model = SupervisedCP(max_iter=2, label_weight=5.0)
    shuffled = pd.concat([y.sample(frac=1.0, random_state=0), pd.Series([1], ["stranger"])])
    by_label = numbers(model, make(), y=shuffled)
    in_order = numbers(model, make(), y=y.reset_index(drop=True))
    pd.testing.assert_frame_equal(by_label, in_order, check_exact=True)


def test_classes_without_labels_of_the_samples_are_said():
    with pytest.raises(InvalidInputError, match="y has no entry for 14 labels"):
        numbers(
            SupervisedCP(), dense_tensor(), y=pd.Series(np.arange(14) % 2, index=[*range(1, 15)])
        )


def test_costs_are_found_by_the_name_of_their_mode():
    matrix, table = between(2)
    model = WassersteinCP(costs={2: matrix}, max_iter=2)
    named = WassersteinCP(costs={"drug": table}, max_iter=2)
    results = [numbers(each, long_table(), "stability") for each in (model, named)]
    pd.testing.assert_frame_equal(*results, check_exact=True)


def test_a_matrix_of_all_samples_is_not_cut_by_position():
    with pytest.raises(InvalidInputError, match=r"7 of the 14 samples.*graph has the shape.*table"):
        numbers(StochasticCP(graph=between(0)[0], max_iter=2), dense_tensor())


@pytest.mark.parametrize("make", [list, tuple])
def test_batches_are_not_stacked(make):
    batches = make([counts()[:7], counts()[7:]])
    with pytest.raises(InvalidTypeError, match=r"batch by batch.*concatenate"):
        select_rank(StochasticCP(), batches, [1])
    assert select_rank(CP(max_iter=2, tol=1.0), batches, [1], n_repeats=2).best_rank == 1
