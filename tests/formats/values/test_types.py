# SPDX-License-Identifier: Apache-2.0
"""Codes of 8 and 4 bits with scales: what is kept exactly, what is rounded, what is refused."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import flashsparse_plugin as fs
from flashsparse_plugin.formats import get_format
from flashsparse_plugin.formats.pattern.cpu_panels import NMPanels, NMRows
from flashsparse_plugin.formats.pattern.nm_gather import NMGather
from flashsparse_plugin.formats.pattern.options import VECTOR_LENGTHS
from flashsparse_plugin.formats.pattern.sparse_24 import Sparse24
from flashsparse_plugin.formats.values import types as value_types
from flashsparse_plugin.formats.values.types import GROUPS, VALUE_TYPES, quantise
from flashsparse_plugin.packed import FormatError, PackedWeight

FORMAT = get_format("nm_vector")
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@st.composite
def schemes(draw):
    m = draw(st.sampled_from([1, 2, 4, 8, 16, 32, 64]))
    group = draw(st.sampled_from([None, *GROUPS]))
    assume(group is None or group % m == 0)
    options = {
        "n": draw(st.integers(1, m)),
        "m": m,
        "vector_length": draw(st.sampled_from(VECTOR_LENGTHS)),
        "values": draw(st.sampled_from(list(VALUE_TYPES))),
        "group": group,
    }
    return FORMAT.scheme(draw(st.sampled_from(DTYPES)), options)


def coded(scheme, shape, seed=0):
    """Random codes that follow the pattern, zeros among what is kept, and random scales."""
    generator = torch.Generator().manual_seed(seed)
    options = scheme.options
    pattern = options.keep_largest(torch.randn(shape, generator=generator)) != 0
    values = options.value_type
    spread = (torch.rand(shape, generator=generator) * 2 - 1) * 1.2 * values.most
    codes = values.round(spread) * pattern + 0.0
    group = options.group or shape[1]
    dtype = scheme.dtype if options.group else torch.float32
    scales = torch.rand(shape[0], -(-shape[1] // group), generator=generator) * 2 - 1
    scales = scales.to(dtype) / 64
    spread_scales = scales.float().repeat_interleave(group, 1)[:, : shape[1]]
    return codes, scales, (codes.float() * spread_scales).to(scheme.dtype)


@pytest.mark.parametrize("values", list(VALUE_TYPES))
@pytest.mark.parametrize("group", [None, 32, 128])
@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_codes_and_scales_depend_on_no_order_of_additions(values, group, scale):
    """As each device adds in its own: columns of a group change places, and codes with them."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(40, 4096, generator=generator) * scale
    width = group or 4096
    order = torch.cat([
        first + torch.randperm(width, generator=generator) for first in range(0, 4096, width)
    ])  # fmt: skip
    codes, scales = quantise(weight, VALUE_TYPES[values], group)
    moved, same = quantise(weight[:, order], VALUE_TYPES[values], group)
    assert torch.equal(same, scales) and torch.equal(moved, codes[:, order])


@settings(max_examples=60)
@given(schemes(), st.tuples(st.integers(1, 70), st.integers(1, 300)), st.integers(0, 99))
def test_codes_and_scales_stay_as_they_are(scheme, shape, seed):
    codes, scales, weight = coded(scheme, shape, seed)
    packed = FORMAT.pack_codes(codes, scales, scheme).validate()
    assert torch.equal(packed.unpack(), weight)
    assert torch.equal(FORMAT.reference.unpack(packed), weight)
    assert torch.equal(packed.tensors["weight_scale"], scales)
    assert FORMAT.nonzeros(packed) == codes.count_nonzero()

    running = packed.prepare("cpu").validate()
    back = running.transcode(scheme)
    assert all(torch.equal(back.tensors[name], each) for name, each in packed.tensors.items())

    x = torch.randn(3, shape[1], dtype=scheme.dtype)
    exact = x.double() @ weight.double().T
    room = (x.double().abs() @ weight.double().abs().T) * (shape[1] * 2**-22)
    room += exact.abs() * 2 * torch.finfo(scheme.dtype).eps
    # The form that runs may keep code x scale exact where the weight has it rounded.
    room += (x.double().abs() @ weight.double().abs().T) * torch.finfo(scheme.dtype).eps
    for form in (packed, running):
        assert torch.equal(form.unpack(), weight)
        assert ((form.linear(x).double() - exact).abs() <= room).all()


@settings(max_examples=30)
@given(schemes(), st.tuples(st.integers(1, 70), st.integers(1, 300)), st.integers(0, 99))
def test_a_weight_that_codes_can_hold_comes_back(scheme, shape, seed):
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(scheme.dtype)
    weight = FORMAT.conform(weight, scheme)
    packed = fs.pack(weight, "nm_vector", scheme.values)
    assert torch.equal(packed.unpack(), weight)
    theirs = FORMAT.reference.pack(weight, scheme)
    assert all(torch.equal(theirs[name], each) for name, each in packed.tensors.items())


