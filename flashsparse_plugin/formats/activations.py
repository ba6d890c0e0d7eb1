# SPDX-License-Identifier: Apache-2.0
"""Activations as codes of 8 bits: every token is rounded, by a scale of its own, in each call.

A product of codes with codes is y = (codes of x) (codes x scales of the weight)^T x (scale of the
token) + bias, in float32. Dynamic per-token quantisation, as compressed-tensors' FP8-dynamic and
W8A8 checkpoints ask for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from .value_types import ValueType

_LIFT = 2.0**100  # by which small tokens are multiplied first, so that their inverse is finite
_LEAST = 2.0**-149  # the smallest float32, which a token of zeros takes for its largest magnitude
_POWERS = (2.0**-149, 2.0**64)  # sums of such multiples of codes do not overflow
_UNIT = 2.0**-8  # what kernels are given for code 1 in float16, which holds no more of its range
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def quantise_tokens(x: Tensor, values: ValueType) -> tuple[Tensor, Tensor]:
    """Rounds activations to codes: the largest magnitude of a token becomes the largest code.

    Args:
        x: [..., in_features], of a floating dtype.
        values: The type of the codes.

    Returns:
        Codes as float32 numbers [..., in_features], which are x times (largest code / largest
        magnitude), rounded to nearest, ties to even; and scales (largest magnitude / largest code),
        float32 [..., 1]. A token with NaN or an infinity has a scale that is not finite.
    """
    codes, scales, powers = _quantise(x, values)
    return codes, scales * powers


def _quantise(x: Tensor, values: ValueType) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, and scales as two factors: as one float32 a subnormal scale has too few bits.

    The second factor is a power of two that `_POWERS` bounds, and the first within 1 and 2 where it
    can be.
    """
    wide = x.float()
    largest = wide.abs().amax(-1, keepdim=True).clamp_min(_LEAST)
    lift = torch.where(largest < 1 / _LIFT, _LIFT, 1.0)
    largest = largest * lift
    # By a tensor: torch divides by a number, and a number by a tensor, with two roundings on a GPU.
    most = torch.full_like(largest, values.most)
    codes = values.round(wide * lift * (most / largest))
    scales = largest / most
    least, greatest = _POWERS
    powers = scales / (2 * torch.frexp(scales).mantissa) / lift
    powers = powers.clamp(least, greatest)
    return codes, scales / (powers * lift), powers


def rounded_tokens(x: Tensor, values: ValueType) -> Tensor:
    """What activations are rounded to: codes times scales, float64 [..., in_features]."""
    codes, scales, powers = _quantise(x, values)
    return codes.double() * (scales.double() * powers.double())


def multiply_rounded(
    x: Tensor, values: ValueType, bias: Tensor | None, product: Callable[[Tensor], Tensor]
) -> Tensor:
    """Computes `x @ weight.T + bias` of rounded activations, by a product of unrounded ones.

    Codes of 8 bits are exact in 16, so the product is given those, in the dtype of x, and on a CPU
    in float32, where sums are then not rounded before they are multiplied by the token's scale. In
    16 bits they are: see `multiply_codes`. The gradient is that of the unrounded product (straight
    through).

    Args:
        x: [..., in_features].
        values: The type that x is rounded to.
        bias: Optional [out_features].
        product: Multiplies [..., in_features] by the weight, with sums in float32.

    Returns:
        [..., out_features] in the dtype of x.

    Raises:
        RuntimeError: Where x is not float32, float16 or bfloat16.
    """
    require_activations(x)
    codes, scales, powers = _quantise(x.detach(), values)
    dtype = _kernel_dtype(x)
    if dtype == torch.float16:
        scales, powers = scales * powers / _UNIT, torch.full_like(powers, _UNIT)
    codes = codes * powers
    if x.requires_grad:
        codes = codes + (x - x.detach()).float() / scales  # plus zero, which has the gradient
    y = product(codes.to(dtype)).float() * scales
    return (y if bias is None else y + bias).to(x.dtype)


def multiply_codes(
    x: Tensor,
    values: ValueType,
    bias: Tensor | None,
    row_scales: Tensor,
    product: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """The same by kernels whose x and y have 16 bits, of weights with a scale for each row.

    The product of codes by codes alone is asked for in float16, whatever the dtype of x, and all
    scales multiply it in float32: float16 holds codes of both types, and its sums have three bits
    more than bfloat16's, so that rounding them before y is hardly adds to the error of y.

    Args:
        x: [..., in_features].
        values: The type that x is rounded to, which is that of the weight's codes.
        bias: Optional [out_features].
        row_scales: Of the weight, float32 [out_features, 1].
        product: Multiplies float16 [..., in_features] by the weight with scales of rows in place of
            its own.

    Returns:
        [..., out_features] in the dtype of x.

    Raises:
        RuntimeError: Where x is not float32, float16 or bfloat16.
    """
    require_activations(x)
    codes, scales = quantise_tokens(x.detach(), values)
    largest = x.shape[-1] * values.most * -values.least * _UNIT  # of a sum
    unit = 2.0 ** -max(0, math.ceil(math.log2(largest / torch.finfo(torch.float16).max)))
    y = product((codes * _UNIT).half(), torch.full_like(row_scales, unit)).float()
    y = y * (1 / (unit * _UNIT)) * row_scales.flatten() * scales  # one by one: none overflows early
    return (y if bias is None else y + bias).to(x.dtype)


def require_activations(x: Tensor) -> None:
    """Raises RuntimeError for a dtype of x that no kernel takes, as their ops do."""
    torch._check(x.dtype in _DTYPES, lambda: "x must be float32, float16 or bfloat16")


def takes_16_bits(x: Tensor) -> bool:
    """Whether kernels multiply x in 16 bits: those of a CPU do in float32, whatever x is."""
    return x.is_cuda and x.dtype != torch.float32


def _kernel_dtype(x: Tensor) -> torch.dtype:
    """The dtype that kernels take codes in."""
    return x.dtype if takes_16_bits(x) else torch.float32
