# SPDX-License-Identifier: Apache-2.0
"""Tables of the documents in Markdown, and the conditions below them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

Result = dict[str, Any]


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines)


def conditions(about: Result) -> str:
    return (
        f"\n{about['cpu']}, {about['threads']} threads, {about['capability']}, "
        f"torch {about['torch']}, {about['date'][:10]}.\n"
    )


def gpu_conditions(about: Result) -> str:
    parts = [
        about["gpu"],
        about.get("dtype"),
        f"reads {about['read_gb_s']:,.0f} GB/s" if "read_gb_s" in about else None,
        f"driver {about['driver_version']}" if "driver_version" in about else None,
        f"torch {about['torch']}",
        about["date"][:10],
    ]
    return f"\n{', '.join(part for part in parts if part)}.\n"


def mean_of(rows: Sequence[Result], figure: str) -> str:
    """Geometric mean of the rows that have the figure."""
    values = [row[figure] for row in rows if row.get(figure)]
    return f"{statistics.geometric_mean(values):.2f}" if values else ""
