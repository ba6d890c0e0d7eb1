# SPDX-License-Identifier: Apache-2.0
"""From values and kinds of units to the stream of hybrid_units and back, in torch on any device.

The layout is drawn in kernels/formats/hybrid_units.h. Everything goes by slabs of rows, so that the
temporary tensors are bounded, whatever the weight.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ....packed import FormatError
from ...two_of_four import METADATA_WORDS, pairs_by_mask, require_rising
from ...units import UNIT_COLS, UNIT_ROWS, slabs, unit_grid, unit_rows
from ..sparse_24 import layout as sparse_24
from ..sparse_24.layout import SLAB_ROWS, UnitLayout

PIECE_WORDS = 16
"""In which offsets count."""


class Slab(NamedTuple):
    """Some rows of a weight, and the units that hold them.

    Attributes:
        rows: Of the weight.
        units: Rows of units.
        values: Bits of whole units by rows, zeros included.
        kinds: bool [unit rows, unit columns]: which are dense.
        words: int32 [2:4 units, words], in their order.
    """

    rows: slice
    units: slice
    values: Tensor
    kinds: Tensor
    words: Tensor


def scale_count(layout: UnitLayout) -> int:
    """Words of scales in a unit."""
    return layout.words - layout.value_words - METADATA_WORDS


def unit_sizes(layout: UnitLayout) -> tuple[int, int]:
    """Words of a 2:4 unit, and of a dense one."""
    return layout.words, 2 * layout.value_words + scale_count(layout)


def arrange(
    values: Tensor, kinds: Tensor, scales: Tensor | None, layout: UnitLayout
) -> tuple[Tensor, Tensor]:
    """Makes the stream and its offsets.

    Args:
        values: Bits [out_features, in_features], which follow 2:4 in units that are not dense.
        kinds: uint8 [unit rows, unit columns].
        scales: [out_features, groups] of the weight's dtype, where units have scales of groups.
        layout: How units store values.

    Returns:
        int32 [words] and int32 [units + 1], on the device of the values.
    """
    (rows, cols), (down, across) = values.shape, kinds.shape
    two_of_four, dense = unit_sizes(layout)
    sizes = torch.where(kinds != 0, dense, two_of_four)
    ends = sizes.flatten().cumsum(0)
    begins = ends.view(down, across) - sizes
    units = values.new_empty(int(ends[-1]), dtype=torch.int32)
    by_mask = pairs_by_mask(values.device)
    for slab in slabs(rows, cols, SLAB_ROWS):
        own = unit_rows(slab)
        bits = F.pad(values[slab], (0, across * UNIT_COLS - cols))
        bits = F.pad(bits, (0, 0, 0, -len(bits) % UNIT_ROWS))
        pairs = sparse_24.unit_words(bits, by_mask, layout)
        fours = bits.view(len(bits), -1, 4)
        halves = (fours[:, :, :2], fours[:, :, 2:])
        whole = [
            sparse_24.value_words(half, len(bits) // UNIT_ROWS, across, layout) for half in halves
        ]
        if layout.group is not None:
            assert scales is not None
            words = sparse_24.scale_words(scales[slab], across, layout.group)
            pairs.append(words)
            whole.append(words)
        is_dense = kinds[own] != 0
        for kind, parts in ((~is_dense, pairs), (is_dense, whole)):
            made = torch.cat([part[kind] for part in parts], 1)
            units[_places(begins[own][kind], made.shape[1])] = made
    return units, F.pad(ends // PIECE_WORDS, (1, 0)).to(torch.int32)


def _places(begins: Tensor, words: int) -> Tensor:
    return begins[:, None] + torch.arange(words, device=begins.device)


def kinds_of(offsets: Tensor, shape: tuple[int, int], layout: UnitLayout) -> Tensor:
    """Which units are dense, by their size: bool [unit rows, unit columns]."""
    return (offsets.diff() > layout.words // PIECE_WORDS).view(unit_grid(*shape))


def slabs_of(
    units: Tensor, offsets: Tensor, shape: tuple[int, int], layout: UnitLayout
) -> Iterator[Slab]:
    """Reads a stream whose offsets are valid."""
    kinds = kinds_of(offsets, shape, layout)
    begins = (offsets[:-1].long() * PIECE_WORDS).view(kinds.shape)
    for rows in slabs(*shape, SLAB_ROWS):
        own = unit_rows(rows)
        dense = kinds[own]
        words = units[_places(begins[own][~dense], layout.words)]
        whole = units[_places(begins[own][dense], 2 * layout.value_words)]
        values = units.new_empty(*dense.shape, UNIT_ROWS, UNIT_COLS, dtype=layout.value_dtype)
        found = sparse_24.bits_of_units(words[:, None], layout)
        values[~dense] = found.view(len(words), UNIT_ROWS, UNIT_COLS)
        halves = whole.view(len(whole), 2, layout.value_words)
        fours = sparse_24.values_of(halves, layout).permute(0, 2, 3, 1, 4)
        values[dense] = fours.reshape(len(whole), UNIT_ROWS, UNIT_COLS)
        by_rows = values.transpose(1, 2).reshape(len(dense) * UNIT_ROWS, -1)
        yield Slab(rows, own, by_rows, dense, words)


def read_values(
    units: Tensor, offsets: Tensor, shape: tuple[int, int], layout: UnitLayout
) -> Tensor:
    """The inverse of `arrange`: value bits [out_features, in_features]."""
    bits = units.new_empty(shape, dtype=layout.value_dtype)
    for slab in slabs_of(units, offsets, shape, layout):
        bits[slab.rows] = slab.values[: slab.rows.stop - slab.rows.start, : shape[1]]
    return bits


def scales_of(
    units: Tensor, offsets: Tensor, shape: tuple[int, int], layout: UnitLayout, dtype: torch.dtype
) -> Tensor:
    """The scales of groups that lie in units, of whole units: [rows, groups]."""
    words = scale_count(layout)
    ends = offsets[1:].long() * PIECE_WORDS
    return sparse_24.scale_rows(
        units[_places(ends - words, words)].view(*unit_grid(*shape), -1), dtype
    )


def require_offsets(
    units: Tensor, offsets: Tensor, shape: tuple[int, int], layout: UnitLayout
) -> None:
    """Proves that every unit lies in the stream, and has the size of one of the two kinds.

    Raises:
        FormatError: With the rule that is broken.
    """
    two_of_four, dense = unit_sizes(layout)
    sizes = offsets.long().diff() * PIECE_WORDS
    if int(offsets[0]) != 0 or int(offsets[-1]) * PIECE_WORDS != len(units):
        raise FormatError(
            f"unit_offsets must go from 0 to {len(units) / PIECE_WORDS:g}, the end of units, not "
            f"from {int(offsets[0])} to {int(offsets[-1])}"
        )
    wrong = ((sizes != two_of_four) & (sizes != dense)).nonzero()
    if len(wrong):
        unit = int(wrong[0])
        raise FormatError(
            f"unit {unit} has {int(sizes[unit])} words by unit_offsets: one of 2:4 has "
            f"{two_of_four}, and a dense one {dense}"
        )


def require_values(
    units: Tensor, offsets: Tensor, shape: tuple[int, int], layout: UnitLayout
) -> int:
    """Proves that a stream with valid offsets is that of a weight, but for its scales.

    Positions that do not rise are undefined behaviour of mma.sp. Codes may not be NaN, which
    kernels do not know. What lies beyond the weight's edge meets zeros of x, which an infinity
    would make NaN of.

    Returns:
        The number of elements other than zero.

    Raises:
        FormatError: With the rule that is broken.
    """
    count = 0
    for slab in slabs_of(units, offsets, shape, layout):
        metadata = sparse_24.metadata_of(slab.words[:, None], layout)
        require_rising(metadata, slab.rows.start, (~slab.kinds).nonzero())
        if layout.type is not None and layout.type.has_nan(slab.values):
            raise FormatError("units have a code that is NaN")
        kept = sparse_24.magnitudes_of(slab.values, layout) != 0
        rows = slab.rows.stop - slab.rows.start
        if bool(kept[rows:].any() | kept[:, shape[1] :].any()):
            raise FormatError("units have values beyond the weight's edge")
        count += int(kept.count_nonzero())
    return count
