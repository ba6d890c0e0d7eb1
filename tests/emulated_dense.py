# SPDX-License-Identifier: Apache-2.0
"""Feeds the dense kernels' emulator driver."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from emulated_products import split
from torch import Tensor
from torch.nn import functional as F

PLANNED = -1  # what Case.shape may be besides an index


@dataclass
class Case:
    """One product. `split` is the number of multiprocessors where the host plans.

    `weight` may be a slice of a larger tensor: its stride and where it begins are kept.
    """

    weight: Tensor
    x: Tensor
    bias: Tensor | None = None
    gemv: bool = False
    shape: int = PLANNED
    split: int = 4
    seed: int = 0

    def encode(self) -> bytes:
        (rows, cols), tokens = self.weight.shape, len(self.x)
        offset, stride = self.weight.storage_offset(), self.weight.stride(0)
        header = [
            *(int(self.gemv), rows, cols, tokens, int(self.weight.dtype == torch.bfloat16)),
            *(self.shape, self.split, int(self.bias is not None), offset, stride, self.seed),
        ]
        whole = self.weight.as_strided((offset + (rows - 1) * stride + cols,), (1,), 0)
        tensors = [whole, F.pad(self.x, (0, -cols % 8)).contiguous()]
        tensors += [] if self.bias is None else [self.bias]
        parts = [np.array(header, dtype=np.int64).tobytes()]
        return b"".join(parts + [t.view(torch.uint8).numpy().tobytes() for t in tensors])


def run(binary: Path, cases: list[Case], **environment: str) -> subprocess.CompletedProcess:
    fed = b"".join(case.encode() for case in cases)
    return subprocess.run(
        [str(binary)], input=fed, capture_output=True, timeout=300, env=os.environ | environment
    )


def answers(binary: Path, cases: list[Case]) -> list[Tensor]:
    ran = run(binary, cases)
    assert ran.returncode == 0, ran.stderr.decode()[-4000:]
    return split(ran.stdout, cases)