@pytest.mark.parametrize("group", [None, 32])
@pytest.mark.parametrize("name", VALUE_TYPES)
def test_scales_are_those_of_the_least_error(name, group):
    """No clipping ratio of the grid is better, and codes are the nearest by their scale."""
    values = VALUE_TYPES[name]
    weight = torch.randn(8, 96, generator=torch.Generator().manual_seed(1)) * 0.02
    codes, scales = quantise(weight, values, group)
    width = group or 96
    parts, own = weight.view(8, -1, width), codes.float().view(8, -1, width)
    error = (own * scales[..., None] - parts).square().sum(2)
    for clip in values.clips:
        largest = parts.gather(2, parts.abs().argmax(2, keepdim=True))
        # Codes of int4 go to -8 on one side alone, that of the largest weight.
        scale = (largest / -8 if name == "int4" else largest.abs() / values.most) * clip
        other = (values.round(parts / scale) * scale - parts).square().sum(2)
        assert (error <= other * 1.0001).all()
    nearest = values.round(parts / scales[..., None])
    assert torch.equal(nearest, own)


def test_sixteen_codes_are_used_whatever_the_sign_of_the_largest_weight():
    for sign in (1, -1):
        weight = sign * torch.linspace(-0.7, 0.8, 16).repeat(2).view(1, 32)
        codes, scales = quantise(weight, VALUE_TYPES["int4"], 32)
        assert torch.allclose(scales, torch.tensor([[-0.1 * sign]]))
        assert codes.unique().numel() == 16 and torch.allclose(codes * scales, weight, atol=1e-6)


def test_zeros_and_small_weights():
    weight = torch.zeros(2, 64, dtype=torch.float16)
    weight[1, ::2] = 6e-8  # the smallest number of float16
    for values in VALUE_TYPES:
        packed = fs.pack(weight, "nm_vector", n=2, m=4, values=values, group=32)
        assert not packed.unpack()[0].any()
        assert torch.equal(packed.unpack() != 0, weight != 0)


@pytest.mark.parametrize("values", VALUE_TYPES)
def test_a_weight_that_is_not_finite_is_refused(values):
    weight = torch.ones(4, 4)
    weight[2, 1] = torch.nan
    with pytest.raises(FormatError, match=r"\[4, 4\].*NaN.*values=native"):
        fs.pack(weight, "nm_vector", n=4, m=4, values=values)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"group": 32}, "native values have no scales"),
        ({"values": "int4", "group": 48}, "group: 48 must be 32, 64 or 128"),
        ({"n": 2, "m": 64, "values": "int4", "group": 32}, "a multiple of m, which is 64"),
        ({"values": "int3"}, "values"),
    ],
)
def test_options_that_there_are_not(options, said):
    with pytest.raises(FormatError, match=said):
        FORMAT.scheme(torch.bfloat16, {"n": 2, "m": 4, **options})


def test_native_schemes_are_written_as_they_were():
    scheme = FORMAT.scheme(torch.bfloat16, {"n": 2, "m": 4})
    assert scheme.values == {"n": 2, "m": 4, "vector_length": 1}
    with_codes = FORMAT.scheme(torch.bfloat16, {"n": 2, "m": 4, "values": "int4", "group": 128})
    assert with_codes.title == "nm_vector(2:4, int4 by 128)"
    assert FORMAT.scheme(torch.bfloat16, with_codes.values) == with_codes


def int8_pack():
    scheme = FORMAT.scheme(torch.float16, {"n": 2, "m": 4, "values": "int8"})
    return scheme, *coded(scheme, (8, 32))[:2]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda codes, scales: (codes + 0.5, scales), "no int8 numbers"),
        (lambda codes, scales: (torch.ones_like(codes), scales), "row 0"),
        (lambda codes, scales: (codes, scales[:4]), r"weight_scale must be \[8, 1\]"),
        (lambda codes, scales: (codes, scales * torch.inf), "finite"),
        (lambda codes, scales: (codes, scales * torch.nan), "finite"),
        (lambda codes, scales: (codes, scales.double() * 1e300), "float16 and every other dtype"),
        (lambda codes, scales: (codes, scales * 1e6), "too large for float16.*bfloat16"),
        (lambda codes, scales: (codes, scales.double() + 1e-12), "does not survive in float32"),
    ],
)
def test_codes_that_are_refused(change, said):
    scheme, codes, scales = int8_pack()
    with pytest.raises(FormatError, match=said):
        FORMAT.pack_codes(*change(codes, scales), scheme)


