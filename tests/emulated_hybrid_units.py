# SPDX-License-Identifier: Apache-2.0
"""Feeds the emulator drivers of hybrid_units, and judges what they answer."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from emulated_linear import require_exact
from emulated_products import run, split
from emulated_sparse_24 import VALUES
from emulation import KERNELS, SEEDS
from torch import Tensor
from torch.nn import functional as F

from flashsparse_plugin.formats.pattern.hybrid_24 import HybridUnits
from flashsparse_plugin.formats.pattern.hybrid_24.layout import keep_dense, read_values
from flashsparse_plugin.formats.values.types import VALUE_TYPES, spread_scales
from flashsparse_plugin.packed import PackedWeight, Scheme

PLAN_HEADER = "cuda/hybrid_units/linear_plan.h"
SHAPES = [  # tokens, units of rows of a warp, warps
    tuple(map(int, found))
    for found in re.findall(
        r"^  X\((\d+), (\d+), (\d+)\)", (KERNELS / PLAN_HEADER).read_text(), re.M
    )
]
FORM = HybridUnits()


class Plan(NamedTuple):
    """The numbers of LinearPlan; a shape of -1 lets the host plan."""

    shape: int = -1
    row_warps: int = 1
    column_warps: int = 1
    weight_stages: int = 2
    x_stages: int = 2
    blocks: int = 1


@dataclass(frozen=True)
class Case:
    """One product."""

    weight: Tensor
    x: Tensor
    bias: Tensor | None = None
    plan: Plan = Plan()
    gpu: tuple[int, int] = (4, 227 << 10)  # multiprocessors, bytes of shared memory
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    rounds: bool = False  # does the kernel round code x scale, as unpacking does?

    @property
    def scheme(self) -> Scheme:
        return FORM.scheme(self.weight.dtype, self.options)

    @cached_property
    def packed(self) -> PackedWeight:
        return FORM.pack(self.weight, self.scheme)

    @cached_property
    def exact(self) -> Tensor:
        """The weight that is multiplied, in float64."""
        if not self.options:
            return self.weight.double()
        stored = FORM.stored(self.packed)
        values, group = VALUE_TYPES[self.options["values"]], self.options.get("group")
        codes = values.numbers(read_values(stored, self.packed.shape, values)).double()
        exact = codes * spread_scales(stored["weight_scale"], codes.shape[1], group).double()
        return exact.to(self.weight.dtype).double() if self.rounds else exact

    def with_seeds(self) -> list[Case]:
        return [replace(self, seed=seed) for seed in SEEDS]

    def encode(self) -> bytes:
        header = [*self.weight.shape, len(self.x), int(self.weight.dtype == torch.bfloat16)]
        header += [int(self.bias is not None), self.seed, *self.gpu, *self.plan]
        held = [F.pad(self.x, (0, -self.weight.shape[1] % 8))]
        held += [] if self.bias is None else [self.bias]
        parts = [np.array(header, dtype=np.int64).tobytes(), encoded(self.packed)]
        return b"".join(parts + list(map(raw, held)))

    def __str__(self) -> str:
        return (
            f"{list(self.weight.shape)} of {self.scheme}, {len(self.x)} tokens, {self.plan}, "
            f"seed {self.seed}"
        )


def raw(tensor: Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def encoded(packed: PackedWeight) -> bytes:
    """What drivers are told of a weight: how its values are stored, and its tensors."""
    options = packed.scheme.values
    told = [VALUES.index(options.get("values", "native")), options.get("group") or 0]
    header = np.array([*told, len(packed.tensors["units"])], dtype=np.int64)
    return header.tobytes() + b"".join(map(raw, packed.tensors.values()))


def random_case(rows: int, cols: int, tokens: int, number: int = 0, **rest) -> Case:
    """Normal values, no unit dense, some or all; both dtypes and bias by turns."""
    generator = torch.Generator().manual_seed(number)
    dtype = torch.bfloat16 if number % 2 else torch.float16

    def normal(*size):
        return torch.randn(*size, generator=generator).to(dtype)

    weight = keep_dense(normal(rows, cols), (0.5, 0.25, 0.75, 0, 1)[number % 5], number)
    bias = normal(rows) if number % 3 else None
    return Case(weight, normal(tokens, cols), bias, **rest)


def answers(binary: Path, cases: list[Case]) -> list[Tensor]:
    ran = run(binary, cases)
    assert ran.returncode == 0, ran.stderr.decode()[-4000:]
    return split(ran.stdout, cases)


def judge(case: Case, y: Tensor) -> None:
    """Holds a result against float64."""
    require_exact(replace(case, weight=case.exact), y)


def require_all(binary: Path, cases: list[Case]) -> list[Tensor]:
    """Runs all cases, and holds each against float64."""
    found = answers(binary, cases)
    for case, y in zip(cases, found, strict=True):
        judge(case, y)
    return found
