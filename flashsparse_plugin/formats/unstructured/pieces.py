# SPDX-License-Identifier: Apache-2.0
"""A weight in pieces of one size, row by row of pieces: a stream, and where in it each begins.

So formats that drop zeros anywhere are stored: the first tensor is the stream, int32 and
as long as the kept values need, the second its offsets, int32[pieces + 1].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ...packed import FormatError, TensorSpec

Stream = tuple[Tensor, Tensor]
"""A stream and its offsets."""


class Division(Protocol):
    """How a format divides a weight so that parts of it can be taken as they are.

    Attributes:
        rows: All parts but the last of a weight must have a multiple of so many to be joined.
    """

    @property
    def rows(self) -> int: ...
    def specs(self, shape: tuple[int, int]) -> tuple[TensorSpec, ...]: ...
    def are_whole(self, shape: tuple[int, int], rows: range, columns: range) -> bool: ...
    def cut(
        self, held: tuple[Tensor, ...], shape: tuple[int, int], rows: range, columns: range
    ) -> tuple[Tensor, ...]: ...
    def join(self, parts: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]: ...


def offsets_of(lengths: Tensor, entries: str) -> Tensor:
    """Offsets of what follows each other, int32[n + 1], from lengths.

    Args:
        lengths: [n].
        entries: What offsets count, for people.

    Raises:
        FormatError: Where they do not fit into int32.
    """
    ends = lengths.cumsum(0)
    if len(ends) and int(ends[-1]) > torch.iinfo(torch.int32).max:
        raise FormatError(
            f"{int(ends[-1])} packed {entries} overflow the int32 offsets of their format: "
            "leave the layer dense"
        )
    return torch.nn.functional.pad(ends, (1, 0)).to(torch.int32)


@dataclass(frozen=True)
class Pieces:
    """Into which pieces a format divides a weight.

    Attributes:
        rows: Of a piece.
        columns: Of a piece.
        entry: What the stream is of and what offsets count, for people.
        entry_shape: Sizes of the stream behind the first.
    """

    rows: int
    columns: int
    entry: str
    entry_shape: tuple[int, ...] = ()

    def grid(self, shape: tuple[int, int]) -> tuple[int, int]:
        """How many pieces there are one below the other, and side by side."""
        return -(-shape[0] // self.rows), -(-shape[1] // self.columns)

    def specs(self, shape: tuple[int, int]) -> tuple[TensorSpec, TensorSpec]:
        """What stream and offsets look like."""
        down, across = self.grid(shape)
        return (
            TensorSpec(torch.int32, (None, *self.entry_shape)),
            TensorSpec(torch.int32, (down * across + 1,)),
        )

    def are_whole(self, shape: tuple[int, int], rows: range, columns: range) -> bool:
        """Whether a part of a weight ends where pieces end, or at the edge."""
        ends = zip((rows, columns), shape, (self.rows, self.columns), strict=True)
        return not any(
            r.start % step or (r.stop % step and r.stop != size) for r, size, step in ends
        )

    def cut(
        self, held: tuple[Tensor, ...], shape: tuple[int, int], rows: range, columns: range
    ) -> Stream:
        """The pieces of a part that `are_whole`, as they are.

        Raises:
            FormatError: Where their offsets do not fit into int32, as of `join`.
        """
        stream, offsets = held
        taken = torch.zeros(self.grid(shape), dtype=torch.bool, device=stream.device)
        down, across = (
            slice(r.start // step, -(-r.stop // step))
            for r, step in ((rows, self.rows), (columns, self.columns))
        )
        taken[down, across] = True
        lengths = offsets.diff()
        kept = stream[taken.flatten().repeat_interleave(lengths)]
        return kept, offsets_of(lengths[taken.flatten()], self.entry)

    def join(self, parts: Sequence[tuple[Tensor, ...]]) -> Stream:
        """The pieces of weights on top of each other, all but the last of whole rows of pieces."""
        lengths = torch.cat([offsets.diff() for _, offsets in parts])
        return torch.cat([stream for stream, _ in parts]), offsets_of(lengths, self.entry)
