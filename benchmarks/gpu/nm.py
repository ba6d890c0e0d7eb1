# SPDX-License-Identifier: Apache-2.0
"""Are N:M weights multiplied right on this GPU, how fast, and by which launch?

    python benchmarks/gpu/nm.py              in 9 minutes at most: --check, --speed, --prompts, what
                                             nm_fp32.py measures of float32 (Figures 7, 8 and 9 of
                                             NM-SpMM), and pictures of it all, Figure 10 among them
    python benchmarks/gpu/nm.py --check      every way to call it, against float64
    python benchmarks/gpu/nm.py --speed      layers x patterns x tokens, beside cuBLAS, fp8, and
                                             cuSPARSELt for 2:4
    python benchmarks/gpu/nm.py --prompts    the same for prompts, and for vectors of 64 and 128
    python benchmarks/gpu/nm.py --values     the same for values of 8 and 4 bits, beside cuSPARSELt
                                             with 8 bits on both sides, and vLLM's dense int4;
                                             with --check: these values against float64
    python benchmarks/gpu/nm.py --launches   every launch of the kernels, for some layers
    python benchmarks/gpu/nm.py --profile    what binds where goals are missed: single launches
                                             under Nsight Compute
    python benchmarks/gpu/nm.py --device cpu --check     shows that this program works

Results are saved after each layer; when the --minutes are over, the rest is left out with a
message. The card's clocks are never set.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import nm_fp32
import torch
from _baselines import Dense, Rivals, activations
from _check import DTYPES as CHECKED
from _check import Checker, errors_of
from _device import Budget, Stopwatch, _formats, _measure, _results, cold_bytes, machine, plots
from _layers import Layer, layer, model_layers
from _program import (
    DTYPES,
    check_layers,
    conditions,
    device_of,
    numbers,
    parser,
    run_parts,
    save_each,
    signature,
)
from _rivals import by_library, rivals
from _speed import WARM_UPS, multiplied
from _tools import profile, profile_summary, profiled
from rich import box
from rich.table import Table
from torch import Tensor

import flashsparse_plugin as fs
from flashsparse_plugin.dataflow.tuner import random_weight
from flashsparse_plugin.formats.nm_pattern import PatternOptions
from flashsparse_plugin.ops import ops

Row = dict[str, Any]
TWO_FOUR = PatternOptions(n=2, m=4)
VECTORS = tuple(PatternOptions(n=n, m=32, vector_length=32) for n in (16, 12, 8, 4))
LONG_VECTORS = tuple(
    PatternOptions(n=n, m=32, vector_length=length) for length in (64, 128) for n in (16, 12, 8, 4)
)
LAYERS = [
    *model_layers("Llama-3-70B", gate_up=(57344, 8192), down=(8192, 28672), o=(8192, 8192)),
    *model_layers("OPT-30B", fc1=(28672, 7168), fc2=(7168, 28672)),
    *model_layers("Llama-3-8B", gate_up=(28672, 4096), down=(4096, 14336), o=(4096, 4096)),
    *model_layers("Llama-3-8B", up=(14336, 4096), qkv=(6144, 4096)),
]
VALUES = (
    *(PatternOptions(n=2, m=4, values=values) for values in ("fp8_e4m3", "int8")),
    PatternOptions(n=2, m=4, values="int4", group=128),
    *(
        PatternOptions(n=n, m=32, vector_length=32, values=values)
        for n in (16, 8)
        for values in ("fp8_e4m3", "int8")
    ),
)
TOKENS = (1, 8, 16, 32, 64)
PROMPTS = (96, 128, 192, 256, 512, 1024, 2048, 4096)  # tokens
PROMPT_LAYERS = [LAYERS[0], LAYERS[3], *LAYERS[5:8]]
OWN_TOKENS = 64  # up to which no library multiplies by default
# Of each goal that is missed a point or two.
POINT = ("shape", "pattern", "tokens", "dtype")
PROFILED = (
    ("57344x8192", "4:32x32", 8, "bfloat16"),
    ("14336x4096", "4:32x32", 8, "bfloat16"),
    ("4096x4096", "8:32x32", 8, "bfloat16"),
    ("4096x4096", "2:4", 8, "bfloat16"),
    ("57344x8192", "2:4", 8, "bfloat16"),
    ("28672x7168", "2:4", 2048, "bfloat16"),
    ("28672x7168", "16:32x64", 2048, "bfloat16"),
    ("28672x7168", "8:32x64", 2048, "bfloat16"),
    ("28672x7168", "8:32x128", 2048, "bfloat16"),
    ("28672x7168", "8:32x32", 2048, "bfloat16"),
    ("4096x4096", "16:32x32", 4096, "float32"),
    ("4096x4096", "4:32x32", 4096, "float32"),
)
LARGE, MEDIUM = 100e6, 40e6  # weights of a layer, above which it is shown with its like


# ---- right? -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    shape: tuple[int, int]
    options: PatternOptions
    dtype: torch.dtype
    tokens: tuple[int, ...]
    planned: bool = False  # also by every launch that the kernel can make

    def __str__(self) -> str:
        name = str(self.dtype).removeprefix("torch.")
        return f"{self.shape[0]}x{self.shape[1]}, {self.options.title}, {name}"


def cases() -> Iterator[Case]:
    """All cases, the most informative first."""
    patterns = (
        TWO_FOUR,
        *VECTORS,
        PatternOptions(n=1, m=4),
        PatternOptions(n=2, m=8, vector_length=4),
        PatternOptions(n=4, m=16, vector_length=16),
        PatternOptions(n=8, m=16, vector_length=128),
        PatternOptions(n=8, m=16, vector_length=8),
        PatternOptions(n=3, m=5, vector_length=2),
    )
    for dtype, options in itertools.product(CHECKED, patterns[:5]):
        for shape in ((4096, 4096), (14336, 4096), (6144, 4096)):
            yield Case(shape, options, dtype, (1, 8, 16, 17, 32, 64, 100, 300))
    for dtype, options in itertools.product(CHECKED, (*patterns[:5], *LONG_VECTORS)):
        for shape in ((4096, 4096), (1000, 1100), (300, 4100)):
            yield Case(shape, options, dtype, (65, 128, 200, 513, 1024))
    for dtype, options in itertools.product(CHECKED, patterns):
        for shape in ((1024, 1024), (640, 2304), (384, 896)):
            yield Case(shape, options, dtype, (1, 8, 13, 16, 32, 61, 130), planned=True)
        for shape in ((1, 1), (33, 130), (129, 63), (300, 300), (1000, 4100), (4100, 1000)):
            yield Case(shape, options, dtype, (1, 3, 8, 16, 33, 64, 70))
    for options in patterns:
        yield Case((300, 300), options, torch.float32, (1, 8, 40))


def value_cases() -> Iterator[Case]:
    """Those with values of 8 and 4 bits."""
    patterns = (
        *VALUES,
        PatternOptions(n=2, m=4, values="int4", group=32),
        PatternOptions(n=2, m=4, values="int4", group=64),
        PatternOptions(n=2, m=8, vector_length=4, values="int8"),
        PatternOptions(n=4, m=16, vector_length=16, values="fp8_e4m3"),
        PatternOptions(n=8, m=16, vector_length=128, values="int8"),
        PatternOptions(n=8, m=16, vector_length=8, values="int8"),
        PatternOptions(n=8, m=32, vector_length=32, values="int4", group=128),
        PatternOptions(n=3, m=5, vector_length=2, values="int8"),
    )
    for options, dtype in itertools.product(patterns, CHECKED):
        for shape in ((1024, 1024), (640, 2304), (384, 896)):
            yield Case(shape, options, dtype, (1, 8, 13, 16, 32, 61, 130), planned=True)
        for shape in ((1, 1), (33, 130), (129, 63), (300, 300), (1000, 4100), (4100, 1000)):
            yield Case(shape, options, dtype, (1, 3, 8, 16, 33, 64, 70))
    for options, dtype in itertools.product(VALUES, CHECKED):
        for shape in ((4096, 4096), (14336, 4096), (6144, 4096)):
            yield Case(shape, options, dtype, (1, 8, 16, 17, 32, 64, 100, 300, 1024))


def small_cases() -> Iterator[Case]:
    for dtype, options in itertools.product(CHECKED, (TWO_FOUR, VECTORS[2], *VALUES[:3])):
        yield Case((160, 320), options, dtype, (1, 9, 33))


class NMChecker(Checker):
    """Checks weights that follow a pattern, in the form that their device reads."""

    def _check(self, case: Case, number: int) -> None:
        weight = pattern_weight(case.shape, case.options, case.dtype, self._device, number)
        stored = fs.pack(weight, "nm_vector", case.options.model_dump())
        packed, whole = stored.prepare(self._device), in_float32(stored)
        form = packed.scheme.format.name
        rounded = whole.to(case.dtype)
        self.tally.add("unpacked", torch.equal(packed.unpack(), rounded), f"{case}, {form}")
        self.tally.add("stored again", same(packed.transcode(stored.scheme), stored), f"{case}")
        # A kernel may take codes times scales as they are, or rounded as unpacking rounds them.
        weights = [each.to(self._reference).double().T for each in (whole, rounded)]
        weights = weights[: 2 if case.options.value_type else 1]
        for index, tokens in enumerate(case.tokens):
            x = self._random((tokens * case.shape[1] + 1,), case.dtype)
            x = x[number % 2 : number % 2 + tokens * case.shape[1]].view(tokens, -1)
            bias = self._random(case.shape[:1], case.dtype) if (number + index) % 2 else None
            where = f"{case}, {form}, {tokens} tokens"
            own = tokens <= OWN_TOKENS and form != "nm_vector"  # which multiplies by the library
            plan = None if own else _formats.IMPLEMENTATIONS["sparse"]
            op = partial(_formats.multiply, packed, bias=bias, plan=plan)
            y = op(x)
            norm, element = self._nearest(y, x, weights, bias)
            sparse = case.dtype != torch.float32 and form != "nm_vector"
            own |= self._device.type == "cuda" and sparse
            self._judge(norm, element, where, 1.0 if own else float("inf"))
            if tokens > OWN_TOKENS:
                # By the library an element may be as far off as the library always is.
                y_library = op(x, plan=_formats.IMPLEMENTATIONS["unpacked"])
                norm, element = self._nearest(y_library, x, weights, bias)
                self._judge(norm, element, f"{where}, unpacked", float("inf"))
            self.tally.add("the same again", all(torch.equal(y, op(x)) for _ in range(2)), where)
            if own and self._device.type == "cuda" and index == number % len(case.tokens):
                self._check_stream(op, x, y, where)
                if self._graphs:
                    self._check_graph(op, x, y, where)
            for launch in self._launches(case, packed, tokens):
                if not is_compiled(launch, packed, x):
                    continue
                twice = [launch.linear(packed, x, bias) for _ in range(2)]
                norm, element = self._nearest(twice[0], x, weights, bias)
                self._judge(norm, element, f"{where}, {launch}")
                self.tally.add("the same again", torch.equal(*twice), f"{where}, {launch}")

    def _nearest(
        self, y: Tensor, x: Tensor, weights: Sequence[Tensor], bias: Tensor | None
    ) -> tuple[float, float]:
        """Errors by the weight that is nearest in the norm."""
        errors = (errors_of(y, x, weight, bias, self._reference) for weight in weights)
        return min(((float(norm), float(element)) for norm, element in errors), key=max)

    def _launches(self, case: Case, packed: fs.PackedWeight, tokens: int) -> Sequence[Any]:
        if not case.planned:
            return ()
        return launches_of(packed, tokens, self._device)


def in_float32(stored: fs.PackedWeight) -> Tensor:
    """The weight before it is rounded to its dtype: code x scale."""
    if stored.format.is_exact(stored.scheme):
        return stored.unpack()
    scheme = stored.format.scheme(torch.float32, stored.scheme.values)
    tensors = {**stored.tensors, "weight_scale": stored.tensors["weight_scale"].float()}
    return fs.PackedWeight(scheme, stored.shape, tensors).unpack()


def same(one: fs.PackedWeight, other: fs.PackedWeight) -> bool:
    return all(torch.equal(one.tensors[name], each) for name, each in other.tensors.items())


def launches_of(packed: fs.PackedWeight, tokens: int, device: torch.device) -> Sequence[Any]:
    """Every launch worth trying of the kernel that reads this weight, if it is one for patterns."""
    if not isinstance(packed.scheme.options, PatternOptions):
        return ()
    return _formats.launches(packed.scheme.format.name, packed, tokens, device)


def is_compiled(launch: Any, packed: fs.PackedWeight, x: Tensor) -> bool:
    """Whether a launch is one of those compiled for the weight's type of values."""
    try:
        launch.linear(packed, x)
    except RuntimeError as error:
        if (
            "no such shape" in str(error)
            or "no plan for this" in str(error)
            or "no such plan" in str(error)
        ):
            return False
        raise
    return True


