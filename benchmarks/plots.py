# SPDX-License-Identifier: Apache-2.0
"""Draws the pictures of the documents from benchmarks/results.

    python benchmarks/plots.py             draws all into docs/pictures
    python benchmarks/plots.py FOLDER      elsewhere

One finding a picture, which its title says with figures from the result. Ordered quantities have
ordered colours, lines are labelled where they begin, and higher is always faster. Backgrounds are
transparent, and all colours can be read on white and on dark pages.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import _results
import choices
from _drawing import GREY, RAMP, figure, line_per_name, lines, ramp, save, scatter, spread
from _spmm_goals import BEST, LARGE, by_format, formats_of, weights_of

from flashsparse_plugin.formats.pattern.nm_spmm.analysis import ITEMSIZE, WIDE, used_share
from flashsparse_plugin.formats.pattern.options import PatternOptions
from flashsparse_plugin.gpu import find_gpu

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"
SHORT = {"nvidia-h200": "h200", "nvidia-h100-80gb-hbm3": "h100"}
TOKENS = (1, 8, 16, 32, 64, 256, 1024, 2048)
NAMES = {"h200": "H200", "h100": "H100"}
MARLIN = "Marlin, dense int4 by 128"

Row = dict[str, Any]


def read(folder: str | Path, name: str) -> list[Row]:
    """The rows of a result: of a folder of benchmarks/results, or any by its whole path."""
    return _results.read(_results.FOLDER / folder / f"{name}.csv")["rows"]


def gpu_of(folder: str | Path, name: str) -> str:
    """The GPU of a result: "H200" of "NVIDIA H200"."""
    about = _results.read(_results.FOLDER / folder / f"{name}.csv")["about"]
    return str(about["gpu"]).split()[1]


def mean(rows: Iterable[Row], figure: Callable[[Row], float]) -> dict[int, float]:
    """Geometric mean of a figure for each number of tokens."""
    found: dict[int, list[float]] = {}
    for row in rows:
        found.setdefault(row["tokens"], []).append(figure(row))
    return {tokens: statistics.geometric_mean(found[tokens]) for tokens in sorted(found)}


def overview(path: Path) -> None:
    """Bars: which zeros beat dense fp8 and int4 at 8 tokens, in a model."""

    def at_8(name: str) -> float:
        return statistics.fmean(choices.far_at(8, name))

    names = {
        **{f"unstructured, {share}": f"unstructured, {share}" for share in ("50%", "70%", "80%")},
        "unstructured, 90%": "unstructured, 90%",
        "unstructured, 50%, W8A8": "unstructured, 50%, W8A8",
        "2:4 (50%)": "2:4",
        "2:4, 8-bit values": "2:4, 8-bit values",
        "2:4, 4-bit values": "2:4, 4-bit values",
    }
    bars = {title: at_8(name) for title, name in names.items()}
    fp8 = at_8("none")
    lines_at = {"fp8": fp8, "int4": choices.int4_at(8)}
    title = max(bars, key=bars.__getitem__)
    gain = bars[title] / lines_at["int4"]
    drawing, axis = figure(
        f"{title} are {gain:.1f} times as fast as dense int4",
        "Large layers over 16-bit cuBLAS, 8 tokens, H200, after another kernel; dashed: dense",
        left=-0.52,
    )
    colours = [RAMP[0]] * 5 + [RAMP[3]] * 3
    labels = [f"{name}  {ratio:.1f}×" for name, ratio in bars.items()]
    axis.barh(labels, list(bars.values()), color=colours, height=0.62)
    axis.axvline(1, color=GREY, linewidth=1)
    axis.text(1, len(bars) - 0.1, "cuBLAS ", ha="right", va="top")
    for name, ratio in lines_at.items():
        axis.axvline(ratio, color=GREY, linestyle="--", linewidth=1.5)
        # Away from each other, as the two lines are close.
        side = "right" if ratio == min(lines_at.values()) else "left"
        axis.text(ratio, len(bars) - 0.1, f" {name} {ratio:.1f}× ", ha=side, va="top")
    axis.invert_yaxis()
    axis.set_xticks([])
    axis.spines["bottom"].set_visible(False)
    axis.tick_params(axis="y", length=0)
    save(drawing, path)


def unstructured(folder: str, format: str, path: Path) -> None:
    """A format's speedup by tokens, a line for each share of zeros."""
    rows = [r for r in read(folder, "spmm") if r["model"].startswith("OPT")]
    rows = [r for r in rows if r["format"] == format and r["tokens"] in TOKENS]
    zeros = sorted({row["sparsity"] for row in rows})
    by_zeros = {
        z: mean((r for r in rows if r["sparsity"] == z), lambda r: r["ratio"]) for z in zeros
    }
    first = min(z for z, points in by_zeros.items() if points[1] > 1)
    slow = [count for count, ratio in by_zeros[max(zeros)].items() if ratio < 1]
    most = f"; {min(slow)} tokens lose" if slow else " at any number of tokens"
    lines(
        path,
        f"Decoding gains from {first}% unstructured zeros on{most}",
        f"Speedup of OPT's layers over cuBLAS, fp16, {NAMES[SHORT[folder]]}, {format}",
        {f"{z}% zeros": points for z, points in by_zeros.items()},
        {"dense fp8": mean((r for r in rows if "fp8_ratio" in r), lambda r: r["fp8_ratio"])},
    )


