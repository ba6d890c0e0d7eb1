# SPDX-License-Identifier: Apache-2.0
"""Are the ops of dense layers right on this GPU, and how fast are they against cuBLAS?

    python benchmarks/gpu/gemm.py                checks and times, in 4 minutes at most
    python benchmarks/gpu/gemm.py --check        every configuration, against float64
    python benchmarks/gpu/gemm.py --sanitize     a few checks under compute-sanitizer
    python benchmarks/gpu/gemm.py --speed        layers of Llama2-7B, OPT-6.7B, ChatGLM2-6B and
                                                 Llama-3-8B, at 1 to 64 tokens
    python benchmarks/gpu/gemm.py --device cpu   a toy run that shows that this program works

gemv and flat_gemm are compared with the fastest of three ways to call cuBLAS (`_baselines.Dense`),
all with cold weights and from CUDA graphs. Results are saved after each layer; when the --minutes
are over, the rest is left out with a message. The card's clocks are never set.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _baselines import Dense, activations
from _dense import (
    LAYERS,
    OPS,
    TOKENS,
    DenseChecker,
    cases,
    layers_once,
    small_cases,
)
from _device import Budget, Stopwatch, _measure, cold_bytes
from _layers import Layer, layer
from _program import (
    DTYPES,
    Row,
    add_layer_options,
    check_layers,
    conditions,
    device_of,
    parser,
    run_parts,
    save_each,
    signature,
)
from _tools import sanitize
from rich import box
from rich.table import Table
from torch import Tensor

from flashsparse_plugin.dataflow import DENSE
from flashsparse_plugin.dataflow.decision import ranges_of
from flashsparse_plugin.dataflow.tuner import random_weight
from flashsparse_plugin.ops import ops
from flashsparse_plugin.plan import Plan

CHECK_SECONDS, SANITIZE_SECONDS = 80, 100  # if more than one part is requested
TOY = [Layer("toy", "a", 256, 128), Layer("toy", "b", 128, 256)]
GOAL_SHAPE, GOAL_TOKENS, GOAL = "4096x4096", 8, 1.3  # against cuBLAS, up to GOAL_TOKENS


def check(arguments: argparse.Namespace, device: torch.device, budget: Budget) -> bool:
    report = arguments.out / "gemm_check.txt"
    return check_layers(DenseChecker, cases, small_cases, report, arguments, device, budget)


class Speed:
    """Measures layer by layer; `rows` always holds everything measured so far."""

    def __init__(self, device: torch.device, dtype: torch.dtype, stopwatch: Stopwatch, read: float):
        """`read`: bytes a second that this card reads."""
        self.rows: list[Row] = []
        self._device, self._dtype, self._stopwatch, self._read = device, dtype, stopwatch, read

    def run(
        self, layers: Sequence[Layer], tokens: Sequence[int], budget: Budget
    ) -> Iterator[Layer]:
        """Yields after each layer, so that the rows can be saved; ends when the time is over."""
        for each in layers:
            if budget.left < 0:
                return
            dense = Dense(each, self._dtype, self._device).time(tokens, self._stopwatch)
            weight = random_weight(each.shape, 1.0, self._dtype, self._device)
            copies = _measure.Rotation(weight.clone, weight.nbytes, cold_bytes(self._device))
            for count in tokens:
                x = activations(count, each, self._dtype, self._device)
                for op, most in OPS.items():
                    if count <= most:
                        self._add(each, x, copies, dense[count], op)
            if self._device.type == "cuda":
                torch.cuda.empty_cache()
            yield each

    def _add(
        self,
        each: Layer,
        x: Tensor,
        copies: _measure.Rotation,
        dense: Row,
        op: str,
    ) -> None:
        call = partial(_call, getattr(ops, op), x, copies)
        found = self._stopwatch(call, len(copies))
        moved = 2 * (each.out_features * each.in_features + len(x) * sum(each.shape))
        self.rows.append(
            {
                "model": each.model,
                "layer": each.name,
                "shape": str(each),
                "tokens": len(x),
                "op": op,
                "us": round(found.microseconds, 2),
                "spread": round(found.spread, 3),
                "of_bound": round(moved / self._read * 1e6 / found.microseconds, 3),
                "dense_us": dense["dense_us"],
                "dense_by": dense["dense_by"],
                "ratio": round(dense["dense_us"] / found.microseconds, 3),
            }
        )


def _call(op, x: Tensor, copies: _measure.Rotation) -> Tensor:
    return op(x, copies())


def speed(arguments: argparse.Namespace, device: torch.device, budget: Budget) -> bool:
    stopwatch = Stopwatch(device, arguments.replays)
    about, bandwidth = conditions(arguments, device, stopwatch)
    measured = Speed(device, DTYPES[arguments.dtype], stopwatch, bandwidth)
    layers = arguments.layers or (layers_once() if device.type == "cuda" else TOY)
    tokens = arguments.tokens or (TOKENS if device.type == "cuda" else (1, 16))
    run = measured.run(layers, tokens, budget)
    save_each(run, measured.rows, about, arguments.out / "gemm.csv", budget, show)
    if len({row["shape"] for row in measured.rows}) < len(layers):
        print(f"speed: time was over before all of {len(layers)} layers were measured")
    return bool(measured.rows)


def dataflow_of(rows: Sequence[Row]) -> tuple[Plan, dict[int, dict[str, float]]]:
    """The choice of a table with these measurements of one layer, and the times."""
    times: dict[int, dict[str, float]] = {}
    for row in rows:
        by_op = times.setdefault(row["tokens"], {"library": row["dense_us"]})
        by_op[row["op"]] = row["us"]
    ranges = ((each.max_tokens, each.implementation) for each in ranges_of(times, DENSE))
    return Plan.of(ranges, "table", "measured here"), times


def show(rows: Sequence[Row], about: dict[str, Any]) -> None:
    """Prints cuBLAS's time / time by layer, the dispatcher's choice, and the goals."""
    console = _measure.console(width=110)
    tokens = sorted({row["tokens"] for row in rows})
    table = Table(title="cuBLAS's time / time, by tokens", box=box.SIMPLE_HEAD)
    table.add_column("layer", no_wrap=True)
    for column in ("", *map(str, tokens), "changes at"):
        table.add_column(column, justify="right", no_wrap=True)
    best, goals = [], []
    for shape in dict.fromkeys(row["shape"] for row in rows):
        own = [row for row in rows if row["shape"] == shape]
        flow, times = dataflow_of(own)
        label = f"{own[0]['model']} {own[0]['layer']} {shape}"
        for op in OPS:
            here = {row["tokens"]: row["ratio"] for row in own if row["op"] == op}
            cells = [_ratio(here.get(count)) for count in tokens]
            changes = ", ".join(str(each.max_tokens + 1) for each in flow.ranges[:-1])
            table.add_row(
                label if op == "gemv" else "", op, *cells, changes if op == "gemv" else ""
            )
        for count in tokens:
            ratio = times[count]["library"] / times[count][flow.implementation(count)]
            best.append(ratio)
            if shape == GOAL_SHAPE and count <= GOAL_TOKENS:
                goals.append(ratio)
    console.print(table)
    if best:
        console.print(
            f"The dispatcher: {statistics.geometric_mean(best):.2f}x cuBLAS (geometric mean of "
            f"{len(best)} points), {min(best):.2f}x at its worst (goal 1)"
        )
    if goals:
        mark = "[green]✓[/]" if min(goals) >= GOAL else "[red]✗[/]"
        console.print(
            f"{GOAL_SHAPE}, up to {GOAL_TOKENS} tokens: {min(goals):.2f}x or more "
            f"(goal {GOAL}) {mark}"
        )
    console.print(signature(about))


def _ratio(ratio: float | None) -> str:
    if ratio is None:
        return ""
    return f"[green]{ratio:.2f}[/]" if ratio >= 1 else f"[red]{ratio:.2f}[/]"


def known_layer(text: str) -> Layer:
    return next((each for each in LAYERS if str(each) == text), None) or layer(text)


def main() -> None:
    options = parser(__doc__, minutes=4.0)
    for name in ("check", "sanitize", "speed"):
        options.add_argument(f"--{name}", action="store_true")
    add_layer_options(options, known_layer)
    arguments = options.parse_args()
    device = device_of(arguments)

    asked = [arguments.check, arguments.speed, arguments.sanitize]
    if not any(asked):
        asked = [True, True, False]
    budget = Budget(60 * arguments.minutes)
    parts = (
        lambda: check(arguments, device, budget.at_most(CHECK_SECONDS) if asked[1] else budget),
        lambda: speed(arguments, device, budget.keep(SANITIZE_SECONDS * asked[2])),
        lambda: sanitize(arguments.out, budget, Path(__file__)),
    )
    good = run_parts(part for wanted, part in zip(asked, parts, strict=True) if wanted)
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
