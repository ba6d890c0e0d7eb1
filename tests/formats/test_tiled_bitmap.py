# SPDX-License-Identifier: Apache-2.0
"""tiled_bitmap: its specification by example, its sizes, and its errors."""

import re
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from weights import sparse_weight, weights

import flashsparse_plugin as fs
from flashsparse_plugin.formats.tiled_bitmap import cost, reference
from flashsparse_plugin.gpu import GPUS, library_seconds
from flashsparse_plugin.packed import PackedWeight

PAGE = Path(__file__).parents[2] / "docs" / "tiled_bitmap.md"


def test_the_example_of_the_specification_is_what_the_packer_writes():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    example: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), example)
    made = reference.pack(example["weight"], example["packed"].scheme)
    assert len(blocks) > 3 and torch.equal(made["weight_packed"], example["lines"])


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
    for gpu in GPUS[:2]:
        shape, last = (28672, 7168), library_seconds((28672, 7168), 8, gpu)
        for bits in (9.66, 6.45, 3.21):
            now = cost.sparse_seconds(shape, int(bits / 8 * 28672 * 7168), 8, gpu)
            assert now < last
            last = now
        many = cost.sparse_seconds(shape, 1 << 27, 4096, gpu)
        library = library_seconds(shape, 4096, gpu)
        assert library < many < 1.5 * library  # measured: 1.1 to 1.35
