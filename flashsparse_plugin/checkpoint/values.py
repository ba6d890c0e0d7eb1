# SPDX-License-Identifier: Apache-2.0
"""Dtypes and sizes as users write them; casting and comparing values."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from ..packed import WEIGHT_DTYPES
from .reader import CheckpointError


def parse_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """Returns float16 or bfloat16, by name or as it is; None stays None."""
    names = {dtype_name(known): known for known in WEIGHT_DTYPES}
    found = names.get(dtype) if isinstance(dtype, str) else dtype
    if dtype is None or found in WEIGHT_DTYPES:
        return found
    raise CheckpointError(f"dtype must be float16 or bfloat16, not {dtype}")


def dtype_name(dtype: torch.dtype) -> str:
    """Returns the name that config.json uses: "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def parse_size(size: int | str) -> int:
    """Returns bytes from a number or from text like "5GB" or "512MiB"."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(I?)B?", str(size).strip().upper())
    if found is None or (found[3] and not found[2]):
        raise CheckpointError(f"max_shard_size is a number of bytes or like '5GB', not {size!r}")
    base = 1024 if found[3] else 1000
    nbytes = int(float(found[1]) * base ** " KMGT".index(found[2] or " "))
    if nbytes < 1:
        raise CheckpointError(f"max_shard_size must be at least one byte, not {size!r}")
    return nbytes


def cast(part: Tensor, dtype: torch.dtype, name: str) -> Tensor:
    """Casts, and refuses to turn a finite value into an infinite one."""
    if part.dtype == dtype:
        return part
    rounded = part.to(dtype)
    lost = int((rounded.isinf() & part.isfinite()).sum())
    if lost:
        raise CheckpointError(
            f"tensor {name!r}: {lost} of its values are too large for {dtype_name(dtype)}. Use "
            "--dtype bfloat16 (dtype=), which has the range of float32"
        )
    return rounded


def count_changed(part: Tensor, dtype: torch.dtype) -> int:
    """Counts the values that a cast changes; NaN stays NaN."""
    if part.dtype == dtype:
        return 0
    return int(((part != part.to(dtype).to(part.dtype)) & ~part.isnan()).sum())


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one dtype and size hold the same bits."""
    x, y = (t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b))
    return torch.equal(x, y)


def same_bits_but_zero_sign(a: Tensor, b: Tensor) -> bool:
    """Whether two 16-bit tensors have the same bits, +0 and -0 taken as one."""
    x, y = a.contiguous().view(torch.int16), b.contiguous().view(torch.int16)
    return torch.equal(x, y) or bool(((x == y) | (((x | y) & 0x7FFF) == 0)).all())
