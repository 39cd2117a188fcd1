import copy

import numpy as np
import pytest
from scipy.sparse import coo_array

from polyad import LabelledTensor, Status, StochasticCP, factor_match_score
from polyad.datasets import make_low_rank
from polyad.exceptions import InvalidInputError, NumericalError


@pytest.mark.parametrize("container", [np.asarray, coo_array])
@pytest.mark.parametrize("shape", [(300, 9), (300, 9, 8), (300, 5, 4, 3)])
def test_batches_find_planted_components(container, shape):
    X, truth = make_low_rank(shape, 2, noise=0.01, random_state=0)
    model = StochasticCP(2, random_state=0)
    for first in range(0, 300, 30):
        assert model.partial_fit(container(X[first : first + 30])) is model
    assert model.n_samples_seen_ == 300
    assert model.n_steps_ == 10
    assert model.factors_[0].shape == (300, 2)
    assert model.score(X) > 0.999
    if len(shape) > 2:
        assert factor_match_score(model.kruskal_, truth, skip_modes=[0]) > 0.99


def test_it_is_a_sweep_without_knowing_its_length():
    X = make_low_rank((200, 9, 8), 3, noise=0.2, random_state=0)[0]
    batches = [X[k : k + 50] for k in range(0, 200, 50)]
    model = StochasticCP(3, learning_rate=0.2, random_state=0)
    for batch in batches:
        model.partial_fit(batch)
    swept = StochasticCP(3, learning_rate=0.2, random_state=0, max_iter=1, shuffle=False)
    swept.fit(batches)
    assert factor_match_score(model.kruskal_, swept.kruskal_, skip_modes=[0]) > 1 - 1e-12
    assert model.n_steps_ == swept.n_steps_


@pytest.mark.parametrize("ridge", [0.0, 0.5])
def test_rows_of_the_last_batch_are_its_transform(ridge):
    X = make_low_rank((60, 9, 8), 3, noise=0.1, random_state=0)[0]
    model = StochasticCP(3, random_state=0, ridge=ridge).partial_fit(X[:30])
    np.testing.assert_allclose(model.transform(X[:30]), model.factors_[0] * model.weights_)
    before = model.factors_[0] * model.weights_
    model.partial_fit(X[30:])
    rows = model.factors_[0] * model.weights_
    np.testing.assert_allclose(model.transform(X[30:]), rows[30:], atol=1e-9)
    np.testing.assert_allclose(rows[:30], before, atol=1e-12)  # as they were
    assert all(
        np.allclose(np.linalg.norm(factor, axis=0), 1, atol=1e-12) for factor in model.factors_
    )


def test_it_goes_on_from_a_fit():
    X, truth = make_low_rank((300, 9, 8), 3, noise=0.5, random_state=0)
    model = StochasticCP(3, random_state=0, batch_size=50).fit(X[:100])
    steps, status = model.n_steps_, model.status_
    before = factor_match_score(model.kruskal_, truth, skip_modes=[0])
    for first in range(100, 300, 50):
        model.partial_fit(X[first : first + 50])
    assert factor_match_score(model.kruskal_, truth, skip_modes=[0]) > before
    assert model.n_steps_ == steps + 4
    assert model.status_ is status


def test_a_single_sample_moves_little():
    X = make_low_rank((200, 9, 8), 3, noise=0.1, random_state=0)[0]
    model = StochasticCP(3, random_state=0, learning_rate=0.5).partial_fit(X[:100])
    model.partial_fit(X[100:199])
    before = model.kruskal_
    model.partial_fit(X[199:])
    assert factor_match_score(model.kruskal_, before, skip_modes=[0]) > 0.99
    assert model.factors_[0].shape == (200, 3)


def test_batches_may_be_smaller_than_the_rank():
    X = make_low_rank((60, 9), 4, noise=0.01, random_state=0)[0]
    model = StochasticCP(4, random_state=0).partial_fit(X[:30])
    for row in X[30:]:
        model.partial_fit(row[None, :])
    assert model.factors_[0].shape == (60, 4)
    assert model.score(X) > 0.99
    single = StochasticCP(2, random_state=0).partial_fit(X[:1])
    assert np.isfinite(single.partial_fit(X[1:2]).transform(X)).all()


