# SPDX-License-Identifier: Apache-2.0
"""How many parts of a softmax were recomputed while a model ran, counted on the device.

A counter is a tensor that a decode step adds to without synchronising, so that a CUDA graph can
record the addition, too. It costs a small kernel per layer and step, so on a GPU nothing is counted
unless the logger "flashsparse_plugin.attention" is set to DEBUG when a model is loaded.

Each process counts for itself and publishes its counts in a file of the cache directory, where
`flashsparse doctor` finds them.
"""

from __future__ import annotations

import logging
import os
import re
import weakref
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ValidationError
from torch import Tensor

from ..cache import cache_directory, write_whole
from ..files import read_bounded

logger = logging.getLogger("flashsparse_plugin.attention")

_MAX_BYTES = 16 << 20  # of a file of counts
_COUNTERS: weakref.WeakSet[Counter] = weakref.WeakSet()


class Counter:
    """Counts for one layer.

    Args:
        layer: Name or number of the layer, for display.
        device: Where its attention runs.

    Attributes:
        total: int64 [2] on the device: recomputed parts; sequences times heads.
    """

    def __init__(self, layer: str, device: torch.device):
        self.layer = layer
        self.total = torch.zeros(2, dtype=torch.int64, device=device)
        _COUNTERS.add(self)

    @staticmethod
    def wanted(device: torch.device) -> bool:
        """Whether to count on this device at all."""
        return device.type == "cpu" or logger.isEnabledFor(logging.DEBUG)

    def add(self, recomputed: Tensor) -> None:
        """Adds the counts of a decode op, int32 [sequences, heads], without synchronising."""
        self.total[0] += recomputed.sum()
        self.total[1] += recomputed.numel()


def counters() -> dict[str, tuple[int, int]]:
    """Layer -> (recomputed parts, sequences times heads); synchronises with the devices.

    Layers are in the order of their numbers; layers of equal names, of two models, count as one.
    """
    found: dict[str, tuple[int, int]] = {}
    for counter in sorted(_COUNTERS, key=lambda counter: _natural(counter.layer)):
        recomputed, seen = counter.total.tolist()
        before = found.get(counter.layer, (0, 0))
        found[counter.layer] = (before[0] + recomputed, before[1] + seen)
    return found


class Counts(BaseModel):
    """The counts that a process publishes."""

    counted: datetime
    layers: dict[str, tuple[int, int]]


def _folder() -> Path:
    return cache_directory() / "counters"


def publish() -> None:
    """Shows the counts of this process to `flashsparse doctor`; synchronises with the devices."""
    found = counters()
    if found:
        counts = Counts(counted=datetime.now().astimezone(), layers=found)
        write_whole(_folder() / f"{os.getpid()}.json", counts.model_dump_json())


def published() -> list[dict[str, Any]]:
    """The counts that running processes have published; removes files of ended processes.

    Returns:
        For each process "pid" and "program", then "counted", the time, and "layers", as `counters`
        returns them; or "error" if its file cannot be read.
    """
    found = []
    for path in sorted(_folder().glob("*.json")):
        program = _program(path.stem)
        if program is None:
            with suppress(OSError):  # another doctor was faster, or it is a directory
                path.unlink()
            continue
        process: dict[str, Any] = {"pid": int(path.stem), "program": program}
        try:
            counts = Counts.model_validate_json(read_bounded(path, _MAX_BYTES))
        except (OSError, ValidationError) as error:
            reason = str(error).splitlines()[0]
            process["error"] = f"{path} cannot be read as counts: {reason}. Remove it"
        else:
            process |= counts.model_dump(mode="json")
        found.append(process)
    return found


def _program(pid: str) -> str | None:
    """The name of a running process; None if no process has this number.

    Not its command line, which may hold a password or a key.
    """
    try:
        return Path(f"/proc/{int(pid)}/comm").read_text(errors="replace").strip()
    except (OSError, ValueError):
        return None


def _natural(name: str) -> list[str | int]:
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]