def pattern_weight(
    shape: tuple[int, int], options: PatternOptions, dtype: torch.dtype, device: Any, seed: int = 0
) -> Tensor:
    """A random weight that follows the pattern, all kept."""
    return options.keep_largest(random_weight(shape, 1.0, dtype, device, seed=seed)).contiguous()


# ---- fast? --------------------------------------------------------------------------------------


class Speed:
    """Measures layer by layer; `rows` always holds everything measured so far."""

    def __init__(
        self,
        arguments: argparse.Namespace,
        device: torch.device,
        stopwatch: Stopwatch,
        bandwidth: float,
    ):
        self.rows: list[Row] = []
        self._rivals: Rivals | None = None  # of a layer, where many tokens are measured
        self._arguments, self._device, self._stopwatch = arguments, device, stopwatch
        self._dtype, self._bandwidth = DTYPES[arguments.dtype], bandwidth

    def run(self, budget: Budget) -> Iterator[Layer]:
        """Yields after each layer; ends when the time is over."""
        arguments = self._arguments
        for each in arguments.layers or (PROMPT_LAYERS if arguments.prompts else LAYERS):
            if budget.left < 0:
                return
            dense = Dense(each, self._dtype, self._device)
            found = dense.time(arguments.tokens, self._stopwatch)
            self._rivals = dense.rivals() if arguments.prompts else None
            for options in arguments.patterns:
                if budget.left < 0:
                    return
                self._measure(each, options, found)
            if arguments.values and not arguments.launches and self._device.type == "cuda":
                self._add_rivals(each, found)
            torch.cuda.empty_cache()
            yield each

    def _measure(self, each: Layer, options: PatternOptions, dense: dict[int, Row]) -> None:
        weight = pattern_weight(each.shape, options, self._dtype, self._device)
        packed = fs.pack(weight, "nm_vector", options.model_dump()).prepare(self._device)
        copies = self._copies(partial(_formats.copy_of, packed), packed.nbytes)
        for _ in range(WARM_UPS):
            x = activations(8, each, self._dtype, self._device)
            self._stopwatch(lambda x=x: _formats.multiply(copies(), x), len(copies))
        for tokens in self._arguments.tokens:
            x = activations(tokens, each, self._dtype, self._device)

            def timed(multiply: Any, x: Tensor = x) -> float:
                return self._stopwatch(lambda: multiply(copies(), x), len(copies)).microseconds

            row = self._row(each, options, packed, tokens, dense[tokens])
            if self._rivals:
                calls = self._rivals.calls(x)
                for name, plan in _formats.IMPLEMENTATIONS.items():
                    call = partial(multiplied, partial(_formats.multiply, plan=plan), copies, x)
                    calls[name] = call, len(copies)
                times = self._stopwatch.in_turns(calls)
                row |= self._rivals.row(times)
                row["unpacked_us"] = round(times["unpacked"].microseconds, 2)
                self.rows.append(row | self._compared(times["sparse"].microseconds, row, x))
            else:
                self.rows.append(row | self._compared(timed(_formats.multiply), row, x))
            if not self._arguments.launches:
                continue
            for launch in launches_of(packed, tokens, self._device):
                if not is_compiled(launch, packed, x):
                    continue
                made = row | {"launch": str(launch)}
                self.rows.append(made | self._compared(timed(launch.linear), row, x))
        if self._device.type == "cuda" and options in VALUES[:2]:
            self._add_rounded_activations(each, options, packed, dense)
        if options == TWO_FOUR and not self._arguments.launches and self._device.type == "cuda":
            self._add_library(each, weight)

    def _row(
        self,
        each: Layer,
        options: PatternOptions,
        packed: fs.PackedWeight,
        tokens: int,
        dense: Row,
    ) -> Row:
        return {
            "model": each.model,
            "layer": each.name,
            "shape": str(each),
            "pattern": options.title,
            "tokens": tokens,
            "form": packed.scheme.format.name,
            "launch": "its own choice",
            "bytes": packed.nbytes,
            **dense,
        }

    def _compared(self, us: float, row: Row, x: Tensor) -> Row:
        moved = row["bytes"] + x.nbytes + len(x) * int(row["shape"].split("x")[0]) * x.itemsize
        return {
            "us": round(us, 2),
            "of_bound": round(moved / self._bandwidth * 1e6 / us, 3),
            "ratio": round(row["dense_us"] / us, 3),
            "over_fp8": round(row["fp8_us"] / us, 3) if "fp8_us" in row else None,
        }

    def _add_rounded_activations(
        self, each: Layer, options: PatternOptions, packed: fs.PackedWeight, dense: dict[int, Row]
    ) -> None:
        """Codes of 8 bits on both sides, x quantised within the timing."""
        copies = self._copies(partial(_formats.copy_of, packed), packed.nbytes)

        def multiply(packed: fs.PackedWeight, x: Tensor) -> Tensor:
            return ops.sparse_24_linear_rounded(
                x, *packed.tensors.values(), packed.shape[0], packed.dtype, options.values
            )

        for tokens in self._arguments.tokens:
            x = activations(tokens, each, self._dtype, self._device)
            row = self._row(each, options, packed, tokens, dense[tokens])
            kind = options.values.removesuffix("_e4m3")
            row["pattern"] = f"2:4, {kind} x {kind}"
            us = self._stopwatch(
                lambda x=x, copies=copies: multiply(copies(), x), len(copies)
            ).microseconds
            self.rows.append(row | self._compared(us, row, x))

    def _add_rivals(self, each: Layer, dense: dict[int, Row]) -> None:
        weight = pattern_weight(each.shape, TWO_FOUR, self._dtype, self._device)
        for rival in rivals(weight):
            copies = self._copies(rival.weight.clone, rival.weight.nbytes)
            for tokens in self._arguments.tokens:
                x = activations(tokens, each, self._dtype, self._device)
                row = {
                    "model": each.model,
                    "layer": each.name,
                    "shape": str(each),
                    "pattern": rival.name,
                    "tokens": tokens,
                    "form": "library",
                    "launch": "its own choice",
                    "bytes": rival.weight.nbytes,
                    **dense[tokens],
                }
                try:
                    product = rival.product(x)
                    us = self._stopwatch(
                        lambda product=product, copies=copies: product(copies()), len(copies)
                    ).microseconds
                except (RuntimeError, TypeError) as error:
                    print(f"{rival.name}, {tokens} tokens: {str(error).splitlines()[0][:150]}")
                    continue
                self.rows.append(row | self._compared(us, row, x))

    def _copies(self, make: Any, nbytes: int) -> _measure.Rotation:
        return _measure.Rotation(make, nbytes, cold_bytes(self._device))

    def _add_library(self, each: Layer, weight: Tensor) -> None:
        """cuSPARSELt, by the algorithm that its search finds."""
        compressed = torch._cslt_compress(weight)
        copies = self._copies(compressed.clone, compressed.nbytes)
        for row in self.rows:
            if (row["shape"], row["pattern"]) != (str(each), TWO_FOUR.title):
                continue
            x = activations(row["tokens"], each, self._dtype, self._device)
            padded = torch.nn.functional.pad(x, (0, 0, 0, -len(x) % 8)).T
            try:
                product = by_library(compressed, padded)
                us = self._stopwatch(
                    lambda product=product: product(copies()), len(copies)
                ).microseconds
            except RuntimeError as error:
                row["cusparselt_refused"] = str(error).splitlines()[0][:100]
                continue
            row["cusparselt_us"] = round(us, 2)


