# SPDX-License-Identifier: Apache-2.0
"""Weights that torch.nn.utils.prune masks, saved before `prune.remove` made the masks permanent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from .layout import DTYPES, Layout


class PruneMask(Layout):
    """`weight_orig`, the weight with all of its elements, and `weight_mask`, 1 where they count."""

    name = "weight_orig and weight_mask"
    parts = ("weight_orig", "weight_mask")
    values = "weight_orig"

    def shape(
        self,
        name: str,
        tensors: Mapping[str, Tensor],
        dtypes: Sequence[torch.dtype] = DTYPES,
    ) -> tuple[int, ...]:
        self.check_values(name, tensors, dtypes)
        shape, mask = tensors["weight_orig"].shape, tensors["weight_mask"]
        if mask.shape != shape or mask.is_complex():
            self.refuse(name, shape, f"its mask is {mask.dtype} {list(mask.shape)}")
        return tuple(shape)

    def check(
        self,
        name: str,
        tensors: Mapping[str, Tensor],
        dtypes: Sequence[torch.dtype] = DTYPES,
    ) -> tuple[int, ...]:
        shape, mask = self.shape(name, tensors, dtypes), tensors["weight_mask"]
        if not bool(((mask == 0) | (mask == 1)).all()):
            self.refuse(name, shape, "its mask has other elements than 0 and 1")
        return shape

    def dense(
        self,
        name: str,
        tensors: Mapping[str, Tensor],
        dtypes: Sequence[torch.dtype] = DTYPES,
    ) -> Tensor:
        self.check(name, tensors, dtypes)
        return tensors["weight_orig"].masked_fill(tensors["weight_mask"] == 0, 0)
