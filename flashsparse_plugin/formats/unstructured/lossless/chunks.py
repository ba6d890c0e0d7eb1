# SPDX-License-Identifier: Apache-2.0
"""Rows and chunks of a lossless weight: what its tensors look like, and how they are cut."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ....packed import TensorSpec
from ..pieces import offsets_of
from .ops import CHUNK_BYTES, CHUNK_COLUMNS, row_bytes


class Chunks:
    """A weight in rows, and each row in chunks of 128 columns, as `Division` asks."""

    rows, columns = 1, CHUNK_COLUMNS

    def specs(self, shape: tuple[int, int]) -> tuple[TensorSpec, ...]:
        """What bytes, bases, and the offsets, columns and bits of exceptions look like."""
        return (
            TensorSpec(torch.uint8, (shape[0], row_bytes(shape[1]))),
            TensorSpec(torch.uint8, (shape[0],)),
            TensorSpec(torch.int32, (shape[0] + 1,)),
            TensorSpec(torch.int32, (None,)),
            TensorSpec(torch.int16, (None,)),
        )

    def are_whole(self, shape: tuple[int, int], rows: range, columns: range) -> bool:
        """Whether a part of a weight ends where chunks end, or at the edge."""
        return not columns.start % CHUNK_COLUMNS and (
            columns.stop == shape[1] or not columns.stop % CHUNK_COLUMNS
        )

    def cut(
        self, held: tuple[Tensor, ...], shape: tuple[int, int], rows: range, columns: range
    ) -> tuple[Tensor, ...]:
        """The chunks of a part that `are_whole`, as they are, and its exceptions."""
        bytes_, bases, offsets, places, exceptions = held
        wide = slice(columns.start // CHUNK_COLUMNS * CHUNK_BYTES, row_bytes(columns.stop))
        high = slice(rows.start, rows.stop)
        begin, end = int(offsets[rows.start]), int(offsets[rows.stop])
        counts = offsets[rows.start : rows.stop + 1].diff()
        places, exceptions = places[begin:end], exceptions[begin:end]
        taken = (places >= columns.start) & (places < columns.stop)
        row = torch.arange(len(rows), device=places.device).repeat_interleave(counts)[taken]
        return (
            bytes_[high, wide].contiguous(),
            bases[high].clone(),
            offsets_of(row.bincount(minlength=len(rows)), "exceptions"),
            places[taken] - columns.start,
            exceptions[taken],
        )

    def join(self, parts: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """The rows of weights on top of each other."""
        bytes_, bases, offsets, places, exceptions = zip(*parts, strict=True)
        counts = torch.cat([each.diff() for each in offsets])
        return (
            torch.cat(bytes_),
            torch.cat(bases),
            offsets_of(counts, "exceptions"),
            torch.cat(places),
            torch.cat(exceptions),
        )
