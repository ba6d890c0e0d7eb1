# SPDX-License-Identifier: Apache-2.0
"""hybrid_24 in pure torch: slow, short, and the oracle of every test.

Written from docs/hybrid.md and from no kernel,
so that a mistake in one is not repeated in the other.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ....packed import PackedWeight, Scheme
from ...values.reference import bits_in, bits_of, bytes_of, codes_of, numbers_of


def pack(weight: Tensor, scheme: Scheme) -> dict[str, Tensor]:
    """Packs row by row and window by window.

    Of value types: a weight of which the largest code of each scale is the largest there is.
    """
    name, group = scheme.values.get("values", "native"), scheme.values.get("group")
    numbers, scales = (weight, None) if name == "native" else codes_of(weight, name, group)
    rows, cols = numbers.shape
    kinds = [[int(_is_dense(tile)) for tile in band.split(256, 1)] for band in numbers.split(16)]
    values, index = [], []
    for row in range(rows):
        for unit in range(0, cols, 256):
            line = numbers[row, unit : unit + 256]
            nibbles = []
            for first in range(0, len(line), 4):
                window = line[first : first + 4].tolist() + [0.0] * 4
                kept = [0, 1, 2, 3]
                if not kinds[row // 16][unit // 256]:
                    used = [p for p in range(4) if window[p] != 0]
                    spare = [p for p in range(4) if window[p] == 0]
                    kept = sorted(used + spare[: 2 - len(used)])
                    nibbles.append(kept[0] + 4 * kept[1])
                values += [window[p] if window[p] != 0 else 0.0 for p in kept]
            nibbles += [0] * (len(nibbles) % 2)
            index += [nibbles[j] + 16 * nibbles[j + 1] for j in range(0, len(nibbles), 2)]
    tensors = {
        "weight_index": torch.tensor(index, dtype=torch.uint8),
        "weight_kinds": torch.tensor(kinds, dtype=torch.uint8),
    }
    if scales is None:
        kept_values = torch.tensor(values, dtype=torch.float64).to(weight.dtype)
        integer = {2: torch.int16, 4: torch.int32}[weight.itemsize]
        return {"weight_packed": kept_values.view(integer), **tensors}
    packed = bytes_of(bits_of(torch.tensor(values), name), name)
    stored = scales.to(weight.dtype if group else torch.float32)
    return {"weight_packed": packed, **tensors, "weight_scale": stored}


def _is_dense(tile: Tensor) -> bool:
    return any(int((window != 0).sum(1).max()) > 2 for window in tile.split(4, 1))


def unpack(packed: PackedWeight) -> Tensor:
    """Unpacks by putting every value where its kind and position say."""
    (rows, cols), stored = packed.shape, packed.tensors["weight_packed"]
    name = packed.scheme.values.get("values", "native")
    if name == "native":
        values = stored.view(packed.dtype)
    else:
        values = numbers_of(bits_in(stored, name), name)
    index, kinds = packed.tensors["weight_index"].tolist(), packed.tensors["weight_kinds"].tolist()
    weight = torch.zeros(rows, cols + 4, dtype=values.dtype)
    value, byte = 0, 0
    for row in range(rows):
        for unit in range(0, cols, 256):
            windows = range(unit, min(unit + 256, cols), 4)
            if kinds[row // 16][unit // 256]:
                for first in windows:
                    weight[row, first : first + 4] = values[value : value + 4]
                    value += 4
                continue
            for number, first in enumerate(windows):
                nibble = index[byte + number // 2] >> number % 2 * 4 & 15
                weight[row, first + nibble % 4] = values[value]
                weight[row, first + nibble // 4] = values[value + 1]
                value += 2
            byte += (len(windows) + 1) // 2
    weight = weight[:, :cols].contiguous()
    if name == "native":
        return weight
    width = packed.scheme.values.get("group") or cols
    scales = packed.tensors["weight_scale"].float()[:, torch.arange(cols) // width]
    return (weight * scales).to(packed.dtype)
