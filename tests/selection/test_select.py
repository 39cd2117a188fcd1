"""Choice of the rank: planted ranks are found, numbers are reproducible, errors are clear."""

import warnings

import numpy as np
import pytest
import torch
from scipy.sparse import coo_array
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning

from polyad import CP, LabelledTensor, factor_match_score
from polyad.data.validation import as_tensor_input
from polyad.datasets import make_low_rank
from polyad.exceptions import InvalidInputError, InvalidTypeError, NumericalError
from polyad.selection import RankSelection, select_rank, tasks
from polyad.selection.holdout import HoldoutOptions, hide_entries
from polyad.tensor.sparse import canonicalize

ALL = ["heldout", "stability", "core_consistency"]


def dense(rank=3, noise=0.3, seed=0, shape=(15, 12, 10)):
    return make_low_rank(shape, rank, noise=noise, random_state=seed)[0]


def counts(rank=3, seed=0, shape=(40, 35, 30)):
    """Poisson counts of overlapping blocks; about a tenth of the cells is not zero."""
    generator = np.random.default_rng(seed)
    factors = [
        generator.uniform(0.5, 1.5, (n, rank)) * (generator.random((n, rank)) < 0.35) for n in shape
    ]
    return coo_array(generator.poisson(2 * np.einsum("ir,jr,kr->ijk", *factors)))


# Planted ranks.


@pytest.mark.parametrize(("rank", "seed"), [(1, 0), (3, 2)])
def test_heldout_finds_the_rank_of_dense_data(rank, seed):
    found = select_rank(
        CP(tol=1e-4), dense(rank, seed=seed), range(1, 5), n_repeats=3, random_state=0
    )
    assert found.best_rank == rank


def test_heldout_finds_the_rank_without_noise():
    model = CP(max_iter=3000)
    found = select_rank(model, dense(noise=0.0), range(2, 5), n_repeats=2, random_state=0)
    assert found.best_rank == 3


def test_heldout_finds_the_rank_of_a_matrix():
    found = select_rank(CP(tol=1e-4), dense(2, shape=(40, 30)), range(1, 4), random_state=0)
    assert found.best_rank == 2


def test_heldout_finds_the_rank_of_sparse_counts():
    found = select_rank(CP(tol=1e-4), counts(), range(2, 5), n_repeats=3, random_state=0)
    assert found.best_rank == 3


def blocks(rank=3, seed=0, shape=(2000, 1500, 1000)):
    """Events in a few small blocks and everywhere, in a tensor of 24 GB if it were dense."""
    generator = np.random.default_rng(seed)
    parts = [
        np.stack([generator.choice(generator.choice(n, 30, replace=False), 5000) for n in shape])
        for _ in range(rank)
    ]
    parts.append(np.stack([generator.integers(0, n, 300) for n in shape]))
    coords = np.concatenate(parts, axis=1)
    return coo_array((np.ones(coords.shape[1]), tuple(coords)), shape=shape)


def test_heldout_finds_the_rank_of_a_tensor_that_cannot_be_dense():
    found = select_rank(CP(tol=1e-3), blocks(), range(2, 5), n_repeats=2, random_state=0)
    assert found.best_rank == 3


def test_cells_around_which_a_model_is_fitted_are_as_if_missing(monkeypatch):
    """The fit to a dense array with NaN at the same cells expects the same there."""
    X = coo_array(dense(2, shape=(9, 8, 7)) + 1.0)
    X = canonicalize(coo_array(X.toarray() * (np.random.default_rng(0).random(X.shape) < 0.5)))
    monkeypatch.setattr(tasks, "_SETTLED", 1e-9)
    monkeypatch.setattr(tasks, "_MOST_ROUNDS", 100)
    model = CP(tol=1e-11, max_iter=5000)
    plan = tasks.Plan(
        model, as_tensor_input(X), HoldoutOptions(0.1, "zero", 1.0), 0.5, wants_consistency=False
    )
    task = tasks.Task("heldout", 2, 0, 0)
    hidden = hide_entries(X, plan.holdout, task.data_seed)
    around = tasks._fit_around(task, plan, hidden)
    array = X.toarray()
    array[tuple(hidden.coords)] = np.nan
    missing = clone(model).set_params(n_components=2, init=around.kruskal_).fit(array)
    assert missing.kruskal_.values_at(hidden.coords) == pytest.approx(
        around.kruskal_.values_at(hidden.coords), abs=1e-4
    )
    # Told that hidden cells are zero, a model would not.
    told = clone(model).set_params(n_components=2, init=around.kruskal_).fit(hidden.train)
    gap = told.kruskal_.values_at(hidden.coords) - around.kruskal_.values_at(hidden.coords)
    assert np.abs(gap).max() > 0.05


