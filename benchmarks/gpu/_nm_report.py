# SPDX-License-Identifier: Apache-2.0
"""What nm.py measured, as tables for a terminal."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from _device import _measure
from _program import signature
from rich import box
from rich.table import Table

Row = dict[str, Any]
LARGE, MEDIUM = 100e6, 40e6  # weights of a layer, above which it is shown with its like


def show(rows: Sequence[Row], about: Row) -> None:
    """Geometric means of dense time / time, by size of layer, pattern and tokens."""
    console = _measure.console(width=120)
    sizes = {
        "over 100 M weights": lambda weights: weights > LARGE,
        "40 to 100 M weights": lambda weights: MEDIUM <= weights <= LARGE,
        "smaller layers": lambda weights: weights < MEDIUM,
    }
    for size, belongs in sizes.items():
        here = [row for row in rows if belongs(_weights(row))]
        if here:
            console.print(_ratios(size, here))
    console.print(signature(about))


def _weights(row: Row) -> float:
    out_features, _, in_features = row["shape"].partition("x")
    return float(out_features) * float(in_features)


def _ratios(title: str, rows: Sequence[Row]) -> Table:
    tokens = sorted({row["tokens"] for row in rows})
    table = Table(
        title=f"{title}: dense time / time (fp8 time / time), by tokens",
        caption="geometric means over " + ", ".join(sorted({row["shape"] for row in rows})),
        box=box.SIMPLE_HEAD,
    )
    for column in ("pattern", *map(str, tokens)):
        table.add_column(column, justify="right", no_wrap=True)
    for pattern in dict.fromkeys(row["pattern"] for row in rows):
        own = [row for row in rows if row["pattern"] == pattern]
        table.add_row(pattern, *(_cell(own, count) for count in tokens))
        if any("cusparselt_us" in row for row in own):
            cells = []
            for count in tokens:
                found = [r for r in own if r["tokens"] == count and "cusparselt_us" in r]
                ratios = [row["dense_us"] / row["cusparselt_us"] for row in found]
                cells.append(f"{statistics.geometric_mean(ratios):.2f}" if ratios else "")
            table.add_row("cuSPARSELt", *cells)
    return table


def _cell(rows: Sequence[Row], tokens: int) -> str:
    here = [row for row in rows if row["tokens"] == tokens]
    if not here:
        return ""
    text = f"{statistics.geometric_mean(row['ratio'] for row in here):.2f}"
    eighth = [row["over_fp8"] for row in here if row["over_fp8"]]
    return text + (f" ({statistics.geometric_mean(eighth):.2f})" if eighth else "")