def test_damaged_files_are_refused():
    scheme = FORMAT.scheme(torch.bfloat16, {"n": 2, "m": 4, "values": "fp8_e4m3"})
    packed = FORMAT.pack_codes(*coded(scheme, (8, 32))[:2], scheme)

    def damaged(name, change):
        tensors = {own: each.clone() for own, each in packed.tensors.items()}
        change(tensors[name])
        return PackedWeight(scheme, packed.shape, tensors)

    with pytest.raises(FormatError, match="'mine'.*NaN"):
        damaged("weight_packed", lambda t: t[3].fill_(0x7F)).validate("mine")
    with pytest.raises(FormatError, match="'mine'.*must be finite"):
        damaged("weight_scale", lambda t: t[3].fill_(torch.nan)).validate("mine")
    with pytest.raises(FormatError, match="'mine'.*too large"):
        damaged("weight_scale", lambda t: t[3].fill_(3e38)).validate("mine")


FORMS = [None, NMPanels(), NMRows(), NMGather(), Sparse24()]
"""Storage, and the forms that hold codes."""


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("values", VALUE_TYPES)
def test_parts_keep_their_codes_in_every_form(form, values, monkeypatch):
    length = {"nm_panels": 16, "nm_gather": 32}.get(form.name if form else "", 1)
    group = 64 if values == "int4" else None
    options = {"n": 2, "m": 4, "vector_length": length, "values": values, "group": group}
    scheme = FORMAT.scheme(torch.bfloat16, options)
    codes, scales, weight = coded(scheme, (96, 320))
    stored = FORMAT.pack_codes(codes, scales, scheme)
    packed = stored if form is None else stored.transcode(form.scheme(scheme.dtype, options))
    monkeypatch.setattr(value_types, "quantise", None)
    for rows, columns in ((range(32, 96), range(320)), (range(96), range(64, 192))):
        part = packed.format.cut(packed, rows, columns).validate()
        inside = slice(rows.start, rows.stop), slice(columns.start, columns.stop)
        assert part.scheme == packed.scheme and torch.equal(part.unpack(), weight[inside])
        of_groups = slice(columns.start // 64, columns.stop // 64) if group else slice(1)
        back = part.transcode(scheme)
        assert torch.equal(back.tensors["weight_scale"], scales[inside[0], of_groups])
        assert torch.equal(FORMAT.codes(back).float(), codes[inside])
    parts = [packed.format.cut(packed, rows, range(320)) for rows in (range(32), range(32, 96))]
    whole = packed.format.join(parts)
    assert all(torch.equal(whole.tensors[name], each) for name, each in packed.tensors.items())
    if group:
        with pytest.raises(FormatError, match="multiples of 64"):
            packed.format.cut(packed, range(96), range(32, 320))


@pytest.mark.parametrize("m", [32, 3])
@pytest.mark.parametrize("values", ["native", *VALUE_TYPES])
def test_parts_that_begin_inside_of_a_byte_are_cut_as_they_are(values, m, monkeypatch):
    options = {"n": 1, "m": m, "values": values}  # 5 bits a position, or 2
    scheme = FORMAT.scheme(torch.bfloat16, options)
    if values == "native":
        weight = FORMAT.conform(torch.randn(8, 165).bfloat16(), scheme)
        packed = FORMAT.pack(weight, scheme)
    else:
        codes, scales, weight = coded(scheme, (8, 165))
        packed = FORMAT.pack_codes(codes, scales, scheme)
    for method in ("unpack", "pack", "pack_codes"):
        monkeypatch.setattr(type(FORMAT), method, None)
    for first, last in ((m, 3 * m), (0, m), (m, 165)):
        part = FORMAT.cut(packed, range(2, 8), range(first, last)).validate()
        assert torch.equal(FORMAT.reference.unpack(part), weight[2:8, first:last])


def test_other_options_keep_codes():
    """Another pattern that they follow, or other activations: nothing is quantised anew."""
    scheme = FORMAT.scheme(torch.bfloat16, {"n": 1, "m": 4, "values": "int8"})
    packed = FORMAT.pack_codes(*coded(scheme, (40, 96))[:2], scheme)
    for change in ({"n": 2}, {"m": 2}, {"activations": "int8"}):
        target = FORMAT.scheme(torch.float16, scheme.values | change)
        for source in (packed, packed.prepare("cpu")):
            made = source.transcode(target).validate()
            assert torch.equal(FORMAT.codes(made), FORMAT.codes(packed))
            assert torch.equal(made.tensors["weight_scale"], packed.tensors["weight_scale"])
    with pytest.raises(FormatError, match="1:8"):
        packed.transcode(FORMAT.scheme(torch.bfloat16, scheme.values | {"m": 8}))
