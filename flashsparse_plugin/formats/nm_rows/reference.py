# SPDX-License-Identifier: Apache-2.0
"""nm_rows in pure torch: slow, short, and the oracle of every test.

Written from kernels/formats/nm_rows.h and from no kernel,
so that a mistake in one is not repeated in the other.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...packed import PackedWeight, Scheme
from ..nm_panels.reference import by_16, code_bits, code_numbers
from ..value_types import VALUE_TYPES, quantise


def pack(weight: Tensor, scheme: Scheme) -> dict[str, Tensor]:
    """Quantises, and packs row by row; the weight must follow the pattern."""
    n, m, length = (scheme.values[name] for name in ("n", "m", "vector_length"))
    name, (rows, cols) = scheme.values["values"], weight.shape
    codes, scales = quantise(weight, VALUE_TYPES[name], scheme.values.get("group"))
    bits = 2 if m <= 4 else 4 if m <= 16 else 8
    kept, in_word = -(-cols // m) * n, 32 // bits
    values = [[0.0] * kept for _ in range(rows)]
    words = [[0] * -(-kept // in_word) for _ in range(rows)]
    for row, line in enumerate(codes.tolist()):
        if row % length == 0:
            nonzero = (codes[row : row + length] != 0).any(0).tolist() + [False] * m
        entry = 0
        for first in range(0, cols, m):
            used = [p for p in range(m) if nonzero[first + p]]
            spare = [p for p in range(m) if p not in used][: n - len(used)]
            for p in sorted(used + spare):
                values[row][entry] = line[first + p] or 0.0 if first + p < cols else 0.0
                words[row][entry // in_word] |= p << bits * (entry % in_word)
                entry += 1
    unsigned = torch.tensor(words)
    signed = torch.where(unsigned >= 2**31, unsigned - 2**32, unsigned)
    return {
        "values": code_bits(by_16(torch.tensor(values)), name),
        "positions": by_16(signed.to(torch.int32)),
        "scales": by_16(scales),
    }


def unpack(packed: PackedWeight) -> Tensor:
    """Unpacks by putting every entry where its position says."""
    n, m = packed.scheme.values["n"], packed.scheme.values["m"]
    name, (rows, cols) = packed.scheme.values["values"], packed.shape
    width = packed.scheme.values.get("group") or cols
    bits, kept = 2 if m <= 4 else 4 if m <= 16 else 8, -(-cols // m) * n
    numbers = code_numbers(packed.tensors["values"], name, kept)
    weight = [[0.0] * cols for _ in range(rows)]
    for row, line in enumerate(weight):
        words = packed.tensors["positions"][row // 16, :, row % 16].tolist()
        scales = packed.tensors["scales"][row // 16, :, row % 16].float().tolist()
        codes = numbers[row // 16, :, row % 16].tolist()
        for entry in range(kept):
            position = words[entry * bits // 32] >> entry * bits % 32 & (2**bits - 1)
            column = entry // n * m + position
            if column < cols:
                line[column] = codes[entry] * scales[column // width]
    return torch.tensor(weight).to(packed.dtype)