def test_heldout_finds_the_rank_of_unobserved_entries():
    X = dense(2, shape=(20, 15, 12))
    seen = np.random.default_rng(0).random(X.shape) < 0.4
    stored = coo_array((X[seen], np.nonzero(seen)), shape=X.shape)
    model, options = CP(tol=1e-4, missing="unobserved"), {"n_repeats": 2, "random_state": 0}
    sparse = select_rank(model, stored, [1, 2, 3], **options)
    holes = select_rank(CP(tol=1e-4), np.where(seen, X, np.nan), [1, 2, 3], **options)
    assert (sparse.best_rank, holes.best_rank) == (2, 2)


def test_stability_drops_beyond_the_true_rank():
    found = select_rank(
        CP(tol=1e-4), dense(), [2, 3, 4], method="stability", n_repeats=3, random_state=0
    )
    assert found.best_rank == 3
    table = found.table[["restart_match", "subsample_match"]]
    assert (table.loc[3] > 0.98).all()
    assert (table.loc[4:] < 0.9).all().all()


def test_core_consistency_falls_beyond_the_true_rank():
    generator = np.random.default_rng(0)
    place = np.linspace(0, 1, 20)[:, None]
    peaks = [np.exp(-(((place - c) / 0.2) ** 2)) for c in ([0.2, 0.5, 0.8], [0.5, 0.7, 0.3])]
    X = np.einsum("ir,jr,kr->ijk", generator.random((15, 3)), *peaks)
    X = X + 0.03 * generator.standard_normal(X.shape)
    model = CP(max_iter=2000)
    for form in (X, coo_array(X)):
        found = select_rank(
            model, form, [1, 3, 4], method="core_consistency", n_repeats=2, random_state=0
        )
        assert found.best_rank == 3
        assert (found.table["core_consistency"].loc[:3] > 95).all()
        assert found.table["core_consistency"].loc[4] < 50


# Ranks that are searched for.


@pytest.mark.parametrize(("rank", "tried"), [(1, [1, 2, 4]), (3, [1, 2, 3, 4, 6, 8])])
def test_a_search_goes_on_until_the_best_is_not_the_edge(rank, tried):
    X, options = dense(rank), {"n_repeats": 2, "random_state": 0}
    found = select_rank(CP(tol=1e-3), X, **options)
    assert found.best_rank == rank
    assert found.table.index.tolist() == tried
    assert "that was tried" not in found.reason
    alone = select_rank(CP(tol=1e-3), X, [rank], **options)
    np.testing.assert_array_equal(alone.table, found.table.loc[[rank]])
    assert "only rank that was tried" in alone.reason


class Refusing(CP):
    def fit(self, X, y=None, *, mask=None):
        if self.n_components > 2:
            message = "too many"
            raise InvalidInputError(message)
        return super().fit(X, y, mask=mask)


@pytest.mark.parametrize(
    ("estimator", "shape"), [(CP(tol=1e-3), (9, 2)), (Refusing(tol=1e-3), (9, 8, 7))]
)
def test_a_search_ends_where_larger_ranks_cannot_be_fitted(estimator, shape):
    found = select_rank(estimator, dense(2, 0.01, shape=shape), n_repeats=2, random_state=0)
    assert found.table.index.tolist() == [1, 2]
    assert found.best_rank == 2
    assert "Larger ones cannot be fitted to this data." in found.reason


