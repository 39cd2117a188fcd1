"""The mathematics of augmented CP, against a twin and the identities of the method."""

import numpy as np
import pytest

from polyad.augmented.metric import augmentation_metric
from polyad.augmented.rules import (
    RowSystem,
    alignments,
    directions,
    gram_of,
    improved_rows,
    moved_factors,
    pulls,
    row_losses,
)
from polyad.augmented.views import (
    Centre,
    View,
    contract_parts,
    contract_samples,
    first_inner,
    project_samples,
)
from tests.augmented import twin

ALPHA, BETA, GAMMA = 1e-3, 2.0, 8.0
SHAPES = [(7,), (4, 5), (4, 5, 6), (2, 3, 4, 5)]
ONE = np.ones((1, 3))  # the Khatri-Rao product of no factors


def parts(shape=(4, 5, 6), n=8, rank=3):
    """Return factors, both matrices, the system, the products with components and the pull."""
    factors, *matrices = twin.example(n=n, shape=shape, rank=rank)
    system = RowSystem(gram_of(factors), ALPHA)
    products = [own @ twin.khatri_rao(factors) for own in matrices]
    rows = [system.solve(own) for own in products]
    # The beta of the paper belongs to a mean, ours to a sum.
    pull = BETA / n * pulls(*rows, GAMMA)
    return factors, matrices, system, products, rows, pull


# The self-supervised term.


def test_pulls_are_the_structured_product():
    rows, twins = np.random.default_rng(0).normal(size=(2, 9, 4))
    expected = 9 * twin.pair_matrix(9, 3.0) @ twin.normalized(twins)
    pull = pulls(rows, twins, 3.0)
    np.testing.assert_allclose(pull, expected, atol=1e-14)
    total = np.sum(pull * directions(rows)[0]) / 9
    assert alignments(rows, twins, 3.0)[0] == pytest.approx(9 * total, rel=1e-12)
    assert total == pytest.approx(twin.alignment(rows, twins, 3.0), rel=1e-12)
    assert abs(total) <= 3.0 + 2.0
    # It is the same from the other side, and for rows of another length.
    other = np.sum(pulls(twins, 5.0 * rows, 3.0) * directions(twins)[0]) / 9
    assert other == pytest.approx(total, rel=1e-12)


def test_rows_without_a_direction_have_no_part():
    rows, twins = np.random.default_rng(0).normal(size=(2, 6, 3))
    rows[2], twins[4] = 0.0, 0.0
    pull, counted = pulls(rows, twins, 1.0), [0, 1, 3, 5]
    assert not pull[[2, 4]].any()
    np.testing.assert_allclose(pull[counted], pulls(rows[counted], twins[counted], 1.0))
    assert not pulls(rows[:1], twins[:1], 1.0).any()


# Rows.


def test_the_loss_of_rows_is_the_known_number():
    factors, (samples, _), system, (rhs, _), (rows, twins), pull = parts()
    total = (samples**2).sum() + row_losses(rows, system, rhs, pull).sum()
    assert total == pytest.approx(884.6335194673095, rel=1e-13)
    basis = twin.khatri_rao(factors)
    expected = ((samples - rows @ basis.T) ** 2).sum() + ALPHA * (rows**2).sum()
    assert total == pytest.approx(expected + BETA * twin.alignment(rows, twins, GAMMA), rel=1e-12)


def test_a_step_is_the_one_of_the_paper():
    """Where a whole step lowers the loss it is v V3 - (beta/2) h(x) V3."""
    _, _, system, (rhs, _), (rows, _), pull = parts()
    inverse = np.linalg.inv(system.matrix)
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    h = pull / length - rows * np.sum(rows * pull, axis=1, keepdims=True) / length**3
    np.testing.assert_allclose(np.sum(h * rows, axis=1), 0.0, atol=1e-13)
    whole = rhs @ inverse - 0.5 * h @ inverse
    stepped = improved_rows(rows, system, rhs, pull)
    falls = row_losses(whole, system, rhs, pull) < row_losses(rows, system, rhs, pull)
    assert falls.any()
    assert not falls.all()
    np.testing.assert_allclose(stepped[falls], whole[falls], rtol=1e-10)
    assert (np.abs(stepped - whole).max(axis=1) > 1e-6)[~falls].all()


