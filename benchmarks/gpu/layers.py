# SPDX-License-Identifier: Apache-2.0
"""Times every implementation of the layers of models that people serve, after another kernel.

    python benchmarks/gpu/layers.py --minutes 9.5             for the tables that ship
    python benchmarks/gpu/layers.py --held-out --minutes 3    other layers and numbers of tokens

As far.py: cold weights, CUDA graphs whose launches alternate between two tensors x. A row is one
implementation of one layer, with microseconds in a column for each number of tokens;
benchmarks/dataflow.py makes tables of layers.csv, and benchmarks/auto.py says how well `auto` does
on held_out.csv. What dense layers of fp8 and int4 take by other libraries (far.py checks them) has
rows of its own, which tables leave out.
"""

from __future__ import annotations

import itertools
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from _baselines import activations
from _device import Budget, Stopwatch, _formats, _measure, cold_bytes
from _layers import SERVED, Layer, layer
from _program import DTYPES, measure, numbers, parser, signature
from rich import box
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F

import flashsparse_plugin as fs
from flashsparse_plugin.dataflow.tuner import random_weight
from flashsparse_plugin.evaluation.dense_products import dense_products
from flashsparse_plugin.evaluation.kinds import HYBRIDS, KINDS
from flashsparse_plugin.ops import ops
from flashsparse_plugin.plan import FEW, LIBRARY, Plan

Row = dict[str, Any]
TOKENS = (1, 8, 16, 24, 32, 48, 64, 128, 256)
HELD_OUT_TOKENS = (1, 4, 12, 20, 40, 56, 96, 200)
# Qwen2.5-7B and Llama-2-13B: sizes that no table has.
HELD_OUT = ("4608x3584", "37888x3584", "3584x18944", "15360x5120", "5120x13824")
# Where an implementation is timed: beyond these tokens it is far from the fastest.
MOST = {FEW: 96, "gemv": 8, "flat_gemm": 64}
DENSE = "dense"
LEAST_OF_LIBRARY = 64  # tokens for which a weight may be unpacked


class Layers:
    """Measures layer by layer; `rows` holds everything measured so far."""

    def __init__(self, arguments: Any, device: torch.device, stopwatch: Stopwatch):
        self.rows: list[Row] = []
        self._arguments, self._device, self._stopwatch = arguments, device, stopwatch
        self._dtype = DTYPES[arguments.dtype]

    def run(self, budget: Budget) -> Iterator[Layer]:
        for each in self._arguments.layers:
            if budget.left < 0:
                return
            self._dense(each)
            for name in self._arguments.kinds:
                if budget.left < 0:
                    return
                self._packed(each, name)
            yield each

    def _dense(self, each: Layer) -> None:
        weight = random_weight(each.shape, 1.0, self._dtype, self._device)
        copies = self._copies(weight.clone, weight.nbytes)
        calls: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"library": F.linear}
        if self._device.type == "cuda":
            calls |= {"gemv": ops.gemv, "flat_gemm": ops.flat_gemm}
        self._time(each, DENSE, copies, calls)
        if not self._arguments.held_out:
            self._rivals(each, weight)

    def _rivals(self, each: Layer, weight: Tensor) -> None:
        for rival in dense_products(weight):
            if isinstance(rival, tuple):
                print(f"{each}: {rival[0]} is left out: {rival[1]}")
                continue
            copies = self._copies(rival.copy, rival.nbytes)
            self._time(each, rival.name, copies, {rival.name: rival.multiply}, rival.quantize)

    def _packed(self, each: Layer, name: str) -> None:
        packed = (
            (KINDS | HYBRIDS)[name]
            .pack(each.shape, self._dtype, self._device)
            .prepare(self._device)
        )
        copies = self._copies(partial(_formats.copy_of, packed), packed.nbytes)
        known = packed.format.implementations(packed.scheme)
        calls = {name: partial(_multiply, Plan.only(name)) for name in known}
        self._time(each, name, copies, calls)

    def _copies(self, make: Callable[[], Any], nbytes: int) -> _measure.Rotation:
        return _measure.Rotation(make, nbytes, cold_bytes(self._device))

    def _time(
        self,
        each: Layer,
        kind: str,
        copies: _measure.Rotation,
        calls: Mapping[str, Callable[[Tensor, Any], Tensor]],
        quantize: Callable[[Tensor], Tensor] = lambda x: x,
    ) -> None:
        for name, multiply in calls.items():
            least = LEAST_OF_LIBRARY if name == LIBRARY and kind != DENSE else 1
            row: Row = {"shape": str(each), "kind": kind, "implementation": name}
            for tokens in self._arguments.tokens:
                if not least <= tokens <= MOST.get(name, tokens):
                    continue
                x = quantize(activations(tokens, each, self._dtype, self._device))
                pair = itertools.cycle((x, x.clone()))

                def call(
                    multiply: Callable[[Tensor, Any], Tensor] = multiply,
                    pair: Iterator[Tensor] = pair,
                ) -> Tensor:
                    return multiply(next(pair), copies())

                us = self._stopwatch(call, len(copies)).microseconds
                row[str(tokens)] = round(us, 2)
            self.rows.append(row)


def _multiply(plan: Plan, x: Tensor, packed: fs.PackedWeight) -> Tensor:
    return packed.linear(x, None, plan)


def show(rows: list[Row], about: Row) -> None:
    """Dense time / time of the fastest implementation: geometric means over layers by tokens."""
    best: dict[tuple[str, str, str], float] = {}
    counts = [str(each) for each in range(1, 4097) if any(str(each) in row for row in rows)]
    for row in rows:
        for count in counts:
            if count in row:
                key = row["kind"], row["shape"], count
                best[key] = min(best.get(key, row[count]), row[count])
    table = Table(title="Speedup over dense after another kernel", box=box.SIMPLE_HEAD)
    table.add_column("weight", no_wrap=True)
    for count in counts:
        table.add_column(count, justify="right", no_wrap=True)
    for kind in dict.fromkeys(row["kind"] for row in rows if row["kind"] != DENSE):
        cells = []
        for count in counts:
            own = [
                best[DENSE, shape, count] / us
                for (found, shape, tokens), us in best.items()
                if (found, tokens) == (kind, count)
            ]
            cells.append(f"{statistics.geometric_mean(own):.2f}" if own else "")
        table.add_row(kind, *cells)
    console = _measure.console(width=110)
    console.print(table)
    console.print(signature(about))


def main() -> int:
    options = parser(__doc__, minutes=9.5, dtype="bfloat16")
    options.add_argument("--held-out", action="store_true", help="layers that no table has")
    options.add_argument("--layers", type=lambda text: [layer(each) for each in text.split(",")])
    options.add_argument("--tokens", type=numbers)
    options.add_argument("--kinds", type=lambda text: text.split(";"), default=list(KINDS))
    arguments = options.parse_args()
    known = [layer(each) for each in HELD_OUT] if arguments.held_out else SERVED
    arguments.layers = arguments.layers or known
    arguments.tokens = arguments.tokens or (HELD_OUT_TOKENS if arguments.held_out else TOKENS)
    name = "held_out.csv" if arguments.held_out else "layers.csv"
    return int(not measure(Layers, arguments, name, show).rows)


if __name__ == "__main__":
    sys.exit(main())
