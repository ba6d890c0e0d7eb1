# SPDX-License-Identifier: Apache-2.0
"""What GPUs do while vLLM generates, by torch's profiler in its workers.

How long the kernels of a step take, and what share of all time GPUs spend on exchanging sums. A
GPU that waits for another one spends that time in the exchange, too.
"""

from __future__ import annotations

import gzip
import json
import re
import statistics
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Kernel = dict[str, Any]
# Kernels of NCCL, and those of vLLM and torch for the sums of a few tokens.
EXCHANGE = re.compile(r"nccl|all_?reduce|all_?gather|reduce_?scatter|cross_device|multimem", re.I)
PATIENCE = 120  # seconds until a server has written its traces


def profiler_options(folder: Path) -> list[str]:
    """The options by which a server can be profiled into a folder; until asked to it is not."""
    config = {"profiler": "torch", "torch_profiler_dir": str(folder.absolute())}
    return ["--profiler-config", json.dumps(config | {"torch_profiler_with_stack": False})]


def profile(url: str, folder: Path, work: Callable[[], object]) -> list[Kernel]:
    """The kernels that GPUs run while a server does some work.

    Raises:
        RuntimeError: Where there is no trace.
    """
    before = {*folder.glob("*.json*")}
    _post(f"{url}/start_profile")
    work()
    _post(f"{url}/stop_profile")
    return kernels_of(folder, {*folder.glob("*.json*")} - before)


def kernels_of(folder: Path, paths: set[Path]) -> list[Kernel]:
    """The kernels in traces of a folder, of all GPUs; none where there are no GPUs.

    Raises:
        RuntimeError: Where there is no trace.
    """
    if not paths:
        raise RuntimeError(f"the server left no trace of torch's profiler in {folder}")
    found = []
    for path in sorted(paths):
        raw = path.read_bytes()
        trace = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
        found += [event for event in trace["traceEvents"] if event.get("cat") == "kernel"]
    return found


def exchange_share(kernels: Sequence[Kernel]) -> float | None:
    """The share that exchanges have of the time of all kernels; None of no kernels."""
    total = sum(each["dur"] for each in kernels)
    exchanged = sum(each["dur"] for each in kernels if EXCHANGE.search(each["name"]))
    return exchanged / total if total else None


def graph_ms(kernels: Sequence[Kernel]) -> float | None:
    """Milliseconds from the first kernel to the end of the last of a step's CUDA graph: the median.

    Kernels of one launch have one correlation. Of all launches those count that have at least half
    of the kernels of the largest: what is not a graph, or the graph of a part, has fewer. The head
    and the sampler come after it. A kernel may begin before the one before it has ended, so that a
    sum of their times would count some of it twice.
    """
    launches = defaultdict(list)
    for each in kernels:
        launches[each["args"]["correlation"]].append(each)
    most = max(map(len, launches.values()), default=0)
    spans = [
        max(each["ts"] + each["dur"] for each in own) - min(each["ts"] for each in own)
        for own in launches.values()
        if len(own) >= max(2, most / 2)
    ]
    return statistics.median(spans) / 1000 if spans else None


def _post(url: str) -> None:
    with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=PATIENCE):
        pass