def show(rows: Sequence[Row], about: Row) -> None:
    """Geometric means of dense time / time, by size of layer, pattern and tokens."""
    console = _measure.console(width=120)
    own = [row for row in rows if row["launch"] == "its own choice"]
    sizes = {
        "over 100 M weights": lambda weights: weights > LARGE,
        "40 to 100 M weights": lambda weights: MEDIUM <= weights <= LARGE,
        "smaller layers": lambda weights: weights < MEDIUM,
    }
    for size, belongs in sizes.items():
        here = [row for row in own if belongs(_weights(row))]
        if here:
            console.print(_ratios(size, here))
    console.print(signature(about))


def _weights(row: Row) -> float:
    out_features, _, in_features = row["shape"].partition("x")
    return float(out_features) * float(in_features)


def _ratios(title: str, rows: Sequence[Row]) -> Table:
    tokens = sorted({row["tokens"] for row in rows})
    table = Table(
        title=f"{title}: dense time / time (fp8 time / time), by tokens",
        caption="geometric means over " + ", ".join(sorted({row["shape"] for row in rows})),
        box=box.SIMPLE_HEAD,
    )
    for column in ("pattern", *map(str, tokens)):
        table.add_column(column, justify="right", no_wrap=True)
    for pattern in dict.fromkeys(row["pattern"] for row in rows):
        own = [row for row in rows if row["pattern"] == pattern]
        table.add_row(pattern, *(_cell(own, count) for count in tokens))
        if any("cusparselt_us" in row for row in own):
            cells = []
            for count in tokens:
                found = [r for r in own if r["tokens"] == count and "cusparselt_us" in r]
                ratios = [row["dense_us"] / row["cusparselt_us"] for row in found]
                cells.append(f"{statistics.geometric_mean(ratios):.2f}" if ratios else "")
            table.add_row("cuSPARSELt", *cells)
    return table


