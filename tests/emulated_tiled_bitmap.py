# SPDX-License-Identifier: Apache-2.0
"""Feeds the emulator driver of tiled_bitmap's linear kernel, and judges what it answers."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from emulated_linear import require_exact
from emulated_products import run, split
from emulation import KERNELS, SEEDS
from torch import Tensor
from torch.nn import functional as F

from flashsparse_plugin.formats.tiled_bitmap import reference

HEADER = KERNELS / "cuda" / "tiled_bitmap" / "linear_plan.h"
SHAPES = [  # tokens, units of rows of a warp, warps
    tuple(map(int, found))
    for found in re.findall(r"^  X\((\d+), (\d+), (\d+)\)", HEADER.read_text(), re.M)
]
FULL_LINES = 64 + 1 + 5  # of a ring that holds a unit without zeros


class Plan(NamedTuple):
    """The numbers of LinearPlan; a shape of -1 lets the host plan."""

    shape: int = -1
    row_warps: int = 1
    column_warps: int = 1
    scratch_quarters: int = 16
    x_stages: int = 2
    ring_lines: int = 2 * FULL_LINES
    blocks: int = 1
    is_early: int = 0


@dataclass(frozen=True)
class Case:
    """One product."""

    weight: Tensor
    x: Tensor
    bias: Tensor | None = None
    plan: Plan = Plan()
    gpu: tuple[int, int] = (4, 227 << 10)  # multiprocessors, bytes of shared memory
    seed: int = 0

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        return reference.pack(self.weight, None)

    def with_seeds(self) -> list[Case]:
        return [self.replace(seed=seed) for seed in SEEDS]

    def replace(self, **changes) -> Case:
        """With other fields; packed once, where the weight stays."""
        other = replace(self, **changes)
        if "weight" not in changes:
            other.__dict__["tensors"] = self.tensors
        return other

    def encode(self) -> bytes:
        (rows, cols), bfloat16 = self.weight.shape, self.weight.dtype == torch.bfloat16
        lines, offsets = self.tensors["weight_packed"], self.tensors["unit_offsets"]
        header = [rows, cols, len(self.x), len(lines), int(bfloat16), int(self.bias is not None)]
        header += [self.seed, *self.gpu, *self.plan]
        tensors = [offsets, lines, F.pad(self.x, (0, -cols % 8)).contiguous()]
        tensors += [] if self.bias is None else [self.bias]
        parts = [np.array(header, dtype=np.int64).tobytes()]
        return b"".join(parts + [t.view(torch.uint8).numpy().tobytes() for t in tensors])

    def __str__(self) -> str:
        density = (self.weight != 0).double().mean()
        return (
            f"{list(self.weight.shape)} of {self.weight.dtype}, {density:.0%} kept, "
            f"{len(self.x)} tokens, {self.plan}, seed {self.seed}"
        )


def random_case(
    rows: int, cols: int, tokens: int, number: int = 0, density: float = 0.5, **rest
) -> Case:
    """Normal values, kept at random; both dtypes and bias by turns."""
    generator = torch.Generator().manual_seed(number)
    dtype = torch.bfloat16 if number % 2 else torch.float16

    def normal(*size):
        return torch.randn(*size, generator=generator).to(dtype)

    weight = normal(rows, cols)
    weight[torch.rand(rows, cols, generator=generator) >= density] = 0
    bias = normal(rows) if number % 3 else None
    return Case(weight, normal(tokens, cols), bias, **rest)


def require_all(binary: Path, cases: list[Case], **environment: str) -> list[Tensor]:
    """Runs all cases, and holds each against float64."""
    ran = run(binary, cases, **environment)
    assert ran.returncode == 0, ran.stderr.decode()[-4000:]
    found = split(ran.stdout, cases)
    for case, y in zip(cases, found, strict=True):
        require_exact(case, y)
    return found
