# SPDX-License-Identifier: Apache-2.0
"""Tensors of Tiled-CSL that validation must refuse, and a weight that packing must refuse."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

SHAPE, DENSITY = (300, 200), 0.5  # of the bfloat16 weight that the damages are made for
TOO_LARGE = (46400, 46400)  # full of ones, it has more words than int32 offsets can count

# Each spoils the words and the offsets in place.
DAMAGES: list[Callable[[Tensor, Tensor], object]] = [
    lambda words, offsets: words[9].bitwise_or_(0x8000),
    lambda words, offsets: words[5].copy_(words[4] ^ (1 << 20)),
    lambda words, offsets: offsets[0].fill_(4),
    lambda words, offsets: offsets[2].fill_(-8),
    lambda words, offsets: offsets[3].add_(2),
    lambda words, offsets: offsets[-1].add_(4),
]
