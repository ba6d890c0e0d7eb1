# SPDX-License-Identifier: Apache-2.0
"""The launches of nm_gather's kernels that are worth measuring."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from flashsparse_plugin import PackedWeight
from flashsparse_plugin.formats.pattern.nm_gather.layout import Layout
from flashsparse_plugin.formats.pattern.options import options_of, value_arguments
from flashsparse_plugin.ops import ops
from flashsparse_plugin.ops.plan import compiled_shapes as shapes_of

from .compiled import bits_of
from .packed import PackedLaunch, find_packed
from .tiles import TilesLaunch, find_tiles

FEW_TOKENS = 16  # for more, the kernel for many may be faster
CHUNKS = (16 << 10, 32 << 10, 64 << 10)  # bytes of x


class Shape(NamedTuple):
    """One X(...) of FS_NM_GATHER_SHAPES; its index is what the op takes."""

    index: int
    value_bits: int
    tokens: int
    unit_rows: int
    stages: int
    warps: int


class Launch(NamedTuple):
    """What Plan of the header holds."""

    shape: Shape
    row_warps: int
    depth_warps: int
    splits: int
    chunk_sections: int

    def linear(self, packed: PackedWeight, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Multiplies by this launch."""
        options = options_of(packed.scheme)
        pattern = (options.n, options.m, options.vector_length)
        values, index = (packed.tensors[name] for name in ("gather_values", "gather_index"))
        return ops.nm_gather_linear_planned(
            x, values, index, packed.shape[0], *pattern, packed.dtype, bias,
            self.shape.index, *self[1:], *value_arguments(packed.scheme, packed.tensors),
        )  # fmt: skip

    def shared_bytes(self, layout: Layout) -> int:
        """Plan::shared_bytes of the header."""
        shape, warps = self.shape, self.row_warps * self.depth_warps
        buffers = 1 if self.chunk_sections >= -(-layout.sections // self.splits) else 2
        rows = self.chunk_sections * layout.section_columns + 31
        rings = warps * shape.stages * (shape.unit_rows * 4 * shape.value_bits + 128)
        sums = warps * shape.tokens * (shape.unit_rows + 4) * 4
        return max(buffers * rows * shape.tokens * 2 + rings, sums) + 16

    def __str__(self) -> str:
        return (
            f"{self.row_warps}x{self.depth_warps} warps, {self.splits} splits, "
            f"chunks of {self.chunk_sections}"
        )


def compiled_shapes() -> list[Shape]:
    return [Shape(index, **own) for index, own in enumerate(shapes_of("nm_gather.few"))]


def launches(
    packed: PackedWeight, tokens: int, device: torch.device
) -> Iterator[Launch | TilesLaunch | PackedLaunch]:
    """The launches that leave little of this GPU idle: for few tokens and for many."""
    if device.type != "cuda":
        return
    gpu = torch.cuda.get_device_properties(device)
    layout = Layout(options_of(packed.scheme), packed.shape)
    processors, shared = gpu.multi_processor_count, gpu.shared_memory_per_block_optin
    yield from find_launches(layout, tokens, processors, shared)
    if tokens > FEW_TOKENS:
        hopper = (gpu.major, gpu.minor) == (9, 0)
        yield from find_tiles(layout, tokens, processors, shared, hopper)
        if hopper and layout.options.value_type is None:
            yield from find_packed(layout, tokens)


def find_launches(
    layout: Layout, tokens: int, multiprocessors: int, shared_bytes: int
) -> Iterator[Launch]:
    """Launches for few tokens, by the smallest shape that will do."""
    fitting = [
        s
        for s in compiled_shapes()
        if (s.unit_rows, s.value_bits) == (layout.unit_rows, bits_of(layout.options))
        and s.tokens >= tokens
    ]
    if not fitting:
        return
    shape = fitting[0]
    for splits in (splits for splits in (1, 2, 3, 4) if splits <= layout.sections):
        idle = []
        for row_warps in range(1, shape.warps + 1):
            blocks = -(-layout.units // row_warps) * splits
            waves = -(-blocks // multiprocessors)
            if splits == 1 or waves == 1:
                idle.append((waves * multiprocessors / blocks + 0.1 * waves, row_warps))
        for _, row_warps in sorted(idle)[: 3 if splits == 1 else 1]:
            own, most = -(-layout.sections // splits), shape.warps // row_warps
            section_bytes = layout.section_columns * shape.tokens * 2
            chunks = {min(max(size // section_bytes, 1), own) for size in CHUNKS}
            for depth in {most, max(most // 2, 1)} if splits == 1 else {most}:
                for chunk in sorted(chunks):
                    launch = Launch(shape, row_warps, depth, splits, chunk)
                    if launch.shared_bytes(layout) <= shared_bytes:
                        yield launch
