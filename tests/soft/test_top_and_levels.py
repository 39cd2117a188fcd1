"""Masks and sorts of the largest, sorts by a criterion, levels, several axes, robust squashing."""

import numpy as np
import pytest
from scipy.stats import rankdata

from polyad import soft
from polyad.exceptions import DataWarning, InvalidInputError, InvalidTypeError
from polyad.soft import quantize, soft_rank, soft_sort, soft_sort_with, soft_topk_mask, vjp

X5 = np.array([0.3, 0.1, 0.9, 0.5, 0.45])
POINTS = np.stack([np.arange(5.0), np.arange(5.0) ** 2], axis=1)
EXACT = {"epsilon": 0.1, "tol": 1e-13}


def test_ott_agrees():
    """Numbers of ott-jax 0.6.0 (jax 0.10.2, float64), tools.soft_sort with squashing_fun=identity,
    epsilon=0.05, threshold=1e-13, max_iterations=100000."""
    same = {"epsilon": 0.05, "squash": False, "tol": 1e-13}
    mask = [9.0894900638e-04, 3.0519573661e-07, 0.999999958505, 0.730603729401, 0.268487057892]
    np.testing.assert_allclose(soft_topk_mask(X5, 2, **same), mask, rtol=1e-9)
    top = [0.4825789107508, 0.8936457767203]
    np.testing.assert_allclose(soft_sort(X5, top_k=2, **same), top, rtol=1e-9)
    levels = [0.2848512012171, 0.1911197219153, 0.7325307851813, 0.5597923863422, 0.481705905344]
    np.testing.assert_allclose(quantize(X5, 3, **same), levels, rtol=1e-9)
    first = [0.8469138278887, 1.2524169642607, 2.6544684259306, 3.107663160002, 2.138537621918]
    second = [1.1032965340059, 4.0426752104823, 9.5547605930064, 10.5347856125512, 4.7644820499542]
    by_key = soft_sort_with(POINTS, X5, **same)
    np.testing.assert_allclose(by_key, np.stack([first, second], axis=1), rtol=1e-9)
    best = [[3.2609598653738, 11.1882859107621], [2.0183090668863, 4.0972336489537]]
    np.testing.assert_allclose(soft_sort_with(POINTS, X5, top_k=2, **same), best, rtol=1e-9)


