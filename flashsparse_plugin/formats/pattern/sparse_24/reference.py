# SPDX-License-Identifier: Apache-2.0
"""sparse_24 in pure torch: slow, short, and the oracle of every test.

Written from kernels/formats/sparse_24.h and from no kernel,
so that a mistake in one is not repeated in the other.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from ....packed import PackedWeight, Scheme
from ...values.reference import BITS, bits_of, codes_of, numbers_of


class Four(NamedTuple):
    """Where four columns of a row are kept in a unit: words of it, and lowest bits in them."""

    values: tuple[tuple[int, int], tuple[int, int]]
    metadata: int
    shift: int


@functools.cache
def place(row: int, column: int, values: str = "native") -> Four:
    """Of four columns from `column` on."""
    step, group, half = column // 32, row % 8, row // 8
    part, t = column % 32 // 16, column % 16 // 4
    bits, i = BITS[values], 2 * part + half
    held = 16 // bits  # steps in 16 bytes
    two = []
    for e in range(2):
        order = (
            4 * part + 2 * e + half if values == "int8" else 4 * e + i if bits == 4 else 2 * i + e
        )
        bit = (step % held * 8 + order) * bits
        two.append((step // held * 128 + (4 * group + t) * 4 + bit // 32, bit % 32))
    giver = 4 * group + 2 * (step % 2) + part
    return Four((two[0], two[1]), 1024 // held + giver * 4 + step // 2, 16 * half + 4 * t)


def _codes(weight: Tensor, values: str, group: int | None) -> tuple[Tensor, Tensor | None]:
    """Bits of a weight whose largest code of each scale is the largest there is, and scales."""
    if values == "native":
        return weight.view(torch.int16).long() & 0xFFFF, None
    numbers, scales = codes_of(weight, values, group)
    return bits_of(numbers, values), scales


def pack(weight: Tensor, scheme: Scheme) -> dict[str, Tensor]:
    """Packs to sparse_24, four columns at a time.

    Of value types: a weight of which the largest code of each scale is the largest there is.
    """
    (out_features, in_features), options = weight.shape, scheme.values
    name, group = options.get("values", "native"), options.get("group")
    down, across = -(-out_features // 16), -(-in_features // 256)
    bits, scales = _codes(weight, name, group)
    full = bits.new_zeros(down * 16, across * 256)
    full[:out_features, :in_features] = bits
    held, sign = 16 // BITS[name], 0x7FFF if name == "native" else 0xFF
    scale_words = 0 if group is None else 16 * 256 // group // 2
    units = [[[0] * (1024 // held + 128 + scale_words) for _ in range(across)] for _ in range(down)]
    for row, line in enumerate(full.tolist()):
        for column in range(0, across * 256, 4):
            four = [value if value & sign else 0 for value in line[column : column + 4]]
            kept = [i for i in range(4) if four[i]]
            others = [i for i in range(4) if not four[i]]
            low, high = sorted(kept + others[: 2 - len(kept)])
            unit = units[row // 16][column // 256]
            where = place(row % 16, column % 256, name)
            for i, (word, shift) in zip((low, high), where.values, strict=True):
                unit[word] |= (four[i] & (1 << BITS[name]) - 1) << shift
            unit[where.metadata] |= (low | high << 2) << where.shift
    if group is not None and scales is not None:
        stored = (scales.to(weight.dtype).view(torch.int16).long() & 0xFFFF).tolist()
        for row, line in enumerate(stored):
            for g, scale in enumerate(line):
                unit = units[row // 16][g * group // 256]
                at = g % (256 // group) * 16 + row % 16
                unit[1024 // held + 128 + at // 2] |= scale << at % 2 * 16
    words = torch.tensor(units)
    packed = {"units": torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)}
    if name != "native" and group is None and scales is not None:
        packed["weight_scale"] = scales
    return packed


def unpack(packed: PackedWeight) -> Tensor:
    """Unpacks sparse_24, four columns at a time."""
    name = packed.scheme.values.get("values", "native")
    if name == "native":
        bits = _bits(packed, name)
        bits = torch.where(bits >= 2**15, bits - 2**16, bits)
        return bits.to(torch.int16).view(packed.dtype)
    codes, scales = codes_and_scales(packed)
    return (codes * scales).to(packed.dtype)


def codes_and_scales(packed: PackedWeight) -> tuple[Tensor, Tensor]:
    """The two of every element: float32 [out_features, in_features] each."""
    options, (out_features, in_features) = packed.scheme.values, packed.shape
    name, group = options["values"], options.get("group")
    bits = _bits(packed, name)
    codes = numbers_of(bits, name)
    if group is None:
        return codes, packed.tensors["weight_scale"].expand(out_features, in_features)
    words, first = packed.tensors["units"].view(torch.int16), 2 * (64 * BITS[name] + 128)
    scales = torch.zeros(out_features, in_features)
    for row in range(out_features):
        for g in range(-(-in_features // group)):
            unit, at = words[row // 16, g * group // 256], g % (256 // group) * 16 + row % 16
            scale = unit[first + at : first + at + 1].view(packed.dtype)
            scales[row, g * group : (g + 1) * group] = scale.float()
    return codes, scales


def _bits(packed: PackedWeight, values: str) -> Tensor:
    """Value bits of every element: int64 [out_features, in_features]."""
    units = (packed.tensors["units"].long() & 0xFFFFFFFF).tolist()
    mask = (1 << BITS[values]) - 1
    lines = []
    for row in range(packed.shape[0]):
        line = [0] * (len(units[0]) * 256)
        for column in range(0, len(line), 4):
            unit = units[row // 16][column // 256]
            where = place(row % 16, column % 256, values)
            for e, (word, shift) in enumerate(where.values):
                position = unit[where.metadata] >> where.shift + 2 * e & 3
                line[column + position] = unit[word] >> shift & mask
        lines.append(line)
    return torch.tensor(lines)[:, : packed.shape[1]]
