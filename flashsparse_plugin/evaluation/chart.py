# SPDX-License-Identifier: Apache-2.0
"""Quality against bytes, as a picture: a point a method, labelled where it is."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Kind = Literal["dense", "ours", "rival"]

_COLOURS: dict[Kind, str] = {"dense": "black", "ours": "tab:blue", "rival": "tab:orange"}
_NAMES: dict[Kind, str] = {"dense": "dense", "ours": "FlashSparse", "rival": "others"}
_DOT = 6  # points across
_CLOSE = 1.05  # a perplexity so many times the best one counts as good
_TITLE = 86  # characters that a line of the title has room for


@dataclass(frozen=True)
class Point:
    """A method: its label, bits a weight when saved, perplexity, and whose it is."""

    label: str
    bits: float
    perplexity: float
    kind: Kind


def frontier(points: Sequence[Point]) -> list[Point]:
    """The points that no other one beats in both bits and perplexity, by rising bits."""
    best: list[Point] = []
    for point in sorted(points, key=lambda each: (each.bits, each.perplexity)):
        if not best or point.perplexity < best[-1].perplexity:
            best.append(point)
    return best


def finding(points: Sequence[Point]) -> str:
    """One sentence: the fewest bits whose perplexity is close to the best one."""
    best = min(points, key=lambda point: point.perplexity)
    close = [point for point in points if point.perplexity <= _CLOSE * best.perplexity]
    least = min(close, key=lambda point: point.bits)
    if least is best:
        return f"{best.label} is the best, and nothing smaller is within {_CLOSE - 1:.0%} of it"
    return (
        f"{least.bits:.1f} bits a weight suffice: {least.label} is within "
        f"{_CLOSE - 1:.0%} of the best perplexity"
    )


def require_matplotlib() -> None:
    """Raises ImportError, with the remedy, where no picture can be drawn."""
    try:
        import matplotlib
    except ImportError:
        raise ImportError("--plot needs matplotlib: pip install matplotlib") from None
    matplotlib.use("Agg")


def draw(points: Sequence[Point], about: str, path: Path) -> None:
    """Draws perplexity against bits a weight.

    Args:
        points: What to draw; at least one.
        about: The model, the text and the machine, in small print.
        path: The file, whose ending tells its type.

    Raises:
        ImportError: Where matplotlib is not installed.
    """
    require_matplotlib()
    import matplotlib.pyplot as plt
    from matplotlib.ticker import MultipleLocator

    figure, axis = plt.subplots(figsize=(8.4, 5.8))
    edge = frontier(points)
    axis.plot(
        [point.bits for point in edge],
        [point.perplexity for point in edge],
        color="0.88",
        linewidth=5,
        solid_joinstyle="round",
        zorder=0,
        label="none is better in both",
    )
    for kind, colour in _COLOURS.items():
        own = [point for point in points if point.kind == kind]
        if own:
            axis.scatter(
                [point.bits for point in own],
                [point.perplexity for point in own],
                color=colour,
                label=_NAMES[kind],
                s=_DOT**2,
            )
    axis.set_yscale("log")
    axis.set_xlim(0, 1.2 * max(point.bits for point in points))
    axis.xaxis.set_major_locator(MultipleLocator(4))
    low, high = (pick(point.perplexity for point in points) for pick in (min, max))
    axis.set_ylim(low / 1.08, max(high * 1.1, low * 1.25))
    axis.yaxis.set_major_formatter("{x:,.5g}")
    axis.yaxis.set_minor_formatter("{x:,.5g}" if high / low < 10 else "")
    axis.set_xlabel("bits a linear weight, saved (fewer are better)")
    axis.set_ylabel("perplexity (lower is better)")
    axis.grid(alpha=0.25, which="both")
    axis.spines[["top", "right"]].set_visible(False)
    title = textwrap.fill(finding(points), _TITLE)
    axis.set_title(title, loc="left", fontsize=11, fontweight="bold")
    axis.legend(loc="upper right", frameon=False, fontsize=9)
    figure.text(0.01, 0.01, about, fontsize=7, color="0.4")
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    _label(figure, axis, points)
    figure.savefig(path, dpi=140)
    plt.close(figure)


def _label(figure: Any, axis: Any, points: Sequence[Point]) -> None:
    """Writes each label beside its point, at the first place where it covers no other one."""
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    dots = [tuple(axis.transData.transform((each.bits, each.perplexity))) for each in points]
    room = figure.dpi / 72 * _DOT / 2  # around the middle of a dot
    taken: list[Any] = [axis.get_legend().get_window_extent(renderer)]
    places = [(7, 0), (7, 9), (7, -9), (-7, 0), (-7, 9), (-7, -9), (7, 18), (7, -18), (-7, 18)]
    places += [(-7, -18), (7, 27), (7, -27), (-7, 27), (-7, -27)]
    line = {"arrowstyle": "-", "linewidth": 0.6, "shrinkA": 0, "shrinkB": 2}
    for point in sorted(points, key=lambda each: -each.perplexity):
        for x, y in places:
            text = axis.annotate(
                point.label,
                (point.bits, point.perplexity),
                xytext=(x, y),
                textcoords="offset points",
                ha="left" if x > 0 else "right",
                va="center",
                fontsize=8,
                color=_COLOURS[point.kind],
            )
            box = text.get_window_extent(renderer)
            inside = axis.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1
            free = not any(box.overlaps(other) for other in taken)
            if inside and free and not any(box.padded(room).contains(*dot) for dot in dots):
                break
            if (x, y) != places[-1]:
                text.remove()
        taken.append(box)
        if abs(y) > 9:  # far from its point
            axis.annotate(
                "",
                (point.bits, point.perplexity),
                xytext=(x, y),
                textcoords="offset points",
                arrowprops=line | {"color": _COLOURS[point.kind]},
            )
