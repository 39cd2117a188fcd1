"""Extremes: units, large and small numbers, many categories, odd values, and fits that are cut."""

import numpy as np
import pandas as pd
import pytest

import polyad
from polyad import MixedMembership
from polyad.exceptions import InvalidInputError, InvalidTypeError, ModelFileError
from polyad.fitting import Status, fit_best
from polyad.membership import moments
from polyad.membership.partitions import choose_anchors
from polyad.membership.solver import MomentSolver, decompose
from polyad.membership.variables import read_columns
from tests.membership.planted import exact_third, planted

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def model_of(k=2, **options):
    return MixedMembership(k, **{"alpha0": 0.4, "random_state": 0, **options})


def numbers(n=300):
    """Return samples of two components in numbers."""
    rng = np.random.default_rng(1)
    part = rng.random((n, 9)) < rng.dirichlet([0.2, 0.2], n)[:, :1]
    return np.where(part, 2.0, -2.0) + 0.7 * rng.normal(size=(n, 9))


@pytest.mark.parametrize("refine", [False, True])
@pytest.mark.parametrize(("shift", "unit"), [(1e6, 1.0), (0.0, 1e-8), (0.0, 1e9)])
def test_shift_and_unit_of_numbers_change_nothing(refine, shift, unit):
    X = numbers()
    moved = shift + unit * X
    plain, other = (model_of(kinds="real", refine=refine).fit(own) for own in (X, moved))
    assert other.n_iter_ == plain.n_iter_
    np.testing.assert_allclose(other.transform(moved), plain.transform(X), atol=1e-6)


@pytest.mark.parametrize("alpha0", [1e-6, 1e-3, 1e6])
def test_memberships_that_are_drawn_sum_to_one(alpha0):
    y, _, _ = planted(200, p=9, d=3, k=2)
    drawn = model_of(alpha0=alpha0).fit(y).sample(300, random_state=0)[1]
    np.testing.assert_allclose(drawn.sum(axis=1), 1.0)
    assert (drawn.max(axis=1) > 0.99).mean() > 0.98 or alpha0 > 1


def test_counts_of_large_means_are_drawn():
    X = 1e30 * (1 + planted(200, p=9, k=2)[0])
    drawn = model_of(kinds="count").fit(X).sample(20, random_state=0)[0]
    assert (drawn >= 1e29).all(axis=None)


