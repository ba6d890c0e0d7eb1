# SPDX-License-Identifier: Apache-2.0
"""nm_vector in pure torch: slow, short, and the oracle of every test.

Written from docs/formats.md and from no kernel,
so that a mistake in one is not repeated in the other.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ....packed import PackedWeight, Scheme
from ...values.reference import bits_in, bits_of, bytes_of, codes_of, numbers_of


def pack(weight: Tensor, scheme: Scheme) -> dict[str, Tensor]:
    """Packs group by group and window by window; the weight must follow the pattern.

    Of value types: a weight of which the largest code of each scale is the largest there is.
    """
    if scheme.values.get("values", "native") != "native":
        return _pack_codes(weight, scheme)
    values, index = _place(weight, scheme)
    integer = torch.int32 if weight.dtype == torch.float32 else torch.int16
    return {"weight_packed": values.contiguous().view(integer), "weight_index": index}


def _place(weight: Tensor, scheme: Scheme) -> tuple[Tensor, Tensor]:
    """The kept values [out_features, kept], and weight_index."""
    n, m, length = scheme.values["n"], scheme.values["m"], scheme.values["vector_length"]
    bits = max(1, (m - 1).bit_length())
    values, index = [], []
    for rows in weight.split(length):
        nonzero = (rows != 0).any(0).tolist()
        columns: list[int] = []
        positions: list[int] = []
        for first in range(0, weight.shape[1], m):
            used = [p for p, here in enumerate(nonzero[first : first + m]) if here]
            assert len(used) <= n, "the weight does not follow the pattern"
            spare = [p for p in range(m) if p not in used][: n - len(used)]
            positions += sorted(used + spare)
            columns += [first + p for p in sorted(used + spare)]
        padded = torch.zeros(len(rows), weight.shape[1] + m, dtype=weight.dtype)
        padded[:, : weight.shape[1]] = torch.where(rows == 0, 0.0, rows)
        values.append(padded[:, columns])
        stream = sum(position << (j * bits) for j, position in enumerate(positions))
        index.append(list(stream.to_bytes(-(-len(positions) * bits // 8), "little")))
    return torch.cat(values), torch.tensor(index, dtype=torch.uint8)


def _pack_codes(weight: Tensor, scheme: Scheme) -> dict[str, Tensor]:
    name, group = scheme.values["values"], scheme.values.get("group")
    codes, scales = codes_of(weight, name, group)
    values, index = _place(codes, scheme)
    return {
        "weight_packed": bytes_of(bits_of(values, name), name),
        "weight_index": index,
        "weight_scale": scales.to(weight.dtype if group else torch.float32),
    }


def _values(packed: PackedWeight) -> Tensor:
    """The kept values [out_features, kept] in the dtype of the weight."""
    options, stored = packed.scheme.values, packed.tensors["weight_packed"]
    name = options.get("values", "native")
    if name == "native":
        return stored.view(packed.dtype)
    codes = numbers_of(bits_in(stored, name), name)
    kept = -(-packed.shape[1] // options["m"]) * options["n"]
    group = options.get("group") or packed.shape[1] * options["m"]
    scales = packed.tensors["weight_scale"].float()
    values = [
        codes[:, j] * scales[:, j // options["n"] * options["m"] // group] for j in range(kept)
    ]
    return torch.stack(values, 1).to(packed.dtype)


def unpack(packed: PackedWeight) -> Tensor:
    """Unpacks by putting every value where its position says."""
    options, (out_features, in_features) = packed.scheme.values, packed.shape
    n, m, length = options["n"], options["m"], options["vector_length"]
    bits = max(1, (m - 1).bit_length())
    values = _values(packed)
    weight = torch.zeros(out_features, in_features, dtype=packed.dtype)
    for group, stored in enumerate(packed.tensors["weight_index"].tolist()):
        stream = int.from_bytes(bytes(stored), "little")
        taken = {}  # by column, the entry
        for j in range(values.shape[1]):
            taken[j // n * m + (stream >> (j * bits) & ((1 << bits) - 1))] = j
        inside = {column: j for column, j in taken.items() if column < in_features}
        rows = slice(group * length, (group + 1) * length)
        weight[rows, list(inside)] = values[rows, list(inside.values())]
    return weight
