# SPDX-License-Identifier: Apache-2.0
"""sparse_24: the form in which patterns that keep two of every four columns run."""

from __future__ import annotations

import pytest
import torch
from kernel_weights import bits_without_negative_zero, every_bit_pattern
from torch.library import opcheck
from weights import sparse_weight

from flashsparse_plugin.formats.nm_pattern import PatternOptions
from flashsparse_plugin.formats.nm_vector import NMVector
from flashsparse_plugin.formats.sparse_24 import Sparse24, layout
from flashsparse_plugin.ops import ops
from flashsparse_plugin.ops.reference import linear as exact_linear
from flashsparse_plugin.packed import FormatError, PackedWeight
from flashsparse_plugin.plan import Plan

FORM = Sparse24()
PATTERNS = [(2, 4, 1), (2, 4, 8), (1, 4, 1), (1, 2, 2), (2, 8, 1), (1, 12, 4), (2, 256, 128)]
SHAPES = [(1, 1), (3, 70), (16, 256), (35, 513), (130, 300)]
every_pattern = pytest.mark.parametrize("pattern", PATTERNS, ids=str)


def scheme_of(pattern=(2, 4, 1), dtype=torch.bfloat16):
    n, m, length = pattern
    return FORM.scheme(dtype, {"n": n, "m": m, "vector_length": length})


def weight_of(scheme, shape=(40, 300), seed=0):
    """Any bits that the pattern can hold: NaN, infinities, subnormal numbers, zeros among them."""
    weight = every_bit_pattern(shape, scheme.dtype, seed)
    kept = FORM.conform(sparse_weight(*shape, 0.7, scheme.dtype, seed), scheme) != 0
    return bits_without_negative_zero(weight).where(kept, 0).view(scheme.dtype)


def same(a, b):
    return torch.equal(a.contiguous().view(torch.int16), b.contiguous().view(torch.int16))


@every_pattern
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_holds_the_weight_as_the_reference_does(pattern, shape):
    for seed, dtype in enumerate(FORM.dtypes):
        scheme = scheme_of(pattern, dtype)
        weight = weight_of(scheme, shape, seed)
        packed = FORM.pack(weight, scheme).validate()
        units = FORM.reference.pack(weight, scheme)["units"]
        assert torch.equal(packed.tensors["units"], units)
        assert same(packed.unpack(), weight) and same(FORM.reference.unpack(packed), weight)
        assert FORM.nonzeros(packed) == weight.count_nonzero()


@every_pattern
def test_the_storage_form_leads_here_and_back(pattern):
    scheme = scheme_of(pattern)
    stored = NMVector().scheme(scheme.dtype, scheme.values)
    packed = NMVector().pack(weight_of(scheme), stored)
    there = FORM.arrange(packed.tensors, scheme, packed.shape)
    assert torch.equal(there.tensors["units"], packed.transcode(scheme).tensors["units"])
    back = there.transcode(stored)
    assert all(torch.equal(back.tensors[name], t) for name, t in packed.tensors.items())


def test_slabs_of_rows_make_the_same(monkeypatch):
    scheme = scheme_of((2, 8, 4))
    weight = weight_of(scheme, (300, 100))
    whole = FORM.pack(weight, scheme)
    monkeypatch.setattr(layout, "SLAB_ELEMENTS", 1)
    assert [len(range(300)[slab]) for slab in layout.slabs(300, 100)] == [128, 128, 44]
    parts = FORM.pack(weight, scheme).validate()
    assert torch.equal(parts.tensors["units"], whole.tensors["units"])
    assert same(parts.unpack(), weight) and FORM.nonzeros(parts) == FORM.nonzeros(whole)


def test_units_do_not_depend_on_the_pattern_by_which_a_weight_was_stored():
    weight = weight_of(scheme_of((1, 8, 16)), (64, 128))
    units = [FORM.pack(weight, scheme_of(p)).tensors["units"] for p in ((1, 8, 16), (2, 4, 1))]
    assert torch.equal(*units)


@pytest.mark.parametrize("pattern", [(3, 4, 1), (4, 8, 1), (1, 3, 1), (2, 6, 1), (1, 1, 1)])
def test_a_pattern_that_keeps_more_than_two_of_four_is_refused(pattern):
    scheme = scheme_of(pattern)
    with pytest.raises(FormatError, match=rf"{pattern[0]}:{pattern[1]}.*at most two of every four"):
        FORM.pack(torch.zeros(4, 24, dtype=scheme.dtype), scheme)


