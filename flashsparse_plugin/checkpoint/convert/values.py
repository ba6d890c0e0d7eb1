# SPDX-License-Identifier: Apache-2.0
"""Sizes as users write them, and comparing values: bit for bit, or by how far they are."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from ..files.headers import CheckpointError


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


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one dtype and size hold the same bits."""
    x, y = (t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b))
    return torch.equal(x, y)


def same_bits_but_zero_sign(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one floating dtype have the same bits, +0 and -0 taken as one."""
    integer = {2: torch.int16, 4: torch.int32}[a.dtype.itemsize]
    x, y = a.contiguous().view(integer), b.contiguous().view(integer)
    return torch.equal(x, y) or bool(((x == y) | ((a == 0) & (b == 0))).all())


def relative_error(near: Tensor, exact: Tensor) -> float:
    """The norm of the difference of two weights over that of the second; 0 where that is 0."""
    off, norm = 0.0, 0.0
    for a, b in zip(near.split(1024), exact.split(1024), strict=True):
        off += float((a.double() - b.double()).square().sum())
        norm += float(b.double().square().sum())
    return (off / norm) ** 0.5 if norm else 0.0
