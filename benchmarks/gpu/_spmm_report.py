# SPDX-License-Identifier: Apache-2.0
"""What spmm.py prints: the formats side by side, and which goals they reach. 80 columns wide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from _device import _measure, _spmm_goals
from _layers import LLAMA, OPT
from _program import signature
from rich import box
from rich.table import Table

Row = dict[str, Any]


def show(rows: Sequence[Row], about: Row) -> None:
    """Prints everything about a run."""
    console = _measure.console(width=80)
    opt = {str(each) for each in OPT}
    families = {"OPT": opt, "Llama 3": {str(each) for each in LLAMA} - opt}
    other = {row["shape"] for row in rows} - set().union(*families.values())
    for family, shapes in (families | {"other": other}).items():
        own = [row for row in rows if row["shape"] in shapes]
        if own:
            console.print(_ratios(family, own))
    gpu = about.get("gpu", "")
    unpruned = _spmm_goals.over_unpruned(rows)
    for title, goals, own in (
        ("Goals of decoding", _spmm_goals.DECODING, rows),
        ("Goals of prompts and batches", _spmm_goals.PROMPTS, rows),
        ("The same over an unpruned dense weight", _spmm_goals.PROMPTS, unpruned),
    ):
        found = _spmm_goals.reached(goals, own, gpu)
        if found:
            console.print(_goals(title, found))
    for part, row in _spmm_goals.worst(rows).items():
        console.print(f"slowest of {part}: {_point(row)} (goal {_spmm_goals.LEAST[part]})")
    for row in rows:
        if "csr_us" in row and row["format"] == rows[0]["format"]:
            console.print(
                f"cuSPARSE: {row['shape']}, {row['tokens']} tokens, {row['sparsity']}%: "
                f"{row['csr_us']:.0f} µs, {row['dense_us'] / row['csr_us']:.2f}x"
            )
    console.print(signature(about))


def _point(row: Row) -> str:
    return (
        f"{row['format']}, {row['shape']}, {row['tokens']} tokens, {row['sparsity']}%: "
        f"{row['ratio']:.2f}x, {row['us']:.1f} µs, {row['of_bound']:.0%} of the bound"
    )


def _ratios(family: str, rows: Sequence[Row]) -> Table:
    """Dense time / time by tokens: zeros and formats down; the fastest format in green."""
    tokens = sorted({row["tokens"] for row in rows})
    layers = len({row["shape"] for row in rows})
    plural = "s" if layers > 1 else ""
    table = Table(
        title=f"{family}, {layers} layer{plural}: dense time / time, by tokens",
        caption="geometric means; bound: dense bytes / packed bytes",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("zeros", no_wrap=True)
    for column in ("bound", *map(str, tokens)):
        table.add_column(column, justify="right", no_wrap=True)
    for sparsity in sorted({row["sparsity"] for row in rows}):
        own = {
            format: [r for r in rows if (r["format"], r["sparsity"]) == (format, sparsity)]
            for format in _spmm_goals.formats_of(rows)
        }
        means = {name: _by_tokens(found, tokens, "ratio") for name, found in own.items()}
        best = [max(column) for column in zip(*means.values(), strict=True)]
        for name, figures in means.items():
            bound = _spmm_goals.mean(own[name], "ratio_bound") or 0.0
            cells = [
                f"[green]{_figure(each)}[/]" if each == most and len(means) > 1 else _figure(each)
                for each, most in zip(figures, best, strict=True)
            ]
            table.add_row(f"{sparsity}% {name}", _figure(bound), *cells)
        table.add_section()
    for name, bound in (("fp8", "2.00"), ("int4", "")):
        dense = [r | {name: r["dense_us"] / r[f"{name}_us"]} for r in rows if f"{name}_us" in r]
        if dense:
            figures = _by_tokens(dense, tokens, name)
            table.add_row(f"{name}, dense", bound, *map(_figure, figures))
    return table


def _by_tokens(rows: Sequence[Row], tokens: Sequence[int], figure: str) -> list[float]:
    own = ([row for row in rows if row["tokens"] == count] for count in tokens)
    return [_spmm_goals.mean(each, figure) or 0.0 for each in own]


def _figure(number: float) -> str:
    return f"{number:.2f}" if number else ""


def _goals(title: str, found: Sequence[tuple[_spmm_goals.Goal, dict[str, Any]]]) -> Table:
    """What formats gain: reached in green with a ✓, missed in red."""
    table = Table(title=title, box=box.SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    for zeros in found[0][0].gains:
        table.add_column(f"{zeros}%", justify="right", no_wrap=True)
    for goal, by_format in found:
        table.add_row(goal.title, *(f"{gain:g}" for gain in goal.gains.values()), style="bold")
        for name, gains in by_format.items():
            cells = []
            for zeros, wanted in goal.gains.items():
                gain = gains.get(zeros)
                good = gain is not None and gain >= wanted
                mark = f"[green]✓ {gain:.2f}[/]" if good else f"[red]{gain or 0:.2f}[/]"
                cells.append(mark if gain else "")
            table.add_row(f"  {name}", *cells)
    return table
