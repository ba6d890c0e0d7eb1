# SPDX-License-Identifier: Apache-2.0
"""Packing, unpacking and transcoding on the CPU, against the pure-torch oracle.

Runs with the kernels of this machine, and in test_capability.py with each of the others.
"""

from __future__ import annotations

import pytest
import torch
from kernel_weights import (
    SHAPES,
    SPARSITIES,
    bits_without_negative_zero,
    every_bit_pattern,
    random_weight,
    skewed_weight,
)

from flashsparse_plugin.formats.unstructured.interleaved_bitmap import InterleavedBitmap
from flashsparse_plugin.formats.unstructured.tiled_csl import TiledCSL
from flashsparse_plugin.ops import ops

BFLOAT16, FLOAT16 = torch.bfloat16, torch.float16


def assert_packs_exactly(weight: torch.Tensor) -> None:
    """Every way into, between and out of the two layouts, bit for bit."""
    shape, dtype = weight.shape, weight.dtype
    words, offsets = ops.tiled_csl_pack(weight)
    csl, bitmap_of = TiledCSL().reference, InterleavedBitmap().reference
    expected_words, expected_offsets = csl.pack(weight, TiledCSL().scheme(dtype)).values()
    assert torch.equal(offsets, expected_offsets)
    assert torch.equal(words, expected_words), "not in canonical order"

    bits = bits_without_negative_zero(weight)
    assert torch.equal(ops.tiled_csl_unpack(words, offsets, *shape, dtype).view(torch.int16), bits)
    assert int(ops.tiled_csl_validate(words, offsets, *shape)) == int((bits != 0).sum())

    expected_bitmap = bitmap_of.pack(weight, InterleavedBitmap().scheme(dtype)).values()
    bitmap = ops.interleaved_bitmap_pack(weight)
    transcoded = ops.tiled_csl_to_interleaved_bitmap(words, offsets, *shape)
    for made, direct, expected in zip(transcoded, bitmap, expected_bitmap, strict=True):
        assert torch.equal(direct, expected)
        assert torch.equal(made, expected)
    back = ops.interleaved_bitmap_unpack(*bitmap, *shape, dtype)
    assert torch.equal(back.view(torch.int16), bits)
    for made, expected in zip(ops.tiled_csl_pack(back), (words, offsets), strict=True):
        assert torch.equal(made, expected)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_packs_exactly_at_any_sparsity(shape):
    for seed, sparsity in enumerate(SPARSITIES):
        assert_packs_exactly(random_weight(shape, sparsity, (BFLOAT16, FLOAT16)[seed % 2], seed))


@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT16], ids=str)
def test_packs_exactly_where_rows_are_skewed(dtype):
    for seed, shape in enumerate([(128, 64), (300, 257), (17, 200)]):
        assert_packs_exactly(skewed_weight(shape, dtype, seed))


@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT16], ids=str)
def test_keeps_every_bit_pattern(dtype):
    for seed, shape in enumerate([(128, 64), (150, 131), (3, 77)]):
        assert_packs_exactly(every_bit_pattern(shape, dtype, seed))


def test_packs_weights_that_are_not_contiguous():
    weight = random_weight((200, 90), 0.6, BFLOAT16, seed=1).t()
    for made, expected in zip(
        ops.tiled_csl_pack(weight), ops.tiled_csl_pack(weight.contiguous()), strict=True
    ):
        assert torch.equal(made, expected)


@pytest.mark.parametrize("sparsity", [0.5, 0.8, 0.9])
def test_a_group_has_32_banks_while_all_have_words(sparsity):
    words, _ = ops.tiled_csl_pack(random_weight((128, 64), sparsity, BFLOAT16, seed=2))
    kept = int(ops.tiled_csl_validate(words, torch.tensor([0, len(words)], dtype=torch.int32),
                                      128, 64))  # fmt: skip
    banks = (words[:kept].long() & 0xFFFF) // 2 % 32
    shortest = int(torch.bincount(banks, minlength=32).min())
    assert shortest > 0
    for group in banks[: 32 * shortest].view(-1, 32):
        assert len(group.unique()) == 32


def test_results_do_not_depend_on_threads():
    weight = random_weight((700, 300), 0.6, BFLOAT16, seed=3)
    made = []
    for count in (1, 2, 5):
        torch.set_num_threads(count)
        words, offsets = ops.tiled_csl_pack(weight)
        bitmap = ops.tiled_csl_to_interleaved_bitmap(words, offsets, 700, 300)
        made.append((words, offsets, *bitmap))
    for other in made[1:]:
        assert all(torch.equal(a, b) for a, b in zip(made[0], other, strict=True))


