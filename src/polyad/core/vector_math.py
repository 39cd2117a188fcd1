"""Exponential and logarithm for kernels, written so that loops over them are vectorised.

Numba without Intel's library calls libm for each number, about 9 ns. These are polynomials without
branches or table look-ups: a loop over an array runs on vector registers. Numbers are taken
apart through their bits, and integers become floats by adding them to the bits of a large number,
because not every processor has vector instructions for the conversion.

The error of ``exp`` and ``log`` is below 1.1 ulp in float64 and below 2 ulp in float32, over the
whole range. ``exp`` gives zero where the result would be below the smallest normal number;
``log`` knows subnormal numbers. Infinities, zero, negative numbers and NaN are treated as in libm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import types
from numba.extending import intrinsic, overload

from polyad.core.compiled import INLINED

if TYPE_CHECKING:
    from collections.abc import Callable


# log(2) in two parts, the first with enough zero bits for exact products with exponents.
_LN2_HIGH = 6.93147180369123816490e-01
_LN2_LOW = 1.90821492927058770002e-10
_LOG2_E = 1.4426950408889634
# Adding 1.5 * 2**52 leaves the nearest integer of a number in the lowest bits of the sum.
_ROUNDER = 6755399441055744.0
_ROUNDER_BITS = np.uint64(0x4338000000000000)
_EXP_LEAST, _EXP_MOST = -708.3964185322641, 709.782712893384
_TINY = 2.2250738585072014e-308
_TWO_54 = 18014398509481984.0
# Bits of sqrt(1/2): mantissas are taken between it and sqrt(2). The other is 1.0 less those.
_HALF_ROOT = np.uint64(0x3FE6A09E667F3BCD)
_TO_ONE = np.uint64(0x3FF0000000000000 - 0x3FE6A09E667F3BCD)
_MANTISSA = np.uint64(0x000FFFFFFFFFFFFF)
_SHIFT = np.uint64(52)

_F = np.float32
_LN2_HIGH_32, _LN2_LOW_32, _LOG2_E_32 = _F(0.693359375), _F(-2.12194440e-4), _F(1.44269504)
_ROUNDER_32 = _F(12582912.0)
_EXP_LEAST_32, _EXP_MOST_32 = _F(-87.33654), _F(88.72283)
_TINY_32, _TWO_25 = _F(1.17549435e-38), _F(33554432.0)
_HALF_ROOT_32, _TO_ONE_32 = np.uint32(0x3F3504F3), np.uint32(0x3F800000 - 0x3F3504F3)
_MANTISSA_32, _SHIFT_32 = np.uint32(0x007FFFFF), np.uint32(23)
_ROUNDER_BITS_32 = np.uint32(0x4B400000)
_BIAS, _BIAS_32 = 1023.0, _F(127.0)
_ZERO_32, _HALF_32, _ONE_32, _25_32 = _F(0.0), _F(0.5), _F(1.0), _F(25.0)
_INF_32, _NAN_32 = _F(np.inf), _F(np.nan)

# Interpolation at Chebyshev nodes. exp(r) = 1 + r + r**2 E(r) for |r| <= log(2) / 2, highest first.
_E0, _E1, _E2 = 2.5100472505694996e-08, 2.7620201591031547e-07, 2.7557268276905696e-06
_E3, _E4, _E5 = 2.4801521057868204e-05, 0.00019841269863171557, 0.0013888888917367081
_E6, _E7, _E8 = 0.008333333333330039, 0.041666666666623824, 0.16666666666666669
_E9 = 0.5000000000000001
_E0_32, _E1_32, _E2_32 = _F(0.0013926250831), _F(0.0083632328837), _F(0.041666554213)
_E3_32, _E4_32 = _F(0.16666576666), _F(0.5)
# log((1 + s) / (1 - s)) = 2 s + s**3 L(s**2) for (1 + s) / (1 - s) between sqrt(1/2) and sqrt(2).
_L0, _L1, _L2 = 0.14617807153417325, 0.15331611722055008, 0.1818289243253687
_L3, _L4, _L5 = 0.22222211089379496, 0.28571428626253836, 0.3999999999989889
_L6 = 0.666666666666667
# log(1 + f) = f - f**2 / 2 + f**3 L(f), without a division, in the same range.
_L0_32, _L1_32, _L2_32 = _F(-0.0790274377), _F(0.1262231985), _F(-0.1299818376)
_L3_32, _L4_32, _L5_32 = _F(0.1421449592), _F(-0.1664128146), _F(0.2000104509)
_L6_32, _L7_32 = _F(-0.2500030642), _F(0.3333333073)


_SAME_BITS = {
    types.float64: types.uint64,
    types.uint64: types.float64,
    types.float32: types.uint32,
    types.uint32: types.float32,
}


def _same_bits(_context: Any, number: Any) -> Any:
    """Read the bits of a float as an integer, or those of an integer as a float.

    As ``view`` does, which Numba compiles anew for each type and each place.
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.bitcast(values[0], context.get_value_type(signature.return_type))

    return _SAME_BITS[number](number), generate


_reread: Any = intrinsic(_same_bits)


