# SPDX-License-Identifier: Apache-2.0
"""Rows of units by their numbers, as an embedding reads them; in torch, traceable, on any device.

Sizes follow from those of the tensors alone, so that a CUDA graph holds it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ...units import UNIT_COLS, UNIT_ROWS
from .exceptions import weights_of
from .layout import NAMES, bases_of, halves_of, is_24, registers_of

LISTED_AT_ONCE = 1024  # entries of the list that are compared with all ids


def read_rows(ids: Tensor, tensors: Mapping[str, Tensor], in_features: int) -> Tensor:
    """`spread(tensors)[ids]`: bfloat16 [*ids.shape, in_features] of int64 ids."""
    units, scales, slots, listed, offsets = (tensors[name] for name in NAMES)
    rows = ids.flatten()
    halves = _halves(units, rows)
    exponents = torch.where((halves & 0x0780) != 0, bases_of(scales)[rows, None] << 7, 0)
    # A column more, for what is of another row.
    width = halves.shape[1]
    bits = torch.nn.functional.pad((halves + exponents).to(torch.int16), (0, 1))
    own = slots[rows // UNIT_ROWS]  # [ids, unit columns, slots]
    first = torch.arange(own.shape[1], device=own.device)[:, None] * UNIT_COLS
    taken = (own != 0) & ((own >> 8 & 15) == rows[:, None, None] % UNIT_ROWS)
    columns = torch.where(taken, first + (own & 255), width)
    bits.scatter_(1, columns.flatten(1), weights_of(own, scales[rows, :, None]).flatten(1))
    _add_listed(bits, rows, listed, offsets)
    return bits[:, :in_features].view(torch.bfloat16).reshape(*ids.shape, in_features)


def _halves(units: Tensor, rows: Tensor) -> Tensor:
    """Halves of rows, whole units wide: int32 [ids, columns].

    Of units of all columns only the lanes of the rows are read.
    """
    if is_24(units):
        whole = halves_of(units[rows // UNIT_ROWS]).view(len(rows), UNIT_ROWS, -1)
        return whole[torch.arange(len(rows), device=rows.device), rows % UNIT_ROWS]
    down, across, _ = units.shape
    lanes = rows[:, None] % 8 * 4 + torch.arange(4, device=rows.device)
    by_lanes = units.view(down, across, 4, 3, 32, 4).permute(0, 4, 1, 2, 3, 5)
    words = by_lanes[rows[:, None] // UNIT_ROWS, lanes]  # [ids, 4, across, panel, vector, 4]
    found = registers_of(words.reshape(len(rows), 4, across, 4, 4, 3))
    is_lower = (rows % UNIT_ROWS >= 8)[:, None, None, None, None, None]
    both = found.unflatten(-1, (2, 2))  # halves of columns, halves of rows
    own = torch.where(is_lower, both[..., 1], both[..., 0])
    pairs = torch.stack((own & 0xFFFF, own >> 16 & 0xFFFF), -1)
    # [ids, pair of columns, across, panel, step, half of columns, column of the pair]
    return pairs.permute(0, 2, 3, 4, 5, 1, 6).reshape(len(rows), across * UNIT_COLS)


def _add_listed(bits: Tensor, rows: Tensor, listed: Tensor, offsets: Tensor) -> None:
    numbers = torch.arange(len(listed), device=listed.device)
    unit_rows = torch.searchsorted(offsets[1:].contiguous(), numbers.int(), right=True)
    first = unit_rows * UNIT_ROWS
    entry_rows = first + ((listed[:, 1].long() - first) & 0xFFFF)
    values = (listed[:, 1] >> 16).to(torch.int16)
    beyond = bits.shape[1] - 1
    for begin in range(0, len(listed), LISTED_AT_ONCE):
        part = slice(begin, begin + LISTED_AT_ONCE)
        taken = (rows[:, None] == entry_rows[part]) & (numbers[part] < offsets[-1])
        columns = torch.where(taken, listed[part, 0].long(), beyond)
        bits.scatter_(1, columns, values[part].expand(len(rows), -1))