def _cell(rows: Sequence[Row], tokens: int) -> str:
    here = [row for row in rows if row["tokens"] == tokens]
    if not here:
        return ""
    text = f"{statistics.geometric_mean(row['ratio'] for row in here):.2f}"
    eighth = [row["over_fp8"] for row in here if row["over_fp8"]]
    return text + (f" ({statistics.geometric_mean(eighth):.2f})" if eighth else "")


def show_launches(rows: Sequence[Row], about: Row) -> None:
    """The best launches of each point beside the kernel's own choice."""
    console = _measure.console(width=120)
    for key in dict.fromkeys((row["shape"], row["pattern"], row["tokens"]) for row in rows):
        here = [row for row in rows if (row["shape"], row["pattern"], row["tokens"]) == key]
        own = next(row for row in here if row["launch"] == "its own choice")
        best = sorted((row for row in here if row is not own), key=lambda row: row["us"])[:3]
        listed = "; ".join(f"{row['launch']} {row['us']:.1f}" for row in best)
        console.print(f"{key[0]} {key[1]} {key[2]}: own {own['us']:.1f} µs; {listed}")
    console.print(signature(about))


# ---- bound by what? -----------------------------------------------------------------------------


def show_profile(arguments: argparse.Namespace, device: torch.device, budget: Budget) -> bool:
    points = [dict(zip(POINT, each, strict=True)) for each in PROFILED]
    rows = profile(Path(__file__), points, arguments.out, budget)
    _results.write(arguments.out / "nm_profile.csv", machine(device), rows)
    for line in profile_summary(rows):
        print("  " + "; ".join(f"{name} {value}" for name, value in line.items()))
    return bool(rows)


