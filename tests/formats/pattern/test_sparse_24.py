# SPDX-License-Identifier: Apache-2.0
"""sparse_24: the form in which patterns that keep two of every four columns run."""

from __future__ import annotations

import pytest
import torch
from kernel_weights import bits_without_negative_zero, every_bit_pattern
from torch.library import opcheck
from weights import sparse_weight

from flashsparse_plugin.formats import units
from flashsparse_plugin.formats.pattern.nm_vector import NMVector
from flashsparse_plugin.formats.pattern.options import PatternOptions
from flashsparse_plugin.formats.pattern.sparse_24 import Sparse24, layout
from flashsparse_plugin.ops import ops
from flashsparse_plugin.ops.reference import linear as exact_linear
from flashsparse_plugin.packed import FormatError, PackedWeight
from flashsparse_plugin.plan import Plan

FORM = Sparse24()
PATTERNS = [(2, 4, 1), (2, 4, 8), (1, 4, 1), (1, 2, 2), (2, 8, 1), (1, 12, 4), (2, 256, 128)]
SHAPES = [(1, 1), (3, 70), (16, 256), (35, 513), (130, 300)]
every_pattern = pytest.mark.parametrize("pattern", PATTERNS, ids=str)
CODES = [
    ("fp8_e4m3", None),
    ("int8", None),
    ("int4", 32),
    ("int4", 64),
    ("int4", 128),
    ("int4", None),
    ("fp8_e4m3", 64),
    ("int8", 32),
]
NATIVE = ("native", None)


def scheme_of(pattern=(2, 4, 1), dtype=torch.bfloat16, codes=NATIVE):
    n, m, length = pattern
    options = {"n": n, "m": m, "vector_length": length, "values": codes[0], "group": codes[1]}
    return FORM.scheme(dtype, options)


