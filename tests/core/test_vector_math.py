"""The vectorizable exponential and logarithm against the long double of NumPy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyad.core.compiled import kernel
from polyad.core.vector_math import fast_exp, fast_log, fast_log_of_normal

TYPES = [np.float64, np.float32]


@kernel
def exp_into(x, out):
    for i in range(x.size):
        out[i] = fast_exp(x[i])


@kernel
def log_into(x, out):
    for i in range(x.size):
        out[i] = fast_log(x[i])


@kernel
def log_of_normal_into(x, out):
    for i in range(x.size):
        out[i] = fast_log_of_normal(x[i])


@kernel
def power_into(x, exponent, offset, out):
    """As in kernels, which raise scaled numbers to a power without overflow on the way."""
    for i in range(x.size):
        out[i] = fast_exp(offset[i] + exponent * fast_log(x[i]))


def ulps(found, true, dtype):
    return float(np.max(np.abs(found - true) / np.spacing(np.abs(true).astype(dtype))))


def applied(function, x):
    out = np.empty_like(x)
    function(x, out)
    return out


@pytest.mark.parametrize("dtype", TYPES)
def test_exp_over_the_whole_range(dtype):
    limits = np.finfo(dtype)
    low, high = np.log(np.float64(limits.tiny)), np.log(np.float64(limits.max))
    generator = np.random.default_rng(0)
    x = generator.uniform(low, high, 50_000)
    near = np.concatenate([generator.normal(0, 10.0**-k, 2000) for k in range(1, 9)])
    x = np.concatenate([x, near, np.arange(-80, 80) * np.log(2) / 2]).astype(dtype)
    true = np.exp(x.astype(np.longdouble))
    inside = (true >= limits.tiny) & (true <= limits.max)
    found = applied(exp_into, x)
    assert ulps(found[inside], true[inside], dtype) < 1.2
    assert np.all(found[true < limits.tiny] == 0)
    assert np.all(np.isinf(found[true > limits.max]))


@pytest.mark.parametrize("dtype", TYPES)
def test_log_over_the_whole_range_and_subnormal_numbers(dtype):
    limits = np.finfo(dtype)
    generator = np.random.default_rng(0)
    exponents = generator.uniform(np.log2(limits.tiny), np.log2(limits.max) - 1e-6, 50_000)
    x = np.exp2(exponents.astype(np.longdouble)).astype(dtype)
    subnormal = (np.arange(1, 3000) * limits.smallest_subnormal).astype(dtype)
    near = (1 + np.concatenate([generator.normal(0, 10.0**-k, 2000) for k in range(1, 7)])).astype(
        dtype
    )
    x = np.concatenate([x, subnormal, near[near > 0]])
    true = np.log(x.astype(np.longdouble))
    found = applied(log_into, x)
    kept = true != 0
    assert ulps(found[kept], true[kept], dtype) < 1.2
    assert np.all(found[~kept] == 0)
    normal = np.append(x[x >= limits.tiny], [np.inf, np.nan]).astype(dtype)
    np.testing.assert_array_equal(applied(log_of_normal_into, normal), applied(log_into, normal))


@pytest.mark.parametrize("dtype", TYPES)
def test_special_numbers(dtype):
    x = np.array([0, -0.0, np.inf, -np.inf, np.nan, -1], dtype)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(applied(log_into, x), np.log(x))
        np.testing.assert_array_equal(applied(exp_into, x)[:5], np.exp(x)[:5])
    edges = np.array([-1e300, -750, -708.5, 709.7827, 709.79, 1e300])
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(
            applied(exp_into, edges)[[0, 1, 3, 4, 5]], [0, 0, np.exp(709.7827), np.inf, np.inf]
        )
    edges = np.array([-1e30, -104, -87.4, 88.7, 88.73, 1e30], np.float32)
    found = applied(exp_into, edges)
    np.testing.assert_allclose(found, [0, 0, 0, np.exp(np.float32(88.7)), np.inf, np.inf], 1e-6)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("size", [1, 7, 16, 33])
def test_power(dtype, size):
    generator = np.random.default_rng(size)
    x, offset = generator.gamma(1, size=size).astype(dtype), generator.normal(size=size)
    out = np.empty(size, dtype)
    power_into(x, dtype(0.3), offset.astype(dtype), out)
    rtol = 20 * np.finfo(dtype).eps
    np.testing.assert_allclose(out, np.exp(offset.astype(dtype)) * x ** dtype(0.3), rtol)
    assert out.dtype == dtype


@given(st.floats(-700, 700))
def test_log_inverts_exp(x):
    there = applied(exp_into, np.array([x]))
    assert applied(log_into, there)[0] == pytest.approx(x, rel=1e-15, abs=3e-16)


def test_outside_kernels_they_are_those_of_numpy():
    assert fast_exp(1.0) == np.exp(1.0)
    assert fast_log(2.0) == fast_log_of_normal(2.0) == np.log(2.0)
