# SPDX-License-Identifier: Apache-2.0
"""The shapes that sparse_24's wgmma kernel is compiled in, and launches worth measuring."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from torch import Tensor

from flashsparse_plugin import PackedWeight
from flashsparse_plugin.formats.pattern.options import options_of, value_arguments
from flashsparse_plugin.formats.pattern.sparse_24.layout import NATIVE, UnitLayout, layout_of
from flashsparse_plugin.ops import ops
from flashsparse_plugin.ops.plan import compiled_shapes as shapes_of

GROUP_ROWS, PANEL_COLS, UNIT_COLS = 64, 64, 256
SHARED_BYTES, BARRIER_BYTES, MOST_STAGES, MOST_ARRIVALS = 227 << 10, 1024, 16, 4096
RING_BYTES = 225 << 10  # of a block whose weights come through a ring
# Bytes a microsecond of one multiprocessor of an H200, from memory and from the L2; its clock.
MEMORY, L2, CLOCK = 33e3, 55e3, 1.75e3


class WgmmaShape(NamedTuple):
    """One X(...) of FS_SPARSE_24_WGMMA_SHAPES; its index is what a plan takes."""

    index: int
    tokens: int
    groups: int
    bits: int  # of values that it is compiled for, their sum; 4: with scales of groups, too
    has_ring: bool  # through which weights come, in shared memory

    def is_for(self, layout: UnitLayout) -> bool:
        if layout.group is not None:
            return bool(self.bits & 4)
        return bool(self.bits & {"native": 16, "int4": 4}.get(layout.values, 8))

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

    def linear(self, packed: PackedWeight, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Multiplies by this launch."""
        return ops.sparse_24_wgmma_planned(
            x, packed.tensors["units"], packed.shape[0], packed.dtype, bias, list(self),
            *value_arguments(packed.scheme, packed.tensors),
        )  # fmt: skip

    def linear_rounded(self, packed: PackedWeight, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """The same by activations rounded to codes of the weight's type."""
        units, scales = packed.tensors["units"], packed.tensors["weight_scale"]
        values = packed.scheme.values["values"]
        return ops.sparse_24_linear_rounded_planned(
            x, units, scales, packed.shape[0], packed.dtype, values, bias, list(self)
        )

    def __str__(self) -> str:
        own = compiled_shapes()[self.shape]
        return (
            f"wgmma, {own.groups * GROUP_ROWS} rows x {own.tokens} tokens"
            f"{' by a ring' if own.has_ring else ''}, {self.clusters} clusters of "
            f"{self.down}x{self.depth}, {self.stages} stages {list(self)}"
        )


def compiled_shapes() -> list[WgmmaShape]:
    return [
        WgmmaShape(index, own["tokens"], own["groups"], own["bits"], bool(own["has_ring"]))
        for index, own in enumerate(shapes_of("sparse_24.many"))
    ]


def most_stages(own: WgmmaShape, depth: int = 1) -> int:
    """As many panels of x as fit into shared memory, beside sums of blocks behind each other."""
    sums = own.tokens * own.groups * GROUP_ROWS * 4 if depth > 1 else 0
    return min((SHARED_BYTES - BARRIER_BYTES - sums) // (own.tokens * PANEL_COLS * 2), MOST_STAGES)


def stage_counts(own: WgmmaShape, depth: int, layout: UnitLayout) -> list[int]:
    """Stages of x that are worth measuring: all there is room for, or a few beside a ring."""
    if not own.has_ring:
        return [most_stages(own, depth)]
    two = 2 * own.groups * 4 * layout.words * 4  # stages of the ring
    sums = own.tokens * own.groups * GROUP_ROWS * 4 if depth > 1 else 0
    room = RING_BYTES - BARRIER_BYTES - sums - two
    return [n for n in (4, 8) if n * own.tokens * PANEL_COLS * 2 <= room]


def _candidates(
    shape: tuple[int, int], tokens: int, multiprocessors: int, layout: UnitLayout
) -> Iterator[tuple[float, WgmmaShape, WgmmaLaunch]]:
    """Launches of every shape and cluster, and microseconds to compare by."""
    columns = -(-shape[1] // UNIT_COLS)
    for own in compiled_shapes():
        if own.tokens >= 4 * max(tokens, 32) or not own.is_for(layout):
            continue
        for down, depth in product((1, 2, 4, 8), repeat=2):
            cluster = down * depth
            if cluster > min(8, multiprocessors) or depth > columns:
                continue
            if not own.has_cluster(down, depth):
                continue
            slots = multiprocessors // cluster
            rows = GROUP_ROWS * own.groups * down
            tiles, steps = -(-shape[0] // rows) * -(-tokens // own.tokens), -(-columns // depth)
            whole = -(-tiles // -(-tiles // slots))
            several = {slots, whole, tiles, tiles * max(slots // tiles, 1)}
            for clusters in several if depth == 1 else {tiles}:
                shares = tiles % clusters != 0
                too_many = shares and tiles * rows // 16 > MOST_ARRIVALS
                if clusters > tiles * steps or too_many:
                    continue
                rounds = -(-clusters // slots)
                panels = -(-tiles * steps // clusters) * rounds * (UNIT_COLS // PANEL_COLS)
                weight = own.groups * GROUP_ROWS / 16 * layout.words
                x = own.tokens * PANEL_COLS * 2
                shared = (own.groups + 1) * own.tokens + weight / 128
                busy = max(weight / MEMORY / -(-tokens // own.tokens), shared / CLOCK)
                busy = panels * max(busy, (weight + x / down) / L2)
                y = own.groups * GROUP_ROWS * min(own.tokens, tokens) * 2
                busy += (2.5 + 6 * y / L2) * shares + y / L2 * max(tiles / clusters, 1) * rounds
                busy += (0.8 + 4 * y / L2) * (depth > 1) * rounds
                for stages in stage_counts(own, depth, layout):
                    if stages >= 2:
                        yield busy, own, WgmmaLaunch(own.index, down, depth, stages, clusters)


def plans(
    shape: tuple[int, int],
    tokens: int,
    multiprocessors: int,
    most: int = 24,
    layout: UnitLayout = NATIVE,
    of_each: int = 4,
) -> list[WgmmaLaunch]:
    """The launches that should be best: some of every shape, with and without depth.

    Args:
        shape: (out_features, in_features).
        tokens: At least 1.
        multiprocessors: Of the GPU.
        most: How many launches.
        layout: How units store their values.
        of_each: At most so many of a shape with depth, and as many without.

    Returns:
        The most promising first.
    """
    taken: list[WgmmaLaunch] = []
    seen: Counter[tuple[int, bool]] = Counter()
    for _, own, plan in sorted(_candidates(shape, tokens, multiprocessors, layout)):
        kind = own.index, plan.depth > 1
        seen[kind] += 1
        if seen[kind] <= of_each and len(taken) < most:
            taken.append(plan)
    return taken


def plans_of(
    packed: PackedWeight, tokens: int, multiprocessors: int, most: int = 24, of_each: int = 4
) -> list[WgmmaLaunch]:
    """The same for a weight in sparse_24."""
    layout = layout_of(options_of(packed.scheme))
    return plans(packed.shape, tokens, multiprocessors, most, layout, of_each)
