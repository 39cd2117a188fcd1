"""The torch front: gradcheck of every argument, types, devices, modules."""

import numpy as np
import pytest

from polyad import soft
from polyad.exceptions import InvalidInputError, InvalidTypeError

torch = pytest.importorskip("torch")

from polyad.soft import torch as soft_torch  # noqa: E402

EXACT = {"epsilon": 0.1, "tol": 1e-13}


def double(*shape, seed=0, low=0.0):
    generator = np.random.default_rng(seed)
    return torch.tensor(generator.random(shape) + low, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("settings", [{}, {"squash": False}, {"n_iter": 3}], ids=str)
@pytest.mark.parametrize("name", ["soft_rank", "soft_sort"])
def test_gradcheck_of_ranks_and_sorts(name, settings):
    x, weights, targets = double(2, 5), double(5, seed=1, low=0.1), double(2, 4, seed=2, low=0.1)

    def function(x, weights, targets):
        return getattr(soft_torch, name)(
            x, weights=weights, target_weights=targets, **EXACT, **settings
        )

    assert torch.autograd.gradcheck(function, (x, weights, targets))


@pytest.mark.parametrize("settings", [{}, {"squash": False}, {"n_iter": 3}], ids=str)
def test_gradcheck_of_quantile_normalization(settings):
    x, weights, targets = double(2, 5), double(2, 5, seed=1, low=0.1), double(4, seed=2, low=0.1)
    quantiles = torch.tensor([0.0, 1.0, 2.5, 7.0], dtype=torch.float64, requires_grad=True)

    def function(x, quantiles, weights, targets):
        return soft_torch.quantile_normalize(
            x, quantiles, weights=weights, target_weights=targets, **EXACT, **settings
        )

    assert torch.autograd.gradcheck(function, (x, quantiles, weights, targets))


def test_gradcheck_of_quantiles():
    levels = torch.tensor([0.2, 0.7], dtype=torch.float64, requires_grad=True)

    def function(x, levels, weights):
        return soft_torch.soft_quantile(x, levels, weights=weights, **EXACT)

    assert torch.autograd.gradcheck(function, (double(2, 5), levels, double(5, seed=1, low=0.1)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_types_are_kept(dtype):
    x = double(3, 6).detach().to(dtype).requires_grad_()
    value = soft_torch.soft_rank(x)
    value.sum().backward()
    assert value.dtype == x.grad.dtype == dtype
    expected = soft.soft_rank(x.detach().float().numpy())
    np.testing.assert_allclose(value.detach().float(), expected, rtol=1e-2)


def test_integers_give_the_default_type():
    assert soft_torch.soft_sort(torch.tensor([3, 1, 2])).dtype == torch.get_default_dtype()


def test_results_stay_on_the_device(monkeypatch):
    """A stand-in for a device: what was asked of the tensors that leave the operator."""
    places = []
    to = torch.Tensor.to
    monkeypatch.setattr(
        torch.Tensor, "to", lambda self, *args, **kw: places.append(args) or to(self, *args, **kw)
    )
    x = double(4)
    soft_torch.soft_rank(x).sum().backward()
    assert places == [(x.device, torch.float64)] * 2


def test_a_layer_learns_quantiles():
    class Normalize(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gaps = torch.nn.Parameter(torch.zeros(8, dtype=torch.float64))

        def forward(self, x):
            return soft_torch.quantile_normalize(x, torch.cumsum(torch.exp(self.gaps), 0))

    x = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 32)))
    wanted = torch.exp(x)
    layer = torch.nn.Sequential(Normalize())
    losses = []
    # By hand: importing the optimizers of torch takes longer than everything else here.
    for _ in range(40):
        layer.zero_grad()
        loss = ((layer(x) - wanted) ** 2).mean()
        loss.backward()
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.sub_(0.05 * parameter.grad)
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]


def test_no_gradient_is_made_where_none_is_needed():
    x, weights = double(5), torch.ones(5, dtype=torch.float64)
    value = soft_torch.soft_rank(x, weights=weights)
    value.sum().backward()
    assert x.grad is not None
    assert weights.grad is None
    assert not soft_torch.soft_rank(x.detach()).requires_grad


def test_a_second_derivative_is_refused():
    def curved(x):
        return (soft_torch.soft_rank(x, epsilon=0.1) ** 2).sum()

    x = double(5)
    for function in (curved, lambda x: soft_torch.soft_rank(x, epsilon=0.1)[0]):
        (gradient,) = torch.autograd.grad(function(x), x, create_graph=True)
        with pytest.raises(NotImplementedError, match="differentiated once"):
            gradient.sum().backward()
        # Zeros, if the way back to x were lost.
        with pytest.raises(NotImplementedError, match="differentiated once"):
            torch.autograd.functional.hessian(function, x.detach())


def test_values_that_change_after_the_forward_pass_change_no_gradient():
    x, G = double(3, 7), torch.randn(3, 7, dtype=torch.float64)
    value = soft_torch.soft_sort(x, epsilon=0.1)
    (expected,) = torch.autograd.grad(value, x, G, retain_graph=True)
    with torch.no_grad():
        x.add_(x**2)
    (found,) = torch.autograd.grad(value, x, G)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_levels_that_are_no_tensor_are_as_precise_as_they_are():
    x = double(30).detach()
    expected = soft.soft_quantile(x.numpy(), 0.3, epsilon=0.1)
    assert soft_torch.soft_quantile(x, 0.3, epsilon=0.1).item() == expected
    with pytest.raises(InvalidTypeError, match="levels='median'"):
        soft_torch.soft_quantile(x, "median")


def test_bad_input_is_refused():
    with pytest.raises(InvalidTypeError, match="takes tensors"):
        soft_torch.soft_rank([1.0, 2.0])
    with pytest.raises(InvalidInputError, match="nan"):
        soft_torch.soft_rank(torch.tensor([1.0, float("nan")]))


@pytest.mark.parametrize("epsilon", [1e-1, 1e-3, 1e-5])
def test_float32_gradients_are_those_of_float64(epsilon):
    """OTT-JAX's implicit gradient raises or is not finite here in float32."""
    found = []
    start = np.random.default_rng(0).normal(size=(3, 40)).astype(np.float32)
    for dtype in (torch.float32, torch.float64):
        x = torch.tensor(start, dtype=dtype, requires_grad=True)
        value = soft_torch.quantile_normalize(x, torch.arange(8, dtype=dtype), epsilon=epsilon)
        (value**2).sum().backward()
        found.append((value.detach().double(), x.grad.double()))
    for single, exact in zip(*found, strict=True):
        assert torch.isfinite(single).all()
        np.testing.assert_allclose(single, exact, rtol=1e-5, atol=1e-5 * float(exact.abs().max()))
