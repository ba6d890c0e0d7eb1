# SPDX-License-Identifier: Apache-2.0
"""nm_panels and nm_rows in pure torch: slow, short, and the oracle of every test.

Written from kernels/formats/cpu_panels.h and from no kernel,
so that a mistake in one is not repeated in the other.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ....packed import PackedWeight, Scheme
from ...values.reference import bits_in, bits_of, bytes_of, numbers_of
from ...values.types import VALUE_TYPES, quantise


def pack(weight: Tensor, scheme: Scheme) -> dict[str, Tensor]:
    """Packs row by row; the weight must follow the pattern. Codes are quantised first."""
    n, m, length = (scheme.values[name] for name in ("n", "m", "vector_length"))
    (rows, cols), name = weight.shape, scheme.values.get("values", "native")
    scales = None
    if name != "native":
        weight, scales = quantise(weight, VALUE_TYPES[name], scheme.values.get("group"))
    kept, windows = -(-cols // m) * n, range(0, cols, m)
    values, taken = torch.zeros(rows, kept, dtype=weight.dtype), []
    for row in range(rows):
        if row % length == 0:
            nonzero = (weight[row : row + length] != 0).any(0).tolist() + [False] * m
            columns = []
            for first in windows:
                used = [first + p for p in range(m) if nonzero[first + p]]
                spare = [first + p for p in range(m) if not nonzero[first + p]]
                columns += sorted(used + spare[: n - len(used)])
        for entry, column in enumerate(columns):
            if column < cols and weight[row, column] != 0:
                values[row, entry] = weight[row, column]
        taken.append(columns)
    if scheme.format.name == "nm_panels":
        own = [[min(column, cols) for column in columns] for columns in taken[::length]]
        places = {"columns": torch.tensor(own, dtype=torch.int32)}
    else:
        bits = _position_bits(m)
        words = [[0] * -(-kept * bits // 32) for _ in range(rows)]
        for row, columns in enumerate(taken):
            for entry, column in enumerate(columns):
                words[row][entry * bits // 32] |= column % m << entry * bits % 32
        unsigned = torch.tensor(words)
        signed = torch.where(unsigned >= 2**31, unsigned - 2**32, unsigned)
        places = {"positions": by_16(signed.to(torch.int32))}
    if scales is None:
        integer = {2: torch.int16, 4: torch.int32}[weight.itemsize]
        return {"values": by_16(values).view(integer), **places}
    held = bytes_of(bits_of(values, name), name)
    return {"values": by_16(held), **places, "scales": by_16(scales)}


def unpack(packed: PackedWeight) -> Tensor:
    """Unpacks by putting every entry where its column or position says."""
    n, m, length = (packed.scheme.values[name] for name in ("n", "m", "vector_length"))
    name, (rows, cols) = packed.scheme.values.get("values", "native"), packed.shape
    kept, bits = -(-cols // m) * n, _position_bits(m)
    width = packed.scheme.values.get("group") or cols
    if name == "native":
        panels = packed.tensors["values"].view(packed.dtype)
    else:
        rows_of_16 = packed.tensors["values"].transpose(1, 2)
        panels = numbers_of(bits_in(rows_of_16, name), name)[..., :kept].transpose(1, 2)
        group = torch.arange(kept) // n * m // width  # of every entry
        panels = (panels * packed.tensors["scales"].float()[:, group]).to(packed.dtype)
    weight = torch.zeros(rows, cols + m, dtype=packed.dtype)
    for row in range(rows):
        if packed.scheme.format.name == "nm_panels":
            columns = packed.tensors["columns"][row // length].tolist()
        else:
            words = packed.tensors["positions"][row // 16, :, row % 16].tolist()
            columns = [
                entry // n * m + (words[entry * bits // 32] >> entry * bits % 32 & (2**bits - 1))
                for entry in range(kept)
            ]
        weight[row, columns] = panels[row // 16, :, row % 16]
    return weight[:, :cols].contiguous()


def by_16(rows: Tensor) -> Tensor:
    """[rows, length] as [panels, length, 16]."""
    padded = torch.zeros(-(-len(rows) // 16) * 16, rows.shape[1], dtype=rows.dtype)
    padded[: len(rows)] = rows
    return torch.stack([panel.T for panel in padded.split(16)]).contiguous()


def _position_bits(m: int) -> int:
    return 2 if m <= 4 else 4 if m <= 16 else 8
