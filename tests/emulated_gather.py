# SPDX-License-Identifier: Apache-2.0
"""Feeds the emulator drivers of nm_gather."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from emulation import KERNELS, SEEDS
from torch import Tensor
from torch.nn import functional as F
from weights import sparse_weight

from flashsparse_plugin.formats.nm_gather import NMGather
from flashsparse_plugin.ops import reference

PLAN = "cuda/nm_gather/linear_plan.h"
SHAPES = [  # tokens, rows of a unit, stages, warps
    tuple(map(int, found))
    for found in re.findall(
        r"^  X\((\d+), (\d+), (\d+), (\d+)\)", (KERNELS / PLAN).read_text(), re.M
    )
]
HOPPER, SMALL = (132, 227 << 10), (20, 99 << 10)  # multiprocessors, bytes of shared memory


@dataclass
class Case:
    """One product, by a plan or by the host's own for a GPU.

    `plan` is what Plan holds: shape, row_warps, depth_warps, splits, chunk_sections.
    """

    weight: Tensor
    x: Tensor
    options: dict[str, int]
    bias: Tensor | None = None
    plan: tuple[int, ...] = (-1, 0, 0, 0, 0)
    gpu: tuple[int, int] = (4, HOPPER[1])
    seed: int = 0
    packed: tuple[Tensor, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if not self.packed:
            scheme = NMGather().scheme(self.weight.dtype, self.options)
            self.packed = tuple(NMGather().pack(self.weight, scheme).tensors.values())

    def launch(self) -> tuple[int, ...]:
        """What the driver must know of the GPU and the plan."""
        return *self.gpu, *self.plan

    def encode(self) -> bytes:
        (rows, cols), tokens = self.weight.shape, len(self.x)
        bfloat16, has_bias = self.weight.dtype == torch.bfloat16, self.bias is not None
        header = [
            *(rows, cols, tokens, *self.options.values(), bfloat16, has_bias, self.seed),
            *self.launch(),
        ]
        tensors = [*self.packed, F.pad(self.x, (0, -cols % 64)).contiguous()]
        tensors += [] if self.bias is None else [self.bias]
        parts = [np.array(header, dtype=np.int64).tobytes()]
        return b"".join(parts + [t.view(torch.uint8).numpy().tobytes() for t in tensors])

    def __str__(self) -> str:
        return (
            f"weight {list(self.weight.shape)} of {self.weight.dtype}, {self.options}, "
            f"{len(self.x)} tokens, plan {self.plan}, GPU {self.gpu}, seed {self.seed}"
        )


def random_case(
    rows: int, cols: int, tokens: int, n: int, m: int, length: int, number: int = 0, **rest
) -> Case:
    """Normal values; both dtypes and bias by turns."""
    generator = torch.Generator().manual_seed(number)
    dtype = torch.bfloat16 if number % 2 else torch.float16
    options = {"n": n, "m": m, "vector_length": length}
    scheme = NMGather().scheme(dtype, options)
    weight = NMGather().conform(sparse_weight(rows, cols, 0.9, dtype, number), scheme)
    x = torch.randn(tokens, cols, generator=generator).to(dtype)
    bias = torch.randn(rows, generator=generator).to(dtype)
    return Case(weight, x, options, bias if number % 3 else None, **rest)


def run(binary: Path, cases: list[Case], **environment: str) -> subprocess.CompletedProcess:
    fed = b"".join(case.encode() for case in cases)
    return subprocess.run(
        [str(binary)], input=fed, capture_output=True, timeout=600, env=os.environ | environment
    )


def split(written: bytes, cases: list[Case]) -> list[Tensor]:
    """What the driver wrote."""
    bits = torch.from_numpy(np.frombuffer(written, dtype=np.int16).copy())
    parts = bits.split([len(case.x) * len(case.weight) for case in cases])
    return [
        part.view(case.weight.dtype).view(len(case.x), -1)
        for part, case in zip(parts, cases, strict=True)
    ]


def answers(binary: Path, cases: list[Case]) -> list[Tensor]:
    ran = run(binary, cases)
    assert ran.returncode == 0, ran.stderr.decode()[-4000:]
    return split(ran.stdout, cases)


def require_exact(case: Case, y: Tensor) -> None:
    """y is the float64 product up to sums in float32 and one rounding."""
    exact = reference.linear(case.x, case.weight, case.bias)
    magnitude = case.x.double().abs() @ case.weight.double().abs().T
    if case.bias is not None:
        magnitude += case.bias.double().abs()
    bound = (case.weight.shape[1] + 8) * 2**-24 * magnitude
    bound += exact.abs() * torch.finfo(y.dtype).eps / 2 + torch.finfo(y.dtype).tiny
    wrong = ~((y.double() - exact).abs() <= 1.01 * bound)
    assert not wrong.any(), f"{case}: {int(wrong.sum())} of {wrong.numel()} elements are wrong"


def with_seeds(cases: list[Case]) -> list[list[Case]]:
    return [[replace(case, seed=seed) for case in cases] for seed in SEEDS]
