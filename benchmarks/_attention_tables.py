# SPDX-License-Identifier: Apache-2.0
"""Tables of decode attention."""

from __future__ import annotations

from _markdown import Result, gpu_conditions, markdown

RIVALS = {"fa3_us": "FlashAttention 3", "flashinfer_us": "FlashInfer"}


def paged(result: Result) -> str:
    """Microseconds of a paged step by positions, and each rival's time / that time."""
    found = [name for name in RIVALS if any(name in row for row in result["rows"])]
    positions = sorted({row["positions"] for row in result["rows"]})
    cells = []
    for heads, sequences in dict.fromkeys((r["heads"], r["sequences"]) for r in result["rows"]):
        own = [r for r in result["rows"] if (r["heads"], r["sequences"]) == (heads, sequences)]
        by_positions = {row["positions"]: row for row in own}
        line = [heads, str(sequences)]
        for count in positions:
            row = by_positions.get(count)
            if row is None:  # did not fit the card, or the time was over
                line.append("")
                continue
            ratios = [f"{row[name] / row['paged_us']:.2f}" if name in row else "" for name in found]
            line.append(f"{row['paged_us']:,.0f} µs ({', '.join(ratios)})")
        cells.append(line)
    header = ["heads", "sequences", *(f"{count:,} positions" for count in positions)]
    told = f"\nIn brackets, time / ours: {', '.join(RIVALS[name] for name in found)}.\n"
    return markdown(header, cells) + told + gpu_conditions(result["about"])
