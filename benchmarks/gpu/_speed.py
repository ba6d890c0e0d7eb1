# SPDX-License-Identifier: Apache-2.0
"""How fast is the sparse linear layer of each format on this card, and how fast could it be?

Measured over cold weights and from CUDA graphs: the op by its own choice, beside it what
`_baselines` lists (from BY_TURNS tokens on by turns), and

    csr      cuSPARSE through torch.sparse, for a few layers only
    bound    the bytes of packed weight, x and y at the bandwidth that this card shows in this run

and, for MANY tokens and more, each implementation of the op itself:

    sparse   the format's own kernels for all of the tokens, in several launches if necessary
    unpacked unpacking the weight for torch's own linear
    few      the kernel for few tokens, and
    many     the one for many, CROSSING tokens, where a format has both
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from _baselines import Dense, Int4, Rivals, Row, activations
from _device import Budget, Stopwatch, _formats, _measure, cold_bytes
from _layers import LLAMA, OPT, Layer
from torch import Tensor

import flashsparse_plugin as fs
from flashsparse_plugin.dataflow.tuner import random_weight
from flashsparse_plugin.plan import Plan

WARM_UPS = 3  # timings of a layer that are discarded
FEW = (1, 8, 16, 32)
MANY = (64, 128, 256, 512, 2048)  # tokens at which either implementation is timed
BY_TURNS = 96  # tokens from which on the power limit binds, so that all are timed by turns
OWN = "us"  # the op's own choice
CROSSING = (16, 32, 64, 128)  # tokens at which either kernel may be the faster one
ZEROS = (50, 60, 70, 80, 90)  # percent


@dataclass(frozen=True)
class Stage:
    """Layers x sparsities (percent) x tokens."""

    layers: Sequence[Layer]
    sparsities: Sequence[int]
    tokens: Sequence[int]
    csr: bool = False


# The most important first, since the time may be over before the last.
STAGES = (
    Stage([*LLAMA, *OPT], ZEROS, FEW),
    Stage([*LLAMA, *OPT], ZEROS, MANY),
    Stage(OPT[1:3], (80, 90), (16,), csr=True),
)


class Speed:
    """Measures stage by stage; `rows` always holds everything measured so far.

    Attributes:
        rows: A row a format, layer, sparsity and number of tokens.
        failed: The formats that are left out since a layer failed, and how it did.
    """

    def __init__(
        self,
        formats: Sequence[str],
        device: torch.device,
        dtype: torch.dtype,
        stopwatch: Stopwatch,
        bandwidth: float,
    ):
        """
        Args:
            formats: Of the packed weights.
            device: Where they are.
            dtype: Of weights and activations.
            stopwatch: What times the calls.
            bandwidth: Bytes a second that this card reads, for the bound.
        """
        self.rows: list[Row] = []
        self.failed: dict[str, str] = {}
        self._formats = formats
        self._device, self._dtype, self._stopwatch = device, dtype, stopwatch
        self._bandwidth = bandwidth
        self._dense: dict[tuple[Layer, int], Row] = {}
        self._int4 = Int4()
        self._rivals: Rivals | None = None  # of the layer that is being measured

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
        self._measure_dense(layer, [n for n in stage.tokens if (layer, n) not in self._dense])
        by_turns = not stage.csr and max(stage.tokens) >= BY_TURNS
        self._rivals = None  # before others take their place in memory
        if by_turns:
            self._rivals = Dense(layer, self._dtype, self._device).rivals()
        for sparsity in stage.sparsities:
            if budget.left < 0:
                return
            weight = random_weight(layer.shape, 1 - sparsity / 100, self._dtype, self._device)
            if stage.csr:
                self._add_csr(layer, sparsity, stage.tokens, weight)
                continue
            for format in self._formats:
                if format in self.failed:
                    continue
                try:
                    self._measure_format(format, layer, sparsity, stage.tokens, weight)
                except RuntimeError as error:  # the other formats go on
                    self.failed[format] = str(error).splitlines()[0]
                    print(f"{format} is left out from here on, {layer}: {error}", flush=True)
                    if "CUDA error" in str(error):  # the context is lost: nothing runs after it
                        raise

    def _measure_dense(self, layer: Layer, tokens: Sequence[int]) -> None:
        if not tokens:
            return
        found = Dense(layer, self._dtype, self._device).time(tokens, self._stopwatch)
        int4 = self._int4.time(layer, tokens, self._dtype, self._device, self._stopwatch)
        for count, row in found.items():
            self._dense[layer, count] = row | int4.get(count, {})

    def _measure_format(
        self, format: str, layer: Layer, sparsity: int, tokens: Sequence[int], weight: Tensor
    ) -> None:
        packed = _formats.packed_for_kernels(weight, format)
        if not torch.equal(packed.unpack(), weight):
            raise RuntimeError("the packed weight is not its dense weight")
        copies = _measure.Rotation(
            partial(_formats.copy_of, packed), packed.nbytes, cold_bytes(self._device)
        )
        self._warm_up(layer, tokens[0], copies)
        for count in tokens:
            point = {
                "model": layer.model,
                "layer": layer.name,
                "shape": str(layer),
                "tokens": count,
                "sparsity": sparsity,
                "format": format,
            }
            self._add(point, layer, copies)

    def _warm_up(self, layer: Layer, tokens: int, copies: _measure.Rotation) -> None:
        """Times once and forgets it: after packing, the first times are up to 8% too long."""
        x = activations(tokens, layer, self._dtype, self._device)
        for _ in range(WARM_UPS if self._device.type == "cuda" else 0):
            self._stopwatch(lambda: _formats.multiply(copies(), x), len(copies))

    def _add(self, point: Row, layer: Layer, copies: _measure.Rotation) -> None:
        tokens = point["tokens"]
        x = activations(tokens, layer, self._dtype, self._device)
        calls = {OWN: partial(multiplied, _formats.multiply, copies, x)}
        either: Row = {}
        for name, plan in self._plans(point["format"], tokens).items():
            call = partial(multiplied, partial(_formats.multiply, plan=plan), copies, x)
            try:
                call()
            except RuntimeError as error:  # it does not take so many tokens
                if "CUDA error" in str(error):
                    raise
                either[f"{name}_refused"] = str(error).splitlines()[0][:100]
            else:
                calls[f"{name}_us"] = call
        counted = {name: (call, len(copies)) for name, call in calls.items()}
        dense = self._dense[layer, tokens]
        if self._rivals and tokens >= BY_TURNS:
            times = self._stopwatch.in_turns(counted | self._rivals.calls(x))
            dense = dense | self._rivals.row(times)
        else:
            times = {name: self._stopwatch(*each) for name, each in counted.items()}
        time = times[OWN]
        either |= {name: round(times[name].microseconds, 2) for name in calls if name != OWN}
        packed: fs.PackedWeight = copies()
        moved = packed.nbytes + x.nbytes + tokens * layer.out_features * x.element_size()
        fp8 = dense.get("fp8_us")
        self.rows.append(
            {
                **point,
                "us": round(time.microseconds, 2),
                "spread": round(time.spread, 3),
                "packed_gb_s": round(packed.nbytes / time.microseconds / 1e3, 1),
                "of_bound": round(moved / self._bandwidth * 1e6 / time.microseconds, 3),
                **dense,
                "ratio": round(dense["dense_us"] / time.microseconds, 3),
                "ratio_bound": round(packed.dense_nbytes / packed.nbytes, 3),
                "fp8_ratio": round(dense["dense_us"] / fp8, 3) if fp8 else None,
                **either,
            }
        )

    def _plans(self, format: str, tokens: int) -> dict[str, Plan]:
        """What is timed beside the op's own choice."""
        plans = dict(_formats.IMPLEMENTATIONS) if tokens >= MANY[0] else {}
        return plans | (_formats.kernels(format) if tokens in CROSSING else {})

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


def multiplied(multiply: Callable[..., Tensor], copies: _measure.Rotation, x: Tensor) -> Tensor:
    """The product of x with the copy of a packed weight whose turn it is."""
    return multiply(copies(), x)
