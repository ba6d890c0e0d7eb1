# SPDX-License-Identifier: Apache-2.0
"""Feeds the emulator driver of sparse_24's experts, and judges what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from emulated_products import run
from emulation import SEEDS
from torch import Tensor

from flashsparse_plugin.formats.pattern.options import PatternOptions
from flashsparse_plugin.formats.pattern.sparse_24 import Sparse24
from flashsparse_plugin.formats.values.types import spread_scales
from flashsparse_plugin.packed import PackedWeight

VALUES = ("native", "fp8_e4m3", "int8", "int4")  # in the order of ValueType
TWO_OF_FOUR = PatternOptions(n=2, m=4)
SILU = (1.0, 0.0, float("inf"))
GPT_OSS = (1.702, 1.0, 0.5)  # with a limit that small values reach


class WgmmaPlan(NamedTuple):
    """The numbers of ExpertsWgmmaPlan; a shape of -1 lets the host plan."""

    down: int = 1
    stages: int = 4
    clusters: int = 3
    unused: int = 0
    shape: int = -1


class Plan(NamedTuple):
    """The numbers of ExpertsPlan; a shape of -1 lets the host plan."""

    row_warps: int = 1
    weight_stages: int = 2
    x_stages: int = 2
    blocks: int = 3
    shape: int = -1


@dataclass(frozen=True)
class Experts:
    """The weights of a mixture, before they are packed.

    Attributes:
        gate: [experts, intermediate, hidden], as `up`.
        down: [experts, hidden, intermediate].
        biases: [experts, 2 * intermediate], gate's before up's, and [experts, hidden].
        rounded_groups: Groups of columns whose kernel rounds code x scale, as unpacking does.
    """

    gate: Tensor
    up: Tensor
    down: Tensor
    biases: tuple[Tensor, Tensor] | None
    options: PatternOptions
    rounded_groups: tuple[int, ...] = (32, 64)

    @cached_property
    def packed(self) -> tuple[PackedWeight, PackedWeight]:
        """All experts as one tall weight each; blocks of 16 rows of gate and of up alternate."""
        both = torch.stack([_by_sixteen(self.gate), _by_sixteen(self.up)], 2)
        talls = both.flatten(0, 3), _by_sixteen(self.down).flatten(0, 2)
        scheme = Sparse24().scheme(self.gate.dtype, self.options.model_dump())
        packed = [Sparse24().pack(tall.contiguous(), scheme) for tall in talls]
        return packed[0], packed[1]

    @cached_property
    def exact(self) -> tuple[Tensor, Tensor, Tensor]:
        """gate, up and down as they are multiplied, in float64."""
        experts, intermediate, hidden = self.gate.shape
        both, down = (self._multiplied(packed) for packed in self.packed)
        both = both.view(experts, -1, 2, 16, hidden)
        gate, up = (both[:, :, i].flatten(1, 2)[:, :intermediate] for i in (0, 1))
        return gate, up, down.view(experts, -1, intermediate)[:, :hidden]

    def _multiplied(self, packed: PackedWeight) -> Tensor:
        if self.options.values == "native":
            return packed.unpack().double()
        codes, scales = Sparse24().codes(packed)
        scales = spread_scales(scales, codes.shape[1], self.options.group)
        exact = codes.double() * scales.double()
        rounds = self.options.group in self.rounded_groups
        return exact.to(packed.dtype).double() if rounds else exact


def _by_sixteen(weight: Tensor) -> Tensor:
    """[experts, rows, columns] as [experts, rows / 16, 16, columns], filled up with zeros."""
    padded = torch.nn.functional.pad(weight, (0, 0, 0, -weight.shape[1] % 16))
    return padded.view(len(weight), -1, 16, weight.shape[2])


def random_experts(
    experts: int,
    hidden: int,
    intermediate: int,
    dtype: torch.dtype = torch.bfloat16,
    options: PatternOptions = TWO_OF_FOUR,
    has_bias: bool = False,
) -> Experts:
    generator = torch.Generator().manual_seed(hidden + experts)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator)

    def pruned(rows: int, columns: int) -> Tensor:
        weight = normal(experts * rows, columns) / columns**0.5
        return TWO_OF_FOUR.keep_largest(weight.to(dtype)).view(experts, rows, columns)

    up, gate = pruned(intermediate, hidden), pruned(intermediate, hidden)
    biases = normal(experts, 2 * intermediate).to(dtype), normal(experts, hidden).to(dtype)
    down = pruned(hidden, intermediate)
    return Experts(gate, up, down, biases if has_bias else None, options)


@dataclass(frozen=True)
class Case:
    """A batch of tokens through the experts."""

    experts: Experts
    x: Tensor
    ids: Tensor  # int32 or int64 [tokens, top_k]
    weights: Tensor  # float32 [tokens, top_k]
    map: Tensor | None = None  # int32 [known]
    activation: tuple[float, float, float] = SILU
    weights_on_input: bool = False
    plans: tuple[Plan | WgmmaPlan, Plan | WgmmaPlan] = (Plan(), Plan())
    seed: int = 0
    gpu: tuple[int, int] = (3, 227 << 10)  # multiprocessors, bytes of shared memory

    @property
    def slots(self) -> int:
        return self.ids.numel()

    def order_lengths(self, block_slots: int) -> tuple[int, int, int]:
        """Of order.slots, order.experts and order.blocks."""
        padded = self.slots + len(self.experts.gate) * (block_slots - 1)
        return padded, min(self.slots, padded // block_slots), 1

    def with_seeds(self) -> list[Case]:
        return [replace(self, seed=seed) for seed in SEEDS]

    def encode(self) -> bytes:
        experts, (count, intermediate, hidden) = self.experts, self.experts.gate.shape
        known = count if self.map is None else len(self.map)
        header = [*self.ids.shape, count, known, int(self.map is not None), hidden, intermediate]
        header += [int(self.x.dtype == torch.bfloat16), self.seed]
        header += [VALUES.index(experts.options.values), experts.options.group or 0]
        header += [self.ids.element_size() // 4, int(experts.biases is not None)]
        header += [int(self.weights_on_input), *self.gpu, *self.plans[0], *self.plans[1]]
        numbers = torch.tensor(self.activation, dtype=torch.float32)
        tensors = [numbers, self.ids, *([] if self.map is None else [self.map]), self.weights]
        for packed, bias in zip(experts.packed, experts.biases or (None, None), strict=True):
            tensors += [*packed.tensors.values(), *([] if bias is None else [bias])]
        tensors.append(torch.nn.functional.pad(self.x, (0, -hidden % 8)))
        parts = [np.array(header, dtype=np.int64).tobytes()]
        return b"".join(
            parts + [t.contiguous().view(torch.uint8).numpy().tobytes() for t in tensors]
        )

    def local(self) -> list[list[int]]:
        """The local expert of each slot, or -1."""

        def one(expert: int) -> int:
            known = len(self.experts.gate) if self.map is None else len(self.map)
            if not 0 <= expert < known:
                return -1
            return expert if self.map is None else int(self.map[expert])

        return [[one(expert) for expert in token] for token in self.ids.tolist()]


def routed(experts: Experts, ids: Tensor, number: int = 0, **rest: Any) -> Case:
    """A case of random x and weights; `rest`: other fields of it."""
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(len(ids), experts.gate.shape[2], generator=generator)
    weights = torch.rand(ids.shape, generator=generator) + 0.1
    return Case(experts, x.to(experts.gate.dtype), ids, weights, **rest)


def uniform(tokens: int, top_k: int, experts: int, number: int = 0) -> Tensor:
    """int32 [tokens, top_k]: distinct experts of each token, by chance."""
    generator = torch.Generator().manual_seed(number)
    chosen = [torch.randperm(experts, generator=generator)[:top_k] for _ in range(tokens)]
    return torch.stack(chosen).int()


class Answer(NamedTuple):
    block_slots: int
    slots: list[int]
    experts: list[int]
    blocks: int
    y: Tensor


def split(written: bytes, cases: Sequence[Case]) -> list[Answer]:
    answers, at = [], 0
    for case in cases:
        (block_slots,), numbers = np.frombuffer(written, np.int32, 1, at).tolist(), []
        at += 4
        for length in case.order_lengths(block_slots):
            numbers.append(np.frombuffer(written, np.int32, length, at).tolist())
            at += 4 * length
        bits = np.frombuffer(written, np.int16, case.x.numel(), at).copy()
        at += 2 * case.x.numel()
        y = torch.from_numpy(bits).view(case.x.dtype).view(case.x.shape)
        answers.append(Answer(block_slots, numbers[0], numbers[1], numbers[2][0], y))
    assert at == len(written)
    return answers


def judge(case: Case, answer: Answer) -> None:
    judge_order(case, answer)
    judge_y(case, answer.y)


def judge_order(case: Case, answer: Answer) -> None:
    """Slots by expert, each expert's in their order, padded to blocks; nothing after the last."""
    locals_, slots, experts = [each for token in case.local() for each in token], [], []
    for expert in range(len(case.experts.gate)):
        own = [slot for slot, each in enumerate(locals_) if each == expert]
        own += [case.slots] * (-len(own) % answer.block_slots)
        slots += own
        experts += [expert] * (len(own) // answer.block_slots)
    lengths = case.order_lengths(answer.block_slots)
    assert answer.blocks == len(experts)
    assert answer.experts == experts + [-1] * (lengths[1] - len(experts))
    assert answer.slots == slots + [case.slots] * (lengths[0] - len(slots))


def judge_y(case: Case, y: Tensor) -> None:
    """Holds y against a loop over tokens and experts in float64."""
    gates, ups, downs = case.experts.exact
    alpha, offset, limit = case.activation
    exact, bound = torch.zeros(y.shape).double(), torch.zeros(y.shape).double()
    rounding = torch.finfo(y.dtype).eps / 2
    sums = [(columns + 8) * 2**-24 for columns in (gates.shape[2], downs.shape[2])]
    for token, chosen in enumerate(case.local()):
        x = case.x[token].double()
        for expert, weight in zip(chosen, case.weights[token].double(), strict=True):
            if expert < 0:
                continue
            first = x * weight if case.weights_on_input else x
            gate, up = gates[expert] @ first, ups[expert] @ first
            error = sums[0] * torch.maximum(
                gates[expert].abs() @ first.abs(), ups[expert].abs() @ first.abs()
            )
            last_bias = 0
            if case.experts.biases is not None:
                first_bias, last_bias = (bias[expert].double() for bias in case.experts.biases)
                gate, up = gate + first_bias[: len(gate)], up + first_bias[len(gate) :]
                error += sums[0] * first_bias.abs().max()
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
            h = gate * torch.sigmoid(alpha * gate) * (up + offset)
            # The slope of the first two factors is at most 1.1, they themselves |gate|.
            error = 1.2 * error * ((up + offset).abs() + gate.abs()) + (rounding + 2**-20) * h.abs()
            product = downs[expert] @ h + last_bias
            error = downs[expert].abs() @ (error + sums[1] * h.abs()) + 2**-23 * product.abs()
            if not case.weights_on_input:
                product, error = product * weight, error * weight.abs()
            exact[token] += product
            bound[token] += error + rounding * product.abs() + 2**-24
    bound = 1.05 * (bound + rounding * exact.abs()) + torch.finfo(y.dtype).tiny
    wrong = ~((y.double() - exact).abs() <= bound)
    assert not wrong.any(), f"{int(wrong.sum())} of {wrong.numel()} elements of y are wrong"


def require_all(binary: Path, cases: Sequence[Case]) -> list[Answer]:
    """Runs all cases, and judges each."""
    ran = run(binary, cases)
    assert ran.returncode == 0, ran.stderr.decode()[-4000:]
    answers = split(ran.stdout, cases)
    for case, answer in zip(cases, answers, strict=True):
        judge(case, answer)
    return answers


def require_same_bits(binary: Path, case: Case) -> None:
    """Judges a case in each order of threads, and compares."""
    found = require_all(binary, case.with_seeds())
    assert all(torch.equal(each.y, found[0].y) for each in found)


def require_nan_stays(binary: Path, case: Case) -> None:
    """NaN in a token of x is in that token's y, all of it, and in no other."""
    x = case.x.clone()
    x[4] = torch.nan
    (answer,) = split(run(binary, [replace(case, x=x)]).stdout, [case])
    others = torch.arange(len(x)) != 4
    assert torch.isnan(answer.y[4]).all() and torch.isfinite(answer.y[others]).all()
