# SPDX-License-Identifier: Apache-2.0
"""Tables of what programmatic dependent launch gains, by the preceding kernel (gpu/behind.py)."""

from __future__ import annotations

import statistics

from _markdown import Result, gpu_conditions, markdown

TOKENS = 8
EARLY, LATE = "early", "one after the other"  # the ways to launch a product
WAYS = {EARLY: "with PDL", LATE: "without"}
KIND, DENSE = "its kind", "cuBLAS"  # the preceding kernel, and the baseline


def behind(result: Result) -> str:
    """Microseconds for 8 tokens: layers and patterns down; preceding kernel and way across."""
    rows = [row for row in result["rows"] if row["tokens"] == TOKENS]
    befores = list(dict.fromkeys(row["before"] for row in rows))
    found = {(row["shape"], row["pattern"], row["before"], row["way"]): row["us"] for row in rows}
    cells = []
    for shape, pattern in dict.fromkeys((row["shape"], row["pattern"]) for row in rows):
        own = [found[shape, pattern, before, way] for before in befores for way in WAYS]
        if pattern == DENSE:  # which never uses PDL
            own[::2] = own[1::2]
        cells.append([f"{shape}, {pattern}", *(f"{us:.1f}" for us in own)])
    named = ["the same x" if before == KIND else f"`{before}`" for before in befores]
    header = [f"after {before}: {way}" for before in named for way in WAYS.values()]
    return markdown([f"µs, {TOKENS} tokens", *header], cells) + gpu_conditions(result["about"])


def gains(result: Result) -> str:
    """Dense time / time for 8 tokens after a product of the same x, means over the layers."""
    rows = [row for row in result["rows"] if row["tokens"] == TOKENS and row["before"] == KIND]
    found = {(row["shape"], row["pattern"], row["way"]): row["us"] for row in rows}
    shapes, patterns = (
        list(dict.fromkeys(row[name] for row in rows)) for name in ("shape", "pattern")
    )

    def gain(pattern: str, way: str) -> str:
        times = ((found[shape, DENSE, LATE], found[shape, pattern, way]) for shape in shapes)
        return f"{statistics.geometric_mean(dense / us for dense, us in times):.2f}"

    cells = [[each, *(gain(each, way) for way in WAYS)] for each in patterns if each != DENSE]
    header = [f"dense time / time, {TOKENS} tokens", *WAYS.values()]
    return markdown(header, cells) + gpu_conditions(result["about"])
