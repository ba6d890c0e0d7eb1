# SPDX-License-Identifier: Apache-2.0
"""hybrid_units in pure torch: slow, short, and the oracle of every test.

Written from kernels/formats/hybrid_units.h and from no kernel,
so that a mistake in one is not repeated in the other.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ....packed import PackedWeight, Scheme
from ...values.reference import BITS, bits_of, codes_of, numbers_of
from ..sparse_24 import reference as sparse_24


def place(row: int, column: int, values: str) -> tuple[int, int]:
    """Where a dense unit has the value of a row and a column: its word, and lowest bit in that."""
    word, shift = sparse_24.place(row, column // 4 * 4, values).values[column % 2]
    half_words = 16 * 128 * BITS[values] // 32
    return column % 4 // 2 * half_words + word, shift


def pack(weight: Tensor, scheme: Scheme) -> dict[str, Tensor]:
    """Packs unit by unit and value by value.

    Of value types: a weight of which the largest code of each scale is the largest there is.
    """
    name, group = scheme.values.get("values", "native"), scheme.values.get("group")
    bits, scales = _bits(weight, name, group)
    rows, cols = weight.shape
    words, offsets = [], [0]
    for row in range(0, rows, 16):
        for column in range(0, cols, 256):
            words += _unit(bits[row : row + 16, column : column + 256].tolist(), name)
            if group is not None and scales is not None:
                first, wide = column // group, 256 // group
                words += _scales(scales[row : row + 16, first : first + wide], wide, weight.dtype)
            offsets.append(len(words) // 16)
    packed = {
        "units": _signed(torch.tensor(words)),
        "unit_offsets": torch.tensor(offsets, dtype=torch.int32),
    }
    if scales is not None and group is None:
        packed["weight_scale"] = scales
    return packed


def _bits(weight: Tensor, values: str, group: int | None) -> tuple[Tensor, Tensor | None]:
    """Bits of every value, those of zeros 0, and scales."""
    if values == "native":
        return (weight.view(torch.int16).long() & 0xFFFF).where(weight != 0, 0), None
    numbers, scales = codes_of(weight, values, group)
    return bits_of(numbers, values).where(numbers != 0, 0), scales


def _unit(tile: list[list[int]], values: str) -> list[int]:
    """Words of values, and of metadata in a 2:4 unit."""
    bits = BITS[values]
    windows = [
        (row, column, line[column : column + 4] + [0] * (4 - len(line[column : column + 4])))
        for row, line in enumerate(tile)
        for column in range(0, len(line), 4)
    ]
    mask = (1 << bits) - 1
    if any(sum(value != 0 for value in window) > 2 for _, _, window in windows):
        words = [0] * (256 * 16 * bits // 32)
        for row, column, window in windows:
            for i, value in enumerate(window):
                word, shift = place(row, column + i, values)
                words[word] |= (value & mask) << shift
        return words
    words = [0] * (128 * 16 * bits // 32 + 128)
    found = {(row, column): window for row, column, window in windows}
    for row in range(16):
        for column in range(0, 256, 4):
            window = found.get((row, column), [0] * 4)
            kept = [i for i in range(4) if window[i]]
            others = [i for i in range(4) if not window[i]]
            low, high = sorted(kept + others[: 2 - len(kept)])
            where = sparse_24.place(row, column, values)
            for i, (word, shift) in zip((low, high), where.values, strict=True):
                words[word] |= (window[i] & mask) << shift
            words[where.metadata] |= (low | high << 2) << where.shift
    return words


def _scales(scales: Tensor, wide: int, dtype: torch.dtype) -> list[int]:
    full = torch.zeros(16, wide, dtype=dtype)
    full[: scales.shape[0], : scales.shape[1]] = scales.to(dtype)
    halves = (full.T.flatten().view(torch.int16).long() & 0xFFFF).tolist()
    return [low | high << 16 for low, high in zip(halves[::2], halves[1::2], strict=True)]


def _signed(words: Tensor) -> Tensor:
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def unpack(packed: PackedWeight) -> Tensor:
    """Unpacks by reading every element where the layout has it."""
    options, (rows, cols) = packed.scheme.values, packed.shape
    name, group = options.get("values", "native"), options.get("group")
    words = (packed.tensors["units"].long() & 0xFFFFFFFF).tolist()
    offsets, across = packed.tensors["unit_offsets"].tolist(), -(-cols // 256)
    mask, least = (1 << BITS[name]) - 1, 128 * 16 * BITS[name] // 32 + 128
    bits, scales = torch.zeros(rows, cols, dtype=torch.long), torch.ones(rows, cols)
    for number in range(len(offsets) - 1):
        own = words[16 * offsets[number] : 16 * offsets[number + 1]]
        count = 8 * (256 // group) if group else 0
        held, packed_scales = own[: len(own) - count], own[len(own) - count :]
        for row in range(16 * (number // across), min(16 * (number // across) + 16, rows)):
            for column in range(256 * (number % across), min(256 * (number % across) + 256, cols)):
                r, c = row % 16, column % 256
                bits[row, column] = _value(held, r, c, name, len(held) == least) & mask
                if group:
                    at = c // group * 16 + r
                    half = packed_scales[at // 2] >> at % 2 * 16 & 0xFFFF
                    scales[row, column] = _number(half, packed.dtype)
    if name == "native":
        return torch.where(bits >= 2**15, bits - 2**16, bits).to(torch.int16).view(packed.dtype)
    if not group:
        scales = packed.tensors["weight_scale"]
    return (numbers_of(bits, name) * scales).to(packed.dtype)


def _value(words: list[int], row: int, column: int, values: str, is_24: bool) -> int:
    if not is_24:
        word, shift = place(row, column, values)
        return words[word] >> shift
    where = sparse_24.place(row, column // 4 * 4, values)
    for e, (word, shift) in enumerate(where.values):
        if words[where.metadata] >> where.shift + 2 * e & 3 == column % 4:
            return words[word] >> shift
    return 0


def _number(half: int, dtype: torch.dtype) -> float:
    signed = half - 2**16 if half >= 2**15 else half
    return float(torch.tensor([signed], dtype=torch.int16).view(dtype))
