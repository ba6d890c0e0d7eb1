# SPDX-License-Identifier: Apache-2.0
"""What does a product gain that begins early: behind one of its kind, and behind another's kernel?

    python benchmarks/gpu/behind.py

Each product is timed in a CUDA graph behind another of its kind, behind an add_ of x, and behind
torch's rms_norm that makes x, as they come in a model; once as the kernels are launched, and once
with every early begin taken out of the graph (its programmatic edges made full ones). cuBLAS stands
beside them. All are held against float64 first, and both ways against each other, bit for bit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from _baselines import activations
from _behind import DENSE, EARLY, KIND, LATE
from _device import Budget, Stopwatch, _edges, _formats, _measure, cold_bytes
from _layers import Layer, layer
from _program import DTYPES, conditions, device_of, numbers, parser, save_each, signature
from rich import box
from rich.table import Table
from torch import Tensor

import flashsparse_plugin as fs
from flashsparse_plugin.dataflow.tuner import random_weight
from flashsparse_plugin.formats.pattern.options import PatternOptions

Row = dict[str, Any]
LAYERS = ("4096x4096", "14336x4096", "4096x14336", "28672x7168")
FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    "2:4": ("nm_vector", {"n": 2, "m": 4}),
    "2:4, int8": ("nm_vector", {"n": 2, "m": 4, "values": "int8"}),
    "16:32, L=32": ("nm_vector", {"n": 16, "m": 32, "vector_length": 32}),
    "8:32, L=32": ("nm_vector", {"n": 8, "m": 32, "vector_length": 32}),
    "50% zeros": ("tiled_bitmap", {}),
}
TOLERANCE = 1e-2  # of the norm


class Behind:
    """Measures layer by layer; `rows` holds everything measured so far."""

    def __init__(self, arguments: Any, device: torch.device):
        self.rows: list[Row] = []
        self.wrong = 0
        self._arguments, self._device = arguments, device
        self._dtype = DTYPES[arguments.dtype]

    def run(self, budget: Budget) -> Any:
        for each in self._arguments.layers:
            weight = random_weight(each.shape, 1.0, self._dtype, self._device)
            dense = _measure.Rotation(weight.clone, 2 * weight.numel(), cold_bytes(self._device))
            for tokens in self._arguments.tokens:
                if budget.left < 0:
                    return
                product = partial(_dense_product, dense)
                self._point(each, DENSE, tokens, product, len(dense))
            for name in self._arguments.formats:
                if budget.left < 0:
                    return
                self._format(each, name)
            yield each

    def _format(self, each: Layer, name: str) -> None:
        format, options = FORMATS[name]
        if format == "nm_vector":
            weight = random_weight(each.shape, 1.0, self._dtype, self._device)
            weight = PatternOptions(**options).keep_largest(weight).contiguous()
        else:
            weight = random_weight(each.shape, 0.5, self._dtype, self._device)
        packed = fs.pack(weight, format, options).prepare(self._device)
        exact = packed.unpack().double()
        copies = _measure.Rotation(
            partial(_formats.copy_of, packed), packed.nbytes, cold_bytes(self._device)
        )
        sparse = _formats.IMPLEMENTATIONS["sparse"]
        for tokens in self._arguments.tokens:
            x = activations(tokens, each, self._dtype, self._device)
            y, right = _formats.multiply(packed, x, plan=sparse).double(), x.double() @ exact.T
            if not (y - right).norm() <= TOLERANCE * right.norm():
                self.wrong += 1
                print(f"WRONG {each}, {name}, {tokens} tokens")

            def product(x: Tensor) -> Tensor:
                return _formats.multiply(copies(), x, plan=sparse)

            self._point(each, name, tokens, product, len(copies))

    def _point(
        self, each: Layer, name: str, tokens: int, product: Callable[[Tensor], Tensor], copies: int
    ) -> None:
        x = activations(tokens, each, self._dtype, self._device)
        scale = torch.ones_like(x[0])

        def add() -> Tensor:
            return x.add_(0)

        def norm() -> Tensor:
            return F.rms_norm(x, x.shape[1:], scale)

        for before, make in {KIND: lambda: x, "add_": add, "rms_norm": norm}.items():
            found = {}
            for way in (EARLY, LATE):
                us, begins, y = _edges.replayed(
                    lambda make=make: product(make()), copies, way == EARLY, self._arguments.replays
                )
                found[way] = y
                row = {"shape": str(each), "pattern": name, "tokens": tokens, "before": before}
                self.rows.append(row | {"way": way, "early": begins, "us": round(us, 2)})
            if not torch.equal(*found.values()):
                self.wrong += 1
                print(f"WRONG {each}, {name}, {tokens} tokens: not the same bits behind {before}")


def _dense_product(weights: _measure.Rotation, x: Tensor) -> Tensor:
    return F.linear(x, weights())


def show(rows: list[Row], about: Row) -> None:
    """Microseconds of a product and what it follows, early and one after the other."""
    table = Table(title="µs early (one after the other)", box=box.SIMPLE_HEAD)
    befores = list(dict.fromkeys(row["before"] for row in rows))
    for column in ("layer", "pattern", "tokens", *(f"behind {each}" for each in befores)):
        table.add_column(column, justify="right", no_wrap=True)
    for key in dict.fromkeys((row["shape"], row["pattern"], row["tokens"]) for row in rows):
        cells = []
        for before in befores:
            here = {
                row["way"]: row["us"]
                for row in rows
                if (row["shape"], row["pattern"], row["tokens"], row["before"]) == (*key, before)
            }
            cells.append(f"{here[EARLY]:.2f} ({here[LATE]:.2f})" if len(here) == 2 else "")
        table.add_row(*map(str, key), *cells)
    console = _measure.console(width=120)
    console.print(table)
    console.print(signature(about))


def main() -> int:
    options = parser(__doc__, minutes=1.0, dtype="bfloat16")
    options.add_argument(
        "--layers",
        type=lambda text: [layer(each) for each in text.split(",")],
        default=[layer(each) for each in LAYERS],
    )
    options.add_argument("--tokens", type=numbers, default=[1, 8, 32])
    options.add_argument("--formats", type=lambda text: text.split(";"), default=list(FORMATS))
    arguments = options.parse_args()
    device = device_of(arguments)
    if device.type != "cuda":
        raise SystemExit("this is about CUDA graphs, and needs a GPU")
    budget = Budget(60 * arguments.minutes)
    about, _ = conditions(arguments, device, Stopwatch(device, arguments.replays))
    measured = Behind(arguments, device)
    save_each(
        measured.run(budget), measured.rows, about, arguments.out / "behind.csv", budget, show
    )
    print(f"{measured.wrong} results are wrong")
    return int(measured.wrong > 0 or not measured.rows)


if __name__ == "__main__":
    sys.exit(main())
