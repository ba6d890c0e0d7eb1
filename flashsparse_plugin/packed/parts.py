# SPDX-License-Identifier: Apache-2.0
"""Cuts a packed weight into parts, and joins parts to a weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from ..rules import require_cut, require_join


class _Weight(Protocol):
    """What is asked of a packed weight."""

    @property
    def scheme(self) -> Any: ...
    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def device(self) -> torch.device: ...
    def unpack(self) -> Tensor: ...


P = TypeVar("P", bound=_Weight)


class Parts(Generic[P]):
    """The part of a format that cuts and joins weights.

    By default by way of the dense weight. A format may know a shorter way.
    """

    def grain(self, scheme: Any) -> tuple[int | None, int | None]:
        """Where a packed weight may be cut: at multiples of so many rows, and of so many columns.

        None: nowhere. Unstructured formats may be cut anywhere.
        """
        return 1, 1

    def cut(self, packed: P, rows: range, columns: range) -> P:
        """The part of a weight that covers some rows and columns, as a weight of its own.

        Args:
            packed: The whole weight.
            rows: A range of step 1; both ends on the grain, or at the edge.
            columns: A range of step 1; both ends on the grain, or at the edge.

        Raises:
            FormatError: For an end that is not on the grain.
        """
        self.require_cut(packed.scheme, packed.shape, rows, columns)
        if (len(rows), len(columns)) == packed.shape:
            return packed
        return self._cut(packed, rows, columns)

    def join(self, parts: Sequence[P]) -> P:
        """Puts weights of one scheme and as many columns on top of each other, in order.

        Raises:
            FormatError: For parts that differ in scheme or columns, or end off the grain.
        """
        if len(parts) == 1:
            return parts[0]
        require_join([(part.scheme, part.shape) for part in parts], self.grain(parts[0].scheme)[0])
        return self._join(parts)

    def require_cut(self, scheme: Any, shape: tuple[int, int], rows: range, columns: range) -> None:
        """Raises FormatError unless a weight may be cut so."""
        require_cut(scheme, shape, self.grain(scheme), rows, columns)

    def _cut(self, packed: P, rows: range, columns: range) -> P:
        weight = packed.unpack()[rows.start : rows.stop, columns.start : columns.stop]
        return packed.scheme.format.pack(weight.contiguous(), packed.scheme)

    def _join(self, parts: Sequence[P]) -> P:
        rows = sum(part.shape[0] for part in parts)
        weight = torch.empty(rows, parts[0].shape[1], dtype=parts[0].dtype, device=parts[0].device)
        for part, place in zip(parts, weight.split([p.shape[0] for p in parts]), strict=True):
            place.copy_(part.unpack())
        return parts[0].scheme.format.pack(weight, parts[0].scheme)
