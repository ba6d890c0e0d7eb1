# SPDX-License-Identifier: Apache-2.0
"""Exact weights on the CPU: packed and unpacked bit for bit, and their product in float64.

Runs with the kernels of this machine, and in test_capability.py with each of the others.
"""

from __future__ import annotations

import pytest
import torch
from kernel_products import activations, assert_close
from kernel_weights import SHAPES

from flashsparse_plugin.ops import ops

BFLOAT16, FLOAT16, FLOAT32 = torch.bfloat16, torch.float16, torch.float32


def ordinary(rows, columns, seed=0):
    """As trained layers are: rows of different scale, a few elements out of their windows."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, columns, generator=generator) * 0.02
    weight *= torch.exp2(torch.randint(-30, 30, (rows, 1), generator=generator))
    weight.view(-1)[::97] *= 2.0**-20
    return weight.to(BFLOAT16)


def test_every_bit_pattern_survives():
    patterns = torch.arange(-(2**15), 2**15).to(torch.int16).view(BFLOAT16)
    for shape in ((256, 256), (64, 1024), (2048, 32)):
        weight = patterns.view(shape)
        again = ops.lossless_unpack(*ops.lossless_pack(weight), *shape, BFLOAT16)
        assert torch.equal(again.view(torch.int16), weight.view(torch.int16))


@pytest.mark.parametrize("x_dtype", [BFLOAT16, FLOAT16, FLOAT32], ids=str)
@pytest.mark.parametrize("tokens", [0, 1, 2, 3, 4, 5, 7, 8, 9, 13, 17, 33, 520])
def test_linear_is_the_product(tokens, x_dtype):
    for seed, shape in enumerate([(70, 257), (33, 128), (5, 3), (1, 1)]):
        weight, x = ordinary(*shape, seed), activations(tokens, shape[1], x_dtype, seed)
        x *= 2.0**-8 if x_dtype == FLOAT16 else 1.0  # sums stay in its range
        weight = weight.clamp(-64, 64)
        bias = torch.randn(shape[0], generator=torch.Generator().manual_seed(seed)).to(x_dtype)
        y = ops.lossless_linear(x, *ops.lossless_pack(weight), shape[0], BFLOAT16, bias)
        assert_close(y, x, weight, bias)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_any_shape_is_packed_and_multiplied(shape):
    weight = ordinary(*shape)
    tensors = ops.lossless_pack(weight)
    again = ops.lossless_unpack(*tensors, *shape, BFLOAT16)
    assert torch.equal(again.view(torch.int16), weight.view(torch.int16))
    for x_dtype in (BFLOAT16, FLOAT32):
        x = activations(3, shape[1], x_dtype)
        assert_close(ops.lossless_linear(x, *tensors, shape[0], BFLOAT16), x, weight, None)


def test_lists_may_be_longer_than_their_offsets_say():
    weight, x = ordinary(40, 300), activations(2, 300, FLOAT32)
    *same, columns, exceptions = ops.lossless_pack(weight)
    padded = (*same, *(torch.nn.functional.pad(each, (0, 9)) for each in (columns, exceptions)))
    y = ops.lossless_linear(x, *padded, 40, BFLOAT16)
    assert torch.equal(y, ops.lossless_linear(x, *same, columns, exceptions, 40, BFLOAT16))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tokens", [1, 5])
def test_infinities_and_far_exponents_give_what_a_dense_product_gives(dtype, tokens):
    weight = ordinary(40, 300)
    weight[3, 7], weight[4, 8], weight[5, 9] = torch.inf, -torch.inf, torch.nan
    weight[6, 10], weight[7, 11], weight[8, :] = 2.0**100, 2.0**-130, 2.0**-130
    weight[9], weight[9, 5] = 0, -0.0
    tensors = ops.lossless_pack(weight)
    x = torch.randn(tokens, 300).to(dtype)
    y, exact = (
        ops.lossless_linear(x, *tensors, 40, BFLOAT16).double(),
        x.double() @ weight.double().T,
    )
    assert torch.equal(y.isnan(), exact.isnan())
    known = ~exact.isnan()
    scale = (x.double().abs() @ weight.double().abs().T)[known]
    off = torch.where(y[known] == exact[known], 0.0, (y[known] - exact[known]).abs())
    assert (off <= scale * (2**-7 if dtype == torch.bfloat16 else 2**-20) + 1e-38).all()
    x[0, 7] = torch.inf  # where most rows have a code, and row 3 an exception
    x[-1, 10] = -torch.inf
    y, exact = ops.lossless_linear(x, *tensors, 40, BFLOAT16), x.double() @ weight.double().T
    finite = exact.isfinite()
    assert torch.equal(y.isfinite(), finite) and torch.equal(y.isnan(), exact.isnan())
    assert torch.equal(y[~finite & ~exact.isnan()].double(), exact[~finite & ~exact.isnan()])
