# SPDX-License-Identifier: Apache-2.0
"""The ops of nm_spmm: what each means, its shapes for torch.compile, and the gradient.

Their schemas are registered in kernels/bindings; all but the product on CUDA is made of torch's own
ops. Whoever imports `ops` from here has them complete.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.library import impl, register_fake

from ....ops import ops
from ....ops.packed_linear import linear_result, register_linear_autograd, register_unpacked_linear
from ..options import PatternOptions
from .layout import Layout

__all__ = ["ops"]


@register_fake("flashsparse::nm_spmm_unpack")
def _(
    spmm_values,
    spmm_index,
    spmm_columns,
    spmm_packed,
    out_features,
    in_features,
    n,
    m,
    vector_length,
    dtype,
):
    """Unpacks nm_spmm to the dense weight [out_features, in_features] of float32."""
    return spmm_values.new_empty(out_features, in_features, dtype=dtype)


@impl("flashsparse::nm_spmm_unpack", ("CPU", "CUDA"))
def _(
    spmm_values: Tensor,
    spmm_index: Tensor,
    spmm_columns: Tensor,
    spmm_packed: Tensor,
    out_features: int,
    in_features: int,
    n: int,
    m: int,
    vector_length: int,
    dtype: torch.dtype,
) -> Tensor:
    torch._check(dtype == torch.float32, lambda: f"nm_spmm holds float32, not {dtype}")
    options = PatternOptions(n=n, m=m, vector_length=vector_length)
    return Layout(options, (out_features, in_features)).unpack(spmm_values, spmm_index, dtype)


@register_fake("flashsparse::nm_spmm_linear")
def _(
    x,
    spmm_values,
    spmm_index,
    spmm_columns,
    spmm_packed,
    out_features,
    n,
    m,
    vector_length,
    weight_dtype,
    bias=None,
    sparse_tokens=None,
):
    """Computes x [..., in_features] times the transposed float32 weight, plus bias [out_features].

    x is float32, float16 or bfloat16 and its dtype rules the arithmetic; sums are kept in float32.

    On CUDA up to sparse_tokens tokens of float32 are multiplied by the sparse kernel; for more the
    weight is unpacked, and torch's own linear multiplies. None: any number; 0: always unpacked. A
    weight whose dtype x has not is always unpacked. On a CPU it always is.

    Source: NM-SpMM, section III.
    """
    return linear_result(x, out_features, bias)


register_linear_autograd("nm_spmm_linear", unpack="nm_spmm_unpack")
register_unpacked_linear("nm_spmm_linear", unpack="nm_spmm_unpack")
