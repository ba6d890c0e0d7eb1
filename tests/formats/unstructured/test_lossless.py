# SPDX-License-Identifier: Apache-2.0
"""lossless: every bit pattern, its specification by example, its exceptions, and its errors."""

import re
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from weights import bits

import flashsparse_plugin as fs
from flashsparse_plugin.formats import get_format
from flashsparse_plugin.formats.rows import read_rows, row_places
from flashsparse_plugin.formats.unstructured.lossless import reference
from flashsparse_plugin.ops import ops
from flashsparse_plugin.packed import PackedWeight

PAGE = Path(__file__).parents[3] / "docs" / "lossless.md"
LOSSLESS = get_format("lossless")
SCHEME = LOSSLESS.scheme(torch.bfloat16)
EVERY = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16)


def gaussian(rows, columns, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, columns, generator=generator) * 0.02).to(torch.bfloat16)


def test_the_example_of_the_specification_is_what_the_packer_writes():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    example: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), example)
    assert len(blocks) > 1 and torch.equal(bits(example["weight"]), bits(example["decoded"]))


@pytest.mark.parametrize(
    "weight",
    [
        EVERY.view(256, 256),  # two exponents a row
        EVERY.view(2, 16, 16, 128).permute(0, 2, 1, 3).reshape(32, 2048),  # sixteen of them
        EVERY[torch.randperm(2**16, generator=torch.Generator().manual_seed(0))].view(64, 1024),
        EVERY[:, None],  # every pattern in a row of its own
        EVERY[None, :],
    ],
    ids=["in order", "16 exponents", "shuffled", "one a row", "one row"],
)
def test_every_bit_pattern_comes_back(weight):
    packed = fs.pack(weight.contiguous(), "lossless").validate()
    assert torch.equal(bits(packed.unpack()), bits(weight))
    assert torch.equal(bits(reference.unpack(packed)), bits(weight))
    listed = len(packed.tensors["weight_exceptions"])
    assert LOSSLESS.exceptions(SCHEME, packed.shape, packed.nbytes) == listed
    assert LOSSLESS.exceptions_in(weight) == listed
    assert packed.density == pytest.approx(1 - 2 / weight.numel())  # +0 and -0


@st.composite
def clustered(draw):
    """Exponents around a centre of each row, and elements of any bits, many side by side."""
    rows, columns = draw(st.integers(1, 40)), draw(st.integers(1, 400))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    centre = torch.randint(0, 256, (rows, 1), generator=generator)
    spread = draw(st.sampled_from([1, 8, 15, 16, 40]))
    exponents = centre + torch.randint(0, spread, (rows, columns), generator=generator)
    rest = torch.randint(0, 256, (rows, columns), generator=generator)
    made = exponents.clamp(0, 255) << 7 | (rest & 0x7F) | (rest & 0x80) << 8
    made[torch.rand(rows, columns, generator=generator) < draw(st.sampled_from([0, 0.5, 1]))] = 0
    for _ in range(draw(st.integers(0, 4))):
        row, first = draw(st.integers(0, rows - 1)), draw(st.integers(0, columns - 1))
        some = made[row, first : first + draw(st.integers(1, 40))]
        some.copy_(torch.randint(0, 2**16, some.shape, generator=generator))
    return torch.where(made >= 2**15, made - 2**16, made).to(torch.int16).view(torch.bfloat16)


