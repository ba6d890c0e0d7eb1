# SPDX-License-Identifier: Apache-2.0
"""tiled_bitmap: its specification by example, its sizes, and its errors."""

import re
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from weights import sparse_weight, weights

import flashsparse_plugin as fs
from flashsparse_plugin.formats.unstructured.tiled_bitmap import reference
from flashsparse_plugin.gpu import GPUS, library_seconds
from flashsparse_plugin.ops import ops
from flashsparse_plugin.packed import PackedWeight

PAGE = Path(__file__).parents[3] / "docs" / "tiled_bitmap.md"


def test_the_example_of_the_specification_is_what_the_packer_writes():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    example: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), example)
    made = reference.pack(example["weight"], example["packed"].scheme)
    assert len(blocks) > 3 and torch.equal(made["weight_packed"], example["lines"])


def test_rounded_activations_on_a_cpu():
    packed = fs.pack(sparse_weight(50, 300, 0.6), "tiled_bitmap", values="int8")
    lines, offsets, scales = packed.tensors.values()
    x, bias = torch.randn(2, 3, 300).to(packed.dtype), torch.randn(50).to(packed.dtype)
    x[1, 1] = 0
    rest = lines, offsets, scales, 50, packed.dtype, "int8"
    y = ops.tiled_bitmap_linear_rounded(x, *rest, bias)
    exact = x.double() @ packed.unpack().double().T + bias.double()
    assert (y.double() - exact).norm() < 0.02 * exact.norm() and torch.equal(y[1, 1], bias)
    with pytest.raises(RuntimeError, match="x must have the dtype of the weight"):
        ops.tiled_bitmap_linear_rounded(x.float(), *rest)
    with pytest.raises(RuntimeError, match="rounded to int8, not int4"):
        ops.tiled_bitmap_linear_rounded(x, *rest[:-1], "int4")


def test_the_sizes_of_the_specification():
    zeros, bits = re.findall(r"^\| (?:zeros|bits a weight).*$", PAGE.read_text(), re.M)
    for share, told in zip(zeros.split("|")[2:-1], bits.split("|")[2:-1], strict=True):
        weight = sparse_weight(256, 1024, 1 - float(share.strip(" %")) / 100)
        packed = fs.pack(weight, "tiled_bitmap")
        assert 8 * packed.nbytes / weight.numel() == pytest.approx(float(told), abs=0.03)


@settings(max_examples=25)
@given(weights(max_rows=40, max_cols=600))
def test_lines_and_offsets_are_those_of_the_specification(weight):
    packed = fs.pack(weight, "tiled_bitmap")
    expected = reference.pack(weight, packed.scheme)
    assert all(torch.equal(packed.tensors[name], own) for name, own in expected.items())


@st.composite
def codes(draw):
    rows, columns = draw(st.integers(1, 40)), draw(st.integers(1, 600))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    made = torch.randint(-128, 128, (rows, columns), generator=generator).to(torch.int8)
    density = draw(st.sampled_from([0.0, 0.01, 0.5, 0.99, 1.0]))
    made[torch.rand(rows, columns, generator=generator) >= density] = 0
    return made


@settings(max_examples=25)
@given(codes())
def test_codes_lie_as_the_specification_has_them_and_come_back(codes):
    format = fs.get_format("tiled_bitmap")
    scheme = format.scheme(torch.bfloat16, {"values": "int8"})
    scales = torch.rand(len(codes), 1)
    packed = format.pack_codes(codes, scales, scheme).validate()
    for name, own in reference.pack_codes(codes).items():
        assert torch.equal(packed.tensors[name], own)
    running = packed.prepare("cpu")
    for made in (packed, running, running.transcode(scheme)):
        assert torch.equal(made.format.codes(made), codes)
        assert torch.equal(made.unpack(), (codes.float() * scales).bfloat16())
        assert made.density == pytest.approx(codes.count_nonzero() / codes.numel())
    assert torch.equal(reference.unpack(packed), packed.unpack())


