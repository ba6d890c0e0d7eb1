# SPDX-License-Identifier: Apache-2.0
"""Value types in pure torch: what a code is, for the oracles of all layouts.

Written from docs/formats.md and from no other code, so that a mistake in one is not repeated in the
other.
"""

from __future__ import annotations

import torch
from torch import Tensor

BITS = {"native": 16, "fp8_e4m3": 8, "int8": 8, "int4": 4}
LARGEST = {"fp8_e4m3": 448.0, "int8": 127.0, "int4": -8.0}


def codes_of(weight: Tensor, values: str, group: int | None) -> tuple[Tensor, Tensor]:
    """Codes as float32 numbers [rows, columns], and float32 scales [rows, groups].

    Of a weight that codes hold exactly, the largest of each group by the largest code: of int4 by
    -8, with a scale of the sign that this needs.
    """
    scales, codes = [], []
    for columns in weight.float().split(group or weight.shape[1], 1):
        largest = columns.gather(1, columns.abs().argmax(1, keepdim=True))
        scale = (largest if values == "int4" else largest.abs()) / LARGEST[values]
        scale[scale == 0] = 1
        scales.append(scale)
        codes.append(columns / scale)
    return torch.cat(codes, 1), torch.cat(scales, 1)


def bits_of(numbers: Tensor, values: str) -> Tensor:
    """Bits of codes that are given as numbers: int64, of an int4 code 0 to 15."""
    if values == "fp8_e4m3":
        return numbers.to(torch.float8_e4m3fn).view(torch.uint8).long()
    return numbers.long() % (1 << BITS[values])


def numbers_of(bits: Tensor, values: str) -> Tensor:
    """The inverse of `bits_of`, float32, of integers of any dtype."""
    if values == "fp8_e4m3":
        return bits.to(torch.uint8).view(torch.float8_e4m3fn).float()
    half = 1 << BITS[values] - 1
    return ((bits.long() + half) % (2 * half) - half).float()


def bytes_of(bits: Tensor, values: str) -> Tensor:
    """Codes side by side along the last dimension, the first in the lowest bits: uint8."""
    if BITS[values] == 8:
        return bits.to(torch.uint8)
    low = bits[..., ::2].clone()
    high = bits[..., 1::2]
    low[..., : high.shape[-1]] += 16 * high
    return low.to(torch.uint8)


def bits_in(stored: Tensor, values: str) -> Tensor:
    """The inverse of `bytes_of`, int64, with one more code where their number was odd."""
    if BITS[values] == 8:
        return stored.long()
    return torch.stack([stored.long() % 16, stored.long() // 16], -1).flatten(-2)
