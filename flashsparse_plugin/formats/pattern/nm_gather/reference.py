# SPDX-License-Identifier: Apache-2.0
"""nm_gather with loops: slow, short, and the oracle of the layout.

Written from the drawing in kernels/formats/nm_gather.h and from no other code.
"""

from __future__ import annotations

import functools
import itertools

import torch
from torch import Tensor

from ....packed import PackedWeight, Scheme
from ...values.reference import BITS, bits_of, codes_of, numbers_of


def _row(column: int) -> int:
    return column // 32 * 32 + column % 4 * 8 + column // 4 % 8


def _panel(n: int, m: int, group: int | None) -> tuple[int, int]:
    """Columns and steps of a panel."""
    least = next(w for w in (1, 2, 4, 8, 16) if w * n % 16 == 0) * m
    columns = max(range(0, (group or 256) + 1, least))
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


@functools.cache
def _place(unit_rows: int, row: int, entry: int, values: str) -> int:
    """Where a value lies in its unit and pair."""
    step, half, lane = entry // 16, entry // 8 % 2, row % 8 * 4 + entry % 8 // 2
    if unit_rows == 8:
        return lane * 8 + step * 4 + half * 2 + entry % 2
    fragment = step * (unit_rows // 16) + row // 16
    in_fragment = half * 4 + row // 8 % 2 * 2 + entry % 2
    if values == "native":
        return (fragment * 32 + lane) * 8 + in_fragment
    if BITS[values] == 4:  # of nibbles
        return lane * 32 + fragment * 8 + entry % 2 * 4 + half * 2 + row // 8 % 2
    if values == "int8":
        in_fragment = half * 4 + entry % 2 * 2 + row // 8 % 2
    return (fragment // 2 * 32 + lane) * 16 + fragment % 2 * 8 + in_fragment


def _codes(weight: Tensor, values: str, group: int) -> tuple[Tensor, Tensor]:
    """Bits of codes, and the scales of groups, of which the largest code is the largest one."""
    codes, scales = codes_of(weight, values, group)
    return bits_of(codes, values).to(torch.uint8), scales


def _pair_bytes(nibbles: Tensor, scales: Tensor, steps: int) -> Tensor:
    """Nibbles [units, pairs, 1024] and the scales of rows and panels, as bytes."""
    units, pairs, _ = nibbles.shape
    bits = scales.view(torch.int16).tolist()
    bytes_ = torch.zeros(units, pairs, 640, dtype=torch.uint8)
    bytes_[:, :, :512] = nibbles[:, :, ::2] + 16 * nibbles[:, :, 1::2]
    for unit, pair, row, step in itertools.product(range(units), range(pairs), range(32), (0, 1)):
        panel = (2 * pair + step) // steps
        if unit * 32 + row < len(bits) and panel < len(bits[0]):
            place = 512 + row % 8 * 16 + step * 8 + row // 8 * 2
            bits_here = bits[unit * 32 + row][panel] & 0xFFFF
            bytes_[unit, pair, place] = bits_here & 0xFF
            bytes_[unit, pair, place + 1] = bits_here >> 8
    return bytes_


def pack(weight: Tensor, scheme: Scheme) -> dict[str, Tensor]:
    """Packs entry by entry; the weight must follow the pattern.

    Of codes: a weight that they hold exactly, the largest code of each row the largest there is.
    """
    n, m, length = scheme.values["n"], scheme.values["m"], scheme.values["vector_length"]
    kind, shared = scheme.values.get("values", "native"), scheme.values.get("group")
    panel, steps = _panel(n, m, shared)
    panels = -(-weight.shape[1] // panel)
    panels += panels * steps % 2
    unit_rows, pairs = min(length, 32), panels * steps // 2
    units = -(-len(weight) // unit_rows)
    wide = torch.zeros(units * unit_rows, panels * panel, dtype=weight.dtype)
    wide[: len(weight), : weight.shape[1]] = torch.where(weight == 0, 0.0, weight)
    bits, scale = wide.view(torch.int16), None
    if kind != "native":
        bits, _ = _codes(wide, kind, shared or wide.shape[1])
        _, scale = _codes(weight, kind, shared or weight.shape[1])
    lines, unit_size = bits.tolist(), pairs * unit_rows * 32
    flat = [0] * (units * unit_size)
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
                for row in range(group * length, min((group + 1) * length, len(lines))):
                    unit, inside = divmod(row, unit_rows)
                    begin = unit * unit_size + pair * unit_rows * 32
                    flat[begin + _place(unit_rows, inside, entry, kind)] = lines[row][column]
    values = torch.tensor(flat, dtype=bits.dtype).view(units, pairs, unit_rows * 32)
    packed = {"gather_values": values, "gather_index": index}
    if scale is None:
        return packed
    if shared is None:
        return packed | {"weight_scale": scale}
    return packed | {"gather_values": _pair_bytes(values, scale.to(weight.dtype), steps)}


def unpack(packed: PackedWeight) -> Tensor:
    """Unpacks by looking every entry up."""
    n, m, length = (packed.scheme.values[name] for name in ("n", "m", "vector_length"))
    kind, group = packed.scheme.values.get("values", "native"), packed.scheme.values.get("group")
    (panel, steps), unit_rows = _panel(n, m, group), min(length, 32)
    values, index = packed.tensors["gather_values"], packed.tensors["gather_index"]
    held, scales = [], torch.zeros(packed.shape).tolist()
    nibbles = BITS[kind] == 4
    if nibbles:
        held = values[:, :, 512:].contiguous().view(packed.dtype).tolist()
        values = torch.stack((values & 15, values >> 4), 3).flatten(2)
    column_at = {_row(column): column for column in range(packed.shape[1] + 512)}
    entries, units = index.flatten(1).tolist(), values.tolist()
    lines = torch.zeros(packed.shape, dtype=values.dtype).tolist()
    for row, line in enumerate(lines):
        unit, inside = divmod(row, unit_rows)
        for place, at_row in enumerate(entries[row // length]):
            pair, entry = divmod(place, 32)
            begin = place // (16 * steps) * panel // 32 * 32
            column = column_at[begin + at_row]
            if column < packed.shape[1]:
                line[column] = units[unit][pair][_place(unit_rows, inside, entry, kind)]
                if nibbles:
                    at = inside % 8 * 8 + entry // 16 * 4 + inside // 8
                    scales[row][column] = held[unit][pair][at]
    weight = torch.tensor(lines, dtype=values.dtype)
    if kind == "native":
        return weight.view(packed.dtype)
    codes = numbers_of(weight, kind)
    return (codes * packed.tensors.get("weight_scale", torch.tensor(scales))).to(packed.dtype)
