# SPDX-License-Identifier: Apache-2.0
"""Units of 16 rows x 256 columns that are dense or 2:4: from values to streams and back.

In torch on any device; the layout is specified in docs/hybrid.md. Between the two, values are bits
[out_features, in_features], zeros included: int16 or int32 of native ones, uint8 of codes, which
have a byte each.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from ....packed import FormatError, Scheme
from ...two_of_four import pairs_by_mask
from ...units import SLAB_ELEMENTS, UNIT_COLS, UNIT_ROWS, unit_grid
from ...values.dtypes import magnitudes
from ...values.quantization import SCALE, quantization_of
from ...values.types import ValueType, join_nibbles, split_nibbles
from ..options import PatternOptions

WINDOW = 4
UNIT_WINDOWS = UNIT_COLS // WINDOW
DENSE_UNIT = 1
"""In weight_kinds; a 2:4 unit is 0."""


def magnitudes_of(values: Tensor, type: ValueType | None) -> Tensor:
    """Value bits of which any zero has 0."""
    return magnitudes(values) if type is None else type.magnitudes(values)


def breaks_24(nonzero: Tensor) -> Tensor:
    """Which units keep more than two of some four columns: bool [unit rows, unit columns].

    Args:
        nonzero: bool [out_features, in_features].
    """
    rows, cols = nonzero.shape
    down, across = unit_grid(rows, cols)
    padded = F.pad(nonzero, (0, across * UNIT_COLS - cols, 0, down * UNIT_ROWS - rows))
    full = padded.view(down, UNIT_ROWS, across, UNIT_WINDOWS, WINDOW).sum(4, dtype=torch.uint8) > 2
    return full.any(3).any(1)


def kinds_of(values: Tensor, type: ValueType | None) -> Tensor:
    """weight_kinds of a weight: units are dense where they have to be.

    Args:
        values: Bits [out_features, in_features].
        type: Of codes; None for native values.
    """
    rows = max(SLAB_ELEMENTS // values.shape[1] // UNIT_ROWS, 1) * UNIT_ROWS
    found = [breaks_24(magnitudes_of(part, type) != 0) for part in values.split(rows)]
    return torch.cat(found).to(torch.uint8)


def dense_windows(kinds: Tensor, rows: int, cols: int) -> Tensor:
    """Which windows of each row are in dense units: bool [rows, ceil(cols / 4)]."""
    down = (kinds != 0).repeat_interleave(UNIT_ROWS, 0)[:rows]
    return down.repeat_interleave(UNIT_WINDOWS, 1)[:, : (cols + WINDOW - 1) // WINDOW]


def write_streams(values: Tensor, kinds: Tensor, type: ValueType | None) -> tuple[Tensor, Tensor]:
    """Writes the kept values of all rows, and the positions of those in 2:4 units.

    Args:
        values: Bits [out_features, in_features], which follow 2:4 in units that are not dense.
        kinds: uint8 [unit rows, unit columns].
        type: Of codes; None for native values.

    Returns:
        weight_packed and weight_index, each of one dimension, on the device of the values.
    """
    rows = max(SLAB_ELEMENTS // values.shape[1] // UNIT_ROWS, 1)
    parts = zip(values.split(rows * UNIT_ROWS), kinds.split(rows), strict=True)
    made = [_write_rows(part, own, type) for part, own in parts]
    packed, index = (torch.cat(streams) for streams in zip(*made, strict=True))
    if type is not None and type.shares_bytes:
        packed = join_nibbles(packed)  # windows keep 2 or 4, so that no row ends inside a byte
    return packed, index


def _write_rows(values: Tensor, kinds: Tensor, type: ValueType | None) -> tuple[Tensor, Tensor]:
    rows, cols = values.shape
    fours = F.pad(values, (0, -cols % WINDOW)).view(rows, -1, WINDOW)
    nonzero = magnitudes_of(fours, type) != 0
    dense = dense_windows(kinds, rows, cols)
    weights = torch.tensor([1, 2, 4, 8], dtype=torch.uint8, device=values.device)
    pairs = pairs_by_mask(values.device).to(torch.uint8)
    nibbles = (pairs[:, 0] | pairs[:, 1] << 2)[(nonzero * weights).sum(2, dtype=torch.int32)]
    packed = fours.where(nonzero, 0).masked_select(_kept(nibbles, dense))
    index = join_nibbles(F.pad(nibbles, (0, nibbles.shape[1] % 2)))
    return packed, index.masked_select(~dense[:, ::2])


def _kept(nibbles: Tensor, dense: Tensor) -> Tensor:
    """Which columns windows keep, by their positions: bool [rows, windows, 4]."""
    columns = torch.arange(WINDOW, dtype=torch.uint8, device=nibbles.device)
    low, high = (nibbles & 3)[..., None] == columns, (nibbles >> 2)[..., None] == columns
    return low | high | dense[..., None]


def positions(stored: Mapping[str, Tensor], rows: int, cols: int) -> Tensor:
    """Both positions of each 2:4 window, 4 bits; of dense windows 0: uint8 [rows, windows]."""
    dense = dense_windows(stored["weight_kinds"], rows, cols)
    written = ~dense[:, ::2]
    index = torch.zeros_like(written, dtype=torch.uint8)
    return split_nibbles(index.masked_scatter(written, stored["weight_index"]))


def read_values(
    stored: Mapping[str, Tensor], shape: tuple[int, int], type: ValueType | None
) -> Tensor:
    """The inverse of `write_streams`: value bits [out_features, in_features].

    Without slabs and without sizes that depend on values, so that torch.compile follows it.
    """
    values = _read_windows(stored, shape, type).flatten(1)
    return values[:, : shape[1]].contiguous()


def _read_windows(
    stored: Mapping[str, Tensor], shape: tuple[int, int], type: ValueType | None
) -> Tensor:
    """Value bits [out_features, windows, 4], of columns beyond the edge too."""
    dense = dense_windows(stored["weight_kinds"], *shape)
    packed = stored["weight_packed"]
    if type is not None and type.shares_bytes:
        packed = type.spread(packed, 2 * packed.shape[0])
    kept = _kept(positions(stored, *shape)[:, : dense.shape[1]], dense)
    return torch.zeros_like(kept, dtype=packed.dtype).masked_scatter(kept, packed)


def stored_tensors(
    values: Tensor, scales: Tensor | None, type: ValueType | None, kinds: Tensor | None = None
) -> dict[str, Tensor]:
    """The tensors of hybrid_24 by name.

    Args:
        values: Bits [out_features, in_features].
        scales: Of codes.
        type: Of codes; None for native values.
        kinds: Of units; None: those that the values need.
    """
    if kinds is None:
        kinds = kinds_of(values, type)
    packed, index = write_streams(values, kinds, type)
    tensors = {"weight_packed": packed, "weight_index": index, "weight_kinds": kinds}
    return tensors if scales is None else tensors | {SCALE: scales}


def in_both_kinds(weight: Tensor) -> Tensor:
    """A copy that keeps what is largest in every other unit by 2:4, the first one included."""
    down, across = unit_grid(weight.shape[0], weight.shape[1])
    return keep_units(weight, (torch.arange(down)[:, None] + torch.arange(across)) % 2)


def keep_dense(weight: Tensor, share: float, seed: int = 0) -> Tensor:
    """A copy that keeps what is largest by 2:4, but for a share of units, chosen at random."""
    grid = unit_grid(weight.shape[0], weight.shape[1])
    count = grid[0] * grid[1]
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return keep_units(weight, (order < round(share * count)).view(grid))


def thinned(weight: Tensor, scheme: Scheme, density: float) -> Tensor:
    """A copy that a scheme holds, with as many dense units as a weight of this density has."""
    found, kept = quantization_of(scheme), keep_dense(weight, min(max(2 * density - 1, 0), 1))
    return kept if found is None else found.conform(kept)


def keep_units(weight: Tensor, kinds: Tensor) -> Tensor:
    """A copy that keeps what is largest by 2:4, but for units of a kind other than 0."""
    dense = dense_windows(kinds.to(weight.device), weight.shape[0], weight.shape[1])
    columns = dense.repeat_interleave(WINDOW, 1)[:, : weight.shape[1]]
    return weight.where(columns, PatternOptions(n=2, m=4).keep_largest(weight)).contiguous()


def stream_sizes(
    kinds: Tensor, shape: tuple[int, int], type: ValueType | None
) -> tuple[list[int], list[int]]:
    """Elements of weight_packed, and of weight_index, of a row in each row of units."""
    windows = torch.full((kinds.shape[1],), UNIT_WINDOWS)
    windows[-1] = -(-shape[1] // WINDOW) - UNIT_WINDOWS * (kinds.shape[1] - 1)
    dense = kinds.cpu() != 0
    entries = (torch.where(dense, 4, 2) * windows).sum(1)
    if type is not None:
        entries = entries * type.bits // 8
    return entries.tolist(), (~dense * ((windows + 1) // 2)).sum(1).tolist()


def require_streams(
    stored: Mapping[str, Tensor], shape: tuple[int, int], type: ValueType | None
) -> int:
    """Proves that tensors of any origin are those of a weight.

    Returns:
        The number of elements other than zero.

    Raises:
        FormatError: With the rule that is broken.
    """
    kinds, (rows, cols) = stored["weight_kinds"], shape
    if bool((kinds > DENSE_UNIT).any()):
        raise FormatError("weight_kinds has a kind other than 0 (2:4) and 1 (dense)")
    lines = [min(UNIT_ROWS, rows - first) for first in range(0, rows, UNIT_ROWS)]
    for name, sizes in zip(
        ("weight_packed", "weight_index"), stream_sizes(kinds, shape, type), strict=True
    ):
        wanted = sum(a * b for a, b in zip(lines, sizes, strict=True))
        if stored[name].shape[0] != wanted:
            raise FormatError(
                f"{name} has {stored[name].shape[0]} elements, and the kinds of units ask for "
                f"{wanted}"
            )
    dense, nibbles = dense_windows(kinds, rows, cols), positions(stored, rows, cols)
    windows = dense.shape[1]
    if bool(nibbles[:, windows:].any()):
        raise FormatError("weight_index has positions beyond the weight's last window")
    nibbles = nibbles[:, :windows]
    wrong = (((nibbles & 3) >= (nibbles >> 2)) & ~dense).nonzero()
    if len(wrong):
        row, window = wrong[0].tolist()
        raise FormatError(
            f"the two positions of row {row}, columns {4 * window} to {4 * window + 3}, do not rise"
        )
    values = _read_windows(stored, shape, type).flatten(1)
    if type is not None and type.has_nan(values):
        raise FormatError("weight_packed has a code that is NaN")
    nonzero = magnitudes_of(values, type) != 0
    if bool(nonzero[:, cols:].any()):
        raise FormatError("weight_packed has a nonzero beyond the weight's edge")
    return int(nonzero.count_nonzero())
