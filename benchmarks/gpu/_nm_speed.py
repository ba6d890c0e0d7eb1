# SPDX-License-Identifier: Apache-2.0
"""How fast are N:M weights multiplied, beside cuBLAS, fp8, cuSPARSELt and int4?"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from _baselines import Dense, Rivals, activations
from _device import Budget, Stopwatch, _formats, _measure, cold_bytes
from _layers import Layer
from _nm import (
    LAYERS,
    PROMPT_LAYERS,
    TWO_FOUR,
    VALUES,
    pattern_weight,
)
from _program import DTYPES
from _rivals import by_library, rivals
from _speed import WARM_UPS, multiplied
from torch import Tensor

import flashsparse_plugin as fs
from flashsparse_plugin.formats.pattern.options import PatternOptions
from flashsparse_plugin.ops import ops

Row = dict[str, Any]


class Speed:
    """Measures layer by layer; `rows` always holds everything measured so far."""

    def __init__(
        self,
        arguments: argparse.Namespace,
        device: torch.device,
        stopwatch: Stopwatch,
        bandwidth: float,
    ):
        self.rows: list[Row] = []
        self._rivals: Rivals | None = None  # of a layer, where many tokens are measured
        self._arguments, self._device, self._stopwatch = arguments, device, stopwatch
        self._dtype, self._bandwidth = DTYPES[arguments.dtype], bandwidth

    def run(self, budget: Budget) -> Iterator[Layer]:
        """Yields after each layer; ends when the time is over."""
        arguments = self._arguments
        for each in arguments.layers or (PROMPT_LAYERS if arguments.prompts else LAYERS):
            if budget.left < 0:
                return
            dense = Dense(each, self._dtype, self._device)
            found = dense.time(arguments.tokens, self._stopwatch)
            self._rivals = dense.rivals() if arguments.prompts else None
            for options in arguments.patterns:
                if budget.left < 0:
                    return
                self._measure(each, options, found)
            if arguments.values and self._device.type == "cuda":
                self._add_rivals(each, found)
            torch.cuda.empty_cache()
            yield each

    def _measure(self, each: Layer, options: PatternOptions, dense: dict[int, Row]) -> None:
        weight = pattern_weight(each.shape, options, self._dtype, self._device)
        packed = fs.pack(weight, "nm_vector", options.model_dump()).prepare(self._device)
        copies = self._copies(partial(_formats.copy_of, packed), packed.nbytes)
        for _ in range(WARM_UPS):
            x = activations(8, each, self._dtype, self._device)
            self._stopwatch(lambda x=x: _formats.multiply(copies(), x), len(copies))
        for tokens in self._arguments.tokens:
            x = activations(tokens, each, self._dtype, self._device)

            def timed(multiply: Any, x: Tensor = x) -> float:
                return self._stopwatch(lambda: multiply(copies(), x), len(copies)).microseconds

            row = self._row(each, options, packed, tokens, dense[tokens])
            if self._rivals:
                calls = self._rivals.calls(x)
                for name, plan in _formats.IMPLEMENTATIONS.items():
                    call = partial(multiplied, partial(_formats.multiply, plan=plan), copies, x)
                    calls[name] = call, len(copies)
                times = self._stopwatch.in_turns(calls)
                row |= self._rivals.row(times)
                row["unpacked_us"] = round(times["unpacked"].microseconds, 2)
                self.rows.append(row | self._compared(times["sparse"].microseconds, row, x))
            else:
                self.rows.append(row | self._compared(timed(_formats.multiply), row, x))
        if self._device.type == "cuda" and options in VALUES[:2]:
            self._add_rounded_activations(each, options, packed, dense)
        if options == TWO_FOUR and self._device.type == "cuda":
            self._add_library(each, weight)

    def _row(
        self,
        each: Layer,
        options: PatternOptions,
        packed: fs.PackedWeight,
        tokens: int,
        dense: Row,
    ) -> Row:
        return {
            "model": each.model,
            "layer": each.name,
            "shape": str(each),
            "pattern": options.title,
            "tokens": tokens,
            "form": packed.scheme.format.name,
            "bytes": packed.nbytes,
            **dense,
        }

    def _compared(self, us: float, row: Row, x: Tensor) -> Row:
        moved = row["bytes"] + x.nbytes + len(x) * int(row["shape"].split("x")[0]) * x.itemsize
        return {
            "us": round(us, 2),
            "of_bound": round(moved / self._bandwidth * 1e6 / us, 3),
            "ratio": round(row["dense_us"] / us, 3),
            "over_fp8": round(row["fp8_us"] / us, 3) if "fp8_us" in row else None,
        }

    def _add_rounded_activations(
        self, each: Layer, options: PatternOptions, packed: fs.PackedWeight, dense: dict[int, Row]
    ) -> None:
        """Codes of 8 bits on both sides, x quantised within the timing."""
        copies = self._copies(partial(_formats.copy_of, packed), packed.nbytes)

        def multiply(packed: fs.PackedWeight, x: Tensor) -> Tensor:
            return ops.sparse_24_linear_rounded(
                x, *packed.tensors.values(), packed.shape[0], packed.dtype, options.values
            )

        for tokens in self._arguments.tokens:
            x = activations(tokens, each, self._dtype, self._device)
            row = self._row(each, options, packed, tokens, dense[tokens])
            kind = options.values.removesuffix("_e4m3")
            row["pattern"] = f"2:4, {kind} x {kind}"
            us = self._stopwatch(
                lambda x=x, copies=copies: multiply(copies(), x), len(copies)
            ).microseconds
            self.rows.append(row | self._compared(us, row, x))

    def _add_rivals(self, each: Layer, dense: dict[int, Row]) -> None:
        weight = pattern_weight(each.shape, TWO_FOUR, self._dtype, self._device)
        for rival in rivals(weight):
            copies = self._copies(rival.weight.clone, rival.weight.nbytes)
            for tokens in self._arguments.tokens:
                x = activations(tokens, each, self._dtype, self._device)
                row = {
                    "model": each.model,
                    "layer": each.name,
                    "shape": str(each),
                    "pattern": rival.name,
                    "tokens": tokens,
                    "form": "library",
                    "bytes": rival.weight.nbytes,
                    **dense[tokens],
                }
                try:
                    product = rival.product(x)
                    us = self._stopwatch(
                        lambda product=product, copies=copies: product(copies()), len(copies)
                    ).microseconds
                except (RuntimeError, TypeError) as error:
                    print(f"{rival.name}, {tokens} tokens: {str(error).splitlines()[0][:150]}")
                    continue
                self.rows.append(row | self._compared(us, row, x))

    def _copies(self, make: Any, nbytes: int) -> _measure.Rotation:
        return _measure.Rotation(make, nbytes, cold_bytes(self._device))

    def _add_library(self, each: Layer, weight: Tensor) -> None:
        """cuSPARSELt, by the algorithm that its search finds."""
        compressed = torch._cslt_compress(weight)
        copies = self._copies(compressed.clone, compressed.nbytes)
        for row in self.rows:
            if (row["shape"], row["pattern"]) != (str(each), TWO_FOUR.title):
                continue
            x = activations(row["tokens"], each, self._dtype, self._device)
            padded = torch.nn.functional.pad(x, (0, 0, 0, -len(x) % 8)).T
            try:
                product = by_library(compressed, padded)
                us = self._stopwatch(
                    lambda product=product: product(copies()), len(copies)
                ).microseconds
            except RuntimeError as error:
                row["cusparselt_refused"] = str(error).splitlines()[0][:100]
                continue
            row["cusparselt_us"] = round(us, 2)
