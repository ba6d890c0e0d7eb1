# SPDX-License-Identifier: Apache-2.0
"""Parts of nm_vector's tensors: values, codes, positions and scales are cut and joined as they are.

For the form on disk and, by way of it, for those that kernels read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from .options import PatternOptions, pack_positions, unpack_positions


def cut(
    stored: Mapping[str, Tensor], options: PatternOptions, rows: range, columns: range, width: int
) -> dict[str, Tensor]:
    """The tensors of the part of a weight that covers some rows and columns.

    Args:
        stored: The tensors of the whole weight, by name.
        options: Its pattern, and the type of its values.
        rows: Both ends on the grain of the pattern, or at the edge.
        columns: Likewise.
        width: Columns of the whole weight.
    """
    of_rows = slice(rows.start, rows.stop)
    first = rows.start // options.vector_length
    groups = slice(first, first + options.groups(len(rows)))
    entries = range(columns.start // options.m * options.n, options.kept(columns.stop))
    kept, values = options.kept(width), options.value_type
    own = stored["weight_packed"][of_rows]
    bits = 8 if values is None else values.bits  # of native values an entry is an element
    parts = {
        "weight_packed": _cut_entries(own, entries, kept, bits),
        "weight_index": _cut_entries(
            stored["weight_index"][groups], entries, kept, options.index_bits
        ),
    }
    if values is not None:
        group = options.group or width
        scales = slice(columns.start // group, -(-columns.stop // group))
        parts["weight_scale"] = stored["weight_scale"][of_rows, scales].contiguous()
    return parts


def join(parts: Sequence[Mapping[str, Tensor]], options: PatternOptions) -> dict[str, Tensor]:
    """The tensors of weights on top of each other, all but the last of which end on the grain."""
    joined = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    if options.keeps_all:  # groups of rows that end anywhere; all have the same index
        groups = options.groups(len(joined["weight_packed"]))
        joined["weight_index"] = joined["weight_index"][:groups]
    return joined


def _cut_entries(lines: Tensor, entries: range, kept: int, bits: int) -> Tensor:
    """Entries of so many bits, 8 for whole elements, out of lines that have `kept` of them."""
    first, last = entries.start * bits, entries.stop * bits
    if first % 8 or (last % 8 and entries.stop != kept):
        found = unpack_positions(lines, kept, bits)[:, entries.start : entries.stop]
        return pack_positions(found, bits)
    return lines[:, first // 8 : -(-last // 8)].contiguous()
