# SPDX-License-Identifier: Apache-2.0
"""The ops of dense layers: the layers to measure, the kernels' configurations, and their checks.

A product is compared with float64 as in `_check`, in each configuration that the kernels are
compiled in. Some weights are slices of larger tensors full of NaN, which reveal a load beyond a
row.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from _check import DTYPES, Checker, errors_of
from _launches import Launch
from _layers import Layer, model_layers
from torch import Tensor

from flashsparse_plugin.dataflow import DENSE
from flashsparse_plugin.dataflow.tuner import random_weight
from flashsparse_plugin.ops import ops
from flashsparse_plugin.ops.plan import compiled_shapes

OPS = {name: DENSE[name].most_tokens for name in ("gemv", "flat_gemm")}  # the most tokens of each

# FlashDecoding++, Figure 9, and the models of its evaluation as vLLM merges their layers and pads
# their heads.
LAYERS = [
    *model_layers(
        "Llama2-7B", qkv=(12288, 4096), o=(4096, 4096), ffn1=(11008, 4096), ffn2=(4096, 11008),
        gate_up=(22016, 4096), head=(32000, 4096),
    ),
    *model_layers("OPT-6.7B", fc1=(16384, 4096), fc2=(4096, 16384), head=(50304, 4096)),
    *model_layers(
        "ChatGLM2-6B", qkv=(4608, 4096), ffn1=(27392, 4096), ffn2=(4096, 13696), head=(65024, 4096),
    ),
    *model_layers(
        "Llama-3-8B", qkv=(6144, 4096), gate_up=(28672, 4096), down=(4096, 14336),
        head=(128256, 4096),
    ),
]  # fmt: skip
TOKENS = (1, 2, 3, 4, 8, 16, 24, 32, 48, 64)


class Configuration(NamedTuple):
    """One kernel of one op, and how it cuts the work: the numbers of its launch."""

    op: str
    tokens: int
    arguments: tuple[int, ...]
    aligned: bool

    def __str__(self) -> str:
        return f"{self.op}{self.arguments} of {self.tokens} tokens"


def configurations(shape: tuple[int, int], most_split: int = 8) -> Iterator[Configuration]:
    """Every compiled kernel; those of flat_gemm with K cut into 1, 2, 3, ... parts."""
    for op in ("flat_gemm", "gemv"):
        shapes = compiled_shapes(f"dense.{op}")
        for index, own in enumerate(shapes):
            aligned = index < len(shapes) - 1  # the last takes weights of any alignment
            if op == "gemv":
                yield Configuration(op, own["tokens"], (index,), aligned)
                continue
            rows, warps_n, warps_k = own["row_blocks"], own["warps_n"], own["warps_k"]
            # A part for every warp along K, and a counter for every block of rows that is cut.
            parts = max(-(-shape[1] // 64) // warps_k, 1)
            most = min(parts, most_split) if -(-shape[0] // (16 * rows * warps_n)) <= 4096 else 1
            for split in range(1, most + 1):
                yield Configuration(op, own["tokens"], (index, split), aligned)


@dataclass(frozen=True)
class Case:
    """A weight, and the numbers of tokens to multiply it with.

    Its rows are `gap` elements further apart than necessary, and the first one is `offset` elements
    from the start of its allocation.
    """

    shape: tuple[int, int]
    dtype: torch.dtype
    tokens: tuple[int, ...]
    offset: int = 0
    gap: int = 0

    @property
    def aligned(self) -> bool:
        stride = self.shape[1] + self.gap
        return self.offset % 8 == 0 and stride % 8 == 0 and self.shape[1] % 8 == 0

    def __str__(self) -> str:
        text = f"{self.shape[0]}x{self.shape[1]}, {self.dtype}".replace("torch.", "")
        apart = f", offset {self.offset}, gap {self.gap}" if self.offset or self.gap else ""
        return text + apart


def cases() -> Iterator[Case]:
    """All cases, the most informative first."""
    for dtype in DTYPES:
        for shape in ((4096, 4096), (4096, 11008), (300, 4096), (130, 1000)):
            yield Case(shape, dtype, (1, 3, 8, 13, 16, 30, 64))
        yield Case((300, 1016), dtype, (1, 8, 17, 64), gap=72)
        for offset, gap in ((1, 0), (0, 3), (4, 4), (8, 8)):
            yield Case((200, 520), dtype, (2, 7, 16, 40), offset, gap)
    for dtype, rows in itertools.product(DTYPES, (1, 7, 64, 65, 129)):
        for cols in (1, 7, 8, 31, 32, 33, 40, 255, 256, 257, 264, 600):
            yield Case((rows, cols), dtype, (1, 2, 5, 8, 33))
    yield Case((40000, 64), torch.float16, (1, 8, 64))
    yield Case((64, 40000), torch.bfloat16, (1, 8, 64))
    yield Case((270000, 72), torch.bfloat16, (1, 16))  # more row blocks than counters


def small_cases() -> Iterator[Case]:
    """A few cases, for tools that slow every access down a hundredfold, and for a CPU."""
    for dtype in DTYPES:
        yield Case((129, 200), dtype, (1, 8, 17))
        yield Case((70, 1000), dtype, (3, 64))
        yield Case((30, 77), dtype, (2, 9), offset=3, gap=5)


class DenseChecker(Checker):
    """Checks the ops of dense layers."""

    def _check(self, case: Case, number: int) -> None:
        weight = self._weight(case, number)
        exact = weight.to(self._reference).double().T
        for index, tokens in enumerate(case.tokens):
            x = self._random((tokens, case.shape[1]), case.dtype)
            if (number + index) % 4 == 3:  # views of larger tensors start anywhere
                x = self._random((x.numel() + 1,), case.dtype)[1:].view_as(x)
            bias = self._random(case.shape[:1], case.dtype) if (number + index) % 2 else None
            for name, most in OPS.items():
                if tokens > most:
                    continue
                op = partial(getattr(ops, name), weight=weight, bias=bias)
                where = f"{case}, {tokens} tokens, {name}"
                y = self._check_product(op, x, exact, bias, where)
                if self._graphs and index == number % len(case.tokens):
                    self._check_stream(op, x, y, where)
                    self._check_graph(op, x, y, where)
            for plan in configurations(case.shape) if self._device.type == "cuda" else ():
                # The kernel for any alignment takes aligned weights as well.
                if tokens > plan.tokens or (plan.aligned and not case.aligned):
                    continue
                launch = Launch(f"dense.{plan.op}", plan.arguments)
                op = launch.of(partial(getattr(ops, plan.op), weight=weight, bias=bias))
                where = f"{case}, {tokens} tokens, {plan}"
                self._check_product(op, x, exact, bias, where)

    def _check_product(
        self,
        op: Callable[[Tensor], Tensor],
        x: Tensor,
        exact: Tensor,
        bias: Tensor | None,
        where: str,
    ) -> Tensor:
        """Two calls: right, in the norm and in each element, and the same bit for bit."""
        if self._device.type == "cuda":  # the memory that the allocator hands out next
            torch.full((8 << 20,), torch.nan, device=self._device)
        y = op(x)
        same = torch.equal(y, op(x))
        norm, element = errors_of(y, x, exact, bias, self._reference)
        self._judge(float(norm), float(element), where)
        self.tally.add("the same again", same, where)
        return y

    def _weight(self, case: Case, number: int) -> Tensor:
        rows, cols = case.shape
        stride = cols + case.gap
        around = torch.full((case.offset + rows * stride,), torch.nan, dtype=case.dtype)
        around = around.to(self._device)
        weight = around[case.offset :].view(rows, stride)[:, :cols]
        return weight.copy_(random_weight(case.shape, 1.0, case.dtype, seed=number))


def layers_once() -> list[Layer]:
    """LAYERS, each shape once."""
    return list({layer.shape: layer for layer in reversed(LAYERS)}.values())[::-1]
