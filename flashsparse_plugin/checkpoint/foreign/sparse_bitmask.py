# SPDX-License-Identifier: Apache-2.0
"""compressed-tensors' `sparse-bitmask`: the nonzeros of any weight, and where each row begins."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from .layout import BITS_SET, Bitmask


class SparseBitmask(Bitmask):
    """`compressed` [nonzeros], `row_offsets` int64 [rows]: the first value of each row."""

    name = "sparse-bitmask"
    parts = ("shape", "compressed", "bitmask", "row_offsets")

    def check_parts(self, name: str, shape: tuple[int, ...], tensors: Mapping[str, Tensor]) -> None:
        values, offsets = tensors["compressed"], tensors["row_offsets"]
        if values.dim() != 1:
            self.refuse(name, shape, f"its values are {list(values.shape)}, and not one after all")
        if offsets.dtype != torch.int64 or offsets.shape != shape[:-1]:
            self.refuse(name, shape, f"its row_offsets are {list(offsets.shape)}, not one a row")

    def check_mask(self, name: str, shape: tuple[int, ...], tensors: Mapping[str, Tensor]) -> None:
        mask, values = tensors["bitmask"], tensors["compressed"]
        counts = BITS_SET.to(mask.device)[mask.int()].sum(-1).flatten()
        ends = counts.cumsum(0)
        if int(ends[-1]) != len(values):
            self.refuse(
                name,
                shape,
                f"its bitmask keeps {int(ends[-1])} elements and there are {len(values)} values",
            )
        if not torch.equal(tensors["row_offsets"].flatten(), ends - counts):
            self.refuse(name, shape, "its row_offsets are not where its bitmask lets rows begin")
