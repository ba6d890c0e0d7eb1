# SPDX-License-Identifier: Apache-2.0
"""Feeds the emulator drivers of nm_gather."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from emulated_products import run, scaled_tokens, split, token_scales
from emulation import KERNELS, SEEDS
from torch import Tensor
from torch.nn import functional as F
from weights import sparse_weight

from flashsparse_plugin.formats.pattern.nm_gather import NMGather
from flashsparse_plugin.formats.pattern.nm_vector import NMVector
from flashsparse_plugin.formats.pattern.options import PatternOptions

PLAN = "cuda/nm_gather/linear_plan.h"
LISTS = r"#define FS_NM_\w+\(X\)(?: *\\\n +X\(.*?\))+"  # of shapes, native and of codes
VALUES = ("native", "fp8_e4m3", "int8", "int4")  # in the order of ValueType


def shapes_of(plan: str) -> list[list[tuple[int, ...]]]:
    """The compiled shapes of a plan's header: for native values, codes of 8 bits, and of 4."""
    lists = re.findall(LISTS, (KERNELS / plan).read_text())
    found = r"X\((\d+), (\d+), (\d+), (\d+)\)"
    return [[tuple(map(int, each)) for each in re.findall(found, text)] for text in lists]


def numbers_of(kept: list[list[int]], shapes: list[list[tuple[int, ...]]]) -> set[int]:
    """Shapes of several lists by their numbers in all of them, one after the other."""
    starts = itertools.accumulate(map(len, shapes), initial=0)
    return {first + number for first, own in zip(starts, kept, strict=False) for number in own}


def with_shapes(plan: str, *lists: str) -> dict[str, str]:
    """A plan's header with other shapes, for a driver that is soon compiled."""
    ours = iter(lists)
    text, replaced = re.subn(
        LISTS,
        lambda found: f"{found[0].split('(X)')[0]}(X) {next(ours)}",
        (KERNELS / plan).read_text(),
    )
    assert replaced == len(lists)
    return {plan: text}


SHAPES = shapes_of(PLAN)  # tokens, rows of a unit, stages, warps
# Of int4: n, m and the columns that share a scale; of 5:8 a pair of steps lies in two groups.
GROUPED = [(8, 32, 128), (5, 8, 128), (2, 4, 32), (8, 32, 64)]
HOPPER, SMALL = (132, 227 << 10), (20, 99 << 10)  # multiprocessors, bytes of shared memory


@dataclass
class Case:
    """One product, by a plan or by the host's own for a GPU.

    `plan` is what Plan holds: shape, row_warps, depth_warps, splits, chunk_sections. `exact` is the
    weight in float64, which of codes is not rounded to the dtype of `weight`.
    """

    weight: Tensor
    x: Tensor
    options: dict[str, Any]
    bias: Tensor | None = None
    plan: tuple[int, ...] = (-1, 0, 0, 0, 0)
    gpu: tuple[int, int] = (4, HOPPER[1])
    seed: int = 0
    packed: tuple[Tensor, ...] = field(default=(), repr=False)
    exact: Tensor | None = field(default=None, repr=False)
    x_scales: Tensor | None = None  # float32 [tokens], where x holds codes in 16 bits

    def __post_init__(self) -> None:
        if self.exact is None:
            self.exact = self.weight.double()
        if not self.packed:
            scheme = NMGather().scheme(self.weight.dtype, self.options)
            self.packed = tuple(NMGather().pack(self.weight, scheme).tensors.values())

    def launch(self) -> tuple[int, ...]:
        """What the driver must know of the GPU and the plan."""
        return *self.gpu, *self.plan

    @property
    def value_type(self) -> int:
        """As the drivers read it, with the columns that share a scale."""
        values, group = self.options.get("values", "native"), self.options.get("group", 0)
        return VALUES.index(values) + 8 * group

    def encode(self) -> bytes:
        (rows, cols), tokens = self.weight.shape, len(self.x)
        bfloat16, has_bias = self.weight.dtype == torch.bfloat16, self.bias is not None
        numbers = (*PatternOptions(**self.options).numbers, self.value_type)
        has_scales = self.x_scales is not None
        header = [rows, cols, tokens, *numbers, bfloat16, has_bias, has_scales, self.seed]
        header += self.launch()
        tensors = [*self.packed, F.pad(self.x, (0, -cols % 64)).contiguous()]
        tensors += [each for each in (self.bias, self.x_scales) if each is not None]
        parts = [np.array(header, dtype=np.int64).tobytes()]
        return b"".join(parts + [t.view(torch.uint8).numpy().tobytes() for t in tensors])

    def __str__(self) -> str:
        return (
            f"weight {list(self.weight.shape)} of {self.weight.dtype}, {self.options}, "
            f"{len(self.x)} tokens, plan {self.plan}, GPU {self.gpu}, seed {self.seed}"
        )


