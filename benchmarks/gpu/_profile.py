# SPDX-License-Identifier: Apache-2.0
"""What share of a divided model's time GPUs spend on exchanging sums, by torch's profiler in vLLM.

A GPU that waits for another one spends that time in the exchange, too.
"""

from __future__ import annotations

import gzip
import json
import re
import urllib.request
from collections.abc import Callable
from pathlib import Path

# Kernels of NCCL, and those of vLLM and torch for the sums of a few tokens.
EXCHANGE = re.compile(r"nccl|all_?reduce|all_?gather|reduce_?scatter|cross_device|multimem", re.I)
PATIENCE = 120  # seconds until a server has written its traces


def profiler_options(folder: Path) -> list[str]:
    """The options by which a server can be profiled into a folder; until asked to it is not."""
    config = {"profiler": "torch", "torch_profiler_dir": str(folder.absolute())}
    return ["--profiler-config", json.dumps(config | {"torch_profiler_with_stack": False})]


def profile(url: str, folder: Path, work: Callable[[], object]) -> float | None:
    """The share that exchanges have of the time of all kernels, while a server does some work.

    Raises:
        RuntimeError: Where there is no trace; as `share_of` does.
    """
    _post(f"{url}/start_profile")
    work()
    _post(f"{url}/stop_profile")
    return share_of(folder)


def share_of(folder: Path) -> float | None:
    """The share in the traces of a folder, over all GPUs; None where there are no kernels of GPUs.

    Raises:
        RuntimeError: Where there is no trace.
    """
    exchanged = total = 0.0
    paths = list(folder.glob("*.json*"))
    if not paths:
        raise RuntimeError(f"the server left no trace of torch's profiler in {folder}")
    for path in paths:
        raw = path.read_bytes()
        trace = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
        for event in trace["traceEvents"]:
            if event.get("cat") == "kernel":
                total += event["dur"]
                exchanged += event["dur"] * bool(EXCHANGE.search(event["name"]))
    return exchanged / total if total else None


def _post(url: str) -> None:
    with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=PATIENCE):
        pass
