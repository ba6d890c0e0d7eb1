# SPDX-License-Identifier: Apache-2.0
"""What do layers gain where models have them: after another kernel, called as a user calls them?

    python benchmarks/gpu/far.py --minutes 9

Products of `SparseLinear` over cold weights, in a CUDA graph whose launches alternate between two
tensors x: none begins before the one before it has ended, as after a norm or an activation (us).
Then of one x, where on Hopper each launch begins while the one before it ends (near_us). Beside
them: cuBLAS, the fastest way to call it; fp8, also with one kernel more that quantizes x; and int4
of torch and, where vLLM is installed, of Marlin. Each product is held against float64 first.

Output heads in 8 bits, and 2:4 beside dense blocks, in runs of their own:

    python benchmarks/gpu/far.py --layers 128256x4096,151936x5120 --kinds "head, int8;head, fp8"
    python benchmarks/gpu/far.py --kinds "2:4 + 25% dense, fp8_e4m3;2:4 + 50% dense, fp8_e4m3"
"""

from __future__ import annotations

import itertools
import statistics
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from _baselines import Ways, _best, activations
from _device import Budget, Stopwatch, _formats, _measure, cold_bytes
from _layers import LLAMA, Layer, layer
from _program import DTYPES, measure, numbers, parser, signature
from rich import box
from rich.table import Table
from torch import Tensor

import flashsparse_plugin as fs
from flashsparse_plugin.dataflow.tuner import random_weight
from flashsparse_plugin.evaluation.dense_products import FP8, DenseProduct, dense_products
from flashsparse_plugin.evaluation.dense_products import TOLERANCE as OF_RIVALS
from flashsparse_plugin.evaluation.kinds import CHOICES, HEADS, HYBRIDS, KINDS

Row = dict[str, Any]
# Large layers of Qwen3-32B beside those of Llama 3.
LAYERS = [*LLAMA, layer("51200x5120"), layer("5120x25600")]
QUANTIZING = "fp8 and quantizing"
UNTIMED = HEADS | HYBRIDS
TOLERANCE = 4e-3  # of the norm: one rounding to bfloat16 has 1.7e-3, fp8 x fp8 adds some


