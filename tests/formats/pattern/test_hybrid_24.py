# SPDX-License-Identifier: Apache-2.0
"""hybrid_24 and its form on a CPU: units of both kinds, every type and shape, hostile tensors."""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import flashsparse_plugin as fs
from flashsparse_plugin.dataflow.unpacked import complaints
from flashsparse_plugin.formats.pattern.hybrid_24 import HybridUnits
from flashsparse_plugin.formats.values.types import VALUE_TYPES
from flashsparse_plugin.packed import FormatError, PackedWeight

FORMAT = fs.get_format("hybrid_24")
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
CODES = st.fixed_dictionaries(
    {"values": st.sampled_from(sorted(VALUE_TYPES))},
    optional={"group": st.sampled_from([32, 64, 128])},
)


def two_kinds(shape, dtype, seed=0, dense=0.5):
    """A weight of which about such a share of units is dense, and those units."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(shape, generator=generator)
    grid = (-(-shape[0] // 16), -(-shape[1] // 256))
    is_dense = torch.rand(grid, generator=generator) < dense
    wide = torch.nn.functional.pad(weight, (0, -shape[1] % 4)).view(shape[0], -1, 4)
    kept = torch.zeros_like(wide, dtype=torch.bool).scatter_(2, wide.abs().topk(2).indices, True)
    kept = kept.flatten(1)[:, : shape[1]]
    whole = is_dense.repeat_interleave(16, 0)[: shape[0]]
    whole = whole.repeat_interleave(256, 1)[:, : shape[1]]
    return torch.where(kept | whole, weight, 0).to(dtype), is_dense


SHAPES = st.tuples(st.integers(1, 40), st.integers(1, 600))


@settings(max_examples=40, deadline=None)
@given(SHAPES, st.sampled_from(DTYPES), st.integers(0, 99))
def test_native_values_survive_bit_for_bit(shape, dtype, seed):
    weight, is_dense = two_kinds(shape, dtype, seed)
    weight.view(-1)[weight.flatten().nonzero()[:1, 0]] = torch.nan
    packed = fs.pack(weight, "hybrid_24").validate()
    for unpacked in (packed.unpack(), packed.format.reference.unpack(packed)):
        torch.testing.assert_close(unpacked, weight, rtol=0, atol=0, equal_nan=True)
    theirs = packed.format.reference.pack(weight.nan_to_num(7), packed.scheme)
    own = fs.pack(weight.nan_to_num(7), "hybrid_24").tensors
    assert all(torch.equal(own[name], each) for name, each in theirs.items())
    assert packed.density == weight.count_nonzero() / weight.numel()
    if shape[1] > 3:
        kinds = packed.tensors["weight_kinds"].bool()
        assert not (kinds & ~is_dense).any()


@settings(max_examples=60, deadline=None)
@given(
    CODES, SHAPES, st.sampled_from(DTYPES), st.sampled_from(DTYPES),
    st.sampled_from([1, 2, 9]), st.integers(0, 99),
)  # fmt: skip
def test_any_codes_multiply_and_come_back(options, shape, dtype, x_dtype, tokens, seed):
    weight, _ = two_kinds(shape, dtype, seed)
    packed = fs.pack(weight, "hybrid_24", options).validate()
    running = packed.prepare("cpu").validate()
    assert running.format.name == "hybrid_panels"
    for each in (running.unpack(), *(p.format.reference.unpack(p) for p in (running, packed))):
        assert torch.equal(each, packed.unpack())
    assert running.density == packed.density
    back = running.transcode(packed.scheme)
    assert all(torch.equal(back.tensors[name], each) for name, each in packed.tensors.items())

    scales = packed.tensors["weight_scale"].double()
    spread = scales.repeat_interleave(options.get("group", shape[1]), 1)[:, : shape[1]]
    found = packed.format.scheme(torch.float32, {"values": options["values"]})
    ones = torch.ones(shape[0], 1)
    tensors = {**packed.tensors, "weight_scale": ones}
    exact = PackedWeight(found, shape, tensors).unpack().double() * spread
    x = torch.randn(tokens, shape[1]).to(x_dtype)
    y = x.double() @ exact.T
    room = (x.double().abs() @ exact.abs().T) * shape[1] * 2**-22
    room += y.abs() * 2 * torch.finfo(x_dtype).eps + torch.finfo(x_dtype).tiny
    assert ((running.linear(x).double() - y).abs() <= room).all()


@pytest.mark.parametrize("name", sorted(VALUE_TYPES))
@pytest.mark.parametrize("shape", [(40, 600), (16, 256), (17, 70), (3, 1)])
def test_packers_and_references_agree(name, shape):
    scheme = FORMAT.scheme(torch.bfloat16, {"values": name, "group": 32})
    weight = FORMAT.conform(two_kinds(shape, torch.bfloat16)[0], scheme)
    packed = FORMAT.pack(weight, scheme)
    for each in (packed, packed.prepare("cpu")):
        theirs = each.format.reference.pack(weight, each.scheme)
        assert theirs.keys() == each.tensors.keys()
        assert all(torch.equal(each.tensors[name], made) for name, made in theirs.items())


@pytest.mark.parametrize("options", [{}, {"values": "int4", "group": 64}, {"values": "int8"}])
def test_bytes_are_those_of_the_specification(options):
    weight, _ = two_kinds((64, 1024), torch.bfloat16, dense=0)
    weight[:16] = 1 + torch.rand(16, 1024)  # a quarter of the units
    packed = fs.pack(weight, "hybrid_24", options)
    bits = {"int8": 8, "int4": 4}.get(options.get("values"), 16)
    scales = {"int8": 64 * 4, "int4": 64 * 16 * 2}.get(options.get("values"), 0)
    values = 64 * 1024 * (0.25 + 0.75 / 2) * bits / 8
    positions = 64 * 1024 * 0.75 / 8
    assert packed.nbytes == values + positions + 4 * 4 + scales


@pytest.mark.parametrize("values", ["native", "int4"])
def test_kinds_stay_what_they_are_when_a_weight_is_cut_and_joined(values):
    """Also a dense unit that follows 2:4, as another tool may have written."""
    weight, _ = two_kinds((64, 640), torch.bfloat16, dense=0)
    weight[:32] = torch.randn(32, 640)
    packed = fs.pack(weight, "hybrid_24", values=values).validate()
    half = weight.clone()
    half[16:32] = weight[48:]
    tensors = FORMAT.pack(half, packed.scheme).tensors
    assert tensors["weight_kinds"][:, 0].tolist() == [1, 0, 0, 0]
    lower = FORMAT.cut(packed, range(16, 64), range(256, 640)).validate()
    assert torch.equal(lower.unpack(), packed.unpack()[16:, 256:])
    assert lower.tensors["weight_kinds"].tolist() == [[1, 1], [0, 0], [0, 0]]
    ends = (0, 16, 48, 64)
    parts = [
        FORMAT.cut(packed, range(a, b), range(640)) for a, b in zip(ends, ends[1:], strict=False)
    ]
    joined = FORMAT.join(parts).validate()
    assert all(torch.equal(joined.tensors[name], each) for name, each in packed.tensors.items())


def test_a_dense_unit_that_follows_24_is_kept_as_it_came():
    codes = torch.ones(16, 8, dtype=torch.float16)
    scheme = FORMAT.scheme(torch.bfloat16, {"values": "int8"})
    packed = FORMAT.pack_codes(codes, torch.ones(16, 1), scheme)
    zeros = {**packed.tensors, "weight_packed": torch.zeros_like(packed.tensors["weight_packed"])}
    stored = PackedWeight(scheme, (16, 8), zeros).validate()
    assert stored.tensors["weight_kinds"].tolist() == [[1]] and stored.density == 0
    back = stored.prepare("cpu").validate().transcode(scheme)
    assert all(torch.equal(back.tensors[name], each) for name, each in zeros.items())


def hostile(packed, name, index, value):
    tensors = {**packed.tensors, name: packed.tensors[name].clone()}
    tensors[name][index] = value
    return PackedWeight(packed.scheme, packed.shape, tensors)


@pytest.mark.parametrize(
    ("name", "index", "value", "message"),
    [
        ("weight_kinds", (0, 0), 2, "weight_kinds has a kind other than 0 (2:4) and 1 (dense)"),
        ("weight_kinds", (0, 1), 1, "weight_packed has 11440 elements, and the kinds of units ask"),
        ("weight_index", 0, 0b0101_0000, "the two positions of row 0, columns 0 to 3, do not rise"),
        ("weight_index", 5, 0b0001_0100, "the two positions of row 0, columns 44 to 47, do not"),
        ("weight_index", -1, 0b0001_0100, "positions beyond the weight's last window"),
        ("weight_packed", 0, 0x7F, "weight_packed has a code that is NaN"),
        ("weight_packed", -1, 1, "weight_packed has a nonzero beyond the weight's edge"),
        ("weight_scale", (0, 0), torch.inf, "weight_scale must be finite"),
    ],
)
def test_what_breaks_a_rule_is_refused(name, index, value, message):
    weight, _ = two_kinds((40, 569), torch.bfloat16, dense=0)
    weight[:, -1] = 0
    packed = fs.pack(weight, "hybrid_24", values="fp8_e4m3").validate()
    with pytest.raises(FormatError, match=re.escape(message)):
        hostile(packed, name, index, value).validate("up")


@pytest.mark.parametrize(
    ("name", "index", "value", "message"),
    [
        ("kinds", (1, 0), 1, "values must be [1108, 16], not [980, 16]"),
        ("kinds", (0, 0), 9, "weight_kinds has a kind other than"),
        ("positions", (0, 3), 0b0000, "the two positions of row 3, columns 256 to 259, do not"),
        ("values", (0, 2), 0x7F, "weight_packed has a code that is NaN"),
        ("values", (-1, 8), 1, "values has some of rows beyond the weight's edge"),
        ("positions", (-1, 8), 4, "positions has some of rows beyond the weight's edge"),
        ("positions", (-1, 2), 1 << 30, "positions has some beyond the weight's last window"),
        ("scales", (0, 0, 0), torch.nan, "scales must be finite"),
        ("scales", (2, 0, 9), 1.0, "scales has some of rows beyond the weight's edge"),
    ],
)
def test_what_breaks_a_rule_of_panels_is_refused_and_safe(name, index, value, message):
    weight, _ = two_kinds((40, 568), torch.bfloat16, dense=0)
    weight[:16, :256] = 1
    running = fs.pack(weight, "hybrid_24", values="fp8_e4m3").prepare("cpu").validate()
    damaged = hostile(running, name, index, value)
    if "values must be" in message:
        with pytest.raises(RuntimeError, match=r"values must be \[\d+, 16\] or more, not"):
            damaged.linear(torch.ones(2, 568))
    else:
        damaged.linear(torch.ones(2, 568))
        damaged.unpack()
    with pytest.raises(FormatError, match=re.escape(message)):
        damaged.validate("up")


def test_the_op_refuses_what_does_not_fit():
    running = fs.pack(torch.ones(16, 8), "hybrid_24", values="int8").prepare("cpu")
    x, held = torch.ones(1, 8), list(running.tensors.values())
    for change, message in (
        ({0: held[0][:-1]}, "values must be .8, 16. or more, not .7, 16."),
        ({2: held[2].repeat(2, 1)}, "kinds of a .16, 8. weight must be .1, 1., not .2, 1."),
        ({3: held[3].repeat(1, 2, 1)}, "scales of a .16, 8. weight must be .1, 1, 16., not"),
    ):
        tensors = [change.get(i, each) for i, each in enumerate(held)]
        with pytest.raises(RuntimeError, match=message):
            fs.ops.ops.hybrid_panels_linear(x, *tensors, 16, torch.float32, "int8")
    for values, group, message in (
        ("native", 0, "hybrid_panels holds codes, not native values"),
        ("int8", 4, "group must be 0, 32, 64 or 128, not 4"),
    ):
        with pytest.raises(RuntimeError, match=message):
            fs.ops.ops.hybrid_panels_linear(x, *held, 16, torch.float32, values, group)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group": 32}, "native values have no scales. Remedy: values=int8"),
        ({"values": "int8", "group": 48}, "option group: 48 must be 32, 64, 128"),
        ({"values": "int8", "activations": "int8"}, "option activations: Input should be 'native'"),
    ],
)
def test_options_that_cannot_be_are_refused(options, message):
    with pytest.raises(FormatError, match=re.escape(message)):
        FORMAT.scheme(torch.bfloat16, options)


def test_short_names():
    weight = two_kinds((32, 512), torch.bfloat16)[0]
    assert fs.pack(weight, "hybrid").scheme.title == "hybrid_24"
    assert fs.pack(weight, "hybrid-int4", group=64).scheme.title == "hybrid_24(int4 by 64)"
    assert fs.pack(weight, "hybrid-fp8").scheme.title == "hybrid_24(fp8_e4m3)"
    with pytest.raises(FormatError, match="'hybrid-int3' is no format: write hybrid, hybrid-fp8"):
        fs.pack(weight, "hybrid-int3")


def test_on_a_gpu_units_of_both_kinds_run_where_dtypes_have_16_bits():
    weight, cuda = two_kinds((32, 512), torch.bfloat16)[0], torch.device("cuda")
    for name in ("hybrid", "hybrid-int8"):
        stored = fs.pack(weight, name).scheme
        held = FORMAT.runtime(stored, cuda)
        assert (held.format.name, held.options) == ("hybrid_units", stored.options)
        assert list(complaints([("up", held)], cuda)) == []
    wide = fs.pack(weight.float(), "hybrid-int8").scheme
    assert FORMAT.runtime(wide, cuda) == wide
    (told,) = complaints([("up", wide)], cuda)
    assert "no kernel multiplies hybrid_24(int8) float32 on a GPU" in told


@pytest.mark.parametrize("share", [0, 0.25, 1])
def test_a_density_says_how_many_units_are_dense(share):
    """Of weights that are made up: as many entries as the density of the weight they stand for."""
    weight = torch.randn(160, 1024).to(torch.bfloat16)
    for form in (FORMAT, HybridUnits()):
        scheme = form.scheme(torch.bfloat16, {"values": "int8"})
        packed = form.pack(form.thin(weight, scheme, (1 + share) / 2), scheme)
        kinds = packed.transcode(FORMAT.scheme(torch.bfloat16, {"values": "int8"}))
        assert kinds.tensors["weight_kinds"].float().mean() == share
