# SPDX-License-Identifier: Apache-2.0
"""Exact bf16 values in 12 bits: are products right, and how fast are they after another kernel?

    python benchmarks/gpu/lossless.py --minutes 9
    python benchmarks/gpu/lossless.py --check              right, and nothing timed
    python benchmarks/gpu/lossless.py --launches 12        also other launches than the planned one
    python benchmarks/gpu/lossless.py --kinds "lossless;2:4 e4m7;2:4;2:4, fp8_e4m3"

First every kernel is held against float64: odd shapes, all 65,536 patterns of bits by unit
vectors, exceptions clustered in one block, far exponents, subnormal numbers, infinities and NaN.
If something is wrong, nothing is timed. Then layers are timed as far.py times them: cold weights,
CUDA graphs whose launches alternate between two tensors x (us), and of one x (near_us), beside the
fastest cuBLAS bf16 of either layout and fp8, and any kind that far.py times. Packing is timed once
a layer (pack_gb_s of the dense weight).
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from typing import Any

import far
import torch
from _baselines import activations
from _check import Checker, Exact
from _device import Budget, _formats, _measure, cold_bytes
from _launches import gpu_of, launches_of
from _layers import Layer, layer
from _program import check_layers, device_of, measure, numbers, parser
from torch import Tensor

import flashsparse_plugin as fs
from flashsparse_plugin.dataflow.tuner import random_weight
from flashsparse_plugin.evaluation.dense_products import fp8
from flashsparse_plugin.formats import find_form
from flashsparse_plugin.ops.plan import choose_kernel
from flashsparse_plugin.packed import Scheme
from flashsparse_plugin.plan import FEW, MANY

Row = dict[str, Any]
FORMAT = "exact_units"
SCHEMES = dict(zip(("lossless", "2:4 e4m7"), find_form(FORMAT).examples(), strict=True))
SHAPES = (
    *("4096x4096", "6144x4096", "4096x14336", "28672x4096", "28672x8192", "8192x28672"),
    *("57344x8192", "128256x4096"),
)
ODD = ((1, 1), (16, 256), (33, 700), (129, 4160), (1000, 1104), (1001, 1003), (300, 33))
LARGE = ((4096, 4096), (28672, 4096), (4096, 14336))
DECODING, PROMPTS = [1, 8, 16, 32, 64], [512, 1024, 2048]  # that are timed
TOKENS = (1, 3, 8, 9, 16, 17, 31, 32, 33, 50, 64, 65, 128, 200, 1000)


def conformed(weight: Tensor, scheme: Scheme) -> Tensor:
    """What a scheme keeps of a weight, whose zeros are +0 where it keeps no others."""
    kept = scheme.format.conform(weight, scheme)
    return kept if kept is weight else kept.where(kept != 0, 0.0)


def wild_weight(shape: tuple[int, int], seed: int, device: torch.device) -> Tensor:
    """Rows of very different sizes, with zeros and exceptions, far ones, too; some in clusters."""
    generator = torch.Generator(device).manual_seed(seed)

    def random(*size: int) -> Tensor:
        return torch.rand(*size, generator=generator, device=device)

    scales = 2.0 ** (random(shape[0], 1) * 40 - 30)
    weight = torch.randn(shape, generator=generator, device=device) * scales
    weight[random(*shape) < 0.05] = 0.0
    wild = random(*shape) < 0.002
    wild[:16, : shape[1] // 8 + 1] |= random(*wild[:16, : shape[1] // 8 + 1].shape) < 0.05
    exponents = torch.randint(-120, 60, shape, generator=generator, device=device)
    return weight.where(~wild, 2.0 ** exponents.float() * (random(*shape) + 0.5)).to(torch.bfloat16)


class Lossless(Checker):
    """Holds products, and unpacking, against float64 and the weight itself."""

    def _check(self, case: tuple[int, int], number: int) -> None:
        for scheme in SCHEMES.values():
            self._scheme = scheme
            self._check_scheme(case, number)

    def _packed(self, weight: Tensor) -> fs.PackedWeight:
        return self._scheme.format.pack(weight, self._scheme)

    def _check_scheme(self, case: tuple[int, int], number: int) -> None:
        weight = conformed(wild_weight(case, number, self._device), self._scheme)
        packed = self._packed(weight)
        self._unpacks(packed, weight, f"{case}")
        exact = weight.to(self._reference).double().T
        bias = self._random((case[0],), weight.dtype) if number % 2 else None
        for tokens in TOKENS:
            x = self._random((tokens, case[1]), weight.dtype)
            self._product(packed, x, exact, bias, f"{self._scheme}, {case}, {tokens} tokens")
        x = self._random((5, case[1]))
        self._product(packed, x, exact, None, f"{case}, float32 x")
        if number < len(ODD):
            self._patterns(case, number)
            self._not_finite(case, number)

    def _product(
        self, packed: fs.PackedWeight, x: Tensor, exact: Tensor, bias: Tensor | None, where: str
    ) -> None:
        y, again = packed.linear(x, bias), packed.linear(x, bias)
        errors = Exact(x, exact, bias, self._reference).errors(y)
        self._judge(*map(float, errors), where)
        self.tally.add("the same again", torch.equal(y, again), where)
        if self._graphs and x.dtype == torch.bfloat16:
            self._check_graph(lambda x: packed.linear(x, bias), x, y, where)

    def _unpacks(self, packed: fs.PackedWeight, weight: Tensor, where: str) -> None:
        same = torch.equal(packed.unpack().view(torch.int16), weight.view(torch.int16))
        self.tally.add("unpacked bit for bit", same, where)

    def _patterns(self, case: tuple[int, int], seed: int) -> None:
        """Unit vectors give every bit of a weight whose bits are random, but for NaN's."""
        generator = torch.Generator(self._device).manual_seed(seed)
        bits = torch.randperm(1 << 16, generator=generator, device=self._device)
        bits = bits.repeat(-(-case[0] * case[1] // len(bits)))[: case[0] * case[1]]
        weight = (bits - (1 << 15)).to(torch.int16).view(torch.bfloat16).view(case)
        weight = conformed(weight, self._scheme)
        self._unpacks(self._packed(weight), weight, f"{case}, any bits")
        finite = torch.where(weight.isfinite(), weight, 0.0)
        packed = self._packed(finite)
        units = torch.eye(case[1], dtype=weight.dtype, device=self._device)
        for tokens in (8, 16, 32, 64):
            found = [packed.linear(part) for part in units[:512].split(tokens)]
            same = torch.equal(torch.cat(found), finite.T[:512])
            self.tally.add("unit vectors", same, f"{case}, {tokens} tokens")

    def _not_finite(self, case: tuple[int, int], seed: int) -> None:
        """Infinities and NaN of a weight are where dense products have them."""
        weight = random_weight(case, 1.0, torch.bfloat16, self._device, seed=seed)
        generator = torch.Generator(self._device).manual_seed(seed)
        for value in (torch.inf, -torch.inf, torch.nan):
            at = torch.randint(weight.numel(), (2,), generator=generator, device=self._device)
            weight.view(-1)[at] = value
        weight = conformed(weight, self._scheme)
        packed, exact = self._packed(weight), weight.double().T
        for tokens in (1, 16, 32, 64):
            x = self._random((tokens, case[1]), weight.dtype)
            y, right = packed.linear(x), (x.double() @ exact).to(weight.dtype)
            wild = ~right.isfinite()
            same = torch.equal(wild, ~y.isfinite()) and torch.equal(
                y[wild].nan_to_num(0.0), right[wild].nan_to_num(0.0)
            )
            self.tally.add("infinities and NaN in place", same, f"{case}, {tokens} tokens")


def all_cases() -> Iterator[tuple[int, int]]:
    yield from (*ODD, *LARGE)


def small_cases() -> Iterator[tuple[int, int]]:
    yield from ODD[:3]


class Speed(far.Far):
    """Measures layer by layer; `rows` holds everything measured so far."""

    def _rivals(self, each: Layer, weight: Tensor, dense: dict[int, float]) -> None:
        if self._device.type == "cuda":
            self._rival(each, fp8(weight), dense)

    def _kind(self, each: Layer, name: str, dense: dict[int, float]) -> None:
        if name not in SCHEMES:
            return super()._kind(each, name, dense)
        scheme = SCHEMES[name]
        weight = random_weight(each.shape, 1.0, torch.bfloat16, self._device)
        weight = conformed(weight, scheme)
        packed = scheme.format.pack(weight, scheme)
        packing = self._stopwatch.ungraphed(lambda: scheme.format.pack(weight, scheme)).microseconds
        copies = _measure.Rotation(
            lambda: _formats.copy_of(packed), packed.nbytes, cold_bytes(self._device)
        )
        about: Row = {"bits": round(packed.nbytes * 8 / weight.numel(), 3)}
        about |= {"name": name, "pack_gb_s": round(weight.nbytes / packing / 1e3, 1)}
        with torch.inference_mode():
            for tokens in self._arguments.tokens:
                x = activations(tokens, each, torch.bfloat16, self._device)
                self._right(packed, x, weight, f"{each}, {tokens} tokens")
                self._launches(each, packed, copies, x, dense, about)

    def _right(self, packed: fs.PackedWeight, x: Tensor, weight: Tensor, point: str) -> None:
        y, right = packed.linear(x).double(), torch.empty(len(x), len(weight), dtype=torch.float64)
        for rows in range(0, len(weight), 1 << 14):  # float64 takes memory
            part = slice(rows, rows + (1 << 14))
            right[:, part] = (x.double() @ weight[part].double().T).cpu()
        error = float((y.cpu() - right).norm() / right.norm())
        self._judge(error, far.TOLERANCE, point)

    def _launches(
        self,
        shape: Layer,
        packed: fs.PackedWeight,
        copies: _measure.Rotation,
        x: Tensor,
        dense: dict[int, float],
        about: Row,
    ) -> None:
        """The planned launch by the call that users make; then others, for the planner."""
        pair = itertools.cycle((x, x.clone()))
        calls = [("planned", lambda x: copies().linear(x))]
        gpu = gpu_of(self._device)
        product = packed.format.product(packed.scheme, packed.shape, packed.nbytes, len(x), gpu)
        planned = choose_kernel(FORMAT, product, gpu)
        about = about | {"kernel": planned}
        own = about.pop("name")
        cost = packed.scheme, packed.shape, packed.nbytes, len(x), gpu
        about |= {"expected_us": round(packed.format.seconds(planned, *cost) * 1e6, 2)}
        both = (FEW, MANY) if self._arguments.launches and self._device.type == "cuda" else ()
        for kernel in both:
            for each in launches_of(f"{FORMAT}.{kernel}", product, gpu, self._arguments.launches):
                calls.append((f"{kernel} {each.text}", each.of(lambda x: copies().linear(x))))
        for name, call in calls:
            us = self._stopwatch(lambda call=call: call(next(pair)), len(copies)).microseconds
            near = self._stopwatch(lambda call=call: call(x), len(copies)).microseconds
            kind = own if name == "planned" else f"{own}, {name}"
            self._row(shape, len(x), kind, dense, us, near)
            self.rows[-1] |= about


def main() -> int:
    options = parser(__doc__ or "", minutes=9.0, dtype="bfloat16")
    options.add_argument(
        "--layers",
        type=lambda text: [layer(each) for each in text.split(",")],
        default=[layer(each) for each in SHAPES],
    )
    options.add_argument("--tokens", type=numbers)
    options.add_argument("--prompts", action="store_true", help="512 tokens and more")
    options.add_argument("--check", action="store_true", help="time nothing")
    options.add_argument("--small", action="store_true", help="few checks, float64 on the CPU")
    options.add_argument("--no-check", action="store_true", help="only what is timed is checked")
    options.add_argument("--launches", type=int, default=0, help="to time of a point, too")
    options.add_argument("--kinds", type=lambda text: text.split(";"), default=list(SCHEMES))
    arguments = options.parse_args()
    if arguments.dtype != "bfloat16":
        options.error("exact weights in 12 bits are bfloat16")
    arguments.tokens = arguments.tokens or (PROMPTS if arguments.prompts else DECODING)
    device = device_of(arguments)
    budget = Budget(60 * arguments.minutes)
    if not arguments.no_check:
        report = arguments.out / "lossless-check.txt"
        good = check_layers(Lossless, all_cases, small_cases, report, arguments, device, budget)
        if not good or arguments.check:
            return int(not good)
    arguments.minutes = max(budget.left, 0) / 60
    name = "lossless_prompts.csv" if arguments.prompts else "lossless.csv"
    measured = measure(Speed, arguments, name, far.show)
    print(f"{measured.wrong} results are wrong")
    return int(measured.wrong > 0 or not measured.rows)


if __name__ == "__main__":
    sys.exit(main())
