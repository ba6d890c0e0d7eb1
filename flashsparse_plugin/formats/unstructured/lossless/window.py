# SPDX-License-Identifier: Apache-2.0
"""How many elements of a weight no window of 15 exponents of their row holds, without packing."""

from __future__ import annotations

import torch
from torch import Tensor

_ROWS = 512  # at a time, which bounds the memory


def count_exceptions(weight: Tensor) -> int:
    """Counts the elements that packing would list.

    Args:
        weight: [out_features, in_features], bfloat16, on any device.
    """
    return sum(_count(rows.contiguous()) for rows in weight.detach().split(_ROWS))


def _count(rows: Tensor) -> int:
    bits = rows.view(torch.int16).to(torch.int64)
    first = 256 * torch.arange(len(rows), device=rows.device)
    exponents = (bits >> 7 & 0xFF) + first[:, None]
    counts = exponents[(bits & 0x7FFF) != 0].bincount(minlength=256 * len(rows)).view(-1, 256)
    up_to = counts.cumsum(1)
    held = up_to[:, 15:255] - up_to[:, :240]  # by base, the exponents base + 1 to base + 15
    return int(counts.sum() - held.amax(1).sum())
