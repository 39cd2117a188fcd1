"""Choice of the rank with losses, constraints and labels of the estimator's own."""

import numpy as np
import pytest
from scipy.sparse import coo_array
from scipy.special import rel_entr
from sklearn.base import clone

from polyad import CP, GeneralizedCP, NonnegativeCP, PoissonCP
from polyad.data.validation import as_tensor_input
from polyad.exceptions import InvalidInputError, InvalidTypeError
from polyad.metrics import poisson_deviance
from polyad.selection import select_rank, tasks
from polyad.selection.holdout import HoldoutOptions, hide_entries
from polyad.tensor.sparse import canonicalize


def counts(seed, shape=(20, 18, 15), rank=3):
    """Poisson counts of overlapping blocks; about two fifths of the cells are not zero."""
    generator = np.random.default_rng(seed)
    factors = [
        generator.uniform(0.5, 1.5, (n, rank)) * (generator.random((n, rank)) < 0.6) for n in shape
    ]
    return generator.poisson(4 * np.einsum("ir,jr,kr->ijk", *factors)).astype(float)


# Planted ranks.


@pytest.mark.parametrize(
    ("estimator", "convert"),
    [
        (NonnegativeCP(tol=1e-4), np.asarray),
        (PoissonCP(tol=1e-4), coo_array),
        (PoissonCP(solver="pdnr", tol=1e-4), coo_array),
    ],
)
def test_heldout_finds_the_rank_of_counts(estimator, convert):
    X = convert(counts(0, shape=(15, 12, 10)))
    assert select_rank(estimator, X, range(2, 5), n_repeats=3, random_state=0).best_rank == 3


@pytest.mark.parametrize(
    ("estimator", "convert"),
    [(NonnegativeCP(tol=1e-4), np.asarray), (PoissonCP(tol=1e-4), coo_array)],
)
def test_stability_finds_the_rank_of_counts(estimator, convert):
    X = convert(counts(2, shape=(20, 12, 10)))
    found = select_rank(estimator, X, range(2, 5), method="stability", n_repeats=3, random_state=0)
    assert found.best_rank == 3


@pytest.mark.parametrize("estimator", [NonnegativeCP(tol=1e-4), PoissonCP(tol=1e-4)])
def test_core_consistency_of_nonnegative_components_falls_beyond_the_true_rank(estimator):
    """It falls one rank later than for CP: a further part that only adds stays apart longer."""
    X = counts(0, shape=(20, 14, 12))
    found = select_rank(
        estimator, X, [2, 3, 5], method="core_consistency", n_repeats=3, random_state=0
    )
    assert found.best_rank == 3
    assert (found.table["core_consistency"].loc[:3] > 99).all()


@pytest.mark.parametrize("estimator", [NonnegativeCP, PoissonCP])
def test_heldout_finds_the_rank_of_unobserved_entries(estimator):
    X = counts(2, shape=(15, 12, 10), rank=2)
    seen = np.random.default_rng(0).random(X.shape) < 0.5
    stored = coo_array((X[seen], np.nonzero(seen)), shape=X.shape)
    found = select_rank(
        estimator(missing="unobserved", tol=1e-4), stored, [1, 2, 3], n_repeats=3, random_state=0
    )
    assert found.best_rank == 2


def entries(loss, seed=0, shape=(20, 18, 15), rank=2):
    """Data of a planted model of a loss."""
    generator = np.random.default_rng(seed)
    factors = [
        generator.uniform(0.5, 1.5, (n, rank)) * (generator.random((n, rank)) < 0.6) for n in shape
    ]
    model = np.einsum("ir,jr,kr->ijk", *factors)
    if loss == "bernoulli":
        return (generator.random(shape) < 4 * model / (1 + 4 * model)).astype(float)
    return generator.gamma(4.0, (model + 0.05) / 4.0)


@pytest.mark.parametrize("loss", ["bernoulli", "gamma"])
def test_heldout_finds_the_rank_of_a_generalized_model(loss):
    """A floor of the gamma data is a component of its own."""
    X = entries(loss, shape=(11, 10, 9) if loss == "gamma" else (20, 18, 15))
    estimator = GeneralizedCP(loss=loss, tol=1e-3)
    expected = {"bernoulli": 2, "gamma": 3}[loss]
    ranks = [expected - 1, expected, expected + 1]
    found = select_rank(estimator, X, ranks, n_repeats=2, random_state=0)
    assert found.best_rank == expected


def test_heldout_zeros_of_sparse_data_need_a_loss_that_takes_their_mean():
    X = coo_array(entries("bernoulli", shape=(10, 8, 6)))
    with pytest.raises(InvalidInputError, match="GeneralizedCP takes no such numbers"):
        select_rank(GeneralizedCP(loss="bernoulli"), X, [1, 2])
    rough = GeneralizedCP(loss="poisson", tol=1e-2)
    choice = select_rank(rough, X, [1, 2], n_repeats=2, random_state=0)
    assert np.isfinite(choice.table["heldout_loss"]).all()


