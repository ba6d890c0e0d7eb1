# SPDX-License-Identifier: Apache-2.0
"""Are N:M weights multiplied right on this GPU, and how fast?

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
    python benchmarks/gpu/nm.py --profile    what binds where goals are missed: single launches
                                             under Nsight Compute
    python benchmarks/gpu/nm.py --device cpu --check     shows that this program works

Results are saved after each layer; when the --minutes are over, the rest is left out with a
message. The card's clocks are never set.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import nm_fp32
import torch
from _baselines import activations
from _device import Budget, Stopwatch, _formats, _results, machine, plots
from _layers import layer
from _nm import (
    LONG_VECTORS,
    PROMPTS,
    TOKENS,
    TWO_FOUR,
    VALUES,
    VECTORS,
    pattern,
    pattern_weight,
)
from _nm_check import NMChecker, cases, small_cases, value_cases
from _nm_report import show
from _nm_speed import Speed
from _program import check_layers, conditions, device_of, numbers, parser, run_parts, save_each
from _tools import profile, profile_summary, profiled

import flashsparse_plugin as fs

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


def check(arguments: argparse.Namespace, device: torch.device, budget: Budget) -> bool:
    report = arguments.out / f"nm{'_values' if arguments.values else ''}_check.txt"
    every = value_cases if arguments.values else cases
    return check_layers(NMChecker, every, small_cases, report, arguments, device, budget)


def speed(arguments: argparse.Namespace, device: torch.device, budget: Budget) -> bool:
    stopwatch = Stopwatch(device, arguments.replays)
    about, bandwidth = conditions(arguments, device, stopwatch)
    measured = Speed(arguments, device, stopwatch, bandwidth)
    name = "nm_prompts" if arguments.prompts else "nm_values" if arguments.values else "nm"
    path = arguments.out / f"{name}.csv"
    save_each(measured.run(budget), measured.rows, about, path, budget, show)
    return bool(measured.rows)


def show_profile(arguments: argparse.Namespace, device: torch.device, budget: Budget) -> bool:
    points = [dict(zip(POINT, each, strict=True)) for each in PROFILED]
    rows = profile(Path(__file__), points, arguments.out, budget)
    if rows:  # a machine without ncu must not overwrite what was measured
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


# What everything is, and the most minutes of each: all take less on an H200.
EVERYTHING: tuple[tuple[Any, tuple[str, ...], float], ...] = (
    (sys.modules[__name__], ("--check",), 1.0),
    (sys.modules[__name__], ("--speed",), 1.2),
    (sys.modules[__name__], ("--prompts",), 4.0),
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
    if arguments.device == "cpu":
        return good  # pictures are of a card
    pictures = partial(plots.patterns_of, arguments.out.resolve(), arguments.out)
    return good & run_parts([lambda: bool(pictures())])


def main(argv: Sequence[str] | None = None) -> None:
    options = parser(__doc__, minutes=9.0, dtype="bfloat16")
    for name in ("check", "speed", "prompts", "values", "small"):
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
    arguments.speed |= arguments.prompts
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
