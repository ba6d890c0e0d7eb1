# SPDX-License-Identifier: Apache-2.0
"""Measures the implementations of a layer on this machine's GPU, offline.

The decision flow of FlashDecoding++, section 5. Each call is timed among many of its kind in a CUDA
graph, whose replays' median counts. Copies of the weight alternate, four times the L2 cache in all,
so that each call reads its weight from memory as a model does; and two tensors x, so that no launch
begins before the one before it has ended, as after a norm or an activation.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from ..ops import STATUS, ops
from ..packed import PackedWeight, Scheme
from ..plan import Plan
from .decision import ranges_of
from .model import BUCKETS, MARGIN, Weight, implementations_of
from .table import Entry, Measurement

Call = Callable[[], object]


class Timer(Protocol):
    """Seconds of one call, which takes turns over so many copies of its weight."""

    def __call__(self, call: Call, copies: int) -> float: ...


def graph_timer(call: Call, copies: int) -> float:
    """The median of `replayed`."""
    return statistics.median(replayed(call, copies, REPLAYS))


# Of a graph: it should be long beside its launch, and calls beyond that are not needed.
CALLS, SECONDS, REPLAYS = 40, 0.003, 11


def warmed_up(call: Call, copies: int) -> tuple[torch.cuda.Stream, int]:
    """A stream on which a call has run, and how many of them make a graph that can be timed."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()  # workspaces and modules are made outside of the graph
        once = elapsed(call, stream)
    torch.cuda.current_stream().wait_stream(stream)
    return stream, max(copies, 3, min(CALLS, math.ceil(SECONDS / once)))


class Captured:
    """A CUDA graph of many calls; `Captured()()` replays it: seconds of one of them.

    Args:
        call: Takes turns over so many copies of its weight, each at least once in the graph.
        copies: How many copies of the weight there are.
    """

    def __init__(self, call: Call, copies: int):
        self._stream, self._calls = warmed_up(call, copies)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=self._stream):
            for _ in range(self._calls):
                call()

    def __call__(self) -> float:
        with torch.cuda.stream(self._stream):
            return elapsed(self._graph.replay, self._stream) / self._calls


def replayed(call: Call, copies: int, replays: int) -> list[float]:
    """Seconds of a call, a sample for each replay of a CUDA graph; see `Captured`."""
    captured = Captured(call, copies)
    captured()
    return [captured() for _ in range(replays)]