def _exp64(x: Any) -> Any:
    """Return exp(x) of a float64."""
    inside = min(max(x, _EXP_LEAST), _EXP_MOST)
    rounded = inside * _LOG2_E + _ROUNDER
    power = rounded - _ROUNDER
    r = inside - power * _LN2_HIGH
    r = r - power * _LN2_LOW
    p = ((_E0 * r + _E1) * r + _E2) * r + _E3
    p = (((p * r + _E4) * r + _E5) * r + _E6) * r + _E7
    p = (p * r + _E8) * r + _E9
    p = 1.0 + (r + r * r * p)
    # Adding the power of two to the exponent; the upper bits of the rounder are shifted out.
    bits = _reread(p) + (_reread(rounded) << _SHIFT)
    y: Any = _reread(bits)
    y = y if x >= _EXP_LEAST else 0.0
    y = y if x <= _EXP_MOST else np.inf
    return y if x == x else np.nan  # noqa: PLR0124  (not NaN)


def _log64(x: Any) -> Any:
    """Return log(x) of a float64."""
    subnormal = x < _TINY
    scaled = x * _TWO_54 if subnormal else x
    bits = _reread(scaled) + _TO_ONE
    mantissa = _reread((bits & _MANTISSA) + _HALF_ROOT)
    exponent = _reread((bits >> _SHIFT) + _ROUNDER_BITS) - (_ROUNDER + _BIAS)
    exponent = exponent - 54.0 if subnormal else exponent
    f = mantissa - 1.0
    s = f / (2.0 + f)
    z = s * s
    p = ((_L0 * z + _L1) * z + _L2) * z + _L3
    p = ((p * z + _L4) * z + _L5) * z + _L6
    y = exponent * _LN2_HIGH + (f - (s * (f - z * p) - exponent * _LN2_LOW))
    y = y if x < np.inf else x
    return y if x > 0.0 else (-np.inf if x == 0.0 else np.nan)


def _exp32(x: Any) -> Any:
    """Return exp(x) of a float32."""
    inside = min(max(x, _EXP_LEAST_32), _EXP_MOST_32)
    rounded = inside * _LOG2_E_32 + _ROUNDER_32
    power = rounded - _ROUNDER_32
    r = inside - power * _LN2_HIGH_32
    r = r - power * _LN2_LOW_32
    p = ((_E0_32 * r + _E1_32) * r + _E2_32) * r + _E3_32
    p = _ONE_32 + (r + r * r * (p * r + _E4_32))
    bits = _reread(p) + np.uint32(_reread(rounded) << _SHIFT_32)
    y = _reread(np.uint32(bits))
    y = y if x >= _EXP_LEAST_32 else _ZERO_32
    y = y if x <= _EXP_MOST_32 else _INF_32
    return y if x == x else _NAN_32  # noqa: PLR0124  (not NaN)


def _log32(x: Any) -> Any:
    """Return log(x) of a float32."""
    subnormal = x < _TINY_32
    scaled = x * _TWO_25 if subnormal else x
    bits = np.uint32(_reread(scaled) + _TO_ONE_32)
    mantissa = _reread(np.uint32((bits & _MANTISSA_32) + _HALF_ROOT_32))
    raised = _reread(np.uint32((bits >> _SHIFT_32) + _ROUNDER_BITS_32))
    exponent = raised - (_ROUNDER_32 + _BIAS_32)
    exponent = exponent - _25_32 if subnormal else exponent
    f = mantissa - _ONE_32
    p = ((_L0_32 * f + _L1_32) * f + _L2_32) * f + _L3_32
    p = (((p * f + _L4_32) * f + _L5_32) * f + _L6_32) * f + _L7_32
    z = f * f
    y = z * f * p + exponent * _LN2_LOW_32
    y = y - _HALF_32 * z
    y = (f + y) + exponent * _LN2_HIGH_32
    y = y if x < _INF_32 else x
    return y if x > _ZERO_32 else (-_INF_32 if x == _ZERO_32 else _NAN_32)


def _log_of_normal32(x: Any) -> Any:
    """Return log(x) of a float32 that is not zero, negative or subnormal."""
    # As above; integers of 32 bits become floats on every processor.
    above = np.uint32(_reread(x) - _HALF_ROOT_32)
    f = _reread(np.uint32((above & _MANTISSA_32) + _HALF_ROOT_32)) - _ONE_32
    exponent = np.float32(np.int32(above) >> np.int32(23))
    p = ((_L0_32 * f + _L1_32) * f + _L2_32) * f + _L3_32
    p = (((p * f + _L4_32) * f + _L5_32) * f + _L6_32) * f + _L7_32
    z = f * f
    y = z * f * p + exponent * _LN2_LOW_32
    y = y - _HALF_32 * z
    y = (f + y) + exponent * _LN2_HIGH_32
    return y if x < _INF_32 else x


def fast_exp(x: Any) -> Any:
    """Return exp(x) in the type of ``x``, inside kernels."""
    return np.exp(x)


def fast_log(x: Any) -> Any:
    """Return log(x) in the type of ``x``, inside kernels."""
    return np.log(x)


def fast_log_of_normal(x: Any) -> Any:
    """Return log(x) of what is no less than the smallest normal number, or NaN, inside kernels."""
    return np.log(x)


@overload(fast_exp, jit_options=INLINED)
def _choose_exp(x: Any) -> Callable[[Any], Any]:
    return _exp32 if x == types.float32 else _exp64


@overload(fast_log, jit_options=INLINED)
def _choose_log(x: Any) -> Callable[[Any], Any]:
    return _log32 if x == types.float32 else _log64


@overload(fast_log_of_normal, jit_options=INLINED)
def _choose_log_of_normal(x: Any) -> Callable[[Any], Any]:
    return _log_of_normal32 if x == types.float32 else _log64
