# SPDX-License-Identifier: Apache-2.0
"""hybrid_units: the form in which hybrid_24 runs on a GPU."""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.library import opcheck

from flashsparse_plugin.formats import get_format
from flashsparse_plugin.formats.pattern.hybrid_24 import HybridPanels, HybridUnits
from flashsparse_plugin.formats.pattern.hybrid_24.layout import keep_dense
from flashsparse_plugin.formats.pattern.sparse_24 import Sparse24
from flashsparse_plugin.formats.values.types import VALUE_TYPES
from flashsparse_plugin.ops import ops
from flashsparse_plugin.ops.reference import linear as exact_linear
from flashsparse_plugin.packed import FormatError, PackedWeight

FORM, STORED = HybridUnits(), get_format("hybrid_24")
OPTIONS = st.one_of(
    st.just({}),
    st.fixed_dictionaries(
        {"values": st.sampled_from(sorted(VALUE_TYPES))},
        optional={"group": st.sampled_from([32, 64, 128])},
    ),
)
SHAPES = st.tuples(st.integers(1, 40), st.integers(1, 600))


def weight_of(shape, dtype, dense=0.5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return keep_dense(torch.randn(shape, generator=generator).to(dtype), dense, seed)


@settings(max_examples=60, deadline=None)
@given(
    OPTIONS, SHAPES, st.sampled_from(FORM.dtypes), st.sampled_from([0, 0.25, 0.5, 1]),
    st.integers(0, 99),
)  # fmt: skip
def test_any_weight_comes_and_goes(options, shape, dtype, dense, seed):
    """As on disk, kinds of units included; and as its oracle reads it."""
    packed = STORED.pack(weight_of(shape, dtype, dense, seed), STORED.scheme(dtype, options))
    running = packed.transcode(FORM.scheme(dtype, options)).validate()
    assert torch.equal(running.unpack(), packed.unpack())
    assert torch.equal(FORM.reference.unpack(running), packed.unpack())
    assert running.density == packed.density
    back = running.transcode(packed.scheme)
    assert all(torch.equal(back.tensors[name], each) for name, each in packed.tensors.items())
    if options:
        panels = running.transcode(HybridPanels().scheme(dtype, options)).validate()
        again = panels.transcode(running.scheme)
        assert all(torch.equal(again.tensors[n], each) for n, each in running.tensors.items())


@pytest.mark.parametrize("group", [None, 32, 64, 128])
@pytest.mark.parametrize("values", ["native", *sorted(VALUE_TYPES)])
def test_packer_and_reference_agree(values, group):
    if values == "native" and group:
        return
    options = {"values": values, "group": group}
    scheme = FORM.scheme(torch.bfloat16, options)
    for shape in ((40, 600), (17, 70)):
        weight = FORM.conform(weight_of(shape, torch.bfloat16), scheme)
        own, theirs = FORM.pack(weight, scheme).tensors, FORM.reference.pack(weight, scheme)
        assert own.keys() == theirs.keys()
        assert all(torch.equal(own[name], each) for name, each in theirs.items())


@pytest.mark.parametrize("options", [{}, {"values": "int8"}, {"values": "int4", "group": 32}])
def test_units_of_24_are_those_of_sparse_24(options):
    weight = weight_of((40, 600), torch.float16, dense=0)
    own = FORM.pack(weight, FORM.scheme(weight.dtype, options)).tensors
    pattern = {"n": 2, "m": 4, **options}
    other = Sparse24().pack(weight, Sparse24().scheme(weight.dtype, pattern)).tensors
    assert torch.equal(own["units"], other["units"].flatten())
    assert own["unit_offsets"].diff().unique().tolist() == [other["units"].shape[2] // 16]


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({}, (4608, 8192)),
        ({"values": "fp8_e4m3"}, (2560, 4096)),
        ({"values": "int8", "group": 64}, (2688, 4224)),
        ({"values": "int4", "group": 32}, (1792, 2304)),
    ],
)
def test_bytes_are_those_of_the_specification(options, sizes):
    weight = weight_of((64, 1024), torch.bfloat16, dense=0)
    weight[:16] = 1 + torch.rand(16, 1024)  # a quarter of the units
    packed = FORM.pack(weight, FORM.scheme(weight.dtype, options))
    assert packed.tensors["units"].nbytes == 12 * sizes[0] + 4 * sizes[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_its_product_is_exact_on_a_cpu_too(dtype):
    weight, x = weight_of((40, 300), torch.bfloat16), torch.randn(2, 3, 300).to(dtype)
    bias = torch.randn(40).to(dtype)
    y = FORM.pack(weight, FORM.scheme(weight.dtype)).linear(x, bias)
    exact = exact_linear(x, weight, bias)
    size = exact_linear(x.abs(), weight.abs(), bias.abs())
    room = size * 300 * 2**-23 + exact.abs() * torch.finfo(dtype).eps
    assert y.dtype == dtype and ((y.double() - exact).abs() <= room).all()


@pytest.mark.parametrize("options", [{}, {"values": "int8"}, {"values": "int4", "group": 64}])
def test_ops_are_whole(options):
    packed = FORM.pack(weight_of((40, 300), torch.bfloat16), FORM.scheme(torch.bfloat16, options))
    units, offsets, *scales = packed.tensors.values()
    told = (*(scales or [None]), options.get("values", "native"), options.get("group", 0))
    opcheck(ops.hybrid_units_unpack.default, (units, offsets, 40, 300, torch.bfloat16, *told))
    for x in (torch.randn(3, 300), torch.randn(2, 3, 300).to(torch.bfloat16)):
        x.requires_grad_()
        bias = torch.randn(40, dtype=x.dtype)
        for more in ((None, None, None), (bias, 4, 2)):
            inputs = (x, units, offsets, 40, torch.bfloat16, *more, *told)
            opcheck(ops.hybrid_units_linear.default, inputs)


def test_ops_refuse_other_shapes():
    packed = FORM.pack(weight_of((40, 300), torch.bfloat16), FORM.scheme(torch.bfloat16))
    units, offsets = packed.tensors.values()
    x, scales = torch.randn(3, 300), torch.ones(40, 1)
    for held, more, told in (
        ((units, offsets[1:]), (), "unit_offsets of a .40, 300. weight are .7., not .6."),
        ((units[: 6 * 1152 - 1], offsets), (), "weight take 27648 to 49152 bytes"),
        ((units[None], offsets), (), "in one dimension, not"),
        ((units, offsets), (scales,), "native values have no weight_scale"),
        ((units[: 6 * 640], offsets), (None, "int8"), "weight_scale of int8 must be .40, 1."),
        ((units, offsets), (None, "int8", 48), "not int8 with group 48"),
    ):
        with pytest.raises(RuntimeError, match=told):
            ops.hybrid_units_linear(x, *held, 40, torch.bfloat16, None, None, None, *more)
    with pytest.raises(RuntimeError, match="sparse_tokens must be 0 .* or more"):
        ops.hybrid_units_linear(x, units, offsets, 40, torch.bfloat16, None, -1)


def put(place, value):
    return lambda tensor: tensor.__setitem__(place, value)


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("unit_offsets", put(0, 1), "unit_offsets must go from 0 to"),
        ("unit_offsets", put(-1, 10**6), "the end of units, not from 0 to 1000000"),
        ("unit_offsets", put(1, 10**6), "unit 0 has 16000000 words by unit_offsets: one of 2:4"),
        ("unit_offsets", put(1, -1), "unit 0 has -16 words by unit_offsets"),
        ("unit_offsets", put(1, 64), "unit 1 has 256 words by unit_offsets"),  # 0 is dense then
        ("units", put(512, 0), "two positions of row 0, columns 0 to 3, do not rise"),
        ("units", put(0, 0x7F), "units have a code that is NaN"),
        ("weight_scale", put((3, 0), torch.inf), "weight_scale must be finite"),
    ],
)
def test_what_breaks_a_rule_is_refused(name, change, told):
    weight = weight_of((40, 500), torch.bfloat16, dense=0)
    packed = FORM.pack(weight, FORM.scheme(weight.dtype, {"values": "fp8_e4m3"})).validate()
    tensors = {key: each.clone() for key, each in packed.tensors.items()}
    change(tensors[name])
    with pytest.raises(FormatError, match=re.escape(told)):
        PackedWeight(packed.scheme, packed.shape, tensors).validate("up")


@pytest.mark.parametrize("dense", [0, 1])
def test_what_lies_beyond_the_edge_is_zero(dense):
    """Of a unit of either kind: values, and scales of groups."""
    weight = weight_of((17, 500), torch.bfloat16, dense)
    packed = FORM.pack(weight, FORM.scheme(weight.dtype, {"values": "int8", "group": 128}))
    begin, end = (16 * each for each in packed.tensors["unit_offsets"][-2:].tolist())
    for places, told in (
        (slice(begin, begin + 512), "values beyond the weight's edge"),
        (slice(end - 1, end), "scales beyond the weight's edge"),  # of rows 14 and 15
    ):
        tensors = {key: each.clone() for key, each in packed.tensors.items()}
        tensors["units"][places] = 0x01010101
        with pytest.raises(FormatError, match=told):
            PackedWeight(packed.scheme, packed.shape, tensors).validate("up")