def stored_codes(scheme, shape=(40, 300), seed=0):
    """Any codes that the pattern can hold, the most negative ones among them, and any scales."""
    options, generator = scheme.options, torch.Generator().manual_seed(seed)
    values = options.value_type
    bits = torch.arange(256, dtype=torch.uint8)
    numbers = values.decode(bits[None], 256 * 8 // values.bits)[0]
    numbers = numbers[~numbers.isnan()]
    codes = numbers[torch.randint(len(numbers), shape, generator=generator)]
    codes = codes * (options.keep_largest(torch.rand(shape, generator=generator) + 1) != 0)
    stored = NMVector().scheme(scheme.dtype, scheme.values)
    spec = NMVector().tensors(stored, shape)["weight_scale"]
    scales = torch.rand(spec.shape, generator=generator).to(spec.dtype)
    return NMVector().pack_codes(codes, scales, stored).validate()


def weight_of(scheme, shape=(40, 300), seed=0):
    """Any bits that the pattern can hold: NaN, infinities, subnormal numbers, zeros among them."""
    weight = every_bit_pattern(shape, scheme.dtype, seed)
    kept = FORM.conform(sparse_weight(*shape, 0.7, scheme.dtype, seed), scheme) != 0
    return bits_without_negative_zero(weight).where(kept, 0).view(scheme.dtype)


def alike(a, b):
    """Whether two weights are the same, +0 and -0 taken as one: codes times a negative scale."""
    return torch.equal(*(bits_without_negative_zero(each.contiguous()) for each in (a, b)))


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


@pytest.mark.parametrize("codes", CODES, ids=str)
@pytest.mark.parametrize("shape", SHAPES[1::2], ids=str)
def test_it_holds_codes_as_the_reference_does(codes, shape):
    for seed, dtype in enumerate(FORM.dtypes):
        scheme = scheme_of(PATTERNS[seed], dtype, codes)
        weight = FORM.conform(sparse_weight(*shape, 0.7, dtype, seed), scheme)
        packed = FORM.pack(weight, scheme).validate()
        reference = FORM.reference.pack(weight, scheme)
        assert packed.tensors.keys() == reference.keys()
        assert all(torch.equal(packed.tensors[name], t) for name, t in reference.items())
        assert alike(packed.unpack(), weight) and alike(FORM.reference.unpack(packed), weight)
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


@pytest.mark.parametrize("codes", CODES, ids=str)
@pytest.mark.parametrize("pattern", [(2, 4, 1), (1, 8, 16)], ids=str)
def test_codes_come_here_and_back_as_they_are(pattern, codes):
    packed = stored_codes(scheme_of(pattern, codes=codes))
    there = FORM.arrange(packed.tensors, scheme_of(pattern, codes=codes), packed.shape).validate()
    assert same(there.unpack(), packed.unpack())
    assert same(there.unpack(), FORM.reference.unpack(there))
    back = there.transcode(packed.scheme)
    assert all(torch.equal(back.tensors[name], t) for name, t in packed.tensors.items())


@pytest.mark.parametrize("codes", [NATIVE, CODES[0], CODES[2]], ids=str)
def test_slabs_of_rows_make_the_same(monkeypatch, codes):
    scheme = scheme_of((2, 8, 4), codes=codes)
    weight = FORM.conform(sparse_weight(300, 100, 0.7, scheme.dtype), scheme)
    whole = FORM.pack(weight, scheme)
    monkeypatch.setattr(units, "SLAB_ELEMENTS", 1)
    slabs = units.slabs(300, 100, layout.SLAB_ROWS)
    assert [len(range(300)[slab]) for slab in slabs] == [128, 128, 44]
    parts = FORM.pack(weight, scheme).validate()
    assert torch.equal(parts.tensors["units"], whole.tensors["units"])
    assert alike(parts.unpack(), weight) and FORM.nonzeros(parts) == FORM.nonzeros(whole)


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
    _, metadata, shift = FORM.reference.place(row % 16, column % 256 // 4 * 4)
    for four in bits.flatten().tolist():
        word = own[row // 16, column // 256, metadata].item() & ~(15 << shift) | four << shift
        damaged = own.clone()
        damaged[row // 16, column // 256, metadata] = (word + 2**31) % 2**32 - 2**31
        told = f"row {row}, columns {column // 4 * 4} to {column // 4 * 4 + 3}, do not rise"
        with pytest.raises(FormatError, match=rf"layer 'mine'.*{told}.*convert"):
            PackedWeight(scheme, packed.shape, {"units": damaged}).validate("mine")


def test_units_with_no_numbers_are_refused():
    fp8, int4 = scheme_of(codes=CODES[0]), scheme_of(codes=CODES[4])
    nan, inf = (FORM.arrange(stored_codes(s).tensors, s, (40, 300)) for s in (fp8, int4))
    nan.tensors["units"][1, 1, 5] |= 0x7F
    with pytest.raises(FormatError, match="code that is NaN"):
        nan.validate()
    inf.tensors["units"][1, 1, 256 + 128] |= 0x7F80
    with pytest.raises(FormatError, match="weight_scale must be finite"):
        inf.validate()


@pytest.mark.parametrize("codes", [NATIVE, *CODES], ids=str)
@pytest.mark.parametrize("x_dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_linear_obeys_any_plan_and_is_the_product(x_dtype, codes):
    scheme = scheme_of(codes=codes)
    weight = FORM.conform(sparse_weight(130, 70, 0.7, scheme.dtype), scheme)
    packed = FORM.pack(weight, scheme)
    x, bias = torch.randn(2, 3, 70).to(x_dtype), torch.randn(130).to(x_dtype)
    exact = exact_linear(x, weight, bias)
    tolerance = exact_linear(x.abs(), weight.abs(), bias.abs()) * 70 * 2**-23
    tolerance += exact.abs() * torch.finfo(x_dtype).eps
    for name in (None, *FORM.implementations(scheme)):
        y = packed.linear(x, bias, None if name is None else Plan.only(name))
        assert y.dtype == x_dtype and ((y.double() - exact).abs() <= tolerance).all()


@pytest.mark.parametrize("codes", [NATIVE, CODES[1], CODES[2], CODES[-1]], ids=str)
def test_ops_keep_their_promises(codes):
    scheme = scheme_of(codes=codes)
    packed = FORM.pack(FORM.conform(sparse_weight(50, 70, 0.7), scheme), scheme)
    units, dtype = packed.tensors["units"], torch.bfloat16
    stored = packed.tensors.get("weight_scale"), codes[0], codes[1] or 0
    x, bias = torch.randn(2, 3, 70, requires_grad=True), torch.randn(50, requires_grad=True)
    opcheck(ops.sparse_24_unpack.default, (units, 50, 70, dtype, *stored))
    opcheck(ops.sparse_24_linear.default, (x, units, 50, dtype, bias, 4, 2, *stored))
    scales = torch.rand(6)
    opcheck(ops.sparse_24_linear.default, (x, units, 50, dtype, bias, 4, 2, *stored, scales))
    ops.sparse_24_linear(x, units, 50, dtype, bias, None, None, *stored).sum().backward()
    ours = x.grad, bias.grad
    x.grad = bias.grad = None
    torch.nn.functional.linear(x, packed.unpack().float(), bias).sum().backward()
    torch.testing.assert_close(ours, (x.grad, bias.grad))


@pytest.mark.parametrize("values", ["fp8_e4m3", "int8"])
def test_rounded_activations_on_a_cpu(values):
    scheme = scheme_of(codes=(values, None))
    packed = FORM.pack(FORM.conform(sparse_weight(50, 70, 0.7), scheme), scheme)
    units, scales = packed.tensors["units"], packed.tensors["weight_scale"]
    x, bias = torch.randn(2, 3, 70).bfloat16(), torch.randn(50).bfloat16()
    x[1, 1] = 0
    trained = x.clone().requires_grad_()
    rest = units, scales, 50, torch.bfloat16, values
    opcheck(ops.sparse_24_linear_rounded.default, (trained, *rest, bias, 4))
    y = ops.sparse_24_linear_rounded(x, *rest, bias)
    exact = exact_linear(x, packed.unpack(), bias)
    # Codes have four bits, so they are off by a sixteenth at most: of sums of 35, mostly far less.
    assert (y.double() - exact).norm() < 0.05 * exact.norm() and torch.equal(y[1, 1], bias)
    with pytest.raises(RuntimeError, match="x must have the dtype of the weight"):
        ops.sparse_24_linear_rounded(x.half(), *rest)
    with pytest.raises(RuntimeError, match="rounded to fp8_e4m3 or int8, not int4"):
        ops.sparse_24_linear_rounded(x, *rest[:-1], "int4")


def test_ops_refuse_what_does_not_fit():
    units = torch.zeros(4, 1, 1152, dtype=torch.int32)
    codes, scales = torch.zeros(4, 1, 640, dtype=torch.int32), torch.ones(50, 1)
    x, dtype = torch.ones(6, 70), torch.bfloat16
    for bad, told in (
        ((x, units, 66, dtype), r"units of a \[66, 70\] weight are \[5, 1, 1152\]"),
        ((torch.ones(2, 257), units, 50, dtype), r"\[4, 2, 1152\], not \[4, 1, 1152\]"),
        ((x, units, 50, dtype, None, -1), "sparse_tokens must be 0 .* not -1"),
        ((x, units, 50, dtype, None, None, -1), "few_tokens must be 0 .* not -1"),
        ((x, codes, 50, dtype), r"\[4, 1, 1152\], not \[4, 1, 640\]"),
        (
            (x, codes, 50, dtype, None, None, None, None, "int8"),
            r"weight_scale of int8 .* \[50, 1\]",
        ),
        ((x, codes, 50, dtype, None, None, None, scales[1:], "int8"), r"must be \[50, 1\]"),
        ((x, codes, 50, dtype, None, None, None, scales, "int8", 7), "int8 with group 7"),
        ((x, units, 50, dtype, None, None, None, scales), "native values have no weight_scale"),
    ):
        with pytest.raises(RuntimeError, match=told):
            ops.sparse_24_linear(*bad)


def test_options_are_those_of_the_storage_form():
    assert FORM.Options is PatternOptions is NMVector().Options and not FORM.on_disk
