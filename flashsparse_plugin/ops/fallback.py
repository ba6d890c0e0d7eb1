# SPDX-License-Identifier: Apache-2.0
"""CUDA ops that have no kernel of their own yet, put together from those that exist.

`tiled_csl_linear` on CUDA unpacks the weight and lets the dense library multiply: exact, and no
faster than dense. The choice is logged once; FLASHSPARSE_STRICT=1 makes it an error.
"""

from __future__ import annotations

import logging
import os
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from .library import ops

logger = logging.getLogger(__name__)


def linear_by_unpacking(
    x: Tensor,
    weight_packed: Tensor,
    tile_offsets: Tensor,
    out_features: int,
    weight_dtype: torch.dtype,
    bias: Tensor | None = None,
) -> Tensor:
    """Computes `x @ weight.T + bias` through the dense weight.

    Args:
        x: [..., in_features], float32, float16 or bfloat16.
        weight_packed: int32 words of a Tiled-CSL weight.
        tile_offsets: Its int32 tile offsets.
        out_features: Rows of the weight.
        weight_dtype: float16 or bfloat16, the dtype of its values.
        bias: Optional [out_features].

    Returns:
        [..., out_features] in the dtype of x. Where x and weight differ in dtype both are widened
        to float32 and the result is rounded once, so neither loses a bit. The precision of sums is
        the library's: `torch.backends.cuda.matmul` may allow TF32 or 16-bit split-K sums.
    """
    weight = ops.tiled_csl_unpack(
        weight_packed, tile_offsets, out_features, x.shape[-1], weight_dtype
    )
    dtype = x.dtype if x.dtype == weight_dtype else torch.float32
    y = F.linear(x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype))
    return y.to(x.dtype)


@cache
def _announce(op: str, instead: str) -> None:
    logger.info("flashsparse::%s has no CUDA kernel yet and runs as %s", op, instead)


def _tiled_csl_linear(*args, **kwargs) -> Tensor:
    if os.environ.get("FLASHSPARSE_STRICT") == "1":
        raise RuntimeError(
            "flashsparse::tiled_csl_linear has no CUDA kernel yet, and FLASHSPARSE_STRICT=1 "
            "forbids its fallback (unpack, then a dense product): unset FLASHSPARSE_STRICT, or "
            "run on the CPU"
        )
    _announce("tiled_csl_linear", "unpack and a dense product")
    return linear_by_unpacking(*args, **kwargs)


def register() -> None:
    """Registers the fallbacks for CUDA tensors; called where `_C_cuda` is loaded."""
    torch.library.impl("flashsparse::tiled_csl_linear", "CUDA")(_tiled_csl_linear)