def test_a_kept_code_of_0_is_read_as_0():
    """No packer of ours writes one, and a file may have it."""
    weight = sparse_weight(20, 300, 0.5)
    packed = fs.pack(weight, "tiled_bitmap", values="int8")
    lines = packed.tensors["weight_packed"].clone()
    lines[5] = -0x7F7F7F80  # the first four items of every column of unit 0
    changed = PackedWeight(packed.scheme, packed.shape, packed.tensors | {"weight_packed": lines})
    zeroed = changed.validate().unpack()
    assert packed.unpack().count_nonzero() - zeroed.count_nonzero() == 32 * 4
    running = changed.prepare("cpu")
    assert (
        torch.equal(running.unpack(), zeroed)
        and int(running.format.nonzeros(running)) == zeroed.count_nonzero()
    )
    x = torch.randn(3, 300).bfloat16()
    for made in (changed, running):
        torch.testing.assert_close(made.linear(x), x @ zeroed.T, rtol=0.02, atol=0.2)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"values": "fp8_e4m3"},
            "option values: fp8_e4m3 codes need zeros in a pattern.*nm_vector",
        ),
        ({"values": "int4", "group": 64}, "option values: int4 codes need .*values=int8"),
        ({"values": "int8", "group": 64}, "option group: .*a scale for each row alone"),
        ({"activations": "int8"}, "int8 activations are multiplied by int8 values alone"),
        ({"values": "int9"}, "option values: .*'native' or 'int8'"),
    ],
)
def test_other_codes_are_refused_with_a_remedy(options, told):
    with pytest.raises(fs.FormatError, match=f"tiled_bitmap: .*{told}"):
        fs.pack(torch.ones(3, 4).bfloat16(), "tiled_bitmap", **options)


@pytest.mark.parametrize("odd", [torch.nan, torch.inf])
def test_codes_hold_no_infinity_and_no_nan(odd):
    weight = torch.tensor([[1.0, odd]], dtype=torch.float16)
    with pytest.raises(fs.FormatError, match=r"\[1, 2\] has NaN or infinite.*values=native"):
        fs.pack(weight, "tiled_bitmap", values="int8")


def test_codes_stay_as_they_are_in_other_dtypes_and_become_values_in_other_formats():
    packed = fs.pack(sparse_weight(40, 300, 0.5), "tiled_bitmap", values="int8")
    half = packed.format.scheme(torch.float16, {"values": "int8", "activations": "int8"})
    for name, tensor in packed.transcode(half).tensors.items():
        assert torch.equal(tensor, packed.tensors[name])
    native = fs.get_format("tiled_csl").scheme(torch.bfloat16)
    assert torch.equal(packed.transcode(native).unpack(), packed.unpack())
    large = packed.tensors["weight_scale"] * 1e5
    wide = PackedWeight(packed.scheme, packed.shape, packed.tensors | {"weight_scale": large})
    with pytest.raises(fs.FormatError, match="too large for float16. Remedy: dtype bfloat16"):
        wide.transcode(half)


def test_columns_are_nearly_equally_full():
    """What the order of runs is for: the lines of values are little more than the values."""
    weight = sparse_weight(64, 4096, 0.5, skew=0.5)
    packed = fs.pack(weight, "tiled_bitmap")
    units = len(packed.tensors["unit_offsets"]) - 1
    items = 64 * (len(packed.tensors["weight_packed"]) - 5 * units)
    assert int(weight.count_nonzero()) <= items < 1.2 * int(weight.count_nonzero())


@pytest.mark.parametrize(
    ("name", "change", "rule"),
    [
        ("unit_offsets", lambda t: t[:-1], r"unit_offsets must be \[27\]"),
        ("unit_offsets", lambda t: t.long(), "unit_offsets must be torch.int32"),
        ("weight_packed", lambda t: t[:-1], r"unit_offsets ends at \d+ lines, weight_packed has"),
        ("weight_packed", lambda t: t[:, :-1], r"weight_packed must be \[any, 32\]"),
        ("weight_packed", lambda t: t.flatten(), r"weight_packed must be \[any, 32\]"),
        ("weight_packed", lambda t: ~t, "unit 0 "),
    ],
)
def test_validate_names_the_layer_the_rule_and_the_remedy(name, change, rule):
    packed = fs.pack(sparse_weight(200, 300), "tiled_bitmap")
    tensors = {**packed.tensors, name: change(packed.tensors[name])}
    with pytest.raises(fs.FormatError, match=rf"'a\.b'.*\[200, 300\].*{rule}.*flashsparse convert"):
        PackedWeight(packed.scheme, packed.shape, tensors).validate("a.b")


def test_estimates_gain_from_zeros_and_lose_little_with_many_tokens():
    """From 50% zeros on, few tokens are faster than dense ones, and faster the more zeros."""
    format = fs.get_format("tiled_bitmap")
    scheme = format.scheme(torch.float16)
    for gpu in GPUS[:2]:
        shape, last = (28672, 7168), library_seconds((28672, 7168), 8, gpu)
        for bits in (9.66, 6.45, 3.21):
            now = format.seconds("sparse", scheme, shape, int(bits / 8 * 28672 * 7168), 8, gpu)
            assert now < last
            last = now
        many = format.seconds("sparse", scheme, shape, 1 << 27, 4096, gpu)
        library = library_seconds(shape, 4096, gpu)
        assert library < many < 1.5 * library  # measured: 1.1 to 1.35
