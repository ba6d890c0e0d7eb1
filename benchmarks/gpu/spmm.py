# SPDX-License-Identifier: Apache-2.0
"""Are the sparse linear layers right on this GPU, how fast are they, and what binds them?

    python benchmarks/gpu/spmm.py                    checks and times, in 9 minutes at most
    python benchmarks/gpu/spmm.py --check [--quick]  every way to call it, against float64
    python benchmarks/gpu/spmm.py --speed            OPT's and Llama's layers, against cuBLAS
    python benchmarks/gpu/spmm.py --sanitize         a few checks under compute-sanitizer
    python benchmarks/gpu/spmm.py --profile          single launches under Nsight Compute
    python benchmarks/gpu/spmm.py --device cpu       a toy run that shows that this program works

All formats that keep any zeros are compared; --format NAME[,NAME] picks some. Beside them are
cuBLAS in its fastest layout, fp8, and int4 (Marlin) where vLLM is installed. The program needs only
the package with its CUDA object. Results are saved after each layer; when the --minutes are over,
the rest is left out with a message. The card's clocks are never set.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _baselines import activations
from _device import Budget, Stopwatch, _formats, _results, machine
from _layers import OPT, Layer, layer
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
)
from _sparse import SparseChecker, cases, small_cases
from _speed import STAGES, Speed, Stage
from _spmm_report import show
from _tools import profile, profile_summary, profiled, sanitize

from flashsparse_plugin.dataflow.tuner import random_weight

CHECK_SECONDS = 120  # if speed is requested, too
QUICK = 5  # one check of so many
# Layer, tokens, percent of zeros.
PROFILED = (
    ("28672x7168", 8, 50),
    ("28672x7168", 8, 70),
    ("28672x7168", 8, 80),
    ("28672x7168", 8, 90),
    ("28672x7168", 32, 80),
    ("28672x7168", 128, 50),
    ("28672x7168", 256, 50),
    ("28672x7168", 256, 80),
    ("28672x7168", 1024, 80),
)
PROFILE_SECONDS, SANITIZE_SECONDS = 75, 150  # a format, if more is requested
TOY = Stage([Layer("toy", "a", 256, 128), Layer("toy", "b", 128, 256)], (50, 80), (1, 16, 64))
GOAL_TOKENS = (8, 16, 32)


def check(arguments: argparse.Namespace, device: torch.device, budget: Budget) -> bool:
    """Checks one format after the other, each for its share of the time."""
    every = QUICK if arguments.quick else 1
    good = True
    for done, format in enumerate(arguments.format):
        print(f"{format}:", flush=True)
        good &= check_layers(
            SparseChecker,
            lambda: itertools.islice(cases(), 0, None, every),
            small_cases,
            arguments.out / f"{format}_check.txt",
            arguments,
            device,
            budget.at_most(budget.left / (len(arguments.format) - done)),
            format=format,
        )
    return good


def speed(arguments: argparse.Namespace, device: torch.device, budget: Budget) -> bool:
    stopwatch = Stopwatch(device, arguments.replays)
    about, bandwidth = conditions(arguments, device, stopwatch)
    dtype = DTYPES[arguments.dtype]
    measured = Speed(arguments.format, device, dtype, stopwatch, bandwidth)
    stages = _stages(arguments, device)
    path = arguments.out / "spmm.csv"
    save_each(measured.run(stages, budget), measured.rows, about, path, budget, show)
    wanted = sum(len(s.layers) * len(s.sparsities) * len(s.tokens) for s in stages if not s.csr)
    for format in arguments.format:
        own = (row for row in measured.rows if row["format"] == format)
        points = {(row["shape"], row["sparsity"], row["tokens"]) for row in own}
        if len(points) < wanted:
            why = measured.failed.get(format, "time was over")
            print(f"{format}: {len(points)} of {wanted} points: {why}")
    return bool(measured.rows) and not measured.failed


def _stages(arguments: argparse.Namespace, device: torch.device) -> Sequence[Stage]:
    asked = (arguments.layers, arguments.sparsity, arguments.tokens)
    if any(asked):
        layers, sparsity, tokens = asked
        return [Stage(layers or OPT, sparsity or (70, 80, 90), tokens or GOAL_TOKENS)]
    return STAGES if device.type == "cuda" else [TOY]


def show_profile(arguments: argparse.Namespace, device: torch.device, budget: Budget) -> bool:
    rows: list[dict[str, Any]] = []
    for done, format in enumerate(arguments.format):
        share = budget.at_most(budget.left / (len(arguments.format) - done))
        points = [{"shape": shape, "tokens": n, "sparsity": zeros} for shape, n, zeros in PROFILED]
        found = profile(Path(__file__), points, arguments.out, share, "--format", format)
        rows += [{"format": format} | row for row in found]
    if rows:  # a machine without ncu must not overwrite what was measured
        _results.write(arguments.out / "spmm_profile.csv", machine(device), rows)
    for line in profile_summary(rows):
        print("  " + "; ".join(f"{name} {value}" for name, value in line.items()))
    return bool(rows)


def one(points: Sequence[Sequence[Any]], format: str, dtype: torch.dtype, budget: Budget) -> None:
    """Makes a call for each point, for ncu."""
    device = torch.device("cuda")
    for shape, tokens, sparsity in points:
        if budget.left <= 0:
            return
        asked = layer(shape)
        weight = random_weight(asked.shape, 1 - sparsity / 100, dtype, device)
        packed = _formats.packed_for_kernels(weight, format)
        x = activations(tokens, asked, dtype, device)
        profiled(partial(_formats.multiply, packed, x))


def formats(text: str) -> list[str]:
    """Names of formats from "tiled_csl,tiled_bitmap"."""
    names, known = text.split(","), _formats.unstructured()
    for name in names:
        if name not in known:
            raise argparse.ArgumentTypeError(
                f"{name!r} is no format that keeps any zeros; there are {', '.join(known)}"
            )
    return names


def main() -> None:
    options = parser(__doc__, minutes=9.0)
    names = ("check", "speed", "profile", "sanitize")
    for name in names:
        options.add_argument(f"--{name}", action="store_true")
    options.add_argument("--quick", action="store_true", help=f"one check of {QUICK}")
    options.add_argument("--format", type=formats, default=list(_formats.unstructured()))
    add_layer_options(options, layer)
    options.add_argument("--sparsity", type=numbers, help="percent of zeros")
    options.add_argument("--one", type=json.loads, help=argparse.SUPPRESS)
    arguments = options.parse_args()
    device = device_of(arguments)
    if arguments.one:
        one(
            arguments.one,
            arguments.format[0],
            DTYPES[arguments.dtype],
            Budget(60 * arguments.minutes),
        )
        return

    asked = {name: getattr(arguments, name) for name in names}
    if not any(asked.values()):
        asked |= {"check": True, "speed": True}
    budget = Budget(60 * arguments.minutes)
    count = len(arguments.format)
    last = SANITIZE_SECONDS * count * asked["sanitize"]
    later = PROFILE_SECONDS * count * asked["profile"] + last
    checking = CHECK_SECONDS if asked["speed"] else budget.left
    same = ("--format", ",".join(arguments.format))
    parts: dict[str, Callable[[], bool]] = {
        "check": lambda: check(arguments, device, budget.at_most(checking)),
        "speed": lambda: speed(arguments, device, budget.keep(later)),
        "profile": lambda: show_profile(arguments, device, budget.keep(last)),
        "sanitize": lambda: sanitize(arguments.out, budget, Path(__file__), *same),
    }
    raise SystemExit(0 if run_parts(parts[name] for name in names if asked[name]) else 1)


if __name__ == "__main__":
    main()
