# SPDX-License-Identifier: Apache-2.0
"""What a sparse layer is compared with, each over cold weights and from a CUDA graph.

dense    cuBLAS through torch, the fastest of F.linear, the same through cuBLASLt, and mm with
         the weight stored transposed. Its weight has 80% zeros, whatever the sparsity of the
         sparse one: where arithmetic binds, zeros make a dense product quicker.
unpruned the same with a weight without zeros, as a dense model has it, from UNPRUNED tokens on:
         fewer are bound by memory, which holds zeros and other values alike
fp8      torch._scaled_mm, e4m3, one scale a tensor, without the work of quantizing x
int4     Marlin of vLLM, groups of 128, where vLLM is installed
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from _device import Stopwatch, Time, _measure, cold_bytes
from _layers import Layer
from _rivals import marlin
from torch import Tensor

from flashsparse_plugin.dataflow.tuner import random_weight

DENSE_ZEROS = 0.8
UNPRUNED = 96
Row = dict[str, Any]


class Dense:
    """The dense baselines of one layer, timed once per number of tokens."""

    def __init__(self, layer: Layer, dtype: torch.dtype, device: torch.device):
        self._layer, self._dtype, self._device = layer, dtype, device

    def time(self, tokens: Sequence[int], stopwatch: Stopwatch) -> dict[int, Row]:
        weight = self._weight(1 - DENSE_ZEROS)
        rows = {count: _best(times) for count, times in self._times(weight, tokens, stopwatch)}
        if self._device.type == "cuda":
            self._time_fp8(weight, rows, stopwatch)
        return rows

    def time_unpruned(self, tokens: Sequence[int], stopwatch: Stopwatch) -> dict[int, Row]:
        """Microseconds as `unpruned_us` by tokens, of those that are enough."""
        many = [count for count in tokens if count >= UNPRUNED]
        found = self._times(self._weight(1.0), many, stopwatch) if many else ()
        return {count: {"unpruned_us": _best(times)["dense_us"]} for count, times in found}

    def _times(
        self, weight: Tensor, tokens: Sequence[int], stopwatch: Stopwatch
    ) -> Iterable[tuple[int, dict[str, Time]]]:
        """Times of the library's product, by tokens and by the way to call it."""
        found: dict[int, dict[str, Time]] = {count: {} for count in tokens}
        rotation = partial(_measure.Rotation, nbytes=weight.nbytes, cold_bytes=self._cold())
        plain = rotation(weight.clone)
        for count in tokens:
            x = self._x(count)
            call = partial(_linear, x, plain)
            found[count]["cublas"] = stopwatch(call, len(plain))
            if self._device.type == "cuda":
                with _blas_library("cublaslt"):
                    found[count]["cublaslt"] = stopwatch(call, len(plain))
        del plain
        turned = rotation(lambda: weight.T.contiguous())
        for count in tokens:
            x = self._x(count)
            found[count]["transposed"] = stopwatch(partial(_mm, x, turned), len(turned))
        return found.items()

    def _weight(self, density: float) -> Tensor:
        return random_weight(self._layer.shape, density, self._dtype, self._device)

    def _time_fp8(self, weight: Tensor, rows: dict[int, Row], stopwatch: Stopwatch) -> None:
        eighth = weight.to(torch.float8_e4m3fn)
        copies = _measure.Rotation(eighth.clone, eighth.nbytes, self._cold())
        one = torch.ones((), device=self._device)
        for count, row in rows.items():
            x = self._x(count).to(torch.float8_e4m3fn)
            call = partial(_scaled_mm, x, copies, one, self._dtype)
            try:
                call()
            except RuntimeError as error:  # the library does not support this product
                row["fp8_refused"] = str(error).splitlines()[0][:100]
                continue
            row["fp8_us"] = round(stopwatch(call, len(copies)).microseconds, 2)

    def _x(self, tokens: int) -> Tensor:
        return activations(tokens, self._layer, self._dtype, self._device)

    def _cold(self) -> int:
        return cold_bytes(self._device)


def activations(tokens: int, layer: Layer, dtype: torch.dtype, device: torch.device) -> Tensor:
    generator = torch.Generator(device).manual_seed(tokens)
    return torch.randn(tokens, layer.in_features, generator=generator, device=device).to(dtype)


def _linear(x: Tensor, weights: _measure.Rotation) -> Tensor:
    return F.linear(x, weights())


def _mm(x: Tensor, weights: _measure.Rotation) -> Tensor:
    return torch.mm(x, weights())


def _scaled_mm(x: Tensor, weights: _measure.Rotation, one: Tensor, dtype: torch.dtype) -> Tensor:
    scales = {"scale_a": one, "scale_b": one}
    return torch._scaled_mm(x, weights().T, **scales, out_dtype=dtype, use_fast_accum=True)


@contextlib.contextmanager
def _blas_library(name: str) -> Iterator[None]:
    before = torch.backends.cuda.preferred_blas_library()
    torch.backends.cuda.preferred_blas_library(name)
    try:
        yield
    finally:
        torch.backends.cuda.preferred_blas_library(before)


def _best(times: dict[str, Time]) -> Row:
    name = min(times, key=lambda each: times[each].microseconds)
    return {
        "dense_us": round(times[name].microseconds, 2),
        "dense_spread": round(times[name].spread, 3),
        "dense_by": name,
    }


class Int4:
    """Marlin's times for the layers of a run; it says once why they are left out."""

    def __init__(self) -> None:
        self._missing = False

    def time(
        self,
        layer: Layer,
        tokens: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
        stopwatch: Stopwatch,
    ) -> dict[int, Row]:
        """Microseconds as `int4_us` by tokens; nothing for what this machine cannot multiply."""
        if self._missing or device.type != "cuda":
            return {}
        weight = torch.empty(layer.shape, dtype=dtype, device=device)  # Marlin makes up its own
        try:
            rival = marlin(weight)
        except (ImportError, AttributeError, RuntimeError) as error:
            self._missing = True
            print(f"int4 is left out, Marlin is not here: {str(error).splitlines()[0][:100]}")
            return {}
        copies = _measure.Rotation(rival.weight.clone, rival.weight.nbytes, cold_bytes(device))
        found: dict[int, Row] = {}
        for count in tokens:
            product = rival.product(activations(count, layer, dtype, device))
            try:
                time = stopwatch(lambda product=product: product(copies()), len(copies))
            except (RuntimeError, TypeError) as error:
                found[count] = {"int4_refused": str(error).splitlines()[0][:100]}
                continue
            found[count] = {"int4_us": round(time.microseconds, 2)}
        return found
