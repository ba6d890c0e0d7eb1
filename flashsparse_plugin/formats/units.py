# SPDX-License-Identifier: Apache-2.0
"""Units: blocks of 16 rows x 256 columns, into which formats divide a weight.

They are those of kernels/formats/mma_units.h.
"""

from __future__ import annotations

from collections.abc import Iterator

UNIT_ROWS, UNIT_COLS = 16, 256
SLAB_ELEMENTS = 1 << 24


def unit_grid(out_features: int, in_features: int) -> tuple[int, int]:
    """Units below each other and beside each other."""
    return (out_features + UNIT_ROWS - 1) // UNIT_ROWS, (in_features + UNIT_COLS - 1) // UNIT_COLS


def slabs(rows: int, columns: int, multiple: int = UNIT_ROWS) -> Iterator[slice]:
    """Rows that are taken at once, so that temporary tensors are bounded, whatever the weight.

    Args:
        rows: Of the weight.
        columns: Of the weight.
        multiple: A slab has a multiple of these rows, but for the last one: whole units.
    """
    step = max(SLAB_ELEMENTS // columns // multiple, 1) * multiple
    return (slice(first, min(first + step, rows)) for first in range(0, rows, step))


def unit_rows(slab: slice) -> slice:
    """The units below each other that hold a slab of rows."""
    return slice(slab.start // UNIT_ROWS, -(-slab.stop // UNIT_ROWS))
