# SPDX-License-Identifier: Apache-2.0
"""lossless: every bf16 weight in 12 bits, bit for bit, with or without zeros.

The bit layout is in kernels/formats/lossless.h and docs/lossless.md.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from ....packed import Reference
from ..form import UnstructuredFormat
from . import reference
from .chunks import Chunks
from .ops import ops


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
