# SPDX-License-Identifier: Apache-2.0
"""Weights and biases that torch.nn.utils.prune masks, saved without `prune.remove`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from .layout import DTYPES, Layout


class PruneMask(Layout):
    """`weight_orig`, the weight with all of its elements, and `weight_mask`, 1 where they count.

    Args:
        parameter: "weight", or "bias", which is kept in the same way beside it.
    """

    def __init__(self, parameter: str):
        self.parameter = parameter
        self.values, self.mask = f"{parameter}_orig", f"{parameter}_mask"
        self.parts = (self.values, self.mask)
        self.name = f"{self.values} and {self.mask}"

    def shape(
        self,
        name: str,
        tensors: Mapping[str, Tensor],
        dtypes: Sequence[torch.dtype] = DTYPES,
    ) -> tuple[int, ...]:
        self.check_values(name, tensors, dtypes)
        shape, mask = tensors[self.values].shape, tensors[self.mask]
        if mask.shape != shape or mask.is_complex():
            self.refuse(name, shape, f"its mask is {mask.dtype} {list(mask.shape)}")
        return tuple(shape)

    def check(
        self,
        name: str,
        tensors: Mapping[str, Tensor],
        dtypes: Sequence[torch.dtype] = DTYPES,
    ) -> tuple[int, ...]:
        shape, mask = self.shape(name, tensors, dtypes), tensors[self.mask]
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
        return tensors[self.values].masked_fill(tensors[self.mask] == 0, 0)
