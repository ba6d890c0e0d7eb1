# SPDX-License-Identifier: Apache-2.0
"""The interleaved bitmap in pure torch: slow, short, and the oracle of every test.

Written from kernels/formats/interleaved_bitmap.h and from no kernel,
so that a mistake in one is not repeated in the other.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...packed import PackedWeight, Scheme


def pack(weight: Tensor, scheme: Scheme) -> dict[str, Tensor]:
    """Packs to the interleaved bitmap, panel by panel."""
    out_features, in_features = weight.shape
    panels, pairs = -(-out_features // 16), -(-in_features // 2)
    full = weight.new_zeros(panels * 16, pairs * 2)
    full[:out_features, :in_features] = weight
    # [panel, pair, bit] with bit = 2 * row + (col & 1)
    stored = torch.int32 if weight.dtype == torch.float32 else torch.int16
    bits = full.view(stored).view(panels, 16, pairs, 2).permute(0, 2, 1, 3)
    bits = bits.reshape(panels, pairs, 32)
    kept = (bits & torch.iinfo(stored).max) != 0  # but for the sign
    masks = (kept.to(torch.int64) << torch.arange(32)).sum(-1)
    masks = torch.where(masks >= 2**31, masks - 2**32, masks).to(torch.int32)
    offsets = torch.zeros(panels + 1, dtype=torch.int64)
    offsets[1:] = kept.sum((1, 2)).cumsum(0)
    values = torch.cat([bits[kept], torch.zeros(32, dtype=stored)])
    return {"values": values, "masks": masks, "panel_offsets": offsets}


def unpack(packed: PackedWeight) -> Tensor:
    """Unpacks the interleaved bitmap, mask by mask."""
    out_features, in_features = packed.shape
    values, masks, offsets = (packed.tensors[n] for n in ("values", "masks", "panel_offsets"))
    panels, pairs = masks.shape
    kept = (masks.to(torch.int64)[..., None] >> torch.arange(32) & 1).bool()
    bits = torch.zeros(panels, pairs, 32, dtype=packed.tensors["values"].dtype)
    bits[kept] = values[: int(offsets[-1])]
    full = bits.view(panels, pairs, 16, 2).permute(0, 2, 1, 3).reshape(panels * 16, pairs * 2)
    return full[:out_features, :in_features].contiguous().view(packed.dtype)
