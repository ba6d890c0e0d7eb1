# SPDX-License-Identifier: Apache-2.0
"""Makes of a sweep's rows one for each product: the launch that is planned, and the fastest one.

    python benchmarks/tiled_bitmap/points.py SWEEP.csv... --out POINTS.csv \\
        --about gpu="NVIDIA H200" multiprocessors=132 shared_bytes=232448 memory=4916736 \\
        command="..."

Needs no GPU, but g++: plans are those of kernels/cuda/tiled_bitmap/linear_plan.cpp as it is, for
a Hopper of that many multiprocessors, bytes of shared memory and, by its clock and width, bytes of
memory a microsecond. The test of the plans
(tests/kernels/test_cuda_tiled_bitmap_plan.py) and the tables of docs read the result.
"""

from __future__ import annotations

import argparse
import csv
import math
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "kernels"
DRIVER = ROOT / "tests" / "kernels" / "tiled_bitmap_plan_driver.cpp"
OPERANDS = ("native", "codes", "rounded")  # as numbers, those of operands.h


class Product(NamedTuple):
    """What is multiplied; `lines` of a unit on average."""

    values: str
    out: int
    cols: int
    zeros: int
    tokens: int
    lines: float

    def asked(self, gpu: Mapping[str, Any]) -> str:
        """The line that the driver reads."""
        units = math.ceil(self.out / 16) * math.ceil(self.cols / 256)
        numbers = (self.out, self.cols, round(self.lines * units), self.tokens)
        of_gpu = (gpu["multiprocessors"], gpu["shared_bytes"], 1, gpu["memory"])
        return " ".join(map(str, (*numbers, OPERANDS.index(self.values), *of_gpu)))


def plans(products: Iterable[Product], gpu: Mapping[str, Any]) -> list[str]:
    """The numbers of each plan, as text."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "plan"
        sources = (DRIVER, KERNELS / "cuda" / "tiled_bitmap" / "linear_plan.cpp")
        command = ["g++", "-std=c++17", "-O1", f"-I{KERNELS}", *map(str, sources)]
        subprocess.run([*command, "-o", str(program)], check=True)
        asked = "".join(f"{each.asked(gpu)}\n" for each in products)
        ran = subprocess.run([program], input=asked, text=True, check=True, capture_output=True)
    return ran.stdout.splitlines()


def points(rows: Iterable[dict[str, str]], gpu: Mapping[str, Any]) -> list[dict]:
    """A row for each product; `us` is empty where the planned launch was not measured."""
    times: defaultdict[Product, dict[str, float]] = defaultdict(dict)
    dense: dict[tuple[int, ...], float] = {}
    for row in rows:
        out, cols, zeros, tokens = (int(row[key]) for key in ("out", "in", "zeros", "tokens"))
        if row["launch"] == "F.linear":
            dense[out, cols, tokens] = float(row["us"])
        elif row["launch"] != "own choice":
            product = Product(row["values"], out, cols, zeros, tokens, float(row["lines"]))
            times[product][row["launch"]] = float(row["us"])
    order = sorted(times, key=lambda each: (each.values, each.tokens, each.zeros, each[1:3]))
    found = []
    for product, planned in zip(order, plans(order, gpu), strict=True):
        known = times[product]
        best = min(known, key=known.__getitem__)
        found.append({
            "values": product.values, "out": product.out, "in": product.cols,
            "zeros": product.zeros, "tokens": product.tokens, "lines": product.lines,
            "planned": planned, "us": known.get(planned, ""),
            "best": best, "best_us": known[best],
            "dense_us": round(dense[product.out, product.cols, product.tokens], 2),
        })  # fmt: skip
    return found


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    made.add_argument("rows", nargs="+", type=Path, help="what sweep.py wrote")
    made.add_argument("--out", type=Path, required=True)
    made.add_argument("--about", nargs="+", default=[], metavar="KEY=VALUE", help="the conditions")
    arguments = made.parse_args()
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import _results

    about: dict[str, Any] = dict(each.split("=", 1) for each in arguments.about)
    for name in ("multiprocessors", "shared_bytes", "memory"):
        if name not in about:
            made.error(f"a plan depends on {name}: --about {name}=NUMBER")
        about[name] = int(about[name])
    about["columns"] = (
        "lines: of a unit on average; planned, us: what plan_linear chooses, empty if that was not "
        "measured; best, best_us: the fastest of those measured; dense_us: F.linear"
    )
    rows = []
    for path in arguments.rows:
        with path.open(newline="") as file:
            rows += csv.DictReader(file)
    found = points(rows, about)
    _results.write(arguments.out, about, found)


if __name__ == "__main__":
    main()
