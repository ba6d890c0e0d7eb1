# SPDX-License-Identifier: Apache-2.0
"""Feeds an emulator driver with products, and takes apart what it answers."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from emulation import UNTIL_A_RACE, is_caught
from torch import Tensor


class Product(Protocol):
    """A case of a driver: y = x W^T."""

    @property
    def weight(self) -> Tensor: ...
    @property
    def x(self) -> Tensor: ...
    def encode(self) -> bytes: ...


def run(binary: Path, cases: Sequence[Product], **environment: str) -> subprocess.CompletedProcess:
    fed = b"".join(case.encode() for case in cases)
    return subprocess.run(
        [str(binary)], input=fed, capture_output=True, timeout=600, env=os.environ | environment
    )


def split(written: bytes, cases: Sequence[Product]) -> list[Tensor]:
    """What the driver wrote: y of each case, in 16 bits."""
    sizes = [len(case.x) * len(case.weight) for case in cases]
    bits = torch.from_numpy(np.frombuffer(written, dtype=np.int16).copy())
    return [
        part.view(case.weight.dtype).view(len(case.x), -1)
        for part, case in zip(bits.split(sizes), cases, strict=True)
    ]


def spared(
    binary: Path,
    places: Sequence[str],
    cases: Sequence[Any],
    judge: Callable[[Any, Any], object],
    split: Callable[[bytes, Sequence[Any]], Sequence[Any]] = split,
) -> list[str]:
    """Barriers that nothing misses: without one there is no race, no deadlock and no wrong y.

    Args:
        binary: A driver with switched barriers, under the thread sanitizer.
        places: Of its barriers, as `with_switched_barriers` lists them; not empty.
        cases: What the driver is fed with.
        judge: Raises where a case and its y, or what `split` makes of it, do not belong together.
        split: Takes apart what the driver wrote for the cases.
    """

    def judge_all(written: bytes) -> None:
        for case, y in zip(cases, split(written, cases), strict=True):
            judge(case, y)

    assert places
    found = []
    for number, place in enumerate(places):
        ran = run(binary, cases, WITHOUT=str(number), TSAN_OPTIONS=UNTIL_A_RACE)
        if not is_caught(ran, judge_all):
            found.append(place)
    return found


def token_scales(x: Tensor) -> Tensor:
    """Random scales of the tokens of x [tokens, in_features], float32 [tokens]."""
    generator = torch.Generator().manual_seed(x.shape[0])
    return torch.rand(len(x), generator=generator) + 0.5


def scaled_tokens(x: Tensor, scales: Tensor | None) -> Tensor:
    """x times the scales of its tokens, or x where it has none, in float64."""
    return x.double() if scales is None else x.double() * scales.double()[:, None]
