# SPDX-License-Identifier: Apache-2.0
"""Tables of what stands around a layer's products, or is more than one: steps, experts, heads."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from _markdown import Result, gpu_conditions, markdown

Row = dict[str, Any]
BETWEEN = {
    "inductor_ms": "torch.compile's",
    "at_end_ms": "the same, PDL at their end",
    "ours_ms": "ours",
    "none_ms": "none",
}


def step(result: Result) -> str:
    """Milliseconds of a decode step without attention, by the kernels between its products."""
    rows = result["rows"]
    counts = sorted({row["tokens"] for row in rows})
    found = {(row["kind"], row["tokens"]): row for row in rows}
    cells = []
    for kind in dict.fromkeys(row["kind"] for row in rows):
        for name, text in BETWEEN.items():
            own = [found.get((kind, count), {}).get(name) for count in counts]
            if any(own):
                cells.append([kind, text, *(f"{ms:.2f}" if ms else "" for ms in own)])
    heads = ["weights", "kernels between products", *(f"{count} tokens, ms" for count in counts)]
    return markdown(heads, cells) + gpu_conditions(result["about"])


def experts(result: Result) -> str:
    """Microseconds of a layer of experts, uniform routing and skewed, without unpacking."""
    rows = [row for row in result["rows"] if not row["kind"].endswith(", unpacked")]
    counts = sorted({row["tokens"] for row in rows})
    cells = []
    for model in dict.fromkeys(row["model"] for row in rows):
        for skew in dict.fromkeys(row["routing"] for row in rows):
            own = [row for row in rows if (row["model"], row["routing"]) == (model, skew)]
            times = {(row["kind"], row["tokens"]): row["layer_us"] for row in own}
            for kind in dict.fromkeys(row["kind"] for row in own):
                line = [f"{times[kind, count]:,.0f}" if (kind, count) in times else ""
                        for count in counts]  # fmt: skip
                cells.append([f"{model}, {skew}", kind, *line])
    heads = ["layer, routing", "weights", *(f"{count} tokens, µs" for count in counts)]
    return markdown(heads, cells) + gpu_conditions(result["about"])


def heads(result: Result) -> str:
    """Dense time / time of output heads, after another kernel."""
    return _speedups(result, lambda row: row["shape"], "head")


def _speedups(result: Result, label: Callable[[Row], str], title: str) -> str:
    rows = result["rows"]
    counts = sorted({row["tokens"] for row in rows})
    cells = []
    for name in dict.fromkeys(map(label, rows)):
        own = [row for row in rows if label(row) == name]
        dense = {row["tokens"]: row["dense_us"] for row in own}
        cells.append([name, "cuBLAS, µs", *(f"{dense[count]:.0f}" for count in counts)])
        for kind in dict.fromkeys(row["kind"] for row in own):
            ratio = {r["tokens"]: r["dense_us"] / r["us"] for r in own if r["kind"] == kind}
            line = [f"{ratio[count]:.2f}" if count in ratio else "" for count in counts]
            cells.append([name, kind, *line])
    return markdown([title, "", *map(str, counts)], cells) + gpu_conditions(result["about"])


def lossless(result: Result) -> str:
    """Dense time / time of exact weights by the call that users make, beside fp8 and 2:4."""
    rows = [row for row in result["rows"] if "shape=" not in row["kind"]]
    return _speedups({**result, "rows": rows}, lambda row: row["shape"], "layer")


def codes(result: Result) -> str:
    """Dense time / time of each kernel of quantized bitmaps, geometric means over layers."""
    rows: Sequence[Row] = result["rows"]
    counts = [name for name in rows[0] if name.isdigit()]
    shapes = list(dict.fromkeys(row["shape"] for row in rows))
    dense = {
        (shape, count): min(r[count] for r in rows if r["shape"] == shape
                            and r["kind"] == "dense" and count in r)
        for shape in shapes
        for count in counts
    }  # fmt: skip
    cells = []
    for kind in dict.fromkeys(row["kind"] for row in rows if row["kind"] != "dense"):
        for name in dict.fromkeys(r["implementation"] for r in rows if r["kind"] == kind):
            own = [r for r in rows if (r["kind"], r["implementation"]) == (kind, name)]
            line = []
            for count in counts:
                gains = [dense[r["shape"], count] / r[count] for r in own if count in r]
                line.append(f"{statistics.geometric_mean(gains):.2f}" if gains else "")
            cells.append([kind, name, *line])
    about = f"\nOf {', '.join(shapes)}.\n"
    return markdown(["weights", "kernel", *counts], cells) + about + gpu_conditions(result["about"])
