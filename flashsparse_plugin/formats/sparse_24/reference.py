# SPDX-License-Identifier: Apache-2.0
"""sparse_24 in pure torch: slow, short, and the oracle of every test.

Written from kernels/formats/sparse_24.h and from no kernel,
so that a mistake in one is not repeated in the other.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...packed import PackedWeight, Scheme


def _words(row: int, column: int) -> tuple[int, int, int]:
    """Of four columns from `column` on, in a unit: value word, metadata word, its lowest bit."""
    step, group, half = column // 32, row % 8, row // 8
    part, four = column % 32 // 16, column % 16 // 4
    value = step * 128 + (4 * group + four) * 4 + 2 * part + half
    giver = 4 * group + 2 * (step % 2) + part
    return value, 1024 + giver * 4 + step // 2, 16 * half + 4 * four


def pack(weight: Tensor, scheme: Scheme) -> dict[str, Tensor]:
    """Packs to sparse_24, four columns at a time."""
    out_features, in_features = weight.shape
    down, across = -(-out_features // 16), -(-in_features // 256)
    full = weight.new_zeros(down * 16, across * 256)
    full[:out_features, :in_features] = weight
    bits = (full.view(torch.int16).long() & 0xFFFF).tolist()
    units = [[[0] * 1152 for _ in range(across)] for _ in range(down)]
    for row, line in enumerate(bits):
        for column in range(0, across * 256, 4):
            four = [value if value & 0x7FFF else 0 for value in line[column : column + 4]]
            kept = [i for i in range(4) if four[i]]
            others = [i for i in range(4) if not four[i]]
            low, high = sorted(kept + others[: 2 - len(kept)])
            unit = units[row // 16][column // 256]
            value, metadata, shift = _words(row % 16, column % 256)
            unit[value] = four[low] | four[high] << 16
            unit[metadata] |= (low | high << 2) << shift
    words = torch.tensor(units)
    return {"units": torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)}


def unpack(packed: PackedWeight) -> Tensor:
    """Unpacks sparse_24, four columns at a time."""
    units = (packed.tensors["units"].long() & 0xFFFFFFFF).tolist()
    out_features, in_features = packed.shape
    lines = []
    for row in range(out_features):
        line = [0] * (len(units[0]) * 256)
        for column in range(0, len(line), 4):
            unit = units[row // 16][column // 256]
            value, metadata, shift = _words(row % 16, column % 256)
            for e in range(2):
                line[column + (unit[metadata] >> shift + 2 * e & 3)] = (
                    unit[value] >> 16 * e & 0xFFFF
                )
        lines.append(line)
    bits = torch.tensor(lines)
    bits = torch.where(bits >= 2**15, bits - 2**16, bits).to(torch.int16)
    return bits[:, :in_features].contiguous().view(packed.dtype)
