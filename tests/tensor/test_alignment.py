"""Canonical form and matching: blind to order, scale and paired signs, and to nothing else."""

import array_api_strict
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyad.exceptions import InvalidInputError, InvalidTypeError
from polyad.tensor import (
    KruskalTensor,
    canonicalize_components,
    factor_match_score,
    match_components,
)
from polyad.tensor.alignment import normalize_components, weight_order


def make(shape=(5, 4, 3), n_components=3, seed=0):
    generator = np.random.default_rng(seed)
    factors = [generator.standard_normal((n, n_components)) for n in shape]
    # Weights well apart, so that rounding cannot change their order.
    weights = 2.0 ** generator.permutation(4 * n_components)[:n_components]
    return KruskalTensor(
        weights * generator.choice([-1.0, 1.0], n_components), factors
    ).normalized()


def disguised(tensor, seed):
    """Return the same tensor with other order, scales and paired signs."""
    generator = np.random.default_rng(seed)
    order = generator.permutation(tensor.n_components)
    shape = (tensor.ndim + 1, tensor.n_components)
    scales = 10.0 ** generator.uniform(-5, 5, shape) * generator.choice([-1.0, 1.0], shape)
    scales[-1] = 1.0 / np.prod(scales[:-1], axis=0)
    factors = [factor * scale for factor, scale in zip(tensor.factors, scales, strict=False)]
    return KruskalTensor(tensor.weights * scales[-1], factors).take(order)


def assert_same(a, b, tolerance=1e-9):
    np.testing.assert_allclose(a.weights, b.weights, rtol=tolerance)
    for mine, theirs in zip(a.factors, b.factors, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=tolerance)


disguises = {"seed": st.integers(0, 1000), "n_components": st.integers(1, 4)}
shapes = st.lists(st.integers(2, 5), min_size=2, max_size=4).map(tuple)


# Canonical form.


@settings(max_examples=25)
@given(shape=shapes, **disguises)
def test_the_canonical_form_is_unique(shape, seed, n_components):
    tensor = make(shape, n_components, seed)
    canonical = canonicalize_components(tensor)
    assert_same(canonicalize_components(disguised(tensor, seed)), canonical)
    assert_same(canonicalize_components(canonical), canonical, 1e-14)
    np.testing.assert_allclose(canonical.to_dense(), tensor.to_dense(), atol=1e-7)
    assert (np.diff(canonical.weights) <= 0).all()
    assert (canonical.weights >= 0).all()
    for factor in canonical.factors[1:]:
        leading = np.take_along_axis(factor, np.abs(factor).argmax(axis=0)[None], axis=0)
        assert (leading > 0).all()
        np.testing.assert_allclose(np.linalg.norm(factor, axis=0), 1.0)


def test_the_first_mode_takes_the_sign_that_remains():
    tensor = KruskalTensor(np.array([-2.0]), [np.ones((4, 1)), -np.ones((4, 1)), np.ones((4, 1))])
    canonical = canonicalize_components(tensor)
    assert (canonical.factors[0] > 0).all()
    assert (canonical.factors[1] > 0).all()
    assert canonical.weights == pytest.approx([16.0])
    flipped = KruskalTensor(np.array([2.0]), tensor.factors)
    assert (canonicalize_components(flipped).factors[0] < 0).all()


@pytest.mark.parametrize("column", [[1.0, -1.0], [-1.0, 1.0], [0.5, -2.0, 2.0], [-3.0, 0.0, 3.0]])
def test_of_entries_of_equal_size_the_first_decides(column):
    """Otherwise a column and its negative would both be canonical."""
    column = np.array(column)[:, None]
    forms = [
        canonicalize_components(KruskalTensor(np.ones(1), [np.ones((2, 1)) * s, column * s]))
        for s in (1.0, -1.0)
    ]
    assert_same(*forms)
    leading = forms[0].factors[1][:, 0]
    assert leading[np.abs(leading).argmax()] > 0


def test_a_zero_component_comes_last_and_stays_finite():
    tensor = make((4, 3, 2), 3)
    factors = [factor.copy() for factor in tensor.factors]
    factors[1][:, 0] = 0.0
    canonical = canonicalize_components(KruskalTensor(tensor.weights, factors))
    assert canonical.weights[-1] == 0.0
    assert all(np.isfinite(factor).all() for factor in canonical.factors)
    assert_same(
        canonical.take([0, 1]),
        canonicalize_components(KruskalTensor(tensor.weights, factors).take([1, 2])),
    )


