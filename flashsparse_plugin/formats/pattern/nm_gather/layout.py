# SPDX-License-Identifier: Apache-2.0
"""How nm_gather lays out a weight, in torch on any device; kernels/formats/nm_gather.h draws it.

From nm_vector's tensors and back to the dense weight, by slabs of rows, so that no layer needs more
than a bounded workspace.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ...values.dtypes import magnitudes
from ...values.types import scale_count, spread_scales
from ..options import PatternOptions, all_positions, unpack_positions
from . import nibbles

STEP, PAIR = 16, 32  # kept columns: the depth of one mma, and what a warp loads at a time
REACH, BLOCK = 256, 32  # rows of x that an index byte reaches; columns that `x_row` permutes
SLAB = 1 << 26  # elements of a weight that are worked on at a time
LANE_BITS = 128  # that a lane loads at a time
# In which order the 8 values of a lane in a fragment lie: by dimensions 2, 6 and 8 of the view in
# `Layout.to_fragments`, which are 8 rows, 8 entries and 1 entry apart. Of floating values, and of
# integer codes by their bits.
ORDER, INTEGER_ORDERS = (6, 2, 8), {8: (6, 8, 2), 4: (8, 6, 2)}


def x_row(column: Tensor) -> Tensor:
    """Where a column of x lies in shared memory: 4 neighbours in rows 8 apart."""
    return column & ~(BLOCK - 1) | (column & 3) << 3 | column >> 2 & 7


def column_of(x_row: Tensor) -> Tensor:
    """The inverse of `x_row`."""
    return x_row & ~(BLOCK - 1) | (x_row & 7) << 2 | x_row >> 3 & 3


def value_bits(options: PatternOptions) -> int:
    """Bits of a stored value."""
    return options.value_type.bits if options.value_type else 16


def has_scales(options: PatternOptions) -> bool:
    """Whether scales lie beside the values: of codes that share a byte."""
    return options.value_type is not None and options.value_type.shares_bytes


def panel_columns(options: PatternOptions) -> int:
    """Columns of a panel: as many windows as are whole steps within reach of a byte.

    0 where not even the fewest windows are: those with a multiple of 16 kept columns must not be
    wider than 256 columns, or 225, where that is no multiple of 32; nor wider than a group of
    columns with a scale.
    """
    least = STEP // math.gcd(options.n, STEP) * options.m
    columns = (options.group or REACH) // least * least
    # Where panels begin between multiples of 32, the bytes count from the multiple before.
    return columns if columns % BLOCK == 0 else (REACH - BLOCK + 1) // least * least


@dataclass(frozen=True)
class Layout:
    """How a weight of one pattern and shape is laid out.

    Attributes:
        options: The pattern.
        shape: (out_features, in_features).
    """

    options: PatternOptions
    shape: tuple[int, int]

    @property
    def unit_rows(self) -> int:
        return min(self.options.vector_length, 32)

    @property
    def units(self) -> int:
        return -(-self.shape[0] // self.unit_rows)

    @property
    def groups(self) -> int:
        return self.options.groups(self.shape[0])

    @property
    def panel_columns(self) -> int:
        return panel_columns(self.options)

    @property
    def panel_entries(self) -> int:
        return self.panel_columns // self.options.m * self.options.n

    @property
    def section_panels(self) -> int:
        """Panels that are whole pairs of steps together."""
        return 1 if self.panel_entries % PAIR == 0 else 2

    @property
    def section_columns(self) -> int:
        return self.panel_columns * self.section_panels

    @property
    def sections(self) -> int:
        return -(-self.shape[1] // self.section_columns)

    @property
    def panels(self) -> int:
        return self.sections * self.section_panels

    @property
    def together(self) -> int:
        """Fragments of which a lane loads its values at once."""
        return 16 // value_bits(self.options)

    @property
    def pair_values(self) -> int:
        """Elements of gather_values for a unit and pair: values, and scales of nibbles."""
        count = self.unit_rows * PAIR
        return count // 2 + self.unit_rows * 2 * 2 if has_scales(self.options) else count

    @property
    def pairs(self) -> int:
        return self.panels * self.panel_entries // PAIR

    def slabs(self) -> Iterator[tuple[slice, slice, slice]]:
        """Groups, units and rows of the weight that are worked on together."""
        length, (rows, columns) = self.options.vector_length, self.shape
        step = max(SLAB // (columns * length), 1)
        for first in range(0, self.groups, step):
            groups = slice(first, min(first + step, self.groups))
            end = min(groups.stop * length, rows)
            units = slice(first * length // self.unit_rows, -(-end // self.unit_rows))
            yield groups, units, slice(first * length, end)

    def panel_begins(self, device: torch.device) -> Tensor:
        """The multiple of 32 that the bytes of each entry count from, [panels * entries]."""
        first = torch.arange(self.panels, device=device) * self.panel_columns
        return (first & ~(BLOCK - 1)).repeat_interleave(self.panel_entries)

    def columns(self, gather_index: Tensor) -> Tensor:
        """Columns of entries, int64 [groups, entries], of some groups of the index."""
        bytes_ = gather_index.flatten(1).long()
        return column_of(bytes_ + self.panel_begins(gather_index.device))

    # ---- from nm_vector -------------------------------------------------------------------------

    def order(self, weight_index: Tensor) -> tuple[Tensor, Tensor]:
        """In which order groups take their kept columns.

        Args:
            weight_index: nm_vector's, of some groups.

        Returns:
            The numbers of kept columns, int64 [groups, entries], and gather_index of these groups.
        """
        n, m = self.options.n, self.options.m
        device, kept = weight_index.device, self.options.kept(self.shape[1])
        entry = torch.arange(self.pairs * PAIR, device=device)
        positions = unpack_positions(weight_index, kept, self.options.index_bits)
        beyond = (entry[kept:] % n).to(torch.uint8).expand(len(positions), -1)
        columns = entry // n * m + torch.cat([positions, beyond], 1)
        # Dealt to groups of 8 by the banks of their rows: sorted, then every (entries / 8)th.
        panel = (len(columns), self.panels, self.panel_entries)
        banks = (x_row(columns) & 7).to(torch.uint8).view(panel)
        dealt = banks.argsort(dim=2, stable=True).unflatten(2, (8, -1)).transpose(2, 3).flatten(2)
        first = torch.arange(self.panels, device=device)[:, None] * self.panel_entries
        order = (dealt + first).flatten(1)
        rows = x_row(columns.gather(1, order)) - self.panel_begins(device)
        return order, rows.to(torch.uint8).view(len(columns), -1, PAIR)

    def arrange(
        self, weight_packed: Tensor, weight_index: Tensor, weight_scale: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Makes gather_values and gather_index of the storage tensors of nm_vector.

        Args:
            weight_packed: Value bits, int16 [out_features, kept], or codes, uint8 [out_features,
                bytes].
            weight_index: uint8 [groups, bytes].
            weight_scale: [out_features, groups of columns], of a 16-bit dtype, of codes that have
                their scales beside them.
        """
        codes = self.options.value_type
        values = weight_packed.new_empty(self.units, self.pairs, self.pair_values)
        index = weight_index.new_empty(self.groups, self.pairs, PAIR)
        entries, length = self.pairs * PAIR, self.options.vector_length
        for groups, units, rows in self.slabs():
            order, index[groups] = self.order(weight_index[groups])
            stored = weight_packed[rows]
            if codes is not None:
                stored = codes.spread(stored, self.options.kept(self.shape[1]))
            missing = len(order) * length - len(stored)
            padded = F.pad(stored, (0, entries - stored.shape[1], 0, missing))
            taken = padded.view(-1, length, entries).gather(
                2, order[:, None].expand(-1, length, -1)
            )
            own = taken.view(-1, self.unit_rows, entries)[: units.stop - units.start]
            fragments = self.to_fragments(own)
            if has_scales(self.options):
                assert weight_scale is not None
                steps = self.panel_entries // STEP
                fragments = nibbles.to_pairs(fragments, weight_scale[rows], steps)
            values[units] = fragments
        return values, index

    def scales(self, gather_values: Tensor, dtype: torch.dtype) -> Tensor:
        """The scales that lie beside values: [out_features, groups of columns] of the dtype."""
        scales = nibbles.scales_of(gather_values, self.panel_entries // STEP, dtype)
        count = scale_count(self.shape[1], self.options.group)
        return scales[: self.shape[0], :count].contiguous()

    @property
    def lane_order(self) -> tuple[int, int, int]:
        """In which order the 8 values of a lane lie."""
        codes = self.options.value_type
        return INTEGER_ORDERS[codes.bits] if codes is not None and codes.is_integer else ORDER

    def to_fragments(self, rows: Tensor) -> Tensor:
        """[units, unit_rows, entries] in the order of A fragments."""
        if self.unit_rows == 8:
            view = rows.view(-1, 8, self.pairs, 2, 2, 4, 2).permute(0, 2, 1, 5, 3, 4, 6)
        else:
            parts = rows.view(-1, self.unit_rows // 16, 2, 8, self.pairs, 2, 2, 4, 2)
            lanes = parts.permute(0, 4, 5, 1, 3, 7, *self.lane_order)
            # Fragments; of those together, lanes first, then the fragments of each, then values.
            view = lanes.flatten(2, 3).unflatten(2, (-1, self.together)).movedim(3, 5)
        return view.flatten(2)

    def from_fragments(self, values: Tensor) -> Tensor:
        """The inverse of `to_fragments`."""
        if self.unit_rows == 8:
            view = values.view(-1, self.pairs, 8, 4, 2, 2, 2).permute(0, 2, 1, 4, 5, 3, 6)
        else:
            if has_scales(self.options):
                values = values[:, :, : nibbles.CODE_BYTES]
            if self.options.value_type is not None:
                values = self.options.value_type.spread(values, self.unit_rows * PAIR)
            lanes = values.reshape(
                -1, self.pairs, self.unit_rows // 8 // self.together, 8, 4, self.together, 2, 2, 2
            )
            fragments = lanes.movedim(5, 3).flatten(2, 3).unflatten(2, (2, -1))
            rows, halves, entries = (6 + self.lane_order.index(d) for d in (2, 6, 8))
            view = fragments.permute(0, 3, rows, 4, 1, 2, halves, 5, entries)
        return view.reshape(-1, self.unit_rows, self.pairs * PAIR)

    def row_places(self) -> Tensor:
        """Where the elements of a unit's rows are: int32 [unit_rows, in_features], offsets in it.

        For a pattern that keeps every column, whose groups all have one order.
        """
        places = torch.arange(self.pairs * self.pair_values, dtype=torch.int32)
        by_entry = self.from_fragments(places.view(1, self.pairs, -1))[0]
        _, index = self.order(all_positions(self.options, 1, self.shape[1], places.device))
        by_column = by_entry.new_empty(self.unit_rows, self.panels * self.panel_columns)
        by_column[:, self.columns(index)[0]] = by_entry
        return by_column[:, : self.shape[1]].contiguous()

    # ---- what a file may hold -------------------------------------------------------------------

    def complaint(self, gather_values: Tensor, gather_index: Tensor) -> str | None:
        """The rule that tensors of the right sizes break; None for none.

        Each panel's bytes must name n columns of each of its windows, so that no kernel reads
        beyond x, and no value may meet a column beyond the weight's, where x is padding.
        """
        n, m = self.options.n, self.options.m
        entry = torch.arange(self.pairs * PAIR, device=gather_index.device)
        for groups, units, rows in self.slabs():
            columns = self.columns(gather_index[groups])
            by_panel = columns.view(len(columns), self.panels, -1).sort(2).values.flatten(1)
            repeated = (by_panel[:, 1:] == by_panel[:, :-1]).any()
            if bool(repeated | (by_panel // m != entry // n).any()):
                return f"gather_index does not name {n} columns of every {m}"
            beyond = columns >= self.shape[1]
            beyond = beyond.repeat_interleave(self.options.vector_length // self.unit_rows, 0)
            own = self.from_fragments(gather_values[units])
            nonzero = self.magnitudes(own).ne(0)
            if bool((nonzero & beyond[: len(own), None]).any()):
                return "gather_values has values for columns beyond the weight's"
            if bool(nonzero.flatten(0, 1)[rows.stop - rows.start :].any()):
                return "gather_values has values for rows beyond the weight's"
            if self.options.value_type is not None and self.options.value_type.has_nan(own):
                return "gather_values has a code that is NaN"
        if has_scales(self.options) and self.scales_differ(gather_values):
            return (
                "gather_values has other scales for the steps of a group, or some beyond the edge"
            )
        return None

    def magnitudes(self, bits: Tensor) -> Tensor:
        """Bits of values or codes without their sign, by which 0 and -0 are the same."""
        codes = self.options.value_type
        return magnitudes(bits) if codes is None else codes.magnitudes(bits)

    def scales_differ(self, gather_values: Tensor) -> bool:
        """Whether copies of a scale differ, or one is not zero where there is no weight."""
        steps = self.panel_entries // STEP
        copies = nibbles.scales_of(gather_values, 1, torch.int16).unflatten(1, (-1, steps))
        held = copies[..., :1].clone()
        held[self.shape[0] :] = 0
        held[:, scale_count(self.shape[1], self.options.group) :] = 0
        return bool((copies != held).any())

    # ---- to the dense weight --------------------------------------------------------------------

    def unpack(
        self,
        gather_values: Tensor,
        gather_index: Tensor,
        dtype: torch.dtype,
        weight_scale: Tensor | None = None,
    ) -> Tensor:
        """The dense weight."""
        bits, codes = self.spread(gather_values, gather_index), self.options.value_type
        if codes is None:
            return bits.view(dtype)
        scales = self.scales(gather_values, dtype) if weight_scale is None else weight_scale
        weight = bits.new_empty(self.shape, dtype=dtype)
        for _, _, rows in self.slabs():
            spread = spread_scales(scales[rows].float(), self.shape[1], self.options.group)
            weight[rows] = (codes.numbers(bits[rows]).float() * spread).to(dtype)
        return weight

    def spread(self, gather_values: Tensor, gather_index: Tensor) -> Tensor:
        """Value bits, or codes, by rows and columns, zeros included."""
        weight = gather_values.new_empty(self.shape)
        for groups, units, rows in self.slabs():
            columns = self.columns(gather_index[groups])
            own = self.from_fragments(gather_values[units])
            columns = columns.repeat_interleave(self.options.vector_length // self.unit_rows, 0)
            columns = columns[: len(own), None].expand(-1, self.unit_rows, -1)
            wide = own.new_zeros(len(own), self.unit_rows, self.panels * self.panel_columns)
            dense = wide.scatter_(2, columns, own).flatten(0, 1)
            weight[rows] = dense[: rows.stop - rows.start, : self.shape[1]]
        return weight
