# SPDX-License-Identifier: Apache-2.0
"""nm_spmm with loops: slow, short, and the oracle of the layout.

Written from the drawing in kernels/formats/nm_spmm.h and from no other code.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ....packed import PackedWeight, Scheme


def _panel(n: int, m: int) -> tuple[int, int]:
    """Columns and entries of a panel."""
    possible = [w for w in range(1, 257) if w * n % 4 == 0 and w * m <= 256]
    windows = next((w for w in possible if w * n >= 16), possible[-1])
    return windows * m, windows * n


def _kept(rows: Tensor, n: int, m: int, first: int, width: int) -> list[int]:
    """The columns that some rows keep, of `width` from `first` on, counted from there."""
    columns, nonzero = [], (rows != 0).any(0).tolist()
    for window in range(first, first + width, m):
        used = [c for c in range(window, window + m) if nonzero[c]]
        spare = [c for c in range(window, window + m) if c not in used]
        columns += sorted(used + spare[: n - len(used)])
    return [column - first for column in columns]


def pack(weight: Tensor, scheme: Scheme) -> dict[str, Tensor]:
    """Packs entry by entry; the weight must follow the pattern."""
    n, m, length = scheme.values["n"], scheme.values["m"], scheme.values["vector_length"]
    width, entries = _panel(n, m)
    blocks, panels = -(-weight.shape[0] // 128), -(-weight.shape[1] // width)
    wide = torch.zeros(blocks * 128, panels * width)
    wide[: weight.shape[0], : weight.shape[1]] = torch.where(weight == 0, 0.0, weight)
    capacity = -(-min(width, entries * (128 // length)) // 4) * 4
    lines, values = wide.tolist(), torch.zeros(blocks, panels, 4, entries, 32).tolist()
    index = torch.zeros(blocks, panels, 128 // length, entries, dtype=torch.uint8)
    columns = torch.zeros(blocks, panels, capacity, dtype=torch.uint8)
    packed = torch.zeros_like(index)
    for block in range(blocks):
        for panel in range(panels):
            kept = []
            for first in range(block * 128, block * 128 + 128, length):
                kept.append(_kept(wide[first : first + length], n, m, panel * width, width))
            listed = sorted({column for group in kept for column in group})
            columns[block, panel, : len(listed)] = torch.tensor(listed, dtype=torch.uint8)
            for group, own in enumerate(kept):
                for entry, column in enumerate(own):
                    index[block, panel, group, entry] = column
                    packed[block, panel, group, entry] = listed.index(column)
                    for row in range(group * length, (group + 1) * length):
                        value = lines[block * 128 + row][panel * width + column]
                        values[block][panel][row // 32][entry][row % 32] = value
    return {
        "spmm_values": torch.tensor(values).view(torch.int32),
        "spmm_index": index,
        "spmm_columns": columns,
        "spmm_packed": packed,
    }


def unpack(packed: PackedWeight) -> Tensor:
    """Unpacks by looking every entry up in the list of columns."""
    n, m, length = (packed.scheme.values[name] for name in ("n", "m", "vector_length"))
    width, _ = _panel(n, m)
    values = packed.tensors["spmm_values"].view(torch.float32).tolist()
    columns, places = (packed.tensors[name].tolist() for name in ("spmm_columns", "spmm_packed"))
    weight = torch.zeros(packed.shape).tolist()
    for row, line in enumerate(weight):
        block, inside = divmod(row, 128)
        for panel, listed in enumerate(columns[block]):
            for entry, place in enumerate(places[block][panel][inside // length]):
                column = panel * width + listed[place]
                if column < packed.shape[1]:
                    line[column] = values[block][panel][inside // 32][entry][inside % 32]
    return torch.tensor(weight)