def random_case(
    rows: int,
    cols: int,
    tokens: int,
    n: int,
    m: int,
    length: int,
    number: int = 0,
    values: str = "native",
    group: int | None = None,
    **rest,
) -> Case:
    """Normal values, or any codes there are; both dtypes and bias by turns."""
    generator = torch.Generator().manual_seed(number)
    dtype = torch.bfloat16 if number % 2 else torch.float16
    options: dict[str, Any] = {"n": n, "m": m, "vector_length": length}
    kept = PatternOptions(**options).keep_largest(sparse_weight(rows, cols, 0.9, dtype, number))
    x = torch.randn(tokens, cols, generator=generator).to(dtype)
    bias = torch.randn(rows, generator=generator).to(dtype) if number % 3 else None
    if values == "native":
        return Case(kept, x, options, bias, **rest)
    options["values"] = values
    scales = torch.rand(rows, 1 if group is None else -(-cols // group), generator=generator)
    scales = (scales * 2 - 1) / 64  # of either sign
    if group is not None:
        options["group"] = group
        numbers = torch.randint(-8, 8, kept.shape, generator=generator).to(torch.int8)
        codes = numbers.where(kept != 0, 0)
        return code_case(codes, (4 * scales).to(dtype), x, options, bias, **rest)
    numbers = torch.randint(-128, 128, kept.shape, generator=generator).to(torch.int8)
    codes = numbers.where(kept != 0, 0)
    if values == "fp8_e4m3":
        bits = codes.view(torch.uint8)
        codes = bits.where(bits & 0x7F != 0x7F, 0x7E)  # no NaN
    return code_case(codes, scales, x, options, bias, **rest)


def code_case(
    codes: Tensor, scales: Tensor, x: Tensor, options: dict[str, Any], bias: Tensor | None, **rest
) -> Case:
    """A product with codes, int8 or the bits of fp8_e4m3, and scales of rows or groups.

    Unpacked weights of groups are rounded before they are multiplied; scales of rows meet the sums.
    An odd number of tokens have scales of their own, as quantized activations do.
    """
    if len(x) % 2:
        rest.setdefault("x_scales", token_scales(x))
    scheme = NMVector().scheme(x.dtype, options)
    stored = NMVector().pack_codes(codes, scales, scheme)
    packed = NMGather().arrange(stored.tensors, NMGather().scheme(x.dtype, options), stored.shape)
    numbers = codes.view(torch.float8_e4m3fn) if codes.dtype == torch.uint8 else codes
    weight = stored.unpack()
    exact = weight.double() if "group" in options else numbers.double() * scales.double()
    return Case(
        weight, x, options, bias, packed=tuple(packed.tensors.values()), exact=exact, **rest
    )


def answers(binary: Path, cases: list[Case], **environment: str) -> list[Tensor]:
    ran = run(binary, cases, **environment)
    assert ran.returncode == 0, ran.stderr.decode()[-4000:]
    return split(ran.stdout, cases)


def require_exact(case: Case, y: Tensor) -> None:
    """y is the float64 product up to sums in float32 and one rounding."""
    assert case.exact is not None
    x = scaled_tokens(case.x, case.x_scales)
    exact, magnitude = x @ case.exact.T, x.abs() @ case.exact.abs().T
    if case.bias is not None:
        exact += case.bias.double()
        magnitude += case.bias.double().abs()
    bound = (case.weight.shape[1] + 8) * 2**-24 * magnitude
    bound += exact.abs() * torch.finfo(y.dtype).eps / 2 + torch.finfo(y.dtype).tiny
    wrong = ~((y.double() - exact).abs() <= 1.01 * bound)
    assert not wrong.any(), f"{case}: {int(wrong.sum())} of {wrong.numel()} elements are wrong"


def with_seeds(cases: list[Case]) -> list[list[Case]]:
    return [[replace(case, seed=seed) for case in cases] for seed in SEEDS]