# Reproducible, and without traces.


def test_the_same_numbers_for_any_number_of_jobs():
    X, model = dense(2, shape=(10, 9, 8)), CP(tol=1e-3)

    def run(**options):
        return select_rank(model, X, [1, 2], method=ALL, n_repeats=2, **options).table

    one = run(random_state=0)
    assert run(random_state=0, n_jobs=2).equals(one)
    assert not run(random_state=1).equals(one)


def test_a_row_depends_on_nothing_but_its_rank():
    X = dense(2, shape=(10, 9, 8))
    many = select_rank(CP(tol=1e-3), X, [3, 1, 2, 2], method=ALL, n_repeats=2, random_state=0)
    one = select_rank(CP(tol=1e-3), X, [2], method="stability", n_repeats=2, random_state=0)
    assert list(many.table.index) == [1, 2, 3]
    assert many.table.loc[[2], one.table.columns].equals(one.table)


def test_the_estimator_is_not_changed(tmp_path):
    model = CP(7, random_state=5, verbose=2, n_jobs=2, checkpoint=tmp_path / "run")
    before = clone(model).get_params()
    select_rank(model, dense(), [1, 2], method=ALL, n_repeats=2, random_state=0, n_jobs=2)
    assert model.get_params() == before
    assert not hasattr(model, "factors_")
    assert list(tmp_path.iterdir()) == []


def test_every_form_of_the_data_gives_the_same():
    X = dense(2, shape=(10, 9, 8))
    model = CP(tol=1e-2)
    expected = select_rank(model, X, [1, 2], n_repeats=2, random_state=0).table
    named = LabelledTensor(X, modes=list("abc"), labels={"b": [f"x{k}" for k in range(9)]})
    assert select_rank(model, named, [1, 2], n_repeats=2, random_state=0).table.equals(expected)
    other = select_rank(model, torch.asarray(X), [2], method=ALL, n_repeats=2, random_state=0)
    np.testing.assert_allclose(other.table[expected.columns], expected.loc[[2]], rtol=1e-4)
    few = counts(shape=(20, 18, 15))
    events = LabelledTensor(few, modes=list("abc"))
    plain = select_rank(model, few, [1, 2], n_repeats=2, random_state=0).table
    assert select_rank(model, events, [1, 2], n_repeats=2, random_state=0).table.equals(plain)


def test_stored_zeros_are_zeros_like_others():
    X = counts(shape=(20, 18, 15))
    padded = coo_array(
        (np.append(X.data, [0, 0]), [np.append(row, [0, 1]) for row in X.coords]), shape=X.shape
    )
    options = {"n_repeats": 2, "random_state": 0}
    expected = select_rank(CP(tol=1e-3), X, [1, 2], **options).table
    assert select_rank(CP(tol=1e-3), padded, [1, 2], **options).table.equals(expected)


# What the numbers are.


class AbsoluteLoss(CP):
    def _entry_loss(self, values, predictions):
        return np.abs(values - predictions)


class Broken(CP):
    def fit(self, X, y=None, *, mask=None):
        if self.n_components == 2:
            message = "not finite"
            raise NumericalError(message)
        return super().fit(X, mask=mask)


def test_an_estimator_may_bring_its_own_loss():
    X = dense(2)
    squared = select_rank(CP(), X, [2], random_state=0).to_frame()["value"]
    own = select_rank(AbsoluteLoss(), X, [2], random_state=0).to_frame()["value"]
    # For normal noise the mean of |e| is sqrt(2 / pi) of the root of the mean of e².
    np.testing.assert_allclose(own / np.sqrt(squared), np.sqrt(2 / np.pi), atol=0.08)


def test_a_broken_fit_costs_its_own_rank_only():
    with pytest.warns(ConvergenceWarning, match=r"15 of 30 fits did not converge \(diverged: 15"):
        found = select_rank(
            Broken(), dense(1), [1, 2], method=["heldout", "stability"], random_state=0
        )
    assert found.table.loc[2].isna().all()
    assert found.table.loc[1].notna().all()
    assert found.best_rank == 1


