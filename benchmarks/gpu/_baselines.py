# SPDX-License-Identifier: Apache-2.0
"""What a sparse layer is compared with, each over cold weights and from a CUDA graph.

dense    cuBLAS through torch, the fastest of F.linear, the same through cuBLASLt, and mm with
         the weight stored transposed. Its weight has 80% zeros, whatever the sparsity of the
         sparse one: where arithmetic binds, zeros make a dense product quicker.
unpruned the same with a weight without zeros, as a dense model has it, for many tokens: few are
         bound by memory, where zeros count as much as other values
fp8      torch._scaled_mm, e4m3, one scale a tensor, without the work of quantizing x
int4     Marlin of vLLM, groups of 128, where vLLM is installed
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from _device import Stopwatch, Time, _measure, cold_bytes
from _layers import Layer
from torch import Tensor

from flashsparse_plugin.dataflow.tuner import random_weight
from flashsparse_plugin.evaluation.dense_products import marlin

DENSE_ZEROS = 0.8
Row = dict[str, Any]


class Dense:
    """The dense baselines of one layer, timed once per number of tokens."""

    def __init__(self, layer: Layer, dtype: torch.dtype, device: torch.device):
        self._layer, self._dtype, self._device = layer, dtype, device

    def time(self, tokens: Sequence[int], stopwatch: Stopwatch) -> dict[int, Row]:
        weight = self._weight(1 - DENSE_ZEROS)
        ways = Ways(weight)
        rows = {}
        for count in tokens:
            calls = ways.calls(self._x(count))
            rows[count] = _best({name: stopwatch(*each) for name, each in calls.items()})
        del ways
        if self._device.type == "cuda":
            self._time_fp8(weight, rows, stopwatch)
        return rows

    def rivals(self) -> Rivals:
        """What is timed by turns with a sparse product; it holds copies of two weights."""
        return Rivals({"dense": self._weight(1 - DENSE_ZEROS), "unpruned": self._weight(1.0)})

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


class Ways:
    """The ways to call the library for one dense weight, over copies that no cache holds."""

    def __init__(self, weight: Tensor):
        cold = cold_bytes(weight.device)
        self._plain = _measure.Rotation(weight.clone, weight.nbytes, cold)
        self._turned = _measure.Rotation(lambda: weight.T.contiguous(), weight.nbytes, cold)

    def calls(self, x: Tensor) -> dict[str, tuple[Callable[[], Tensor], int]]:
        """Products of x by name, with the number of copies that each takes turns over."""
        plain, turned = self._plain, self._turned
        made: dict[str, tuple[Callable[[], Tensor], int]] = {
            "cublas": (partial(_linear, x, plain), len(plain)),
            "transposed": (partial(_mm, x, turned), len(turned)),
        }
        if x.is_cuda:
            made["cublaslt"] = partial(_linear_by_lt, x, plain), len(plain)
        return made


class Rivals:
    """Products of dense weights that are timed by turns with other products of the same x."""

    def __init__(self, weights: Mapping[str, Tensor]):
        self._ways = {name: Ways(weight) for name, weight in weights.items()}

    def calls(self, x: Tensor) -> dict[str, tuple[Callable[[], Tensor], int]]:
        return {
            f"{name} {way}": call
            for name, ways in self._ways.items()
            for way, call in ways.calls(x).items()
        }

    def row(self, times: Mapping[str, Time]) -> Row:
        """The fastest ways, of times by the names of `calls`: dense_us, unpruned_us and so on."""
        found: Row = {}
        for name in self._ways:
            first = f"{name} "
            own = {key: time for key, time in times.items() if key.startswith(first)}
            found |= _best({key.removeprefix(first): own[key] for key in own}, name)
        return found


def activations(tokens: int, layer: Layer, dtype: torch.dtype, device: torch.device) -> Tensor:
    generator = torch.Generator(device).manual_seed(tokens)
    return torch.randn(tokens, layer.in_features, generator=generator, device=device).to(dtype)


def _linear(x: Tensor, weights: _measure.Rotation) -> Tensor:
    return F.linear(x, weights())


def _linear_by_lt(x: Tensor, weights: _measure.Rotation) -> Tensor:
    with _blas_library("cublaslt"):
        return _linear(x, weights)


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


def _best(times: Mapping[str, Time], figure: str = "dense") -> Row:
    name = min(times, key=lambda each: times[each].microseconds)
    return {
        f"{figure}_us": round(times[name].microseconds, 2),
        f"{figure}_spread": round(times[name].spread, 3),
        f"{figure}_by": name,
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
        try:
            rival = marlin(random_weight(layer.shape, 1.0, dtype, device))
        except (ImportError, AttributeError, RuntimeError) as error:
            self._missing = True
            print(f"int4 is left out, Marlin is not here: {str(error).splitlines()[0][:100]}")
            return {}
        copies = _measure.Rotation(rival.copy, rival.nbytes, cold_bytes(device))
        found: dict[int, Row] = {}
        for count in tokens:
            x = activations(count, layer, dtype, device)
            try:
                time = stopwatch(lambda x=x: rival.multiply(x, copies()), len(copies))
            except (RuntimeError, TypeError) as error:
                found[count] = {"int4_refused": str(error).splitlines()[0][:100]}
                continue
            found[count] = {"int4_us": round(time.microseconds, 2)}
        return found
