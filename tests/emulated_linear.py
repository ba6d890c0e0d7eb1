# SPDX-License-Identifier: Apache-2.0
"""Feeds the linear kernel's emulator driver, and judges what it answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from emulated_products import run, split
from emulation import SEEDS
from torch import Tensor
from torch.nn import functional as F

from flashsparse_plugin.ops import ops, reference


@dataclass
class Case:
    """One product.

    `shape` indexes kLinearShapes. -1 lets the host plan for a Hopper GPU of `blocks`
    multiprocessors, -2 for another one.
    """

    weight: Tensor
    x: Tensor
    bias: Tensor | None = None
    shape: int = -1
    blocks: int = 4
    seed: int = 0

    def with_seeds(self) -> list[Case]:
        return [replace(self, seed=seed) for seed in SEEDS]

    def encode(self) -> bytes:
        words, offsets = ops.tiled_csl_pack(self.weight)
        (rows, cols), tokens = self.weight.shape, len(self.x)
        header = [
            *(rows, cols, tokens, len(words), int(self.weight.dtype == torch.bfloat16)),
            *(self.shape, self.blocks, int(self.bias is not None), self.seed),
        ]
        tensors = [offsets, words, F.pad(self.x, (0, -cols % 64)).contiguous()]
        tensors += [] if self.bias is None else [self.bias]
        parts = [np.array(header, dtype=np.int64).tobytes()]
        return b"".join(parts + [t.view(torch.uint8).numpy().tobytes() for t in tensors])

    def __str__(self) -> str:
        density = (self.weight != 0).double().mean()
        return (
            f"weight {list(self.weight.shape)} of {self.weight.dtype}, {density:.0%} kept, "
            f"{len(self.x)} tokens, shape {self.shape}, {self.blocks} blocks, seed {self.seed}"
        )


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


def random_case(rows: int, cols: int, tokens: int, density: float, number: int = 0, **rest) -> Case:
    """Normal values at a density; both dtypes and bias by turns."""
    generator = torch.Generator().manual_seed(number)
    dtype = torch.bfloat16 if number % 2 else torch.float16

    def normal(*size):
        return torch.randn(*size, generator=generator).to(dtype)

    weight = normal(rows, cols)
    weight[torch.rand(rows, cols, generator=generator) >= density] = 0
    bias = normal(rows) if number % 3 else None
    return Case(weight, normal(tokens, cols), bias, **rest)
