# SPDX-License-Identifier: Apache-2.0
"""How much longer one token more takes, where tiles of tokens end: figures and tables."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from _markdown import Result, gpu_conditions, markdown

OWN = "own choice"
BITMAP = ("tiled_bitmap", "50%")
PAIRS = ((64, 65), (96, 97), (128, 129), (160, 161), (192, 193))

Times = dict[int, tuple[float, float]]


def times(rows: Sequence[Result]) -> dict[tuple[str, str, str], Times]:
    """By format, zeros and layer, and by tokens: microseconds by its own choice, by the best."""
    found: dict[tuple[str, str, str], Times] = {}
    for row in rows:
        of = found.setdefault((row["format"], row["zeros"], row["shape"]), {})
        own, best = of.get(row["tokens"], (float("nan"), float("inf")))
        own = row["us"] if row["launch"] == OWN else own
        of[row["tokens"]] = own, min(best, row["us"])
    return found


def steps_by_kind(result: Result) -> str:
    """By the fastest launch: geometric mean of the layers, and the largest; formats down."""
    found, cells = times(result["rows"]), []
    for kind in dict.fromkeys(key[:2] for key in found):
        values = []
        for one, more in PAIRS:
            steps = [of[more][1] / of[one][1] - 1 for key, of in found.items() if key[:2] == kind]
            mean = statistics.geometric_mean(step + 1 for step in steps) - 1
            values.append(f"{mean:+.0%} ({max(steps):+.0%})")
        name = f"`{kind[0]}`, {kind[1]} zeros" if kind[1].endswith("%") else kind[1]
        name = name.replace("fp8_e4m3 x the same", "fp8 x fp8")
        cells.append([name, *values])
    return markdown(_header("one token more:"), cells) + gpu_conditions(result["about"])


def steps_by_layer(result: Result) -> str:
    """tiled_bitmap with half zeros: by its own choice, and by the fastest launch; layers down."""
    rows = [row for row in result["rows"] if (row["format"], row["zeros"]) == BITMAP]
    cells = []
    for (*_, shape), of in times(rows).items():
        steps = [
            [more / one - 1 for one, more in zip(of[one], of[more], strict=True)]
            for one, more in PAIRS
        ]
        cells.append([shape, *(f"{own:+.0%}, **{best:+.0%}**" for own, best in steps)])
    return markdown(_header("one token more:"), cells) + gpu_conditions(result["about"])


def _header(name: str) -> list[str]:
    return [name, *(f"{one} to {more}" for one, more in PAIRS)]
