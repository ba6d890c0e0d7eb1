# SPDX-License-Identifier: Apache-2.0
"""The tables of the lab notes of Tiled-CSL's kernel."""

from __future__ import annotations

import statistics

import _results
from _markdown import Result, gpu_conditions, markdown, mean_of
from _spmm_tables import OPT, SHOWN

FORMAT = "tiled_csl"
# Goals of the geometric means over OPT's layers, at each of GOAL_TOKENS.
OPT_GOALS = {70: 1.45, 80: 2.1, 90: 3.6}
GOAL_TOKENS = (8, 16, 32)


def own_rows(result: Result) -> list[Result]:
    return [row for row in result["rows"] if row["format"] == FORMAT]


def shares(result: Result) -> str:
    """Memory bound / time, mean over all layers."""
    rows = [row for row in own_rows(result) if row["tokens"] in SHOWN]
    tokens = sorted({row["tokens"] for row in rows})
    cells = []
    for sparsity in sorted({row["sparsity"] for row in rows}):
        line = [f"{sparsity}% zeros"]
        for count in tokens:
            own = [r for r in rows if (r["sparsity"], r["tokens"]) == (sparsity, count)]
            line.append(f"{statistics.fmean(r['of_bound'] for r in own):.0%}" if own else "")
        cells.append(line)
    return markdown(["tokens:", *map(str, tokens)], cells) + gpu_conditions(result["about"])


def missed(result: Result) -> str:
    """The goals for OPT's layers, and how far each was reached."""
    cells = []
    for sparsity, goal in OPT_GOALS.items():
        rows = [r for r in own_rows(result) if r["model"] in OPT and r["sparsity"] == sparsity]
        means = [mean_of([r for r in rows if r["tokens"] == n], "ratio") for n in GOAL_TOKENS]
        reached = [f"{mean} ({float(mean) / goal:.0%})" if mean else "" for mean in means]
        cells.append([f"{sparsity}% zeros, 12 layers of OPT", f"{goal}", *reached])
    few = [r for r in own_rows(result) if r["sparsity"] > 55 and r["tokens"] <= 64]
    by_tokens = [[r for r in few if r["tokens"] == n] for n in GOAL_TOKENS]
    slower = [f"{sum(r['ratio'] < 1 for r in own)} of {len(own)}" for own in by_tokens]
    cells.append(["points slower than dense above 55% zeros, all layers", "0", *slower])
    return markdown(["", "goal", *(f"{n} tokens" for n in GOAL_TOKENS)], cells)


def cycles(result: Result) -> str:
    """The clocks of a tile on a multiprocessor, and the least clocks of two resources for it.

    In shared memory, words are loaded 32 at once (by the same path), then stored and cleared 32 at
    once, with the extra wavefronts that the packer counted; the tile is read at 128 bytes a clock;
    x is written, and read by each of two warps.
    """
    about = result["about"]
    clock = float(str(about["clocks.sm"]).split()[0]) * 1e6
    packer = _results.read(_results.FOLDER / "amd-epyc/cpu_pack_tiled_csl_avx512.csv")
    turns = {row["zeros"]: row["store cycles"] for row in packer["rows"]}
    cells = []
    for row in own_rows(result):
        zeros = f"{row['sparsity']}%"
        if row["shape"] != "28672x7168" or row["tokens"] != 8 or zeros not in turns:
            continue
        rows, cols = map(int, row["shape"].split("x"))
        tiles = rows * cols / (128 * 64)
        each = row["us"] * 1e-6 * clock * about["multiprocessors"] / tiles
        words = row["us"] * row["packed_gb_s"] * 1e3 / 4 / tiles
        of_words = (1 + 2 * turns[zeros]) * words / 32
        shared = of_words + 128 * 64 * 2 / 128 + 3 * 8 * 64 * 2 / 128
        figures = (words, 4 * words, each * row["of_bound"], shared, each)
        cells.append((row["sparsity"], [zeros, *(f"{figure:,.0f}" for figure in figures)]))
    header = ["a tile with zeros", "words", "bytes", "clocks: memory", "shared memory", "measured"]
    return markdown(header, [line for _, line in sorted(cells)]) + (
        f"\n28672x7168, 8 tokens, {about['clocks.sm']}, {about['multiprocessors']} multiprocessors."
        + gpu_conditions(about)
    )
