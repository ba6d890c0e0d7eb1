# SPDX-License-Identifier: Apache-2.0
"""What layers of a model take on this machine: dense, of other libraries, and with zeros of ours.

Each product is held against float64 first. Then it is timed over cold weights, on a GPU in a CUDA
graph whose launches alternate between two tensors x, so that none begins before the one before it
has ended: as layers run in a model (see dataflow/tuner.py).
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..dataflow.tuner import Timer, cold_bytes_of, graph_timer, random_weight
from ..linear import SparseLinear
from ..packed import PackedWeight
from .dense_products import TOLERANCE, dense_products, relative_error
from .kinds import CHOICES, KINDS

Shape = tuple[int, int]
DENSE = "dense"
OWN_TOLERANCE = 4e-3  # of the norm: rounding to bfloat16 has 1.7e-3
CPU_COLD = 256 << 20  # bytes of copies that no CPU's cache holds
COPIES = {"cpu": 64, "cuda": 512}  # of a small layer there are enough
CPU_SAMPLES, CPU_SECONDS = 7, 0.01


@dataclasses.dataclass(frozen=True)
class Time:
    """What one product takes.

    Attributes:
        shape: (out_features, in_features).
        tokens: Rows of x.
        kind: DENSE, a name of dense_products.py, or one of CHOICES.
        bits: A weight, as it is multiplied.
        us: Microseconds.
        dense_us: Those of the dense layer.
        error: From float64, relative to the norm.
    """

    shape: Shape
    tokens: int
    kind: str
    bits: float
    us: float
    dense_us: float
    error: float


class LayerBench:
    """Measures layer by layer.

    Attributes:
        rows: What was measured and is right.
        left_out: By kind, why it has no row.
        wrong: By kind, what was wrong with its result.

    Args:
        tokens: Numbers of tokens.
        device: A GPU, or the CPU.
        dtype: bfloat16 or float16.
        tell: Called with what is measured next.
        timer: Seconds of a call.
        kinds: Of CHOICES.
    """

    def __init__(
        self,
        tokens: Sequence[int],
        device: torch.device,
        dtype: torch.dtype,
        tell: Callable[[str], None] = lambda what: None,
        timer: Timer | None = None,
        kinds: Sequence[str] = tuple(CHOICES),
    ):
        self.rows: list[Time] = []
        self.left_out: dict[str, str] = {}
        self.wrong: dict[str, str] = {}
        self._tokens, self._device, self._dtype, self._kinds = tokens, device, dtype, kinds
        self._tell = tell
        self._timer = timer or (graph_timer if device.type == "cuda" else cpu_timer)
        self._cold = cold_bytes_of(device) if device.type == "cuda" else CPU_COLD
        self._most = COPIES[device.type]

    def run(self, shapes: Sequence[Shape]) -> Iterator[Shape]:
        """Yields each shape when it is measured."""
        for shape in shapes:
            with torch.inference_mode():
                dense = self._dense(shape)
                for kind in self._kinds:
                    self._guarded(shape, kind, partial(self._own, shape, kind, dense))
            yield shape

    def _guarded(self, shape: Shape, kind: str, measure: Callable[[], None]) -> None:
        """Measures; a library or a kernel that refuses leaves its kind out, and the rest goes on.

        Raises:
            RuntimeError: Where the GPU's context is lost.
        """
        self._tell(f"{shape[0]}x{shape[1]}, {kind}")
        try:
            measure()
        except (RuntimeError, ValueError, AssertionError) as error:
            if "CUDA error" in str(error):
                raise
            self.left_out[kind] = (str(error).strip() or type(error).__name__).splitlines()[0]
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _dense(self, shape: Shape) -> dict[int, float]:
        """Microseconds by tokens; other libraries' products are measured beside them."""
        self._tell(f"{shape[0]}x{shape[1]}, {DENSE}")
        weight = random_weight(shape, 1.0, self._dtype, self._device)
        copies = self._copies(weight.clone, weight.nbytes)
        ways = {"cublas", "cublaslt"} if weight.is_cuda else {""}  # the faster one counts
        found = {}
        for tokens in self._tokens:
            x = self._x(tokens, shape)
            error = relative_error(F.linear(x, weight), x.double(), lambda p: weight[p].double())
            times = []
            for way in ways:
                with _blas(way):
                    times.append(self._time(lambda own, x: F.linear(x, own), copies, x))
            found[tokens] = min(times)
            self._add(shape, tokens, DENSE, 16.0, found[tokens], found, error, OWN_TOLERANCE)
        del copies
        for each in dense_products(weight):
            if isinstance(each, tuple):
                self.left_out[each[0]] = each[1]
                continue
            self._guarded(shape, each.name, partial(self._rival, shape, each, found))
        return found

    def _rival(self, shape: Shape, product: Any, dense: Mapping[int, float]) -> None:
        copies = self._copies(product.copy, product.nbytes)
        for tokens in self._tokens:
            x = self._x(tokens, shape)
            error = product.error(x)
            us = self._time(lambda own, x: product.multiply(x, own), copies, product.quantize(x))
            self._add(shape, tokens, product.name, product.bits, us, dense, error, TOLERANCE)

    def _own(self, shape: Shape, kind: str, dense: Mapping[int, float]) -> None:
        packed = KINDS[CHOICES[kind]].pack(shape, self._dtype, self._device)
        exact = packed.unpack()
        layer = SparseLinear.from_packed(packed)
        format, scheme = packed.format, packed.scheme
        held = layer.packed
        bits = 8 * held.nbytes / exact.numel()
        # Called as a model calls its layers.
        copies = self._copies(lambda: SparseLinear.from_packed(_copy(held)), held.nbytes)
        for tokens in self._tokens:
            x = self._x(tokens, shape)
            seen = format.round_activations(x, scheme).double()
            error = relative_error(layer(x), seen, lambda part: exact[part].double())
            us = self._time(lambda own, x: own(x), copies, x)
            self._add(shape, tokens, kind, bits, us, dense, error, OWN_TOLERANCE)

    def _copies(self, make: Callable[[], Any], nbytes: int) -> list[Any]:
        return [make() for _ in range(min(self._most, max(2, self._cold // max(nbytes, 1) + 1)))]

    def _x(self, tokens: int, shape: Shape) -> Tensor:
        generator = torch.Generator(self._device).manual_seed(tokens)
        x = torch.randn(tokens, shape[1], generator=generator, device=self._device)
        return x.to(self._dtype)

    def _time(
        self, multiply: Callable[[Any, Tensor], object], copies: list[Any], x: Tensor
    ) -> float:
        """Microseconds of a product after another one."""
        pair, turns = itertools.cycle((x, x.clone())), itertools.cycle(copies)
        return 1e6 * self._timer(lambda: multiply(next(turns), next(pair)), len(copies))

    def _add(
        self,
        shape: Shape,
        tokens: int,
        kind: str,
        bits: float,
        us: float,
        dense: Mapping[int, float],
        error: float,
        tolerance: float,
    ) -> None:
        if not error <= tolerance:
            point = f"{shape[0]}x{shape[1]}, {tokens} tokens"
            self.wrong.setdefault(kind, f"off by {error:.1e} of the norm ({point})")
            return
        row = Time(
            shape, tokens, kind, round(bits, 3), round(us, 2), round(dense[tokens], 2), error
        )
        self.rows.append(row)


def _copy(packed: PackedWeight) -> PackedWeight:
    tensors = {name: tensor.clone() for name, tensor in packed.tensors.items()}
    return dataclasses.replace(packed, tensors=tensors)


@contextlib.contextmanager
def _blas(name: str) -> Iterator[None]:
    """Uses a library for dense products on a GPU; none is named on a CPU."""
    if not name:
        yield
        return
    before = torch.backends.cuda.preferred_blas_library()
    torch.backends.cuda.preferred_blas_library(name)
    try:
        yield
    finally:
        torch.backends.cuda.preferred_blas_library(before)


def cpu_timer(call: Callable[[], object], copies: int) -> float:
    """The fastest of a few samples of calls, each of which takes another copy.

    What else a CPU does makes calls slower only.
    """
    call()
    start = time.perf_counter()
    call()
    once = max(time.perf_counter() - start, 1e-7)
    calls = max(1, min(300, int(CPU_SECONDS / once)))
    samples = []
    for _ in range(CPU_SAMPLES):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        samples.append((time.perf_counter() - start) / calls)
    return min(samples)


def speedups(
    rows: Sequence[Time], layers: Mapping[Shape, int]
) -> dict[str, tuple[float, dict[int, float]]]:
    """Bits a weight, and dense time / time of all layers by tokens; only of kinds with all shapes.

    Args:
        rows: What was measured.
        layers: How many layers there are of each shape.
    """
    found: dict[str, tuple[float, dict[int, float]]] = {}
    for kind in dict.fromkeys(row.kind for row in rows):
        own = [row for row in rows if row.kind == kind]
        ratios = {}
        for tokens in dict.fromkeys(row.tokens for row in rows):
            each = {row.shape: row for row in own if row.tokens == tokens}
            if each.keys() == layers.keys():
                dense, us = (
                    sum(count * getattr(each[shape], name) for shape, count in layers.items())
                    for name in ("dense_us", "us")
                )
                ratios[tokens] = dense / us
        sizes = {row.shape: row.bits for row in own}
        weights = {shape: layers[shape] * shape[0] * shape[1] for shape in sizes}
        bits = sum(sizes[shape] * weights[shape] for shape in sizes) / sum(weights.values())
        found[kind] = bits, ratios
    return found


def write_csv(path: Path, about: Mapping[str, Any], rows: Sequence[Time]) -> None:
    """Conditions as comments, a key and its JSON a line; then the columns and a row a product."""
    with path.open("w", newline="", encoding="utf-8") as file:
        file.writelines(f"# {key}: {json.dumps(value)}\n" for key, value in about.items())
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["shape", "tokens", "kind", "bits", "us", "dense_us", "error"])
        for row in rows:
            shape, *rest = dataclasses.astuple(row)
            writer.writerow([f"{shape[0]}x{shape[1]}", *rest[:-1], f"{rest[-1]:.1e}"])
