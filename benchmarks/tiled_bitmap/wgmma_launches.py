# SPDX-License-Identifier: Apache-2.0
"""The shapes that tiled_bitmap's wgmma kernel is compiled in, and launches worth measuring."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from flashsparse_plugin import PackedWeight
from flashsparse_plugin.ops import ops

HEADER = Path(__file__).parents[2] / "kernels" / "cuda" / "tiled_bitmap" / "wgmma_plan.h"
SHAPE = re.compile(r"^  X\((\d+), (\d+)\)", re.M)
GROUP_ROWS, UNIT_ROWS, UNIT_COLS, LINE_BYTES = 64, 16, 256, 128
SHARED_BYTES, BARRIER_BYTES, MOST_STAGES, MOST_ARRIVALS = 227 << 10, 1024, 16, 4096
LEAST_RING, MOST_RING = 72, 288  # lines


class WgmmaShape(NamedTuple):
    """One X(...) of FS_TILED_BITMAP_WGMMA_SHAPES; its index is what a plan takes."""

    index: int
    tokens: int
    groups: int


class WgmmaLaunch(NamedTuple):
    """A launch: the numbers of WgmmaPlan, in the order in which the op takes them."""

    shape: int
    down: int
    depth: int
    stages: int
    clusters: int
    ring_lines: int

    def linear(self, packed: PackedWeight, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Multiplies by this launch."""
        return planned(packed, x, bias, list(self))

    def __str__(self) -> str:
        own = compiled_shapes()[self.shape]
        return (
            f"wgmma, {own.groups * GROUP_ROWS} rows x {own.tokens} tokens, {self.clusters} "
            f"clusters of {self.down}x{self.depth}, {self.stages} stages, rings of "
            f"{self.ring_lines} lines {list(self)}"
        )


def own_choice(packed: PackedWeight, x: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiplies by the launch that the kernel's own plan finds."""
    return planned(packed, x, bias, [])


def planned(packed: PackedWeight, x: Tensor, bias: Tensor | None, plan: list[int]) -> Tensor:
    """Multiplies by the numbers of a plan, or by the kernel's own if there are none."""
    lines, offsets = packed.tensors["weight_packed"], packed.tensors["unit_offsets"]
    return ops.tiled_bitmap_wgmma_planned(
        x, lines, offsets, packed.shape[0], packed.dtype, bias, plan
    )


def compiled_shapes() -> list[WgmmaShape]:
    """Reads the list of the header that the kernel is compiled from."""
    found = SHAPE.findall(HEADER.read_text())
    return [WgmmaShape(index, *map(int, numbers)) for index, numbers in enumerate(found)]


def ring_lines(own: WgmmaShape, stages: int) -> int:
    """What so many stages of x leave to a warp's units."""
    left = SHARED_BYTES - BARRIER_BYTES - stages * own.tokens * 128
    return min(left // (own.groups * 4 * LINE_BYTES), MOST_RING)


def launches(shape: tuple[int, int], tokens: int, multiprocessors: int) -> Iterator[WgmmaLaunch]:
    """Launches of every shape and cluster that a weight [out_features, in_features] can have."""
    columns = -(-shape[1] // UNIT_COLS)
    for own in compiled_shapes():
        if own.tokens >= 4 * max(tokens, 32):
            continue
        for down, depth in ((1, 1), (2, 1), (4, 1), (1, 2), (1, 4), (2, 2)):
            stages = min(MOST_STAGES, (128 << 10) // (own.tokens * 128))
            while stages > 2 and ring_lines(own, stages) < LEAST_RING:
                stages -= 1
            ring = ring_lines(own, stages)
            if ring < LEAST_RING or depth > columns:
                continue
            slots = multiprocessors // (down * depth)
            rows = GROUP_ROWS * own.groups * down
            tiles, steps = -(-shape[0] // rows) * -(-tokens // own.tokens), -(-columns // depth)
            for clusters in {slots, -(-tiles // -(-tiles // slots))} if depth == 1 else {tiles}:
                shares = tiles % clusters != 0
                too_many = shares and tiles * rows // UNIT_ROWS > MOST_ARRIVALS
                too_many |= tiles * steps * (clusters + 1) >= 2**31
                if clusters <= tiles * steps and not too_many:
                    yield WgmmaLaunch(own.index, down, depth, stages, clusters, ring)
