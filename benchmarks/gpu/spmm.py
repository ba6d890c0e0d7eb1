# SPDX-License-Identifier: Apache-2.0
"""Is the sparse linear layer right on this GPU, how fast is it, and what binds it?

    python benchmarks/gpu/spmm.py [--format NAME]    everything, in 9 minutes at most
    python benchmarks/gpu/spmm.py --check            every way to call it, against float64
    python benchmarks/gpu/spmm.py --sanitize         a few checks under compute-sanitizer
    python benchmarks/gpu/spmm.py --speed            OPT's and Llama's layers, against cuBLAS
    python benchmarks/gpu/spmm.py --profile          three launches under Nsight Compute
    python benchmarks/gpu/spmm.py --shapes --layers 28672x7168 --tokens 16
                                                     the kernel's shapes against its own choice
    python benchmarks/gpu/spmm.py --device cpu       a toy run that shows that this program works

The program needs only the package with its CUDA object. Results are saved after each layer; when
the --minutes are over, the rest is left out with a message. The card's clocks are never set.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from _device import Budget, Stopwatch, _formats, _measure, _results, machine
from _layers import LLAMA, OPT, Layer, layer
from _program import (
    DTYPES,
    add_layer_options,
    check_layers,
    conditions,
    device_of,
    numbers,
    parser,
    run_parts,
    save_each,
    signature,
)
from _sparse import SparseChecker, cases, small_cases
from _speed import STAGES, Speed, Stage, activations
from _tools import profile, profile_summary, sanitize
from rich import box
from rich.table import Table

from flashsparse_plugin.dataflow.tuner import random_weight
from flashsparse_plugin.formats import DEFAULT_FORMAT, format_names

# Goals of dense time / sparse time, geometric mean over OPT's layers, at each of GOAL_TOKENS.
GOALS = {70: 1.45, 80: 2.1, 90: 3.6}
GOAL_TOKENS = (8, 16, 32)
PREFILL_GOAL = 0.95
CHECK_SECONDS, PROFILE_SECONDS, SANITIZE_SECONDS = 120, 75, 150  # if more than one is requested
TOY = Stage([Layer("toy", "a", 256, 128), Layer("toy", "b", 128, 256)], (50, 80), (1, 16, 64))


def check(arguments: argparse.Namespace, device: torch.device, budget: Budget) -> bool:
    report = arguments.out / "spmm_check.txt"
    return check_layers(
        SparseChecker,
        cases,
        small_cases,
        report,
        arguments,
        device,
        budget,
        format=arguments.format,
    )


def speed(arguments: argparse.Namespace, device: torch.device, budget: Budget) -> bool:
    stopwatch = Stopwatch(device, arguments.replays)
    about, bandwidth = conditions(arguments, device, stopwatch)
    about["format"] = arguments.format
    dtype = DTYPES[arguments.dtype]
    measured = Speed(arguments.format, device, dtype, stopwatch, bandwidth, arguments.shapes)
    stages = _stages(arguments, device)
    path = arguments.out / ("spmm_shapes.csv" if arguments.shapes else "spmm.csv")
    shown = show_shapes if arguments.shapes else show
    save_each(measured.run(stages, budget), measured.rows, about, path, budget, shown)
    wanted = sum(len(s.layers) * len(s.sparsities) * len(s.tokens) for s in stages if not s.csr)
    points = {(row["shape"], row["sparsity"], row["tokens"]) for row in measured.rows}
    if len(points) < wanted:
        print(f"speed: time was over after {len(points)} of {wanted} points")
    return bool(measured.rows)


def _stages(arguments: argparse.Namespace, device: torch.device) -> Sequence[Stage]:
    asked = (arguments.layers, arguments.sparsity, arguments.tokens)
    if any(asked):
        layers, sparsity, tokens = asked
        return [Stage(layers or OPT, sparsity or (70, 80, 90), tokens or GOAL_TOKENS)]
    return STAGES if device.type == "cuda" else [TOY]


def show(rows: Sequence[dict[str, Any]], about: dict[str, Any]) -> None:
    """Geometric means of dense time / time, by family of layers, zeros and tokens."""
    console = _measure.console(width=140)
    opt = {str(each) for each in OPT}
    families = {"OPT": opt, "Llama 3": {str(each) for each in LLAMA} - opt}
    other = {row["shape"] for row in rows} - set().union(*families.values())
    for family, shapes in (families | {"other": other}).items():
        own = [row for row in rows if row["shape"] in shapes]
        if own:
            console.print(_ratios(family, own))
            console.print(_shares(own))
    slower = [row for row in rows if row["sparsity"] > 55 and row["tokens"] <= 64]
    slower = [row for row in slower if row["ratio"] < 1]
    if rows:
        console.print(
            f"{len(slower)} points of at most 64 tokens are slower than dense above 55% zeros"
            + "".join(f"\n  {_point(row)}" for row in sorted(slower, key=_ratio)[:5])
        )
    prefill = [row for row in rows if row["tokens"] >= 256]
    if prefill:
        worst = min(prefill, key=_ratio)
        console.print(f"prefill: worst {_point(worst)} (goal {PREFILL_GOAL})")
    for row in rows:
        if "csr_us" in row:
            console.print(
                f"cuSPARSE: {row['shape']}, {row['tokens']} tokens, {row['sparsity']}%: "
                f"{row['csr_us']:.0f} µs, {row['dense_us'] / row['csr_us']:.2f}x"
            )
    console.print(signature(about))


def _ratio(row: dict[str, Any]) -> float:
    return row["ratio"]


def _point(row: dict[str, Any]) -> str:
    return (
        f"{row['shape']}, {row['tokens']} tokens, {row['sparsity']}%: {row['ratio']:.2f}x, "
        f"{row['us']:.1f} µs, {row['of_bound']:.0%} of the bound"
    )


def show_shapes(rows: Sequence[dict[str, Any]], about: dict[str, Any]) -> None:
    """Microseconds of each launch by zeros; the best of a column in green."""
    console = _measure.console(width=110)
    for shape, tokens in sorted({(row["shape"], row["tokens"]) for row in rows}):
        own = [row for row in rows if (row["shape"], row["tokens"]) == (shape, tokens)]
        times = {(row["plan"], row["sparsity"]): row["us"] for row in own}
        zeros = sorted({row["sparsity"] for row in own})
        best = {each: min(us for (_, s), us in times.items() if s == each) for each in zeros}
        table = Table(title=f"{shape}, {tokens} tokens: µs by zeros", box=box.SIMPLE_HEAD)
        table.add_column("plan", no_wrap=True)
        for each in zeros:
            table.add_column(f"{each}%", justify="right", no_wrap=True)
        for plan in dict.fromkeys(row["plan"] for row in own):
            cells = []
            for each in zeros:
                us = times.get((plan, each))
                text = "" if us is None else f"{us:.1f}"
                cells.append(f"[green]{text}[/]" if us == best[each] else text)
            table.add_row(plan, *cells)
        console.print(table)
    console.print(signature(about))


def _ratios(family: str, rows: Sequence[dict[str, Any]]) -> Table:
    """Dense time / time; figures with a goal have a ✓ or a ✗."""
    tokens = sorted({row["tokens"] for row in rows})
    table = Table(
        title=f"{family}: dense time / time, by tokens",
        caption="geometric means over the layers",
        box=box.SIMPLE_HEAD,
    )
    for column in ("zeros", "layers", "bound", "goal", *map(str, tokens)):
        table.add_column(column, justify="right", no_wrap=True)
    for sparsity in sorted({row["sparsity"] for row in rows}):
        own = [row for row in rows if row["sparsity"] == sparsity]
        goal = GOALS.get(sparsity) if family == "OPT" else None
        cells = []
        for count in tokens:
            here = [row["ratio"] for row in own if row["tokens"] == count]
            text = f"{statistics.geometric_mean(here):.2f}" if here else ""
            if here and goal and count in GOAL_TOKENS:
                good = statistics.geometric_mean(here) >= goal
                text = f"[green]✓ {text}[/]" if good else f"[red]✗ {text}[/]"
            cells.append(text)
        bound = statistics.geometric_mean(row["ratio_bound"] for row in own)
        layers = len({row["shape"] for row in own})
        table.add_row(f"{sparsity}%", str(layers), f"{bound:.2f}", f"{goal or ''}", *cells)
    fp8 = []
    for count in tokens:
        found = [row["fp8_ratio"] for row in rows if row["tokens"] == count and row["fp8_ratio"]]
        fp8.append(f"{statistics.geometric_mean(found):.2f}" if found else "")
    if any(fp8):
        table.add_row("fp8", "", "2.00", "", *fp8)
    return table


def _shares(rows: Sequence[dict[str, Any]]) -> Table:
    tokens = sorted({row["tokens"] for row in rows})
    table = Table(title="share of the bound", box=box.SIMPLE_HEAD)
    for column in ("zeros", *map(str, tokens)):
        table.add_column(column, justify="right", no_wrap=True)
    for sparsity in sorted({row["sparsity"] for row in rows}):
        cells = []
        for count in tokens:
            here = [r for r in rows if (r["sparsity"], r["tokens"]) == (sparsity, count)]
            cells.append(f"{statistics.fmean(r['of_bound'] for r in here):.0%}" if here else "")
        table.add_row(f"{sparsity}%", *cells)
    return table


def show_profile(arguments: argparse.Namespace, device: torch.device, budget: Budget) -> bool:
    rows = profile(arguments.format, arguments.out, budget)
    about = machine(device) | {"format": arguments.format}
    _results.write(arguments.out / "spmm_profile.csv", about, rows)
    for line in profile_summary(rows):
        print("  " + "; ".join(f"{name} {value}" for name, value in line.items()))
    return bool(rows)


def one(arguments: argparse.Namespace) -> None:
    """Makes a single call, for ncu: what comes before it is not profiled."""
    device, dtype = torch.device("cuda"), DTYPES[arguments.dtype]
    asked, tokens, sparsity = layer(arguments.one[0]), *map(int, arguments.one[1:])
    weight = random_weight(asked.shape, 1 - sparsity / 100, dtype, device)
    packed = _formats.packed_for_kernels(weight, arguments.format)
    x = activations(tokens, asked, dtype, device)
    _formats.multiply(packed, x)
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    _formats.multiply(packed, x)
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def main() -> None:
    options = parser(__doc__, minutes=9.0)
    for name in ("check", "sanitize", "speed", "profile"):
        options.add_argument(f"--{name}", action="store_true")
    options.add_argument("--format", default=DEFAULT_FORMAT, choices=format_names())
    add_layer_options(options, layer)
    options.add_argument("--sparsity", type=numbers, help="percent of zeros")
    options.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    arguments = options.parse_args()
    device = device_of(arguments)
    if arguments.one:
        one(arguments)
        return

    arguments.speed |= arguments.shapes
    asked = [arguments.check, arguments.speed, arguments.profile, arguments.sanitize]
    if not any(asked):
        asked = [True, True, device.type == "cuda", device.type == "cuda"]
    budget = Budget(60 * arguments.minutes)
    later = PROFILE_SECONDS * asked[2] + SANITIZE_SECONDS * asked[3]
    same_format = ("--format", arguments.format)
    parts = (
        lambda: check(arguments, device, budget.at_most(CHECK_SECONDS) if asked[1] else budget),
        lambda: speed(arguments, device, budget.keep(later)),
        lambda: show_profile(arguments, device, budget.keep(SANITIZE_SECONDS * asked[3])),
        lambda: sanitize(arguments.out, budget, Path(__file__), *same_format),
    )
    good = run_parts(part for wanted, part in zip(asked, parts, strict=True) if wanted)
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
