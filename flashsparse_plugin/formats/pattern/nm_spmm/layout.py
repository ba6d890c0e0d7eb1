# SPDX-License-Identifier: Apache-2.0
"""How nm_spmm lays out a weight, in torch on any device; kernels/formats/nm_spmm.h draws it.

From nm_vector's tensors and back to the dense weight, by blocks of rows, so that no layer needs
more than a bounded workspace. This is the offline step of NM-SpMM, section III-C and Figure 4.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ...values.dtypes import magnitudes
from ..options import PatternOptions, unpack_positions

UNIT, BLOCK = 32, 128  # rows that are contiguous, and that share a list of columns
REACH = 256  # columns that an index byte tells apart
LEAST, MOST = 16, 128  # kept columns of a panel
SLAB = 1 << 25  # elements of a weight that are worked on at a time


def panel_windows(options: PatternOptions) -> int:
    """Windows of a panel; 0 where the form cannot hold the pattern.

    So many that at least 16 columns are kept, if an index byte tells so many windows' columns
    apart, and that whole words of four bytes are.
    """
    step = 1 if options.n % 4 == 0 else 2 if options.n % 2 == 0 else 4
    windows = -(-LEAST // (step * options.n)) * step
    while windows > step and windows * options.m > REACH:
        windows -= step
    too_many = windows * options.m > REACH or windows * options.n > MOST
    return 0 if too_many or options.vector_length < 4 else windows


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
    def columns(self) -> int:
        """Of a panel: k_s of the paper."""
        return panel_windows(self.options) * self.options.m

    @property
    def entries(self) -> int:
        """Kept columns of a panel: w_s of the paper."""
        return panel_windows(self.options) * self.options.n

    @property
    def panels(self) -> int:
        return -(-self.shape[1] // self.columns)

    @property
    def blocks(self) -> int:
        return -(-self.shape[0] // BLOCK)

    @property
    def groups(self) -> int:
        """Of a block."""
        return BLOCK // self.options.vector_length

    @property
    def capacity(self) -> int:
        """Columns that a block's list has room for."""
        return -(-min(self.columns, self.entries * self.groups) // 4) * 4

    def slabs(self) -> Iterator[tuple[slice, slice]]:
        """Blocks of rows that are worked on together, and their rows."""
        step = max(SLAB // (BLOCK * self.panels * self.columns), 1)
        for first in range(0, self.blocks, step):
            blocks = slice(first, min(first + step, self.blocks))
            yield blocks, slice(first * BLOCK, min(blocks.stop * BLOCK, self.shape[0]))

    # ---- from nm_vector -------------------------------------------------------------------------

    def index_of(self, weight_index: Tensor) -> Tensor:
        """D: the column in its panel of each entry.

        Args:
            weight_index: nm_vector's, of some groups that are whole blocks but for the last.

        Returns:
            uint8 [blocks, panels, groups of a block, entries].
        """
        n, m = self.options.n, self.options.m
        kept, all_entries = self.options.kept(self.shape[1]), self.panels * self.entries
        entry = torch.arange(all_entries, device=weight_index.device)
        positions = unpack_positions(weight_index, kept, self.options.index_bits)
        first = (entry % n).to(torch.uint8)  # what windows keep where there is nothing to keep
        beyond = first[kept:].expand(len(positions), -1)
        positions = torch.cat([positions, beyond], 1)
        missing = -len(positions) % self.groups
        positions = torch.cat([positions, first.expand(missing, -1)])
        columns = positions + (entry % self.entries // n * m).to(torch.uint8)
        by_block = columns.view(-1, self.groups, self.panels, self.entries)
        return by_block.transpose(1, 2).contiguous()

    def lists_of(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """col_info, and D by places in it.

        Args:
            index: As `index_of` makes it.

        Returns:
            uint8 [blocks, panels, capacity], and one of the shape of `index`.
        """
        flat = index.flatten(2).long()
        used = torch.zeros((*flat.shape[:2], self.columns), dtype=torch.bool, device=index.device)
        used.scatter_(2, flat, True)
        place = used.cumsum(2, dtype=torch.int16) - 1
        packed = place.gather(2, flat).to(torch.uint8).view_as(index)
        rising = (~used).to(torch.uint8).argsort(dim=2, stable=True)
        rising = F.pad(rising, (0, max(self.capacity - self.columns, 0)))[:, :, : self.capacity]
        count = used.sum(2, keepdim=True)
        there = torch.arange(self.capacity, device=index.device) < count
        return rising.where(there, torch.zeros_like(rising)).to(torch.uint8), packed

    def arrange(
        self, weight_packed: Tensor, weight_index: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Makes the tensors of this form of the storage tensors of nm_vector."""
        panels = (self.blocks, self.panels)
        values = weight_packed.new_empty(*panels, BLOCK // UNIT, self.entries, UNIT)
        index = weight_index.new_empty(*panels, self.groups, self.entries)
        columns = weight_index.new_empty(*panels, self.capacity)
        packed = torch.empty_like(index)
        length, all_entries = self.options.vector_length, self.panels * self.entries
        for blocks, rows in self.slabs():
            groups = slice(rows.start // length, self.options.groups(rows.stop))
            index[blocks] = self.index_of(weight_index[groups])
            columns[blocks], packed[blocks] = self.lists_of(index[blocks])
            stored = weight_packed[rows]
            padding = (0, all_entries - stored.shape[1], 0, -len(stored) % BLOCK)
            by_unit = F.pad(stored, padding).view(
                -1, BLOCK // UNIT, UNIT, self.panels, self.entries
            )
            values[blocks] = by_unit.permute(0, 3, 1, 4, 2)
        return values, index, columns, packed

    # ---- what a file may hold -------------------------------------------------------------------

    def complaint(self, values: Tensor, index: Tensor, columns: Tensor, packed: Tensor) -> str:
        """The rule that tensors of the right sizes break; "" for none.

        Each panel's bytes must name n columns of each of its windows, rising, and the lists must
        follow from them, so that no kernel reads beyond x; and no value may meet a row or column
        beyond the weight's.
        """
        n, m = self.options.n, self.options.m
        window = torch.arange(self.entries, device=index.device) // n
        for blocks, rows in self.slabs():
            own = index[blocks].to(torch.int16)
            rising = (own[..., 1:] > own[..., :-1]).all()
            if not bool(rising & (own // m == window).all()):
                return f"spmm_index does not name {n} columns of every {m}"
            expected = self.lists_of(index[blocks])
            if not torch.equal(expected[0], columns[blocks]):
                return "spmm_columns does not list the columns that each block of rows keeps"
            if not torch.equal(expected[1], packed[blocks]):
                return "spmm_packed does not say where each column is listed"
            last = own[:, -1] + (self.panels - 1) * self.columns  # [blocks, groups, entries]
            beyond = (last >= self.shape[1]).repeat_interleave(self.options.vector_length, 1)
            found = values[blocks, -1].permute(0, 1, 3, 2).flatten(1, 2)  # [blocks, rows, entries]
            if bool((magnitudes(found).ne(0) & beyond).any()):
                return "spmm_values has values for columns beyond the weight's"
            by_row = values[blocks].permute(0, 2, 4, 1, 3).flatten(0, 2)
            if bool(magnitudes(by_row[rows.stop - rows.start :]).any()):
                return "spmm_values has values for rows beyond the weight's"
        return ""

    # ---- to the dense weight --------------------------------------------------------------------

    def unpack(self, values: Tensor, index: Tensor, dtype: torch.dtype) -> Tensor:
        """The dense weight."""
        weight = values.new_empty(self.shape)
        for blocks, rows in self.slabs():
            own = index[blocks].transpose(1, 2).long()  # [blocks, groups, panels, entries]
            own = own.repeat_interleave(self.options.vector_length, 1).flatten(0, 1)
            found = values[blocks].permute(0, 2, 4, 1, 3).flatten(0, 2)  # [rows, panels, entries]
            wide = found.new_zeros(*found.shape[:2], self.columns).scatter_(2, own, found)
            weight[rows] = wide.flatten(1)[: rows.stop - rows.start, : self.shape[1]]
        return weight.view(dtype)
