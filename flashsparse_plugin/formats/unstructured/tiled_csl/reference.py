# SPDX-License-Identifier: Apache-2.0
"""Tiled-CSL in pure torch: slow, short, and the oracle of every test.

Written from docs/formats.md and from no kernel,
so that a mistake in one is not repeated in the other.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ....packed import PackedWeight, Scheme

TILE_ROWS, TILE_COLS, WORD_ALIGNMENT, BANKS = 128, 64, 4, 32


def tile_locations(device: torch.device | str = "cpu") -> Tensor:
    """Location of each element of a Tiled-CSL tile, int64 [128, 64]."""
    row = torch.arange(TILE_ROWS, device=device)[:, None]
    col = torch.arange(TILE_COLS, device=device)[None, :]
    return row * TILE_COLS + ((((col >> 3) ^ (row & 7)) << 3) | (col & 7))


def _tiles(weight: Tensor) -> Tensor:
    """Cuts a weight into tiles, int64 value bits [tiles, 128, 64], zero beyond the edges."""
    out_features, in_features = weight.shape
    down, across = -(-out_features // TILE_ROWS), -(-in_features // TILE_COLS)
    full = weight.new_zeros(down * TILE_ROWS, across * TILE_COLS)
    full[:out_features, :in_features] = weight
    tiles = full.view(down, TILE_ROWS, across, TILE_COLS).transpose(1, 2)
    bits = tiles.reshape(-1, TILE_ROWS, TILE_COLS).contiguous().view(torch.int16)
    return bits.to(torch.int64) & 0xFFFF


def _canonical_order(locations: list[int]) -> list[int]:
    """Orders the kept locations of one tile; the rule is stated in kernels/formats/tiled_csl.h."""
    singles: list[list[int]] = [[] for _ in range(BANKS)]
    pairs: list[list[int]] = [[] for _ in range(BANKS)]
    kept = set(locations)
    for lower in sorted({location & ~1 for location in locations}):
        halves = [half for half in (lower, lower + 1) if half in kept]
        bank = lower // 2 % BANKS
        if len(halves) == 2:
            pairs[bank].append(lower)
        else:
            singles[bank] += halves

    def words_left(bank: int) -> int:
        return len(singles[bank]) + 2 * len(pairs[bank])

    def fullest(banks: list[int], count: int) -> list[int]:
        return sorted(banks, key=lambda bank: (-words_left(bank), bank))[: max(count, 0)]

    order: list[int] = []
    while len(order) < len(locations):
        room = BANKS - len(order) % BANKS
        joining = fullest([bank for bank in range(BANKS) if words_left(bank)], room)
        doubling = fullest([bank for bank in joining if pairs[bank]], room - len(joining))
        for bank in sorted(joining):
            if bank in doubling:
                lower = pairs[bank].pop(0)
                order += [lower, lower + 1]
            elif singles[bank]:
                order.append(singles[bank].pop(0))
            else:
                lower = pairs[bank].pop(0)
                order.append(lower)
                singles[bank].append(lower + 1)
    return order


def pack(weight: Tensor, scheme: Scheme) -> dict[str, Tensor]:
    """Packs to Tiled-CSL, tile by tile, in canonical order."""
    place = tile_locations().flatten()
    words, offsets = [], [0]
    for bits in _tiles(weight):
        at_location = torch.zeros(TILE_ROWS * TILE_COLS, dtype=torch.int64)
        at_location[place] = bits.flatten()
        order = _canonical_order(torch.nonzero(at_location & 0x7FFF).flatten().tolist())
        order += order[-1:] * (-len(order) % WORD_ALIGNMENT)
        locations = torch.tensor(order, dtype=torch.int64)
        words.append(at_location[locations] << 16 | locations)
        offsets.append(offsets[-1] + len(order))
    stream = torch.cat(words)
    stream = torch.where(stream >= 2**31, stream - 2**32, stream)
    return {
        "weight_packed": stream.to(torch.int32),
        "tile_offsets": torch.tensor(offsets, dtype=torch.int32),
    }


def unpack(packed: PackedWeight) -> Tensor:
    """Unpacks Tiled-CSL by looking every location up."""
    out_features, in_features = packed.shape
    weight_packed, tile_offsets = packed.tensors["weight_packed"], packed.tensors["tile_offsets"]
    down, across = -(-out_features // TILE_ROWS), -(-in_features // TILE_COLS)
    element_at = torch.empty(TILE_ROWS * TILE_COLS, dtype=torch.int64)
    element_at[tile_locations().flatten()] = torch.arange(TILE_ROWS * TILE_COLS)
    tiles = torch.zeros(down * across, TILE_ROWS * TILE_COLS, dtype=torch.int16)
    words = weight_packed.to(torch.int64) & 0xFFFFFFFF
    for index in range(down * across):
        own = words[tile_offsets[index] : tile_offsets[index + 1]]
        bits = own >> 16
        tiles[index, element_at[own & 0xFFFF]] = torch.where(bits >= 2**15, bits - 2**16, bits).to(
            torch.int16
        )
    full = tiles.view(down, across, TILE_ROWS, TILE_COLS).transpose(1, 2)
    full = full.reshape(down * TILE_ROWS, across * TILE_COLS)
    return full[:out_features, :in_features].contiguous().view(packed.dtype)