# ---- words of any origin ---------------------------------------------------------------------


def _packed(shape=(300, 200)):
    weight = random_weight(shape, 0.7, BFLOAT16, seed=4)
    return weight, *ops.tiled_csl_pack(weight)


def _every_reader(words, offsets, shape):
    x = torch.ones(2, shape[1])
    return [
        lambda: ops.tiled_csl_validate(words, offsets, *shape),
        lambda: ops.tiled_csl_unpack(words, offsets, *shape, BFLOAT16),
        lambda: ops.tiled_csl_to_interleaved_bitmap(words, offsets, *shape),
        lambda: ops.tiled_csl_linear(x, words, offsets, shape[0], BFLOAT16),
    ]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda w, o: o[0].fill_(4), r"tile_offsets\[0\] is 4, not 0"),
        (lambda w, o: o[2].fill_(-8), r"tile_offsets\[2\] = -8 is smaller than the one before"),
        (lambda w, o: o[3].add_(2), r"tile_offsets\[3\] = \d+ is no multiple of 4"),
        (lambda w, o: o[-1].add_(4), r"tile_offsets ends at \d+ words, weight_packed has \d+"),
        (lambda w, o: w[9].bitwise_or_(0x8000), r"weight_packed\[9\] of tile 0 points outside"),
        (lambda w, o: w[5].copy_(w[4] ^ (1 << 20)), r"\[5\] of tile 0 gives a second value to loc"),
        # The last tile holds 44 rows and 8 columns: location 8100 is in row 126.
        (lambda w, o: w[-1].fill_((1 << 16) | 8100), r"points outside its tile \(location 8100\)"),
        (lambda w, o: w[-1].fill_(8100), r"points outside its tile \(location 8100\)"),
    ],
    ids=["start", "falls", "alignment", "end", "location", "second value", "edge", "zero at edge"],
)  # fmt: skip
def test_every_reader_names_the_first_broken_rule(damage, message):
    shape = (300, 200)
    _, words, offsets = _packed(shape)
    damage(words, offsets)
    for read in _every_reader(words, offsets, shape):
        with pytest.raises(RuntimeError, match=message):
            read()


def test_the_error_of_the_first_bad_tile_is_reported_whatever_the_threads_do():
    _, words, offsets = _packed()
    for tile in range(2, 12):
        words[offsets[tile]] |= 0xF000
    torch.set_num_threads(2)
    for _ in range(20):
        with pytest.raises(RuntimeError, match=rf"weight_packed\[{int(offsets[2])}\] of tile 2 "):
            ops.tiled_csl_validate(words, offsets, 300, 200)


def test_reads_words_that_no_packer_of_ours_would_write():
    """Repeats anywhere, zeros as words, any order: sound, so they must be read right."""
    weight, words, offsets = _packed((128, 64))
    own = words[: int(ops.tiled_csl_validate(words, offsets, 128, 64))]
    free = sorted(set(range(128 * 64)) - set((own.long() & 0xFFFF).tolist()))
    zeros = torch.tensor(free[:3], dtype=torch.int32) | torch.tensor([0, -(2**31), 0]).int()
    shuffled = torch.cat([own, own[10:50], zeros, own[:7]])
    shuffled = shuffled[torch.randperm(len(shuffled))]
    shuffled = torch.cat([shuffled, shuffled[:1].expand(-len(shuffled) % 4)])
    offsets = torch.tensor([0, len(shuffled)], dtype=torch.int32)
    assert torch.equal(ops.tiled_csl_unpack(shuffled, offsets, 128, 64, BFLOAT16), weight)
    assert int(ops.tiled_csl_validate(shuffled, offsets, 128, 64)) == int((weight != 0).sum())
    expected = ops.interleaved_bitmap_pack(weight)
    made = ops.tiled_csl_to_interleaved_bitmap(shuffled, offsets, 128, 64)
    assert all(torch.equal(a, b) for a, b in zip(made, expected, strict=True))
    x = torch.randn(3, 64)
    assert torch.equal(
        ops.tiled_csl_linear(x, shuffled, offsets, 128, BFLOAT16),
        ops.interleaved_bitmap_linear(x, *expected, 128, BFLOAT16),
    )
