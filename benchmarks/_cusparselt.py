# SPDX-License-Identifier: Apache-2.0
"""How fast cuSPARSELt multiplies 2:4 by codes on both sides, in a table."""

from __future__ import annotations

from _markdown import Result, gpu_conditions, markdown

FIGURES = {
    "own_us": "ours",
    "library_us": "the library alone",
    "whole_us": "the library, x rounded",
}


def gains(result: Result) -> str:
    """Dense time / time: layers and what multiplies them down, tokens across."""
    rows = result["rows"]
    tokens = sorted({row["tokens"] for row in rows})
    cells = []
    for shape, pattern in dict.fromkeys((row["shape"], row["pattern"]) for row in rows):
        own = {r["tokens"]: r for r in rows if (r["shape"], r["pattern"]) == (shape, pattern)}
        for figure, name in FIGURES.items():
            if not any(row.get(figure) for row in own.values()):
                continue
            line = [f"{shape}, {pattern}: {name}"]
            for count in tokens:
                us = own[count].get(figure) if count in own else None
                line.append(f"{own[count]['dense_us'] / us:.2f}" if us else "")
            cells.append(line)
    header = ["dense time / time, tokens:", *map(str, tokens)]
    return markdown(header, cells) + gpu_conditions(result["about"])
