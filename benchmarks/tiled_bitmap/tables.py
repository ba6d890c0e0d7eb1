# SPDX-License-Identifier: Apache-2.0
"""The documents' tables of tiled_bitmap's launches for few tokens, and of codes of 8 bits.

Few tokens are of tiled_bitmap_sweep.csv and tiled_bitmap_sweep_codes.csv, float16, by the planned
launch, or by the fastest where that was not measured; cuBLAS, and dense fp8 and values of 16 bits
beside codes, are of spmm.csv, another run.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import _results
from _markdown import Result, gpu_conditions, markdown

ZEROS, TOKENS = (50, 60, 70, 80), (8, 32)
LARGE_ELEMENTS = 100_000_000
LARGE = ("28672x4096", "12288x12288", "28672x7168", "36864x9216")
LAYERS = ("4096x4096", "8192x8192", "4096x14336", *LARGE)
NAMES = {"native": "16 bits", "codes": "int8", "rounded": "int8 x int8"}

LAUNCHED = ("4096x4096", "8192x8192", "4096x14336", *LARGE[1:])  # µs of launches are shown

Time = Callable[[str, int, int], float]  # of a layer, tokens, and zeros


def planned_us(row: Result) -> float:
    """Microseconds of the planned launch, or of the fastest where that was not measured."""
    return row.get("us", row["best_us"])


def launch_speeds(result: Result) -> str:
    """Time of cuBLAS / time, geometric averages of large layers: tokens down, zeros across."""
    spmm = _results.read(_results.FOLDER / "nvidia-h200" / "spmm.csv")["rows"]
    dense = {(row["shape"], row["tokens"]): row["dense_us"] for row in spmm}
    ratios: dict[tuple[int, int], list[float]] = {}
    for row in result["rows"]:
        if row["out"] * row["in"] > LARGE_ELEMENTS:
            faster = dense[f"{row['out']}x{row['in']}", row["tokens"]] / planned_us(row)
            ratios.setdefault((row["tokens"], row["zeros"]), []).append(faster)
    tokens, zeros = (sorted({key[i] for key in ratios}) for i in (0, 1))
    cells = [
        [str(n), *(f"{statistics.geometric_mean(ratios[n, each]):.2f}" for each in zeros)]
        for n in tokens
    ]
    header = ["tokens", *(f"{each}%" for each in zeros)]
    return markdown(header, cells) + gpu_conditions(result["about"])


def launch_times(result: Result) -> str:
    """Microseconds: layers and tokens down, zeros across."""
    rows = {(f"{r['out']}x{r['in']}", r["tokens"], r["zeros"]): r for r in result["rows"]}
    zeros = sorted({key[2] for key in rows})
    cells = []
    for layer in LAUNCHED:
        for tokens in TOKENS:
            own = [rows[layer, tokens, each] for each in zeros]
            told = [f"{planned_us(row):.1f}{'' if 'us' in row else '*'}" for row in own]
            cells.append([f"{layer}, {tokens} tokens", f"{own[0]['dense_us']:.1f}", *told])
    header = ["µs", "`F.linear`", *(f"{each}%" for each in zeros)]
    return markdown(header, cells) + gpu_conditions(result["about"])


def _times(result: Result) -> dict[str, Time]:
    """Microseconds of each kernel."""
    spmm = _results.read(_results.FOLDER / "nvidia-h200" / "spmm.csv")["rows"]
    own = {
        (row["shape"], row["tokens"], row["sparsity"]): row
        for row in spmm
        if row["format"] == "tiled_bitmap"
    }
    codes = {
        (row["values"], f"{row['out']}x{row['in']}", row["tokens"], row["zeros"]): row
        for row in result["rows"]
    }

    def of_spmm(figure: str) -> Time:
        return lambda layer, tokens, zeros: own[layer, tokens, zeros][figure]

    def of_codes(values: str) -> Time:
        def time(layer: str, tokens: int, zeros: int) -> float:
            return planned_us(codes[values, layer, tokens, zeros])

        return time

    kernels = {"cuBLAS": of_spmm("dense_us"), "fp8, dense": of_spmm("fp8_us")}
    kernels |= {f"**{NAMES['native']}**": of_spmm("us")}
    return kernels | {f"**{NAMES[values]}**": of_codes(values) for values in ("codes", "rounded")}


def speeds(result: Result) -> str:
    """Time of cuBLAS / time, geometric averages of large layers: kernels down, zeros across."""
    kernels = _times(result)
    dense = kernels.pop("cuBLAS")
    cells = []
    for name, time in reversed(kernels.items()):
        ratios = [
            statistics.geometric_mean(
                dense(layer, tokens, zeros) / time(layer, tokens, zeros) for layer in LARGE
            )
            for tokens in TOKENS
            for zeros in ZEROS
        ]
        cells.append([name, *(f"{ratio:.2f}" for ratio in ratios)])
    header = ["tokens: zeros", *(f"{tokens}: {zeros}%" for tokens in TOKENS for zeros in ZEROS)]
    return markdown(header, cells) + gpu_conditions(result["about"])


def times(result: Result) -> str:
    """Microseconds: layers, tokens and kernels down, zeros across."""
    kernels = _times(result)
    cells = []
    for layer in LAYERS:
        for tokens in TOKENS:
            dense, fp8 = (
                kernels[name](layer, tokens, ZEROS[0]) for name in ("cuBLAS", "fp8, dense")
            )
            for values in ("codes", "rounded"):
                time = kernels[f"**{NAMES[values]}**"]
                found = [f"{time(layer, tokens, zeros):.1f}" for zeros in ZEROS]
                cells.append(
                    [layer, str(tokens), NAMES[values], f"{dense:.1f}", f"{fp8:.1f}", *found]
                )
    header = ["layer", "tokens", "values", "cuBLAS", "fp8", *(f"{zeros}%" for zeros in ZEROS)]
    return markdown(header, cells) + gpu_conditions(result["about"])


def prompts(result: Result) -> str:
    """Microseconds: layers and zeros down with kernels, tokens across."""
    rows = result["rows"]
    tokens = sorted({row["tokens"] for row in rows})
    cells = []
    for layer in dict.fromkeys(row["layer"] for row in rows):
        own = [row for row in rows if row["layer"] == layer]
        found = {(row["zeros"], row["way"], row["tokens"]): row["us"] for row in own}
        beside = {row["tokens"]: row for row in own}
        for name, column in (("cuBLAS", "dense_us"), ("fp8, dense", "fp8_us")):
            cells.append([f"{layer}, {name}", *(f"{beside[n][column]:.0f}" for n in tokens)])
        least = min(row["zeros"] for row in own)
        alone = [f"{found[least, 'int8 alone', n]:.0f}" for n in tokens]
        cells.append([f"{layer}, int8 by int8, dense", *alone])
        for zeros in sorted({row["zeros"] for row in own}):
            for name, way in (("launches of 64", "few tokens"), ("unpacked", "unpacked")):
                times = [found.get((zeros, way, n)) for n in tokens]
                told = ["" if us is None else f"{us:.0f}" for us in times]
                cells.append([f"{layer}, {zeros}% zeros, {name}", *told])
    header = ["µs, tokens:", *map(str, tokens)]
    return markdown(header, cells) + gpu_conditions(result["about"])
