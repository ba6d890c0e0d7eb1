# SPDX-License-Identifier: Apache-2.0
"""Launches as C++ plans them, for tests that hold them to what was measured."""

from __future__ import annotations

from dataclasses import replace

from flashsparse_plugin.gpu import GPUS
from flashsparse_plugin.ops.plan import Product, plan

_KNOWN = {gpu.name: gpu for gpu in GPUS}
_ADA = replace(_KNOWN["A100"], capability=(8, 9), multiprocessors=128, bus=1_008_096e6)
PLANNED_FOR = _KNOWN | {
    "RTX 4090": _ADA,
    "RTX 4060": replace(_ADA, multiprocessors=24, bus=0),  # not known
}
"""GPUs by their names, small ones too."""


def launch(kernel: str, product: Product, gpu: str) -> str:
    """The numbers of the planned launch, as text."""
    return " ".join(map(str, plan(kernel, product, PLANNED_FOR[gpu]).numbers))
