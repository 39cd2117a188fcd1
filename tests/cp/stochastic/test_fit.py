import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from scipy.sparse import coo_array
from sklearn.exceptions import ConvergenceWarning

import polyad
from polyad import CP, LabelledTensor, Status, StochasticCP, factor_match_score
from polyad.datasets import load_digits, make_low_rank
from polyad.exceptions import DataWarning

SHAPES = [(300, 9), (300, 9, 8), (300, 5, 4, 3)]


def error(model, X):
    return np.sqrt(max(0.0, 1.0 - model.score(X)))


@pytest.mark.parametrize("container", [np.asarray, coo_array])
@pytest.mark.parametrize("shape", SHAPES)
def test_finds_planted_components(container, shape):
    X, truth = make_low_rank(shape, 3, random_state=0)
    model = StochasticCP(3, batch_size=32, random_state=0).fit(container(X))
    assert model.status_ is Status.CONVERGED
    assert model.score(container(X)) > 1 - 1e-8
    assert model.factors_[0].shape == (300, 3)
    if len(shape) > 2:  # factors of a matrix are unique only up to a rotation
        assert factor_match_score(model.kruskal_, truth) > 0.9999


@pytest.mark.parametrize("seed", range(3))
def test_is_close_to_all_data_at_once(seed):
    X, truth = make_low_rank((1000, 12, 10), 5, noise=0.3, random_state=seed)
    model = StochasticCP(5, random_state=seed).fit(X)
    whole = CP(5, ridge=1e-3, random_state=seed).fit(X)
    assert error(model, X) < 1.002 * error(whole, X)
    assert factor_match_score(model.kruskal_, truth) > 0.99


@pytest.mark.parametrize("rank", [5, 10])
def test_is_close_to_all_data_at_once_on_digits(rank):
    X = load_digits()[0].to_dense()[:600]
    model = StochasticCP(rank, random_state=0).fit(X)
    whole = CP(rank, ridge=1e-3, random_state=0).fit(X)
    assert error(model, X) < 1.03 * error(whole, X)


@pytest.mark.parametrize("learning_rate", ["auto", 0.1])
def test_the_objective_falls_on_average(learning_rate):
    X = make_low_rank((500, 9, 8), 4, noise=0.2, nonnegative=True, random_state=0)[0]
    model = StochasticCP(4, learning_rate=learning_rate, random_state=0, tol=0, max_iter=30)
    with pytest.warns(ConvergenceWarning):
        model.fit(X)
    values = np.array(model.history_.objective[1:])
    thirds = values.reshape(3, 10).mean(axis=1)
    assert thirds[0] > thirds[1] > thirds[2]
    # With the factors after the sweep, which no sample has met before.
    assert model.objective_ == pytest.approx(values.min(), rel=0.05)
    rates = model.history_.to_frame()["learning_rate"]
    assert rates.iloc[-1] == pytest.approx(0.5 if learning_rate == "auto" else 0.1, rel=0.01)


def test_the_objective_is_a_mean_over_samples():
    """At the end it is the objective of alternating least squares over the number of samples."""
    X = make_low_rank((100, 9, 8), 2, noise=0.3, random_state=0)[0]
    model = StochasticCP(2, ridge=0.5, random_state=0, tol=1e-12, max_iter=1000).fit(X)
    whole = CP(2, ridge=0.5, random_state=0, tol=1e-12).fit(X)
    assert model.objective_ == pytest.approx(whole.objective_ / 100, rel=1e-9)


def test_transform_is_what_fit_gives():
    X = make_low_rank((150, 9, 8), 3, noise=0.3, random_state=0)[0]
    model = StochasticCP(3, batch_size=20, ridge=0.5, graph="complete", random_state=0)
    features = model.fit_transform(X)
    np.testing.assert_allclose(model.transform(X), features, atol=1e-10)
    np.testing.assert_allclose(model.transform(X[7:9]), features[7:9], atol=1e-10)
    others = [f * s for f, s in zip(model.factors_[1:], model._lengths, strict=True)]
    gram = (others[0].T @ others[0]) * (others[1].T @ others[1]) + 0.5 * np.eye(3)
    rhs = np.einsum("nij,ir,jr->nr", X, *others)
    scale = model._lengths[0] * model._lengths[1]
    np.testing.assert_allclose(features, np.linalg.solve(gram, rhs.T).T * scale, atol=1e-9)


