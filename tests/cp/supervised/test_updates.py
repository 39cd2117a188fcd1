"""The parts of the supervised solver against small twins, and its conditions of optimality."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_array

from polyad import SupervisedCP
from polyad.cp.problem import build_problem
from polyad.cp.supervised.classifier import Labels, fit_logistic, losses, scores, surplus
from polyad.cp.supervised.rules import LabelPull, SupervisedDescent, unit_columns
from polyad.cp.supervised.solver import SupervisedSolver
from tests.cp.supervised.reference import (
    hidden_classes,
    objective_twin,
    row_twin,
    sphere_twin,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::polyad.exceptions.DataWarning"),
]


def some_labels(generator, n, n_classes):
    codes = np.concatenate([np.arange(n_classes), generator.integers(0, n_classes, n - n_classes)])
    return Labels(np.arange(n), codes, np.arange(n_classes))


@pytest.mark.parametrize("n_classes", [2, 4])
def test_slope_of_the_logistic_loss(n_classes):
    generator = np.random.default_rng(0)
    z = generator.standard_normal((7, n_classes)) * 3
    codes = generator.integers(0, n_classes, 7)
    slope = surplus(z, codes) / 7
    for i in range(7):
        for k in range(n_classes):
            step = np.zeros_like(z)
            step[i, k] = 1e-6
            central = (losses(z + step, codes) - losses(z - step, codes)).mean() / 2e-6
            assert abs(central - slope[i, k]) < 1e-8


def test_losses_of_extreme_scores_are_finite():
    z = np.array([[1e300, -1e300], [-800.0, 800.0], [0.0, 0.0]])
    assert losses(z, np.array([0, 1, 0])).tolist() == [0.0, 0.0, pytest.approx(np.log(2))]
    assert losses(z, np.array([1, 0, 0]))[1] == 1600.0
    assert np.isfinite(surplus(z, np.array([0, 1, 0]))).all()


@pytest.mark.parametrize("n_classes", [2, 3])
def test_the_classifier_is_at_its_minimum(n_classes):
    generator = np.random.default_rng(0)
    labels = some_labels(generator, 60, n_classes)
    rows = generator.random((60, 3)) * [1.0, 1e3, 1e-3] + labels.codes[:, None] * 0.1
    ridge = 0.01
    V, c = fit_logistic(rows, labels, ridge)
    slope = surplus(scores(rows, V, c), labels.codes) / 60
    size = np.sqrt(np.mean(rows**2, axis=0))[:, None]
    assert np.abs((rows.T @ slope + ridge * V) / size).max() < 1e-6
    assert np.abs(slope.sum(axis=0)).max() < 1e-6
    np.testing.assert_allclose(V.sum(axis=1), 0, atol=1e-9)


def test_a_classifier_without_ridge_on_useless_rows_is_finite():
    generator = np.random.default_rng(0)
    labels = some_labels(generator, 20, 2)
    for rows in (np.zeros((20, 3)), np.ones((20, 3)), labels.codes[:, None] * np.ones((1, 3))):
        V, c = fit_logistic(rows, labels, 0.0)
        assert np.isfinite(V).all()
        assert np.isfinite(c).all()


def test_slope_and_curvature_of_the_label_term():
    generator = np.random.default_rng(0)
    labels = some_labels(generator, 10, 3)
    pull = LabelPull(labels, generator.standard_normal((4, 3)), generator.standard_normal(3), 2.0)
    rows, codes = generator.random((10, 4)), labels.codes
    for r in range(4):
        step = 1e-5 * np.eye(4)[r]
        central = (pull.value(rows + step, codes) - pull.value(rows - step, codes)) / 2e-5
        np.testing.assert_allclose(central, pull.slope(rows, codes)[:, r], atol=1e-8)
        central = (pull.slope(rows + step, codes) - pull.slope(rows - step, codes)) / 2e-5
        np.testing.assert_allclose(central, pull.curvature(rows)[:, r], atol=1e-8)


def test_columns_of_length_one():
    generator = np.random.default_rng(0)
    start = generator.random((9, 3))
    start /= np.linalg.norm(start, axis=0)
    design = generator.random((20, 3))
    normal = design.T @ design
    right = generator.random((9, 20)) @ design
    found = unit_columns(normal[None], right, start, None)
    np.testing.assert_allclose(found, sphere_twin(normal, right, start, 10), atol=1e-3)
    # One matrix per row, all the same, is the same problem.
    each = unit_columns(np.repeat(normal[None], 9, axis=0), right, start, None)
    np.testing.assert_allclose(each, found, atol=1e-12)
    # Where nothing pulls upwards, all length goes to the row that is pulled down least.
    right = -np.arange(1.0, 10.0)[:, None] - 100 * np.ones((9, 3))
    assert unit_columns(np.eye(3)[None], right, start, None)[0].tolist() == [1.0, 1.0, 1.0]
    seen = np.arange(9) > 0
    hidden = unit_columns(np.eye(3)[None], right, start * seen[:, None], seen)
    assert hidden[:2].tolist() == [[0.0] * 3, [1.0] * 3]


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), rows_differ=st.booleans())
def test_columns_of_length_one_never_raise_their_objective(seed, rows_differ):
    generator = np.random.default_rng(seed)
    start = generator.random((6, 3)) + 1e-3
    start /= np.linalg.norm(start, axis=0)
    design = generator.random((6 if rows_differ else 1, 5, 3))
    normal = np.einsum("nir,nis->nrs", design, design)
    right = generator.standard_normal((6, 3)) * 3

    def value(columns):
        return (
            0.5 * np.einsum("nr,nrs,ns", columns, np.broadcast_to(normal, (6, 3, 3)), columns)
            - (columns * right).sum()
        )

    found = unit_columns(normal, right, start, None)
    assert value(found) <= value(start) + 1e-12
    np.testing.assert_allclose(np.linalg.norm(found, axis=0), 1, rtol=1e-12)
    assert (found >= 0).all()


@pytest.mark.parametrize("form", ["one matrix", "a matrix per row", "stored entries"])
def test_rows_see_their_labels_and_only_theirs(form):
    generator = np.random.default_rng(0)
    n, rank = 12, 3
    X = generator.random((n, 5, 4)) + 0.1
    tensor_factors = [generator.random((size, rank)) for size in X.shape]
    problem = build_problem(coo_array(X) if form == "stored entries" else X, "unobserved")
    if form == "a matrix per row":
        hidden = X.copy()
        hidden[0, 0, 0] = np.nan
        X, problem = hidden, build_problem(hidden, "zero")
    labels = Labels(np.array([1, 4, 5, 11]), np.array([0, 1, 2, 0]), np.arange(3))
    weights = generator.standard_normal((rank, 3))
    weights -= weights.mean(axis=1, keepdims=True)
    pull = LabelPull(labels, weights, np.array([0.1, 0.0, -0.1]), 5.0)
    rule = SupervisedDescent([0.0] * 3, [0.1, 0, 0], pull, [None] * 3, exact=True)
    found = problem.minimizer(tensor_factors, 0, rule)
    plain = problem.minimizer(
        tensor_factors, 0, SupervisedDescent([0.0] * 3, [0.1, 0, 0], None, [None] * 3, exact=True)
    )
    design = np.einsum("jr,kr->jkr", *tensor_factors[1:]).reshape(-1, rank)
    for i in range(n):
        sample = X[i].ravel()
        chosen = ~np.isnan(sample)
        normal = design[chosen].T @ design[chosen] + 0.1 * np.eye(rank)
        right = design[chosen].T @ sample[chosen]
        place = np.flatnonzero(labels.positions == i)
        if len(place):
            code = labels.codes[place[0]]
            expected = row_twin(normal, right, code, (weights, pull.intercept, 5.0), 3000)
            assert np.abs(found[i] - plain[i]).max() > 1e-4
            np.testing.assert_allclose(found[i], expected, atol=1e-6)
        else:
            np.testing.assert_allclose(found[i], plain[i], atol=1e-12)


@pytest.mark.parametrize("missing", [False, True])
def test_the_objective_is_the_one_of_the_docstring(missing):
    X, y = hidden_classes(30)
    if missing:
        X[np.random.default_rng(0).random(X.shape) < 0.2] = np.nan
    codes = np.where(np.arange(30) < 5, -1, y)
    states = []
    options = {"label_weight": 0.7, "label_ridge": 0.02}
    model = SupervisedCP(
        2, **options, max_iter=3, tol=0, callbacks=lambda news: states.append(news.state)
    ).fit(X, codes)
    state = states[-1]
    expected = objective_twin(X, codes, state.factors, state.weights, state.intercept, **options)
    assert model.history_.objective[-1] == pytest.approx(expected, rel=1e-9)
    for factor in state.factors[1:]:
        np.testing.assert_allclose(np.linalg.norm(factor, axis=0), 1, rtol=1e-9)


def test_no_direction_leads_down_at_the_end():
    """The conditions of Karush, Kuhn and Tucker, with slopes by central differences."""
    X, y = hidden_classes(24, seed=3)
    codes = np.where(np.arange(24) % 4 == 0, -1, y)
    options = {"label_weight": 0.5, "label_ridge": 0.02}
    states = []
    model = SupervisedCP(
        2,
        **options,
        max_iter=3000,
        tol=1e-15,
        callbacks=lambda news: states.append(news.state),
    ).fit(X, codes)
    state = states[-1]
    scale = model.objective_

    def value(A, B, C, V, c):
        # The columns may be given at any length: the size of a component is in the samples.
        lengths = np.linalg.norm(B, axis=0) * np.linalg.norm(C, axis=0)
        unit = [A * lengths, B / np.linalg.norm(B, axis=0), C / np.linalg.norm(C, axis=0)]
        return objective_twin(X, codes, unit, V, c, **options)

    point = [*state.factors, state.weights, state.intercept]
    for part, array in enumerate(point):
        for position in np.ndindex(array.shape):
            step = 1e-5 * max(1.0, abs(array[position]))
            up, down = ([p.copy() for p in point] for _ in range(2))
            up[part][position] += step
            down[part][position] -= step
            slope = (value(*up) - value(*down)) / (2 * step)
            bound = 2e-4 * scale
            if part < 3 and array[position] < 1e-9:
                assert slope > -bound, (part, position)
            else:
                assert abs(slope) < bound, (part, position)


@settings(max_examples=10)
@given(
    seed=st.integers(0, 10**6),
    shape=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    rank=st.integers(1, 3),
    weights=st.sampled_from([(0.0, 0.0), (0.1, 0.001), (10.0, 0.0), (1.0, 1.0), (100.0, 0.01)]),
    penalties=st.sampled_from([(0.0, 0.0), (0.3, 0.0), (0.2, 0.5)]),
    form=st.sampled_from(["dense", "nan", "sparse", "unobserved"]),
)
def test_objective_never_rises_and_nothing_is_negative(
    seed, shape, rank, *, weights, penalties, form
):
    shape = (8, *shape)
    rank = min(rank, int(np.prod(shape)) // max(shape))
    generator = np.random.default_rng(seed)
    X = generator.standard_normal(shape)
    X[0] = 0
    X.flat[-1] = 1.0
    y = np.array([0, 1, 2, 0, 1, -1, -1, 2])
    if form != "dense":
        X[generator.random(shape) < 0.4] = np.nan if form == "nan" else 0.0
        X[1] = np.nan if form == "nan" else 0.0
        X.flat[-1] = 1.0
    model = SupervisedCP(
        rank,
        label_weight=weights[0],
        label_ridge=weights[1],
        sparsity=penalties[0],
        ridge=penalties[1],
        missing="unobserved" if form == "unobserved" else "zero",
        init="random",
        random_state=seed,
        max_iter=10,
        tol=0,
    ).fit(coo_array(X) if form in ("sparse", "unobserved") else X, y)
    objective = np.array(model.history_.objective)
    slack = 1e-11 * max(np.nansum(X**2), 1) * (1 + weights[0])
    assert (np.diff(objective) <= slack).all()
    assert all(np.isfinite(f).all() and (f >= 0).all() for f in model.factors_)
    assert np.isfinite(model.coef_).all()


def test_a_dead_component_of_a_start_gets_a_direction():
    X, y = hidden_classes(20)
    init = [np.random.default_rng(0).random((n, 2)) for n in X.shape]
    init[1][:, 1] = 0.0
    problem = build_problem(X, "zero")
    labels = Labels(np.arange(20), y, np.arange(2))
    solver = SupervisedSolver(
        problem, labels, label_weight=1.0, label_ridge=0.1, sparsity=[0.0] * 3, ridge=0.0
    )
    state = solver.init(init)
    np.testing.assert_allclose(np.linalg.norm(state.factors[1], axis=0), 1)
    before = np.einsum("ir,jr,kr->ijk", *init)
    np.testing.assert_allclose(np.einsum("ir,jr,kr->ijk", *state.factors), before, atol=1e-12)
    assert (solver.step(solver.step(state)).factors[0][:, 1] > 0).any()
