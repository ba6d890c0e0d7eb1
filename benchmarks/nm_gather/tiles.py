# SPDX-License-Identifier: Apache-2.0
"""The launches of nm_gather's kernel for many tokens that are worth measuring."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor

from flashsparse_plugin import PackedWeight
from flashsparse_plugin.formats.pattern.nm_gather.layout import BLOCK, PAIR, Layout
from flashsparse_plugin.formats.pattern.options import options_of, value_arguments
from flashsparse_plugin.ops import ops
from flashsparse_plugin.ops.plan import compiled_shapes as shapes_of

from .compiled import bits_of

BARRIERS = 1024  # bytes
MOST_STAGES = 16  # of weights


class TileShape(NamedTuple):
    """One X(...) of FS_NM_TILES_SHAPES; its index is what the op takes."""

    index: int
    value_bits: int
    warp_rows: int
    warp_tokens: int
    token_warps: int
    row_warps: int

    @property
    def tokens(self) -> int:
        return self.warp_tokens * self.token_warps

    def fits(self, layout: Layout) -> bool:
        """TileShapeInfo::fits of the header."""
        if self.value_bits != bits_of(layout.options):
            return False
        unit = min(self.warp_rows, 32)
        return layout.unit_rows == unit and layout.options.vector_length % self.warp_rows == 0


class TilesLaunch(NamedTuple):
    """What TilesPlan of the header holds."""

    shape: TileShape
    row_warps: int
    splits: int
    x_stages: int
    weight_stages: int
    band: int
    cluster: int

    def linear(self, packed: PackedWeight, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Multiplies by this launch."""
        values, index = (packed.tensors[name] for name in ("gather_values", "gather_index"))
        return ops.nm_gather_linear_tiles_planned(
            x, values, index, packed.shape[0], *options_of(packed.scheme).numbers,
            packed.dtype, bias, self.shape.index, *self[1:],
            *value_arguments(packed.scheme, packed.tensors),
        )  # fmt: skip

    @property
    def block_rows(self) -> int:
        return self.row_warps * self.shape.warp_rows

    def blocks(self, rows: int, tokens: int) -> int:
        tiles = -(-rows // self.block_rows) * -(-tokens // self.shape.tokens)
        return tiles * self.splits

    def __str__(self) -> str:
        return (
            f"tiles of {self.block_rows}x{self.shape.tokens}, {self.shape.warp_rows} rows a warp, "
            f"{self.splits} splits, {self.x_stages}+{self.weight_stages} stages, "
            f"bands of {self.band}, clusters of {self.cluster}"
        )


def compiled_tiles() -> list[TileShape]:
    return [TileShape(index, **own) for index, own in enumerate(shapes_of("nm_gather.many"))]


def find_tiles(
    layout: Layout, tokens: int, multiprocessors: int, shared_bytes: int, hopper: bool
) -> Iterator[TilesLaunch]:
    """The launches that leave little of a GPU idle, each with the stages that fit."""
    rows = layout.shape[0]
    slack = BLOCK - 1 if layout.section_columns % BLOCK else 0
    stage_rows = -(-(layout.section_columns + slack) // BLOCK) * BLOCK
    for shape in compiled_tiles():
        if (
            not shape.fits(layout)
            or shape.tokens >= 2 * max(tokens, 32)
            or shape.tokens < min(tokens, 64)
        ):
            continue
        x_stage = stage_rows * max(shape.tokens, 64) * 2
        # As many as give each multiprocessor rows of its own.
        share = -(-rows // (shape.warp_rows * multiprocessors))
        even = min(share, shape.row_warps)
        for splits in (s for s in (1, 2, 3, 4, 6, 8, 16) if s <= layout.sections):
            for cluster in {1, splits if hopper and splits <= 8 else 1}:
                for row_warps in {shape.row_warps, max(shape.row_warps // 2, 1), even}:
                    weight_stage = row_warps * (
                        shape.warp_rows * PAIR * shape.value_bits // 8 + PAIR
                    )
                    for x_stages in (2, 3):
                        y = row_warps * shape.token_warps * 8 * (shape.warp_rows + 4) * 4
                        left = shared_bytes - BARRIERS - y - x_stages * x_stage
                        stages = min(left // weight_stage, MOST_STAGES)
                        if stages < 2:
                            continue
                        band = 16
                        launch = TilesLaunch(
                            shape, row_warps, splits, x_stages, stages, band, cluster
                        )
                        blocks = launch.blocks(rows, tokens)
                        if splits == 1 or blocks <= multiprocessors:
                            yield launch
