# SPDX-License-Identifier: Apache-2.0
"""Feeds the emulator drivers of exact_units, and judges what they answer."""

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

from flashsparse_plugin.formats.unstructured.exact_units import ExactUnits
from flashsparse_plugin.packed import PackedWeight, Scheme

PLAN_HEADER = "cuda/exact_units/linear_plan.h"
SHAPES = [  # tokens, units of rows of a warp, warps
    tuple(map(int, found))
    for found in re.findall(
        r"^  X\((\d+), (\d+), (\d+)\)", (KERNELS / PLAN_HEADER).read_text(), re.M
    )
]
SCHEME, SCHEME_24 = ExactUnits().examples()


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
    scheme: Scheme = SCHEME

    @cached_property
    def packed(self) -> PackedWeight:
        return ExactUnits().pack(self.weight, self.scheme)

    def as_24(self) -> Case:
        """The same of what 2:4 keeps of the weight."""
        return replace(self, weight=two_of_four(self.weight), scheme=SCHEME_24)

    def with_seeds(self) -> list[Case]:
        return [replace(self, seed=seed) for seed in SEEDS]

    def encode(self) -> bytes:
        tensors = self.packed.tensors
        header = [*self.weight.shape, len(self.x), int(self.bias is not None), self.seed]
        header += [*self.gpu, *self.plan, *numbers(self.packed)]
        held = [*tensors.values(), F.pad(self.x, (0, -self.weight.shape[1] % 8)).contiguous()]
        held += [] if self.bias is None else [self.bias]
        return b"".join([np.array(header, dtype=np.int64).tobytes(), *map(raw, held)])

    def __str__(self) -> str:
        of = f"{self.scheme}, {list(self.weight.shape)}, {len(self.x)} tokens"
        return f"{of}, {self.plan}, seed {self.seed}"


def numbers(packed: PackedWeight) -> list[int]:
    """Slots of a unit, the number of Kind, and room of the list."""
    slots, listed = (packed.tensors[name] for name in ("slots", "listed"))
    return [slots.shape[2], int(packed.scheme == SCHEME_24), len(listed)]


def two_of_four(weight: Tensor) -> Tensor:
    """What 2:4 keeps of a weight, exceptions first."""
    return ExactUnits().conform(weight, SCHEME_24)


def raw(tensor: Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def random_weight(rows: int, cols: int, number: int = 0, share: float | None = None) -> Tensor:
    """Normal values in rows of different sizes, some zeros; a share of exceptions.

    A quarter of these is too far from its row for a slot. By its number a weight needs few slots,
    some or all: then every second exception is in the first unit.
    """
    generator = torch.Generator().manual_seed(number)
    share = (0.0001, 0.0006, 0.004, 0.004)[number % 4] if share is None else share

    def random() -> Tensor:
        return torch.rand(rows, cols, generator=generator)

    sizes = 2.0 ** (torch.rand(rows, 1, generator=generator) * 24 - 16)
    weight = torch.randn(rows, cols, generator=generator) * sizes
    weight = weight.where(weight.abs() > sizes * 2.0**-11, sizes)
    weight[random() < 0.03] = 0.0
    wild = random() < share
    if share > 0.001:
        wild[:16, :256] |= random()[:16, :256] < share * rows * cols / 4096
    exponents = torch.where(random() < 0.25, random() * 40 - 125, random() * 30 - 45)
    return weight.where(~wild, 2.0**exponents * sizes).to(torch.bfloat16)


def random_case(rows: int, cols: int, tokens: int, number: int = 0, **rest) -> Case:
    """A product of `random_weight`; with and without bias."""
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(tokens, cols, generator=generator).to(torch.bfloat16)
    bias = torch.randn(rows, generator=generator).to(torch.bfloat16) if number % 3 else None
    return Case(random_weight(rows, cols, number), x, bias, **rest)


def answers(binary: Path, cases: list[Case]) -> list[Tensor]:
    ran = run(binary, cases)
    assert ran.returncode == 0, ran.stderr.decode()[-4000:]
    return split(ran.stdout, cases)


def require_all(binary: Path, cases: list[Case]) -> list[Tensor]:
    """Runs all cases, and holds each against float64."""
    found = answers(binary, cases)
    for case, y in zip(cases, found, strict=True):
        require_exact(case, y)
    return found