def test_a_seed_repeats_a_fit_and_another_shuffles_otherwise():
    X = make_low_rank((300, 9, 8), 3, noise=0.3, random_state=0)[0]
    first, again, other = (
        StochasticCP(3, batch_size=40, init="random", random_state=k).fit(X) for k in (0, 0, 1)
    )
    assert np.array_equal(first.factors_[1], again.factors_[1])
    assert not np.array_equal(first.factors_[1], other.factors_[1])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1e-12, 1e-6, 1e6, 1e12])
def test_size_of_the_numbers(dtype, size):
    X, truth = make_low_rank((200, 9, 8), 2, noise=0.05, random_state=0)
    data = (X * size).astype(dtype)
    ridge = 1e-3 * size ** (4 / 3)
    model = StochasticCP(2, batch_size=50, ridge=ridge, random_state=0).fit(data)
    unit = StochasticCP(2, batch_size=50, ridge=1e-3, random_state=0).fit(X.astype(dtype))
    assert model.factors_[0].dtype == model.weights_.dtype == dtype
    assert model.transform(data).dtype == dtype
    assert factor_match_score(model.kruskal_, truth) > 0.99
    np.testing.assert_allclose(model.weights_ / size, unit.weights_, rtol=1e-3)
    assert model.objective_ == pytest.approx(unit.objective_ * size**2, rel=1e-3)
    assert model.score(data) == pytest.approx(unit.score(X.astype(dtype)), abs=1e-5)
    model.partial_fit(data[:60])
    assert model.score(data) > 0.99


def test_missing_entries():
    X, truth = make_low_rank((300, 9, 8), 2, noise=0.01, random_state=0)
    observed = np.random.default_rng(0).random(X.shape) < 0.7
    holed = np.where(observed, X, np.nan)
    dense = StochasticCP(2, batch_size=60, random_state=0).fit(holed)
    masked = StochasticCP(2, batch_size=60, random_state=0).fit(X, mask=observed)
    where = np.nonzero(observed)
    stored = coo_array((X[where], where), shape=X.shape)
    sparse = StochasticCP(2, batch_size=60, missing="unobserved", random_state=0).fit(stored)
    for model in (dense, masked, sparse):
        assert factor_match_score(model.kruskal_, truth) > 0.999
    assert np.array_equal(dense.factors_[1], masked.factors_[1])
    np.testing.assert_allclose(dense.weights_, sparse.weights_, rtol=1e-6)
    filled = dense.inverse_transform(dense.transform(holed))
    assert np.abs(filled - X)[~observed].mean() < 0.05 * np.abs(X).mean()


@pytest.fixture
def one_torch_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # on a busy machine its threads wait for each other
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_torch_thread")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_torch_stays_torch(dtype):
    X = make_low_rank((200, 9, 8), 3, noise=0.1, random_state=0)[0]
    data = torch.tensor(X, dtype=dtype)
    parameters = {"batch_size": 100, "graph": "complete", "random_state": 0, "max_iter": 2}
    model = StochasticCP(3, **parameters).fit(data)
    plain = StochasticCP(3, **parameters).fit(X)
    for result in (model.factors_[0], model.weights_, model.transform(data), model.components_):
        assert isinstance(result, torch.Tensor)
        assert result.dtype == dtype
    np.testing.assert_allclose(model.weights_.numpy(), plain.weights_, rtol=1e-3)
    model.partial_fit(data[:20])
    assert isinstance(model.factors_[0], torch.Tensor)
    stream = StochasticCP(3, max_iter=1).fit(data[k : k + 100] for k in (0, 100))
    assert isinstance(stream.factors_[0], torch.Tensor)


def test_a_given_start_is_not_thrown_away():
    X, truth = make_low_rank((400, 9, 8), 3, noise=0.5, random_state=0)
    model = StochasticCP(3, init=truth, learning_rate=1e-3, max_iter=1, random_state=0).fit(X)
    replaced = StochasticCP(3, learning_rate=1e-3, init="random", max_iter=1, random_state=0)
    replaced.fit(X)
    assert factor_match_score(model.kruskal_, truth, skip_modes=[0]) > 0.99
    assert model.n_steps_ == 5
    assert replaced.n_steps_ == 4


