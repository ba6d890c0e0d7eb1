# SPDX-License-Identifier: Apache-2.0
"""What weights with fewer bits should gain on an H200, and which of it nm.py --values measured."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from _markdown import Result, gpu_conditions, markdown

LARGE = 100e6  # weights


@dataclass(frozen=True)
class Goal:
    """Gains that layers should have on average, as geometric means.

    Attributes:
        pattern: As nm.py calls it, with its type of values.
        tokens: All of them count.
        dense: Time of dense 16-bit weights / time.
        fp8: The same of dense fp8; None for no goal.
        shape: The only layer that counts; empty: all of more than LARGE weights.
    """

    pattern: str
    tokens: tuple[int, ...]
    dense: float
    fp8: float | None = None
    shape: str = ""

    @property
    def title(self) -> str:
        few, most = self.tokens[0], self.tokens[-1]
        count = f"{few}" if few == most else f"{few} to {most}"
        layers = self.shape or f"over {LARGE / 1e6:.0f} M weights"
        return f"{self.pattern}, {count} tokens, {layers}"


SQUARE = "4096x4096"
GOALS = (
    Goal("2:4, fp8_e4m3", (8,), 2.8, 1.45),
    Goal("2:4, int8", (8,), 2.8, 1.45),
    Goal("2:4, fp8_e4m3", (32,), 2.4, 1.25),
    Goal("2:4, fp8 x fp8", (16, 32, 64), 2.8, 1.45),
    Goal("2:4, int4 by 128", (8,), 3.6, 1.9),
    Goal("8:32, L=32, fp8_e4m3", (8,), 5.0, 2.7),
    Goal("8:32, L=32, int8", (8,), 5.0, 2.7),
    Goal("2:4, fp8_e4m3", (8,), 1.7, shape=SQUARE),
    Goal("2:4, int4 by 128", (8,), 1.8, shape=SQUARE),
)


def goals(result: Result) -> str:
    """What is wanted over dense 16 bits and dense fp8, and what is reached, bold where enough."""
    cells = []
    for goal in GOALS:
        own = [
            row
            for row in result["rows"]
            if row["pattern"] == goal.pattern
            and row["tokens"] in goal.tokens
            and (
                row["shape"] == goal.shape
                if goal.shape
                else math.prod(map(int, row["shape"].split("x"))) > LARGE
            )
        ]
        line = [goal.title]
        for figure, wanted in (("ratio", goal.dense), ("over_fp8", goal.fp8)):
            found = statistics.geometric_mean(row[figure] for row in own)
            reached = f"{found:.2f}"
            enough = wanted is not None and found >= wanted
            line += [
                "" if wanted is None else f"{wanted:g}",
                f"**{reached}**" if enough else reached,
            ]
        cells.append(line)
    header = ["", "over dense: goal", "measured", "over fp8: goal", "measured"]
    return markdown(header, cells) + gpu_conditions(result["about"])
