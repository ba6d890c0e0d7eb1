# SPDX-License-Identifier: Apache-2.0
"""nm_gather with loops: slow, short, and the oracle of the layout.

Written from the drawing in kernels/formats/nm_gather.h and from no other code.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...packed import PackedWeight, Scheme


def _row(column: int) -> int:
    return column // 32 * 32 + column % 4 * 8 + column // 4 % 8


def _panel(n: int, m: int) -> tuple[int, int]:
    """Columns and steps of a panel."""
    least = next(w for w in (1, 2, 4, 8, 16) if w * n % 16 == 0) * m
    columns = max(range(0, 257, least))
    if columns % 32:
        columns = max(range(0, 226, least))
    return columns, columns // m * n // 16


def _kept(rows: Tensor, n: int, m: int, width: int) -> list[int]:
    """The columns that some rows keep, of the first `width`."""
    used = set((rows != 0).any(0).nonzero().flatten().tolist())
    columns = []
    for first in range(0, width, m):
        window = [c for c in range(first, first + m) if c in used]
        spare = [c for c in range(first, first + m) if c not in used]
        columns += sorted(window + spare[: n - len(window)])
    return columns


def _place(unit_rows: int, row: int, entry: int) -> int:
    """Where a value lies in its unit and pair."""
    step, half, lane = entry // 16, entry // 8 % 2, row % 8 * 4 + entry % 8 // 2
    if unit_rows == 8:
        return lane * 8 + step * 4 + half * 2 + entry % 2
    tile = step * (unit_rows // 16) + row // 16
    return (tile * 32 + lane) * 8 + half * 4 + row // 8 % 2 * 2 + entry % 2


def pack(weight: Tensor, scheme: Scheme) -> dict[str, Tensor]:
    """Packs entry by entry; the weight must follow the pattern."""
    n, m, length = scheme.values["n"], scheme.values["m"], scheme.values["vector_length"]
    panel, steps = _panel(n, m)
    panels = -(-weight.shape[1] // panel)
    panels += panels * steps % 2
    unit_rows, pairs = min(length, 32), panels * steps // 2
    units = -(-len(weight) // unit_rows)
    wide = torch.zeros(units * unit_rows, panels * panel, dtype=weight.dtype)
    wide[: len(weight), : weight.shape[1]] = torch.where(weight == 0, 0.0, weight)
    bits = wide.view(torch.int16)
    values = torch.zeros(units, pairs, unit_rows * 32, dtype=torch.int16)
    index = torch.zeros(-(-len(weight) // length), pairs, 32, dtype=torch.uint8)
    for group in range(len(index)):
        kept = _kept(wide[group * length : (group + 1) * length], n, m, wide.shape[1])
        for number in range(panels):
            count = 16 * steps
            own = kept[number * count : (number + 1) * count]
            by_bank = sorted(own, key=lambda column: (_row(column) % 8, column))
            eights = count // 8
            dealt = [by_bank[slot * eights + eight] for eight in range(eights) for slot in range(8)]
            for place, column in enumerate(dealt, number * count):
                pair, entry = divmod(place, 32)
                index[group, pair, entry] = _row(column) - number * panel // 32 * 32
                for row in range(group * length, min((group + 1) * length, len(bits))):
                    unit, inside = divmod(row, unit_rows)
                    values[unit, pair, _place(unit_rows, inside, entry)] = bits[row, column]
    return {"gather_values": values, "gather_index": index}


def unpack(packed: PackedWeight) -> Tensor:
    """Unpacks by looking every entry up."""
    n, m, length = (packed.scheme.values[name] for name in ("n", "m", "vector_length"))
    (panel, steps), unit_rows = _panel(n, m), min(length, 32)
    values, index = packed.tensors["gather_values"], packed.tensors["gather_index"]
    column_at = {_row(column): column for column in range(packed.shape[1] + 512)}
    weight = torch.zeros(packed.shape, dtype=torch.int16)
    for row in range(len(weight)):
        unit, inside = divmod(row, unit_rows)
        for place in range(index.shape[1] * 32):
            pair, entry = divmod(place, 32)
            begin = place // (16 * steps) * panel // 32 * 32
            column = column_at[begin + int(index[row // length, pair, entry])]
            if column < packed.shape[1]:
                weight[row, column] = values[unit, pair, _place(unit_rows, inside, entry)]
    return weight.view(packed.dtype)
