# SPDX-License-Identifier: Apache-2.0
"""tiled_bitmap on the CPU, against the pure-torch oracle: into, out of and between the formats.

Runs with the kernels of this machine, and in test_capability.py with each of the others.
"""

from __future__ import annotations

import pytest
import torch
from kernel_weights import (
    bits_without_negative_zero,
    every_bit_pattern,
    random_weight,
    skewed_weight,
)

from flashsparse_plugin.formats.unstructured.tiled_bitmap import TiledBitmap, reference
from flashsparse_plugin.ops import ops
from flashsparse_plugin.packed import PackedWeight

BFLOAT16, FLOAT16 = torch.bfloat16, torch.float16
# Columns that end within a pair, an eighth, a mask word, a run and a unit; several units.
SHAPES = [
    (1, 1), (1, 700), (300, 1), (2, 3), (8, 8), (15, 31), (16, 256), (17, 257), (16, 64), (9, 129),
    (33, 255), (40, 190), (129, 300), (256, 513),
]  # fmt: skip


def same(made, expected) -> bool:
    return all(torch.equal(own, want) for own, want in zip(made, expected, strict=True))


def assert_packs_exactly(weight: torch.Tensor) -> None:
    shape, dtype = weight.shape, weight.dtype
    packed = ops.tiled_bitmap_pack(weight)
    assert same(packed, reference.pack(weight, TiledBitmap().scheme(dtype)).values())
    bits = bits_without_negative_zero(weight)
    assert torch.equal(ops.tiled_bitmap_unpack(*packed, *shape, dtype).view(torch.int16), bits)
    assert int(ops.tiled_bitmap_validate(*packed, *shape)) == int((bits != 0).sum())

    bitmap, words = ops.interleaved_bitmap_pack(weight), ops.tiled_csl_pack(weight)
    assert same(ops.tiled_bitmap_to_interleaved_bitmap(*packed, *shape), bitmap)
    assert same(ops.interleaved_bitmap_to_tiled_bitmap(*bitmap, *shape), packed)
    assert same(ops.tiled_bitmap_to_tiled_csl(*packed, *shape), words)
    assert same(ops.tiled_csl_to_tiled_bitmap(*words, *shape), packed)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_way_is_exact_at_any_sparsity(shape):
    for seed, sparsity in enumerate([0.0, 0.3, 0.5, 0.8, 0.97, 1.0]):
        assert_packs_exactly(random_weight(shape, sparsity, (BFLOAT16, FLOAT16)[seed % 2], seed))


@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT16], ids=str)
@pytest.mark.parametrize("make", [skewed_weight, every_bit_pattern])
def test_every_way_is_exact_where_rows_are_skewed_and_for_any_value(make, dtype):
    for seed, shape in enumerate([(16, 256), (150, 300), (17, 77)]):
        assert_packs_exactly(make(shape, dtype, seed))


def test_packs_weights_that_are_not_contiguous():
    weight = random_weight((300, 90), 0.6, BFLOAT16, seed=1).t()
    assert same(ops.tiled_bitmap_pack(weight), ops.tiled_bitmap_pack(weight.contiguous()))


def test_results_do_not_depend_on_threads():
    weight, made = random_weight((700, 300), 0.6, BFLOAT16, seed=3), []
    for count in (1, 2, 5):
        torch.set_num_threads(count)
        packed = ops.tiled_bitmap_pack(weight)
        made.append((*packed, *ops.tiled_bitmap_to_interleaved_bitmap(*packed, 700, 300)))
    assert all(same(other, made[0]) for other in made[1:])


@pytest.mark.parametrize("dtype", [torch.float32, BFLOAT16, FLOAT16], ids=str)
def test_linear_is_that_of_the_runtime_form(dtype):
    for tokens, shape in ((1, (37, 300)), (13, (150, 70)), (600, (16, 256))):
        weight = random_weight(shape, 0.5, BFLOAT16, seed=4)
        x, bias = torch.randn(tokens, shape[1]).to(dtype), torch.randn(shape[0]).to(dtype)
        own = ops.tiled_bitmap_linear(x, *ops.tiled_bitmap_pack(weight), shape[0], BFLOAT16, bias)
        bitmap = ops.interleaved_bitmap_pack(weight)
        wanted = ops.interleaved_bitmap_linear(x, *bitmap, shape[0], BFLOAT16, bias)
        assert torch.equal(own, wanted)


# ---- tensors of any origin --------------------------------------------------------------------

SHAPE = (40, 300)  # 3 x 2 units, of which one is whole


def _packed():
    weight = random_weight(SHAPE, 0.5, BFLOAT16, seed=5)
    return weight, *ops.tiled_bitmap_pack(weight)


def _readers(lines, offsets):
    x = torch.ones(2, SHAPE[1])
    return [
        lambda: ops.tiled_bitmap_validate(lines, offsets, *SHAPE),
        lambda: ops.tiled_bitmap_unpack(lines, offsets, *SHAPE, BFLOAT16),
        lambda: ops.tiled_bitmap_to_interleaved_bitmap(lines, offsets, *SHAPE),
        lambda: ops.tiled_bitmap_to_tiled_csl(lines, offsets, *SHAPE),
        lambda: ops.tiled_bitmap_linear(x, lines, offsets, SHAPE[0], BFLOAT16),
    ]


