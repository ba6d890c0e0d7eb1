# SPDX-License-Identifier: Apache-2.0
"""Which two of every four columns units keep for sparse tensor cores: the words of their metadata.

Their layout is drawn in kernels/formats/sparse_24.h.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from ..packed import FormatError
from .units import UNIT_COLS, UNIT_ROWS

METADATA_WORDS = 128
"""Of a unit, int32."""


def pairs_by_mask(device: torch.device) -> Tensor:
    """By the mask of what is kept of four columns: the two columns that are stored, int64 [16, 2].

    Fewer than two are filled with the smallest others. (More than two cannot be.)
    """
    pairs = list(itertools.combinations(range(4), 2))
    table = []
    for mask in range(16):
        kept = {column for column in range(4) if mask >> column & 1}
        table.append(next((pair for pair in pairs if kept <= set(pair)), pairs[0]))
    return torch.tensor(table, device=device)


def places_of_kept(kept: Tensor, pairs: Tensor) -> Tensor:
    """The columns, 0 to 3, that are stored of every four: int64 [..., 2].

    Args:
        kept: bool [..., 4], at most two of them.
        pairs: As `pairs_by_mask` gives them.
    """
    weights = torch.tensor([1, 2, 4, 8], dtype=torch.uint8, device=kept.device)
    return pairs[(kept * weights).sum(-1, dtype=torch.int32)]


def metadata_words(places: Tensor) -> Tensor:
    """Words of the metadata of whole units: int32 [unit rows, unit columns, 128].

    Args:
        places: int64 [rows, columns / 4, 2].
    """
    down, across = len(places) // UNIT_ROWS, places.shape[1] * 4 // UNIT_COLS
    nibbles = (places[..., 0] | places[..., 1] << 2).to(torch.int32)
    nibbles = nibbles.view(down, 2, 8, across, 4, 2, 2, 4)  # of two steps, step, half, four columns
    shifts = torch.arange(0, 16, 4, dtype=torch.int32, device=places.device)
    halves = (nibbles << shifts).sum(-1, dtype=torch.int32)
    metadata = (halves[:, 0] | halves[:, 1] << 16).permute(0, 2, 1, 4, 5, 3)
    return metadata.reshape(down, across, METADATA_WORDS)


def places_of(metadata: Tensor) -> Tensor:
    """The inverse of `metadata_words`: uint8 [unit rows, unit columns, 16, 64, 2]."""
    down, across, _ = metadata.shape
    words = metadata.reshape(down, across, 8, 2, 2, 4)
    # Of a lane group, step of two, half of the step's columns, and two steps; then by rows.
    rows = torch.stack((words, words >> 16), 2).permute(0, 1, 2, 3, 6, 4, 5)
    shifts = torch.arange(0, 16, 4, dtype=torch.int32, device=metadata.device)
    fours = (rows[..., None] >> shifts).reshape(down, across, UNIT_ROWS, UNIT_COLS // 4)
    return torch.stack((fours & 3, fours >> 2 & 3), -1).to(torch.uint8)


def require_rising(metadata: Tensor, first_row: int, units: Tensor | None = None) -> None:
    """Raises FormatError for two positions that do not rise: undefined behaviour of mma.sp.

    Args:
        metadata: int32 [unit rows, unit columns, 128].
        first_row: Of the weight, for the message.
        units: Where `metadata` has one unit a row, the row and column of each: [units, 2]; None: it
            has them in place.
    """
    lower, upper = places_of(metadata).unbind(-1)
    wrong = (lower >= upper).nonzero()
    if len(wrong):
        down, across, line, four = wrong[0].tolist()
        if units is not None:
            down, across = units[down].tolist()
        row = first_row + down * UNIT_ROWS + line
        column = across * UNIT_COLS + 4 * four
        raise FormatError(
            f"the two positions of row {row}, columns {column} to {column + 3}, do not rise"
        )
