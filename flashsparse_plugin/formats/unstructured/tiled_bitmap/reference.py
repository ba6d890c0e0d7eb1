# SPDX-License-Identifier: Apache-2.0
"""tiled_bitmap in pure torch: slow, short, and the oracle of every test.

Written from docs/tiled_bitmap.md and from no kernel,
so that a mistake in one is not repeated in the other.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ....packed import PackedWeight, Scheme

UNIT_ROWS, UNIT_COLS, LINE_WORDS, LANES, RUNS = 16, 256, 32, 32, 2
MASK_LINES, HEAD_LINES = 4, 5


def element_places() -> Tensor:
    """Place `row * 256 + column` of each weight of a unit, int64 [lane, run, item].

    Items are in the order in which a run has them where none is zero.
    """
    lane, word, j, e = torch.meshgrid(*map(torch.arange, (LANES, 4, 8, 4)), indexing="ij")
    row = lane // 4 + 8 * (e // 2)
    col = 64 * word + 8 * j + 2 * (lane % 4) + e % 2
    return (row * UNIT_COLS + col).view(LANES, RUNS, 64)


def _mask_bits() -> Tensor:
    """Which bit of its mask word stands for an item, int64 [word of the run * 8 * 4]."""
    return (torch.arange(8)[:, None] + 8 * torch.arange(4)).flatten().repeat(2)


def _units(weight: Tensor) -> Tensor:
    """Cuts a weight into units [units, 16 * 256], zero beyond the edges."""
    out_features, in_features = weight.shape
    down, across = -(-out_features // UNIT_ROWS), -(-in_features // UNIT_COLS)
    full = weight.new_zeros(down * UNIT_ROWS, across * UNIT_COLS)
    full[:out_features, :in_features] = weight
    units = full.view(down, UNIT_ROWS, across, UNIT_COLS).transpose(1, 2)
    return units.reshape(-1, UNIT_ROWS * UNIT_COLS)


def columns_of_runs(lengths: list[list[int]]) -> list[list[int]]:
    """The column of each run [run][lane], from its length [run][lane]."""
    by_length = [sorted(range(LANES), key=lambda lane: (-own[lane], lane)) for own in lengths]
    first = {lane: column for column, lane in enumerate(by_length[0])}
    items = [lengths[0][lane] for lane in by_length[0]]
    emptiest = sorted(range(LANES), key=lambda column: (items[column], column))
    second = dict(zip(by_length[1], emptiest, strict=True))
    return [[columns[lane] for lane in range(LANES)] for columns in (first, second)]


def _pack_unit(unit: Tensor, items_of: Tensor, width: int) -> Tensor:
    """The lines of one unit, int64 [lines, 32].

    Args:
        unit: Its weights or codes [16 * 256].
        items_of: The item of each, int64 [16 * 256].
        width: Bits of an item: 16 or 8.
    """
    kept = unit[element_places()] != 0  # [lane, run, item]
    own = items_of[element_places()]
    masks = (kept << _mask_bits()).view(LANES, 4, 32).sum(-1)
    lengths = kept.sum(-1)
    column = torch.tensor(columns_of_runs(lengths.T.tolist())).T  # [lane, run]
    before = torch.zeros(LINE_WORDS, dtype=torch.int64)
    before[column[:, 0]] = lengths[:, 0]
    first = torch.stack([torch.zeros(LANES, dtype=torch.int64), before[column[:, 1]]], 1)
    starts = (LINE_WORDS * first + column) << torch.tensor([0, 16])
    items = torch.zeros(128, LINE_WORDS, dtype=torch.int64)
    number = first[..., None] + kept.cumsum(-1) - 1
    items[number[kept], column[..., None].expand_as(number)[kept]] = own[kept]
    in_word = 32 // width
    lines = -(-int((first + lengths).max()) // in_word)
    values = sum((items[i::in_word] << width * i for i in range(in_word)), torch.tensor(0))
    return torch.cat([masks.view(MASK_LINES, LINE_WORDS), starts.sum(1)[None], values[:lines]])


def pack(weight: Tensor, scheme: Scheme) -> dict[str, Tensor]:
    """Packs to tiled_bitmap, unit by unit.

    Of int8 values: a weight of which the largest code of each row is 127 or -127.
    """
    if scheme.values.get("values", "native") == "native":
        units = _units(weight)
        return _tensors(units, units.contiguous().view(torch.int16).to(torch.int64) & 0xFFFF, 16)
    scales = weight.float().abs().amax(1, keepdim=True) / 127
    scales[scales == 0] = 1
    return {**pack_codes((weight.float() / scales).round()), "weight_scale": scales}


def pack_codes(codes: Tensor) -> dict[str, Tensor]:
    """Packs int8 codes, given as numbers: all tensors but the scales."""
    units = _units(codes.to(torch.int64))
    return _tensors(units, units + 128, 8)


def _tensors(units: Tensor, items: Tensor, width: int) -> dict[str, Tensor]:
    packed = [_pack_unit(*unit, width) for unit in zip(units, items, strict=True)]
    lines = torch.cat(packed)
    offsets = torch.tensor([0, *map(len, packed)]).cumsum(0)
    return {
        "weight_packed": torch.where(lines >= 2**31, lines - 2**32, lines).to(torch.int32),
        "unit_offsets": offsets.to(torch.int32),
    }


def unpack(packed: PackedWeight) -> Tensor:
    """Unpacks tiled_bitmap by walking the run of every lane."""
    if packed.scheme.values.get("values", "native") == "native":
        full = _unpack_items(packed, 16, 0)
        bits = torch.where(full >= 2**15, full - 2**16, full).to(torch.int16)
        return bits.contiguous().view(packed.dtype)
    codes = _unpack_items(packed, 8, 128) - 128
    return (codes.float() * packed.tensors["weight_scale"]).to(packed.dtype)


def _unpack_items(packed: PackedWeight, width: int, dropped: int) -> Tensor:
    """The items of all weights, int64 [out_features, in_features].

    Args:
        packed: The weight.
        width: Bits of an item.
        dropped: What is in the place of weights that are not kept.
    """
    out_features, in_features = packed.shape
    offsets = packed.tensors["unit_offsets"].tolist()
    lines = packed.tensors["weight_packed"].to(torch.int64) & 0xFFFFFFFF
    down, across = -(-out_features // UNIT_ROWS), -(-in_features // UNIT_COLS)
    units = torch.full((down * across, UNIT_ROWS * UNIT_COLS), dropped)
    for unit, begin, end in zip(units, offsets[:-1], offsets[1:], strict=True):
        _unpack_unit(lines[begin:end], unit, width)
    full = units.view(down, across, UNIT_ROWS, UNIT_COLS).transpose(1, 2)
    return full.reshape(down * UNIT_ROWS, across * UNIT_COLS)[:out_features, :in_features]


def _unpack_unit(lines: Tensor, unit: Tensor, width: int) -> None:
    masks, starts, values = lines[:MASK_LINES].view(LANES, 4), lines[MASK_LINES], lines[HEAD_LINES:]
    shifts = torch.arange(0, 32, width)[:, None]
    items = (values[:, None] >> shifts & (1 << width) - 1).view(-1, LINE_WORDS)  # [item, column]
    kept = masks.repeat_interleave(32, 1).view(LANES, RUNS, 64) >> _mask_bits() & 1 == 1
    start = starts[:, None] >> torch.tensor([0, 16]) & 0xFFFF
    number = (start // LINE_WORDS)[..., None] + kept.cumsum(-1) - 1
    column = (start % LINE_WORDS)[..., None].expand_as(number)
    unit[element_places()[kept]] = items[number[kept], column[kept]]
