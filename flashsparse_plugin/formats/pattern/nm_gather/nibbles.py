# SPDX-License-Identifier: Apache-2.0
"""Units and pairs of codes of 4 bits: nibbles, then scales of rows and steps.

Drawn in kernels/formats/nm_gather.h.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ...values.dtypes import bits_as
from ...values.types import join_nibbles

ROWS, CODE_BYTES = 32, 512  # of a unit; of a unit and pair


def to_pairs(fragments: Tensor, scales: Tensor, group_steps: int) -> Tensor:
    """Bytes of the pairs of some units.

    Args:
        fragments: Codes, one a byte: uint8 [units, pairs, 1024].
        scales: [rows, groups], of a 16-bit dtype.
        group_steps: Steps of a group.

    Returns:
        uint8 [units, pairs, 640]; scales beyond the rows and groups are zero.
    """
    pairs = fragments.shape[1]
    missing = (2 * pairs // group_steps - scales.shape[1], -len(scales) % ROWS)
    bits = F.pad(scales.view(torch.int16), (0, missing[0], 0, missing[1]))
    steps = bits.repeat_interleave(group_steps, 1)
    parts = steps.view(-1, ROWS // 8, 8, pairs, 2).permute(0, 3, 2, 4, 1)
    held = bits_as(parts, torch.uint8).flatten(2)
    return torch.cat([join_nibbles(fragments), held], 2)


def scales_of(pairs: Tensor, group_steps: int, dtype: torch.dtype) -> Tensor:
    """The scales that pairs [units, pairs, 640] hold: [rows, groups] of `dtype`, zeros included."""
    held = bits_as(pairs[:, :, CODE_BYTES:], dtype)
    parts = held.view(*held.shape[:2], 8, 2, ROWS // 8)
    steps = parts.permute(0, 4, 2, 1, 3).reshape(len(pairs) * ROWS, -1)
    return steps[:, ::group_steps]
