# SPDX-License-Identifier: Apache-2.0
"""What cuSPARSELt brings layers of 2:4, in a table."""

from __future__ import annotations

from _markdown import Result, gpu_conditions, markdown

OURS, OPTION = "own_us", "prompts_us"
FIGURES = {
    OURS: "ours",
    OPTION: "**prompts=cusparselt**",
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
        has_option = any(row.get(OPTION) for row in own.values())
        for figure, name in FIGURES.items():
            # With the option a layer takes the library where that is faster.
            if not any(row.get(figure) for row in own.values()) or (
                has_option and figure == "library_us"
            ):
                continue
            line = [f"{shape}, {pattern}: {name}"]
            for count in tokens:
                us = own[count].get(figure) if count in own else None
                line.append(f"{own[count]['dense_us'] / us:.2f}" if us else "")
            cells.append(line)
    header = ["dense time / time, tokens:", *map(str, tokens)]
    return markdown(header, cells) + gpu_conditions(result["about"])