def formats(folder: str, path: Path) -> None:
    """The formats side by side: speedup at 8 tokens by zeros."""
    rows = [r for r in read(folder, "spmm") if weights_of(r) > LARGE and r["tokens"] == 8]
    found = {
        name: {
            zeros: statistics.geometric_mean(r["ratio"] for r in own if r["sparsity"] == zeros)
            for zeros in sorted({r["sparsity"] for r in own})
        }
        for name, own in by_format(rows).items()
        if name != BEST
    }
    half = {name: points[min(points)] for name, points in found.items()}
    first = max(half, key=half.__getitem__)
    line_per_name(
        path,
        f"{first}: {half[first]:.1f} times cuBLAS at {min(found[first])}% zeros",
        f"Speedup of large layers over cuBLAS, 8 tokens, fp16, {NAMES[SHORT[folder]]}",
        found,
        {"dense fp8": statistics.geometric_mean(r["fp8_ratio"] for r in rows if "fp8_ratio" in r)},
        "% zeros",
    )


def patterns(folder: str | Path, path: Path) -> None:
    rows = [row for row in read(folder, "nm") if weights_of(row) > LARGE]
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
        f"Speedup of large layers over cuBLAS, bf16, {gpu_of(folder, 'nm')}, N:32 in vectors of 32",
        found,
        {"dense fp8": fp8},
    )


def values(path: Path) -> None:
    plain = [r for r in read("nvidia-h200", "nm") if r["pattern"] in ("2:4", "8:32, L=32")]
    rows = [r for r in plain + read("nvidia-h200", "nm_values") if weights_of(r) > LARGE]
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
    int4 = mean((r for r in rows if r["pattern"] == MARLIN), lambda r: r["dense_us"] / r["us"])
    gain = found["2:4, int8"][8] / found["2:4, 16 bits"][8]
    lines(
        path,
        f"8-bit values make 2:4 {gain:.1f} times faster again",
        "Speedup of large layers over cuBLAS, bf16 activations, H200",
        found,
        {"dense fp8": fp8, "dense int4": int4},
    )


def float32(folder: str | Path, path: Path) -> None:
    """Figure 9 of NM-SpMM: N:M with vectors of 32 rows in float32, a point a product."""
    gpu = gpu_of(folder, "nm_fp32")
    rows = [row for row in read(folder, "nm_fp32") if row["part"] == "points"]
    rows = [row for row in rows if row["tokens"] >= 256]
    named: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        outputs, inputs = map(int, row["shape"].split("x"))
        place = outputs * inputs * row["tokens"] / 1e9
        named.setdefault(f"{row['zeros']:.1%} zeros".replace(".0%", "%"), []).append(
            (place, row["ratio"])
        )
    levels = {
        name: statistics.geometric_mean(speedup for _, speedup in points)
        for name, points in named.items()
    }
    first, *_, last = levels.values()
    scatter(
        path,
        f"float32: {first:.1f} to {last:.1f} times cuBLAS",
        f"N:M, L = 32, {len(next(iter(named.values())))} products on an {gpu}; dashed: their means",
        named,
        levels,
        "billions of multiplications, dense",
    )


def _of_4096(folder: str | Path) -> dict[float, list[Row]]:
    """Launches of 4096 x 4096 x 4096 in float32, by the share of zeros."""
    rows = [row for row in read(folder, "nm_fp32_steps") if row["part"] == "F"]
    return {
        zeros: [row for row in rows if row["zeros"] == zeros]
        for zeros in sorted({row["zeros"] for row in rows})
    }


def steps(folder: str | Path, path: Path) -> None:
    """Figure 7 of NM-SpMM: what each of its steps brings, and a wider tile."""
    gpu = gpu_of(folder, "nm_fp32_steps")
    by_zeros = _of_4096(folder)
    dense = next(iter(by_zeros.values()))[0]["dense_tflops"]
    named = {
        "V1": ("64x128 by 8x8, V1,",),
        "V2, packing": ("64x128 by 8x8, V2, packing,",),
        "V3": ("64x128 by 8x8, V3,",),
        "V3, wider tile": ("128x128 by 16x8, V3,",),
    }
    found = {
        name: [max(r["tflops"] for r in rows if r["launch"].startswith(begins)) for rows in
               by_zeros.values()]
        for name, begins in named.items()
    }  # fmt: skip
    wide, paper = found["V3, wider tile"], found["V1"]
    gain = max(a / b for a, b in zip(wide, paper, strict=True)) - 1
    drawing, axis = figure(
        f"The paper's steps gain little here; a wider tile up to {gain:.0%}",
        f"TFLOP/s of kept products, 4096 x 4096 x 4096 in float32, an {gpu}",
    )
    begins = spread([*(rates[0] for rates in found.values()), dense], 3.4)
    places = range(len(by_zeros))
    for (name, rates), colour, begin in zip(found.items(), ramp(len(found)), begins, strict=False):
        axis.plot(places, rates, color=colour, linewidth=2, marker="o", markersize=4)
        axis.annotate(name, (0, begin), xytext=(-10, 0), textcoords="offset points", color=colour,
                      ha="right", va="center", annotation_clip=False)  # fmt: skip
    axis.hlines(dense, 0, len(places) - 1, color=GREY, linewidth=1.5, linestyle="--")
    axis.annotate("cuBLAS, dense", (0, begins[-1]), xytext=(-10, 0), textcoords="offset points",
                  color=GREY, ha="right", va="center", annotation_clip=False)  # fmt: skip
    axis.set_xticks(places, [f"{zeros:.1%}".replace(".0%", "%") for zeros in by_zeros])
    axis.set_xlabel("zeros", color=GREY)
    axis.set_ylim(0, 1.08 * dense)
    axis.spines["left"].set_visible(False)
    axis.yaxis.tick_right()
    save(drawing, path)