def test_unconverged_fits_warn_once():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = select_rank(CP(max_iter=1), dense(), [2, 3], n_repeats=2, random_state=0, n_jobs=2)
    assert [w.category for w in caught] == [ConvergenceWarning]
    assert "4 of 4 fits did not converge (max_iter: 4" in str(caught[0].message)
    assert caught[0].filename == __file__
    assert found.n_unconverged == 4


def test_means_and_errors_are_those_of_the_single_numbers():
    found = select_rank(CP(tol=1e-3), dense(), [2, 3], method=ALL, n_repeats=4, random_state=0)
    single = found.to_frame().set_index(["rank", "measure"])["value"]
    for rank in (2, 3):
        losses = single.loc[rank, "heldout_loss"].to_numpy()
        row = found.table.loc[rank]
        assert row["heldout_loss"] == pytest.approx(losses.mean())
        assert row["heldout_loss_se"] == pytest.approx(losses.std(ddof=1) / 2)
        assert row["core_consistency"] == pytest.approx(
            np.maximum(single.loc[rank, "core_consistency"], 0).mean()
        )
        assert row["restart_match"] == pytest.approx(single.loc[rank, "restart_match"].mean())


def test_the_error_of_a_match_is_the_jackknife_over_fits():
    from polyad.selection.result import _standard_error, mean_matches

    models = [
        CP(4, init="random", tol=1e-3, random_state=k).fit(dense()).kruskal_ for k in range(5)
    ]
    means = mean_matches(models, [])
    pairs = [
        np.mean([factor_match_score(a, b) for j, b in enumerate(kept) for a in kept[:j]])
        for kept in ([m for k, m in enumerate(models) if k != left] for left in range(5))
    ]
    expected = np.sqrt(4 / 5 * np.sum((pairs - np.mean(pairs)) ** 2))
    assert _standard_error(means, is_match=True) == pytest.approx(expected)


# The result.


@pytest.fixture(scope="module")
def found():
    return select_rank(CP(tol=1e-4), dense(), [2, 3, 4], method=ALL, n_repeats=3, random_state=0)


def test_the_result_reads_well(found):
    assert isinstance(found, RankSelection)
    text = repr(found)
    assert "best rank by heldout: 3, stability: 3" in text.splitlines()[0]
    assert "restart_match_se" in text
    assert found.table.index.name == "rank"
    assert len(found.to_frame()) == 3 * 4 * 3
    found.to_frame().drop(index=0)
    assert len(found.to_frame()) == 36


def test_no_rank_passes_a_threshold_that_is_too_high():
    X = np.random.default_rng(0).standard_normal((10, 9, 8))
    found = select_rank(
        CP(tol=1e-3), X, [3, 4], method=["stability"], min_match=0.999, n_repeats=2, random_state=0
    )
    assert found.best_rank is None
    assert "stability: none passes" in repr(found)
    assert found.table["restart_match_se"].isna().all()  # two fits are one pair
    found.plot()


def test_one_panel_per_method(found):
    from matplotlib import pyplot as plt
    from matplotlib.figure import Figure

    panels = found.plot()
    assert len(panels) == 3
    assert [len(panel.containers) for panel in panels] == [1, 2, 1]
    assert panels[0].get_ylabel() == "loss of held-out entries"
    own = Figure().subplots(1, 3)
    assert found.plot(own) == list(own)
    with pytest.raises(InvalidInputError, match="3 methods need as many axes, 1 were given"):
        found.plot([own[0]])
    plt.close("all")


def test_progress_is_shown_on_request(capsys):
    select_rank(CP(tol=0.1, verbose=2), dense(1), [1, 2], n_repeats=2, random_state=0)
    assert capsys.readouterr().err == ""
    select_rank(CP(tol=0.1), dense(1), [1, 2], n_repeats=2, random_state=0, verbose=1)
    told = capsys.readouterr().err
    assert "4/4" in told
    # What it will cost comes first: the number of fits, and a guess of the time.
    assert told.index("select_rank: 4 fits of rank 1, 2.") < told.index("0/4")
    assert "select_rank: the first, of rank 1, took " in told
    assert " s, 1 at a time" in told


