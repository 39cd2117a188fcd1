"""The models that the experiments on mixed memberships draw, and the error that they measure."""

import numpy as np
import pytest
from experiments.ptpqp.crowd import STARTS, em_rounds, published_start
from experiments.ptpqp.methods import OF_MOMENTS, estimate, with_all_categories
from experiments.ptpqp.synthetic import make_planted, one_hot, rmse

from polyad.crowd.answers import answers_of
from polyad.crowd.problem import CrowdProblem, vote_shares
from tests.crowd.twin import planted as planted_crowd


def test_the_error_is_the_same_for_any_order_of_components_and_zero_for_the_truth():
    truth = make_planted(5, 6, 4, 3, 0).theta
    turned = [block[:, [2, 0, 1]] for block in truth]
    assert rmse(turned, truth) == 0.0
    moved = [block + 0.1 for block in turned]
    assert rmse(moved, truth) == pytest.approx(0.1)


def test_samples_have_the_probabilities_of_the_model():
    """Memberships are even over components in the mean, and contamination is even over d."""
    planted = make_planted(40_000, 3, 4, 3, 0, contamination=0.2)
    for column, theta in zip(planted.Y.T, planted.theta, strict=True):
        wanted = 0.8 * theta.mean(axis=1) + 0.2 / 4
        found = np.bincount(column, minlength=4) / len(column)
        np.testing.assert_allclose(found, wanted, atol=0.015)
    assert planted.alpha0 == pytest.approx(0.3)
    assert (one_hot(planted.Y[:9], 4).sum(axis=1) == 3).all()


def test_categories_that_no_sample_has_get_rows_of_zeros():
    (block,) = with_all_categories(np.array([[0], [2]]), [np.array([[0.3], [0.7]])], 4)
    np.testing.assert_array_equal(block[:, 0], [0.3, 0.0, 0.7, 0.0])


@pytest.mark.parametrize("method", OF_MOMENTS)
def test_every_method_finds_an_easy_model(method):
    planted = make_planted(4000, 9, 3, 2, 1)
    uniform = rmse(estimate("uniform", planted, 0), planted.theta)
    assert rmse(estimate(method, planted, 0), planted.theta) < 0.2 * uniform


def test_the_rounds_of_crowds_are_those_of_the_published_program():
    """All classes alike, and what a table has never seen says nothing; from votes and moments."""
    items, workers, labels, _ = planted_crowd(1000, 6, 2, share=0.7, right=0.8, seed=3)
    answers = answers_of((items, workers, labels), (1000, 6), (None, None), np.arange(2))
    problem = CrowdProblem(answers)
    q = vote_shares(problem)
    found, _ = em_rounds(problem, q, 2, 0.0)
    for _ in range(2):
        table = np.zeros((6, 2, 2))
        np.add.at(table, (workers, labels), q[items])
        table /= table.sum(axis=1, keepdims=True)
        logs = np.zeros((1000, 2))
        np.add.at(logs, items, np.log(np.where(table > 0, table, 1.0))[workers, labels])
        q = np.exp(logs) / np.exp(logs).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found, q, atol=1e-10)
    ended = em_rounds(problem, q, 30, 0.0)[0].argmax(axis=1)
    for method in ("PQP", "TPM"):
        start = published_start(problem, STARTS[method], 0).argmax(axis=1)
        assert (start == ended).mean() > 0.97
