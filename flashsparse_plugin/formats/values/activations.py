# SPDX-License-Identifier: Apache-2.0
"""Activations as codes of 8 bits: every token is rounded, by a scale of its own, in each call.

A product of codes with codes is y = (codes of x) (codes x scales of the weight)^T x (scale of the
token) + bias, in float32. Dynamic per-token quantisation, as compressed-tensors' FP8-dynamic and
W8A8 checkpoints ask for it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .types import ValueType

_LIFT = 2.0**100  # by which small tokens are multiplied first, so that their inverse is finite
_LEAST = 2.0**-149  # the smallest float32, which a token of zeros takes for its largest magnitude
_POWERS = (2.0**-100, 2.0**64)  # sums of such multiples of codes neither overflow nor vanish
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
    """Computes `x @ weight.T + bias` of rounded activations, by a product in float32.

    The gradient is that of the unrounded product (straight through).

    Args:
        x: [..., in_features].
        values: The type that x is rounded to.
        bias: Optional [out_features].
        product: Multiplies float32 [..., in_features] by the weight, to float32.

    Returns:
        [..., out_features] in the dtype of x, rounded once.

    Raises:
        RuntimeError: Where x is not float32, float16 or bfloat16.
    """
    require_activations(x)
    codes, scales, powers = _quantise(x.detach(), values)
    codes = codes * powers
    if x.requires_grad:
        codes = codes + (x - x.detach()).float() / scales  # plus zero, which has the gradient
    y = product(codes) * scales
    return (y if bias is None else y + bias).to(x.dtype)


def codes_in_16_bits(x: Tensor, values: ValueType) -> tuple[Tensor, Tensor]:
    """Rounds activations for kernels that multiply 16-bit x and then scale sums by token.

    Args:
        x: [..., in_features], float16 or bfloat16.
        values: The type of the codes.

    Returns:
        Codes in the dtype of x, in which they are exact, without a gradient; in bfloat16 times
        powers of two, so that no scale is a subnormal number. And the scales of tokens, float32
        [tokens].
    """
    codes, scales, powers = _quantise(x.detach(), values)
    if x.dtype == torch.float16:  # which has no room for powers, nor tokens that want them
        scales, powers = scales * powers, torch.ones_like(powers)
    return (codes * powers).to(x.dtype), scales.flatten()


def require_activations(x: Tensor) -> None:
    """Raises RuntimeError for a dtype of x that no kernel takes, as their ops do."""
    torch._check(x.dtype in _DTYPES, lambda: "x must be float32, float16 or bfloat16")


def takes_16_bits(x: Tensor, dtype: torch.dtype) -> bool:
    """Whether kernels multiply x in 16 bits by weights of a dtype: on a GPU, where both agree."""
    return x.is_cuda and x.dtype == dtype and dtype != torch.float32
