# SPDX-License-Identifier: Apache-2.0
"""The GPU, and fair timing on it; a CPU stands in if there is none."""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

sys.path.append(str(Path(__file__).parents[1]))
import _edges as _edges
import _formats as _formats  # the programs here take these from this module,
import _measure as _measure  # which is what finds them
import _results as _results
import _server as _server
import _spmm_goals as _spmm_goals
import plots as plots

from flashsparse_plugin.dataflow.tuner import Captured, cold_bytes_of, elapsed, replayed
from flashsparse_plugin.ops import STATUS

SMI_FIELDS = (
    "driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.limit,power.draw,temperature.gpu,"
    "clocks_event_reasons.active"
)


def require_device(name: str) -> torch.device:
    """The device of this name; without a GPU or its kernels the program ends."""
    device = torch.device(name)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise SystemExit("no GPU here: --device cpu makes a toy run")
        if not STATUS["_C_cuda"].loaded:
            raise SystemExit(f"the CUDA kernels are missing: {STATUS['_C_cuda'].reason}")
    return device


def machine(device: torch.device) -> dict[str, Any]:
    """The conditions of a measurement; the card's clocks are read, never set."""
    about = _measure.machine()
    if device.type != "cuda":
        return about
    properties = torch.cuda.get_device_properties(device)
    about |= {
        "gpu": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "memory_bytes": properties.total_memory,
        "cuda": torch.version.cuda,
    }
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["nvidia-smi", f"--query-gpu={SMI_FIELDS}", "--format=csv,noheader"]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        values = [value.strip() for value in ran.stdout.splitlines()[0].split(",")]
        about |= dict(zip(SMI_FIELDS.split(","), values, strict=True))
    return about


class Time(NamedTuple):
    microseconds: float  # median
    spread: float  # range of the middle four fifths of the samples / median


def _time(samples: list[float]) -> Time:
    median = statistics.median(samples)
    ordered = sorted(samples)
    edge = len(ordered) // 10
    return Time(median * 1e6, (ordered[-1 - edge] - ordered[edge]) / median)


def _seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


class Stopwatch:
    """Times a call by the median of replays of a CUDA graph of many such calls."""

    def __init__(self, device: torch.device, replays: int):
        self._device = device
        self._replays = replays

    def __call__(self, call: Callable[[], object], copies: int = 1) -> Time:
        """Times `call`, which takes turns over `copies` of its weight, each at least once."""
        if self._device.type != "cuda":
            samples = _measure.interleaved({"it": call}, self._replays, seconds=0.0)["it"]
            return _time(samples)
        return _time(replayed(call, copies, self._replays))

    def in_turns(self, calls: Mapping[str, tuple[Callable[[], object], int]]) -> dict[str, Time]:
        """Times calls, each with the number of its copies, by turns: a replay of each a round.

        For products that reach the power limit: the first of them would have the cooler card.
        """
        clocks: dict[str, Callable[[], float]] = {
            name: Captured(call, copies) if self._device.type == "cuda" else partial(_seconds, call)
            for name, (call, copies) in calls.items()
        }
        samples = _measure.in_turns(clocks, self._replays)
        return {name: _time(own) for name, own in samples.items()}

    def ungraphed(self, call: Callable[[], object]) -> Time:
        """Times calls that cannot be captured in a graph and take far longer than their launch."""
        call()
        if self._device.type != "cuda":
            return self(call)
        stream = torch.cuda.current_stream()
        return _time([elapsed(call, stream) for _ in range(self._replays)])


def cold_bytes(device: torch.device) -> int:
    """Bytes of copies that have to take turns so that no cache holds any of them."""
    return cold_bytes_of(device) if device.type == "cuda" else 0


def bandwidth(device: torch.device, stopwatch: Stopwatch) -> dict[str, float]:
    """Bytes a second that this card reads, and that it copies (read plus written)."""
    size = (4 << 30) if device.type == "cuda" else (32 << 20)
    source = torch.empty(size // 4, dtype=torch.float32, device=device).normal_()
    target = torch.empty_like(source)
    copied = stopwatch(lambda: target.copy_(source)).microseconds
    read = stopwatch(lambda: source.view(-1, 1 << 14).sum(1)).microseconds
    return {"copy": 2 * size / copied * 1e6, "read": size / read * 1e6}


class Budget:
    """The time that is left for a program."""

    def __init__(self, seconds: float):
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return self._end - time.monotonic()

    def keep(self, seconds: float) -> Budget:
        """A budget that ends this much earlier."""
        return Budget(self.left - seconds)

    def at_most(self, seconds: float) -> Budget:
        """A budget of this many seconds, or of what is left if that is less."""
        return Budget(min(self.left, seconds))
