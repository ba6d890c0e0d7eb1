# SPDX-License-Identifier: Apache-2.0
"""What every stored format of weights with zeros anywhere must do, beside the contract."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from weights import bits, sparse_weight, weights, without_negative_zero

import flashsparse_plugin as fs
from flashsparse_plugin.formats import all_formats
from flashsparse_plugin.formats.unstructured.form import UnstructuredFormat
from flashsparse_plugin.packed import FormatError, PackedWeight

STORED = [each for each in all_formats() if isinstance(each, UnstructuredFormat) and each.on_disk]
FORMATS = [each for each in STORED if not each.keeps_zeros]  # which turn into each other
every_format = pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
every_stored = pytest.mark.parametrize("format", STORED, ids=lambda format: format.name)


def same(made: PackedWeight, wanted: PackedWeight) -> bool:
    assert made.scheme == wanted.scheme and made.shape == wanted.shape
    return all(torch.equal(made.tensors[name], own) for name, own in wanted.tensors.items())


@settings(max_examples=20)
@given(weights(max_rows=140, max_cols=300))
def test_no_way_between_formats_loses_anything_or_makes_a_dense_weight(weight):
    stored = {format: fs.pack(weight, format.name).validate() for format in FORMATS}
    running = next(iter(stored.values())).prepare("cpu")
    expected = running.format.reference.pack(weight, running.scheme)
    assert all(torch.equal(running.tensors[name], own) for name, own in expected.items())
    for packed in stored.values():
        assert torch.equal(bits(packed.unpack()), without_negative_zero(weight))
        assert same(packed.prepare("cpu"), running)
        assert same(running.transcode(packed.scheme), packed)
        assert packed.density == running.density
        for other in stored.values():
            assert same(packed.transcode(other.scheme), other)


@every_format
def test_stored_forms_turn_into_each_other_without_a_dense_weight(format, monkeypatch):
    packed = fs.pack(sparse_weight(40, 300), format.name)
    monkeypatch.setattr(type(format), "unpack", None)
    for target in (*FORMATS, packed.prepare("cpu").format):
        packed.transcode(target.scheme(packed.dtype)).validate()


@every_format
def test_no_way_between_formats_changes_the_dtype(format):
    packed = fs.pack(sparse_weight(40, 300, dtype=torch.bfloat16), format.name)
    for target in (*FORMATS, packed.prepare("cpu").format):
        with pytest.raises(FormatError, match=r"made of float16 values, not of bfloat16"):
            packed.transcode(target.scheme(torch.float16))


@every_stored
@pytest.mark.parametrize("rows", [(0, 1), (1, None), (0, None)], ids=str)
@pytest.mark.parametrize("columns", [(0, 1), (1, None), (0, None)], ids=str)
def test_whole_pieces_are_cut_and_joined_without_unpacking(format, rows, columns, monkeypatch):
    """At the ends of pieces, the format's own way is what packing the part gives."""
    high, wide = format.pieces.rows, format.pieces.columns
    weight = sparse_weight(2 * high + 5, 2 * wide + 8)
    packed = fs.pack(weight, format.name)
    rows, columns = (
        range(size)[slice(*(end and end * step for end in ends))]
        for ends, step, size in ((rows, high, len(weight)), (columns, wide, weight.shape[1]))
    )
    part = weight[rows.start : rows.stop, columns.start : columns.stop].contiguous()
    expected = fs.pack(part, format.name)
    top, bottom = (fs.pack(part, format.name) for part in (weight[:high], weight[high:]))
    monkeypatch.setattr(type(format), "unpack", None)
    assert same(format.cut(packed, rows, columns), expected)
    assert same(format.join([top, bottom]), packed)


@every_format
@settings(max_examples=150)
@given(data=st.data(), weight=weights(max_rows=40, max_cols=300))
def test_mutations_give_an_error_or_the_right_answer(format, data, weight):
    """tests/fuzz runs many more of these, on every format."""
    packed = fs.pack(weight, format.name)
    tensors = {name: tensor.clone() for name, tensor in packed.tensors.items()}
    flat = tensors[data.draw(st.sampled_from(format.streams))].view(-1)
    if len(flat):
        flat[data.draw(st.integers(0, len(flat) - 1))] ^= 1 << data.draw(st.integers(0, 30))
    damaged = PackedWeight(packed.scheme, packed.shape, tensors)
    try:
        unpacked = damaged.unpack()
    except RuntimeError:
        with pytest.raises(FormatError):
            damaged.validate()
        return
    assert torch.equal(bits(unpacked), bits(format.reference.unpack(damaged)))
    assert torch.equal(bits(damaged.prepare("cpu").unpack()), without_negative_zero(unpacked))
