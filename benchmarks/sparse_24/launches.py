# SPDX-License-Identifier: Apache-2.0
"""The shapes that sparse_24's kernel is compiled in, and the launches that are worth measuring."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from flashsparse_plugin import PackedWeight
from flashsparse_plugin.formats.pattern.options import options_of, value_arguments
from flashsparse_plugin.formats.pattern.sparse_24.layout import NATIVE, UnitLayout, layout_of
from flashsparse_plugin.ops import ops
from flashsparse_plugin.ops.plan import compiled_shapes as shapes_of

from . import wgmma_launches
from .wgmma_launches import WgmmaLaunch

UNIT_ROWS, UNIT_COLS = 16, 256
SHARED_BYTES, MOST_ARRIVALS = 227 << 10, 4096
MOST_TOKENS, LEAST_WGMMA_TOKENS = 64, 9  # of the one kernel; from where the other may be better
# Bytes a microsecond of one multiprocessor of an H200, from memory and from the L2; its clock.
MEMORY, L2, CLOCK = 33e3, 60e3, 1.9e3


class Shape(NamedTuple):
    """One X(...) of FS_SPARSE_24_SHAPES; its index is what a plan takes."""

    index: int
    tokens: int
    row_units: int
    warps: int


class Launch(NamedTuple):
    """A launch: the numbers of LinearPlan, in the order in which the op takes them."""

    shape: int
    row_warps: int
    column_warps: int
    weight_stages: int
    x_stages: int
    blocks: int

    def linear(self, packed: PackedWeight, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Multiplies by this launch."""
        return ops.sparse_24_linear_planned(
            x, packed.tensors["units"], packed.shape[0], packed.dtype, bias, list(self),
            *value_arguments(packed.scheme, packed.tensors),
        )  # fmt: skip

    def linear_rounded(self, packed: PackedWeight, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """The same by activations rounded to codes of the weight's type."""
        units, scales = packed.tensors["units"], packed.tensors["weight_scale"]
        values = packed.scheme.values["values"]
        return ops.sparse_24_mma_rounded_planned(
            x, units, scales, packed.shape[0], packed.dtype, values, bias, list(self)
        )

    def __str__(self) -> str:
        own = compiled_shapes()[self.shape]
        return (
            f"{own.tokens} tokens, {own.row_units} units a warp, "
            f"{self.row_warps}x{self.column_warps} warps, {self.weight_stages} and "
            f"{self.x_stages} stages, {self.blocks} blocks {list(self)}"
        )


def compiled_shapes() -> list[Shape]:
    return [Shape(index, **own) for index, own in enumerate(shapes_of("sparse_24.few"))]


def is_compiled(shape: Shape, layout: UnitLayout, x_bytes: int = 2) -> bool:
    """What kernels/cuda/sparse_24/linear_plan.h says of codes, and of x that is codes (1 byte)."""
    wide = x_bytes == 1 and (shape.tokens, shape.row_units) == (64, 2)
    return layout == NATIVE or shape.row_units * 8 >= shape.tokens or wide


def shared_bytes(shape: Shape, plan: Launch, layout: UnitLayout, x_bytes: int = 2) -> int:
    """What kernels/cuda/mma_units/linear_shared.h lays out."""
    warps = plan.row_warps * plan.column_warps
    barriers = 8 * (2 * plan.x_stages + 1 + warps * plan.weight_stages)
    x = plan.x_stages * plan.column_warps * shape.tokens * UNIT_COLS * x_bytes
    place = -(-layout.words * 4 // 128) * 128
    weights = warps * plan.weight_stages * shape.row_units * place
    sums = warps * 2 * shape.row_units * 512 if plan.column_warps > 1 else 0
    return -(-barriers // 1024) * 1024 + x + weights + sums


def _candidates(
    shape: tuple[int, int], tokens: int, multiprocessors: int, layout: UnitLayout, x_bytes: int
) -> Iterator[tuple[float, Shape, Launch]]:
    """Every launch of the narrowest shapes that take the tokens, and microseconds to compare by."""
    down, across = -(-shape[0] // UNIT_ROWS), -(-shape[1] // UNIT_COLS)
    unit_bytes = layout.words * 4
    compiled = [each for each in compiled_shapes() if is_compiled(each, layout, x_bytes)]
    fitting = [each for each in compiled if each.tokens >= tokens]
    narrowest = min((each.tokens for each in fitting), default=0)
    for own in fitting:
        if own.tokens != narrowest:
            continue
        sides = range(1, own.warps + 1)
        for row_warps, column_warps, x_stages in product(sides, sides, (2, 3)):
            warps = row_warps * column_warps
            if not 3 <= warps <= own.warps:
                continue
            sets, steps = -(-down // (row_warps * own.row_units)), -(-across // column_warps)
            waste = sets * row_warps * own.row_units / down * steps * column_warps / across
            if waste > 1.2:
                continue
            for stages in range(8, 1, -1):
                room = Launch(own.index, row_warps, column_warps, stages, x_stages, 1)
                if shared_bytes(own, room, layout, x_bytes) <= SHARED_BYTES:
                    break
            else:
                continue
            if x_stages == 2 and stages > 3:
                continue  # there is room for a third stage of x
            ring = stages * warps * own.row_units * unit_bytes
            parts = max(multiprocessors // sets, 1)
            whole = -(-sets // -(-sets // multiprocessors))  # a whole number of sets to each
            for blocks in {min(n, sets * steps) for n in (multiprocessors, whole, sets * parts)}:
                least = min(0.7 * multiprocessors, sets * steps)
                if not least <= blocks <= multiprocessors:
                    continue
                if sets % blocks and sets * row_warps > MOST_ARRIVALS:
                    continue
                own_steps = -(-sets * steps // blocks)
                weight = own_steps * warps * own.row_units * unit_bytes
                x = own_steps * column_warps * UNIT_COLS * x_bytes * tokens
                turns = unit_bytes / 64 + 2 * x_bytes * own.tokens / own.row_units
                turns *= own_steps * warps * own.row_units
                busy = max(weight / MEMORY, (weight + x) / L2, turns / CLOCK)
                busy += 0.2 * x / L2 + 4 * max(0, 1 - ring / (96 << 10)) + 0.1 * max(0, 8 - warps)
                busy += 2.5 + 0.02 * tokens if sets % blocks else 0
                yield busy, own, room._replace(blocks=blocks)


def plans(
    shape: tuple[int, int],
    tokens: int,
    multiprocessors: int,
    most: int = 36,
    layout: UnitLayout = NATIVE,
    x_bytes: int = 2,
) -> list[Launch]:
    """The launches that should be best: some of every shape, with whole and with shared sets.

    Args:
        shape: (out_features, in_features).
        tokens: 1 to 64.
        multiprocessors: Of the GPU.
        most: How many launches.
        layout: How units store their values.
        x_bytes: Of an element of x: 1 where it is codes.

    Returns:
        The most promising first.
    """
    every = _candidates(shape, tokens, multiprocessors, layout, x_bytes)
    found = sorted(every, key=lambda each: each[0])
    taken: list[Launch] = []
    seen: Counter[tuple[int, bool, bool]] = Counter()
    for _, own, plan in found:
        sets = -(-shape[0] // (UNIT_ROWS * plan.row_warps * own.row_units))
        kind = own.index, plan.column_warps > 1, sets % plan.blocks != 0
        seen[kind] += 1
        if seen[kind] <= 9 and len(taken) < most:
            taken.append(plan)
    return taken


def launches(packed: PackedWeight, tokens: int, device: torch.device) -> list[Launch | WgmmaLaunch]:
    """The launches worth trying for a weight on this GPU, of both kernels."""
    if device.type != "cuda":
        return []
    properties = torch.cuda.get_device_properties(device)
    if properties.shared_memory_per_block_optin < SHARED_BYTES:
        return []
    found: list[Launch | WgmmaLaunch] = []
    layout = layout_of(options_of(packed.scheme))
    if tokens <= MOST_TOKENS:
        found += plans(packed.shape, tokens, properties.multi_processor_count, layout=layout)
    if tokens >= LEAST_WGMMA_TOKENS and (properties.major, properties.minor) == (9, 0):
        multiprocessors = properties.multi_processor_count
        found += wgmma_launches.plans(packed.shape, tokens, multiprocessors, layout=layout)
    return found
