# SPDX-License-Identifier: Apache-2.0
"""Feeds the emulator driver of sparse_24's linear kernel, and judges what it answers."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from emulated_linear import require_exact
from emulated_products import run, scaled_tokens, split
from emulation import KERNELS, SEEDS
from torch import Tensor
from torch.nn import functional as F

from flashsparse_plugin.formats.pattern.options import PatternOptions
from flashsparse_plugin.formats.pattern.sparse_24 import Sparse24
from flashsparse_plugin.formats.values.activations import quantise_tokens, rounded_tokens
from flashsparse_plugin.formats.values.types import VALUE_TYPES, spread_scales
from flashsparse_plugin.packed import PackedWeight

HEADER = KERNELS / "cuda" / "sparse_24" / "linear_plan.h"
SHAPES = [  # tokens, units of rows of a warp, warps
    tuple(map(int, found))
    for found in re.findall(r"^  X\((\d+), (\d+), (\d+)\)", HEADER.read_text(), re.M)
]
TWO_OF_FOUR = PatternOptions(n=2, m=4)
VALUES = ("native", "fp8_e4m3", "int8", "int4")  # in the order of ValueType
CODES = [(values, None) for values in VALUES[1:]] + [("int4", group) for group in (32, 64, 128)]
CODES += [("fp8_e4m3", 128), ("int8", 32)]  # of 8 bits: those that drivers have


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
    options: PatternOptions = TWO_OF_FOUR
    rounds: bool = False  # does the kernel round code x scale, as unpacking does?
    x_scales: Tensor | None = None  # float32 [tokens], where x holds codes in 16 bits

    @cached_property
    def packed(self) -> PackedWeight:
        scheme = Sparse24().scheme(self.weight.dtype, self.options.model_dump())
        return Sparse24().pack(self.weight, scheme)

    @cached_property
    def exact(self) -> Tensor:
        """The weight that is multiplied, in float64."""
        if self.options.values == "native":
            return self.weight.double()
        codes, scales = Sparse24().codes(self.packed)
        scales = spread_scales(scales, codes.shape[1], self.options.group)
        exact = codes.double() * scales.double()
        return exact.to(self.weight.dtype).double() if self.rounds else exact

    def with_seeds(self) -> list[Case]:
        return [replace(self, seed=seed) for seed in SEEDS]

    def encode(self) -> bytes:
        (rows, cols), bfloat16 = self.weight.shape, self.weight.dtype == torch.bfloat16
        header = [rows, cols, len(self.x), int(bfloat16), int(self.bias is not None), self.seed]
        header += [*self.gpu, *self.plan, VALUES.index(self.options.values)]
        header += [self.options.group or 0, int(self.x_scales is not None)]
        tensors = [*self.packed.tensors.values(), F.pad(self.x, (0, -cols % 8)).contiguous()]
        tensors += [each for each in (self.bias, self.x_scales) if each is not None]
        parts = [np.array(header, dtype=np.int64).tobytes()]
        return b"".join(parts + [t.view(torch.uint8).numpy().tobytes() for t in tensors])

    def __str__(self) -> str:
        return (
            f"{list(self.weight.shape)} of {self.weight.dtype}, {self.options.title}, "
            f"{len(self.x)} tokens, {self.plan}, seed {self.seed}"
        )


def random_case(rows: int, cols: int, tokens: int, number: int = 0, **rest) -> Case:
    """Normal values in 2:4; both dtypes and bias by turns."""
    generator = torch.Generator().manual_seed(number)
    dtype = torch.bfloat16 if number % 2 else torch.float16

    def normal(*size):
        return torch.randn(*size, generator=generator).to(dtype)

    weight = TWO_OF_FOUR.keep_largest(normal(rows, cols))
    bias = normal(rows) if number % 3 else None
    return Case(weight, normal(tokens, cols), bias, **rest)


def require_all(binary: Path, cases: list[Case]) -> list[Tensor]:
    """Runs all cases, and holds each against float64."""
    ran = run(binary, cases)
    assert ran.returncode == 0, ran.stderr.decode()[-4000:]
    found = split(ran.stdout, cases)
    for case, y in zip(cases, found, strict=True):
        judge(case, y)
    return found


def require_rounded(binary: Path, cases: list[Case]) -> list[Tensor]:
    """Runs all cases, and holds each against float64 of codes x scales on both sides."""
    ran = run(binary, cases)
    assert ran.returncode == 0, ran.stderr.decode()[-4000:]
    found = split(ran.stdout, cases)
    for case, y in zip(cases, found, strict=True):
        values = VALUE_TYPES[case.options.values]
        require_exact(replace(case, x=rounded_tokens(case.x, values), weight=case.exact), y)
    return found


def integer_product(case: Case) -> tuple[Tensor, Tensor]:
    """The sums of int8 by int8, and y as it must be to the last bit, without bias."""
    codes, scales = Sparse24().codes(case.packed)
    x, x_scales = quantise_tokens(case.x, VALUE_TYPES["int8"])
    sums = x.long() @ codes.long().T
    return sums, (sums.float() * x_scales * scales.T).to(case.x.dtype)


def judge(case: Case, y: Tensor) -> None:
    """Holds a result against float64."""
    require_exact(replace(case, x=scaled_tokens(case.x, case.x_scales), weight=case.exact), y)
