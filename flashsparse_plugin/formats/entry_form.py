# SPDX-License-Identifier: Apache-2.0
"""What the forms of N:M patterns on a CPU have in common: entries of 16 rows lie side by side."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from ..packed import PackedWeight
from .nm_pattern import options_of, pack_positions
from .pattern_form import PatternForm
from .value_types import ValueType

ROWS = 16  # of a panel


class EntryForm(PatternForm):
    """A form whose tensors are those of nm_vector in another order: `values`, `scales`, and places.

    So nm_vector's tensors are found again without unpacking.
    """

    dtypes = (torch.float32, torch.float16, torch.bfloat16)

    @abstractmethod
    def positions(self, packed: PackedWeight) -> Tensor:
        """Positions inside the windows, uint8 [groups of rows, kept]."""

    def stored(self, packed: PackedWeight) -> Mapping[str, Tensor]:
        options, rows = options_of(packed.scheme), packed.shape[0]
        tensors = {
            "weight_packed": by_row(packed.tensors["values"], rows),
            "weight_index": pack_positions(self.positions(packed), options.index_bits),
        }
        if options.value_type:
            tensors["weight_scale"] = by_row(packed.tensors["scales"], rows)
        return tensors


def by_panel(rows: Tensor) -> Tensor:
    """[rows, length] to [panels, length, 16], with zeros for the rows that are missing."""
    padded = F.pad(rows, (0, 0, 0, -len(rows) % ROWS))
    return padded.view(-1, ROWS, rows.shape[1]).transpose(1, 2).contiguous()


def by_row(panels: Tensor, rows: int) -> Tensor:
    """The inverse of `by_panel`."""
    return panels.transpose(1, 2).flatten(0, 1)[:rows].contiguous()


def decode_panels(codes: Tensor, values: ValueType, kept: int) -> Tensor:
    """Codes [panels, steps, 16] as float16 numbers [panels, kept, 16]."""
    rows = codes.transpose(1, 2).flatten(0, 1).contiguous()
    return values.decode(rows, kept).view(len(codes), ROWS, kept).transpose(1, 2)