def one(points: Sequence[Sequence[Any]], budget: Budget) -> None:
    """Makes a call of the kernel for each point, for ncu."""
    device, sparse = torch.device("cuda"), _formats.IMPLEMENTATIONS["sparse"]
    for shape, named, tokens, dtype_name in points:
        if budget.left <= 0:
            return
        asked, options, dtype = layer(shape), pattern(named), getattr(torch, dtype_name)
        weight = pattern_weight(asked.shape, options, dtype, device)
        packed = fs.pack(weight, "nm_vector", options.model_dump()).prepare(device)
        x = activations(tokens, asked, dtype, device)
        profiled(partial(_formats.multiply, packed, x, plan=sparse))


# ---- the program --------------------------------------------------------------------------------


def pattern(text: str) -> PatternOptions:
    """A pattern from "2:4", "8:32x32", "2:4/int8" or "2:4/int4/128"."""
    text, *values = text.split("/")
    kept, _, rest = text.partition(":")
    window, _, length = rest.partition("x")
    codes: Any = {"values": values[0]} if values else {}
    if values[1:]:
        codes["group"] = int(values[1])
    return PatternOptions(n=int(kept), m=int(window), vector_length=int(length or 1), **codes)


def check(arguments: argparse.Namespace, device: torch.device, budget: Budget) -> bool:
    report = arguments.out / f"nm{'_values' if arguments.values else ''}_check.txt"
    every = value_cases if arguments.values else cases
    return check_layers(NMChecker, every, small_cases, report, arguments, device, budget)


