# SPDX-License-Identifier: Apache-2.0
"""Weights to test with: of any shape, density and skew, with the odd values that must survive."""

import torch
from hypothesis import strategies as st
from torch import Tensor

DTYPES = (torch.float16, torch.bfloat16)


def sparse_weight(
    rows: int,
    cols: int,
    density: float = 0.3,
    dtype: torch.dtype = torch.bfloat16,
    seed: int = 0,
    skew: float = 0.0,
) -> Tensor:
    """A random weight with the given share of nonzeros.

    Args:
        skew: Sigma of a lognormal factor on the density of each row: real pruned weights have rows
            that are much denser than others.
    """
    generator = torch.Generator().manual_seed(seed)
    factor = torch.exp(skew * torch.randn(rows, 1, generator=generator))
    kept = torch.rand(rows, cols, generator=generator) < density * factor
    values = torch.randn(rows, cols, generator=generator)
    # A value that rounds to zero would not be kept.
    values = torch.where(values.abs() < 1e-3, torch.ones_like(values), values).to(dtype)
    return torch.where(kept, values, torch.zeros_like(values))


def bits(tensor: Tensor) -> Tensor:
    """The value bits, so that NaN compares equal to itself."""
    return tensor.contiguous().view(torch.int16)


@st.composite
def weights(draw, max_rows: int = 300, max_cols: int = 200) -> Tensor:
    """Any 16-bit pattern as a value, in any shape: NaN, infinities, subnormals and -0 included."""
    rows = draw(st.integers(1, max_rows))
    cols = draw(st.integers(1, max_cols))
    dtype = draw(st.sampled_from(DTYPES))
    density = draw(st.sampled_from([0.0, 0.01, 0.2, 0.5, 0.51, 0.99, 1.0]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    values = torch.randint(-(2**15), 2**15, (rows, cols), generator=generator).to(torch.int16)
    kept = torch.rand(rows, cols, generator=generator) < density
    return torch.where(kept, values, torch.zeros_like(values)).view(dtype)


def without_negative_zero(weight: Tensor) -> Tensor:
    """What unpack(pack(weight)) is: every zero is +0."""
    pattern = bits(weight)
    return torch.where((pattern & 0x7FFF) == 0, torch.zeros_like(pattern), pattern)