def test_missing_entries():
    X, truth = make_low_rank((300, 9, 8), 2, noise=0.01, random_state=0)
    holed = np.where(np.random.default_rng(0).random(X.shape) < 0.3, np.nan, X)
    where = np.nonzero(~np.isnan(holed))
    stored = LabelledTensor(coo_array((X[where], where), shape=X.shape), modes=list("abc"))
    dense = StochasticCP(2, random_state=0)
    sparse = StochasticCP(2, random_state=0, missing="unobserved")
    for first in range(0, 300, 50):
        dense.partial_fit(holed[first : first + 50])
        sparse.partial_fit(stored.isel(a=slice(first, first + 50)).data)
    assert factor_match_score(dense.kruskal_, truth, skip_modes=[0]) > 0.99
    assert factor_match_score(dense.kruskal_, sparse.kruskal_) > 0.9999


def test_the_first_batch_says_what_came_of_it():
    X = make_low_rank((30, 9, 8), 2, noise=0.1, random_state=0)[0]
    model = StochasticCP(2, random_state=0).partial_fit(X)
    assert model.status_ is Status.MAX_ITER
    assert model.n_iter_ == 1
    # The factors were moved after the batch was measured.
    assert model.objective_ <= model.history_.objective[-1]
    model.partial_fit(X)
    assert model.n_iter_ == 1


def test_a_graph_follows_the_samples():
    X = make_low_rank((60, 9, 8), 2, noise=0.1, random_state=0)[0]
    graph = np.zeros((60, 60))
    graph[30:, 30:] = 1.0
    plain = StochasticCP(2, random_state=0)
    coupled = StochasticCP(2, random_state=0, graph=graph, graph_weight=10.0)
    for model in (plain, coupled):
        model.partial_fit(X[:30])
    np.testing.assert_allclose(plain.factors_[1], coupled.factors_[1], atol=1e-8)
    for model in (plain, coupled):
        model.partial_fit(X[30:])
    assert not np.allclose(plain.factors_[1], coupled.factors_[1], atol=1e-4)
    with pytest.raises(InvalidInputError, match="graph has 60 samples"):
        coupled.partial_fit(X[:30])


def test_a_refused_batch_changes_nothing():
    X = make_low_rank((30, 9, 8), 2, noise=0.1, random_state=0)[0]
    model = StochasticCP(2, random_state=0).partial_fit(X.astype(np.float32))
    before = [factor.copy() for factor in model.factors_]
    huge = np.random.default_rng(0).random((3, 9, 8)) * 1e60
    with pytest.raises(InvalidInputError, match="numbers beyond float32"):
        model.partial_fit(huge)
    broken = copy.deepcopy(model)
    broken.factors_[1][:] = 1e38
    with np.errstate(all="ignore"), pytest.raises(NumericalError, match="left as it was"):
        broken.partial_fit(X)
    for bad, says in ((X[:, :5], "size 5 in mode 1"), (X[0], "2 modes"), (X[:0], "0 sample")):
        with pytest.raises(InvalidInputError, match=says):
            model.partial_fit(bad)
    assert all(map(np.array_equal, before, model.factors_))
    assert model.n_samples_seen_ == 30
    with pytest.raises(ValueError, match="learning_rate"):
        model.set_params(learning_rate=2.0).partial_fit(X)


def test_labels_are_appended():
    X = make_low_rank((20, 9, 8), 2, noise=0.1, random_state=0)[0]
    names = [f"s{k}" for k in range(20)]

    def part(start, stop):
        return LabelledTensor(
            X[start:stop], modes=list("abc"), labels=[names[start:stop], None, None]
        )

    model = StochasticCP(2, random_state=0).partial_fit(part(0, 10))
    model.partial_fit(part(10, 20))
    assert model.factor_table("a").index.tolist() == names
    with pytest.raises(InvalidInputError, match="labels of earlier ones"):
        model.partial_fit(part(0, 5))
    assert model.factors_[0].shape == (20, 2)


def test_another_rank_is_refused():
    X = make_low_rank((20, 5, 4), 2, noise=0.1, random_state=0)[0]
    model = StochasticCP(2, random_state=0).partial_fit(X[:10])
    with pytest.raises(InvalidInputError, match="model of 2 components, but n_components=3"):
        model.set_params(n_components=3).partial_fit(X[10:])
    assert model.n_samples_seen_ == 10