@pytest.mark.parametrize("strength", [1.0, 20.0])
def test_damped_steps_never_raise_the_loss_of_a_row(strength):
    _, _, system, (rhs, _), (rows, _), pull = parts()
    pull = strength * pull
    losses = [row_losses(rows, system, rhs, pull)]
    for _ in range(60):
        rows = improved_rows(rows, system, rhs, pull)
        losses.append(row_losses(rows, system, rhs, pull))
    assert (np.diff(losses, axis=0) <= 0).all()
    assert (losses[-1] < losses[0]).all()
    if strength == 1.0:  # a strong pull takes rows to zero, where there is no slope
        units, lengths = directions(rows)
        slope = 2 * (rows @ system.matrix - rhs)
        slope += (pull - units * np.sum(units * pull, axis=1)[:, None]) / lengths[:, None]
        assert np.abs(slope).max() < 1e-5 * np.abs(rhs).max()


def test_one_component_has_nothing_to_align():
    _, _, system, (rhs, _), (rows, _), pull = parts(rank=1)
    np.testing.assert_allclose(improved_rows(rows, system, rhs, 100.0 * pull), rows, rtol=1e-12)


# Samples.


@pytest.mark.parametrize(
    ("offset", "shape", "place"),
    [(1.0, (2600,), 0), (1000.0, (130, 20), 0), (1.0, (4, 650), 1), (1.0, (13, 8, 25), 2)],
)
def test_samples_about_a_mean_are_multiplied_in_blocks(offset, shape, place):
    """More samples than a block has, more entries, modes in one part and in two, and all means."""
    rng = np.random.default_rng(0)
    matrix = (offset + rng.normal(size=(300, 2600))).astype(np.float32)
    mean = matrix.mean(axis=0)
    factors = [rng.normal(size=(n, 3)).astype(np.float32) for n in shape]
    basis, rows = twin.khatri_rao(factors), rng.normal(size=(300, 3))
    about = matrix.astype(float) - mean
    centre = Centre(300, mean, float((about**2).sum(axis=1).mean()))
    known = np.full(400, np.nan)
    views = [View.of(matrix, centre, np.arange(100, 400), known), View(matrix)]
    assert (views[0].mean is None) == (offset > 1)
    for _ in range(2):  # squares are computed, and then known
        found = project_samples(views, factors)
        products, squares = found[0].products, found[0].squares
        np.testing.assert_allclose(products, about @ basis / centre.unit, atol=4e-5)
        np.testing.assert_allclose(squares, (about**2).sum(axis=1) / centre.spread, rtol=1e-5)
    np.testing.assert_allclose(known[100:], squares * centre.spread, rtol=1e-12)
    assert np.isnan(known[:100]).all()
    # Of either side of the modes, as it is made of a matrix with all of them.
    assert first_inner(factors) == place
    inner, outer = (twin.khatri_rao(own) for own in (factors[place:], factors[:place] or [ONE]))

    def contracted(columns, matrix, letters):
        return np.einsum(letters, rows, matrix.reshape(300, len(outer), len(inner)), columns)

    for own, columns, letters in (
        (contract_samples(views[:1], [rows], factors[:place]), outer, "nr,noi,or->ri"),
        (contract_parts(views[:1], found[:1], [rows]), inner, "nr,noi,ir->ro"),
    ):
        expected = contracted(columns, about, letters) / centre.unit
        np.testing.assert_allclose(own, expected, atol=2e-5 * np.abs(expected).max())
    for own, columns, letters in (
        (contract_samples(views, [rows, rows], factors[:place]), outer, "nr,noi,or->ri"),
        (contract_parts(views, found, [rows, rows]), inner, "nr,noi,ir->ro"),
    ):
        expected = contracted(columns, about / centre.unit + matrix, letters)
        np.testing.assert_allclose(own, expected, atol=2e-5 * np.abs(expected).max())


# Factors.


