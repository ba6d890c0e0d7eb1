# SPDX-License-Identifier: Apache-2.0
"""How fast is the sparse linear layer of a format on this card, and how fast could it be?

Measured beside it, each over cold weights and from a CUDA graph:

    dense    cuBLAS through torch, the fastest of F.linear, the same through cuBLASLt, and mm with
             the weight stored transposed. Its weight has 80% zeros, whatever the sparsity of the
             sparse one: where arithmetic binds, zeros make a dense product quicker.
    fp8      torch._scaled_mm, e4m3, one scale a tensor, without the work of quantizing x
    csr      cuSPARSE through torch.sparse, for a few layers only
    bound    the bytes of packed weight, x and y at the bandwidth that this card shows in this run

and, for MANY tokens, each implementation of the op itself:

    sparse   the format's own kernel for all of the tokens, in several launches if necessary
    unpacked unpacking the weight for torch's own linear
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from _device import Budget, Stopwatch, Time, _formats, _measure, cold_bytes
from _layers import LLAMA, OPT, Layer
from torch import Tensor

import flashsparse_plugin as fs
from flashsparse_plugin.dataflow.tuner import random_weight

DENSE_ZEROS = 0.8
WARM_UPS = 3  # timings of a layer that are discarded
MANY = (64, 96, 128, 192, 256, 384, 512, 1024)  # tokens at which either implementation is timed
Row = dict[str, Any]


@dataclass(frozen=True)
class Stage:
    """Layers x sparsities (percent) x tokens."""

    layers: Sequence[Layer]
    sparsities: Sequence[int]
    tokens: Sequence[int]
    csr: bool = False


# The most important first, since the time may be over before the last.
STAGES = (
    Stage(OPT, (70, 80, 90), (8, 16, 32)),
    Stage(LLAMA, (50, 60, 70, 80, 90), (1, 8, 16, 32)),
    Stage(OPT, (70, 80, 90), (1, *MANY)),
    Stage(OPT, (50, 60), (1, 8, 16, 32, *MANY)),
    Stage(LLAMA, (50, 60, 70, 80, 90), MANY),
    Stage(OPT[1:3], (80, 90), (16,), csr=True),
)


class Dense:
    """The dense baselines of one layer, timed once per number of tokens."""

    def __init__(self, layer: Layer, dtype: torch.dtype, device: torch.device):
        self._layer, self._dtype, self._device = layer, dtype, device

    def time(self, tokens: Sequence[int], stopwatch: Stopwatch) -> dict[int, Row]:
        weight = random_weight(self._layer.shape, 1 - DENSE_ZEROS, self._dtype, self._device)
        found: dict[int, Row] = {count: {} for count in tokens}
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
        del turned
        rows = {count: _best(times) for count, times in found.items()}
        if self._device.type == "cuda":
            self._time_fp8(weight, rows, stopwatch)
        return rows

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


class Speed:
    """Measures stage by stage; `rows` always holds everything measured so far."""

    def __init__(
        self,
        format: str,
        device: torch.device,
        dtype: torch.dtype,
        stopwatch: Stopwatch,
        bandwidth: float,
        shapes: bool = False,
    ):
        """
        Args:
            format: Of the packed weights.
            device: Where they are.
            dtype: Of weights and activations.
            stopwatch: What times the calls.
            bandwidth: Bytes a second that this card reads, for the bound.
            shapes: Whether to measure every launch that the kernel can make, too.
        """
        self.rows: list[Row] = []
        self._format = format
        self._device, self._dtype, self._stopwatch = device, dtype, stopwatch
        self._bandwidth, self._shapes = bandwidth, shapes
        self._dense: dict[tuple[Layer, int], Row] = {}

    def run(self, stages: Sequence[Stage], budget: Budget) -> Iterator[Layer]:
        """Yields after each layer, so that the rows can be saved; ends when the time is over."""
        for stage in stages:
            for layer in stage.layers:
                if budget.left < 0:
                    return
                self._measure(layer, stage, budget)
                if self._device.type == "cuda":
                    torch.cuda.empty_cache()
                yield layer

    def _measure(self, layer: Layer, stage: Stage, budget: Budget) -> None:
        missing = [count for count in stage.tokens if (layer, count) not in self._dense]
        if missing:
            dense = Dense(layer, self._dtype, self._device)
            for count, row in dense.time(missing, self._stopwatch).items():
                self._dense[layer, count] = row
        for sparsity in stage.sparsities:
            if budget.left < 0:
                return
            weight = random_weight(layer.shape, 1 - sparsity / 100, self._dtype, self._device)
            if stage.csr:
                self._add_csr(layer, sparsity, stage.tokens, weight)
                continue
            packed = self._packed(weight, layer)
            del weight  # frees memory
            copies = _measure.Rotation(
                partial(_formats.copy_of, packed), packed.nbytes, cold_bytes(self._device)
            )
            self._warm_up(layer, stage.tokens[0], copies)
            for count in stage.tokens:
                self._add(layer, sparsity, count, None, copies)
                if self._shapes:
                    for launch in _formats.launches(self._format, layer.shape, count, self._device):
                        self._add(layer, sparsity, count, launch, copies)

    def _warm_up(self, layer: Layer, tokens: int, copies: _measure.Rotation) -> None:
        """Times once and forgets it: after packing, the first times are up to 8% too long."""
        x = activations(tokens, layer, self._dtype, self._device)
        for _ in range(WARM_UPS if self._device.type == "cuda" else 0):
            self._stopwatch(lambda: _formats.multiply(copies(), x), len(copies))

    def _packed(self, weight: Tensor, layer: Layer) -> fs.PackedWeight:
        packed = _formats.packed_for_kernels(weight, self._format)
        if not torch.equal(packed.unpack(), weight):
            raise RuntimeError(f"the packed weight of {layer} is not its dense weight")
        return packed

    def _add(
        self,
        layer: Layer,
        sparsity: int,
        tokens: int,
        launch: Any,
        copies: _measure.Rotation,
    ) -> None:
        x = activations(tokens, layer, self._dtype, self._device)

        def timed(multiply: Callable[..., Tensor]) -> Time:
            return self._stopwatch(lambda: multiply(copies(), x), len(copies))

        either = {}
        if launch is not None:
            time = timed(launch.linear)
        else:
            time = timed(_formats.multiply)
            if tokens >= MANY[0] and not self._shapes:
                for name, plan in _formats.IMPLEMENTATIONS.items():
                    by_plan = partial(_formats.multiply, plan=plan)
                    either[f"{name}_us"] = round(timed(by_plan).microseconds, 2)
        nbytes = copies().nbytes
        moved = nbytes + x.nbytes + tokens * layer.out_features * x.element_size()
        dense = self._dense[layer, tokens]
        dense_bytes = layer.out_features * layer.in_features * x.element_size()
        self.rows.append(
            {
                "model": layer.model,
                "layer": layer.name,
                "shape": str(layer),
                "tokens": tokens,
                "sparsity": sparsity,
                **({"plan": str(launch or "its own choice")} if self._shapes else {}),
                "us": round(time.microseconds, 2),
                "spread": round(time.spread, 3),
                "packed_gb_s": round(nbytes / time.microseconds / 1e3, 1),
                "of_bound": round(moved / self._bandwidth * 1e6 / time.microseconds, 3),
                **dense,
                "ratio": round(dense["dense_us"] / time.microseconds, 3),
                "ratio_bound": round(dense_bytes / nbytes, 3),
                "fp8_ratio": round(dense["dense_us"] / dense["fp8_us"], 3)
                if "fp8_us" in dense
                else None,
                **either,
            }
        )

    def _add_csr(self, layer: Layer, sparsity: int, tokens: Sequence[int], dense: Tensor) -> None:
        """Adds cuSPARSE's time to the rows of the same point."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
            wide = dense.to_sparse_csr()
            parts = (wide.crow_indices().int(), wide.col_indices().int(), wide.values())
            csr = torch.sparse_csr_tensor(*parts, size=layer.shape, check_invariants=False)
        for count in tokens:
            x = activations(count, layer, self._dtype, self._device).T.contiguous()
            try:
                found = {
                    "csr_us": round(self._stopwatch.ungraphed(partial(torch.mm, csr, x))[0], 2)
                }
            except RuntimeError as error:  # not every library supports 16 bits
                found = {"csr_refused": str(error).splitlines()[0][:100]}
            for row in self.rows:
                if (row["shape"], row["sparsity"], row["tokens"]) == (str(layer), sparsity, count):
                    row |= found
