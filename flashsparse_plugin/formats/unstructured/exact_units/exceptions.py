# SPDX-License-Identifier: Apache-2.0
"""Exceptions of exact_units: slots of units, and the list of those that find none.

The layout is drawn in kernels/formats/exact_units.h.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ...units import UNIT_COLS, UNIT_ROWS, unit_grid

SLOTS = (4, 8, 16)
MOST_OVER = 0.01  # share of units whose exceptions may find no slot
SCALE_BIAS = 112  # the scale of a row is 2^(base - 112)
LEAST_ROOM = 64  # entries of the list


@dataclass(frozen=True)
class Exceptions:
    """Elements without a code, by rising rows and columns.

    Attributes:
        rows: int64 [n].
        columns: int64 [n].
        bits: int16 [n], of bfloat16.
    """

    rows: Tensor
    columns: Tensor
    bits: Tensor

    def of(self, which: Tensor) -> Exceptions:
        """Some of them, by a mask or an order."""
        return Exceptions(self.rows[which], self.columns[which], self.bits[which])


def place(
    found: Exceptions, bases: Tensor, shape: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Gives exceptions their slots.

    Args:
        found: All of a weight.
        bases: uint8 [out_features].
        shape: (out_features, in_features).

    Returns:
        slots int32 [unit rows, unit columns, 4, 8 or 16], the fewest of which less than 1% of the
        units need more; the list, int32 [room, 2]; and its offsets, int32 [unit rows + 1].
    """
    down, across = unit_grid(*shape)
    words, near = _scaled(found, bases)
    units = found.rows // UNIT_ROWS * across + found.columns // UNIT_COLS
    # Exceptions by unit, in their order; those that are not near come last.
    keys = torch.where(near, units, down * across)
    order = keys.argsort(stable=True)
    counts = keys.bincount(minlength=down * across + 1)
    begins = counts.cumsum(0) - counts
    ranks = torch.empty_like(keys)
    ranks[order] = torch.arange(len(keys), device=keys.device) - begins[keys[order]]
    most = _slots_of(counts[:-1])
    held = near & (ranks < most)
    slots = words.new_zeros(down * across * most)
    slots[units[held] * most + ranks[held]] = words[held]
    rest = found.of(~held)
    room = _room(len(rest.rows), down * across)
    listed = words.new_zeros(room, 2)
    listed[: len(rest.rows), 0] = rest.columns.int()
    listed[: len(rest.rows), 1] = rest.bits.int() << 16 | (rest.rows & 0xFFFF).int()
    ends = (rest.rows // UNIT_ROWS).bincount(minlength=down).cumsum(0)
    return slots.view(down, across, most), listed, F.pad(ends, (1, 0)).int()


def collect(slots: Tensor, listed: Tensor, offsets: Tensor, scales: Tensor) -> Exceptions:
    """The inverse of `place`; `scales` are those of rows, float32 [out_features, 1]."""
    _, across, _ = slots.shape
    down_at, across_at, slot_at = (slots != 0).nonzero(as_tuple=True)
    words = slots[down_at, across_at, slot_at]
    rows = down_at * UNIT_ROWS + (words >> 8 & 15)
    columns = across_at * UNIT_COLS + (words & 255)
    bits = weights_of(words, scales[rows, 0])
    taken = listed[: int(offsets[-1])]
    unit_rows = torch.arange(len(offsets) - 1, device=offsets.device)
    first = unit_rows.repeat_interleave(offsets.diff()) * UNIT_ROWS
    # The row modulo 65536, of which a row of units has at most one of each.
    further = first + ((taken[:, 1].long() - first) & 0xFFFF)
    together = Exceptions(
        torch.cat([rows, further]),
        torch.cat([columns, taken[:, 0].long()]),
        torch.cat([bits, (taken[:, 1] >> 16).to(torch.int16)]),
    )
    order = (together.rows * (across * UNIT_COLS) + together.columns).argsort()
    return together.of(order)


def weights_of(slots: Tensor, scales: Tensor) -> Tensor:
    """Bits of the weights of slots, int16, by the scales of their rows."""
    own = (slots >> 16).to(torch.int16).view(torch.bfloat16)
    # Exact: where the product is subnormal, the weight was, too.
    weights = (own.float() * scales).to(torch.bfloat16)
    return torch.where(own.isfinite(), weights, own).view(torch.int16)


def _scaled(found: Exceptions, bases: Tensor) -> tuple[Tensor, Tensor]:
    """Slots of exceptions, int32, and which of them may have one: those near their row's scale.

    Over its scale a weight must be a normal bfloat16, whose product with x float32 holds wherever
    it holds that with the weight itself: it may not be much larger, nor much smaller than that.
    """
    exponents = bases[found.rows].long() - SCALE_BIAS
    weights = found.bits.view(torch.bfloat16).double()
    scaled = torch.ldexp(weights, -exponents.double())
    least = torch.where(exponents > 0, 2.0**-63, 2.0**-126)
    near = (scaled.abs() >= least) & (scaled.abs() < 2.0**64) | ~weights.isfinite()
    # Infinities and NaN keep their bits.
    values = torch.where(
        weights.isfinite(), scaled.to(torch.bfloat16).view(torch.int16), found.bits
    )
    places = (found.rows % UNIT_ROWS) << 8 | found.columns % UNIT_COLS
    return values.int() << 16 | places.int(), near


def _slots_of(counts: Tensor) -> int:
    """The fewest slots of a unit of which less than 1% of the units need more."""
    for slots in SLOTS[:-1]:
        if int((counts > slots).sum()) < MOST_OVER * len(counts):
            return slots
    return SLOTS[-1]


def _room(entries: int, units: int) -> int:
    """Entries that the list has: of layers of one shape it mostly has one size."""
    room = max(LEAST_ROOM, units // 16)
    while room < entries:
        room *= 2
    return room
