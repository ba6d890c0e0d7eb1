# SPDX-License-Identifier: Apache-2.0
"""How good is the order in which Tiled-CSL's packer lays the words of a tile?"""

from __future__ import annotations

import torch

from flashsparse_plugin import PackedWeight


def store_cycles(packed: PackedWeight, tiles: int = 100) -> float:
    """Cycles in which a GPU stores 32 consecutive words to shared memory, 1.00 at best.

    They are the most different 4-byte words of a group that fall into one bank, averaged over the
    groups of the first tiles.
    """
    offsets = packed.tensors["tile_offsets"]
    locations = packed.tensors["weight_packed"].long() & 0xFFFF
    cycles = groups = 0.0
    for tile in range(min(tiles, len(offsets) - 1)):
        own = locations[offsets[tile] : offsets[tile + 1]] // 2
        for group in own.split(32):
            cycles += int(torch.bincount(group.unique() % 32).max())
            groups += len(group) / 32
    return cycles / groups
