# SPDX-License-Identifier: Apache-2.0
"""The CPU's runtime form: what validates can be read by every kernel, and nothing else does."""

import pytest
import torch
from torch.nn import functional as F
from weights import sparse_weight

import flashsparse_plugin as fs
from flashsparse_plugin.packed import FormatError, PackedWeight

MOST = torch.iinfo(torch.int64).max
SHAPE = (39, 71)  # the last panel has 7 rows, the last pair one column


@pytest.fixture
def running() -> PackedWeight:
    return fs.pack(sparse_weight(*SHAPE, 0.4)).prepare("cpu")


def with_one(running, name, index, value):
    tensors = {**running.tensors, name: running.tensors[name].clone()}
    tensors[name][index] = value
    return PackedWeight(running.scheme, running.shape, tensors)


def test_what_was_made_is_valid(running):
    assert running.validate() is running
    for shape in ((1, 1), (16, 2), (17, 3), (64, 64)):
        for density in (0.0, 0.5, 1.0):
            fs.pack(sparse_weight(*shape, density)).prepare("cpu").validate()
    longer = {**running.tensors, "values": F.pad(running.tensors["values"], (0, 1000))}
    PackedWeight(running.scheme, running.shape, longer).validate()  # as in vLLM


@pytest.mark.parametrize("value", [-1, -MOST, -MOST - 1, MOST, MOST - 31, 1 << 62, 1, 10**6])
@pytest.mark.parametrize("index", [0, 1, 2, 3])
def test_offsets_that_lead_elsewhere(running, index, value):
    """Also where adding to them would overflow 64 bits."""
    damaged = with_one(running, "panel_offsets", index, value)
    with pytest.raises(FormatError, match=r"\[39, 71\] is not valid: .*panel"):
        damaged.validate()


@pytest.mark.parametrize(
    ("index", "value", "message"),
    [
        ((0, 0), -1, "panel 0 keep another number of values"),
        ((1, 35), 0x55555555, "panel 1 keep another number of values"),
        ((1, 35), -1, "panel 1 keep an element beyond the edges"),
        ((2, 0), 1 << 14, "panel 2 keep an element beyond the edges"),
        ((2, 35), 1 << 30, "panel 2 keep an element beyond the edges"),
    ],
)
def test_masks_that_keep_more_than_there_is(running, index, value, message):
    with pytest.raises(FormatError, match=f"the masks of {message}"):
        with_one(running, "masks", index, value).validate()


def test_masks_of_all_ones(running):
    tensors = {**running.tensors, "masks": torch.full_like(running.tensors["masks"], -1)}
    with pytest.raises(FormatError, match="masks of panel 0 keep"):
        PackedWeight(running.scheme, running.shape, tensors).validate()


def test_values_without_the_room_behind_them(running):
    tensors = {**running.tensors, "values": running.tensors["values"][:-1]}
    with pytest.raises(FormatError, match="panel_offsets promises .* and 64 more"):
        PackedWeight(running.scheme, running.shape, tensors).validate()


@pytest.mark.parametrize("value", [MOST, MOST - 31, -1, -MOST])
def test_ops_refuse_an_end_that_would_overflow(running, value):
    damaged = with_one(running, "panel_offsets", -1, value)
    with pytest.raises(RuntimeError, match="values has .* entries, panel_offsets promises"):
        damaged.linear(torch.ones(1, 71))
    with pytest.raises(RuntimeError, match="values has .* entries, panel_offsets promises"):
        damaged.unpack()


def test_a_layer_that_runs_can_be_validated():
    layer = fs.SparseLinear.from_packed(fs.pack(sparse_weight(*SHAPE, 0.4)))
    assert layer.validate("up_proj") is layer
    layer.masks.data.fill_(-1)
    with pytest.raises(FormatError, match="layer 'up_proj': interleaved_bitmap weight"):
        layer.validate("up_proj")
