# SPDX-License-Identifier: Apache-2.0
"""How good is `auto` for layers that no table has? By times of gpu/layers.py --held-out.

    python benchmarks/auto.py            writes results/auto.csv and shows it
    python benchmarks/auto.py --check    fails where the file is not what the results say

For each layer, kind of zeros and number of tokens `auto` chooses among the formats that hold the
weight, and dense; what it chose takes the time of the kernel that the op runs by its own rule. The
best is the fastest of what it could have chosen. A point is right within 3% of the best, and wrong
where it is slower than dense.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import _results
import torch
from _markdown import Result, markdown
from _measure import console
from rich import box
from rich.table import Table

from flashsparse_plugin.dataflow.choice import Pattern, choose
from flashsparse_plugin.dataflow.expected import Target, typical_weight
from flashsparse_plugin.evaluation.kinds import KINDS, Kind

PATH = _results.FOLDER / "auto.csv"
GPUS = {"H200": "nvidia-h200", "H100": "nvidia-h100-80gb-hbm3"}
DTYPE = torch.bfloat16
RIGHT = 1.03
# What zeros are like, and the kinds that hold them as they are.
ZEROS = {
    **{
        f"{share}%": [f"{share}% tiled_csl", f"{share}% tiled_bitmap"] for share in (50, 70, 80, 90)
    },
    "2:4": ["2:4", "50% tiled_csl", "50% tiled_bitmap"],
    "8:32": ["8:32"],
}
Times = dict[tuple[str, str], dict[str, dict[int, float]]]
Row = dict[str, Any]


def times(folder: str) -> Times:
    """Microseconds by shape and kind, then by implementation and tokens."""
    found: Times = {}
    for row in _results.read(_results.FOLDER / folder / "held_out.csv")["rows"]:
        own = found.setdefault((row["shape"], row["kind"]), {})
        own[row["implementation"]] = {int(key): row[key] for key in row if key.isdigit()}
    return found


def points(gpu: str) -> Iterator[Row]:
    """What `auto` chose, what that takes, and what the best and dense would."""
    found, target = times(GPUS[gpu]), Target.named(gpu)
    shapes = list(dict.fromkeys(shape for shape, _ in found))
    for shape, (zeros, names) in itertools.product(shapes, ZEROS.items()):
        rows, _, columns = shape.partition("x")
        size = int(rows), int(columns)
        options = {KINDS[name].format: KINDS[name].options for name in names}
        pattern = Pattern(size, KINDS[names[0]].density, options)
        for tokens, dense in found[shape, "dense"]["library"].items():
            aim = replace(target, batch=tokens)
            taken = {
                KINDS[name].scheme(DTYPE).title: found[shape, name][
                    implementation(KINDS[name], size, tokens, aim)
                ][tokens]
                for name in names
            }
            choice = choose(pattern, DTYPE, aim)
            chosen = dense
            if choice.scheme is not None:
                chosen = taken[choice.scheme.format.runtime(choice.scheme, aim.device).title]
            row = {"gpu": gpu, "shape": shape, "zeros": zeros, "tokens": tokens}
            row |= {"chosen": choice.title, "us": chosen, "best_us": min(dense, *taken.values())}
            yield row | {"dense_us": dense}


def implementation(kind: Kind, shape: tuple[int, int], tokens: int, target: Target) -> str:
    """What the op of a kind takes by its own rule."""
    assert target.gpu is not None
    weight = typical_weight(shape, kind.scheme(DTYPE), kind.density)
    assert weight.scheme is not None
    return weight.scheme.format.choose(weight.scheme, shape, weight.nbytes, tokens, target.gpu)


def judged(rows: list[Row]) -> list[str]:
    """How many points, the shares of right and wrong ones, and how far they are from the best."""
    right = sum(row["us"] <= RIGHT * row["best_us"] for row in rows)
    slower = sum(row["us"] > RIGHT * row["dense_us"] for row in rows)
    loss = statistics.geometric_mean(row["us"] / row["best_us"] for row in rows) - 1
    shares = (f"{each / len(rows):.0%}" for each in (right, slower))
    return [str(len(rows)), *shares, f"{loss:.1%}"]


def show(rows: list[Row]) -> None:
    """Shares of points that are right, and that are slower than dense, by kind of zeros."""
    shown = Table(title="auto for layers that no table has", box=box.SIMPLE_HEAD)
    for name in ("GPU", "zeros", "points", "within 3%", "slower than dense", "mean loss"):
        shown.add_column(name, justify="right", no_wrap=True)
    for gpu, zeros in itertools.product(GPUS, [*ZEROS, None]):
        own = [row for row in rows if row["gpu"] == gpu and zeros in (None, row["zeros"])]
        shown.add_row(gpu, zeros or "all", *judged(own))
    console(width=90).print(shown)


def table(result: Result) -> str:
    """Shares of right and of wrong choices, by GPU."""
    cells = []
    for gpu in GPUS:
        for zeros in ZEROS:
            own = [row for row in result["rows"] if (row["gpu"], row["zeros"]) == (gpu, zeros)]
            cells.append([gpu, zeros, *judged(own)])
        cells.append([gpu, "all", *judged([row for row in result["rows"] if row["gpu"] == gpu])])
    header = ["GPU", "zeros", "points", "within 3% of the best", "slower than dense", "mean loss"]
    return markdown(header, cells)


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--check", action="store_true", help="change nothing, only compare")
    check = options.parse_args().check
    rows = [row for gpu in GPUS for row in points(gpu)]
    if check:
        return int(_results.read(PATH)["rows"] != rows)
    _results.write(PATH, {}, rows)
    show(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
