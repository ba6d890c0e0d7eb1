# SPDX-License-Identifier: Apache-2.0
"""Feeds the decode attention kernel's emulator driver, and judges what it or an op answers."""

from __future__ import annotations

import math
import os
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from flashsparse_plugin.ops import attention_reference

LOG2_LOW = {torch.float16: -4, torch.bfloat16: -60, torch.float32: -60}
LOG2_HIGH = 60


@dataclass
class Decode:
    """One token of each sequence: query [B, H, D], key and value [B, Hkv, T, D].

    Where `page` is above 0 the cache is paged, in blocks of so many positions: laid out as vLLM
    does, [blocks, Hkv, page, 2 D], or where `nhd` [blocks, page, Hkv, 2 D]. Whatever nothing may
    look at is NaN. Key and value may be fp8 codes, with scales.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    lengths: Tensor | None = None
    mask: Tensor | None = None
    phi: Tensor | None = None
    sinks: Tensor | None = None
    key_scale: Tensor | None = None  # [Hkv]
    value_scale: Tensor | None = None
    scale: float | None = None
    softcap: float = 0.0
    window: int = 0
    page: int = 0
    nhd: bool = False
    splits: int = 2  # 0: as planned for `warps` multiprocessors
    warps: int = 4
    seed: int = 0

    def __post_init__(self):
        self.scale = self.query.shape[-1] ** -0.5 if self.scale is None else self.scale
        if self.page and self.lengths is None:  # the last page may be longer than the sequence
            self.lengths = torch.full((len(self.key),), self.key.shape[2], dtype=torch.int32)
        unseen = ~self.attended()[:, None, :, None]
        self.key = nan_where(unseen, self.key)
        self.value = nan_where(unseen, self.value)

    def attended(self) -> Tensor:
        return attention_reference.attended(self.key, self.lengths, self.mask, self.window)

    def arguments(self) -> dict:
        options = {"scale": self.scale, "softcap": self.softcap, "window": self.window}
        scales = {"key_scale": self.key_scale, "value_scale": self.value_scale}
        return options | {"sinks": self.sinks} | scales

    def exact(self) -> Tensor:
        return attention_reference.decode(
            self.query, self.key, self.value, self.lengths, self.mask, **self.arguments()
        )

    def cache(self) -> tuple[Tensor, Tensor, Tensor]:
        """Key and value as the paged op has them, views of one storage, and the block table."""
        sequences, kv_heads, positions, head_dim = self.key.shape
        bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[self.key.element_size()]
        count = -(-positions // self.page)
        blocks = sequences * count + 1
        shape = (blocks, self.page, kv_heads) if self.nhd else (blocks, kv_heads, self.page)
        storage = torch.full((*shape, 2 * head_dim), torch.nan).to(self.key.dtype).view(bits)
        cache = storage if self.nhd else storage.transpose(1, 2)
        generator = torch.Generator().manual_seed(blocks)
        table = torch.randperm(blocks, generator=generator)[: sequences * count]
        table = table.view(sequences, count).int()
        position = torch.arange(positions)
        both = torch.cat([self.key.view(bits), self.value.view(bits)], -1).transpose(1, 2)
        cache[table[:, position // self.page], position % self.page] = both
        key, value = (t.view(self.key.dtype) for t in cache.split(head_dim, -1))
        return key, value, table

    def encode(self) -> bytes:
        sequences, kv_heads, positions, head_dim = self.key.shape
        group = self.query.shape[1] // kv_heads
        table = torch.empty(sequences, 0, dtype=torch.int32)
        pages, page_tiles = sequences, 0
        if self.page:
            key, value, table = self.cache()
            pages, page_tiles, positions = len(key), self.page // 16, table.shape[1] * self.page
            strides = [(t.stride(0), t.stride(2), t.stride(1)) for t in (key, value)]
            storage, offset = key.untyped_storage(), value.storage_offset()
            cache = torch.tensor([], dtype=torch.uint8).set_(storage)
        else:
            cache = torch.stack([self.key, self.value]).view(torch.uint8).flatten()
            strides, offset = [self.key.contiguous().stride()[:3]] * 2, self.key.numel()
        optional = (self.lengths, self.mask, self.phi, self.sinks, self.key_scale)
        element_bytes = self.key.element_size()
        header = [
            *(sequences, kv_heads, group, head_dim, positions),
            *(int(self.query.dtype == torch.bfloat16), self.splits, self.warps, self.seed),
            *(int(x is not None) for x in optional),
            *(self.window, pages, table.shape[1], page_tiles, len(cache) // element_bytes, offset),
            *(element_bytes, *strides[0], *strides[1]),
        ]  # fmt: skip
        limits = (2.0 ** LOG2_LOW[self.query.dtype], 2.0**LOG2_HIGH)
        numbers = np.array([self.scale, self.softcap, *limits], dtype=np.float32)
        parts = [np.array(header, dtype=np.int64).tobytes(), numbers.tobytes()]
        tensors = [
            self.query,
            cache,
            table,
            *(x for x in (*optional, self.value_scale) if x is not None),
        ]
        return b"".join(
            parts + [t.contiguous().view(torch.uint8).numpy().tobytes() for t in tensors]
        )

    def __str__(self) -> str:
        told = {"lengths": self.lengths, "phi": self.phi, "mask": self.mask, "sinks": self.sinks}
        there = [name for name, value in told.items() if value is not None]
        return (
            f"query {list(self.query.shape)}, key {list(self.key.shape)} {self.key.dtype}, {there},"
            f" softcap {self.softcap}, window {self.window}, pages of {self.page},"
            f" {self.splits} splits, {self.warps} warps, seed {self.seed}"
        )


def run(binary: Path, cases: list[Decode], **environment: str) -> subprocess.CompletedProcess:
    fed = b"".join(case.encode() for case in cases)
    return subprocess.run(
        [str(binary)],
        input=fed,
        capture_output=True,
        timeout=300,
        env={**os.environ, **environment},
    )


def answers(binary: Path, cases: list[Decode]) -> list[tuple[Tensor, Tensor]]:
    """(out, recomputed) of each case."""
    ran = run(binary, cases)
    assert ran.returncode == 0, ran.stderr.decode()
    return split(ran.stdout, cases)


def split(written: bytes, cases: list[Decode]) -> list[tuple[Tensor, Tensor]]:
    """What the driver wrote, as `answers` gives it."""
    results, place = [], 0
    for case in cases:
        sequences, heads, _ = case.query.shape
        values = np.frombuffer(written, np.int16, case.query.numel(), place)
        place += values.nbytes
        counts = np.frombuffer(written, np.int32, sequences * heads, place)
        place += counts.nbytes
        out = torch.from_numpy(values.copy()).view(case.query.dtype).view_as(case.query)
        results.append((out, torch.from_numpy(counts.copy()).view(sequences, heads)))
    assert place == len(written)
    return results


def require_exact(case: Decode, out: Tensor, rounded_terms: bool = True) -> None:
    """out is the float64 result up to what its arithmetic costs."""
    if not case.attended().any():
        assert not out.any()
        return
    bound = attention_reference.error_bound(
        *(case.query, case.key, case.value, case.lengths, case.mask),
        **case.arguments(),
        rounded_terms=rounded_terms,
        low=1.0 if case.phi is None else 2.0 ** LOG2_LOW[case.query.dtype],
    )
    error = (out.double() - case.exact()).abs()
    wrong = ~(error <= 1.01 * bound)
    assert not wrong.any(), (
        f"{case}: {int(wrong.sum())} of {wrong.numel()} elements are wrong, the worst by "
        f"{float(error.max()):.2e}"
    )


def nan_where(unseen: Tensor, tensor: Tensor) -> Tensor:
    if tensor.dtype != torch.float8_e4m3fn:
        return tensor.masked_fill(unseen, torch.nan)
    return tensor.view(torch.uint8).masked_fill(unseen, 0x7F).view(tensor.dtype)


def fp8(case: Decode) -> Decode:
    """The case with keys and values as codes, each kv head with scales of its own."""
    kv_heads = case.key.shape[1]
    scales = [torch.linspace(*ends, kv_heads) for ends in ((0.01, 0.05), (0.5, 0.003))]
    codes = [
        (t.float() / scale[:, None, None]).clamp(-448, 448).to(torch.float8_e4m3fn)
        for t, scale in zip((case.key, case.value), scales, strict=True)
    ]
    return replace(case, **dict(zip(NAMES, codes + scales, strict=True)))


NAMES = ("key", "value", "key_scale", "value_scale")


def random_decode(
    sequences: int,
    kv_heads: int,
    group: int,
    head_dim: int,
    positions: int,
    number: int = 0,
    **rest,
) -> Decode:
    """Normal values, both dtypes by turns."""
    generator = torch.Generator().manual_seed(number)
    dtype = rest.pop("dtype", torch.bfloat16 if number % 2 else torch.float16)
    spread = rest.pop("spread", 1.0)

    def normal(*size):
        return torch.randn(*size, generator=generator)

    query = (normal(sequences, kv_heads * group, head_dim) * math.sqrt(spread)).to(dtype)
    key = (normal(sequences, kv_heads, positions, head_dim) * math.sqrt(spread)).to(dtype)
    return Decode(query, key, normal(*key.shape).to(dtype), **rest)
