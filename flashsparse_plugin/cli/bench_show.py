# SPDX-License-Identifier: Apache-2.0
"""What `flashsparse bench` shows: a table for the terminal, and a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.text import Text

from .console import out, table

Found = Mapping[str, tuple[float, Mapping[int, float]]]  # by kind: bits, and speedups by tokens

RIVALS = ("dense", "fp8", "int4", "int4, Marlin")
TITLES = {
    "dense": "dense, 16 bits",
    "fp8": "fp8",
    "int4": "int4 by 128, torch",
    "int4, Marlin": "int4 by 128, Marlin",
}
VECTORS = "L=32"
FEW = 16  # tokens of a decode step, which bars show
BAR = 18
_EIGHTHS = " ▏▎▍▌▋▊▉"


def title(kind: str) -> str:
    """What people call a kind of results."""
    if kind in TITLES:
        return TITLES[kind]
    if kind[:1].isdigit() and ":" not in kind:  # a share of zeros
        share, _, values = kind.partition(", ")
        return f"{share} zeros" + (", int8 W8A8" if values else "")
    return kind.replace("fp8_e4m3", "fp8") + (" *" if VECTORS in kind else "")


def shown(tokens: Sequence[int]) -> int:
    """The number of tokens that bars are drawn for: the most of a small decode batch."""
    return max((count for count in tokens if count <= FEW), default=tokens[0])


BUSY = "The machine was busy with other work: measure again before you believe a ratio"


def finding(found: Found, tokens: int) -> str:
    """A sentence: the best of ours beside the best of others; patterns of vectors do not count."""
    at = {kind: ratios[tokens] for kind, (_, ratios) in found.items() if tokens in ratios}
    others = {kind: ratio for kind, ratio in at.items() if kind in RIVALS}
    ours = {kind: x for kind, x in at.items() if kind not in RIVALS and VECTORS not in kind}
    if not ours or not others:
        return "Nothing to compare was measured"
    best, rival = max(ours, key=ours.__getitem__), max(others, key=others.__getitem__)
    count = f"{tokens} token{'s' * (tokens > 1)}"
    if ours[best] <= others[rival]:
        return f"At {count} {title(rival)} is the fastest, {others[rival]:.1f}× dense"
    times = ours[best] / others[rival]
    return f"At {count} {title(best)} is {times:.2f}× as fast as {title(rival)}"


def bar(ratio: float, most: float) -> str:
    """A bar of up to BAR characters, to an eighth of one."""
    eighths = round(8 * BAR * ratio / most)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def show(
    found: Found,
    tokens: Sequence[int],
    about: str,
    left_out: Mapping[str, str],
    busy: bool = False,
) -> None:
    """Prints the speedups: kinds down, tokens across, and a bar for a small decode batch."""
    few = shown(tokens)
    out.print(Text(BUSY if busy else finding(found, few), style="bold"))
    out.print(Text(f"{about}: time of dense layers / time, by tokens", style="dim"))
    out.print()
    columns = [*map(str, tokens)]
    made = table("", "bits", *columns, f"{few} token{'s' * (few > 1)}")
    made.columns[-1].justify = "left"
    best = {n: max(ratios.get(n, 0.0) for _, ratios in found.values()) for n in tokens}
    for kind, (bits, ratios) in found.items():
        style = "yellow" if kind in RIVALS[1:] else "dim" if kind in RIVALS else "green"
        cells = []
        for n in tokens:
            ratio = ratios.get(n)
            worse = "red" if ratio is not None and ratio < 0.995 else ""
            look = "bold" if ratio == best[n] else worse
            cells.append(Text("" if ratio is None else f"{ratio:.2f}", look))
        drawn = Text(bar(ratios.get(few, 0.0), best[few] or 1.0), style)
        made.add_row(Text(title(kind), style), f"{bits:.1f}", *cells, drawn)
        if kind in RIVALS and next_is_ours(kind, list(found)):
            made.add_row()
    for column in made.columns:
        column.no_wrap = True
    out.print(made)
    out.print()
    notes = [
        "Layers alone: attention, norms and the head come on top. For fp8, x is quantized before.",
        "What each costs in quality: `flashsparse advise`.",
    ]
    if any(VECTORS in kind for kind in found):
        notes.append("* only for models that were trained with this pattern: one-shot ruins them.")
    notes += [f"{title(kind)} is left out: {why}" for kind, why in left_out.items()]
    for note in notes:
        out.print(Text(note, style="dim"))


def next_is_ours(kind: str, kinds: Sequence[str]) -> bool:
    """Whether a kind of others is the last one before ours."""
    place = kinds.index(kind) + 1
    return place < len(kinds) and kinds[place] not in RIVALS


def draw(found: Found, tokens: Sequence[int], about: str, path: Path, busy: bool = False) -> None:
    """Draws bars of the speedups, a panel for each number of tokens."""
    import matplotlib.pyplot as plt

    kinds = [kind for kind in found if kind != "dense"]
    colours = {kind: "tab:orange" if kind in RIVALS else "tab:blue" for kind in kinds}
    colours |= {kind: "lightsteelblue" for kind in kinds if VECTORS in kind}
    figure, axes = plt.subplots(
        1, len(tokens), figsize=(2.6 + 1.9 * len(tokens), 1.2 + 0.3 * len(kinds)),
        sharey=True, sharex=True, squeeze=False,
    )  # fmt: skip
    for axis, count in zip(axes.flat, tokens, strict=True):
        values = [found[kind][1].get(count, 0.0) for kind in kinds]
        axis.barh([title(kind) for kind in kinds], values, color=[*colours.values()], height=0.66)
        axis.axvline(1, color="0.35", linewidth=1)
        for place, value in enumerate(values):
            digits = 1 if value >= 0.1 else 2
            label = f" {value:.{digits}f}" if value else " -"
            # A ground of its own: the line of 1 goes through it where a kind is slower than dense.
            ground = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
            axis.text(value, place, label, va="center", fontsize=8, bbox=ground)
        axis.set_title(f"{count} token{'s' * (count > 1)}", fontsize=9)
        axis.spines[["top", "right", "bottom"]].set_visible(False)
        axis.set_xticks([])
        axis.tick_params(axis="y", length=0)
    axes.flat[0].invert_yaxis()
    axes.flat[0].set_xlim(0, 1.15 * max(r for _, ratios in found.values() for r in ratios.values()))
    figure.suptitle(
        BUSY if busy else finding(found, shown(tokens)),
        x=0.01,
        ha="left",
        fontsize=11,
        fontweight="bold",
    )
    small = f"Time of dense layers / time. {about}. Orange: others. *: if trained with the pattern"
    figure.text(0.01, 0.01, small, fontsize=7, color="0.35")
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    figure.savefig(path, dpi=140)
    plt.close(figure)