def test_a_weight_off_its_pattern_is_refused():
    with pytest.raises(FormatError, match="2:4"):
        FORM.pack(torch.ones(4, 8, dtype=torch.bfloat16), scheme_of())


@pytest.mark.parametrize(("row", "column"), [(0, 0), (39, 296), (17, 131)])
def test_positions_that_do_not_rise_are_refused_by_their_place(row, column):
    scheme = scheme_of()
    packed = FORM.pack(weight_of(scheme), scheme)
    own = packed.tensors["units"].clone()
    bits = torch.tensor([[0x0, 0x5, 0xA, 0xF, 0x1, 0xB]]).T  # both alike, or falling
    _, metadata, shift = FORM.reference._words(row % 16, column % 256 // 4 * 4)
    for four in bits.flatten().tolist():
        word = own[row // 16, column // 256, metadata].item() & ~(15 << shift) | four << shift
        damaged = own.clone()
        damaged[row // 16, column // 256, metadata] = (word + 2**31) % 2**32 - 2**31
        told = f"row {row}, columns {column // 4 * 4} to {column // 4 * 4 + 3}, do not rise"
        with pytest.raises(FormatError, match=rf"layer 'mine'.*{told}.*convert"):
            PackedWeight(scheme, packed.shape, {"units": damaged}).validate("mine")


@pytest.mark.parametrize("x_dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_linear_obeys_any_plan_and_is_the_product(x_dtype):
    scheme = scheme_of()
    weight = FORM.conform(sparse_weight(130, 70, 0.7, scheme.dtype), scheme)
    packed = FORM.pack(weight, scheme)
    x, bias = torch.randn(2, 3, 70).to(x_dtype), torch.randn(130).to(x_dtype)
    exact = exact_linear(x, weight, bias)
    tolerance = exact_linear(x.abs(), weight.abs(), bias.abs()) * 70 * 2**-23
    tolerance += exact.abs() * torch.finfo(x_dtype).eps
    for name in (None, *FORM.implementations(scheme)):
        y = packed.linear(x, bias, None if name is None else Plan.only(name))
        assert y.dtype == x_dtype and ((y.double() - exact).abs() <= tolerance).all()


def test_ops_keep_their_promises():
    scheme = scheme_of()
    packed = FORM.pack(FORM.conform(sparse_weight(50, 70, 0.7), scheme), scheme)
    units, dtype = packed.tensors["units"], torch.bfloat16
    x, bias = torch.randn(2, 3, 70, requires_grad=True), torch.randn(50, requires_grad=True)
    opcheck(ops.sparse_24_unpack.default, (units, 50, 70, dtype))
    opcheck(ops.sparse_24_linear.default, (x, units, 50, dtype, bias, 4))
    ops.sparse_24_linear(x, units, 50, dtype, bias).sum().backward()
    ours = x.grad, bias.grad
    x.grad = bias.grad = None
    torch.nn.functional.linear(x, packed.unpack().float(), bias).sum().backward()
    torch.testing.assert_close(ours, (x.grad, bias.grad))
    for bad, told in (
        ((x, units, 66, dtype), r"units of a \[66, 70\] weight are \[5, 1, 1152\]"),
        ((torch.ones(2, 257), units, 50, dtype), r"\[4, 2, 1152\], not \[4, 1, 1152\]"),
        ((x, units, 50, dtype, None, -1), "sparse_tokens must be 0 .* not -1"),
    ):
        with pytest.raises(RuntimeError, match=told):
            ops.sparse_24_linear(*bad)


def test_the_planned_ops_have_a_shape_without_a_gpu():
    units = torch.empty(4, 1, 1152, dtype=torch.int32, device="meta")
    x = torch.empty(2, 3, 70, dtype=torch.bfloat16, device="meta")
    for op, plan in (
        (ops.sparse_24_linear_planned, [0, 1, 1, 2, 2, 1]),
        (ops.sparse_24_wgmma_planned, [0, 1, 1, 2, 1]),
    ):
        y = op(x, units, 50, torch.bfloat16, None, plan)
        assert (y.shape, y.dtype) == ((2, 3, 50), torch.bfloat16)


def test_options_are_those_of_the_storage_form():
    assert FORM.Options is PatternOptions is NMVector().Options and not FORM.on_disk