def test_many_categories_need_no_large_arrays():
    y = np.random.default_rng(0).integers(0, 3000, size=(1200, 6)).astype(str)
    model = model_of(max_iter=3).fit(y)
    assert model.diagnostics_["negative_fraction"] is None
    with pytest.raises(InvalidInputError, match="too many categories to choose anchors"):
        model_of(method="partitioned").fit(y)
    with pytest.raises(InvalidInputError, match="Use method='tensor-free' with an update"):
        model_of(method="partitioned", anchors=[[0], [1], [2]]).fit(y)
    wide = read_columns(y[:, [0] * 12].astype(int) // 8, "categorical", range(12))
    assert sum(map(len, choose_anchors(wide, 2, 1.0, 0))) == 3


GAPS = np.eye(200, 9) > 0


@pytest.mark.parametrize(
    ("large", "small"),
    [
        (lambda y: y.astype(np.uint64) + np.uint64(2**63), lambda y: y),
        (lambda y: np.where(y > 0, 2**63 - 1, -(2**63)), lambda y: y > 0),
        (
            lambda y: pd.DataFrame(y + 2**60).astype("Int64").mask(GAPS),
            lambda y: np.where(GAPS, np.nan, y),
        ),
        (lambda y: (y + 2**60).astype(object), lambda y: y),
    ],
)
def test_large_whole_numbers_are_categories(large, small):
    y, _, _ = planted(200, p=9, d=3, k=2)
    X, same = large(y), small(y)
    model, plain = model_of().fit(X), model_of().fit(same)
    assert model.kinds_ == ["categorical"] * 9
    assert [len(own) for own in model.categories_] == [len(own) for own in plain.categories_]
    np.testing.assert_allclose(model.transform(X), plain.transform(same), atol=1e-8)


def test_whole_numbers_beyond_64_bits_are_refused():
    y, _, _ = planted(50, p=9, k=2)
    with pytest.raises(InvalidTypeError, match="Make them all text"):
        model_of().fit(y.astype(object) + 2**70)


# Fits that are cut, resumed or continued.


@pytest.mark.parametrize("refine", [False, True])
def test_a_warm_start_takes_another_alpha0(refine):
    y, _, _ = planted(200, p=9, k=2)
    model = model_of(refine=refine, warm_start=True, max_iter=5).fit(y)
    assert model.set_params(alpha0=2.0).fit(y).alpha_.sum() == pytest.approx(2.0)


def test_a_warm_start_of_partitions_tells_its_objective():
    y, _, _ = planted(400, p=12)
    model = model_of(3, method="partitioned", warm_start=True).fit(y)
    before = model.objective_
    assert model.fit(y).history_.objective[0] == pytest.approx(before, rel=0.1)


def test_an_interrupt_while_moments_are_fitted_ends_the_fit(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(MomentSolver, "step", interrupted)
    y, theta, _ = planted(100, p=9, k=2)
    with pytest.raises(KeyboardInterrupt):
        model_of(refine=True).fit(y)
    with pytest.raises(KeyboardInterrupt):
        decompose(exact_third(theta, ([0], [1], [2]), np.array([0.2, 0.2])), 2)


def test_moments_before_a_refinement_have_limits_of_their_own(monkeypatch):
    """Half of the time, and as many sweeps whatever ``max_iter`` is: a fit can be prolonged."""
    given = []

    def noted(solver, start, seeds, options):
        given.append(options)
        return fit_best(solver, start, seeds, options)

    monkeypatch.setattr("polyad.membership.estimator.fit_best", noted)
    y, _, _ = planted(100, p=9, k=2)
    for options in ({"max_iter": 1}, {"max_iter": 3, "tol": 1e-2, "time_budget": 20.0}):
        model_of(refine=True, **options).fit(y)
    assert given[0].max_iter == given[1].max_iter > 3
    assert given[0].tol == given[1].tol
    assert [own.time_budget for own in given] == [None, 10.0]


# Files.


def test_keys_of_kinds_are_stored(tmp_path):
    y, _, _ = planted(100, p=9, k=2)
    model = model_of(kinds={np.int64(0): "categorical"}).fit(y)
    model.save(tmp_path / "model")
    assert polyad.load(tmp_path / "model").kinds == {0: "categorical"}


@pytest.mark.parametrize(
    ("name", "value"),
    [("_variances", 0.0), ("_variances", 1e-320), ("alpha_", 1e-320), ("theta_", 1e199)],
)
def test_files_of_numbers_that_overflow_are_refused(tmp_path, name, value):
    model = model_of(kinds="real").fit(numbers(100))
    own = getattr(model._model(), name)
    (own[0] if name == "theta_" else own)[...] = value
    model.save(tmp_path / "model")
    with pytest.raises(ModelFileError, match=name):
        polyad.load(tmp_path / "model")


# What is read, and what is refused.


def test_a_mask_keeps_the_order_of_categories():
    y, _, _ = planted(200, p=9, d=3, k=2)
    order = pd.CategoricalDtype(["low", "mid", "high"], ordered=True)
    X = pd.DataFrame(np.array(order.categories)[y]).astype(order)
    model = model_of().fit(X, mask=np.random.default_rng(0).random(X.shape) < 0.9)
    assert model.categories_[0].tolist() == ["low", "mid", "high"]


def test_dates_in_an_array_are_categories():
    y, _, _ = planted(200, p=9, d=3, k=2)
    dates = np.datetime64("2020-01-01") + y
    np.testing.assert_allclose(
        model_of().fit(dates).transform(dates), model_of().fit(y).transform(y), atol=1e-8
    )


@pytest.mark.parametrize(
    ("first", "message"),
    [
        (["a\0", "a"], "ends in a NUL"),
        ([np.inf, 1.0], "has infinity"),
        (pd.to_datetime(["2020-01-01", "2021-01-01"], utc=True), "of a type, or of several"),
    ],
)
def test_categories_that_are_refused(first, message):
    frame = pd.DataFrame({"a": first, "b": [1, 2], "c": [1, 2]})
    with pytest.raises((InvalidInputError, InvalidTypeError), match=message):
        model_of(1, kinds="categorical").fit(frame)


def test_tables_that_are_refused():
    with pytest.raises(InvalidInputError, match="rows of X have different lengths"):
        model_of().fit([[1, 2, 3], [1, 2]])
    y, _, _ = planted(50, p=9, k=2)
    with pytest.raises(InvalidInputError, match="3 modes; give a table"):
        moments(np.zeros((3, 3, 3)), 0, 1)
    for chosen in (None, [[1]]):
        with pytest.raises(InvalidInputError, match=r"name nor the position.*9 columns: 0, 1"):
            moments(pd.DataFrame(y), 0, chosen)
    with pytest.raises(InvalidInputError, match="neither the name nor the position"):
        model_of(method="partitioned", anchors=[[[0]], [[1]], [[2]]]).fit(y)


def test_one_sample_of_numbers_settles():
    """Rounding is told by the norm of the moments, which here are of rank one."""
    model = model_of(1, kinds="real", alpha0=1.0).fit(np.array([[0.0, 1.0, 2.0] * 3]))
    assert model.status_ is Status.CONVERGED
