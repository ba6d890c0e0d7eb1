# SPDX-License-Identifier: Apache-2.0
"""x W^T + b on the CPU, against the product in float64.

Runs with the kernels of this machine, and in test_capability.py with each of the others.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from kernel_products import activations, assert_close
from kernel_weights import SHAPES, random_weight, skewed_weight
from torch import Tensor

from flashsparse_plugin.formats.pattern.cpu_panels import NMPanels
from flashsparse_plugin.formats.pattern.options import PatternOptions
from flashsparse_plugin.ops import ops, reference

BFLOAT16, FLOAT16, FLOAT32 = torch.bfloat16, torch.float16, torch.float32
TOKENS = [0, 1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 24, 25, 32, 33, 64, 100, 128, 200]


@pytest.mark.parametrize("x_dtype", [BFLOAT16, FLOAT16, FLOAT32], ids=str)
@pytest.mark.parametrize("weight_dtype", [BFLOAT16, FLOAT16], ids=str)
@pytest.mark.parametrize("tokens", TOKENS)
def test_linear_is_the_product(tokens, weight_dtype, x_dtype):
    for seed, (shape, sparsity) in enumerate([((300, 257), 0.8), ((33, 128), 0.5)]):
        weight = random_weight(shape, sparsity, weight_dtype, seed)
        bias = torch.randn(shape[0], generator=torch.Generator().manual_seed(seed)).to(x_dtype)
        x = activations(tokens, shape[1], x_dtype, seed)
        bitmap = ops.interleaved_bitmap_pack(weight)
        y = ops.interleaved_bitmap_linear(x, *bitmap, shape[0], weight_dtype, bias)
        assert_close(y, x, weight, bias)
        words = ops.tiled_csl_pack(weight)
        assert torch.equal(ops.tiled_csl_linear(x, *words, shape[0], weight_dtype, bias), y)


@pytest.mark.parametrize("x_dtype", [BFLOAT16, FLOAT16, FLOAT32], ids=str)
@pytest.mark.parametrize("tokens", [0, 1, 2, 3, 12, 13, 33])
def test_codes_with_row_scales(tokens, x_dtype):
    """Every code, and every length of a row beyond whole pairs of mask words."""
    for seed, shape in enumerate([(300, 257), (33, 128), (17, 130), (5, 3), (1, 1)]):
        codes = random_weight(shape, 0.5, FLOAT32, seed).mul(40).clamp(-128, 127).to(torch.int8)
        codes.view(-1)[:512:2] = torch.arange(-128, 128)[: codes.view(-1)[:512:2].numel()]
        scales = torch.rand(shape[0], 1, generator=torch.Generator().manual_seed(seed))
        weight = codes * scales
        bias = torch.randn(shape[0], generator=torch.Generator().manual_seed(seed)).to(x_dtype)
        x = activations(tokens, shape[1], x_dtype, seed)
        bitmap = ops.interleaved_bitmap_pack(codes)
        assert torch.equal(ops.interleaved_bitmap_unpack(*bitmap, *shape, torch.int8), codes)
        y = ops.interleaved_bitmap_linear(x, *bitmap, shape[0], BFLOAT16, bias, scales)
        assert_close(y, x, weight, bias)
        units = ops.tiled_bitmap_pack(codes)
        same = ops.tiled_bitmap_linear(x, *units, shape[0], BFLOAT16, bias, None, None, scales)
        assert torch.equal(same, y)


@pytest.mark.parametrize("x_dtype", [BFLOAT16, FLOAT16, FLOAT32], ids=str)
@pytest.mark.parametrize("tokens", [0, 1, 2, 3, 5, 16, 17, 33])
def test_float32_weights_and_vectors_of_16_rows(tokens, x_dtype):
    """What nm_vector runs as: a bitmap of 32-bit values, and panels that share their columns."""
    pattern = PatternOptions(n=3, m=7, vector_length=32)
    panels = NMPanels()
    for seed, shape in enumerate([(300, 257), (33, 128), (1, 1)]):
        for dtype in (FLOAT32, BFLOAT16, FLOAT16):
            weight = pattern.keep_largest(random_weight(shape, 0.3, dtype, seed))
            bias = torch.randn(shape[0], generator=torch.Generator().manual_seed(seed)).to(x_dtype)
            x = activations(tokens, shape[1], x_dtype, seed)
            packed = panels.pack(weight, panels.scheme(dtype, pattern.model_dump()))
            assert torch.equal(packed.unpack(), weight)
            assert_close(packed.linear(x, bias), x, weight, bias)
        weight = random_weight(shape, 0.5, FLOAT32, seed)
        bitmap = ops.interleaved_bitmap_pack(weight)
        assert torch.equal(ops.interleaved_bitmap_unpack(*bitmap, *shape, FLOAT32), weight)
        y = ops.interleaved_bitmap_linear(x, *bitmap, shape[0], FLOAT32, bias)
        assert_close(y, x, weight, bias)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_linear_takes_any_shape_and_sparsity(shape):
    for seed, sparsity in enumerate([0.0, 0.5, 0.9, 1.0]):
        for tokens in (1, 2, 6):
            for x_dtype, weight_dtype in ((BFLOAT16, BFLOAT16), (FLOAT32, BFLOAT16),
                                          (FLOAT16, FLOAT16)):  # fmt: skip
                weight = random_weight(shape, sparsity, weight_dtype, seed)
                x = activations(tokens, shape[1], x_dtype, seed)
                bitmap = ops.interleaved_bitmap_pack(weight)
                y = ops.interleaved_bitmap_linear(x, *bitmap, shape[0], weight_dtype)
                assert_close(y, x, weight, None)


def test_linear_where_rows_are_skewed():
    weight = skewed_weight((300, 190), BFLOAT16, seed=5)
    for dtype in (BFLOAT16, FLOAT32):
        x = activations(11, 190, dtype)
        bitmap = ops.interleaved_bitmap_pack(weight)
        y = ops.interleaved_bitmap_linear(x, *bitmap, 300, BFLOAT16)
        assert_close(y, x, weight, None)


@pytest.mark.parametrize("weight_dtype", [BFLOAT16, FLOAT16], ids=str)
@pytest.mark.parametrize("tokens", [1, 2, 4, 30])
def test_fp32_activations_keep_all_their_bits(tokens, weight_dtype):
    in_features = 64
    weight = torch.eye(in_features, dtype=weight_dtype)
    x = 1 + torch.arange(tokens * in_features).view(tokens, -1) * 2.0**-23
    bitmap = ops.interleaved_bitmap_pack(weight)
    y = ops.interleaved_bitmap_linear(x, *bitmap, in_features, weight_dtype)
    assert torch.equal(y, x)


SPECIAL = [torch.inf, -torch.inf, torch.nan]


def assert_same_specials(y: Tensor, x: Tensor, weight: Tensor) -> None:
    """NaN and infinities where the dense product in float64 has them, and the rest close."""
    expected = reference.linear(x, weight, None)
    assert torch.equal(y.isnan(), expected.isnan())
    infinite = expected.isinf()
    assert torch.equal(y.isinf(), infinite) and torch.equal(
        y[infinite].double(), expected[infinite]
    )
    finite = expected.isfinite()
    assert ((y.double() - expected)[finite].abs() <= 0.02 * expected[finite].abs() + 0.5).all()


@pytest.mark.parametrize("x_dtype", [BFLOAT16, FLOAT16, FLOAT32], ids=str)
@pytest.mark.parametrize("weight_dtype", [BFLOAT16, FLOAT16], ids=str)
@pytest.mark.parametrize("tokens", [1, 2, 5, 9, 30])
def test_infinities_and_nan_are_those_of_a_dense_product(tokens, weight_dtype, x_dtype):
    """Where the weight has a zero, too: 0 * inf is NaN."""
    for columns in (71, 300):
        weight = random_weight((37, columns), 0.6, weight_dtype, seed=10)
        x = activations(tokens, columns, x_dtype)
        for number, value in enumerate(SPECIAL):
            weight[5 + number, 3 * number] = value
            x[number % tokens, columns - 1 - number] = value
        weight[:, columns - 2] = 0
        bitmap, words = ops.interleaved_bitmap_pack(weight), ops.tiled_csl_pack(weight)
        y = ops.interleaved_bitmap_linear(x, *bitmap, 37, weight_dtype)
        assert_same_specials(y, x, weight)
        again = ops.tiled_csl_linear(x, *words, 37, weight_dtype)
        assert torch.equal(again.isnan(), y.isnan()) and torch.equal(
            again.nan_to_num(), y.nan_to_num()
        )


@pytest.mark.parametrize("x_dtype", [BFLOAT16, FLOAT16, FLOAT32], ids=str)
@pytest.mark.parametrize("weight_dtype", [BFLOAT16, FLOAT16], ids=str)
@pytest.mark.parametrize("tokens", [1, 4, 30])
def test_subnormal_numbers_are_not_flushed(tokens, weight_dtype, x_dtype):
    """But where a CPU multiplies pairs of bfloat16: vdpbf16ps makes zeros of them."""
    tiny = 3 * torch.finfo(weight_dtype).smallest_normal * torch.finfo(weight_dtype).eps
    weight = torch.zeros(20, 40, dtype=weight_dtype)
    weight[range(20), range(20)] = torch.tensor(tiny, dtype=weight_dtype)
    x = torch.ones(tokens, 40, dtype=x_dtype)
    if x_dtype == BFLOAT16 and weight_dtype == FLOAT16:
        x *= 2.0**-105  # so that the results are subnormal
    x[:, 7] /= 2
    bitmap = ops.interleaved_bitmap_pack(weight)
    y = ops.interleaved_bitmap_linear(x, *bitmap, 20, weight_dtype)
    if x_dtype == weight_dtype == BFLOAT16 and ops.cpu_capability() == "avx512":
        assert (y == 0).all()
        return
    expected = reference.linear(x, weight, None)
    assert expected.count_nonzero() == 20 * tokens
    assert torch.equal(y, expected.to(x_dtype))


def test_more_tokens_than_one_slab():
    weight = random_weight((40, 48), 0.6, BFLOAT16, seed=6)
    bitmap, words = ops.interleaved_bitmap_pack(weight), ops.tiled_csl_pack(weight)
    for dtype in (BFLOAT16, FLOAT32):
        x = activations(1100, 48, dtype)
        y = ops.interleaved_bitmap_linear(x, *bitmap, 40, BFLOAT16)
        assert_close(y, x, weight, None)
        assert torch.equal(ops.tiled_csl_linear(x, *words, 40, BFLOAT16), y)


def test_leading_dimensions_and_strides():
    weight = random_weight((20, 30), 0.5, BFLOAT16, seed=7)
    bitmap = ops.interleaved_bitmap_pack(weight)
    x = activations(30, 6, FLOAT32).t()  # not contiguous
    y = ops.interleaved_bitmap_linear(x, *bitmap, 20, BFLOAT16)
    assert_close(y, x, weight, None)
    flat = x.contiguous()
    for shape in [(2, 3, 30), (1, 6, 1, 30), (6, 30)]:
        made = ops.interleaved_bitmap_linear(flat.view(shape), *bitmap, 20, BFLOAT16)
        assert torch.equal(made, y.view(*shape[:-1], 20))
    vector = ops.interleaved_bitmap_linear(flat[0], *bitmap, 20, BFLOAT16)
    assert_close(vector[None], flat[:1], weight, None)
    # One token at an address that no vector load would choose.
    shifted = torch.cat([torch.zeros(1, dtype=BFLOAT16), flat[0].bfloat16()])[1:]
    y = ops.interleaved_bitmap_linear(shifted, *bitmap, 20, BFLOAT16)
    assert_close(y[None], shifted[None], weight, None)


def test_results_do_not_depend_on_threads():
    weight = random_weight((1000, 300), 0.7, BFLOAT16, seed=8)
    bitmap = ops.interleaved_bitmap_pack(weight)
    for tokens in (1, 5, 40):
        x = activations(tokens, 300, BFLOAT16)
        made = []
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            made.append(ops.interleaved_bitmap_linear(x, *bitmap, 1000, BFLOAT16))
        assert all(torch.equal(made[0], other) for other in made[1:])


def test_threads_may_call_at_once():
    weights = [random_weight((400, 200 + i), 0.7, BFLOAT16, seed=i) for i in range(4)]
    words = [ops.tiled_csl_pack(weight) for weight in weights]
    bitmaps = [ops.interleaved_bitmap_pack(weight) for weight in weights]

    def call(job: int) -> Tensor:
        i, tokens = job % 4, 1 + job % 7
        x = activations(tokens, 200 + i, FLOAT32, seed=job)
        if job % 2:
            return ops.tiled_csl_linear(x, *words[i], 400, BFLOAT16)
        return ops.interleaved_bitmap_linear(x, *bitmaps[i], 400, BFLOAT16)

    expected = [call(job) for job in range(200)]
    torch.set_num_threads(2)
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(call, range(200)))
    assert all(torch.equal(a, b) for a, b in zip(made, expected, strict=True))


def test_bad_arguments_are_named():
    weight = random_weight((20, 30), 0.5, BFLOAT16, seed=9)
    bitmap = ops.interleaved_bitmap_pack(weight)
    with pytest.raises(RuntimeError, match=r"masks of a \[20, 32\] weight must be"):
        ops.interleaved_bitmap_linear(torch.ones(2, 32), *bitmap, 20, BFLOAT16)
    with pytest.raises(RuntimeError, match=r"bias must be \[20\]"):
        ops.interleaved_bitmap_linear(torch.ones(2, 30), *bitmap, 20, BFLOAT16, torch.ones(3))
    with pytest.raises(RuntimeError, match="x must be float32, float16 or bfloat16"):
        ops.interleaved_bitmap_linear(torch.ones(2, 30).double(), *bitmap, 20, BFLOAT16)
