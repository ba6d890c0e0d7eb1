# SPDX-License-Identifier: Apache-2.0
"""lossless: every bf16 weight in 12 bits, bit for bit, with or without zeros.

The bit layout is in kernels/formats/lossless.h and docs/lossless.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from ....packed import Reference, Scheme, reason_of_exceptions
from ....plan import LIBRARY, Implementation
from ...values.dtypes import count_changed
from ..exact_units import ExactUnits
from ..form import UnstructuredFormat
from . import reference
from .chunks import Chunks
from .ops import ops, row_bytes
from .window import count_exceptions


class Lossless(UnstructuredFormat):
    name = "lossless"
    in_words = "any bf16 weight, exact in 12 bits"
    version = 1
    checks_as_it_reads = False
    dtypes = (torch.bfloat16,)
    streams = (
        "weight_packed",
        "weight_base",
        "weight_exception_rows",
        "weight_exception_columns",
        "weight_exceptions",
    )
    tensor_names = streams
    pieces = Chunks()
    reference: ClassVar[Reference] = reference
    ops: ClassVar[Any] = ops
    linear_op = ops.lossless_linear
    on_gpu = ExactUnits()
    has_cpu_kernel = True
    keeps_zeros = True
    rounds = False
    bucket = 0.0008  # ordinary layers have half of it, or less

    def within_reach(self, tensor: Tensor) -> Tensor:
        return tensor.detach().cpu()

    def implementations(self, scheme: Scheme) -> Mapping[str, Implementation]:
        return {LIBRARY: Implementation(None, "torch's own linear on the unpacked weight")}

    def read_rows(self, ids: Tensor, tensors: Mapping[str, Tensor], in_features: int) -> Tensor:
        return ops.lossless_rows(ids, *(tensors[name] for name in self.streams), in_features)

    def exceptions(self, scheme: Scheme, shape: tuple[int, int], nbytes: int) -> int:
        rows, columns = shape
        return (nbytes - rows * (row_bytes(columns) + 1) - 4 * (rows + 1)) // 6

    def exceptions_in(self, weight: Tensor) -> int:
        return count_exceptions(weight)

    def options_for(self, weight: Tensor) -> Mapping[str, Any] | None:
        """None for what it would round, and for more exceptions than pay."""
        if count_changed(weight, torch.bfloat16):
            return None
        listed = count_exceptions(weight.to(torch.bfloat16))
        return None if reason_of_exceptions(listed, weight.numel()) else {}
