# SPDX-License-Identifier: Apache-2.0
"""From nm_vector to the units of sparse tensor cores and back, in torch on any device.

The layout is drawn in kernels/formats/sparse_24.h. Everything goes by slabs of rows, so that the
temporary tensors are bounded, whatever the weight.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from ..nm_pattern import PatternOptions, unpack_positions

UNIT_ROWS, UNIT_COLS, UNIT_WORDS, VALUE_WORDS = 16, 256, 1152, 1024
SLAB_ELEMENTS = 1 << 24
SLAB_ROWS = 128  # a slab has a multiple of these: whole units, and whole groups of rows


def unit_grid(out_features: int, in_features: int) -> tuple[int, int]:
    """Units below each other and beside each other."""
    return (out_features + UNIT_ROWS - 1) // UNIT_ROWS, (in_features + UNIT_COLS - 1) // UNIT_COLS


def slabs(rows: int, columns: int) -> Iterator[slice]:
    """Rows that are taken at once."""
    step = max(SLAB_ELEMENTS // columns // SLAB_ROWS, 1) * SLAB_ROWS
    return (slice(first, min(first + step, rows)) for first in range(0, rows, step))


def arrange(
    weight_packed: Tensor, weight_index: Tensor, shape: tuple[int, int], options: PatternOptions
) -> Tensor:
    """Makes units of the storage tensors of nm_vector, which follow a pattern that embeds in 2:4.

    Args:
        weight_packed: int16 [out_features, kept].
        weight_index: uint8 [groups, bytes].
        shape: (out_features, in_features).
        options: The pattern.

    Returns:
        int32 [unit rows, unit columns, 1152], on the device of the tensors.
    """
    down, across = unit_grid(*shape)
    units = weight_packed.new_empty(down, across, UNIT_WORDS, dtype=torch.int32)
    kept, length, width = options.kept(shape[1]), options.vector_length, across * UNIT_COLS
    entries = torch.arange(kept, device=units.device)
    window = entries // options.n * options.m
    two_of_four = _two_of_four(units.device)
    for slab in slabs(*shape):
        groups = slice(slab.start // length, options.groups(slab.stop))
        positions = unpack_positions(weight_index[groups], kept, options.index_bits)
        columns = (positions + window).repeat_interleave(length, 0)[: slab.stop - slab.start]
        bits = weight_packed.new_zeros(len(columns), max(width, kept // options.n * options.m))
        bits.scatter_(1, columns, weight_packed[slab])
        units[_unit_rows(slab)] = _units(bits[:, :width], two_of_four)
    return units


def spread(units: Tensor, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """Makes the dense weight of units."""
    weight = units.new_empty(shape, dtype=dtype)
    for slab in slabs(*shape):
        bits = _bits(units[_unit_rows(slab)])
        weight[slab] = bits[: slab.stop - slab.start, : shape[1]].view(dtype)
    return weight


def places_of(units: Tensor) -> Tensor:
    """The column, 0 to 3, of both values of every four columns: uint8 [down, across, 16, 64, 2]."""
    down, across, _ = units.shape
    words = units[:, :, VALUE_WORDS:].reshape(down, across, 8, 2, 2, 4)
    # Of a lane group, step of two, half of the step's columns, and two steps; then by rows.
    rows = torch.stack((words, words >> 16), 2).permute(0, 1, 2, 3, 6, 4, 5)
    shifts = torch.arange(0, 16, 4, dtype=torch.int32, device=units.device)
    fours = (rows[..., None] >> shifts).reshape(down, across, UNIT_ROWS, UNIT_COLS // 4)
    return torch.stack((fours & 3, fours >> 2 & 3), -1).to(torch.uint8)


def _values_of(units: Tensor) -> Tensor:
    """The two values of every four columns: int16 [down, across, 16, 64, 2]."""
    down, across, _ = units.shape
    words = units[:, :, :VALUE_WORDS].contiguous().view(torch.int16)
    # Of a step, lane group, four columns, half of the step's columns, half of the rows, value.
    lanes = words.view(down, across, 8, 8, 4, 2, 2, 2).permute(0, 1, 6, 3, 2, 5, 4, 7)
    return lanes.reshape(down, across, UNIT_ROWS, UNIT_COLS // 4, 2)


def _bits(units: Tensor) -> Tensor:
    """Value bits by rows, zeros included."""
    down, across, _ = units.shape
    fours = units.new_zeros((down, across, UNIT_ROWS, UNIT_COLS // 4, 4), dtype=torch.int16)
    fours.scatter_(4, places_of(units).long(), _values_of(units))
    rows = fours.view(down, across, UNIT_ROWS, UNIT_COLS).transpose(1, 2)
    return rows.reshape(down * UNIT_ROWS, across * UNIT_COLS)


def _units(bits: Tensor, two_of_four: Tensor) -> Tensor:
    """Units of value bits by rows, whole units wide."""
    bits = F.pad(bits, (0, 0, 0, -len(bits) % UNIT_ROWS))
    down, across = len(bits) // UNIT_ROWS, bits.shape[1] // UNIT_COLS
    fours = bits.view(len(bits), -1, 4)
    kept = (fours & 0x7FFF) != 0
    weights = torch.tensor([1, 2, 4, 8], dtype=torch.uint8, device=bits.device)
    places = two_of_four[(kept * weights).sum(-1, dtype=torch.int32)]
    values = fours.where(kept, 0).gather(2, places)
    # Of a half of the rows, lane group, unit, step, half of its columns, four columns, value.
    lanes = values.view(down, 2, 8, across, 8, 2, 4, 2).permute(0, 3, 4, 2, 6, 5, 1, 7)
    words = lanes.reshape(down, across, 2 * VALUE_WORDS).view(torch.int32)
    nibbles = (places[..., 0] | places[..., 1] << 2).to(torch.int32)
    nibbles = nibbles.view(down, 2, 8, across, 4, 2, 2, 4)  # of two steps, step, half, four columns
    shifts = torch.arange(0, 16, 4, dtype=torch.int32, device=bits.device)
    halves = (nibbles << shifts).sum(-1, dtype=torch.int32)
    metadata = (halves[:, 0] | halves[:, 1] << 16).permute(0, 2, 1, 4, 5, 3)
    return torch.cat((words, metadata.reshape(down, across, -1)), 2)


def _unit_rows(slab: slice) -> slice:
    return slice(slab.start // UNIT_ROWS, -(-slab.stop // UNIT_ROWS))


def _two_of_four(device: torch.device) -> Tensor:
    """By the mask of what is kept of four columns: the two columns that are stored, int64 [16, 2].

    Fewer than two are filled with the smallest others. (More than two cannot be.)
    """
    pairs = list(itertools.combinations(range(4), 2))
    table = []
    for mask in range(16):
        kept = {column for column in range(4) if mask >> column & 1}
        table.append(next((pair for pair in pairs if kept <= set(pair)), pairs[0]))
    return torch.tensor(table, device=device)