def test_fixed_modes_keep_their_factors():
    X, truth = make_low_rank((300, 9, 8), 2, noise=0.1, random_state=0)
    model = StochasticCP(2, init=truth, fixed_modes=[1], random_state=0, batch_size=50).fit(X)
    assert np.array_equal(model.factors_[1], truth.factors[1])
    before = model.transform(X[:5])
    model.partial_fit(X[:50])
    assert np.array_equal(model.factors_[1], truth.factors[1])
    np.testing.assert_allclose(model.transform(X[:5]), before, rtol=0.1, atol=0.1)
    np.testing.assert_allclose(
        model.transform(X[:50]), (model.factors_[0] * model.weights_)[300:], atol=1e-9
    )


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_warm_start_goes_on_with_its_steps():
    X = make_low_rank((300, 9, 8), 3, noise=0.3, random_state=0)[0]
    model = StochasticCP(3, warm_start=True, max_iter=2, tol=0, random_state=0, batch_size=50)
    model.fit(X)
    first = model.objective_
    assert model.n_steps_ == 12
    model.set_params(max_iter=1).fit(X[:200])  # other samples of the same kind
    assert model.n_steps_ == 16
    assert model.factors_[0].shape == (200, 3)
    assert model.objective_ < 1.1 * first
    with pytest.raises(ValueError, match="size 5 in mode 1"):
        model.fit(X[:, :5])
    assert model.factors_[0].shape == (200, 3)


def test_several_starts_keep_the_best():
    X = make_low_rank((300, 9, 8), 4, noise=0.1, random_state=0)[0]
    best = StochasticCP(4, init="random", n_init=4, random_state=0).fit(X)
    assert best.score(X) > 0.98


def test_a_graph_prefers_components_on_which_similar_samples_agree():
    """One component for two: without the graph the larger one, with it the smooth one."""
    generator = np.random.default_rng(0)
    group = generator.integers(0, 6, 300)
    b, c = (generator.standard_normal((n, 2)) for n in (9, 8))
    b, c = (factor / np.linalg.norm(factor, axis=0) for factor in (b, c))
    smooth, rough = np.linspace(-1.5, 1.5, 6)[group], 1.3 * generator.standard_normal(300)
    X = np.einsum("rn,ir,jr->nij", [smooth, rough], b, c)
    graph = coo_array((group[:, None] == group[None, :]) / 50)

    def found(**parameters):
        model = StochasticCP(1, batch_size=60, random_state=0, **parameters).fit(X)
        return np.abs(model.factors_[1][:, 0] @ b)

    assert found()[1] > 0.99
    assert found(graph=graph, graph_weight=100.0)[0] > 0.99
    assert found(graph=graph.toarray(), graph_weight=100.0)[0] > 0.99
    np.testing.assert_allclose(found(graph=graph, graph_weight=0.0), found(), atol=1e-9)


@pytest.mark.parametrize("graph", ["complete", "published"])
def test_named_graphs_fit(graph):
    X = make_low_rank((300, 9, 8), 3, noise=0.1, random_state=0)[0]
    model = StochasticCP(3, batch_size=60, graph=graph, graph_weight=0.01, random_state=0).fit(X)
    assert model.score(X) > 0.98


@pytest.mark.parametrize("graph", [None, "complete", "matrix"])
def test_saved_and_loaded(tmp_path, graph):
    X = make_low_rank((60, 5, 4), 2, noise=0.1, random_state=0)[0]
    matrix = np.ones((60, 60)) if graph == "matrix" else graph
    model = StochasticCP(2, batch_size=16, graph=matrix, random_state=0).fit(X)
    model.save(tmp_path / "model")
    same = polyad.load(tmp_path / "model")
    assert model.graph is matrix
    assert same.graph == (None if graph == "matrix" else graph)
    assert np.array_equal(same.transform(X), model.transform(X))
    assert same.n_steps_ == model.n_steps_
    same.graph = model.graph = None
    same.partial_fit(X[:16])
    model.partial_fit(X[:16])
    assert np.array_equal(same.factors_[1], model.factors_[1])
    assert same.status_ is model.status_


