# SPDX-License-Identifier: Apache-2.0
"""What `flashsparse tune` shows: the fastest implementations, and where packing pays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from .console import out, table
from .tune_plot import packed_as

if TYPE_CHECKING:
    from flashsparse_plugin.dataflow.expected import Target
    from flashsparse_plugin.dataflow.table import Entry
    from flashsparse_plugin.packed import Scheme

Shape = tuple[int, int]

_STYLES = {  # letters of implementations; one that is not here shows its own first letter
    "gemv": ("G", "black on cyan"),
    "flat_gemm": ("F", "black on green"),
    "sparse": ("S", "black on green"),
    "few": ("S", "black on green"),
    "many": ("M", "black on bright_green"),
    "library": ("L", "black on yellow"),
}
_LOST = "black on red"
_SHOWN = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
BATCHES = (1, 8, 16, 32, 64)  # for which the least share of zeros is told


def show_entries(entries: Sequence[Entry], device: str, measured: bool) -> None:
    """A line a layer, as in FlashDecoding++, Figure 9(c); small letters where it does not pay."""
    dense = {entry.shape: entry for entry in entries if entry.scheme() is None}
    lost = False
    header = _cells((str(tokens), "") for tokens in _SHOWN)
    made = table("Layer", "", header, "changes at", left=3)
    for entry in entries:
        shape = f"{entry.shape[0]}x{entry.shape[1]}"
        packed = packed_as(entry).removesuffix(" zeros")
        styles = {tokens: _style(_implementation(entry, tokens)) for tokens in _SHOWN}
        for tokens, (letter, _) in styles.items():
            if packed and not _pays(entry, dense[entry.shape], tokens, measured):
                styles[tokens], lost = (letter.lower(), _LOST), True
        fastest = _cells(styles.values())
        changes = ", ".join(str((each.max_tokens or 0) + 1) for each in entry.ranges[:-1])
        made.add_row(shape, Text(packed or "dense"), fastest, changes)
    for column in made.columns:
        column.no_wrap = True
    used: dict[str, dict[str, None]] = {}  # by implementation what it is, said once
    for entry in entries:
        known = entry.implementations
        for name in dict.fromkeys(_implementation(entry, tokens) for tokens in _SHOWN):
            used.setdefault(name, {})[known[name].what] = None
    out.print(Text(f"Fastest by tokens, {device}", style="bold"), "")
    out.print(made)
    out.print()
    for name, whats in used.items():
        letter, style = _style(name)
        out.print(Text.assemble((f" {letter} ", style), f" {'; '.join(whats)}"))
    if lost:
        why = "in small letters: no faster than the dense layer, beyond the error"
        out.print(Text.assemble((" s ", _LOST), f" {why}"))


def _cells(parts: Iterable[tuple[str, str]]) -> Text:
    """One cell, a text and its style, for each number of tokens that is shown."""
    cells = Text()
    for tokens, (text, style) in zip(_SHOWN, parts, strict=True):
        cells.append(f"{text:>{max(2, len(str(tokens)))}} ", style)
    return cells


def _implementation(entry: Entry, tokens: int) -> str:
    return entry.plan().implementation(tokens)


def _style(implementation: str) -> tuple[str, str]:
    return _STYLES.get(implementation, (implementation[0].upper(), "black on magenta"))


def _pays(entry: Entry, dense: Entry, tokens: int, measured: bool) -> bool:
    """Whether a packed layer is faster than the dense one, both measured or both estimated."""
    from flashsparse_plugin.dataflow.expected import Speed

    own, other = entry.seconds(tokens), dense.seconds(tokens)
    assert own is not None and other is not None  # tune looks at both for all tokens
    return Speed(other / own, "measured" if measured else None).pays


def least_zeros(
    shapes: Iterable[Shape], scheme: Scheme, targets: Sequence[Target]
) -> dict[Shape, dict[int, float | None]]:
    """By shape and batch the share of zeros from which on packing pays; None: at none.

    Nothing for a pattern, which has one share of zeros.
    """
    from flashsparse_plugin.dataflow.expected import pays_from

    if scheme.values:
        return {}
    return {
        shape: {each.batch: pays_from(shape, each, [scheme]) for each in targets}
        for shape in shapes
    }


def show_least_zeros(
    found: dict[Shape, dict[int, float | None]], scheme: Scheme, measured: bool
) -> None:
    """A line a shape."""
    if not found:
        return
    how = "estimated where no measurement is near" if measured else "estimated"
    out.print(Text(f"\n{scheme.title} pays from this % of zeros on ({how})", style="bold"))
    made = table("Layer", *(f"{batch} tokens" if batch > 1 else "1 token" for batch in BATCHES))
    for shape, shares in found.items():
        cells = ["never" if x is None else f"{x:.0%}" for x in shares.values()]
        made.add_row(f"{shape[0]}x{shape[1]}", *cells)
    out.print(made)