class Far:
    """Measures layer by layer; `rows` holds everything measured so far."""

    def __init__(self, arguments: Any, device: torch.device, stopwatch: Stopwatch):
        self.rows: list[Row] = []
        self.wrong = 0
        self._arguments, self._device, self._stopwatch = arguments, device, stopwatch
        self._dtype = DTYPES[arguments.dtype]

    def run(self, budget: Budget) -> Iterator[Layer]:
        for each in self._arguments.layers:
            dense = self._dense(each)
            for name in self._arguments.kinds:
                if budget.left < 0:
                    return
                self._kind(each, name, dense)
            yield each

    def _dense(self, each: Layer) -> dict[int, float]:
        """Microseconds of the fastest cuBLAS by tokens; rows of fp8, which is dense, too."""
        weight = random_weight(each.shape, 1.0, self._dtype, self._device)
        ways, found = Ways(weight), {}
        for tokens in self._arguments.tokens:
            x = activations(tokens, each, self._dtype, self._device)
            times = {name: self._stopwatch(*call) for name, call in ways.calls(x).items()}
            found[tokens] = _best(times)["dense_us"]
        del ways
        self._rivals(each, weight, found)
        return found

    def _rivals(self, each: Layer, weight: Tensor, dense: dict[int, float]) -> None:
        for found in dense_products(weight):
            if isinstance(found, tuple):
                print(f"{each}: {found[0]} is left out: {found[1]}")
            else:
                self._rival(each, found, dense)

    def _rival(self, each: Layer, rival: DenseProduct, dense: dict[int, float]) -> None:
        copies = _measure.Rotation(rival.copy, rival.nbytes, cold_bytes(self._device))
        for tokens in self._arguments.tokens:
            x = activations(tokens, each, self._dtype, self._device)
            self._judge(rival.error(x), OF_RIVALS, f"{each}, {rival.name}, {tokens} tokens")
            seen = rival.quantize(x)
            calls: dict[str, Callable[[], Tensor]] = {
                rival.name: lambda x=seen: rival.multiply(x, copies())
            }
            if rival.name == FP8:
                calls[QUANTIZING] = lambda x=x: rival.multiply(rival.quantize(x), copies())
            for name, call in calls.items():
                us = self._stopwatch(call, len(copies)).microseconds
                self._row(each, tokens, name, dense, us, us)

    def _kind(self, each: Layer, name: str, dense: dict[int, float]) -> None:
        kind = UNTIMED[name] if name in UNTIMED else KINDS[CHOICES[name]]
        packed = kind.pack(each.shape, self._dtype, self._device)
        codes = fs.SparseLinear.from_packed(packed.prepare(self._device))
        layers = _measure.Rotation(
            lambda: fs.SparseLinear.from_packed(_formats.copy_of(codes.packed)),
            codes.packed.nbytes,
            cold_bytes(self._device),
        )
        exact = packed.unpack().double()
        del packed
        with torch.inference_mode():
            for tokens in self._arguments.tokens:
                x = activations(tokens, each, self._dtype, self._device)
                self._check(codes, x, exact, f"{each}, {name}, {tokens} tokens")
                pair = itertools.cycle((x, x.clone()))
                far = self._stopwatch(lambda xs=pair: layers()(next(xs)), len(layers))
                near = self._stopwatch(lambda x=x: layers()(x), len(layers))
                self._row(each, tokens, name, dense, far.microseconds, near.microseconds)

    def _check(self, linear: fs.SparseLinear, x: Tensor, exact: Tensor, point: str) -> None:
        packed = linear.packed
        seen = packed.format.round_activations(x, packed.scheme).double()
        right, y = seen @ exact.T, linear(x).double()
        self._judge(float((y - right).norm() / right.norm()), TOLERANCE, point)

    def _judge(self, error: float, tolerance: float, point: str) -> None:
        if not error <= tolerance:
            self.wrong += 1
            print(f"WRONG {point}: off by {error:.2e}")

    def _row(
        self, each: Layer, tokens: int, kind: str, dense: dict[int, float], us: float, near: float
    ) -> None:
        row = {"model": each.model, "layer": each.name, "shape": str(each), "tokens": tokens}
        row |= {"kind": kind, "us": round(us, 2), "near_us": round(near, 2)}
        self.rows.append(row | {"dense_us": dense[tokens]})


def show(rows: list[Row], about: Row) -> None:
    """Dense time / time after another kernel: geometric means over layers by tokens."""
    counts = sorted({row["tokens"] for row in rows})
    table = Table(title="Speedup over cuBLAS after another kernel", box=box.SIMPLE_HEAD)
    table.add_column("kind", no_wrap=True)
    for count in counts:
        table.add_column(f"{count} tokens", justify="right", no_wrap=True)
    for kind in dict.fromkeys(row["kind"] for row in rows):
        cells = []
        for count in counts:
            own = [
                row["dense_us"] / row["us"]
                for row in rows
                if (row["kind"], row["tokens"]) == (kind, count)
            ]
            cells.append(f"{statistics.geometric_mean(own):.2f}" if own else "")
        table.add_row(kind, *cells)
    console = _measure.console(width=100)
    console.print(table)
    console.print(signature(about))


def main() -> int:
    options = parser(__doc__, minutes=9.0, dtype="bfloat16")
    options.add_argument(
        "--layers", type=lambda text: [layer(each) for each in text.split(",")], default=LAYERS
    )
    options.add_argument("--tokens", type=numbers, default=[1, 8, 16, 32, 64])
    options.add_argument("--kinds", type=lambda text: text.split(";"), default=list(CHOICES))
    arguments = options.parse_args()
    measured = measure(Far, arguments, "far.csv", show)
    print(f"{measured.wrong} results are wrong")
    return int(measured.wrong > 0 or not measured.rows)


if __name__ == "__main__":
    sys.exit(main())