DAMAGES = {
    "start": (lambda w, o: o[0].fill_(4), r"unit_offsets\[0\] is 4, not 0"),
    "negative": (lambda w, o: o[0].fill_(-1), r"unit_offsets\[0\] is -1, not 0"),
    "falls": (lambda w, o: o[2].fill_(-8), r"unit_offsets\[2\] = -8 gives unit 1 -\d+ lines"),
    "too few": (lambda w, o: o[2].copy_(o[1] + 4), r"gives unit 1 4 lines, and a unit has 5 to 69"),
    "too many": (lambda w, o: o[1].fill_(70), r"gives unit 0 70 lines, and a unit has 5 to 69"),
    "beyond int32": (
        lambda w, o: (o[1].fill_(-(2**31)), o[2].fill_(2**31 - 1)),
        r"gives unit 0 -2147483648 lines",
    ),
    "end": (lambda w, o: o[-1].sub_(1), r"unit_offsets ends at \d+ lines, weight_packed has \d+"),
    "short unit": (lambda w, o: o[1].sub_(1), "unit 0 has a run that ends behind its lines"),
    "full mask": (lambda w, o: w[1].fill_(-1), "unit 0 has a run that ends behind its lines"),
    "run 0": (lambda w, o: w[4, 9].bitwise_or_(0xFFE0), "unit 0 has a run that ends behind its"),
    "run 1": (lambda w, o: w[4, 9].bitwise_or_(0xFFE0 << 16), "unit 0 has a run that ends behind"),
    "same column": (lambda w, o: w[4, 9].copy_(w[4, 8]), "unit 0 has two runs that begin in the"),
    # Unit 1 has 44 columns, 256 to 299, of 16 rows: lane 0, word 0 has 6 eighths of them.
    "last column": (
        lambda w, o: w[o[1], 0].bitwise_or_(1 << 6),
        "unit 1 keeps an element beyond the edges of the weight",
    ),
    "last row": (  # Unit 4 has 8 rows, 32 to 39.
        lambda w, o: w[o[4], 0].bitwise_or_(1 << 16),
        "unit 4 keeps an element beyond the edges of the weight",
    ),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES)
def test_every_reader_names_the_first_broken_rule(damage, message):
    _, lines, offsets = _packed()
    damage(lines, offsets)
    for read in _readers(lines, offsets):
        with pytest.raises(RuntimeError, match=message):
            read()


def test_the_error_of_the_first_bad_unit_is_reported_whatever_the_threads_do():
    _, lines, offsets = _packed()
    lines[offsets[2:-1].long() + 4] = 0
    torch.set_num_threads(2)
    for _ in range(20):
        with pytest.raises(RuntimeError, match="unit 2 has two runs"):
            ops.tiled_bitmap_validate(lines, offsets, *SHAPE)


def test_reads_lines_that_no_packer_of_ours_would_write():
    """Columns given otherwise, lines to spare and zeros that are kept: sound, so read right."""
    _, lines, offsets = _packed()
    moved = lines[: offsets[1]].clone()
    shift = torch.arange(32).roll(5)
    moved[5:] = moved[5:, shift]
    starts = moved[4].long()
    column = shift.argsort()
    for low in (0, 16):
        own = starts >> low & 0xFFFF
        starts += (column[own % 32] - own % 32) << low
    moved[4] = starts.int()
    spare = torch.full((3, 32), -1, dtype=torch.int32)
    lines = torch.cat([moved, spare, lines[offsets[1] :]])
    offsets[1:] += 3
    lines[offsets[1] + 5, 0] = 0  # two values
    tensors = {"weight_packed": lines, "unit_offsets": offsets}
    scheme = TiledBitmap().scheme(BFLOAT16)
    weight = reference.unpack(PackedWeight(scheme, SHAPE, tensors))
    assert weight.count_nonzero() == ops.tiled_bitmap_validate(lines, offsets, *SHAPE) - 2
    assert torch.equal(ops.tiled_bitmap_unpack(lines, offsets, *SHAPE, BFLOAT16), weight)
    bitmap = ops.interleaved_bitmap_pack(weight)
    assert same(ops.tiled_bitmap_to_interleaved_bitmap(lines, offsets, *SHAPE), bitmap)
    assert same(ops.tiled_bitmap_to_tiled_csl(lines, offsets, *SHAPE), ops.tiled_csl_pack(weight))
    x = torch.randn(3, SHAPE[1])
    assert torch.equal(
        ops.tiled_bitmap_linear(x, lines, offsets, SHAPE[0], BFLOAT16),
        ops.interleaved_bitmap_linear(x, *bitmap, SHAPE[0], BFLOAT16),
    )


def test_a_shape_that_offsets_do_not_fit_is_refused_before_memory_is_asked_for():
    lines, offsets = torch.zeros(0, 32, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    for read in (ops.tiled_bitmap_validate, ops.tiled_bitmap_to_interleaved_bitmap):
        with pytest.raises(RuntimeError, match="unit_offsets of a .* entries, not 2"):
            read(lines, offsets, 2**31 - 1, 2**31 - 1)
