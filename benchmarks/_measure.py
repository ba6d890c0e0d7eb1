# SPDX-License-Identifier: Apache-2.0
"""What every benchmark needs: fair timing and a description of the machine."""

from __future__ import annotations

import contextlib
import datetime
import multiprocessing
import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

COLD_BYTES = 512 << 20  # more than any cache holds


def cpu_name() -> str:
    """Name of the CPU by the operating system."""
    with contextlib.suppress(OSError):
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M)
        if match:
            return match[1].strip()
    return platform.processor() or platform.machine()


def machine() -> dict[str, Any]:
    """The conditions of a measurement."""
    from flashsparse_plugin.ops import ops

    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "capability": ops.cpu_capability(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "load_average_before": os.getloadavg()[0],
    }


class Rotation:
    """Copies of some tensors, so many that each is out of every cache when its turn comes."""

    def __init__(self, make: Callable[[], Any], nbytes: int, cold_bytes: int = COLD_BYTES):
        self._copies = [make() for _ in range(max(2, cold_bytes // max(nbytes, 1) + 1))]
        self._turn = 0

    def __len__(self) -> int:
        return len(self._copies)

    def __call__(self) -> Any:
        self._turn = (self._turn + 1) % len(self._copies)
        return self._copies[self._turn]


def interleaved(
    functions: Mapping[str, Callable[[], object]],
    repeats: int,
    seconds: float = 0.012,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Times functions in turn, so that a drift of the machine's speed affects all of them.

    Args:
        functions: What to time, by name.
        repeats: Turns, each of which gives one sample per function.
        seconds: Approximate length of a sample, for which quick functions are called several times.
        clock: Tells the seconds. time.process_time is that of the processor: on a busy machine it
            does not count the time of others, and of several threads it counts each.

    Returns:
        Seconds a call, `repeats` samples by name.
    """
    calls = {}
    for name, function in functions.items():
        function()
        start = clock()
        function()
        once = max(clock() - start, 1e-7)
        calls[name] = max(1, min(300, int(seconds / once)))
    samples: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            start = clock()
            for _ in range(calls[name]):
                function()
            samples[name].append((clock() - start) / calls[name])
    return samples


def in_turns(clocks: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Samples of several clocks, round by round, each round in another order.

    What one leaves behind, such as a device at its power limit that lowers its clock, so meets all
    others alike.

    Args:
        clocks: Each does its work once and tells the seconds that it took.
        rounds: Samples of each; one more, the first, is forgotten.
    """
    names = list(clocks)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds + 1):
        first = turn // 2 % len(names)
        order = names[first:] + names[:first]
        for name in order if turn % 2 else reversed(order):
            samples[name].append(clocks[name]())
    return {name: own[1:] for name, own in samples.items()}


def median_ratio(samples: Sequence[float], baseline: Sequence[float]) -> float:
    """Median over the turns of sample / baseline of the same turn."""
    return statistics.median(a / b for a, b in zip(samples, baseline, strict=True))


def console(width: int) -> Console:
    """A terminal of at least this width, so that no table is cut off."""
    found = Console()
    return found if found.width >= width else Console(width=width)


def _spin(core: int) -> None:
    os.sched_setaffinity(0, {core})
    while True:
        pass


@contextlib.contextmanager
def busy_core(core: int = 0) -> Iterator[None]:
    """Keeps one core busy with another process."""
    process = multiprocessing.get_context("spawn").Process(target=_spin, args=(core,), daemon=True)
    process.start()
    time.sleep(1.0)
    try:
        yield
    finally:
        process.kill()
        process.join()
