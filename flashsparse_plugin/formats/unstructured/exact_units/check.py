# SPDX-License-Identifier: Apache-2.0
"""Whether tensors of exact_units are what a packer writes: no kernel checks what it reads."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ....packed import FormatError
from ...two_of_four import METADATA_WORDS, require_rising
from ...units import UNIT_COLS, UNIT_ROWS, slabs, unit_rows
from . import layout
from .exceptions import SLOTS, place


def require_valid(tensors: Mapping[str, Tensor], shape: tuple[int, int]) -> None:
    """Raises FormatError for tensors that no weight has; their dtypes are right, and dimensions.

    First what a kernel would read out of bounds by: offsets, columns and rows of the list. Then
    each element must be in one place, where packers put it: a code that means another one beside an
    exception would be added to it.
    """
    units, scales, slots, listed, offsets = (tensors[name] for name in layout.NAMES)
    if slots.shape[2] not in SLOTS:
        raise FormatError(f"a unit has 4, 8 or 16 slots, not {slots.shape[2]}")
    if int(offsets[0]) != 0 or bool((offsets.diff() < 0).any()) or int(offsets[-1]) > len(listed):
        raise FormatError(f"listed_offsets must rise from 0 to at most {len(listed)}")
    bits = scales.view(torch.int32)
    bases = layout.bases_of(scales)
    if bool((bits & 0x807FFFFF).any() | (bases < 0).any() | (bases > 239).any()):
        raise FormatError("row_scales must be powers of two from 2^-112 to 2^127")
    count = int(offsets[-1])
    if bool(listed[count:].any()):
        raise FormatError("listed must be 0 past the last offset")
    columns = listed[:count, 0]
    if bool(((columns < 0) | (columns >= shape[1])).any()):
        raise FormatError(f"listed has columns outside of the weight's {shape[1]}")
    down = torch.arange(len(offsets) - 1, device=offsets.device)
    first = down.repeat_interleave(offsets.diff()) * UNIT_ROWS
    below = (listed[:count, 1].long() - first) & 0xFFFF
    if bool((below >= UNIT_ROWS).any()):
        raise FormatError("listed has rows outside of the row of units that offsets say")
    _require_of_a_weight(tensors, shape)


def _require_of_a_weight(tensors: Mapping[str, Tensor], shape: tuple[int, int]) -> None:
    (rows, columns), slots = shape, tensors["slots"]
    down, across, _ = (slots != 0).nonzero().T
    words = slots[slots != 0]
    beyond = down * UNIT_ROWS + (words >> 8 & 15) >= rows
    if bool((beyond | (across * UNIT_COLS + (words & 255) >= columns)).any()):
        raise FormatError("slots have weights beyond the weight's edge")
    found, bases = layout.exceptions_of(tensors), layout.bases_of(tensors["row_scales"])
    if bool((found.rows >= rows).any()):
        raise FormatError("listed has weights beyond the weight's edge")
    if bool(((found.rows * columns + found.columns).diff() <= 0).any()):
        raise FormatError("slots and listed have a weight twice")
    codes = (found.bits >> 7 & 0xFF).int() - bases[found.rows]
    if bool((((codes >= 1) & (codes <= 15)) | (found.bits & 0x7FFF == 0)).any()):
        raise FormatError("slots or listed have a weight that has a code")
    for slab in slabs(*shape):
        held = tensors["units"][unit_rows(slab)]
        if layout.is_24(held):
            require_rising(held[..., -METADATA_WORDS:], slab.start)
        halves = layout.halves_of(held)
        if bool(((halves & 0x0780 == 0) & (halves & 0x7F != 0)).any()):
            raise FormatError("units have a fraction without a code")
        if bool(halves[:, columns:].any() | halves[slab.stop - slab.start :].any()):
            raise FormatError("units have weights beyond the weight's edge")
        own = (found.rows >= slab.start) & (found.rows < slab.stop)
        if bool(halves[found.rows[own] - slab.start, found.columns[own]].any()):
            raise FormatError("units have a weight in the place of one in slots or listed")
    placed = place(found, bases.to(torch.uint8), shape)
    count = int(tensors["listed_offsets"][-1])
    for name, right in zip(("slots", "listed", "listed_offsets"), placed, strict=True):
        ours = tensors[name]
        if name == "listed":
            ours, right = ours[:count], right[:count]
        if not torch.equal(ours, right):
            raise FormatError(f"{name} do not have exceptions where a packer puts them")
