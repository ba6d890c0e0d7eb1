# SPDX-License-Identifier: Apache-2.0
"""What N:M weights should gain on an H200, and which of it nm.py and nm_fp32.py have measured.

A figure is the geometric mean of dense time / time over all layers and numbers of tokens that its
goal names.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from _markdown import Result, gpu_conditions, markdown

ZEROS = (50.0, 62.5, 75.0, 87.5)  # percent
HALVES = ("bfloat16", "float16")


@dataclass(frozen=True)
class Goal:
    """Gains that layers should have at some numbers of tokens.

    Attributes:
        layers: For people.
        tokens: The fewest and the most.
        kinds: Patterns that should have them, as `kind_of` names them; each for itself.
        gains: Dense time / time by ZEROS, as far as there is a goal.
        beside: Kinds that are shown for comparison.
        least: Weights that a layer has to have at least.
        below: Weights that it has to have fewer than.
        shape: The only shape that counts; empty: all.
        dtypes: Of weights and activations.
    """

    layers: str
    tokens: tuple[int, int]
    kinds: tuple[str, ...]
    gains: tuple[float, ...]
    beside: tuple[str, ...] = ()
    least: float = 0
    below: float = math.inf
    shape: str = ""
    dtypes: tuple[str, ...] = HALVES

    @property
    def title(self) -> str:
        first, last = self.tokens
        count = f"{first}" if first == last else f"{first} to {last}"
        return f"{count} tokens, {self.layers}, {' and '.join(self.kinds)}"

    @property
    def wanted(self) -> dict[float, float]:
        """The gains by percent of zeros."""
        return dict(zip(ZEROS, self.gains, strict=False))

    def rows_of(self, rows: Sequence[Result], kind: str) -> list[Result]:
        """The measurements of a kind that the goal is about."""
        first, last = self.tokens
        return [
            row
            for row in rows
            if first <= row["tokens"] <= last
            and self.least <= weights_of(row) < self.below
            and self.shape in ("", row["shape"])
            and kind_of(row) == kind
        ]


LARGE, MEDIUM = 100e6, 40e6
OVER, BETWEEN = "over 100 M weights", "40 to 100 M weights"
VECTORS, PAIRS = ("L=32",), ("2:4",)
GOALS = (
    Goal(OVER, (1, 8), VECTORS, (1.75, 2.25, 3.2, 5.5), least=LARGE),
    Goal(BETWEEN, (1, 8), VECTORS, (1.65, 2.0, 2.7, 4.0), least=MEDIUM, below=LARGE),
    Goal(OVER, (16, 16), VECTORS, (1.65, 2.1, 2.9, 4.4), least=LARGE),
    Goal(OVER, (32, 32), VECTORS, (1.45, 1.8, 2.3, 3.2), least=LARGE),
    Goal("4096x4096", (8, 8), VECTORS, (1.7, 1.9, 2.4, 3.2), shape="4096x4096"),
    Goal(OVER, (1, 32), PAIRS, (1.7,), least=LARGE),
    Goal("all layers", (1, 32), PAIRS, (1.55,)),
    Goal(OVER, (64, 64), PAIRS, (1.6,), least=LARGE),
    Goal("all layers", (64, 64), PAIRS, (1.45,)),
    Goal("all layers", (1024, 4096), ("L=64", "L=128"), (1.1, 1.5, 2.2, 3.8), beside=VECTORS),
    Goal("all layers", (512, 4096), PAIRS, (1.4,)),
    Goal("all layers", (256, 4096), ("float32",), (1.8, 2.4, 3.5, 6.3), dtypes=("float32",)),
)
# What else there is of the same points, by column.
OTHERS = {
    "memory alone": "memory_us",
    "FMA units alone": "fma_us",
    "unpacked for cuBLAS": "unpacked_us",
    "cuSPARSELt": "cusparselt_us",
}
FEW = 64  # tokens, for which a kernel moves bytes
FMA_LANES = 128  # of a multiprocessor of Hopper


def weights_of(row: Result) -> int:
    return math.prod(map(int, row["shape"].split("x")))


def kind_of(row: Result) -> str:
    """ "2:4", "L=32" of "16:32, L=32", and "float32" where rows have no pattern."""
    return row["pattern"].split(", ")[-1] if "pattern" in row else "float32"


def zeros_of(row: Result) -> float:
    """Percent of zeros of the row's pattern."""
    if "zeros" in row:
        return 100 * row["zeros"]
    n, m = map(int, row["pattern"].split(",")[0].split(":"))
    return 100 * (1 - n / m)


