"""Split and merge of components of any sign: each formula against whole arrays."""

import numpy as np
import pytest
import torch
from scipy.sparse import coo_array

from polyad import CP, GeneralizedCP
from polyad.cp.generalized.problem import build_problem as build_generalized
from polyad.cp.problem import build_problem
from polyad.cp.signed_moves import merged, signed_moves, split_all
from polyad.data.validation import as_tensor_input
from polyad.exceptions import InvalidInputError
from polyad.losses.names import read_loss
from polyad.metrics import factor_match_score
from polyad.tensor import KruskalTensor

SHAPE, RANK = (7, 6, 5), 3


def whole(factors):
    return np.einsum("ir,jr,kr->ijk", *factors)


def make(seed=0, shape=SHAPE, rank=RANK):
    rng = np.random.default_rng(seed)
    return rng.standard_normal(shape), [rng.standard_normal((n, rank)) for n in shape]


@pytest.mark.parametrize("form", ["dense", "torch", "sparse", "unobserved", "missing"])
def test_the_pull_is_the_product_with_what_is_left(form):
    X, factors = make()
    columns = [f[:, :2] + 1.0 for f in factors]
    known = np.random.default_rng(1).random(SHAPE) < 0.6
    left = X - whole(factors)
    if form in ("unobserved", "missing"):
        left = np.where(known, left, 0.0)
    data = {
        "dense": X,
        "torch": torch.asarray(X),
        "sparse": coo_array(X),
        "unobserved": coo_array((X[known], np.nonzero(known)), shape=SHAPE),
        "missing": np.where(known, X, np.nan),
    }[form]
    problem = build_problem(data, "unobserved" if form == "unobserved" else "zero")
    pull = problem.pull([problem.asarray(f) for f in factors])
    for mode, letters in enumerate(("jr,kr->ir", "ir,kr->jr", "ir,jr->kr")):
        others = [columns[k] for k in range(3) if k != mode]
        expected = np.einsum(f"ijk,{letters}", left, *others)
        found = pull([problem.asarray(c) for c in columns], mode)
        np.testing.assert_allclose(np.asarray(found), expected, atol=1e-12)


@pytest.mark.parametrize("name", ["gaussian", "bernoulli-logit"])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_the_pull_of_a_loss_is_its_derivative_over_its_curvature(name, is_sparse):
    _, factors = make()
    X = (np.random.default_rng(2).random(SHAPE) < 0.3).astype(float)
    loss, model = read_loss(name), whole(factors)
    values = [np.sum(loss.value(X, part * model)) for part in (0.99, 1.0, 1.01)]
    curvature = (values[0] - 2 * values[1] + values[2]) / 1e-4 / np.sum(model**2)
    expected = np.einsum("ijk,jr,kr->ir", -loss.derivative(X, model), *factors[1:]) / curvature
    given = as_tensor_input(coo_array(X) if is_sparse else X)
    found = build_generalized(given, "zero", loss).pull(factors)(factors, 0)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_gains_and_losses_are_those_of_whole_arrays():
    X, factors = make()
    left = X - whole(factors)
    pull = build_problem(X, "zero").pull(factors)
    halves, gains = split_all(pull, factors, np.asarray, np.random.default_rng(0))
    for r in range(RANK):
        own = whole([f[:, [r]] for f in factors])
        two = whole([half[:, [r, RANK + r]] for half in halves])
        gain = 0.5 * np.sum(left**2) - 0.5 * np.sum((own + left - two) ** 2)
        np.testing.assert_allclose(gains[r], gain)
        assert gain > 0
    columns, loss = merged(factors, 0, 2)
    both = whole([f[:, [0, 2]] for f in factors])
    one = whole([c[:, None] for c in columns])
    np.testing.assert_allclose(loss, 0.5 * np.sum((both - one) ** 2))
    # No multiple of either is nearer to their sum.
    for r in (0, 2):
        alone = whole([f[:, [r]] for f in factors])
        rest = both - np.sum(both * alone) / np.sum(alone**2) * alone
        assert loss <= 0.5 * np.sum(rest**2)


def test_a_move_parts_what_was_one_and_joins_what_was_two():
    _, factors = make(seed=3, shape=(12, 10, 9), rank=4)
    X = whole(factors)
    pair = np.linalg.svd(whole([f[:, :2] for f in factors]).reshape(12, -1))
    second = np.linalg.svd(pair[2][0].reshape(10, 9))
    one = [pair[0][:, :1] * pair[1][0], second[0][:, :1] * second[1][0], second[2][:1].T]
    rng = np.random.default_rng(0)
    torn = factors[0][:, 2:3] * rng.uniform(0.3, 0.7, (12, 1))
    twice = [np.hstack([torn, factors[0][:, 2:3] - torn]), *(f[:, [2, 2]] for f in factors[1:])]
    wrong = [np.hstack([a, b, f[:, 3:]]) for a, b, f in zip(one, twice, factors, strict=True)]
    pull = build_problem(X, "zero").pull(wrong)
    right = signed_moves(pull, wrong, np.asarray)(0)
    before, after = (np.sum((X - whole(f)) ** 2) for f in (wrong, right))
    assert after < 0.1 * before
    ones = np.ones(4)
    assert factor_match_score(KruskalTensor(ones, right), KruskalTensor(ones, factors)) > 0.95


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("loss", [None, "gaussian", "huber", "bernoulli-logit"])
def test_a_search_of_signed_classes(loss):
    X = np.random.default_rng(0).standard_normal((12, 8, 7))
    if loss == "bernoulli-logit":
        X = (X > 0).astype(float)
    kind = CP if loss is None else GeneralizedCP
    model = kind(3, init="search", max_iter=20, **({} if loss is None else {"loss": loss}))
    table = model.set_params(random_state=0).fit(X).history_.starts_to_frame()
    first = "random" if loss == "bernoulli-logit" else "svd"
    assert table["kind"].tolist() == [first, "move", "move"]
    assert model.objective_ == table["objective"].min()


def test_a_search_with_random_cells_is_refused():
    X = coo_array(np.eye(6))
    model = GeneralizedCP(3, loss="bernoulli-logit", solver="adam", init="search")
    with pytest.raises(InvalidInputError, match="init='search' is not understood for loss"):
        model.fit(X)