def roofline(folder: str | Path, path: Path) -> None:
    """Figure 10 of NM-SpMM: the fastest launch of each pattern below the roofs of the GPU."""
    name = gpu_of(folder, "nm_fp32_steps")
    gpu = find_gpu(name, (0, 0))
    peak = gpu.float32_peak
    found = {}
    for zeros, rows in _of_4096(folder).items():
        if zeros == 0:
            continue
        best, kept = max(rows, key=lambda row: row["tflops"]), round(32 * (1 - zeros))
        options = PatternOptions(n=kept, m=32, vector_length=32)
        used = used_share(options, WIDE.rows) if "packing" in best["launch"] else 1.0
        intensity = WIDE.intensity(4096 * used, 4096 * kept / 32) / ITEMSIZE
        found[f"{zeros:.1%} zeros".replace(".0%", "%")] = intensity, best["tflops"]
    shares = [rate * 1e12 / peak for _, rate in found.values()]
    drawing, axis = figure(
        f"Bytes do not bind; {min(shares):.0%} to {max(shares):.0%} of the FMA units' peak",
        f"The fastest launch of 4096 x 4096 x 4096 in float32, by Equation 3, an {name}",
        left=-0.1,
    )
    low, high = 4.0, 40.0
    for roof, bandwidth in (("memory", gpu.memory), ("L2", gpu.l2)):
        ridge = peak / bandwidth
        axis.plot([low, ridge], [low * bandwidth / 1e12, peak / 1e12], color=GREY, linewidth=1.2)
        axis.annotate(f"{roof}, {bandwidth / 1e12:.1f} TB/s", (5, 5 * bandwidth / 1e12),
                      xytext=(9, -9), textcoords="offset points", color=GREY)  # fmt: skip
    axis.plot([peak / gpu.l2, high], [peak / 1e12] * 2, color=GREY, linewidth=1.2)
    axis.annotate(f"FMA units, {peak / 1e12:.0f} TFLOP/s", (high, peak / 1e12), xytext=(0, 5),
                  textcoords="offset points", ha="right", color=GREY)  # fmt: skip
    # Points lie close together, so each has its label on a side of its own.
    sides = (((9, 0), "left"), ((0, 12), "center"), ((-6, -9), "right"), ((0, -13), "center"))
    for (name, point), colour, (offset, side) in zip(
        found.items(), ramp(len(found)), sides, strict=True
    ):
        axis.plot(*point, "o", color=colour, markersize=7)
        axis.annotate(name, point, xytext=offset, textcoords="offset points", color=colour,
                      ha=side, va="center")  # fmt: skip
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    axis.xaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_major_formatter("{x:g}")
    axis.minorticks_off()
    axis.set_xlim(low, high)
    axis.set_ylim(14, 90)
    axis.set_xlabel("operations a byte that blocks read and write", color=GREY)
    axis.set_ylabel("TFLOP/s of kept products", color=GREY)
    save(drawing, path)


def patterns_of(folder: str | Path, out: Path) -> list[Path]:
    """Draws what benchmarks/gpu/nm.py has measured on a card."""
    short = gpu_of(folder, "nm").lower()
    drawn = {
        patterns: out / f"nm-{short}.svg",
        float32: out / f"nm-fp32-{short}.svg",
        steps: out / f"nm-steps-{short}.svg",
        roofline: out / f"nm-roofline-{short}.svg",
    }
    for picture, path in drawn.items():
        picture(folder, path)
    return list(drawn.values())


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
        measured = formats_of(read(gpu, "spmm"))
        for format in measured:
            unstructured(gpu, format, folder / f"{format.replace('_', '-')}-{short}.svg")
        if len(measured) > 1:
            formats(gpu, folder / f"formats-{short}.svg")
        attention(gpu, folder / f"attention-{short}.svg")
    patterns("nvidia-h100-80gb-hbm3", folder / "nm-h100.svg")
    values(folder / "values-h200.svg")
    patterns_of("nvidia-h200", folder)
    cpu(folder / "cpu-avx512.svg")


if __name__ == "__main__":
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("folder", nargs="?", type=Path, default=PICTURES)
    draw(options.parse_args().folder)
