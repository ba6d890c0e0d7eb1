# SPDX-License-Identifier: Apache-2.0
"""`flashsparse tune --roofline`: float32 products of N:M weights on a GPU's roofline.

NM-SpMM, Figure 10, with the roof of the L2, from which blocks read, beside that of memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.text import Text

from .console import err, out, print_json, table, usage

if TYPE_CHECKING:
    from flashsparse_plugin.formats.pattern.options import PatternOptions
    from flashsparse_plugin.gpu import Gpu

TOKENS = 4096  # the paper's m, of m = n = k = 4096
PATTERNS = (16, 12, 8, 4)  # of 32 in vectors of 32 rows: the paper's


class Point(NamedTuple):
    """A product on the roofline.

    Attributes:
        options: The pattern.
        packing: Whether blocks read only the columns of x that they keep.
        intensity: Operations for a byte that a block reads or writes: Equation 3.
        rate: Operations a second that the roofline allows the kernel.
        measured: Operations a second that were measured; None where nothing was.
    """

    options: PatternOptions
    packing: bool
    intensity: float
    rate: float
    measured: float | None = None

    @property
    def zeros(self) -> float:
        return 1 - self.options.n / self.options.m


def roofline(
    shape: tuple[int, int], options: Mapping[str, Any], estimate: str | None, path: Path, json: bool
) -> None:
    """Draws and shows where products of 4096 tokens lie.

    Args:
        shape: (out_features, in_features).
        options: Of a pattern; empty: the paper's four.
        estimate: A GPU to take the figures of; None: this machine's, on which they are measured.
        path: The file to draw to.
        json: Print the points as JSON.
    """
    try:
        import matplotlib
    except ImportError:
        raise ImportError("--roofline needs matplotlib: pip install matplotlib") from None
    matplotlib.use("Agg")
    with err.status("Starting"):
        from flashsparse_plugin.formats.pattern.options import PatternOptions
        from flashsparse_plugin.gpu import find_gpu
    if options:
        patterns = [PatternOptions(**options)]
    else:
        patterns = [PatternOptions(n=n, m=32, vector_length=32) for n in PATTERNS]
    try:
        if estimate is None:
            gpu, measured = _measured(shape, patterns)
        else:
            gpu, measured = find_gpu(estimate, (0, 0)), {}
            _require_fit(shape, patterns)
    except ValueError as error:
        raise usage(str(error), "--option") from None
    points = points_of(shape, patterns, gpu, measured)
    _draw(points, shape, gpu, path)
    if json:
        print_json({"device": gpu.name, "shape": shape, "tokens": TOKENS,
                    "points": [_plain(point) for point in points]})  # fmt: skip
    else:
        _show(points, shape, gpu)


def points_of(
    shape: tuple[int, int],
    patterns: Sequence[PatternOptions],
    gpu: Gpu,
    measured: Mapping[str, float],
) -> list[Point]:
    """The products of patterns, each without and with packing.

    Args:
        shape: (out_features, in_features).
        patterns: The patterns.
        gpu: The figures of a GPU.
        measured: Operations a second, by a pattern's title.
    """
    from flashsparse_plugin.formats.pattern.nm_spmm.analysis import (
        ITEMSIZE,
        WIDE,
        attainable,
        should_pack,
        used_share,
    )

    points = []
    for options in patterns:
        pair = []
        for packing in (False, True):
            used = shape[1] * (used_share(options, WIDE.rows) if packing else 1)
            intensity = WIDE.intensity(used, shape[1] * options.n / options.m)
            rate = attainable(intensity, gpu.l2, WIDE.reach(gpu) * gpu.float32_peak)
            pair.append(Point(options, packing, intensity / ITEMSIZE, rate))
        own = should_pack(options, WIDE.rows)
        pair[own] = pair[own]._replace(measured=measured.get(options.title))
        points += pair
    return points


def _require_fit(shape: tuple[int, int], patterns: Sequence[PatternOptions]) -> list[Any]:
    import torch

    from flashsparse_plugin.formats.pattern.nm_spmm import NMSpmm

    schemes = [NMSpmm().scheme(torch.float32, each.model_dump()) for each in patterns]
    for scheme in schemes:
        NMSpmm().require_fit(scheme, shape)
    return schemes


def _measured(
    shape: tuple[int, int], patterns: Sequence[PatternOptions]
) -> tuple[Gpu, dict[str, float]]:
    """This machine's GPU, and the operations a second of each pattern's kept products."""
    import torch

    from flashsparse_plugin.dataflow import tuner
    from flashsparse_plugin.gpu import find_gpu
    from flashsparse_plugin.plan import Plan

    device = tuner.require_gpu()
    found = {}
    with err.status("Measuring") as status:
        for options, scheme in zip(patterns, _require_fit(shape, patterns), strict=True):
            status.update(f"Measuring {options.title}")
            dense = tuner.random_weight(shape, 1.0, scheme.dtype, device)
            packed = scheme.format.pack(scheme.format.conform(dense, scheme), scheme)
            x = torch.randn(TOKENS, shape[1], device=device)
            multiply = partial(packed.linear, x, plan=Plan.only("sparse"))
            kept = 2.0 * TOKENS * shape[0] * shape[1] * options.n / options.m
            found[options.title] = kept / tuner.graph_timer(multiply, 1)
    name, capability = torch.cuda.get_device_name(), torch.cuda.get_device_capability()
    return find_gpu(name, capability), found


# ---- showing ------------------------------------------------------------------------------------


def _plain(point: Point) -> dict[str, Any]:
    return {
        "pattern": point.options.title,
        "zeros": point.zeros,
        "packing": point.packing,
        "operations_per_byte": round(point.intensity, 2),
        "tflops": round(point.rate / 1e12, 2),
        "measured_tflops": None if point.measured is None else round(point.measured / 1e12, 2),
    }


def _show(points: Sequence[Point], shape: tuple[int, int], gpu: Gpu) -> None:
    from flashsparse_plugin.formats.pattern.nm_spmm.analysis import WIDE

    reach = WIDE.reach(gpu) * gpu.float32_peak
    made = table("Pattern", "Zeros", "x", "FLOP/byte", "bound by", "TFLOP/s", "measured", left=1)
    for point in points:
        made.add_row(
            point.options.title,
            f"{point.zeros:.1%}",
            "packed" if point.packing else "whole",
            f"{point.intensity:.1f}",
            "L2" if point.rate < reach else "arithmetic",
            f"{point.rate / 1e12:.1f}",
            "" if point.measured is None else f"{point.measured / 1e12:.1f}",
        )
    title = f"{TOKENS} x {shape[0]} x {shape[1]} in float32, {gpu.name}"
    out.print(Text(title, style="bold"), "")
    out.print(made)
    peak = gpu.float32_peak / 1e12
    out.print(
        Text(
            f"\nPeak {peak:.1f} TFLOP/s, of which instructions and shared memory let the kernel "
            f"reach {reach / gpu.float32_peak:.0%}."
        )
    )


def _draw(points: Sequence[Point], shape: tuple[int, int], gpu: Gpu, path: Path) -> None:
    """Rates against intensity, with the roofs of memory, L2 and arithmetic."""
    import matplotlib.pyplot as plt

    from flashsparse_plugin.formats.pattern.nm_spmm.analysis import WIDE

    peak, reach = gpu.float32_peak, WIDE.reach(gpu) * gpu.float32_peak
    low = min(peak / gpu.l2, *(point.intensity for point in points)) / 4
    high = 2 * max(peak / gpu.memory, *(point.intensity for point in points))
    figure, axis = plt.subplots(figsize=(7.2, 4.6))
    roofs = (("memory", gpu.memory, "0.55"), ("L2", gpu.l2, "0.25"))
    for _, bandwidth, colour in roofs:
        ridge = peak / bandwidth
        axis.plot([low, ridge], [low * bandwidth / 1e12, peak / 1e12], color=colour, linewidth=1.2)
    axis.plot([peak / gpu.l2, high], [peak / 1e12] * 2, color="0.25", linewidth=1.2)
    axis.annotate(f"FMA units, {peak / 1e12:.1f} TFLOP/s", (high, peak / 1e12), xytext=(-4, 4),
                  textcoords="offset points", ha="right", fontsize=8)  # fmt: skip
    axis.axhline(reach / 1e12, color="0.6", linestyle=":", linewidth=1.2)
    axis.annotate("issue and shared memory", (high, reach / 1e12), xytext=(-4, -10),
                  textcoords="offset points", ha="right", fontsize=8, color="0.4")  # fmt: skip
    colours = plt.get_cmap("viridis")
    patterns = list(dict.fromkeys(point.options.title for point in points))
    for number, title in enumerate(patterns):
        colour = colours(0.1 + 0.75 * number / max(len(patterns) - 1, 1))
        own = [point for point in points if point.options.title == title]
        for point in own:
            face = colour if point.packing else "white"
            label = f"{title}: {point.zeros:.1%} zeros" if point.packing else None
            axis.plot(point.intensity, point.rate / 1e12, "o", markersize=7, color=colour,
                      markerfacecolor=face, label=label, zorder=3)  # fmt: skip
            if point.measured is not None:
                axis.plot(point.intensity, point.measured / 1e12, "*", markersize=12,
                          color=colour, markeredgecolor="black", zorder=4)  # fmt: skip
        axis.plot(*zip(*((p.intensity, p.rate / 1e12) for p in own), strict=True),
                  color=colour, linewidth=1, alpha=0.6)  # fmt: skip
    axis.plot([], [], "o", color="0.3", markerfacecolor="white", label="x whole")
    axis.plot([], [], "o", color="0.3", label="x packed")
    if any(point.measured is not None for point in points):
        axis.plot([], [], "*", color="0.3", markersize=10, label="measured")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    axis.xaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_major_formatter("{x:g}")
    axis.set_xlim(low, high)
    axis.set_ylim(low * gpu.memory / 1e12, 1.5 * peak / 1e12)
    (x0, y0), (x1, y1) = axis.transData.transform([(low, low), (2 * low, 2 * low)])
    angle = math.degrees(math.atan2(y1 - y0, x1 - x0))
    for name, bandwidth, colour in roofs:
        axis.annotate(f"{name}, {bandwidth / 1e12:.1f} TB/s", (low, low * bandwidth / 1e12),
                      xytext=(10, 12), textcoords="offset points", color=colour, fontsize=8,
                      rotation=angle, rotation_mode="anchor")  # fmt: skip
    axis.set_xlabel("operations a byte (Equation 3 of NM-SpMM)")
    axis.set_ylabel("TFLOP/s of kept products")
    axis.set_title(f"{TOKENS} x {shape[0]} x {shape[1]}, float32, {gpu.name}", fontsize=10)
    axis.grid(which="major", color="0.92")
    axis.set_axisbelow(True)
    axis.legend(fontsize=8, loc="lower right", frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=140)
    plt.close(figure)
    err.print(Text(f"Drawn to {path}"), soft_wrap=True)