def speed(arguments: argparse.Namespace, device: torch.device, budget: Budget) -> bool:
    stopwatch = Stopwatch(device, arguments.replays)
    about, bandwidth = conditions(arguments, device, stopwatch)
    measured = Speed(arguments, device, stopwatch, bandwidth)
    shown = show_launches if arguments.launches else show
    name = "nm_prompts" if arguments.prompts else "nm_values" if arguments.values else "nm"
    path = arguments.out / f"{name}{'_launches' if arguments.launches else ''}.csv"
    save_each(measured.run(budget), measured.rows, about, path, budget, shown)
    return bool(measured.rows)


# What everything is, and the most minutes of each: all but the first take less on an H200.
EVERYTHING: tuple[tuple[Any, tuple[str, ...], float], ...] = (
    (sys.modules[__name__], ("--check",), 3.0),
    (sys.modules[__name__], ("--speed",), 1.2),
    (sys.modules[__name__], ("--prompts",), 2.5),
    (nm_fp32, ("--steps", "--zeros", "0,0.5,0.625,0.75,0.875"), 0.7),
    (nm_fp32, ("--speed",), 1.5),
)


def everything(arguments: argparse.Namespace, budget: Budget) -> bool:
    """Measures and draws all that the documents tell of N:M in 16 bits and in float32."""
    good = True
    for program, part, most in EVERYTHING:
        about = ["--device", arguments.device, "--dtype", arguments.dtype]
        about += ["--out", str(arguments.out)]
        about += ["--minutes", str(round(min(most, max(budget.left / 60, 0)), 2))]
        print(f"-- {Path(program.__file__).name} {' '.join(part)}", flush=True)
        try:
            program.main([*part, *about])
        except SystemExit as end:
            good &= not end.code
    pictures = partial(plots.patterns_of, arguments.out.resolve(), arguments.out)
    return good & run_parts([lambda: bool(pictures())])


