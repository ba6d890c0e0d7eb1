# SPDX-License-Identifier: Apache-2.0
"""nm_panels in pure torch: slow, short, and the oracle of every test.

Written from kernels/formats/nm_panels.h and from no kernel,
so that a mistake in one is not repeated in the other.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...packed import PackedWeight, Scheme
from ..value_types import VALUE_TYPES, quantise


def pack(weight: Tensor, scheme: Scheme) -> dict[str, Tensor]:
    """Packs group by group; the weight must follow the pattern. Codes are quantised first."""
    n, m, length = (scheme.values[name] for name in ("n", "m", "vector_length"))
    cols, name = weight.shape[1], scheme.values.get("values", "native")
    scales = None
    if name != "native":
        weight, scales = quantise(weight, VALUE_TYPES[name], scheme.values.get("group"))
    panels, columns = [], []
    for group in weight.split(length):
        taken: list[int] = []
        for first in range(0, cols, m):
            window = [c for c in range(first, first + m)]
            used = [c for c in window if c < cols and bool((group[:, c] != 0).any())]
            taken += sorted(used + [c for c in window if c not in used][: n - len(used)])
        columns.append([min(c, cols) for c in taken])
        for panel in group.split(16):
            values = torch.zeros(len(taken), 16, dtype=weight.dtype)
            for j, column in enumerate(taken):
                if column < cols:
                    values[j, : len(panel)] = torch.where(
                        panel[:, column] == 0, 0.0, panel[:, column]
                    )
            panels.append(values)
    tensors = {"columns": torch.tensor(columns, dtype=torch.int32)}
    if scales is None:
        integer = {2: torch.int16, 4: torch.int32}[weight.itemsize]
        return {"values": torch.stack(panels).view(integer), **tensors}
    return {"values": code_bits(torch.stack(panels), name), **tensors, "scales": by_16(scales)}


def unpack(packed: PackedWeight) -> Tensor:
    """Unpacks by putting every entry where its column says."""
    length, (rows, cols) = packed.scheme.values["vector_length"], packed.shape
    name, columns = packed.scheme.values.get("values", "native"), packed.tensors["columns"]
    if name == "native":
        panels = packed.tensors["values"].view(packed.dtype)
    else:
        panels = code_numbers(packed.tensors["values"], name, columns.shape[1])
        width = packed.scheme.values.get("group") or cols
        entries = -(-width // packed.scheme.values["m"]) * packed.scheme.values["n"]
        scales = packed.tensors["scales"].float().repeat_interleave(entries, 1)
        panels = (panels * scales[:, : columns.shape[1]]).to(packed.dtype)
    weight = torch.zeros(rows, cols + 1, dtype=packed.dtype)
    for panel, values in enumerate(panels):
        own = weight[16 * panel : 16 * panel + 16]
        for entry, column in zip(values, columns[16 * panel // length], strict=True):
            own[:, int(column)] = entry[: len(own)]
    return weight[:, :cols].contiguous()


def by_16(rows: Tensor) -> Tensor:
    """[rows, length] as [panels, length, 16]."""
    padded = torch.zeros(-(-len(rows) // 16) * 16, rows.shape[1], dtype=rows.dtype)
    padded[: len(rows)] = rows
    return torch.stack([panel.T for panel in padded.split(16)]).contiguous()


def code_bits(numbers: Tensor, name: str) -> Tensor:
    """Codes [panels, entries, 16] given as numbers, as uint8 [panels, steps, 16]."""
    if name == "fp8_e4m3":
        return numbers.to(torch.float8_e4m3fn).view(torch.uint8)
    codes = numbers.to(torch.int64)
    if name == "int8":
        return (codes % 256).to(torch.uint8)
    steps = torch.zeros(len(codes), -(-codes.shape[1] // 2), 16, dtype=torch.int64)
    for entry in range(codes.shape[1]):
        steps[:, entry // 2] += codes[:, entry] % 16 * 16 ** (entry % 2)
    return steps.to(torch.uint8)


def code_numbers(steps: Tensor, name: str, kept: int) -> Tensor:
    """The inverse of `code_bits`: float32 [panels, kept, 16]."""
    if name == "fp8_e4m3":
        return steps.view(torch.float8_e4m3fn).float()
    if name == "int8":
        return torch.where(steps > 127, steps.long() - 256, steps.long()).float()
    entries = [steps[:, entry // 2].long() // 16 ** (entry % 2) % 16 for entry in range(kept)]
    nibbles = torch.stack(entries, 1)
    return torch.where(nibbles > 7, nibbles - 16, nibbles).float()
