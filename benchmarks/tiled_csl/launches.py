# SPDX-License-Identifier: Apache-2.0
"""The shapes that Tiled-CSL's kernel is compiled in, and the launches that each can make."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from flashsparse_plugin import PackedWeight
from flashsparse_plugin.ops import ops
from flashsparse_plugin.ops.plan import compiled_shapes as shapes_of

TILE_ROWS, TILE_COLS = 128, 64


class Shape(NamedTuple):
    """One X(...) of FS_LINEAR_SHAPES; its index is what the op takes."""

    index: int
    tokens: int
    hopper: bool
    wgmma: bool
    team_warps: int
    held: int  # words a lane
    warps: int  # a block
    blocks: int  # a multiprocessor

    def __str__(self) -> str:
        kind = "wgmma" if self.wgmma else "mma"
        size = f"{self.held} words a lane, {self.blocks}x{self.warps} warps"
        return f"{self.index}: {kind} {self.tokens}, {size}"


class Launch(NamedTuple):
    """A launch of a shape.

    Attributes:
        shape: The compiled shape.
        blocks: Blocks of the launch.
        even: Whether every block takes as many tiles as any other; otherwise every tile row is cut
            into the same number of parts.
    """

    shape: Shape
    blocks: int
    even: bool

    def linear(self, packed: PackedWeight, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Multiplies by this launch."""
        words, offsets = packed.tensors["weight_packed"], packed.tensors["tile_offsets"]
        chosen = (self.shape.index, self.blocks)
        return ops.tiled_csl_linear_planned(
            x, words, offsets, packed.shape[0], packed.dtype, bias, *chosen
        )

    def __str__(self) -> str:
        return f"{self.shape}, {'even tile ranges' if self.even else 'whole parts'}"


def compiled_shapes() -> list[Shape]:
    return [Shape(index, **own) for index, own in enumerate(shapes_of("tiled_csl.sparse"))]


def launches(weight: tuple[int, int], tokens: int, device: torch.device) -> Iterator[Launch]:
    """Every launch of a compiled shape that this GPU can make for a weight of this shape."""
    if device.type != "cuda":
        return
    properties = torch.cuda.get_device_properties(device)
    down, across = -(-weight[0] // TILE_ROWS), -(-weight[1] // TILE_COLS)
    for shape in compiled_shapes():
        if shape.tokens < tokens or (shape.hopper and properties.major != 9):
            continue
        slots = properties.multi_processor_count * shape.blocks
        yield Launch(shape, min(slots, down * across), even=True)
        parts = min(slots // down, across)
        if parts >= 1:
            yield Launch(shape, down * parts, even=False)