def test_nothing_but_zeros():
    zeros = KruskalTensor(np.ones(2), [np.zeros((3, 2))] * 3)
    canonical = canonicalize_components(zeros)
    assert (canonical.weights == 0).all()
    assert (canonical.to_dense() == 0).all()


def test_equal_weights_keep_their_order():
    tensor = KruskalTensor(np.array([1.0, 2.0, 1.0, 2.0]), [np.eye(4)] * 3)
    assert weight_order(tensor) == [1, 3, 0, 2]
    np.testing.assert_array_equal(
        canonicalize_components(tensor).factors[0], np.eye(4)[:, [1, 3, 0, 2]]
    )


@pytest.mark.parametrize("fixed", [[0], [1], [0, 2], [2, 1]])
def test_fixed_modes_are_not_touched(fixed):
    tensor = make()
    scaled = KruskalTensor(tensor.weights, [3.0 * factor for factor in tensor.factors])
    normalized = normalize_components(scaled, fixed)
    for mode in range(3):
        if mode in fixed:
            np.testing.assert_array_equal(normalized.factors[mode], scaled.factors[mode])
        else:
            np.testing.assert_allclose(np.linalg.norm(normalized.factors[mode], axis=0), 1.0)
    assert (normalized.weights >= 0).all()
    np.testing.assert_allclose(normalized.to_dense(), scaled.to_dense(), atol=1e-8)


@pytest.mark.parametrize("namespace", [torch, array_api_strict])
def test_the_canonical_form_in_other_namespaces(namespace):
    tensor = make()
    foreign = KruskalTensor(
        namespace.asarray(tensor.weights), [namespace.asarray(f) for f in tensor.factors]
    )
    canonical = canonicalize_components(foreign)
    assert type(canonical.factors[0]) is type(foreign.factors[0])
    plain = KruskalTensor(
        np.asarray(canonical.weights), [np.asarray(factor) for factor in canonical.factors]
    )
    assert_same(plain, canonicalize_components(tensor), 1e-12)
    assert factor_match_score(foreign, tensor) == pytest.approx(1.0)


# Matching.


@settings(max_examples=25)
@given(shape=shapes, weights=st.booleans(), **disguises)
def test_a_disguise_is_seen_through(shape, weights, seed, n_components):
    tensor = make(shape, n_components, seed)
    other = disguised(tensor, seed + 1)
    assert factor_match_score(tensor, other, weights=weights) == pytest.approx(1.0)
    matched = other.take(match_components(tensor, other).permutation)
    for r in range(n_components):
        np.testing.assert_allclose(
            matched.take([r]).to_dense(), tensor.take([r]).to_dense(), rtol=1e-9, atol=1e-12
        )


def test_the_matching_tells_which_is_which():
    tensor = make(n_components=4)
    matching = match_components(tensor, tensor.take([2, 0, 3, 1]))
    assert matching.permutation.tolist() == [1, 3, 0, 2]
    assert matching.components.tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(matching.similarities, 1.0)
    assert matching.score == pytest.approx(1.0)


@pytest.mark.parametrize("where", ["weights", 0, 1, 2])
def test_a_sign_that_does_not_cancel_is_seen(where):
    tensor = make(n_components=1)
    if where == "weights":
        other = KruskalTensor(-tensor.weights, tensor.factors)
    else:
        factors = [-f if mode == where else f for mode, f in enumerate(tensor.factors)]
        other = KruskalTensor(tensor.weights, factors)
    assert factor_match_score(tensor, other) == pytest.approx(-1.0)


def test_the_similarity_is_the_cosine_of_the_rank_one_tensors():
    one, two = make(n_components=1, seed=1), make(n_components=1, seed=2)
    a, b = one.to_dense().ravel(), two.to_dense().ravel()
    cosine = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
    assert factor_match_score(one, two) == pytest.approx(cosine)


def test_unrelated_decompositions_match_little():
    scores = [
        factor_match_score(make((60, 50, 40), seed=k), make((60, 50, 40), seed=k + 100))
        for k in range(5)
    ]
    assert max(map(abs, scores)) < 0.05