def test_core_consistency_needs_components_on_the_scale_of_the_data():
    with pytest.raises(InvalidInputError, match="model a function of its mean"):
        select_rank(
            GeneralizedCP(loss="bernoulli"), entries("bernoulli"), [1, 2], method="core_consistency"
        )


# The loss of held-out entries.


def test_the_loss_of_held_out_counts_is_their_deviance():
    X = counts(0)
    model = PoissonCP(3, random_state=0).fit(X)
    expected = model.kruskal_.to_dense().ravel()
    losses = model._entry_loss(X.ravel(), expected)
    assert losses.sum() == pytest.approx(poisson_deviance(X, model), rel=1e-2)
    clear = expected > 0.01
    exact = 2 * (rel_entr(X.ravel(), expected) - X.ravel() + expected)
    np.testing.assert_allclose(losses[clear], np.maximum(exact[clear], 0), atol=1e-12)


@pytest.mark.parametrize("unit", [1e-12, 1.0, 1e12])
def test_a_count_where_none_is_expected_costs_much_but_not_everything(unit):
    model = PoissonCP(2, random_state=0).fit(unit * counts(0))
    loss = float(model._entry_loss(np.array([unit]), np.zeros(1))[0])
    assert 5 * unit < loss < 50 * unit


def test_losses_of_held_out_counts_do_not_depend_on_the_unit():
    X = counts(0)
    tables = [
        select_rank(PoissonCP(), unit * X, [2, 3], n_repeats=2, random_state=0).table / unit
        for unit in (1.0, 1e-9)
    ]
    np.testing.assert_allclose(*tables, rtol=1e-4)


def test_counts_around_which_a_model_is_fitted_are_as_if_missing(monkeypatch):
    """Filled with their means, hidden cells leave the fit that NaN at the same cells gives."""
    X = canonicalize(coo_array(counts(1, shape=(12, 10, 8), rank=2)))
    monkeypatch.setattr(tasks, "_SETTLED", 1e-9)
    monkeypatch.setattr(tasks, "_MOST_ROUNDS", 100)
    model = PoissonCP(solver="pdnr", tol=1e-12, max_iter=2000)
    plan = tasks.Plan(
        model, as_tensor_input(X), HoldoutOptions(0.1, "zero", 1.0), 0.5, wants_consistency=False
    )
    task = tasks.Task("heldout", 2, 0, 0)
    hidden = hide_entries(X, plan.holdout, task.data_seed)
    around = tasks._fit_around(task, plan, hidden).kruskal_
    array = X.toarray()
    array[tuple(hidden.coords)] = np.nan
    missing = clone(model).set_params(n_components=2, init=around).fit(array)
    np.testing.assert_allclose(
        missing.kruskal_.values_at(hidden.coords), around.values_at(hidden.coords), atol=1e-4
    )


class SquareRootCP(CP):
    """A model of the square root of the data."""

    def _entry_loss(self, values, expected):
        return np.square(np.sqrt(values) - expected)

    def _entry_fill(self, expected):
        return np.square(expected)


def test_core_consistency_is_refused_where_the_model_is_not_one_of_the_data():
    with pytest.raises(InvalidInputError, match="model a function of its mean"):
        select_rank(SquareRootCP(), counts(0), [1, 2], method="core_consistency")


# Labels of the samples.


class Labelled(CP):
    """Needs labels, and remembers those of its last fits."""

    seen: list = []  # noqa: RUF012  (clones share it)

    def fit(self, X, y, *, mask=None):
        assert len(y) == X.shape[0]
        self.seen.append((X, list(y)))
        return super().fit(X, mask=mask)


@pytest.mark.parametrize("make", [list, np.asarray])
def test_labels_reach_every_fit_with_their_samples(make):
    X = np.arange(12.0)[:, None, None] + np.random.default_rng(0).random((12, 5, 4))
    Labelled.seen.clear()
    select_rank(
        *(Labelled(tol=0.1), X, [1, 2]),
        **{"y": make(range(12)), "method": ["heldout", "stability"], "n_repeats": 2},
    )
    sizes = [len(y) for _, y in Labelled.seen]
    assert sorted(sizes) == [6] * 4 + [12] * 8
    for data, y in Labelled.seen:
        np.testing.assert_array_equal(np.nanmin(data, axis=(1, 2)) // 1, y)


@pytest.mark.parametrize(
    ("y", "error", "text"),
    [([0, 1], InvalidInputError, "y has 2 labels, X has 20"), (5, InvalidTypeError, "y is a int")],
)
def test_labels_are_one_per_sample(y, error, text):
    with pytest.raises(error, match=text):
        select_rank(CP(), counts(0), [1], y=y)
