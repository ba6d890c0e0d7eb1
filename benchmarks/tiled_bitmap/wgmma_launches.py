# SPDX-License-Identifier: Apache-2.0
"""The shapes that tiled_bitmap's wgmma kernel is compiled in, and launches worth measuring."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor

from flashsparse_plugin import PackedWeight
from flashsparse_plugin.ops import ops
from flashsparse_plugin.ops.plan import compiled_shapes as shapes_of

GROUP_ROWS, UNIT_ROWS, UNIT_COLS, LINE_BYTES = 64, 16, 256, 128
SHARED_BYTES, BARRIER_BYTES, MOST_STAGES, MOST_ARRIVALS = 227 << 10, 1024, 16, 4096
LEAST_RING, MOST_RING = 72, 288  # lines
# Of an H200, as kernels/cuda/tiled_bitmap/wgmma_plan.cpp has them: bytes a microsecond of one
# multiprocessor from memory and from the L2, its clock; clocks of 64 rows and 64 columns, of each
# token of them, and the share that three warpgroups do not hide.
MEMORY, L2, CLOCK = 33.3e3, 69.5e3, 1.755e3
PANEL_CLOCKS, TOKEN_CLOCKS, THREE_GROUPS = 272, 1.82, 0.94


class WgmmaShape(NamedTuple):
    """One X(...) of FS_TILED_BITMAP_WGMMA_SHAPES; its index is what a plan takes."""

    index: int
    tokens: int
    groups: int

    def has_cluster(self, down: int, depth: int) -> bool:
        """Whether blocks below and behind each other can share its tokens, in eights."""
        return self.tokens // 8 % down == 0 and self.tokens // 8 % depth == 0


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
    return [WgmmaShape(index, **own) for index, own in enumerate(shapes_of("tiled_bitmap.many"))]


def ring_lines(own: WgmmaShape, stages: int) -> int:
    """What so many stages of x leave to a warp's units."""
    left = SHARED_BYTES - BARRIER_BYTES - stages * own.tokens * 128
    return min(left // (own.groups * 4 * LINE_BYTES), MOST_RING)


def divided(own: WgmmaShape, unit_lines: float) -> tuple[int, int]:
    """Stages of x, and lines of a warp's ring, as kernels/cuda/tiled_bitmap/wgmma_plan.cpp divides:
    room for two units first, where that leaves x three stages."""
    stages = min(MOST_STAGES, (128 << 10) // (own.tokens * 128))
    while stages > 3 and ring_lines(own, stages) < max(LEAST_RING, 2 * (unit_lines + 5)):
        stages -= 1
    while stages > 2 and ring_lines(own, stages) < LEAST_RING:
        stages -= 1
    return stages, ring_lines(own, stages)


def launches(
    shape: tuple[int, int], tokens: int, multiprocessors: int, unit_lines: float = 0.0
) -> Iterator[WgmmaLaunch]:
    """Launches of every shape and cluster that a weight [out_features, in_features] can have.

    Its units have so many lines on average: rings are made for two of them.
    """
    columns = -(-shape[1] // UNIT_COLS)
    for own in compiled_shapes():
        if own.tokens >= 4 * max(tokens, 32):
            continue
        for down, depth in ((1, 1), (2, 1), (4, 1), (1, 2), (1, 4), (2, 2)):
            stages, ring = divided(own, unit_lines)
            if ring < LEAST_RING or depth > columns or not own.has_cluster(down, depth):
                continue
            slots = multiprocessors // (down * depth)
            rows = GROUP_ROWS * own.groups * down
            tiles, steps = -(-shape[0] // rows) * -(-tokens // own.tokens), -(-columns // depth)
            whole, even = -(-tiles // -(-tiles // slots)), tiles * max(slots // tiles, 1)
            for clusters in {slots, whole, even} if depth == 1 else {tiles}:
                shares = tiles % clusters != 0
                too_many = shares and tiles * rows // UNIT_ROWS > MOST_ARRIVALS
                too_many |= tiles * steps * (clusters + 1) >= 2**31
                if clusters <= tiles * steps and not too_many:
                    yield WgmmaLaunch(own.index, down, depth, stages, clusters, ring)


def _microseconds(
    own: WgmmaShape, launch: WgmmaLaunch, shape: tuple[int, int], tokens: int, multiprocessors: int
) -> float:
    """To compare launches by, without what all of them share, of a weight with half zeros."""
    columns = -(-shape[1] // (UNIT_COLS * launch.depth))
    across = -(-tokens // own.tokens)
    tiles = -(-shape[0] // (GROUP_ROWS * own.groups * launch.down)) * across
    rounds = -(-launch.clusters * launch.down * launch.depth // multiprocessors)
    panels = -(-tiles * columns // launch.clusters) * rounds * (UNIT_COLS // GROUP_ROWS)
    clocks = own.groups * (PANEL_CLOCKS + TOKEN_CLOCKS * own.tokens)
    clocks *= THREE_GROUPS if own.groups > 2 else 1
    weight, x = own.groups * GROUP_ROWS * 64 * 1.2, min(own.tokens, tokens) * 128
    busy = max(clocks / CLOCK, weight / across / MEMORY, (weight + x / launch.down) / L2)
    sums = own.groups * GROUP_ROWS * min(own.tokens, tokens) * 4 / L2
    busy = panels * busy + 0.6 * max(tiles / launch.clusters, 1) * rounds
    if launch.depth > 1:
        busy += (2.7 + 1.2 * sums) * rounds
    if tiles % launch.clusters:
        parts = 1 + max(launch.clusters / tiles, 1)
        busy += (5.1 + (3.0 if launch.clusters % tiles else 0)) * rounds
        busy += 0.67 * (1 + parts) * sums * rounds
    return busy


def plans_of(
    packed: PackedWeight, tokens: int, multiprocessors: int, most: int = 24, of_each: int = 2
) -> list[WgmmaLaunch]:
    """The launches that should be best for a weight: some of every shape, with and without depth,
    and with tiles in equal parts.

    Args:
        packed: In tiled_bitmap.
        tokens: At least 1.
        multiprocessors: Of the GPU.
        most: How many launches.
        of_each: At most so many of a shape and of each of these ways.

    Returns:
        The most promising first.
    """
    shapes, (rows, cols) = compiled_shapes(), packed.shape
    units = -(-rows // UNIT_ROWS) * -(-cols // UNIT_COLS)
    lines = len(packed.tensors["weight_packed"]) / units

    def cost(launch: WgmmaLaunch) -> float:
        return _microseconds(shapes[launch.shape], launch, packed.shape, tokens, multiprocessors)

    taken: list[WgmmaLaunch] = []
    seen: Counter[tuple[int, bool, bool]] = Counter()
    for launch in sorted(launches(packed.shape, tokens, multiprocessors, lines), key=cost):
        tiles = -(-rows // (GROUP_ROWS * shapes[launch.shape].groups * launch.down))
        tiles *= -(-tokens // shapes[launch.shape].tokens)
        kind = launch.shape, launch.depth > 1, launch.clusters % tiles == 0
        seen[kind] += 1
        if seen[kind] <= of_each and len(taken) < most:
            taken.append(launch)
    return taken
