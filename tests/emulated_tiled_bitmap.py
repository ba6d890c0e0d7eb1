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
from emulation import KERNELS, SEEDS, compile_driver, with_few_shapes, with_switched_barriers
from torch import Tensor
from torch.nn import functional as F

from flashsparse_plugin.formats.unstructured.tiled_bitmap import TiledBitmap, reference
from flashsparse_plugin.formats.values.activations import rounded_tokens
from flashsparse_plugin.formats.values.types import VALUE_TYPES

LINEAR, PROMPT = "tiled_bitmap/linear_driver", "tiled_bitmap/prompt_driver"
# By compute capability, multiprocessors and bytes of shared memory.
GPUS = {"90": (4, 227 << 10), "80": (3, 163 << 10), "86": (3, 99 << 10)}
WARPS = ((1, 1), (2, 1), (1, 2), (2, 2))  # of a block, along rows and along columns
HEADER = KERNELS / "cuda" / "tiled_bitmap" / "linear_plan.h"
SHAPES, CODES_SHAPES = (  # tokens, units of rows of a warp, warps, whether it spreads them
    [
        tuple(map(int, shape))
        for shape in re.findall(r"^  X\((\d+), (\d+), (\d+), (\d)\)", part, re.M)
    ]
    for part in HEADER.read_text().split("CODES_SHAPES(X)")[:2]
)
FULL_LINES = 64 + 2 + 5  # of a ring that holds a unit without zeros
FULL_CODE_LINES = 32 + 2 + 5  # the same, of codes
NATIVE, CODES, ROUNDED = range(3)  # of Operands
INT8 = VALUE_TYPES["int8"]
OPTIONS: tuple[dict[str, str], ...] = ({}, {"values": "int8"}, {"values": "int8"})


# Of the shapes those that run under sanitizers: of up to 8 tokens all, of more tokens one or two.
FEW_SHAPES = (0, 1, 2, 3, 7), (0, 1, 3, 7)
SWITCHED_PARTS = [
    *(f"cuda/tiled_bitmap/{name}.cuh" for name in ("linear", "weight_ring", "weight_orders")),
    *(f"cuda/mma_units/{name}.cuh" for name in ("quantise_x", "block_sum")),
]
WAITS = r"(?:__syncthreads|__syncwarp|sync_threads_of|mbarrier_wait)\([^;]*\);"


def sanitized_driver(sanitizer: str) -> tuple[Path, list[str]]:
    """Of few shapes; under the thread sanitizer one program for what is right and for all mutants.

    Returns:
        The program, and where the barriers stand that it can leave out.
    """
    headers, places = with_few_shapes("cuda/tiled_bitmap/linear_plan.h", *FEW_SHAPES), []
    if sanitizer == "thread":
        switched, places = with_switched_barriers(SWITCHED_PARTS, WAITS)
        headers |= switched
    return compile_driver(LINEAR, sanitizer, headers), places


class Plan(NamedTuple):
    """The numbers of LinearPlan; a shape of -1 lets the host plan."""

    shape: int = -1
    row_warps: int = 1
    column_warps: int = 1
    scratch_quarters: int = 0
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
    operands: int = NATIVE

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        scheme = TiledBitmap().scheme(self.weight.dtype, OPTIONS[self.operands])
        return reference.pack(self.weight, scheme)

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
        header += [self.seed, *self.gpu, *self.plan, self.operands]
        tensors = [offsets, lines, F.pad(self.x, (0, -cols % 8)).contiguous()]
        tensors += [] if self.bias is None else [self.bias]
        tensors += [] if self.operands == NATIVE else [self.tensors["weight_scale"]]
        parts = [np.array(header, dtype=np.int64).tobytes()]
        return b"".join(parts + [t.view(torch.uint8).numpy().tobytes() for t in tensors])

    def __str__(self) -> str:
        density = (self.weight != 0).double().mean()
        return (
            f"{list(self.weight.shape)} of {self.weight.dtype}, {density:.0%} kept, "
            f"{len(self.x)} tokens, operands {self.operands}, {self.plan}, seed {self.seed}"
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


def random_codes(
    rows: int, cols: int, tokens: int, number: int = 0, density: float = 0.5, **rest
) -> Case:
    """Codes of int8 times powers of two, which 16 bits hold; both operands of codes by turns."""
    rest.setdefault("operands", CODES + number // 2 % 2)
    case = random_case(rows, cols, tokens, number, density, **rest)
    generator = torch.Generator().manual_seed(number)
    codes = torch.randint(-127, 128, (rows, cols), generator=generator) * (case.weight != 0)
    # By the largest code of a row its scale is found again.
    codes[torch.arange(rows), case.weight.abs().argmax(1)] = 127 * (codes != 0).any(1).long()
    scales = torch.exp2(torch.arange(rows) % 5 - 9.0)[:, None]
    return case.replace(weight=(codes * scales).to(case.weight.dtype))


def require_all(binary: Path, cases: list[Case], **environment: str) -> list[Tensor]:
    """Runs all cases, and holds each against float64."""
    ran = run(binary, cases, **environment)
    assert ran.returncode == 0, ran.stderr.decode()[-4000:]
    found = split(ran.stdout, cases)
    for case, y in zip(cases, found, strict=True):
        judge(case, y)
    return found


def judge(case: Case, y: Tensor) -> None:
    """y is the float64 product, of rounded activations where they are rounded."""
    rounded = case.operands == ROUNDED
    require_exact(replace(case, x=rounded_tokens(case.x, INT8)) if rounded else case, y)
