# SPDX-License-Identifier: Apache-2.0
"""How fast is cuSPARSELt with 8-bit codes on both sides of a 2:4 product, beside our kernel?

    python benchmarks/gpu/cusparselt.py

Its product is timed by itself, and with x rounded before it and scaled behind it by torch.compile,
as a layer would need it, beside our kernel, which does both, and cuBLAS; from CUDA graphs.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from _baselines import Dense, activations
from _device import Budget, Stopwatch, _formats, _measure, cold_bytes
from _layers import Layer, layer
from _nm import pattern_weight
from _program import DTYPES, conditions, device_of, numbers, parser, run_parts, save_each
from rich import box
from rich.table import Table
from torch import Tensor

import flashsparse_plugin as fs
from flashsparse_plugin.dataflow import plan_of
from flashsparse_plugin.formats.pattern.nm_vector import NMVector
from flashsparse_plugin.formats.pattern.options import PatternOptions
from flashsparse_plugin.formats.values.activations import quantise_tokens, rounded_tokens
from flashsparse_plugin.formats.values.types import VALUE_TYPES

Row = dict[str, Any]
TWO_FOUR = PatternOptions(n=2, m=4)
LAYERS = [layer(text) for text in ("28672x7168", "4096x14336", "4096x4096")]
TOKENS = (64, 256, 512, 1024, 2048, 4096, 8192)
CODES = {"fp8_e4m3": torch.float8_e4m3fn, "int8": torch.int8}


@functools.cache
def rounding(values: str) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Codes of x and scales of its tokens, as torch.compile makes them for a layer."""

    def rounded(x: Tensor) -> tuple[Tensor, Tensor]:
        codes, scales = quantise_tokens(x, VALUE_TYPES[values])
        return codes.to(CODES[values]), scales

    return torch.compile(rounded, dynamic=True)


@functools.cache
def scaling() -> Callable[[Tensor, Tensor], Tensor]:
    """Products times the scales of tokens."""
    return torch.compile(lambda y, scales: (y * scales).to(y.dtype), dynamic=True)


class Coded:
    """The library's product of codes by codes, as a layer would need it.

    Args:
        stored: A 2:4 weight of 8-bit codes with scales of rows, on a GPU.
    """

    def __init__(self, stored: fs.PackedWeight):
        values = stored.scheme.values["values"]
        self.type = VALUE_TYPES[values]
        self._scales = stored.tensors["weight_scale"].flatten()
        self.weight = torch._cslt_compress(NMVector().codes(stored).to(CODES[values]))

    def products(self, x: Tensor) -> dict[str, Callable[[Tensor], Tensor]]:
        """By figure: of x rounded beforehand, without its scales; and of x as it is."""
        round_x, scale = rounding(self.type.name), scaling()
        codes, _ = round_x(x)
        rest = None, self._scales, x.dtype, True  # bias, alpha, out_dtype, transpose_result
        *best, _ = torch._C._cusparselt.mm_search(self.weight, codes.t(), *rest)

        def multiply(weight: Tensor, codes: Tensor) -> Tensor:
            return torch._cslt_sparse_mm(weight, codes, *rest, *best)

        def whole(weight: Tensor) -> Tensor:
            codes, scales = round_x(x)
            return scale(multiply(weight, codes.t()), scales)

        return {"library_us": lambda weight: multiply(weight, codes.t()), "whole_us": whole}


