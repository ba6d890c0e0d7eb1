# SPDX-License-Identifier: Apache-2.0
"""Draws what `flashsparse tune` measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from .console import err

if TYPE_CHECKING:
    from flashsparse_plugin.dataflow.table import Entry


def packed_as(entry: Entry) -> str:
    """How a layer is packed and its zeros, which of a pattern are known, or nothing."""
    scheme = entry.scheme()
    if scheme is None:
        return ""
    return scheme.title if scheme.values else f"{scheme.title} {1 - entry.density:.0%} zeros"


def draw_times(entries: Sequence[Entry], device: str, path: Path) -> None:
    """Microseconds against tokens, a plot a layer."""
    try:
        import matplotlib
    except ImportError:
        raise ImportError("--plot needs matplotlib: pip install matplotlib") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = min(len(entries), 4)
    rows = -(-len(entries) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(3.6 * columns, 3 * rows), squeeze=False)
    for axis, entry in zip(axes.flat, entries, strict=False):
        _draw_entry(axis, entry)
    for axis in axes.flat[len(entries) :]:
        axis.set_visible(False)
    figure.suptitle(device)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    err.print(Text(f"Drawn to {path}"), soft_wrap=True)


def _draw_entry(axis: Any, entry: Entry) -> None:
    colours = {"gemv": "tab:cyan", **dict.fromkeys(("flat_gemm", "sparse", "few"), "tab:green")}
    colours["many"] = "tab:olive"
    found = [each for each in entry.measurements if each.tokens <= 256]
    for name in dict.fromkeys(name for each in found for name in each.microseconds):
        points = [(m.tokens, m.microseconds[name]) for m in found if name in m.microseconds]
        axis.plot(*zip(*points, strict=True), marker=".", label=name,
                  color=colours.get(name, "tab:orange"))  # fmt: skip
    for each in entry.ranges[:-1]:
        axis.axvline((each.max_tokens or 0) + 0.5, color="0.5", linestyle="--", linewidth=1)
    packed = packed_as(entry)
    zeros = f", {packed}" if packed else ""
    axis.set_title(f"{entry.shape[0]}x{entry.shape[1]}{zeros}", fontsize=9)
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter("{x:.0f}")
    axis.set_ylim(bottom=0)
    axis.set_xlabel("tokens")
    axis.set_ylabel("µs")
    axis.legend(fontsize=7)
