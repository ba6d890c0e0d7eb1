# SPDX-License-Identifier: Apache-2.0
"""compressed-tensors' `sparse-24-bitmask`: two of every four columns of a weight."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from .layout import BITS_SET, Bitmask


class Sparse24Bitmask(Bitmask):
    """`compressed` [rows, columns / 2]; a kept element may be zero."""

    name = "sparse-24-bitmask"
    parts = ("shape", "compressed", "bitmask")

    def check_parts(self, name: str, shape: tuple[int, ...], tensors: Mapping[str, Tensor]) -> None:
        values = tensors["compressed"]
        if len(shape) != 2 or shape[1] % 4 or values.shape != (shape[0], shape[1] // 2):
            self.refuse(
                name,
                shape,
                f"its values are {list(values.shape)}, and not half of columns that "
                "are a multiple of 4",
            )

    def check_mask(self, name: str, shape: tuple[int, ...], tensors: Mapping[str, Tensor]) -> None:
        mask, fours = tensors["bitmask"], shape[1] // 4
        halves = torch.stack([mask & 15, mask >> 4], -1).flatten(1)[:, :fours]
        counts = BITS_SET.to(mask.device)[halves.int()]
        if bool((counts != 2).any()):
            row, four = (counts != 2).nonzero()[0].tolist()
            self.refuse(
                name,
                shape,
                f"its bitmask keeps {int(counts[row, four])} of the columns {4 * four} to "
                f"{4 * four + 3} in row {row}, and not two",
            )