def main(argv: Sequence[str] | None = None) -> None:
    options = parser(__doc__, minutes=9.0, dtype="bfloat16")
    for name in ("check", "speed", "prompts", "values", "launches", "small"):
        options.add_argument(f"--{name}", action="store_true")
    options.add_argument("--layers", type=lambda text: [layer(each) for each in text.split(",")])
    options.add_argument("--tokens", type=numbers)
    options.add_argument(
        "--patterns",
        type=lambda text: [pattern(each) for each in text.split(",")],
    )
    options.add_argument("--profile", action="store_true")
    options.add_argument("--one", type=json.loads, help=argparse.SUPPRESS)
    arguments = options.parse_args(argv)
    if arguments.one:
        one(arguments.one, Budget(60 * arguments.minutes))
        return
    device, budget = device_of(arguments), Budget(60 * arguments.minutes)
    arguments.speed |= arguments.launches or arguments.prompts
    if not (arguments.check or arguments.speed or arguments.values or arguments.profile):
        if arguments.layers or arguments.tokens or arguments.patterns:
            options.error("--layers, --tokens and --patterns are for --speed and --prompts")
        raise SystemExit(0 if everything(arguments, budget) else 1)
    arguments.tokens = arguments.tokens or (PROMPTS if arguments.prompts else TOKENS)
    if arguments.patterns is None:
        usual = (TWO_FOUR, *VECTORS, *LONG_VECTORS) if arguments.prompts else (TWO_FOUR, *VECTORS)
        arguments.patterns = VALUES if arguments.values else usual
    asked = [arguments.check, arguments.speed, arguments.profile]
    if not any(asked):
        asked = [True, True, False]
    parts = (
        lambda: check(arguments, device, budget.at_most(200) if asked[1] else budget),
        lambda: speed(arguments, device, budget),
        lambda: show_profile(arguments, device, budget),
    )
    good = run_parts(part for wanted, part in zip(asked, parts, strict=True) if wanted)
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