def elapsed(call: Call, stream: torch.cuda.Stream) -> float:
    """Seconds of the device from the call's begin to its end on a stream."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record(stream)
    call()
    end.record(stream)
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def require_gpu() -> torch.device:
    """The GPU to measure on.

    Raises:
        RuntimeError: Where there is none, or no kernels for it.
    """
    if not torch.cuda.is_available():
        raise RuntimeError(
            "tuning measures kernels on an NVIDIA GPU, and torch finds none. Run it on the "
            "machine that will serve the model; `--estimate H200` shows what the cost model "
            "expects without one"
        )
    if not STATUS["_C_cuda"].loaded:
        raise RuntimeError(
            f"tuning measures the CUDA kernels, and _C_cuda.so is {STATUS['_C_cuda'].reason}. "
            "`flashsparse doctor` has details"
        )
    return torch.device("cuda", torch.cuda.current_device())


def packed_weight(shape: tuple[int, int], scheme: Scheme, density: float) -> Weight:
    """A layer's weight by a scheme, whose density and bytes are those of a random sample, scaled.

    Args:
        shape: (out_features, in_features).
        scheme: How it is packed.
        density: Share of the elements that are kept at random; of a pattern as many as it keeps.
    """
    random = random_weight((512, 512), _share(scheme, density), scheme.dtype)
    sample = scheme.format.thin(random, scheme, density)
    kept = density if sample is random else int(sample.count_nonzero()) / sample.numel()
    nbytes = scheme.format.nbytes(scheme, (512, 512)) or scheme.format.pack(sample, scheme).nbytes
    return Weight(shape, scheme, kept, nbytes * shape[0] * shape[1] // sample.numel())


def random_weight(
    shape: tuple[int, int],
    density: float,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> Tensor:
    """Normal values, each of them kept with the probability `density`; products stay near 1."""
    generator = torch.Generator(device).manual_seed(seed)
    weight = torch.randn(shape, generator=generator, device=device, dtype=dtype)
    weight *= shape[1] ** -0.5
    if density < 1:
        weight *= torch.rand(shape, generator=generator, device=device) < density
    return weight


class _Layer:
    """Copies of one weight, and the calls that multiply them in rotation."""

    def __init__(self, weight: Weight, dtype: torch.dtype, device: torch.device, cold_bytes: int):
        self._weight, self._dtype, self._device = weight, dtype, device
        density = _share(weight.scheme, weight.density)
        dense = random_weight(weight.shape, density, dtype, device)
        made: Tensor | PackedWeight = dense
        nbytes = dense.nbytes
        if weight.scheme is not None:
            format = weight.scheme.format
            thin = format.thin(dense, weight.scheme, weight.density)
            made = format.pack(thin, weight.scheme).prepare(device)
            nbytes = made.nbytes
        count = max(2, cold_bytes // nbytes + 1)
        self.copies = [made, *(_copy(made) for _ in range(count - 1))]

    def calls(self, tokens: int) -> Iterator[tuple[str, Call, int]]:
        generator = torch.Generator(self._device).manual_seed(tokens)
        size = (tokens, self._weight.shape[1])
        x = torch.randn(size, generator=generator, device=self._device).to(self._dtype)
        pair = itertools.cycle((x, x.clone()))
        known = self._weight.implementations
        calls = _dense_calls(pair) if self._weight.scheme is None else _packed_calls(pair, known)
        for name, multiply in calls.items():
            most, _, capability = known[name]
            if (most is None or tokens <= most) and _has(self._device, capability):
                yield name, partial(_next, multiply, itertools.cycle(self.copies)), len(self.copies)


def _share(scheme: Scheme | None, density: float) -> float:
    """The share to keep at random: a pattern drops the others by itself."""
    return 1.0 if scheme is not None and scheme.format.pattern(scheme) else density


def _has(device: torch.device, capability: tuple[int, int] | None) -> bool:
    """Whether a device has what one compute capability has (None: all have it).

    A CPU, on which tests measure, is taken to.
    """
    if capability is None or device.type != "cuda":
        return True
    return torch.cuda.get_device_capability(device) == capability


def _next(multiply: Callable[[Any], object], turns: Iterator[Any]) -> None:
    multiply(next(turns))


def _copy(weight: Tensor | PackedWeight) -> Tensor | PackedWeight:
    if isinstance(weight, Tensor):
        return weight.clone()
    tensors = {name: tensor.clone() for name, tensor in weight.tensors.items()}
    return PackedWeight(weight.scheme, weight.shape, tensors)


def _dense_calls(xs: Iterator[Tensor]) -> dict[str, Callable[[Tensor], object]]:
    return {
        "gemv": lambda weight: ops.gemv(next(xs), weight),
        "flat_gemm": lambda weight: ops.flat_gemm(next(xs), weight),
        "library": lambda weight: F.linear(next(xs), weight),
    }


def _packed_calls(
    xs: Iterator[Tensor], names: Iterable[str]
) -> dict[str, Callable[[PackedWeight], object]]:
    return {name: partial(_multiply, xs, Plan.only(name)) for name in names}


def _multiply(xs: Iterator[Tensor], plan: Plan, weight: PackedWeight) -> Tensor:
    return weight.linear(next(xs), plan=plan)


def measure(
    weight: Weight,
    dtype: torch.dtype,
    device: torch.device,
    timer: Timer,
    cold_bytes: int,
    buckets: Sequence[int] = BUCKETS,
    on_measured: Callable[[int], None] = lambda tokens: None,
) -> Entry:
    """Times every implementation of one layer and draws the inflection points.

    Args:
        weight: Shape, scheme and density of the layer; its values are random.
        dtype: float16 or bfloat16, that of the scheme where there is one.
        device: Where to measure.
        timer: `graph_timer`.
        cold_bytes: Bytes of all copies of the weight together.
        buckets: Numbers of tokens.
        on_measured: Called with each of them when it is done.
    """
    layer = _Layer(weight, dtype, device, cold_bytes)
    found: dict[int, dict[str, float]] = {}
    for tokens in sorted(buckets):
        found[tokens] = {name: timer(call, copies) for name, call, copies in layer.calls(tokens)}
        on_measured(tokens)
    return entry_of(weight, found)


def entry_of(
    weight: Weight,
    found: Mapping[int, Mapping[str, float]],
    margin: float = MARGIN,
) -> Entry:
    """The entry that follows from the seconds of implementations, by tokens; see `ranges_of`."""
    named = {name for times in found.values() for name in times}
    return Entry(
        shape=weight.shape,
        format=weight.format,
        options={} if weight.scheme is None else weight.scheme.values,
        density=weight.density,
        ranges=ranges_of(found, implementations_of(weight.scheme, named), margin),
        measurements=[
            Measurement(
                tokens=tokens,
                microseconds={
                    name: round(value * 1e6, 3)
                    for name, value in named.items()
                    if math.isfinite(value)
                },
            )
            for tokens, named in found.items()
        ],
    )


def cold_bytes_of(device: torch.device) -> int:
    """Copies of so much in all take turns, and none is found in a cache."""
    return 4 * torch.cuda.get_device_properties(device).L2_cache_size
