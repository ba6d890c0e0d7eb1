# SPDX-License-Identifier: Apache-2.0
"""lossless in pure torch: slow, short, and the oracle of every test.

Written from docs/lossless.md and from no kernel,
so that a mistake in one is not repeated in the other.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ....packed import PackedWeight, Scheme


def _split(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sign bit, biased exponent and fraction of each element, int64."""
    bits = weight.contiguous().view(torch.int16).to(torch.int64) & 0xFFFF
    return bits >> 15, bits >> 7 & 0xFF, bits & 0x7F


def _base(exponents: list[int]) -> int:
    """The smallest base whose window of 15 exponents holds the most of those of nonzeros."""
    held = [sum(base < each <= base + 15 for each in exponents) for base in range(240)]
    return held.index(max(held))


def pack(weight: Tensor, scheme: Scheme) -> dict[str, Tensor]:
    """Packs row by row."""
    out_features, in_features = weight.shape
    sign, exponent, fraction = _split(weight)
    is_zero = (exponent == 0) & (fraction == 0)
    bases = [_base(e[~zero].tolist()) for e, zero in zip(exponent, is_zero, strict=True)]
    base = torch.tensor(bases)[:, None]
    has_code = (exponent > base) & (exponent <= base + 15)
    listed = ~is_zero & ~has_code
    codes = torch.where(has_code, exponent - base, 0)
    bytes_ = torch.where(listed, 0, sign << 7 | fraction)
    chunks = -(-in_features // 128)
    full = torch.zeros(2, out_features, chunks * 128, dtype=torch.int64)
    full[0, :, :in_features], full[1, :, :in_features] = bytes_, codes
    bytes_, codes = full.view(2, out_features, chunks, 128)
    nibbles = codes[..., :64] | codes[..., 64:] << 4
    rows = torch.cat([bytes_, nibbles], -1).reshape(out_features, -1)
    offsets = torch.zeros(out_features + 1, dtype=torch.int32)
    offsets[1:] = listed.sum(1).cumsum(0)
    return {
        "weight_packed": rows.to(torch.uint8),
        "weight_base": base[:, 0].to(torch.uint8),
        "weight_exception_rows": offsets,
        "weight_exception_columns": listed.nonzero()[:, 1].to(torch.int32),
        "weight_exceptions": weight.contiguous().view(torch.int16)[listed],
    }


def unpack(packed: PackedWeight) -> Tensor:
    """Unpacks, exceptions last."""
    out_features, in_features = packed.shape
    tensors = {name: tensor.to(torch.int64) for name, tensor in packed.tensors.items()}
    chunks = tensors["weight_packed"].view(out_features, -1, 192)
    bytes_, nibbles = chunks[..., :128], chunks[..., 128:]
    codes = torch.cat([nibbles & 15, nibbles >> 4], -1)
    exponent = torch.where(codes > 0, codes + tensors["weight_base"][:, None, None], 0)
    bits = (bytes_ >> 7 << 15 | exponent << 7 | bytes_ & 0x7F).reshape(out_features, -1)
    bits = bits[:, :in_features]
    rows = tensors["weight_exception_rows"].diff()
    row = torch.arange(out_features).repeat_interleave(rows)
    bits[row, tensors["weight_exception_columns"]] = tensors["weight_exceptions"] & 0xFFFF
    return torch.where(bits >= 2**15, bits - 2**16, bits).to(torch.int16).view(torch.bfloat16)