def bounds(row: Result, about: Result) -> dict[str, float]:
    """Microseconds that the bytes of a product or its kept float32 products take at the least."""
    found = {}
    if "of_bound" in row and row["tokens"] <= FEW:
        found["memory_us"] = row["us"] * row["of_bound"]
    if "dense_tflops" in row:
        clock = float(str(about["clocks.sm"]).split()[0]) * 1e6
        peak = 2 * FMA_LANES * about["multiprocessors"] * clock * 1e-12
        kept = 1 - zeros_of(row) / 100
        found["fma_us"] = row["dense_us"] * kept * row["dense_tflops"] / peak
    return found


def by_zeros(rows: Sequence[Result], figure: str) -> dict[float, float]:
    """Geometric means of dense time / `figure` by percent of zeros; `figure` is in microseconds."""
    found: dict[float, list[float]] = {}
    for row in rows:
        if row.get(figure):
            found.setdefault(zeros_of(row), []).append(row["dense_us"] / row[figure])
    return {zeros: statistics.geometric_mean(gains) for zeros, gains in found.items()}


def goals(result: Result) -> str:
    """What N:M layers should gain and do, by zeros; what reaches its goal is bold."""
    about = result["about"]
    rows = [row | bounds(row, about) for row in result["rows"]]
    cells = []
    for goal in GOALS:
        own = {kind: goal.rows_of(rows, kind) for kind in (*goal.kinds, *goal.beside)}
        if about["dtype"] not in goal.dtypes or not any(own.values()):
            continue
        cells.append([f"{goal.title}: goal", *_cells(goal.wanted)])
        for kind, mine in own.items():
            name = f"measured, {kind}" if len(own) > 1 else "measured"
            wanted = goal.wanted if kind in goal.kinds else {}
            cells.append([name, *_cells(by_zeros(mine, "us"), ".2f", wanted)])
        first = own[goal.kinds[0]]
        for name, figure in OTHERS.items():
            if gains := by_zeros(first, figure):
                cells.append([name, *_cells(gains, ".2f")])
    header = ["dense time / time, zeros:", *(f"{zeros:g}%" for zeros in ZEROS)]
    return markdown(header, cells) + gpu_conditions(about)


def _cells(
    gains: Mapping[float, float], form: str = "g", wanted: Mapping[float, float] | None = None
) -> list[str]:
    """A text for each of ZEROS; bold where a gain is wanted and reached."""
    texts = []
    for zeros in ZEROS:
        text = format(gains[zeros], form) if zeros in gains else ""
        reached = bool(text) and gains[zeros] >= (wanted or {}).get(zeros, math.inf)
        texts.append(f"**{text}**" if reached else text)
    return texts


def fixed(result: Result) -> str:
    """Microseconds that a layer takes beside its bytes: straight lines through its patterns.

    For 1 and 8 tokens, of vectors of 32 rows: the time at no bytes, the slope as a bandwidth, and
    the time at the most zeros.
    """
    rows = [row for row in result["rows"] if kind_of(row) == "L=32"]
    cells = []
    for shape in dict.fromkeys(row["shape"] for row in rows):
        line = [shape]
        for tokens in (1, 8):
            own = [row for row in rows if (row["shape"], row["tokens"]) == (shape, tokens)]
            slope, start = statistics.linear_regression(
                [row["bytes"] for row in own], [row["us"] for row in own]
            )
            least = min(own, key=lambda row: row["bytes"])
            line += [f"{start:.1f}", f"{1e-6 / slope:.1f}", f"{least['us']:.1f}"]
        cells.append(line)
    names = ("µs beside bytes", "TB/s", "µs at 87.5%")
    header = ["", *(f"{name}, {tokens}" for tokens in ("1 token", "8 tokens") for name in names)]
    return markdown(header, cells) + gpu_conditions(result["about"])
