# SPDX-License-Identifier: Apache-2.0
"""The interleaved bitmap in pure torch: slow, short, and the oracle of every test.

Written from kernels/formats/interleaved_bitmap.h and from no kernel,
so that a mistake in one is not repeated in the other.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ....packed import PackedWeight, Scheme


def pack(weight: Tensor, scheme: Scheme) -> dict[str, Tensor]:
    """Packs to the interleaved bitmap, panel by panel.

    Of int8 values: a weight of which the largest code of each row is 127 or -127.
    """
    if scheme.values.get("values", "native") == "native":
        return _pack(weight.view(torch.int32 if weight.dtype == torch.float32 else torch.int16))
    scales = weight.float().abs().amax(1, keepdim=True) / 127
    scales[scales == 0] = 1
    codes = (weight.float() / scales).round().to(torch.int8)
    return {**_pack(codes), "weight_scale": scales}


def _pack(values: Tensor) -> dict[str, Tensor]:
    out_features, in_features = values.shape
    panels, pairs = -(-out_features // 16), -(-in_features // 2)
    full = values.new_zeros(panels * 16, pairs * 2)
    full[:out_features, :in_features] = values
    # [panel, pair, bit] with bit = 2 * row + (col & 1)
    bits = full.view(panels, 16, pairs, 2).permute(0, 2, 1, 3).reshape(panels, pairs, 32)
    # Of a float all bits but for the sign.
    kept = (bits if bits.itemsize == 1 else bits & torch.iinfo(bits.dtype).max) != 0
    masks = (kept.to(torch.int64) << torch.arange(32)).sum(-1)
    masks = torch.where(masks >= 2**31, masks - 2**32, masks).to(torch.int32)
    offsets = torch.zeros(panels + 1, dtype=torch.int64)
    offsets[1:] = kept.sum((1, 2)).cumsum(0)
    stream = torch.cat([bits[kept], bits.new_zeros(64)])
    return {"values": stream, "masks": masks, "panel_offsets": offsets}


def unpack(packed: PackedWeight) -> Tensor:
    """Unpacks the interleaved bitmap, mask by mask."""
    out_features, in_features = packed.shape
    values, masks, offsets = (packed.tensors[n] for n in ("values", "masks", "panel_offsets"))
    panels, pairs = masks.shape
    kept = (masks.to(torch.int64)[..., None] >> torch.arange(32) & 1).bool()
    bits = torch.zeros(panels, pairs, 32, dtype=packed.tensors["values"].dtype)
    bits[kept] = values[: int(offsets[-1])]
    full = bits.view(panels, pairs, 16, 2).permute(0, 2, 1, 3).reshape(panels * 16, pairs * 2)
    weight = full[:out_features, :in_features].contiguous()
    if weight.dtype == torch.int8:
        return (weight.float() * packed.tensors["weight_scale"]).to(packed.dtype)
    return weight.view(packed.dtype)
