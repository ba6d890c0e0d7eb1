# SPDX-License-Identifier: Apache-2.0
"""Tensors of nm_vector that validation must refuse, and a weight that packing must refuse."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

# Of the bfloat16 weight that the damages are made for; its last window has two columns.
SHAPE, DENSITY, OPTIONS = (300, 202), 0.5, {"n": 2, "m": 4}
TOO_LARGE = (1, 2**31 - 100)  # columns that an int32 cannot count with those of a window more

# Each spoils the values and the index in place; a byte has four positions, two windows.
DAMAGES: list[Callable[[Tensor, Tensor], object]] = [
    lambda values, index: index[0, 0].fill_(0b0000),  # the same one twice
    lambda values, index: index[299, 7].fill_(0b01110100),  # the second window falls
    lambda values, index: index[128].fill_(255),
    lambda values, index: (index[3, -1].fill_(0b1101), values[3, -1].fill_(7)),  # behind the edge
]