class Speed:
    """Measures layer by layer; `rows` always holds everything measured so far."""

    def __init__(self, arguments: argparse.Namespace, device: torch.device, stopwatch: Stopwatch):
        self.rows: list[Row] = []
        self._tokens, self._dtype = arguments.tokens, DTYPES[arguments.dtype]
        self._layers, self._device, self._stopwatch = arguments.layers, device, stopwatch

    def run(self, budget: Budget) -> Iterator[Layer]:
        """Yields after each layer; ends when the time is over."""
        for each in self._layers:
            if budget.left < 0:
                return
            dense = Dense(each, self._dtype, self._device).time(self._tokens, self._stopwatch)
            weight = pattern_weight(each.shape, TWO_FOUR, self._dtype, self._device)
            for values in CODES:
                self._measure(each, values, weight, dense)
            torch.cuda.empty_cache()
            yield each

    def _measure(self, each: Layer, values: str, weight: Tensor, dense: Any) -> None:
        options = {"n": 2, "m": 4, "values": values, "activations": values}
        stored = fs.pack(weight, "nm_vector", options)
        own = stored.prepare(self._device)
        try:
            library = Coded(stored)
            copies = self._copies(library.weight.clone, library.weight.nbytes)
        except RuntimeError as error:
            print(f"{values} is left out: {str(error).splitlines()[0][:150]}")
            return
        for tokens in self._tokens:
            x = activations(tokens, each, self._dtype, self._device)
            row = self._row(each, f"2:4, {values} x {values}", tokens, dense)
            row |= {"bits": self._bits(own), "own_us": self._layer_us(own, x)}
            try:
                for figure, product in library.products(x).items():
                    call = partial(_call, product, copies)
                    row[figure] = round(self._stopwatch(call, len(copies)).microseconds, 2)
                exact = rounded_tokens(x[:64], library.type) @ stored.unpack().double().T
                y = product(library.weight)[:64].double()
                row["whole_error"] = round(float((y - exact).norm() / exact.norm()), 5)
            except RuntimeError as error:
                print(f"{values}, {tokens} tokens: {str(error).splitlines()[0][:150]}")
            self.rows.append(row)

    def _row(self, each: Layer, name: str, tokens: int, dense: Any) -> Row:
        return {"shape": str(each), "pattern": name, "tokens": tokens, **dense[tokens]}

    def _bits(self, packed: fs.PackedWeight) -> float:
        return round(8 * packed.nbytes / (packed.shape[0] * packed.shape[1]), 2)

    def _layer_us(self, packed: fs.PackedWeight, x: Tensor) -> float:
        """By the plan of a loaded layer."""
        plan = plan_of(packed)
        copies = self._copies(partial(_formats.copy_of, packed), packed.nbytes)
        multiply = partial(_formats.multiply, x=x, plan=plan)
        return round(self._stopwatch(partial(_call, multiply, copies), len(copies)).microseconds, 2)

    def _copies(self, make: Any, nbytes: int) -> _measure.Rotation:
        return _measure.Rotation(make, nbytes, cold_bytes(self._device))


def _call(multiply: Callable[[Any], Tensor], copies: _measure.Rotation) -> Tensor:
    return multiply(copies())


def show(rows: list[Row], about: Row) -> None:
    """Dense time / time."""
    table = Table(title="dense time / time", box=box.SIMPLE_HEAD)
    figures = ("own_us", "library_us", "whole_us")
    for column in ("layer", "pattern", "tokens", *figures):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        ratios = [f"{row['dense_us'] / row[name]:.2f}" if row.get(name) else "" for name in figures]
        table.add_row(row["shape"], row["pattern"], str(row["tokens"]), *ratios)
    _measure.console(width=120).print(table)


def speed(arguments: argparse.Namespace, device: torch.device, budget: Budget) -> bool:
    stopwatch = Stopwatch(device, arguments.replays)
    about, _ = conditions(arguments, device, stopwatch)
    measured = Speed(arguments, device, stopwatch)
    path = arguments.out / "cusparselt_codes.csv"
    save_each(measured.run(budget), measured.rows, about, path, budget, show)
    return bool(measured.rows)


def main() -> None:
    options = parser(__doc__, minutes=3.0, dtype="bfloat16")
    options.add_argument(
        "--layers", type=lambda text: [layer(each) for each in text.split(",")], default=LAYERS
    )
    options.add_argument("--tokens", type=numbers, default=TOKENS)
    arguments = options.parse_args()
    device = device_of(arguments)
    budget = Budget(60 * arguments.minutes)
    raise SystemExit(0 if run_parts([lambda: speed(arguments, device, budget)]) else 1)


if __name__ == "__main__":
    main()
