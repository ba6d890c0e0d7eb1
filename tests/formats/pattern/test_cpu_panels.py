# SPDX-License-Identifier: Apache-2.0
"""nm_rows and nm_panels with codes: every pattern, type and shape, and what they refuse."""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import flashsparse_plugin as fs
from flashsparse_plugin.formats.pattern.options import VECTOR_LENGTHS, PatternOptions
from flashsparse_plugin.packed import FormatError, PackedWeight

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@st.composite
def options_of_codes(draw):
    m = draw(st.sampled_from([1, 2, 3, 4, 8, 16, 31, 32, 256]))
    values = draw(st.sampled_from(["fp8_e4m3", "int8", "int4"]))
    groups = [None, *(group for group in (32, 64, 128) if group % m == 0)]
    return PatternOptions(
        n=draw(st.integers(1, m)),
        m=m,
        vector_length=draw(st.sampled_from(VECTOR_LENGTHS)),
        values=values,
        group=draw(st.sampled_from(groups)),
    )


def packed_as(options, shape, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    weight = options.keep_largest(torch.randn(shape, generator=generator)).to(dtype)
    return fs.pack(weight, "nm_vector", options.model_dump()).validate()


@settings(max_examples=60, deadline=None)
@given(
    options_of_codes(), st.tuples(st.integers(1, 40), st.integers(1, 150)), st.sampled_from(DTYPES),
    st.sampled_from(DTYPES), st.sampled_from([1, 2, 9]), st.integers(0, 99),
)  # fmt: skip
def test_any_codes_multiply_and_come_back(options, shape, dtype, x_dtype, tokens, seed):
    packed = packed_as(options, shape, dtype, seed)
    running = packed.prepare("cpu").validate()
    assert running.format.name == ("nm_panels" if options.vector_length >= 16 else "nm_rows")
    assert torch.equal(running.unpack(), packed.unpack())
    assert torch.equal(running.format.reference.unpack(running), packed.unpack())
    assert running.density == packed.density
    back = running.transcode(packed.scheme)
    assert all(torch.equal(back.tensors[name], each) for name, each in packed.tensors.items())

    codes, scales = back.format.codes(back), back.tensors["weight_scale"]
    spread = scales.double().repeat_interleave(options.group or shape[1], 1)[:, : shape[1]]
    exact = codes.double() * spread
    x = torch.randn(tokens, shape[1]).to(x_dtype)
    y = x.double() @ exact.T
    room = (x.double().abs() @ exact.abs().T) * shape[1] * 2**-22
    room += y.abs() * 2 * torch.finfo(x_dtype).eps + torch.finfo(x_dtype).tiny
    assert ((running.linear(x).double() - y).abs() <= room).all()


@pytest.mark.parametrize("length", [1, 16])
@pytest.mark.parametrize("values", ["fp8_e4m3", "int8", "int4"])
def test_packer_and_reference_agree(values, length):
    options = PatternOptions(n=3, m=8, vector_length=length, values=values, group=32)
    packed = packed_as(options, (37, 75), torch.bfloat16)
    running = packed.prepare("cpu")
    theirs = running.format.reference.pack(packed.unpack(), running.scheme)
    again = fs.pack(packed.unpack(), "nm_vector", options.model_dump()).prepare("cpu")
    assert all(torch.equal(again.tensors[name], each) for name, each in theirs.items())


def test_a_layer_saves_the_bytes_that_it_loaded():
    options = {"n": 2, "m": 4, "values": "int8"}
    scheme = fs.pack(torch.zeros(40, 72), "nm_vector", options).scheme
    codes = torch.randint(-128, 128, (40, 72)).float() * torch.tensor([0.0, 1, 0, 1]).repeat(18)
    codes[3, 1] = -128  # which none of the others is in one run of 280
    stored = scheme.format.pack_codes(codes, torch.rand(40, 1), scheme)
    assert -128 in stored.tensors["weight_packed"].view(torch.int8)
    layer = fs.SparseLinear.from_packed(stored)
    assert layer.held.format.name == "nm_rows"
    saved = layer.state_dict()
    assert all(torch.equal(saved[name], each) for name, each in stored.tensors.items())
    assert torch.equal(layer.half().state_dict()["weight_scale"], stored.tensors["weight_scale"])


@pytest.mark.parametrize(
    ("length", "values"), [(2, "int8"), (2, "int4"), (16, "native"), (16, "int8"), (16, "int4")]
)
def test_places_that_others_chose_for_zeros_come_back(length, values):
    """Positions 1 and 3, which our packer would not fill with zeros."""
    options = PatternOptions(n=2, m=4, vector_length=length, values=values)
    packed = packed_as(options, (40, 12), torch.bfloat16)
    zeros = {name: each.clone() for name, each in packed.tensors.items()}
    zeros["weight_packed"].zero_()
    zeros["weight_index"][:] = torch.tensor([0b11011101, 0b1101], dtype=torch.uint8)
    stored = PackedWeight(packed.scheme, packed.shape, zeros).validate()
    back = stored.prepare("cpu").validate().transcode(stored.scheme).tensors
    assert all(torch.equal(back[name], each) for name, each in zeros.items())


@pytest.mark.parametrize(
    ("name", "index", "value", "message"),
    [
        ("positions", (0, 0, 3), 0b1111, "positions differ among rows"),
        ("positions", (0, 0, slice(2, 4)), 0b0000, "the positions of a window do not rise"),
        ("positions", (0, 0, slice(2, 4)), 0b1101, "positions has one outside of its window of 3"),
        ("values", (1, 3, 2), 0x7F, "values has a code that is NaN"),
        ("values", (1, 13, 2), 0x11, "values has a nonzero beyond the weight's edge"),
        ("scales", (0, 0, 0), torch.inf, "scales must be finite"),
    ],
)
def test_what_breaks_a_rule_is_refused(name, index, value, message):
    options = PatternOptions(n=2, m=3, vector_length=2, values="fp8_e4m3")
    running = packed_as(options, (40, 19), torch.bfloat16).prepare("cpu").validate()
    tensors = {**running.tensors, name: running.tensors[name].clone()}
    tensors[name][index] = value
    damaged = PackedWeight(running.scheme, running.shape, tensors)
    damaged.linear(torch.ones(2, 19))  # safe all the same
    with pytest.raises(FormatError, match=re.escape(message)):
        damaged.validate("up")


def test_what_it_cannot_hold_is_named():
    form = packed_as(PatternOptions(n=2, m=4, values="int8"), (16, 8), torch.float16).prepare("cpu")
    for options in ({"n": 2, "m": 4}, {"n": 2, "m": 4, "values": "int8", "vector_length": 32}):
        scheme = form.format.scheme(torch.float16, options)
        with pytest.raises(FormatError, match="nm_rows cannot hold a weight of shape .*it holds"):
            form.format.pack(torch.zeros(16, 8, dtype=torch.float16), scheme)
    with pytest.raises(RuntimeError, match="values of a .16, 8. weight must be .1, 2, 16., not"):
        fs.ops.ops.nm_rows_linear(
            torch.ones(1, 8), *form.tensors.values(), 16, 2, 4, torch.float16, "int4"
        )