def test_zeros():
    with pytest.warns(DataWarning, match="every entry is zero"):
        model = StochasticCP(2, batch_size=4, random_state=0).fit(np.zeros((20, 5, 4)))
    assert not model.weights_.any()
    assert model.transform(np.ones((3, 5, 4))).tolist() == [[0, 0]] * 3
    X = make_low_rank((40, 5, 4), 2, random_state=0)[0]
    X[:20] = 0
    model = StochasticCP(2, batch_size=5, shuffle=False, random_state=0).fit(X)
    assert model.score(X) > 0.999
    assert not model.factors_[0][:20].any()


@pytest.mark.parametrize("missing", ["zero", "unobserved"])
def test_sparse_batches_without_entries(missing):
    X = make_low_rank((40, 5, 4), 2, random_state=0)[0]
    X[:20] = 0
    sparse = coo_array(X)
    model = StochasticCP(2, batch_size=5, shuffle=False, missing=missing, random_state=0)
    model.fit(sparse)
    assert model.score(sparse) > 0.999
    assert not model.factors_[0][:20].any()
    model.partial_fit(coo_array((3, 5, 4)))
    assert not model.factors_[0][40:].any()


def test_samples_without_observations():
    X = make_low_rank((40, 5, 4), 2, random_state=0)[0]
    X[3] = np.nan
    with pytest.warns(DataWarning, match="position 3 of mode 0"):
        model = StochasticCP(2, batch_size=10, random_state=0).fit(X)
    assert not model.factors_[0][3].any()


@hypothesis.given(
    st.integers(2, 40), st.integers(1, 45), st.integers(0, 3), st.booleans(), st.booleans()
)
@hypothesis.settings(max_examples=10)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
# Batches of one sample may have nothing in common.
@pytest.mark.filterwarnings("ignore:.*every component is zero:polyad.exceptions.DataWarning")
def test_any_batch_size_gives_a_usable_model(n_samples, batch_size, seed, is_sparse, shuffle):
    X = make_low_rank((n_samples, 4, 3), 2, noise=0.5, random_state=seed)[0]
    data = coo_array(np.where(X > 0.3, X, 0)) if is_sparse else X
    model = StochasticCP(2, batch_size=batch_size, shuffle=shuffle, random_state=seed, max_iter=4)
    features = model.fit_transform(data)
    assert features.shape == (n_samples, 2)
    assert all(np.isfinite(factor).all() for factor in model.factors_)
    np.testing.assert_allclose(model.transform(data), features, rtol=1e-6, atol=1e-6)
    assert model.n_steps_ <= 4 * -(-n_samples // batch_size)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_warm_start_refuses_labels_in_another_order():
    X = make_low_rank((60, 5, 4), 2, noise=0.1, random_state=0)[0]
    tensor = LabelledTensor(X, modes=list("abc"), labels={"c": list("wxyz")})
    model = StochasticCP(2, warm_start=True, random_state=0, max_iter=2).fit(tensor)
    model.fit(tensor)
    with pytest.raises(ValueError, match="another order"):
        model.fit(tensor.align({"c": list("zyxw")}))


def test_an_interrupt_keeps_a_restart_that_was_finished():
    X = make_low_rank((200, 9, 8), 3, noise=0.1, random_state=0)[0]
    calls = []

    def stop(news):
        calls.append(news.number)
        if news.number == 1 and len(calls) > 1:
            raise KeyboardInterrupt

    model = StochasticCP(3, n_init=3, batch_size=50, random_state=0, callbacks=stop)
    with pytest.warns(ConvergenceWarning, match="interrupted"):
        model.fit(X)
    assert model.status_ is Status.INTERRUPTED
    assert model.n_iter_ > 1
    assert model.score(X) > 0.98


def test_an_interrupt_in_the_first_sweep_leaves_the_start():
    X = make_low_rank((200, 9, 8), 3, noise=0.1, random_state=0)[0]
    passes = []

    def parts():
        passes.append(0)
        for first in (0, 100):
            passes[-1] += 1
            yield X[first : first + 100]
            if sum(number == 2 for number in passes) == 1:  # after the first complete pass
                passes.append(2)
                raise KeyboardInterrupt

    model = StochasticCP(3, random_state=0)
    with pytest.warns(ConvergenceWarning, match="interrupted"):
        model.fit(parts)
    assert model.status_ is Status.INTERRUPTED
    assert model.n_iter_ == 0
    assert np.isfinite(model.objective_)
    assert model.transform(X).shape == (200, 3)