# Errors, before any fit.


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"ranks": []}, InvalidInputError, "ranks is empty"),
        ({"ranks": [0, 1]}, InvalidInputError, "ranks has 0"),
        ({"ranks": [2, -1]}, InvalidInputError, "ranks has -1"),
        ({"ranks": [1, 121]}, InvalidInputError, "ranks has 121, too many: .* rank at most 120"),
        ({"ranks": [1.5]}, InvalidTypeError, "ranks has 1.5, a float; whole numbers"),
        ({"ranks": [True]}, InvalidTypeError, "ranks has True, a bool"),
        ({"ranks": ["2"]}, InvalidTypeError, "ranks has '2', a str"),
        ({"ranks": 3}, InvalidTypeError, r"ranks=3 is not a list"),
        ({"ranks": "all"}, InvalidInputError, "ranks='all' has no meaning; give 'auto'"),
        ({"heldout_share": 0}, InvalidInputError, "heldout_share=0 is not a share"),
        ({"heldout_share": 1.0}, InvalidInputError, "heldout_share=1.0 is not a share"),
        ({"heldout_share": "0.1"}, InvalidInputError, "heldout_share='0.1' is not a share"),
        ({"subsample": 1.5}, InvalidInputError, "subsample=1.5 is not a share"),
        ({"n_repeats": 1}, InvalidInputError, "n_repeats=1 gives no standard error"),
        ({"n_repeats": 2.5}, InvalidInputError, "n_repeats=2.5 gives no standard error"),
        ({"zeros_per_entry": 0}, InvalidInputError, "zeros_per_entry=0 must be a positive"),
        ({"min_match": "high"}, InvalidInputError, "min_match='high' is not a number"),
        ({"min_consistency": None}, InvalidInputError, "min_consistency=None is not a number"),
        ({"method": "bic"}, InvalidInputError, "method is 'bic'; give one or more of 'heldout'"),
        ({"method": []}, InvalidInputError, "method is an empty list"),
        ({"method": 3}, InvalidTypeError, "method=3 is not a name or a list of names"),
        ({"estimator": CP}, InvalidTypeError, "estimator is the class CP"),
        ({"estimator": PCA()}, InvalidTypeError, "estimator is a PCA; an estimator of polyad"),
        ({"estimator": CP(init=[np.ones((15, 2))])}, InvalidInputError, "init holds factors"),
        ({"X": np.ones(5)}, InvalidInputError, "Expected 2D array"),
        (
            {"X": dense(shape=(8, 7)), "method": "core_consistency"},
            InvalidInputError,
            "needs 3 modes or more, X has 2",
        ),
        (
            {"X": np.where(dense() > 3, np.nan, dense()), "method": "core_consistency"},
            InvalidInputError,
            "needs complete data",
        ),
        (
            {"X": dense(shape=(2, 7, 7)), "method": "stability"},
            InvalidInputError,
            "subsample=0.5 of 2 samples leaves 1",
        ),
        ({"X": coo_array((5, 4, 3))}, InvalidInputError, "X has 0 entries that are not zero"),
    ],
)
def test_errors_say_what_to_do(change, error, match):
    given = {"estimator": CP(), "X": dense(), "ranks": [1, 2], **change}
    with pytest.raises(error, match=match):
        select_rank(**given)


class Complete(CP):
    _accepts_nan = False


def test_an_estimator_without_missing_entries_is_told_the_other_methods():
    with pytest.raises(InvalidInputError, match="Complete takes no missing entries"):
        select_rank(Complete(), dense(), [1])
    with pytest.raises(InvalidInputError, match=r"Use method='stability'\."):
        select_rank(Complete(), dense()[0], [1])
    assert select_rank(Complete(), counts(), [2, 3], n_repeats=2, random_state=0).best_rank == 3
    assert select_rank(Complete(), dense(), [3], method="stability", random_state=0).best_rank == 3
