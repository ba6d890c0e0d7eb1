# SPDX-License-Identifier: Apache-2.0
"""The cases of the emulator driver of tiled_bitmap's wgmma kernel.

emulated_tiled_bitmap runs them and judges the answers, which have the form of its own driver's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import NamedTuple

import emulated_tiled_bitmap
import numpy as np
import torch
from emulated_tiled_bitmap import NATIVE, OPTIONS
from emulation import KERNELS, SEEDS
from torch import Tensor
from torch.nn import functional as F

from flashsparse_plugin.formats.unstructured.tiled_bitmap import TiledBitmap, reference

HEADER = KERNELS / "cuda" / "tiled_bitmap" / "wgmma_plan.h"
SHAPES = [  # tokens of a tile, warpgroups
    tuple(map(int, found))
    for found in re.findall(r"^  X\((\d+), (\d+)\)", HEADER.read_text(), re.M)
]
LEAST_RING = 72  # lines


class Plan(NamedTuple):
    """The numbers of WgmmaPlan; a shape of -1 lets the host plan."""

    shape: int = -1
    down: int = 1
    depth: int = 1
    stages: int = 3
    clusters: int = 1
    ring_lines: int = LEAST_RING


@dataclass(frozen=True)
class Case:
    """One product."""

    weight: Tensor
    x: Tensor
    bias: Tensor | None = None
    plan: Plan = Plan()
    gpu: tuple[int, int] = (4, 227 << 10)  # multiprocessors, bytes of shared memory
    seed: int = 0
    operands: int = NATIVE  # of Operands

    def with_seeds(self) -> list[Case]:
        return [replace(self, seed=seed) for seed in SEEDS]

    def encode(self) -> bytes:
        (rows, cols), bfloat16 = self.weight.shape, self.weight.dtype == torch.bfloat16
        scheme = TiledBitmap().scheme(self.weight.dtype, OPTIONS[self.operands])
        packed, offsets, *scales = reference.pack(self.weight, scheme).values()
        header = [rows, cols, len(self.x), int(bfloat16), int(self.bias is not None), self.seed]
        header += [*self.gpu, *self.plan, len(packed), self.operands]
        tensors = [offsets, packed, F.pad(self.x, (0, -cols % 8)).contiguous()]
        tensors += [] if self.bias is None else [self.bias]
        tensors += scales
        parts = [np.array(header, dtype=np.int64).tobytes()]
        return b"".join(parts + [t.view(torch.uint8).numpy().tobytes() for t in tensors])

    def __str__(self) -> str:
        density = (self.weight != 0).float().mean()
        return (
            f"{list(self.weight.shape)} of {self.weight.dtype}, density {density:.2f}, "
            f"{len(self.x)} tokens, operands {self.operands}, {self.plan}, seed {self.seed}"
        )


def random_case(
    rows: int, cols: int, tokens: int, number: int = 0, density: float = 0.4, **rest
) -> Case:
    """Normal values with zeros anywhere; both dtypes and bias by turns."""
    generator = torch.Generator().manual_seed(number)
    dtype = torch.bfloat16 if number % 2 else torch.float16

    def normal(*size):
        return torch.randn(*size, generator=generator).to(dtype)

    weight = normal(rows, cols) * (torch.rand(rows, cols, generator=generator) < density)
    bias = normal(rows) if number % 3 else None
    return Case(weight, normal(tokens, cols), bias, **rest)


def random_codes(
    rows: int, cols: int, tokens: int, number: int = 0, density: float = 0.4, **rest
) -> Case:
    """The same of int8 values with scales of rows; 16-bit and rounded x by turns."""
    made = emulated_tiled_bitmap.random_codes(rows, cols, tokens, number, density)
    rest.setdefault("operands", made.operands)
    return Case(made.weight, made.x, made.bias, **rest)