def test_the_matching_is_optimal_and_not_greedy():
    """The best pair by itself would leave the others a worse sum."""

    def column(angle):
        return [np.cos(angle), np.sin(angle)]

    one = KruskalTensor(np.ones(2), [np.array([column(0.0), column(0.5)]).T, np.ones((1, 2))])
    two = KruskalTensor(np.ones(2), [np.array([column(0.4), column(1.5)]).T, np.ones((1, 2))])
    cosines = one.factors[0].T @ two.factors[0]
    best = max(cosines[0, 0] + cosines[1, 1], cosines[0, 1] + cosines[1, 0]) / 2
    matching = match_components(one, two)
    assert matching.score == pytest.approx(best)
    assert matching.permutation.tolist() == [0, 1]


@pytest.mark.parametrize("swap", [False, True])
def test_of_different_ranks_only_the_smaller_counts(swap):
    tensor = make(n_components=4)
    fewer = tensor.take([3, 1])
    pair = (fewer, tensor) if swap else (tensor, fewer)
    matching = match_components(*pair)
    assert matching.score == pytest.approx(1.0)
    assert matching.components.tolist() == ([0, 1] if swap else [1, 3])
    assert matching.permutation.tolist() == ([3, 1] if swap else [1, 0])


def test_weights_can_be_compared_too():
    tensor = make(n_components=1)
    double = KruskalTensor(2 * tensor.weights, tensor.factors)
    assert factor_match_score(tensor, double) == pytest.approx(1.0)
    assert factor_match_score(tensor, double, weights=True) == pytest.approx(0.5)
    assert factor_match_score(double, tensor, weights=True) == pytest.approx(0.5)


@pytest.mark.parametrize("skip", [(0,), [-3], {0}])
def test_a_skipped_mode_may_have_another_size(skip):
    tensor = make()
    samples = np.random.default_rng(9).standard_normal((17, 3))
    other = KruskalTensor(tensor.weights, [samples, *tensor.factors[1:]])
    assert factor_match_score(tensor, other, skip_modes=skip) == pytest.approx(1.0)
    with pytest.raises(InvalidInputError, match="skip_modes"):
        factor_match_score(tensor, other)


def test_a_skipped_mode_may_take_the_sign():
    """The same patterns with the sign of the samples turned are the same patterns."""
    tensor = make()
    turned = KruskalTensor(
        tensor.weights, [-tensor.factors[0], -tensor.factors[1], tensor.factors[2]]
    )
    assert factor_match_score(tensor, turned) == pytest.approx(1.0)
    assert factor_match_score(tensor, turned, skip_modes=[0]) == pytest.approx(1.0)


@pytest.mark.parametrize("skip", [(3,), (-4,), (0, 7)])
def test_a_mode_that_does_not_exist_is_named(skip):
    with pytest.raises(InvalidInputError, match=r"outside 0\.\.2"):
        factor_match_score(make(), make(), skip_modes=skip)


@pytest.mark.parametrize(
    ("shape", "options"),
    [((5, 4, 2), {}), ((5, 4), {}), ((5, 4, 3, 2), {}), ((5, 4, 3), {"skip_modes": (0, 1, 2)})],
)
def test_tensors_that_cannot_be_compared_are_refused(shape, options):
    with pytest.raises(InvalidInputError, match="cannot be matched"):
        factor_match_score(make(), make(shape), **options)


def test_a_zero_component_matches_nothing():
    tensor = make(n_components=2)
    factors = [factor * np.array([1.0, 0.0]) for factor in tensor.factors]
    other = KruskalTensor(tensor.weights, factors)
    matching = match_components(tensor, other, weights=True)
    np.testing.assert_allclose(matching.similarities, [1.0, 0.0], atol=1e-12)


def test_float32_and_torch_can_be_compared_with_float64():
    tensor = make()
    single = KruskalTensor(
        tensor.weights.astype(np.float32), [f.astype(np.float32) for f in tensor.factors]
    )
    torched = KruskalTensor(
        torch.from_numpy(tensor.weights), [torch.from_numpy(f) for f in tensor.factors]
    )
    assert factor_match_score(tensor, single) == pytest.approx(1.0, abs=1e-6)
    assert factor_match_score(torched, single) == pytest.approx(1.0, abs=1e-6)


def test_weights_are_compared_or_not():
    tensor = KruskalTensor(np.ones(2), [np.eye(2), np.eye(2)])
    with pytest.raises(InvalidTypeError, match="give True or False"):
        factor_match_score(tensor, tensor, weights=np.array([1.0, -1.0]))
