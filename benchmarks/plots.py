# SPDX-License-Identifier: Apache-2.0
"""Draws the pictures of the documents from benchmarks/results.

    python benchmarks/plots.py             draws all into docs/pictures
    python benchmarks/plots.py FOLDER      elsewhere

One finding a picture, which its title says with figures from the result. Ordered quantities have
ordered colours, lines are labelled where they begin, and higher is always faster. Backgrounds are
transparent, and all colours can be read on white and on dark pages.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import _results
import choices

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"
GREY = "#808080"
RAMP = ("#1d91c0", "#24a08f", "#55a630", "#c98a00", "#e2592f", "#d6336c")  # cold to warm
SHORT = {"nvidia-h200": "h200", "nvidia-h100-80gb-hbm3": "h100"}
NAMES = {"h200": "H200", "h100": "H100"}

Row = dict[str, Any]
Points = Mapping[int, float]


def read(folder: str, name: str) -> list[Row]:
    return _results.read(_results.FOLDER / folder / f"{name}.csv")["rows"]


def weights_of(row: Row) -> int:
    return math.prod(map(int, row["shape"].split("x")))


def mean(rows: Iterable[Row], figure: Callable[[Row], float]) -> dict[int, float]:
    """Geometric mean of a figure for each number of tokens."""
    found: dict[int, list[float]] = {}
    for row in rows:
        found.setdefault(row["tokens"], []).append(figure(row))
    return {tokens: statistics.geometric_mean(found[tokens]) for tokens in sorted(found)}


def ramp(count: int) -> list[str]:
    """So many colours in order, as far apart as possible."""
    if count == 1:
        return [RAMP[0]]
    return [RAMP[round(i * (len(RAMP) - 1) / (count - 1))] for i in range(count)]


def figure(title: str, subtitle: str, left: float = -0.22) -> tuple[Any, Any]:
    """A figure whose titles begin to the left of the axes, by a share of their width."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams |= {"svg.hashsalt": "flashsparse", "font.size": 11, "text.color": GREY}
    drawing, axis = plt.subplots(figsize=(5.6, 3.6))
    axis.text(left, 1.14, title, transform=axis.transAxes, fontsize=12, fontweight="bold")
    axis.text(left, 1.06, subtitle, transform=axis.transAxes, fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(GREY)
    axis.tick_params(colors=GREY)
    return drawing, axis


def save(drawing: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(path, transparent=True, bbox_inches="tight", metadata={"Date": None})
    import matplotlib.pyplot as plt

    plt.close(drawing)


def spread(places: Sequence[float], gap: float) -> list[float]:
    """Moves labels apart, up or down, until no two are closer than a gap."""
    order = sorted(range(len(places)), key=places.__getitem__)
    groups: list[list[int]] = []
    for index in order:
        groups.append([index])
        while len(groups) > 1 and _bottom(groups[-1], places, gap) < gap + _top(
            groups[-2], places, gap
        ):
            last = groups.pop()
            groups[-1] += last
    moved = list(places)
    for group in groups:
        for step, index in enumerate(group):
            moved[index] = _bottom(group, places, gap) + step * gap
    return moved


def _bottom(group: Sequence[int], places: Sequence[float], gap: float) -> float:
    return statistics.fmean(places[i] for i in group) - gap * (len(group) - 1) / 2


def _top(group: Sequence[int], places: Sequence[float], gap: float) -> float:
    return _bottom(group, places, gap) + gap * (len(group) - 1)


def lines(
    path: Path,
    title: str,
    subtitle: str,
    ordered: Mapping[str, Points],
    others: Mapping[str, Points],
    unit: str = "tokens",
) -> None:
    """Draws speedups: ordered lines in ordered colours, others grey and dashed.

    Args:
        path: File to write.
        title: The finding.
        subtitle: What is compared.
        ordered: Speedup by tokens, for each label in order.
        others: The same for what is only compared with.
        unit: Of the horizontal axis.
    """
    drawing, axis = figure(title, subtitle)
    styles = [(name, points, colour, "-") for (name, points), colour in zip(
        ordered.items(), ramp(len(ordered)), strict=True)]  # fmt: skip
    styles += [(name, points, GREY, "--") for name, points in others.items()]
    top = max(max(points.values()) for _, points, _, _ in styles)
    ticks = sorted({count for _, points, _, _ in styles for count in points})
    begins = spread([next(iter(points.values())) for _, points, _, _ in styles], top * 0.062)
    for (name, points, colour, style), begin in zip(styles, begins, strict=True):
        axis.plot(*zip(*points.items(), strict=True), color=colour, linestyle=style, linewidth=2,
                  marker="o", markersize=4)  # fmt: skip
        axis.annotate(name, (ticks[0], begin), xytext=(-10, 0), textcoords="offset points",
                      color=colour, ha="right", va="center", annotation_clip=False)  # fmt: skip
    axis.axhline(1, color=GREY, linewidth=1)
    axis.set_xscale("log", base=2)
    shown = ticks[:1]
    for count in ticks[1:]:
        if count / shown[-1] > (ticks[-1] / ticks[0]) ** (1 / 9):  # no tick touches another
            shown.append(count)
    axis.set_xticks(shown, [f"{count:,}" for count in shown])
    axis.minorticks_off()
    axis.set_xlabel(unit, color=GREY)
    lowest = min(min(points.values()) for _, points, _, _ in styles)
    axis.set_ylim(0.8 if lowest > 0.9 else 0, top * 1.05)
    axis.spines["left"].set_visible(False)
    axis.yaxis.tick_right()
    axis.yaxis.set_major_formatter("{x:g}×")
    save(drawing, path)


def overview(path: Path) -> None:
    """Bars: which zeros beat dense fp8 at 8 tokens."""
    scattered = [r for r in read("nvidia-h200", "spmm") if weights_of(r) > choices.LARGE]
    plain = [r for r in read("nvidia-h200", "nm") if weights_of(r) > choices.LARGE]
    codes = [r for r in read("nvidia-h200", "nm_values") if weights_of(r) > choices.LARGE]

    def at_8(rows: Iterable[Row], pattern: str, name: str = "us") -> float:
        own = (row for row in rows if row["pattern"] == pattern)
        return mean(own, lambda row: row["dense_us"] / row[name])[8]

    unstructured = {
        percent: mean((r for r in scattered if r["sparsity"] == percent), lambda r: r["ratio"])[8]
        for percent in (50, 70, 80, 90)
    }
    bars = {f"unstructured, {percent}%": ratio for percent, ratio in unstructured.items()} | {
        "2:4 (50%)": at_8(plain, "2:4"),
        "2:4, 8-bit values": at_8(codes, "2:4, fp8_e4m3"),
        "2:4, 4-bit values": at_8(codes, "2:4, int4 by 128"),
        "8:32 in vectors (75%)": at_8(plain, "8:32, L=32"),
        "the same, 8-bit values": at_8(codes, "8:32, L=32, fp8_e4m3"),
    }
    fp8 = at_8(codes, "2:4, fp8_e4m3", "fp8_us")
    enough = min(percent for percent, ratio in unstructured.items() if ratio > 1.05 * fp8)
    drawing, axis = figure(
        f"Patterns with fewer bits beat fp8; unstructured zeros need {enough}%",
        "Speedup of large linear layers over 16-bit cuBLAS, 8 tokens, H200",
        left=-0.52,
    )
    colours = [RAMP[0]] * 4 + [RAMP[3]] * 3 + [RAMP[4]] * 2
    labels = [f"{name}  {ratio:.1f}×" for name, ratio in bars.items()]
    axis.barh(labels, list(bars.values()), color=colours, height=0.62)
    axis.axvline(1, color=GREY, linewidth=1)
    axis.axvline(fp8, color=GREY, linestyle="--", linewidth=1.5)
    axis.text(fp8 + 0.08, 0, f"dense fp8  {fp8:.1f}×", va="center")
    axis.invert_yaxis()
    axis.set_xticks([])
    axis.spines["bottom"].set_visible(False)
    axis.tick_params(axis="y", length=0)
    save(drawing, path)


def tiled_csl(folder: str, path: Path) -> None:
    rows = [r for r in read(folder, "spmm") if r["model"].startswith("OPT")]
    rows = [r for r in rows if r["tokens"] in (1, 8, 16, 32, 64, 256, 1024)]
    zeros = sorted({row["sparsity"] for row in rows})
    by_zeros = {
        z: mean((r for r in rows if r["sparsity"] == z), lambda r: r["ratio"]) for z in zeros
    }
    first = min(z for z, points in by_zeros.items() if points[1] > 1)
    most = min(count for count, ratio in by_zeros[max(zeros)].items() if ratio < 1)
    lines(
        path,
        f"Decoding gains from {first}% unstructured zeros on; {most} tokens do not",
        f"Speedup of OPT's layers over cuBLAS, fp16, {NAMES[SHORT[folder]]}",
        {f"{z}% zeros": points for z, points in by_zeros.items()},
        {"dense fp8": mean((r for r in rows if "fp8_ratio" in r), lambda r: r["fp8_ratio"])},
    )


def patterns(folder: str, path: Path) -> None:
    rows = [row for row in read(folder, "nm") if weights_of(row) > choices.LARGE]
    names = ("2:4", "16:32, L=32", "12:32, L=32", "8:32, L=32", "4:32, L=32")
    zeros = {
        "2:4": 50,
        "16:32, L=32": 50,
        "12:32, L=32": 62.5,
        "8:32, L=32": 75,
        "4:32, L=32": 87.5,
    }
    found = {
        f"{name.partition(',')[0]} ({zeros[name]:g}%)": mean(
            (r for r in rows if r["pattern"] == name), lambda r: r["dense_us"] / r["us"]
        )
        for name in names
    }
    fp8 = mean((r for r in rows if "fp8_us" in r), lambda r: r["dense_us"] / r["fp8_us"])
    half, most = found["16:32 (50%)"], found["4:32 (87.5%)"]
    lines(
        path,
        f"N:M zeros run {half[8]:.1f} times as fast at 50%, {most[8]:.1f} times at 87.5%",
        f"Speedup of large layers over cuBLAS, bf16, {NAMES[SHORT[folder]]}, N:32 in vectors of 32",
        found,
        {"dense fp8": fp8},
    )


def values(path: Path) -> None:
    plain = [r for r in read("nvidia-h200", "nm") if r["pattern"] in ("2:4", "8:32, L=32")]
    rows = [r for r in plain + read("nvidia-h200", "nm_values") if weights_of(r) > choices.LARGE]
    names = {
        "2:4": "2:4, 16 bits",
        "2:4, int8": "2:4, int8",
        "2:4, int4 by 128": "2:4, int4",
        "8:32, L=32": "8:32, 16 bits",
        "8:32, L=32, int8": "8:32, int8",
    }
    found = {
        label: mean((r for r in rows if r["pattern"] == name), lambda r: r["dense_us"] / r["us"])
        for name, label in names.items()
    }
    fp8 = mean((r for r in rows if "fp8_us" in r), lambda r: r["dense_us"] / r["fp8_us"])
    gain = found["2:4, int8"][8] / found["2:4, 16 bits"][8]
    lines(
        path,
        f"8-bit values make 2:4 {gain:.1f} times faster again",
        "Speedup of large layers over cuBLAS, bf16 activations, H200",
        found,
        {"dense fp8": fp8},
    )


def attention(folder: str, path: Path) -> None:
    rows = [r for r in read(folder, "attention") if r["heads"] == "32/8 x 128"]
    found: dict[str, dict[int, float]] = {}
    for row in sorted(rows, key=lambda row: -row["sequences"]):
        name = f"{row['sequences']} sequence{'s' * (row['sequences'] > 1)}"
        found.setdefault(name, {})[row["positions"]] = row["fa3_us"] / row["paged_us"]
    best = max(ratio for points in found.values() for ratio in points.values())
    lines(
        path,
        f"Decode attention gains up to {best:.1f} times for few and short sequences",
        f"Speedup over FlashAttention 3, 32 heads on 8 kv heads, bf16, {NAMES[SHORT[folder]]}",
        {name: dict(sorted(points.items())) for name, points in found.items()},
        {},
        unit="positions in the cache",
    )


def cpu(path: Path) -> None:
    rows = [r for r in read("amd-epyc", "cpu_linear_avx512") if r["shape"] == "4096x4096"]
    rows = [r for r in rows if r["baseline"] == "dense"]
    sparse = [r for r in rows if r["kernel"] == "sparse"]
    zeros = sorted({row["sparsity"] for row in sparse})
    found = {
        f"{z}% zeros": mean((r for r in sparse if r["sparsity"] == z), lambda r: 1 / r["ratio"])
        for z in zeros
    }
    int8 = mean((r for r in rows if r["kernel"] == "dense int8"), lambda r: 1 / r["ratio"])
    one, most = found[f"{zeros[0]}% zeros"][1], found[f"{zeros[-1]}% zeros"][1]
    lines(
        path,
        f"On a CPU, zeros make decoding {one:.1f} to {most:.1f} times as fast",
        "Speedup of a 4096x4096 layer over torch's bf16 F.linear, two threads with AVX-512",
        found,
        {"dynamic int8": int8},
    )


def draw(folder: Path) -> None:
    """Draws every picture of the documents into a folder."""
    overview(folder / "overview.svg")
    for gpu, short in SHORT.items():
        tiled_csl(gpu, folder / f"tiled-csl-{short}.svg")
        patterns(gpu, folder / f"nm-{short}.svg")
        attention(gpu, folder / f"attention-{short}.svg")
    values(folder / "values-h200.svg")
    cpu(folder / "cpu-avx512.svg")


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURES)
