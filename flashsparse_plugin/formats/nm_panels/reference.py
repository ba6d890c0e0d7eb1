# SPDX-License-Identifier: Apache-2.0
"""nm_panels in pure torch: slow, short, and the oracle of every test.

Written from kernels/formats/nm_panels.h and from no kernel,
so that a mistake in one is not repeated in the other.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...packed import PackedWeight, Scheme


def pack(weight: Tensor, scheme: Scheme) -> dict[str, Tensor]:
    """Packs group by group; the weight must follow the pattern."""
    n, m, length = (scheme.values[name] for name in ("n", "m", "vector_length"))
    cols, integer = weight.shape[1], {2: torch.int16, 4: torch.int32}[weight.itemsize]
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
    return {
        "values": torch.stack(panels).view(integer),
        "columns": torch.tensor(columns, dtype=torch.int32),
    }


def unpack(packed: PackedWeight) -> Tensor:
    """Unpacks by putting every entry where its column says."""
    length, (rows, cols) = packed.scheme.values["vector_length"], packed.shape
    weight = torch.zeros(rows, cols + 1, dtype=packed.dtype)
    for panel, values in enumerate(packed.tensors["values"].view(packed.dtype)):
        own = weight[16 * panel : 16 * panel + 16]
        for entry, column in zip(
            values, packed.tensors["columns"][16 * panel // length], strict=True
        ):
            own[:, int(column)] = entry[: len(own)]
    return weight[:, :cols].contiguous()
