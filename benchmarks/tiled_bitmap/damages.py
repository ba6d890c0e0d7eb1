# SPDX-License-Identifier: Apache-2.0
"""Tensors of tiled_bitmap that validation must refuse, and a weight that packing must refuse."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

SHAPE, DENSITY = (300, 200), 0.5  # of the bfloat16 weight that the damages are made for
TOO_LARGE = (2**21, 2**20)  # the heads of its units alone have more lines than int32 can count

# Each spoils the lines and the offsets in place; unit 0 begins at line 0, with 4 lines of masks.
DAMAGES: list[Callable[[Tensor, Tensor], object]] = [
    lambda lines, offsets: lines[0].fill_(-1),  # columns that the weight has not
    lambda lines, offsets: lines[4, 3].copy_(lines[4, 4]),  # two runs in a column
    lambda lines, offsets: lines[4, 3].bitwise_or_(1 << 15),  # item 1024
    lambda lines, offsets: lines[4].add_(64 << 16),  # second runs that begin two items late
    lambda lines, offsets: offsets[0].fill_(1),
    lambda lines, offsets: offsets[2].fill_(-8),
    lambda lines, offsets: offsets[3].copy_(offsets[2] + 4),  # a unit without all of its head
    lambda lines, offsets: offsets[-1].add_(1),
]