@pytest.mark.parametrize("shape", SHAPES)
def test_factors_are_exact_minimisers_in_turn(shape):
    factors, matrices, _, _, rows, _ = parts(shape)
    views = [View(own) for own in matrices]
    given = views, project_samples(views, factors), rows, factors, ALPHA
    moved = moved_factors(*given)
    expected, both = list(factors), np.concatenate(matrices).reshape(-1, *shape)
    for k in range(len(shape)):
        others = [np.concatenate(rows), *expected[:k], *expected[k + 1 :]]
        design = np.concatenate([twin.khatri_rao(others), np.sqrt(ALPHA) * np.eye(3)])
        unfolded = np.moveaxis(both, k + 1, 0).reshape(shape[k], -1)
        right = np.concatenate([unfolded.T, np.zeros((3, shape[k]))])
        expected[k] = np.linalg.lstsq(design, right, rcond=None)[0].T
        np.testing.assert_allclose(moved[k], expected[k], rtol=1e-7, atol=1e-9)
    halfway = moved_factors(*given, rate=0.5)[0]
    np.testing.assert_allclose(halfway, 0.5 * (factors[0] + moved[0]), rtol=1e-9)


def test_the_gradient_is_that_of_the_objective():
    """By differences, of the objective of the twin in rows and factors at the updates."""
    factors, matrices, system, products, rows, _ = parts()

    def slope(change, size=1e-6):
        return (change(size) - change(-size)) / (2 * size)

    generator = np.random.default_rng(1)
    direction = generator.normal(size=rows[0].shape)
    pull = BETA / 8 * pulls(*rows, GAMMA)
    units, lengths = directions(rows[0])
    h = (pull - units * np.sum(units * pull, axis=1)[:, None]) / lengths[:, None]
    gradient = 2 * (rows[0] @ system.matrix - products[0]) + h

    def along_rows(size):
        moved = [rows[0] + size * direction, rows[1]]
        return twin.objective(*matrices, moved, factors, ALPHA, BETA, GAMMA)

    assert slope(along_rows) == pytest.approx(np.sum(gradient * direction), rel=1e-6)
    views = [View(own) for own in matrices]
    moved = moved_factors(views, project_samples(views, factors), rows, factors, ALPHA)
    best = [moved[0], *factors[1:]]
    turn = generator.normal(size=best[0].shape)

    def along_factor(size):
        moved = [best[0] + size * turn, *best[1:]]
        return twin.objective(*matrices, rows, moved, ALPHA, BETA, GAMMA)

    assert abs(slope(along_factor)) < 1e-4


def test_a_singular_system_is_solved():
    factor = np.ones((5, 3))
    rows = RowSystem(gram_of([factor]), 0.0).solve(np.ones((2, 5)) @ factor)
    np.testing.assert_allclose(rows @ factor.T, np.ones((2, 5)), rtol=1e-6)
    assert not RowSystem(np.zeros((2, 2)), 0.0).solve(np.zeros((1, 2))).any()


# The metric.


def test_the_metric_whitens_changes_and_orders_features():
    rng = np.random.default_rng(0)
    components = rng.normal(size=(20, 4))
    components /= np.linalg.norm(components, axis=0)
    rows = rng.normal(size=(500, 4)) * [3.0, 1.0, 1.0, 2.0]
    changes = rng.normal(size=(500, 4)) * [3.0, 0.1, 0.5, 0.2]
    gram = components.T @ components
    moments = rows.T @ rows / 500, changes.T @ changes / 500
    metric = augmentation_metric(gram, *moments, 1e-9)
    features, moved = rows @ metric, changes @ metric
    assert np.mean(features**2) == pytest.approx(1.0)
    spread = features.T @ features / 500
    np.testing.assert_allclose(spread, np.diag(np.diag(spread)), atol=1e-9)
    assert (np.diff(np.diag(spread)) < 0).all()
    noise = moved.T @ moved / 500
    np.testing.assert_allclose(noise, noise[0, 0] * np.eye(4), atol=1e-6 * noise[0, 0])
    # A large floor discounts nothing: distances are those of the tensors.
    plain = rows @ augmentation_metric(gram, *moments, 1e12)
    sizes = np.linalg.norm(rows @ components.T, axis=1) / np.linalg.norm(plain, axis=1)
    np.testing.assert_allclose(sizes, sizes[0], rtol=1e-6)
