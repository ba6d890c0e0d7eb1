# SPDX-License-Identifier: Apache-2.0
"""exact_nm in pure torch: slow, short, and the oracle of every test.

Written from docs/formats.md, by the oracles of the two formats that it is made of.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ....packed import PackedWeight, Scheme
from ...unstructured.lossless import Lossless
from ...unstructured.lossless import reference as lossless
from ..nm_vector import NMVector
from ..nm_vector import reference as nm_vector

_PATTERN = ("n", "m", "vector_length")


def pack(weight: Tensor, scheme: Scheme) -> dict[str, Tensor]:
    """Packs the pattern, and then what it keeps."""
    stored = nm_vector.pack(weight, _pattern(scheme))
    kept = stored["weight_packed"].view(torch.bfloat16)
    return lossless.pack(kept, Lossless().scheme(torch.bfloat16)) | {
        "weight_index": stored["weight_index"]
    }


def unpack(packed: PackedWeight) -> Tensor:
    """Unpacks what is kept, and then the pattern."""
    options, (rows, columns) = packed.scheme.values, packed.shape
    shape = (rows, -(-columns // options["m"]) * options["n"])
    tensors = dict(packed.tensors)
    index = tensors.pop("weight_index")
    kept = lossless.unpack(PackedWeight(Lossless().scheme(torch.bfloat16), shape, tensors))
    stored = {"weight_packed": kept.view(torch.int16), "weight_index": index}
    return nm_vector.unpack(PackedWeight(_pattern(packed.scheme), packed.shape, stored))


def _pattern(scheme: Scheme) -> Scheme:
    return NMVector().scheme(scheme.dtype, {name: scheme.values[name] for name in _PATTERN})
