# SPDX-License-Identifier: Apache-2.0
"""Activations for the tests of CPU products, and how far a result may be from the exact one."""

from __future__ import annotations

import torch
from torch import Tensor

from flashsparse_plugin.ops import reference

# Unit roundoff, and half the smallest positive number.
ROUNDING = {
    torch.bfloat16: (2.0**-8, 0.0),
    torch.float16: (2.0**-11, 2.0**-25),
    torch.float32: (0.0, 0.0),
}


def error_bound(x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, dtype) -> Tensor:
    """How far an fp32 sum, rounded once to `dtype`, may be from the exact y.

    Any order of n products and a bias: at most n + 2 roundings of 2^-24 each, relative to the sum
    of magnitudes (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1), to first
    order; vdpbf16ps flushes results below 2^-126 to zero.
    """
    magnitude = x.double().abs() @ weight.double().abs().T
    if bias is not None:
        magnitude = magnitude + bias.double().abs()
    roundings = x.shape[-1] + 2
    relative, absolute = ROUNDING[dtype]
    fp32 = roundings * 1.01 * (2.0**-24 * magnitude + 2.0**-126)
    return fp32 + relative * (y.abs() + fp32) + absolute


def assert_close(y: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    expected = reference.linear(x, weight, bias)
    assert y.dtype == x.dtype
    assert y.shape == expected.shape
    error = (y.double() - expected).abs()
    assert (error <= error_bound(x, weight, bias, expected, x.dtype)).all()


def activations(tokens: int, in_features: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(1000 + seed)
    return torch.randn(tokens, in_features, generator=generator).to(dtype)
