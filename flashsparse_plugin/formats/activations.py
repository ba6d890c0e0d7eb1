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

from .value_types import ValueType

_LEAST = 2.0**-100  # of a token's largest magnitude, so that its inverse is finite
_UNIT = 2.0**-8  # what kernels are given for code 1: sums of codes would overflow float16


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
    wide = x.float()
    largest = wide.abs().amax(-1, keepdim=True).clamp_min(_LEAST)
    # By a tensor: torch divides by a number, and a number by a tensor, with two roundings on a GPU.
    most = torch.full_like(largest, values.most)
    return values.round(wide * (most / largest)), largest / most


def rounded_tokens(x: Tensor, values: ValueType) -> Tensor:
    """What activations are rounded to: codes times scales, float64 [..., in_features]."""
    codes, scales = quantise_tokens(x, values)
    return codes.double() * scales.double()


def multiply_rounded(
    x: Tensor, values: ValueType, bias: Tensor | None, product: Callable[[Tensor], Tensor]
) -> Tensor:
    """Computes `x @ weight.T + bias` of rounded activations, by a product of unrounded ones.

    Codes of 8 bits are exact in 16, so the product is given those, in the dtype of x, and on a CPU
    in float32, where sums are then not rounded before they are multiplied by the token's scale. The
    gradient is that of the unrounded product (straight through).

    Args:
        x: [..., in_features].
        values: The type that x is rounded to.
        bias: Optional [out_features].
        product: Multiplies [..., in_features] by the weight, with sums in float32.

    Returns:
        [..., out_features] in the dtype of x.
    """
    codes, scales = quantise_tokens(x.detach(), values)
    scales = scales / _UNIT
    codes = codes * _UNIT
    if x.requires_grad:
        codes = codes + (x - x.detach()).float() / scales  # plus zero, which has the gradient
    y = product(codes.to(_kernel_dtype(x))).float() * scales
    return (y if bias is None else y + bias).to(x.dtype)


def _kernel_dtype(x: Tensor) -> torch.dtype:
    """The dtype that kernels take codes in: those of a CPU multiply in float32 all the same."""
    return x.dtype if x.is_cuda else torch.float32
