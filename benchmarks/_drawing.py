# SPDX-License-Identifier: Apache-2.0
"""How the pictures look: lines and labels that can be read on white and on dark pages.

A picture has two sets of colours, and the reader's browser takes the one for its colour scheme.
Text has a contrast of at least 4.5 on the background, in both (tests/benchmarks/test_drawing.py).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

GREY = "#595959"
RAMP = ("#0f719b", "#16766a", "#3c7d1c", "#8f6200", "#c0441d", "#c02a5e")  # cold to warm
PAGE = "#ffffff"
# Of a dark page, for each of the above.
DARK = {
    GREY: "#b4b4b4",
    **dict(
        zip(RAMP, ("#3aa5d1", "#2eb3a1", "#66b843", "#d69a1c", "#f0764f", "#ec6f9b"), strict=True)
    ),
    PAGE: "#1e2129",
}

Points = Mapping[int, float]


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
    if path.suffix == ".svg":
        path.write_text(_of_both_schemes(path.read_text()))


def _of_both_schemes(picture: str) -> str:
    """An SVG whose colours are those of the reader's colour scheme."""
    names = {colour: f"--c{at}" for at, colour in enumerate(DARK)}
    for colour, name in names.items():
        picture = picture.replace(colour, f"var({name})")
    light, dark = (
        " ".join(f"{name}: {of[colour]};" for colour, name in names.items())
        for of in ({colour: colour for colour in DARK}, DARK)
    )
    style = (
        f"svg {{ {light} background: var({names[PAGE]}) }}\n"
        f"@media (prefers-color-scheme: dark) {{ svg {{ {dark} }} }}\n"
    )
    return picture.replace("</style>", f"\n{style}</style>", 1)


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
    _speedups(axis, 0.8 if lowest > 0.9 else 0, top)
    save(drawing, path)


def _speedups(axis: Any, lowest: float, top: float) -> None:
    """Makes the vertical axis one of speedups, on the right, as labels stand on the left."""
    axis.set_ylim(lowest, top * 1.05)
    axis.spines["left"].set_visible(False)
    axis.yaxis.tick_right()
    axis.yaxis.set_major_formatter("{x:g}×")


def line_per_name(
    path: Path,
    title: str,
    subtitle: str,
    named: Mapping[str, Points],
    levels: Mapping[str, float],
    unit: str,
) -> None:
    """Draws speedups against a quantity that every line has at the same points.

    Args:
        path: File to write.
        title: The finding.
        subtitle: What is compared.
        named: Speedup by the quantity, for each label.
        levels: What does not depend on it: grey and dashed.
        unit: Of the horizontal axis.
    """
    drawing, axis = figure(title, subtitle)
    places = sorted({place for points in named.values() for place in points})
    top = max([*levels.values(), *(max(points.values()) for points in named.values())])
    styles = [(name, points, colour, "-") for (name, points), colour in zip(
        named.items(), ramp(len(named)), strict=True)]  # fmt: skip
    styles += [(name, dict.fromkeys(places, level), GREY, "--") for name, level in levels.items()]
    begins = spread([next(iter(points.values())) for _, points, _, _ in styles], top * 0.062)
    for (name, points, colour, style), begin in zip(styles, begins, strict=True):
        marker = "o" if style == "-" else ""
        axis.plot(*zip(*points.items(), strict=True), color=colour, linestyle=style, linewidth=2,
                  marker=marker, markersize=4)  # fmt: skip
        axis.annotate(name, (places[0], begin), xytext=(-10, 0), textcoords="offset points",
                      color=colour, ha="right", va="center", annotation_clip=False)  # fmt: skip
    axis.plot((places[0], places[-1]), (1, 1), color=GREY, linewidth=1)
    axis.set_xticks(places)
    axis.set_xlabel(unit, color=GREY)
    _speedups(axis, 0, top)
    save(drawing, path)


def scatter(
    path: Path,
    title: str,
    subtitle: str,
    named: Mapping[str, Sequence[tuple[float, float]]],
    levels: Mapping[str, float],
    unit: str,
) -> None:
    """Draws a point for each speedup, in ordered colours.

    Args:
        path: File to write.
        title: The finding.
        subtitle: What is compared.
        named: Places on the horizontal axis, which is logarithmic, and speedups, for each label.
        levels: The speedup that a label's line says, dashed and in its colour.
        unit: Of the horizontal axis.
    """
    drawing, axis = figure(title, subtitle)
    left = min(place for points in named.values() for place, _ in points)
    top = max(speedup for points in named.values() for _, speedup in points)
    begins = spread([levels[name] for name in named], top * 0.07)
    for (name, points), colour, begin in zip(named.items(), ramp(len(named)), begins, strict=True):
        axis.scatter(*zip(*points, strict=True), color=colour, s=12, linewidths=0)
        axis.axhline(levels[name], color=colour, linewidth=1, linestyle="--")
        axis.annotate(name, (left, begin), xytext=(-16, 0), textcoords="offset points",
                      color=colour, ha="right", va="center", annotation_clip=False)  # fmt: skip
    axis.axhline(1, color=GREY, linewidth=1)
    axis.set_xscale("log")
    axis.minorticks_off()
    axis.set_xlabel(unit, color=GREY)
    _speedups(axis, 0, top)
    save(drawing, path)
