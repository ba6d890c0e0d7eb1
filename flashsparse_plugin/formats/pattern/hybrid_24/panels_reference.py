# SPDX-License-Identifier: Apache-2.0
"""hybrid_panels in pure torch: slow, short, and the oracle of every test.

Written from kernels/formats/cpu_panels.h and from no kernel,
so that a mistake in one is not repeated in the other.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ....packed import PackedWeight, Scheme
from ...values.reference import bits_in, bits_of, bytes_of, codes_of, numbers_of


def pack(weight: Tensor, scheme: Scheme) -> dict[str, Tensor]:
    """Packs panel by panel a weight whose largest codes are the largest there are."""
    name, group = scheme.values["values"], scheme.values.get("group")
    codes, scales = codes_of(weight, name, group)
    (rows, cols), panels = codes.shape, -(-len(codes) // 16)
    full = torch.zeros(panels * 16, -(-cols // 256) * 256)
    full[:rows, :cols] = codes
    full_scales = torch.zeros(panels * 16, scales.shape[1])
    full_scales[:rows] = scales
    kinds = torch.zeros(panels, full.shape[1] // 256, dtype=torch.uint8)
    steps, words = [], []
    for panel, band in enumerate(full.split(16)):
        for unit, tile in enumerate(band.split(256, 1)):
            windows = tile[:, : cols - 256 * unit].split(4, 1)
            windows = [tile[:, 4 * w : 4 * w + 4] for w in range(len(windows))]
            kinds[panel, unit] = int(max(int((w != 0).sum(1).max()) for w in windows) > 2)
            if kinds[panel, unit]:
                steps += [window[:, i] for window in windows for i in range(4)]
                continue
            places = [[0] * 16 for _ in range(-(-len(windows) // 8))]
            for number, window in enumerate(windows):
                pair = torch.zeros(2, 16)
                for row in range(min(16, rows - 16 * panel)):
                    used = window[row].nonzero().flatten().tolist()
                    spare = [p for p in range(4) if p not in used]
                    low, high = sorted(used + spare[: 2 - len(used)])
                    pair[:, row] = window[row, [low, high]]
                    places[number // 8][row] |= (low | high << 2) << number % 8 * 4
                steps += [pair[0], pair[1]]
            words += places
    bits = bits_of(torch.stack(steps), name)
    unsigned = torch.tensor(words or [[0] * 16])[: len(words)]
    signed = torch.where(unsigned >= 2**31, unsigned - 2**32, unsigned).to(torch.int32)
    stored = weight.dtype if group else torch.float32
    return {
        "values": bytes_of(bits.T, name).T.contiguous(),
        "positions": signed,
        "kinds": kinds,
        "scales": _by_16(full_scales.to(stored)),
    }


def _by_16(rows: Tensor) -> Tensor:
    return torch.stack([panel.T for panel in rows.split(16)]).contiguous()


def unpack(packed: PackedWeight) -> Tensor:
    """Unpacks by putting every entry where its kind and position say."""
    (rows, cols), tensors = packed.shape, packed.tensors
    name, width = packed.scheme.values["values"], packed.scheme.values.get("group") or cols
    entries = numbers_of(bits_in(tensors["values"].T, name), name).T
    words, kinds = tensors["positions"].tolist(), tensors["kinds"].tolist()
    weight = torch.zeros(len(kinds) * 16, cols + 4)
    entry, word = 0, 0
    for panel, own in enumerate(kinds):
        for unit, kind in enumerate(own):
            windows = range(256 * unit, min(256 * unit + 256, cols), 4)
            for number, first in enumerate(windows):
                for row in range(16):
                    line = weight[16 * panel + row]
                    if kind:
                        line[first : first + 4] = entries[entry : entry + 4, row]
                        continue
                    pair = words[word + number // 8][row] >> number % 8 * 4 & 15
                    line[first + pair % 4] = entries[entry, row]
                    line[first + pair // 4] = entries[entry + 1, row]
                entry += 4 if kind else 2
            word += 0 if kind else -(-len(windows) // 8)
    scales = tensors["scales"].float().transpose(1, 2).flatten(0, 1)
    weight = weight[:, :cols] * scales[:, torch.arange(cols) // width]
    return weight[:rows].to(packed.dtype).contiguous()
