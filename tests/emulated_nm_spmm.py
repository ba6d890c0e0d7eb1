# SPDX-License-Identifier: Apache-2.0
"""Feeds the emulator driver of nm_spmm."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from emulated_products import run
from emulation import KERNELS
from torch import Tensor
from weights import sparse_weight

from flashsparse_plugin.formats.pattern.nm_spmm import NMSpmm
from flashsparse_plugin.ops import reference

PLAN = "cuda/nm_spmm/linear_plan.h"
KERNEL = r"  X\((\d+), (\d+), (\d+), (\d+), (\d+), (\d+), (true|false), (\d+)\)"


@dataclass(frozen=True)
class Kernel:
    tokens: int
    rows: int
    thread_tokens: int
    thread_rows: int
    token_lanes: int
    stages: int
    packing: bool
    blocks: int


COMPILED = [
    Kernel(*map(int, found[:6]), found[6] == "true", int(found[7]))
    for found in re.findall(f"^{KERNEL}", (KERNELS / PLAN).read_text(), re.M)
]
HOPPER, SMALL = (132, 227 << 10), (20, 99 << 10)  # multiprocessors, bytes of shared memory


@dataclass
class Case:
    """One product, by a kernel and splits or, where that is -1, by the host's plan for a GPU."""

    weight: Tensor
    x: Tensor
    options: dict[str, int]
    bias: Tensor | None = None
    plan: tuple[int, int] = (-1, 0)
    gpu: tuple[int, int] = HOPPER
    seed: int = 0
    packed: tuple[Tensor, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if not self.packed:
            scheme = NMSpmm().scheme(torch.float32, self.options)
            self.packed = tuple(NMSpmm().pack(self.weight, scheme).tensors.values())

    def encode(self) -> bytes:
        header = [*self.weight.shape, len(self.x), *self.options.values()]
        header += [self.bias is not None, self.seed, *self.gpu, *self.plan]
        tensors = [*self.packed, self.x] + ([] if self.bias is None else [self.bias])
        parts = [np.array(header, dtype=np.int64).tobytes()]
        return b"".join(
            parts + [t.contiguous().view(torch.uint8).numpy().tobytes() for t in tensors]
        )

    def __str__(self) -> str:
        return (
            f"weight {list(self.weight.shape)}, {self.options}, {len(self.x)} tokens, "
            f"plan {self.plan}, GPU {self.gpu}, seed {self.seed}"
        )


def random_case(
    rows: int, cols: int, tokens: int, n: int, m: int, length: int, number: int = 0, **rest
) -> Case:
    """Normal values; bias by turns."""
    generator = torch.Generator().manual_seed(number)
    options = {"n": n, "m": m, "vector_length": length}
    scheme = NMSpmm().scheme(torch.float32, options)
    weight = NMSpmm().conform(sparse_weight(rows, cols, 0.9, torch.float32, number), scheme)
    x = torch.randn(tokens, cols, generator=generator)
    bias = torch.randn(rows, generator=generator)
    return Case(weight, x, options, bias if number % 3 else None, **rest)


def split(written: bytes, cases: list[Case]) -> list[Tensor]:
    """What the driver wrote."""
    values = torch.from_numpy(np.frombuffer(written, dtype=np.float32).copy())
    parts = values.split([len(case.x) * len(case.weight) for case in cases])
    return [part.view(len(case.x), -1) for part, case in zip(parts, cases, strict=True)]


def answers(binary: Path, cases: list[Case]) -> list[Tensor]:
    ran = run(binary, cases)
    assert ran.returncode == 0, ran.stderr.decode()[-4000:]
    return split(ran.stdout, cases)


def require_exact(case: Case, y: Tensor) -> None:
    """y is the float64 product up to sums in float32."""
    exact = reference.linear(case.x, case.weight, case.bias)
    magnitude = case.x.double().abs() @ case.weight.double().abs().T
    if case.bias is not None:
        magnitude += case.bias.double().abs()
    bound = (case.weight.shape[1] + 8) * 2**-24 * magnitude + torch.finfo(torch.float32).tiny
    wrong = ~((y.double() - exact).abs() <= bound)
    assert not wrong.any(), f"{case}: {int(wrong.sum())} of {wrong.numel()} elements are wrong"
