# SPDX-License-Identifier: Apache-2.0
"""What serve.py prints: a table a kind of traffic, and whether the tokens agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from _device import _measure
from _methods import Method
from rich import box
from rich.console import Console
from rich.table import Table

Result = dict[str, Any]


def line_of(row: Result) -> str:
    """A measurement in words."""
    return (
        f"{row['traffic']} of {row['clients']}: first token {row['first_token_ms']:,.1f} ms, "
        f"then {row['ms_per_token']:.2f} ms, {row['tokens_per_gpu_s']:,.0f} tokens/s"
    )


def show(
    name: str,
    methods: Sequence[Method],
    results: Mapping[str, Result],
    agreements: Mapping[str, Any],
) -> None:
    """Prints everything about a run; ratios are of the baseline, above 1 is better."""
    console = _measure.console(width=80)
    baseline = methods[0]
    for traffic in dict.fromkeys(r["traffic"] for each in results.values() for r in each["rows"]):
        console.print(_table(name, traffic, methods, results))
    for method in methods:
        result = results[method.name]
        parts = [f"{method.gpus} GPU{'s' * (method.gpus > 1)}"]
        if "startup_s" in result:
            parts.append(f"start-up {result['startup_s']:.0f} s")
        if "weight_bytes" in result:
            parts.append(f"weights {result['weight_bytes'] / 1e9:.1f} GB")
        if method.gpus > 1 and "gpu_bytes" in result:
            parts[-1] += f", {result['gpu_bytes'] / 1e9:.1f} GB a GPU"
        if "exchange_share" in result:
            parts.append(f"{result['exchange_share']:.0%} of decoding exchanges sums")
        if "failed" in result:
            parts.append(f"[red]{result['failed']}[/]")
        console.print(f"{method.label}: {', '.join(parts)}")
        for line in result.get("log", ()):
            if "layers packed" in line or "KV cache size" in line:
                console.print("  " + line.rpartition("] ")[2], markup=False)
    if not agreements:
        console.print("greedy tokens: not compared")
    for method in methods:
        if method.name in agreements:
            _agreement(console, baseline, method, agreements[method.name])


def _table(
    name: str, traffic: str, methods: Sequence[Method], results: Mapping[str, Result]
) -> Table:
    rows = {
        (method.name, row["clients"]): row
        for method in methods
        for row in results[method.name]["rows"]
        if row["traffic"] == traffic
    }
    one = next(iter(rows.values()))
    spread = "about " if traffic == "mixed" else ""
    table = Table(
        title=f"{name}, {traffic}: {spread}{one['tokens_in']} in, {one['tokens_out']} out",
        caption="medians; in brackets: dense / it, above 1 is better",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for column in ("clients", "", "first token, ms", "ms a token", "tokens/GPU-s"):
        table.add_column(column, justify="left" if column == "" else "right", no_wrap=True)
    for clients in sorted({clients for _, clients in rows}):
        base = rows.get((methods[0].name, clients))
        for method in methods:
            row = rows.get((method.name, clients))
            if row is None:
                continue
            cells = []
            for figure, more in (
                ("first_token_ms", False),
                ("ms_per_token", False),
                ("tokens_per_gpu_s", True),
            ):
                text = f"{row[figure]:,.0f}" if more else f"{row[figure]:,.2f}"
                if base is not None and row is not base:
                    ratio = row[figure] / base[figure] if more else base[figure] / row[figure]
                    colour = "green" if ratio >= 1 else "red"
                    text += f" [{colour}]({ratio:.2f})[/]"
                cells.append(text)
            table.add_row(str(clients), method.label, *cells)
        table.add_section()
    return table


def _agreement(console: Console, baseline: Method, method: Method, found: Result) -> None:
    gaps = found["gaps_where_parted"]
    verdict = "" if found["explained_by_rounding"] else "NOT "
    texts = f"; {len(gaps)} texts part"
    if gaps:
        texts += (
            f", at gaps of up to {max(gaps):.3f} logits, {verdict}explained by rounding, which "
            f"moves gaps by up to {found['tolerance']:.3f}"
        )
    console.print(
        f"greedy tokens, {method.label}: {found['same_tokens']} of {found['compared_tokens']} "
        f"equal before the first difference ({baseline.label} one by one: "
        f"{found['same_tokens_dense_one_by_one']}){texts}",
    )
