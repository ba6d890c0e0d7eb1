# SPDX-License-Identifier: Apache-2.0
"""Tables of N:M weights, by tokens and by the points of NM-SpMM."""

from __future__ import annotations

import math
from collections.abc import Sequence

from _markdown import Result, gpu_conditions, markdown, mean_of

PAPER_TOKENS = 256  # the least of NM-SpMM's 100 points
NM_SIZES = {
    "over 100 M weights": (100e6, math.inf),
    "40 to 100 M weights": (40e6, 100e6),
    "smaller layers": (0, 40e6),
}


def nm(result: Result) -> str:
    """Dense time / time of N:M patterns: size of layer and pattern down, tokens across."""
    rows = result["rows"]
    tokens = sorted({row["tokens"] for row in rows})
    text = ""
    for size, (least, most) in NM_SIZES.items():
        own = [row for row in rows if least <= math.prod(map(int, row["shape"].split("x"))) < most]
        if not own:
            continue
        cells = []
        for pattern in dict.fromkeys(row["pattern"] for row in own):
            lines = {f"**{pattern}**" if pattern[0].isdigit() else pattern: "us"}
            if any("cusparselt_us" in row for row in own if row["pattern"] == pattern):
                lines[f"{pattern}, cuSPARSELt"] = "cusparselt_us"
            for name, figure in lines.items():
                cells.append([name, *nm_means(own, pattern, tokens, figure)])
        cells.append(["fp8, dense", *nm_means(own, own[0]["pattern"], tokens, "fp8_us")])
        shapes = ", ".join(dict.fromkeys(row["shape"] for row in own))
        header = [f"{size}, tokens:", *map(str, tokens)]
        text += f"\n{shapes}:\n\n" + markdown(header, cells)
    return text + gpu_conditions(result["about"]) + "\n"


def nm_fp32(result: Result) -> str:
    """Dense time / time of float32 patterns: zeros down, tokens across, then NM-SpMM's points."""
    rows = result["rows"]
    tokens = sorted({row["tokens"] for row in rows})
    cells = []
    for zeros in sorted({row["zeros"] for row in rows}):
        own = [row for row in rows if row["zeros"] == zeros]
        means = [mean_of([r for r in own if r["tokens"] == count], "ratio") for count in tokens]
        points = mean_of([r for r in own if r["tokens"] >= PAPER_TOKENS], "ratio")
        cells.append([f"{zeros:.1%} zeros", *means, f"**{points}**"])
    header = ["tokens:", *map(str, tokens), f"{PAPER_TOKENS} and more"]
    return markdown(header, cells) + gpu_conditions(result["about"]) + "\n"


def nm_steps(result: Result) -> str:
    """TFLOP/s of kept products at 4096^3: the paper's steps down, zeros across."""
    rows = [row for row in result["rows"] if row["part"] == "F" and row["tokens"] == 4096]
    zeros = sorted({row["zeros"] for row in rows})
    best: dict[str, dict[float, float]] = {}
    for row in rows:
        launch = row["launch"].rpartition(",")[0]  # without its splits
        own = best.setdefault(launch, {})
        own[row["zeros"]] = max(own.get(row["zeros"], 0.0), row["tflops"])
    cells = [
        [launch, *(f"{own[share]:.1f}" if share in own else "" for share in zeros)]
        for launch, own in best.items()
    ]
    cells.append(["cuBLAS, dense", *[f"{rows[0]['dense_tflops']:.1f}"] * len(zeros)])
    header = ["TFLOP/s, zeros:", *(f"{share:.1%}" for share in zeros)]
    return markdown(header, cells) + gpu_conditions(result["about"]) + "\n"


def nm_shapes(result: Result) -> str:
    """The fastest launch of each shape of NM-SpMM's Table II: TFLOP/s and tile, zeros across."""
    rows = result["rows"]
    zeros = sorted({row["zeros"] for row in rows})
    cells = []
    for part in sorted({row["part"] for row in rows}):
        own = [row for row in rows if row["part"] == part]
        line = [f"{part}: {own[0]['shape']}, {own[0]['tokens']} tokens"]
        for share in zeros:
            best = max((row for row in own if row["zeros"] == share), key=lambda r: r["tflops"])
            line.append(f"{best['tflops']:.1f} ({best['launch'].split()[0]})")
        cells.append([*line, f"{own[0]['dense_tflops']:.1f}"])
    header = ["TFLOP/s (tile), zeros:", *(f"{share:.1%}" for share in zeros), "cuBLAS"]
    return markdown(header, cells) + gpu_conditions(result["about"]) + "\n"


def nm_means(rows: Sequence[Result], pattern: str, tokens: Sequence[int], figure: str) -> list[str]:
    """Geometric means of dense time / another time, by tokens."""
    found = [
        {"tokens": row["tokens"], "ratio": row["dense_us"] / row[figure]}
        for row in rows
        if row["pattern"] == pattern and row.get(figure)
    ]
    return [mean_of([r for r in found if r["tokens"] == count], "ratio") for count in tokens]