def test_little_entropy_gives_the_hard_operators():
    rows = np.random.default_rng(0).permutation(60).reshape(3, 20) * 1.0
    same = {"epsilon": 1e-5}
    mask = soft_topk_mask(rows, 4, **same)
    np.testing.assert_allclose(mask, rankdata(rows, axis=1) > 16, atol=1e-9)
    ordered = np.sort(rows, axis=1)
    np.testing.assert_allclose(soft_sort(rows, top_k=4, **same), ordered[:, -4:], atol=1e-6)
    np.testing.assert_allclose(soft_sort(rows, top_k=20, **same), ordered, atol=1e-6)
    np.testing.assert_array_equal(soft_topk_mask(rows, 20), 1.0)
    means = ordered.reshape(3, 5, 4).mean(axis=2)
    groups = ((rankdata(rows, axis=1) - 1) // 4).astype(int)
    expected = np.take_along_axis(means, groups, axis=1)
    np.testing.assert_allclose(quantize(rows, 5, **same), expected, atol=1e-6)
    points = np.random.default_rng(1).normal(size=(3, 20, 2))
    order = np.argsort(rows, axis=1)[:, :, None]
    expected = np.take_along_axis(points, order, axis=1)
    np.testing.assert_allclose(soft_sort_with(points, rows, **same), expected, atol=1e-6)


def test_masks_sum_to_k_and_levels_keep_the_mean():
    rows = np.random.default_rng(0).normal(size=(2, 30))
    np.testing.assert_allclose(soft_topk_mask(rows, 7).sum(axis=1), 7.0, rtol=1e-9)
    np.testing.assert_allclose(quantize(rows, 4).mean(axis=1), rows.mean(axis=1), atol=1e-9)


def cases():
    x = np.random.default_rng(0).normal(size=(2, 3, 4))
    points = np.random.default_rng(1).normal(size=(2, 3, 4, 2))
    weights = np.random.default_rng(2).random(12) + 0.1
    return {
        "mask": (soft_topk_mask, {"x": x, "weights": weights}, {"k": 3, "axis": (1, 2)}),
        "largest": (soft_sort, {"x": x, "weights": weights}, {"top_k": 2, "axis": (1, 2)}),
        "by a criterion": (
            soft_sort_with,
            {"x": points, "criterion": x, "weights": np.broadcast_to(weights, (2, 12))},
            {"n_targets": 3, "axis": (1, 2), "squash": "robust"},
        ),
        "best": (soft_sort_with, {"x": x, "criterion": x**3}, {"top_k": 2, "axis": 1}),
        "levels": (quantize, {"x": x, "weights": np.ones((2, 3, 4))}, {"n_levels": 3, "axis": -1}),
        "robust": (soft_rank, {"x": x}, {"squash": "robust", "axis": (0, 2)}),
    }


@pytest.fixture(params=cases())
def case(request):
    function, arrays, options = cases()[request.param]
    if "criterion" in arrays and options["axis"] == (1, 2):
        arrays["weights"] = arrays["weights"].reshape(2, 3, 4)  # the shape of the criterion
    return function, arrays, {**options, **EXACT}


def test_derivatives_in_numpy_torch_and_jax(case):
    torch = pytest.importorskip("torch")
    jax = pytest.importorskip("jax")
    from polyad.soft import jax as soft_jax
    from polyad.soft import torch as soft_torch

    function, arrays, options = case
    tensors = [torch.tensor(part, requires_grad=True) for part in arrays.values()]
    same = getattr(soft_torch, function.__name__)

    def apply(*parts):
        return same(**dict(zip(arrays, parts, strict=True)), **options)

    # Differences against the derivative that all three have.
    assert torch.autograd.gradcheck(apply, tensors, fast_mode=True)
    value, pullback = vjp(function, **arrays, **options)
    np.testing.assert_array_equal(apply(*tensors).detach(), value)
    gradient = np.random.default_rng(3).normal(size=value.shape)
    exact = pullback(gradient)
    apply(*tensors).backward(torch.tensor(gradient))
    with jax.enable_x64(True):
        traced, pull = jax.vjp(
            jax.jit(lambda parts: getattr(soft_jax, function.__name__)(**parts, **options)), arrays
        )
        (found,) = pull(jax.numpy.asarray(gradient))
    np.testing.assert_allclose(traced, value, rtol=1e-12)
    for name, tensor in zip(arrays, tensors, strict=True):
        assert getattr(exact, name).shape == arrays[name].shape
        np.testing.assert_array_equal(tensor.grad, getattr(exact, name))
        np.testing.assert_allclose(found[name], getattr(exact, name), rtol=1e-9, atol=1e-12)


def test_several_axes_are_one_row():
    x = np.random.default_rng(0).normal(size=(2, 3, 4))
    flat = x.transpose(1, 0, 2).reshape(3, 8)
    ranks = soft_rank(x, axis=(2, 0), n_targets=3)
    np.testing.assert_array_equal(
        ranks.transpose(1, 0, 2).reshape(3, 8), soft_rank(flat, n_targets=3)
    )
    # What a row becomes lies in place of its first axis.
    np.testing.assert_array_equal(soft_sort(x, axis=(0, -1)), soft_sort(flat).T)
    np.testing.assert_array_equal(soft.soft_quantile(x, axis=(0, 2)), soft.soft_quantile(flat))
    of_one = np.broadcast_to(np.arange(5.0)[:, None], (5, 3))
    np.testing.assert_array_equal(
        soft.quantile_normalize(x, of_one, axis=(0, 2)),
        soft.quantile_normalize(x, np.arange(5.0), axis=(0, 2)),
    )
    with pytest.raises(InvalidInputError, match="names an axis twice"):
        soft_rank(x, axis=(1, -2))
    with pytest.raises(InvalidTypeError, match=r"axis=\(\) must be"):
        soft_rank(x, axis=())


def test_outliers_do_not_move_the_ranks_of_others():
    robust = {"squash": "robust"}
    found = soft_rank([0, 1, 2, 3, 1e6], **robust)
    np.testing.assert_allclose(found, [1, 2, 3, 4, 5], atol=0.1)
    assert np.abs(soft_rank([0, 1, 2, 3, 1e6]) - [1, 2, 3, 4, 5]).max() > 1
    np.testing.assert_allclose(soft_rank([0, 1, 2, 3, 1e300], **robust), found, atol=1e-3)
    # Unit, origin and sign do not matter; more than half of the values may be the same.
    x = np.random.default_rng(0).standard_cauchy((2, 40))
    np.testing.assert_allclose(soft_rank(1e9 * x + 7, **robust), soft_rank(x, **robust), rtol=1e-6)
    np.testing.assert_allclose(soft_rank(-x, **robust), 41 - soft_rank(x, **robust), rtol=1e-9)
    counts = soft_rank([0, 0, 0, 0, 0, 1, 2, 3], epsilon=1e-3, **robust)
    np.testing.assert_allclose(counts, [3, 3, 3, 3, 3, 6, 7, 8], atol=0.05)
    np.testing.assert_array_equal(soft_rank(np.ones(5), **robust), 3.0)
    # A value without weight moves nothing; ranks go up to five instead of four.
    same = {"n_targets": 4, **robust}
    found = soft_rank([0, 1, 2, 3, 1e300], weights=[1, 1, 1, 1, 0], **same)[:4]
    expected = soft_rank([0, 1, 2, 3], **same)
    np.testing.assert_allclose((found - 0.5) / 5, (expected - 0.5) / 4, rtol=1e-9)


def test_rows_of_one_value_are_told():
    with pytest.warns(DataWarning, match=r"shape \(3, 1\).*axis 1 has a single value") as caught:
        soft_topk_mask(np.ones((3, 1)))
    assert caught[0].filename == __file__
    with pytest.warns(DataWarning, match=r"axis \(0, 1\) has a single value"):
        soft_rank(np.ones((1, 1, 3)), axis=(0, 1))


def test_torch_and_jax_tell_rows_of_one_value_and_numpy_refuses_gradients():
    torch = pytest.importorskip("torch")
    jax = pytest.importorskip("jax")
    from polyad.soft import jax as soft_jax
    from polyad.soft import torch as soft_torch

    x = torch.rand(4, 1, requires_grad=True)
    with pytest.warns(DataWarning, match=r"shape \(4, 1\)"):
        soft_torch.soft_rank(x)
    with pytest.warns(DataWarning, match=r"shape \(4, 1\)") as caught:
        jax.jit(soft_jax.soft_rank)(np.ones((4, 1)))
    assert len(caught) == 1
    with pytest.raises(InvalidTypeError, match=r"x is a tensor that requires a gradient.*detach"):
        soft_rank(x, axis=0)
    with pytest.raises(InvalidTypeError, match=r"weights is a tensor that requires a gradient"):
        soft_rank(np.ones(4), weights=x[:, 0])
    np.testing.assert_array_equal(
        soft_rank(x.detach(), axis=0), soft_torch.soft_rank(x, axis=0).detach()
    )


@pytest.mark.parametrize(
    ("function", "arguments", "text"),
    [
        (soft_topk_mask, {"x": X5, "k": 6}, "k=6 must be a whole number from 1 to 5"),
        (soft_topk_mask, {"x": X5, "k": None}, "k=None must be"),
        (soft_topk_mask, {"x": X5, "k": 0}, "k=0 must be"),
        (soft_sort, {"x": X5, "top_k": 2.0}, "top_k=2.0 must be"),
        (soft_sort, {"x": X5, "top_k": 2, "n_targets": 3}, "leave n_targets"),
        (soft_sort_with, {"x": POINTS, "criterion": X5[1:]}, r"x has the shape \(5, 2\) and"),
        (soft_sort_with, {"x": POINTS, "criterion": [np.nan] * 5}, r"criterion is nan at \(0,\)"),
        (soft_sort_with, {"x": POINTS - np.inf, "criterion": X5}, "x is -inf at"),
        (quantize, {"x": X5, "n_levels": 0}, "n_levels=0 must be"),
    ],
)
def test_bad_input(function, arguments, text):
    with pytest.raises(InvalidInputError, match=text):
        function(**arguments)