@settings(max_examples=60, deadline=None)
@given(clustered(), st.data())
def test_the_packer_writes_what_the_specification_says(weight, data):
    packed = fs.pack(weight, "lossless").validate()
    expected = reference.pack(weight, SCHEME)
    assert all(torch.equal(packed.tensors[name], own) for name, own in expected.items())
    assert torch.equal(bits(packed.unpack()), bits(weight))
    rows, columns = weight.shape
    ids = torch.tensor(data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=5)))
    read = read_rows(ids, SCHEME, packed.tensors, row_places(packed))
    assert torch.equal(bits(read), bits(weight[ids]))
    row = data.draw(st.integers(0, rows - 1))
    column = data.draw(st.integers(0, columns - 1))
    for start in {column, column // 128 * 128}:
        part = LOSSLESS.cut(packed, range(row, rows), range(start, columns)).validate()
        assert torch.equal(bits(part.unpack()), bits(weight[row:, start:]))
    again = LOSSLESS.join([LOSSLESS.cut(packed, r, range(columns)) for r in halves(rows)])
    assert all(torch.equal(again.tensors[name], own) for name, own in packed.tensors.items())


def halves(rows):
    return [each for each in (range(rows // 2), range(rows // 2, rows)) if len(each)]


def test_whole_chunks_are_cut_without_another_window():
    weight = gaussian(8, 512)
    weight[:, 128:256] *= 2.0**20  # most of another row's exponents
    packed = fs.pack(weight, "lossless")
    part = LOSSLESS.cut(packed, range(2, 5), range(128, 256))
    assert torch.equal(part.tensors["weight_base"], packed.tensors["weight_base"][2:5])
    assert torch.equal(bits(part.validate().unpack()), bits(weight[2:5, 128:256]))


def element(name, index, value):
    def damage(tensors):
        tensors[name][index] = value

    return damage


def listed_twice(tensors):
    tensors["weight_exception_columns"][1] = tensors["weight_exception_columns"][0]


def coded_too(tensors):
    tensors["weight_packed"][0, tensors["weight_exception_columns"][0]] = 0x80


def code_of_padding(tensors):
    tensors["weight_packed"][0, 192 + 128 + 63] |= 0x10  # column 128 + 127 of 130


@pytest.mark.parametrize(
    ("damage", "rule"),
    [
        (element("weight_base", 3, 240), r"weight_base of row 3 is 240, .*more than 239 .* NaN"),
        (element("weight_base", 0, 255), "infinities or NaN"),
        (element("weight_packed", (2, 1), 0x01), "row 2 has a fraction without a code"),
        (element("weight_packed", (2, 192 + 2), 0x80), "row 2 has .*past its last column"),
        (code_of_padding, "row 0 has .*past its last column"),
        (coded_too, "row 0 is 5, where weight_packed has a value, too: it would count twice"),
        (listed_twice, r"columns\[1\] of row 0 is 5, and must be more than the one before"),
        (element("weight_exception_columns", 0, 130), "is 130, outside of the weight"),
        (element("weight_exception_columns", 2, -1), "is -1, outside of the weight"),
        (element("weight_exception_rows", 0, 1), "must rise from 0 to the 3 exceptions"),
        (element("weight_exception_rows", -1, 4), "must rise from 0 to the 3"),
        (element("weight_exception_rows", -1, 2), "must rise from 0 to the 3"),
        (element("weight_exception_rows", 1, -(2**31)), "must rise from 0 to the 3"),
    ],
)
def test_hostile_tensors_are_refused_and_read_within_their_bounds(damage, rule):
    weight = gaussian(4, 130)
    weight[2, :2] = 0
    weight[0, [5, 9]], weight[3, 129] = 2.0**100, torch.inf
    packed = fs.pack(weight, "lossless").validate()
    tensors = {name: each.clone() for name, each in packed.tensors.items()}
    damage(tensors)
    hostile = PackedWeight(SCHEME, (4, 130), tensors)
    with pytest.raises(fs.FormatError, match=rule):
        hostile.validate()
    try:  # a reader may refuse it, or give nonsense; `make fuzz` has it under sanitizers
        assert hostile.unpack().shape == (4, 130)
        assert hostile.linear(torch.ones(2, 130)).shape == (2, 4)
    except RuntimeError as error:
        assert "weight_exception_rows must rise" in str(error)


def test_rows_that_are_none_are_refused():
    packed = fs.pack(gaussian(4, 130), "lossless")
    for bad in (4, -1):
        with pytest.raises(RuntimeError, match=f"4 rows must be below, not {bad}"):
            ops.lossless_rows(torch.tensor([0, bad]), *packed.tensors.values(), 130)
    with pytest.raises(RuntimeError, match="ids must be int64"):
        ops.lossless_rows(torch.tensor([0], dtype=torch.int32), *packed.tensors.values(), 130)


def test_zeros_of_a_row_stay_zeros_of_their_sign():
    weight = torch.tensor([[0.0, -0.0, 1.0], [-0.0, -0.0, 0.0]], dtype=torch.bfloat16)
    packed = fs.pack(weight, "lossless").validate()
    assert torch.equal(bits(packed.unpack()), bits(weight)) and packed.density == 1 / 6
    assert packed.tensors["weight_base"].tolist() == [112, 0]  # 1.0 has 127: the smallest base


def test_what_it_cannot_hold_or_had_better_not():
    with pytest.raises(fs.FormatError, match="lossless packs bfloat16 weights, not float16"):
        fs.pack(gaussian(4, 4).half(), "lossless")
    ordinary = gaussian(64, 512)
    assert LOSSLESS.options_for(ordinary) == {} == LOSSLESS.options_for(ordinary.float())
    assert LOSSLESS.options_for(ordinary.float() + 1e-6) is None  # would be rounded
    far = ordinary.clone()
    far.view(-1)[::499] = 2.0**-60  # 0.2% and a few
    assert LOSSLESS.options_for(far) is None and fs.pack(far, "lossless").validate()


def test_ordinary_weights_take_three_quarters():
    packed = fs.pack(gaussian(1024, 1024), "lossless")
    assert 12.0 < 8 * packed.nbytes / 2**20 < 12.1
    assert len(packed.tensors["weight_exceptions"]) < 0.0003 * 2**20
