# SPDX-License-Identifier: Apache-2.0
"""compressed-tensors' `marlin-24`: 2:4 codes in the order of Sparse-Marlin's kernel.

Sparse-Marlin (Frantar et al., MARLIN, 2024) reads a tile of 16 kept entries and 64 rows in the
order in which its threads multiply them, and metadata in that of CUTLASS's sparse tensor core
products. Each is a permutation of the bits of an index, undone here by transposing a view with
these bits for dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ...formats.values.types import VALUE_TYPES, scale_count
from ...packed import dtype_name
from .codes import CodeLayout, Codes, signed
from .quantization import Arguments


class Marlin24(CodeLayout):
    """`weight_packed` int32 [columns / 32, rows * bits / 2], `meta` int16 [columns / 32, rows * 2],
    `scale_packed` [groups, rows].

    A code has half of its range added. Of four columns `meta` has the places of the two that are
    kept, two bits each, the lower one first.
    """

    name = "marlin-24"
    scale = "scale_packed"

    def has(self, parts: set[str]) -> bool:
        return parts == {"weight_packed", "meta", self.scale}

    def describe(self, layer: str, tensors: Mapping[str, Tensor], arguments: Arguments) -> Codes:
        packed, meta, scales = (tensors[x] for x in ("weight_packed", "meta", self.scale))
        if packed.dim() != 2 or scales.dim() != 2 or arguments.type != "int":
            self.refuse(layer, packed.shape, "its weight_packed or scale_packed is no matrix")
        rows, columns = scales.shape[1], 32 * packed.shape[0]
        shape, bits = (rows, columns), arguments.num_bits
        for name, tensor, dtype, width in (
            ("weight_packed", packed, torch.int32, rows * bits // 2),
            ("meta", meta, torch.int16, 2 * rows),
        ):
            wanted = (columns // 32, width)
            if min(shape) < 1 or rows % 64 or (tensor.dtype, tensor.shape) != (dtype, wanted):
                self.refuse(
                    layer,
                    shape,
                    f"its {name} is {dtype_name(tensor.dtype)} {list(tensor.shape)}, and not "
                    f"{dtype_name(dtype)} {list(wanted)} for int{bits} codes of rows in 64s",
                )
        turned = torch.empty(rows, scales.shape[0], dtype=scales.dtype, device="meta")
        group = self.group_of(layer, shape, turned, arguments)
        return Codes(shape, f"int{bits}", group, scales.dtype)

    def read(
        self, layer: str, tensors: Mapping[str, Tensor], codes: Codes
    ) -> tuple[Tensor, Tensor]:
        kept = _kept(tensors["weight_packed"], codes)
        places = _places(tensors["meta"], codes)
        first, second = places[..., 0::2], places[..., 1::2]
        if bool((first >= second).any()):
            row, four = (first >= second).nonzero()[0].tolist()
            self.refuse(
                layer,
                codes.shape,
                f"its meta keeps the columns {4 * four + int(first[row, four])} and "
                f"{4 * four + int(second[row, four])} of row {row}, which are to ascend",
            )
        rows, columns = codes.shape
        fours = torch.arange(0, columns, 4).repeat_interleave(2)
        weight = torch.zeros(rows, columns, dtype=torch.int8)
        weight.scatter_(1, places + fours, kept)
        return weight, _scales(tensors[self.scale], codes)


def _kept(packed: Tensor, codes: Codes) -> Tensor:
    """Codes of the kept entries, int8 [rows, columns / 2].

    In a tile of 64 rows and 16 entries, row = 16 a + 8 b + 4 c + d and entry = 8 h + 2 i + e.
    """
    rows, columns = codes.shape
    bits = VALUE_TYPES[codes.values].bits
    flat = signed(packed, bits)
    tiles = (columns // 32, rows // 64)
    if bits == 4:
        view = flat.reshape(*tiles, 4, 2, 4, 4, 2, 2, 2)  # tile, strip, a, b, i, d, e, c, h
        order = (1, 2, 3, 7, 5, 0, 8, 4, 6)
    else:
        view = flat.reshape(*tiles, 4, 2, 4, 4, 2, 2, 2)  # tile, strip, a, b, i, d, c, e, h
        order = (1, 2, 3, 6, 5, 0, 8, 4, 7)
    return view.permute(order).reshape(rows, columns // 2)


def _places(meta: Tensor, codes: Codes) -> Tensor:
    """Places of the kept entries among their four columns, int64 [rows, columns / 2].

    A word has those of 16 columns. Row = 64 s + 8 u + 4 p + 2 q + r, word = 2 v + w.
    """
    rows, columns = codes.shape
    view = meta.reshape(columns // 32, rows // 64, 2, 8, 2, 2, 2)  # v, s, q, u, r, w, p
    words = view.permute(1, 3, 6, 2, 4, 0, 5).reshape(rows, columns // 16)
    shifts = torch.arange(0, 16, 2)
    return (words.long().unsqueeze(-1) >> shifts & 3).flatten(1)


def _scales(packed: Tensor, codes: Codes) -> Tensor:
    """Scales [rows, groups]; where there are several groups of kept entries, of 8 rows the first
    four and the last four alternate."""
    rows, columns = codes.shape
    if codes.group is not None and codes.group < columns // 2:
        packed = packed.reshape(-1, rows // 8, 4, 2).transpose(2, 3)
    assert packed.numel() == rows * scale_count(columns, codes.group)
    return packed.reshape(-1, rows).T.contiguous()
