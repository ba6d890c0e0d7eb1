# SPDX-License-Identifier: Apache-2.0
"""What unstructured zeros should gain on a GPU, and which of it a result of spmm.py reaches.

A figure is the geometric mean of dense time / time over all layers and numbers of tokens that its
goal names. Where several formats were measured, the fastest of each layer is shown beside them: it
is what `auto` chooses from.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LARGE = 100_000_000  # weights of a layer
BEST = "fastest of a layer"

Row = dict[str, Any]


@dataclass(frozen=True)
class Goal:
    """Gains that layers should have at some numbers of tokens.

    Attributes:
        layers: For people.
        tokens: The fewest and the most.
        gains: Dense time / time by percent of zeros.
        least: Weights that a layer has to have at least.
        shape: The only shape that counts; empty: all.
        gpu: What the name of the GPU has to hold.
    """

    layers: str
    tokens: tuple[int, int]
    gains: Mapping[int, float]
    least: int = 0
    shape: str = ""
    gpu: str = "NVIDIA"

    @property
    def title(self) -> str:
        first, last = self.tokens
        count = f"{first}" if first == last else f"{first} to {last}"
        return f"{count} tokens, {self.layers}"

    def rows_of(self, rows: Iterable[Row]) -> list[Row]:
        """The measurements that the goal is about."""
        first, last = self.tokens
        return [
            row
            for row in rows
            if first <= row["tokens"] <= last
            and weights_of(row) >= self.least
            and self.shape in ("", row["shape"])
        ]


def _gains(*figures: float) -> dict[int, float]:
    return dict(zip((50, 60, 70, 80, 90), figures, strict=True))


OVER = f"over {LARGE // 1_000_000} M weights"
DECODING = (
    Goal(OVER, (1, 8), _gains(1.5, 1.75, 2.0, 2.4, 2.9), least=LARGE, gpu="H200"),
    Goal("all layers", (1, 8), _gains(1.35, 1.5, 1.7, 2.0, 2.4), gpu="H200"),
    Goal(OVER, (1, 16), _gains(1.6, 1.85, 2.2, 2.8, 3.4), least=LARGE, gpu="H100"),
    Goal(OVER, (16, 16), _gains(1.4, 1.6, 1.8, 2.1, 2.5), least=LARGE, gpu="H200"),
    Goal(OVER, (32, 32), _gains(1.2, 1.35, 1.5, 1.75, 2.0), least=LARGE, gpu="H200"),
    Goal("4096x4096", (8, 8), _gains(1.2, 1.3, 1.45, 1.6, 1.8), shape="4096x4096", gpu="H200"),
)
PROMPTS = (
    Goal("all layers", (96, 128), _gains(*[0.85] * 5)),
    Goal("all layers", (192, 384), _gains(*[0.9] * 5)),
    Goal("all layers", (512, 4096), _gains(0.9, 0.9, 0.9, 0.95, 0.95)),
)
LEAST = {"decoding": 0.97, "prompts": 0.8}
"""What no layer should be below: up to 32 tokens, and from 96 on."""


def weights_of(row: Row) -> int:
    return math.prod(map(int, row["shape"].split("x")))


def mean(rows: Iterable[Row], figure: str = "ratio") -> float | None:
    """Geometric mean of the rows that have the figure; None if there is none."""
    found = [row[figure] for row in rows if row.get(figure)]
    return statistics.geometric_mean(found) if found else None


def formats_of(rows: Iterable[Row]) -> list[str]:
    """The formats that were measured, in that order."""
    return list(dict.fromkeys(row["format"] for row in rows))


def fastest(rows: Iterable[Row]) -> list[Row]:
    """The fastest format's row of each point that all formats have been measured at."""
    rows = list(rows)
    points: dict[tuple[str, int, int], list[Row]] = {}
    for row in rows:
        points.setdefault((row["shape"], row["tokens"], row["sparsity"]), []).append(row)
    whole = len(formats_of(rows))
    return [max(own, key=lambda row: row["ratio"]) for own in points.values() if len(own) == whole]


def by_format(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of each format, and where there are several those of the fastest."""
    found = {name: [row for row in rows if row["format"] == name] for name in formats_of(rows)}
    return found | {BEST: fastest(rows)} if len(found) > 1 else found


def reached(
    goals: Iterable[Goal], rows: Sequence[Row], gpu: str
) -> list[tuple[Goal, dict[str, dict[int, float]]]]:
    """The goals for a GPU that were measured: for each the gains, by format and zeros."""
    found = []
    for goal in goals:
        own = by_format(goal.rows_of(rows)) if goal.gpu in gpu else {}
        if not own:
            continue
        gains = {
            name: {zeros: mean(r for r in mine if r["sparsity"] == zeros) for zeros in goal.gains}
            for name, mine in own.items()
        }
        found.append(
            (goal, {name: {z: g for z, g in each.items() if g} for name, each in gains.items()})
        )
    return found


def over_unpruned(rows: Iterable[Row]) -> list[Row]:
    """The rows that have the time of an unpruned dense weight, with gains over that."""
    return [row | {"ratio": row["unpruned_us"] / row["us"]} for row in rows if "unpruned_us" in row]


def worst(rows: Sequence[Row]) -> dict[str, Row]:
    """The slowest points of what auto chooses from, beside the dense layer, by LEAST's names."""
    best = fastest(rows)
    parts = {
        "decoding": [row for row in best if row["tokens"] <= 32],
        "prompts": [row for row in best if row["tokens"] >= 96],
    }
    return {name: min(own, key=lambda row: row["ratio"]) for name, own in parts.items() if own}
