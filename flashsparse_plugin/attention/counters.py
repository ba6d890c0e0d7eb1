# SPDX-License-Identifier: Apache-2.0
"""How many parts of a softmax were computed again while a model ran, counted on the device.

A counter is a tensor that a decode step adds to without waiting for anything, so that a CUDA graph
holds the adding, too. It costs a small kernel a layer and step, so on a GPU nothing is counted
unless the logger "flashsparse_plugin.attention" is set to DEBUG when a model is loaded.
"""

from __future__ import annotations

import logging
import re
import weakref

import torch
from torch import Tensor

logger = logging.getLogger("flashsparse_plugin.attention")

_COUNTERS: weakref.WeakSet[Counter] = weakref.WeakSet()


class Counter:
    """Counts for one layer.

    Args:
        layer: Name or number of the layer, for people.
        device: Where its attention runs.

    Attributes:
        total: int64 [2] on the device: parts that were computed again; sequences times heads that
            were looked at.
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
        """Adds what a decode op returned, int32 [sequences, heads]; waits for nothing."""
        self.total[0] += recomputed.sum()
        self.total[1] += recomputed.numel()


def counters() -> dict[str, tuple[int, int]]:
    """Layer -> (parts computed again, sequences times heads looked at); waits for the devices.

    Layers in the order of their numbers; those of equal names, of two models, count as one.
    """
    found: dict[str, tuple[int, int]] = {}
    for counter in sorted(_COUNTERS, key=lambda counter: _natural(counter.layer)):
        recomputed, seen = counter.total.tolist()
        before = found.get(counter.layer, (0, 0))
        found[counter.layer] = (before[0] + recomputed, before[1] + seen)
    return found


def _natural(name: str) -> list[str | int]:
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]
