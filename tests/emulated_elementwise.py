# SPDX-License-Identifier: Apache-2.0
"""Feeds the emulator driver of the kernels between products, and judges its answers."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from flashsparse_plugin.ops import elementwise as reference

DRIVER = "elementwise_driver"


def _bytes(*tensors: Tensor) -> bytes:
    return b"".join(t.contiguous().view(torch.uint8).numpy().tobytes() for t in tensors)


def _numbers(*numbers: int) -> bytes:
    return np.array(numbers, dtype=np.int64).tobytes()


def _spread(rows: Tensor, token: int) -> Tensor:
    """The rows `token` elements apart, the gaps filled with NaN."""
    flat = rows.reshape(rows.shape[0], -1)
    wide = torch.full((rows.shape[0], token), float("nan"), dtype=rows.dtype)
    wide[:, : flat.shape[1]] = flat
    return wide


@dataclass
class Norm:
    x: Tensor  # [tokens, heads, columns]
    residual: Tensor | None
    weight: Tensor
    adds_one: bool = False
    gap: int = 0  # elements between the rows of x
    seed: int = 0
    epsilon: float = 1e-5

    kind = 0

    def encode(self) -> bytes:
        tokens, heads, columns = self.x.shape
        wide = _spread(self.x, heads * columns + self.gap)
        more = [] if self.residual is None else [self.residual]
        numbers = _numbers(
            *(tokens, heads, columns, self.adds_one, wide.numel(), wide.shape[1], columns),
            *((more[0].numel(), heads * columns, columns) if more else (0, 0, 0)),
        )
        numbers += np.array([self.epsilon], dtype=np.float32).tobytes()
        return numbers + _bytes(wide, *more, self.weight)

    def reference(self) -> list[Tensor]:
        options = self.weight, self.epsilon, self.adds_one
        if self.residual is None:
            return [reference.rms_norm(self.x, *options)]
        return list(reference.add_rms_norm(self.x, self.residual, *options))

    def exact(self) -> list[Tensor]:
        value = self.x.double()
        if self.residual is not None:
            value = value + self.residual.double()
        y = value * (value.square().mean(-1, keepdim=True) + self.epsilon).rsqrt()
        y = y * (self.weight.double() + self.adds_one)
        return [y] if self.residual is None else [y, value]


@dataclass
class GateMul:
    x: Tensor  # [tokens, 2 * columns]
    activation: str = "silu"
    gap: int = 0
    seed: int = 0

    kind = 1

    def encode(self) -> bytes:
        tokens, columns = self.x.shape[0], self.x.shape[1] // 2
        wide = _spread(self.x, 2 * columns + self.gap)
        gate = reference.ACTIVATIONS.index(self.activation)
        return _numbers(tokens, columns, gate, wide.shape[1]) + _bytes(wide)

    def reference(self) -> list[Tensor]:
        return [reference.gate_mul(self.x, self.activation)]

    def exact(self) -> list[Tensor]:
        return [reference.gate_mul(self.x.double(), self.activation)]


@dataclass
class RopeCache:
    qkv: Tensor  # [tokens, query heads, then key heads, then value heads, each times its size]
    heads: tuple[int, int]
    dims: tuple[int, int]  # of a key, of a value
    cos_sin: Tensor
    positions: Tensor
    cache: Tensor  # [pages, page_size, kv_heads, both dims], no pages: none
    slots: Tensor
    is_neox: bool = True
    in_place: bool = True
    seed: int = 0

    kind = 2

    @property
    def x(self) -> Tensor:
        return self.qkv

    def encode(self) -> bytes:
        pages, page_size = self.cache.shape[:2]
        numbers = (self.qkv.shape[0], *self.heads, *self.dims, self.cos_sin.shape[1], self.is_neox)
        numbers += (self.cos_sin.shape[0], pages, page_size, self.slots.shape[0], self.in_place)
        tensors = self.qkv, self.cos_sin, self.positions, self.slots, self.cache
        return _numbers(*numbers) + _bytes(*tensors)

    def reference(self) -> list[Tensor]:
        qkv, cache = self.qkv.clone(), self.cache.clone()
        (query_heads, kv_heads), (head_dim, value_dim) = self.heads, self.dims
        sizes = query_heads * head_dim, kv_heads * head_dim, kv_heads * value_dim
        query, key, value = qkv.split(sizes, -1)
        caches = cache.split(self.dims, -1) if cache.shape[0] else (None, None)
        reference.rope_cache(
            query.unflatten(-1, (query_heads, head_dim)),
            key.unflatten(-1, (kv_heads, head_dim)),
            value.unflatten(-1, (kv_heads, value_dim)),
            *((self.positions, self.cos_sin) if self.cos_sin.shape[1] else (None, None)),
            self.is_neox,
            *caches,
            self.slots,
        )
        if not self.in_place:
            value.view(torch.int16).fill_(-1)  # never written
        return [qkv, cache]


Case = Norm | GateMul | RopeCache


def run(binary: Path, cases: Sequence[Case], **environment: str) -> subprocess.CompletedProcess:
    fed = b"".join(
        _numbers(case.kind, case.x.dtype == torch.bfloat16, case.seed) + case.encode()
        for case in cases
    )
    return subprocess.run(
        [str(binary)], input=fed, capture_output=True, timeout=300, env=os.environ | environment
    )


def judge(cases: Sequence[Case], written: bytes) -> None:
    """The answers are right: near the exact ones, and nearly all bits those of torch's ops."""
    place = 0
    for case in cases:
        for number, wanted in enumerate(case.reference()):
            values = np.frombuffer(written, np.int16, wanted.numel(), place).copy()
            place += values.nbytes
            found = torch.from_numpy(values).view(wanted.dtype).view_as(wanted)
            require_right(case, number, found, wanted)
    assert place == len(written)


def require_right(case: Case, number: int, found: Tensor, wanted: Tensor) -> None:
    """Result `number` of a case is right; `wanted` is that of torch's ops."""
    same = found.view(torch.int16) == wanted.view(torch.int16)
    if isinstance(case, RopeCache) or (isinstance(case, Norm) and number == 1):
        assert same.all()  # rotations, copies and sums have no freedom
        return
    # Another order of a sum or another exp changes a last bit here and there.
    assert same.double().mean() > 0.99
    ulp = 2.0**-8 if found.dtype == torch.bfloat16 else 2.0**-11
    torch.testing.assert_close(
        found.double(), case.exact()[number], rtol=2.1 * ulp, atol=1e-6, equal_nan=True
    )
