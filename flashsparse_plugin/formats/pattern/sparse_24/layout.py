# SPDX-License-Identifier: Apache-2.0
"""From nm_vector to the units of sparse tensor cores and back, in torch on any device.

The layout is drawn in kernels/formats/sparse_24.h. Everything goes by slabs of rows, so that the
temporary tensors are bounded, whatever the weight.

Between the two, values are `bits` [rows, columns], zeros included: int16 of native ones, uint8 of
codes, which have a byte each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ...two_of_four import (
    METADATA_WORDS,
    metadata_words,
    pairs_by_mask,
    places_of_kept,
)
from ...two_of_four import places_of as places_of_metadata
from ...units import UNIT_COLS, UNIT_ROWS, slabs, unit_grid, unit_rows
from ...values.dtypes import bits_as, magnitudes
from ...values.types import VALUE_TYPES, ValueType, join_nibbles, spread_scales
from ..options import PatternOptions, unpack_positions

SLAB_ROWS = 128  # a slab has a multiple of these: whole units, and whole groups of rows
GROUPS = (32, 64, 128)

# The dimensions of values by rows, as `_sizes` has them, by their number.
_DOWN, _HALF_ROWS, _GROUP, _ACROSS, _VECTOR, _STEP, _HALF_COLS, _FOUR, _WHICH = range(9)
# How a lane's values of a step lie: floating ones, and integer codes by their bits.
_ORDER = (_HALF_COLS, _HALF_ROWS, _WHICH)
_INTEGER_ORDERS = {
    8: (_HALF_COLS, _WHICH, _HALF_ROWS),
    4: (_WHICH, _HALF_COLS, _HALF_ROWS),
}


@dataclass(frozen=True)
class UnitLayout:
    """How a unit stores its values.

    Attributes:
        values: As the option of a scheme.
        group: Columns that share a scale in the unit; None: no scale is there.
    """

    values: str = "native"
    group: int | None = None

    @property
    def type(self) -> ValueType | None:
        """The type of codes; None where values are stored as they are."""
        return VALUE_TYPES.get(self.values)

    @property
    def has_kernels(self) -> bool:
        """Whether kernels know the values: codes may have scales of rows or of groups."""
        if self.type is None:
            return self.values == "native" and self.group is None
        return self.group is None or self.group in GROUPS

    @property
    def has_row_scales(self) -> bool:
        """Whether codes have scales of rows, which lie elsewhere."""
        return self.type is not None and self.group is None

    @property
    def lane_steps(self) -> int:
        """Steps that 16 bytes of a lane hold."""
        return 1 if self.type is None else 16 // self.type.bits

    @property
    def value_words(self) -> int:
        return 1024 // self.lane_steps

    @property
    def words(self) -> int:
        """int32 words of a unit."""
        scales = 0 if self.group is None else UNIT_COLS // self.group * UNIT_ROWS
        return self.value_words + METADATA_WORDS + scales // 2

    @property
    def value_dtype(self) -> torch.dtype:
        """Of `bits`."""
        return torch.int16 if self.type is None else torch.uint8


NATIVE = UnitLayout()


def layout_of(options: PatternOptions) -> UnitLayout:
    """How units store the values of a scheme with these options."""
    return UnitLayout(options.values, options.group)


def arrange(
    stored: Mapping[str, Tensor], shape: tuple[int, int], options: PatternOptions
) -> Tensor:
    """Makes units of the storage tensors of nm_vector, which follow a pattern that embeds in 2:4.

    Args:
        stored: weight_packed, int16 [out_features, kept] or uint8 codes; weight_index, uint8
            [groups, bytes]; weight_scale, where groups of columns have scales: [out_features,
            ceil(in_features / group)] of the weight's dtype. Scales of rows are not looked at.
        shape: (out_features, in_features).
        options: The pattern, and the type of the values.

    Returns:
        int32 [unit rows, unit columns, words], on the device of the tensors.
    """
    weight_packed, weight_index = stored["weight_packed"], stored["weight_index"]
    layout = layout_of(options)
    down, across = unit_grid(*shape)
    units = weight_packed.new_empty(down, across, layout.words, dtype=torch.int32)
    kept, length, width = options.kept(shape[1]), options.vector_length, across * UNIT_COLS
    entries = torch.arange(kept, device=units.device)
    window = entries // options.n * options.m
    two_of_four = pairs_by_mask(units.device)
    for slab in slabs(*shape, SLAB_ROWS):
        groups = slice(slab.start // length, options.groups(slab.stop))
        positions = unpack_positions(weight_index[groups], kept, options.index_bits)
        columns = (positions + window).repeat_interleave(length, 0)[: slab.stop - slab.start]
        values = weight_packed[slab]
        if layout.type is not None:
            values = layout.type.spread(values, kept)
        bits = values.new_zeros(len(columns), max(width, kept // options.n * options.m))
        bits.scatter_(1, columns, values)
        parts = unit_words(bits[:, :width], two_of_four, layout)
        if layout.group is not None:
            parts.append(scale_words(stored["weight_scale"][slab], across, layout.group))
        units[unit_rows(slab)] = torch.cat(parts, 2)
    return units


def spread(
    units: Tensor,
    shape: tuple[int, int],
    dtype: torch.dtype,
    layout: UnitLayout = NATIVE,
    weight_scale: Tensor | None = None,
) -> Tensor:
    """Makes the dense weight of units.

    Args:
        units: int32 [unit rows, unit columns, words].
        shape: (out_features, in_features).
        dtype: Of the weight.
        layout: How units store their values.
        weight_scale: float32 [out_features, 1], where rows have scales.
    """
    bits, values = bits_of(units, shape, layout), layout.type
    if values is None:
        return bits.view(dtype)
    scales = scales_of(units, shape, layout, dtype) if weight_scale is None else weight_scale
    weight = units.new_empty(shape, dtype=dtype)
    for slab in slabs(*shape, SLAB_ROWS):
        each = spread_scales(scales[slab].float(), shape[1], layout.group)
        weight[slab] = (values.numbers(bits[slab]).float() * each).to(dtype)
    return weight


def bits_of(units: Tensor, shape: tuple[int, int], layout: UnitLayout = NATIVE) -> Tensor:
    """The value bits of units by rows, zeros included: [out_features, in_features]."""
    bits = units.new_empty(shape, dtype=layout.value_dtype)
    for slab in slabs(*shape, SLAB_ROWS):
        found = bits_of_units(units[unit_rows(slab)], layout)
        bits[slab] = found[: slab.stop - slab.start, : shape[1]]
    return bits


def scales_of(
    units: Tensor, shape: tuple[int, int], layout: UnitLayout, dtype: torch.dtype
) -> Tensor:
    """The scales of groups that lie in units: [out_features, ceil(in_features / group)]."""
    assert layout.group is not None
    rows = _all_scales(units, layout, dtype)
    return rows[: shape[0], : -(-shape[1] // layout.group)].contiguous()


def has_scales_beyond(units: Tensor, shape: tuple[int, int], layout: UnitLayout) -> bool:
    """Whether a scale in units that is beyond the weight's edge is not zero."""
    assert layout.group is not None
    rows = _all_scales(units, layout, torch.int16)
    return bool(rows[shape[0] :].any() | rows[:, -(-shape[1] // layout.group) :].any())


def _all_scales(units: Tensor, layout: UnitLayout, dtype: torch.dtype) -> Tensor:
    """The scales of groups that lie in units, of whole units."""
    return scale_rows(units[:, :, layout.value_words + METADATA_WORDS :], dtype)


def kept_of(units: Tensor, layout: UnitLayout) -> Tensor:
    """Which elements of whole units are other than zero: bool [rows, columns]."""
    return magnitudes_of(bits_of_units(units, layout), layout) != 0


def magnitudes_of(bits: Tensor, layout: UnitLayout) -> Tensor:
    """Value bits of which any zero has 0."""
    return magnitudes(bits) if layout.type is None else layout.type.magnitudes(bits)


def places_of(units: Tensor, layout: UnitLayout = NATIVE) -> Tensor:
    """The column, 0 to 3, of both values of every four columns: uint8 [down, across, 16, 64, 2]."""
    return places_of_metadata(metadata_of(units, layout))


def metadata_of(units: Tensor, layout: UnitLayout) -> Tensor:
    """Words of metadata: int32 [unit rows, unit columns, 128]."""
    return units[:, :, layout.value_words : layout.value_words + METADATA_WORDS]


def values_of(units: Tensor, layout: UnitLayout = NATIVE) -> Tensor:
    """Bits of the two values of every four columns: [down, across, 16, 64, 2]."""
    values = values_of_words(units[:, :, : layout.value_words], layout)
    return values.view(*units.shape[:2], UNIT_ROWS, UNIT_COLS // 4, 2)


def values_of_words(words: Tensor, layout: UnitLayout) -> Tensor:
    """The inverse of `value_words`: bits by rows of each unit, [down, across, 16, values]."""
    down, across, count = words.shape
    values = bits_as(words, layout.value_dtype)
    if layout.type is not None:
        values = layout.type.spread(values, count * 32 // layout.type.bits)
    order, sizes = _order(layout), _sizes(down, across, layout, values.shape[2] // 256)
    lanes = values.view([sizes[dimension] for dimension in order])
    by_unit = (_DOWN, _ACROSS, _HALF_ROWS, _GROUP, _VECTOR, _STEP, _HALF_COLS, _FOUR, _WHICH)
    rows = lanes.permute([order.index(dimension) for dimension in by_unit])
    return rows.reshape(down, across, UNIT_ROWS, values.shape[2] // UNIT_ROWS)


def bits_of_units(units: Tensor, layout: UnitLayout) -> Tensor:
    """Value bits by rows, zeros included, of whole units."""
    down, across, _ = units.shape
    fours = units.new_zeros((down, across, UNIT_ROWS, UNIT_COLS // 4, 4), dtype=layout.value_dtype)
    fours.scatter_(4, places_of(units, layout).long(), values_of(units, layout))
    rows = fours.view(down, across, UNIT_ROWS, UNIT_COLS).transpose(1, 2)
    return rows.reshape(down * UNIT_ROWS, across * UNIT_COLS)


def unit_words(bits: Tensor, two_of_four: Tensor, layout: UnitLayout) -> list[Tensor]:
    """Words of values and of metadata, [down, across, words], of bits by rows, whole units wide."""
    bits = F.pad(bits, (0, 0, 0, -len(bits) % UNIT_ROWS))
    down, across = len(bits) // UNIT_ROWS, bits.shape[1] // UNIT_COLS
    fours = bits.view(len(bits), -1, 4)
    kept = (magnitudes(fours) if layout.type is None else fours) != 0
    places = places_of_kept(kept, two_of_four)
    values = fours.where(kept, 0).gather(2, places)
    return [value_words(values, down, across, layout), metadata_words(places)]


def value_words(values: Tensor, down: int, across: int, layout: UnitLayout) -> Tensor:
    """Words of values in the order of lanes: int32 [down, across, words].

    Args:
        values: Bits by rows of whole units, a multiple of 256 in each unit: a lane has eight in
            each fragment.
        down: Units below each other.
        across: Units beside each other.
        layout: How units store values.
    """
    sizes = _sizes(down, across, layout, values.numel() // (down * across) // 256)
    lanes = values.reshape(sizes).permute(_order(layout)).reshape(down, across, -1)
    if layout.type is not None and layout.type.shares_bytes:
        lanes = join_nibbles(lanes)
    return bits_as(lanes, torch.int32)


def scale_words(scales: Tensor, across: int, group: int) -> Tensor:
    """Words of the scales of whole rows of units: [down, across, words]."""
    groups = UNIT_COLS // group
    scales = F.pad(scales, (0, across * groups - scales.shape[1], 0, -len(scales) % UNIT_ROWS))
    by_unit = scales.view(-1, UNIT_ROWS, across, groups).permute(0, 2, 3, 1)
    return bits_as(by_unit.reshape(-1, across, groups * UNIT_ROWS), torch.int32)


def scale_rows(words: Tensor, dtype: torch.dtype) -> Tensor:
    """The inverse of `scale_words`, of whole units: [rows, groups]."""
    scales = bits_as(words, dtype).view(*words.shape[:2], -1, UNIT_ROWS)
    return scales.permute(0, 3, 1, 2).reshape(len(words) * UNIT_ROWS, -1)


def _sizes(down: int, across: int, layout: UnitLayout, fragments: int) -> tuple[int, ...]:
    """Sizes of the dimensions of values by rows."""
    return down, 2, 8, across, fragments // layout.lane_steps, layout.lane_steps, 2, 4, 2


def _order(layout: UnitLayout) -> tuple[int, ...]:
    """The order in which those dimensions lie in units."""
    values = layout.type
    lane = _INTEGER_ORDERS[values.bits] if values is not None and values.is_integer else _ORDER
    return (_DOWN, _ACROSS, _VECTOR, _GROUP, _FOUR, _STEP, *lane)
