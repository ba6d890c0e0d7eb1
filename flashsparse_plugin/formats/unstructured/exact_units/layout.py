# SPDX-License-Identifier: Apache-2.0
"""From lossless, or a weight that follows 2:4, to units and back, in torch on any device.

The layout is drawn in kernels/formats/exact_units.h. Words say what a unit holds: 1,536 all of its
columns, 896 two of every four. Weights go by slabs of rows, so that the
temporary tensors are bounded, whatever the weight. Between the two, elements are `halves` [rows,
columns], int32: bit 15 the sign, bits 10..7 the code, bits 6..0 the fraction.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from ...two_of_four import (
    METADATA_WORDS,
    metadata_words,
    pairs_by_mask,
    places_of,
    places_of_kept,
)
from ...units import UNIT_COLS, UNIT_ROWS, slabs, unit_grid, unit_rows
from .exceptions import SCALE_BIAS, Exceptions, collect, place

UNIT_WORDS, UNIT_WORDS_24 = 1536, 768 + METADATA_WORDS
PANEL_WORDS, PANEL_COLS = 384, 64  # of a dense unit; of kept columns in the other
CHUNK_COLUMNS, CHUNK_BYTES = 128, 192  # of lossless

_REGISTER = 0x87FF87FF - (1 << 32)
_PARTS = (0x80078007 - (1 << 32), 0x00780078, 0x07800780)  # of register 3, in words 0, 1 and 2
# Dimensions of registers by rows: unit row, upper or lower half of rows, row, unit column, panel,
# step, half of columns, pair of columns. And as units have them, registers last.
_OF_ROWS = (2, 8)
_OF_PANELS = (4, 2, 4)
_TO_UNITS = (0, 3, 4, 2, 7, 5, 6, 1)


STORED = (
    "weight_packed",
    "weight_base",
    "weight_exception_rows",
    "weight_exception_columns",
    "weight_exceptions",
)
"""The tensors of lossless (kernels/formats/lossless.h)."""
NAMES = ("units", "row_scales", "slots", "listed", "listed_offsets")
"""The tensors of exact_units."""


def pack(weight: Tensor, two_of_four: bool = False) -> dict[str, Tensor]:
    """Makes units of a weight, where it is.

    Args:
        weight: bfloat16 [out_features, in_features].
        two_of_four: Whether units hold two of every four columns, the others being zero.

    Returns:
        The tensors of exact_units by name.
    """
    shape, make = (weight.shape[0], weight.shape[1]), _units_24 if two_of_four else _units
    words = UNIT_WORDS_24 if two_of_four else UNIT_WORDS
    units = weight.new_empty((*unit_grid(*shape), words), dtype=torch.int32)
    bases, found = weight.new_empty(shape[0], dtype=torch.uint8), []
    for slab in slabs(*shape):
        bits = weight[slab].contiguous().view(torch.int16)
        halves, bases[slab], listed = _split(bits)
        units[unit_rows(slab)] = make(halves)
        rows, columns = listed.nonzero(as_tuple=True)
        found.append((rows + slab.start, columns, bits[rows, columns]))
    exceptions = Exceptions(*map(torch.cat, zip(*found, strict=True)))
    return _tensors(units, bases, exceptions, shape)


def arrange(stored: Mapping[str, Tensor], shape: tuple[int, int]) -> dict[str, Tensor]:
    """Makes units of the storage tensors of lossless, valid ones, where they are.

    Args:
        stored: The tensors by name.
        shape: (out_features, in_features).

    Returns:
        The tensors of exact_units by name.
    """
    packed, bases, ends, columns, bits = (stored[name] for name in STORED)
    units = packed.new_empty((*unit_grid(*shape), UNIT_WORDS), dtype=torch.int32)
    for slab in slabs(*shape):
        units[unit_rows(slab)] = _units(_halves(packed[slab]))
    count = int(ends[-1])
    rows = torch.arange(shape[0], device=ends.device).repeat_interleave(ends.diff())
    return _tensors(units, bases, Exceptions(rows, columns[:count].long(), bits[:count]), shape)


def _tensors(
    units: Tensor, bases: Tensor, found: Exceptions, shape: tuple[int, int]
) -> dict[str, Tensor]:
    scales = (bases.int() + (127 - SCALE_BIAS) << 23).view(torch.float32)[:, None]
    return dict(zip(NAMES, (units, scales, *place(found, bases, shape)), strict=True))


def stored(tensors: Mapping[str, Tensor], shape: tuple[int, int]) -> dict[str, Tensor]:
    """The inverse of `arrange`: the storage tensors of lossless by name."""
    units, scales = tensors["units"], tensors["row_scales"]
    chunks = -(-shape[1] // CHUNK_COLUMNS)
    packed = units.new_empty((shape[0], chunks * CHUNK_BYTES), dtype=torch.uint8)
    for slab in slabs(*shape):
        halves = halves_of(units[unit_rows(slab)])
        packed[slab] = _chunks(halves[: slab.stop - slab.start, : chunks * CHUNK_COLUMNS])
    found = exceptions_of(tensors)
    ends = F.pad(found.rows.bincount(minlength=shape[0]).cumsum(0), (1, 0)).int()
    bases = bases_of(scales).to(torch.uint8)
    return dict(zip(STORED, (packed, bases, ends, found.columns.int(), found.bits), strict=True))


def spread(tensors: Mapping[str, Tensor], shape: tuple[int, int]) -> Tensor:
    """Makes the dense weight, bfloat16 [out_features, in_features]."""
    units, bases = tensors["units"], bases_of(tensors["row_scales"])
    weight = units.new_empty(shape, dtype=torch.int16)
    for slab in slabs(*shape):
        halves = halves_of(units[unit_rows(slab)])[: slab.stop - slab.start, : shape[1]]
        exponents = torch.where((halves & 0x0780) != 0, bases[slab, None] << 7, 0)
        weight[slab] = (halves + exponents).to(torch.int16)
    found = exceptions_of(tensors)
    weight[found.rows, found.columns] = found.bits
    return weight.view(torch.bfloat16)


def exceptions_of(tensors: Mapping[str, Tensor]) -> Exceptions:
    """All exceptions of a weight."""
    names = ("slots", "listed", "listed_offsets", "row_scales")
    return collect(*(tensors[name] for name in names))


def bases_of(scales: Tensor) -> Tensor:
    """Bases of rows from their scales: int32 [out_features]."""
    return (scales[:, 0].contiguous().view(torch.int32) >> 23) - (127 - SCALE_BIAS)


def is_24(units: Tensor) -> bool:
    """Whether units hold two of every four columns."""
    return units.shape[2] == UNIT_WORDS_24


def halves_of(units: Tensor) -> Tensor:
    """Halves of whole units, [rows, columns]; 0 where no column is held."""
    if not is_24(units):
        return _halves_of_panels(units)
    down, across, words = units.shape
    kept = _halves_of_panels(units[..., : words - METADATA_WORDS])
    places = places_of(units[..., words - METADATA_WORDS :]).transpose(1, 2)
    halves = units.new_zeros(down * UNIT_ROWS, across * UNIT_COLS // 4, 4)
    halves.scatter_(2, places.reshape(len(halves), -1, 2).long(), kept.view(len(halves), -1, 2))
    return halves.flatten(1)


def _halves_of_panels(words: Tensor) -> Tensor:
    """Halves by rows of the panels of whole units, as the units hold them."""
    down, across, count = words.shape
    panels = count // PANEL_WORDS
    lanes = words.reshape(down, across, panels, 3, 32, 4).permute(0, 1, 2, 4, 3, 5)
    four = registers_of(lanes.reshape(down, across, panels, 8, 4, 4, 3))
    by_units = four.unflatten(-1, (2, 2))  # halves of columns, halves of rows
    registers = by_units.permute([_TO_UNITS.index(dimension) for dimension in range(8)])
    pairs = torch.stack((registers & 0xFFFF, registers >> 16 & 0xFFFF), -1)
    return pairs.reshape(down * UNIT_ROWS, across * panels * PANEL_COLS)


def registers_of(words: Tensor) -> Tensor:
    """The four registers of the three words of a step, the last dimension."""
    w0, w1, w2 = words.unbind(-1)
    turned = (w0 >> 12 & 0xFFFFF) | (w0 << 20)
    last = (turned & _PARTS[0]) | (w1 >> 8 & _PARTS[1]) | (w2 >> 4 & _PARTS[2])
    return torch.stack([w0 & _REGISTER, w1 & _REGISTER, w2 & _REGISTER, last], -1)


def _units(halves: Tensor) -> Tensor:
    """Units of rows of halves."""
    return _panels(_whole_units(halves), UNIT_COLS // PANEL_COLS)


def _units_24(halves: Tensor) -> Tensor:
    """The same of halves of which every four columns keep at most two; any zero becomes +0."""
    fours = _whole_units(halves.masked_fill(halves == 0x8000, 0)).unflatten(1, (-1, 4))
    places = places_of_kept(fours != 0, pairs_by_mask(halves.device))
    kept = fours.gather(2, places).flatten(1)
    panels = _panels(kept, UNIT_COLS // PANEL_COLS // 2)
    return torch.cat((panels, metadata_words(places)), 2)


def _whole_units(halves: Tensor) -> Tensor:
    return F.pad(halves, (0, -halves.shape[1] % UNIT_COLS, 0, -len(halves) % UNIT_ROWS))


def _panels(halves: Tensor, panels: int) -> Tensor:
    """Words of panels, so many a unit, of whole units of halves."""
    down, across = len(halves) // UNIT_ROWS, halves.shape[1] // (panels * PANEL_COLS)
    pairs = halves.view(down, *_OF_ROWS, across, panels, *_OF_PANELS, 2)
    registers = (pairs[..., 0] | pairs[..., 1] << 16).permute(_TO_UNITS)
    last = registers[..., 1, 1]
    turned = last & _PARTS[0]
    words = (
        registers[..., 0, 0] | turned << 12 | (turned >> 20 & 0xFFF),
        registers[..., 0, 1] | (last & _PARTS[1]) << 8,
        registers[..., 1, 0] | (last & _PARTS[2]) << 4,
    )
    lanes = torch.stack(words, -1).reshape(down, across, panels, 32, 3, 4)
    return lanes.permute(0, 1, 2, 4, 3, 5).reshape(down, across, panels * PANEL_WORDS)


def _split(bits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Halves of rows of a weight's bits, the bases of rows, and which elements have no code.

    The base is the smallest one whose window of 15 exponents holds the most nonzeros of its row.
    """
    exponents, is_zero = (bits >> 7 & 0xFF).int(), (bits & 0x7FFF) == 0
    rows = torch.arange(len(bits), dtype=torch.int32, device=bits.device)[:, None]
    places = rows * 257 + exponents.masked_fill(is_zero, 256)
    counts = places.flatten().bincount(minlength=len(bits) * 257).view(-1, 257)[:, :256].cumsum(1)
    bases = (counts[:, 15:255] - counts[:, :240]).argmax(1)
    codes = exponents - bases[:, None].int()
    has_code = (codes >= 1) & (codes <= 15) & ~is_zero
    signed = (bits & -0x7F81).int() & 0x807F  # sign and fraction
    halves = torch.where(has_code, signed | codes << 7, signed.masked_fill(~is_zero, 0))
    return halves, bases.to(torch.uint8), ~has_code & ~is_zero


def _halves(packed: Tensor) -> Tensor:
    """Halves of rows of lossless, whole chunks wide."""
    chunks = packed.view(len(packed), -1, CHUNK_BYTES)
    signed = chunks[..., :CHUNK_COLUMNS].int()
    codes = chunks[..., CHUNK_COLUMNS:]
    codes = torch.cat((codes & 15, codes >> 4), -1).int()
    return ((signed & 0x80) << 8 | codes << 7 | signed & 0x7F).flatten(1)


def _chunks(halves: Tensor) -> Tensor:
    """The inverse of `_halves`."""
    halves = halves.reshape(len(halves), -1, CHUNK_COLUMNS)
    signed = (halves >> 8 & 0x80 | halves & 0x7F).to(torch.uint8)
    codes = (halves >> 7 & 15).to(torch.uint8)
    lower, upper = codes.chunk(2, -1)
    return torch.cat((signed, lower | upper << 4), -1).flatten(1)
