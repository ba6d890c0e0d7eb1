# SPDX-License-Identifier: Apache-2.0
"""The ops of sparse_24: what each means, its shapes for torch.compile, the gradient, and the CPU.

Their schemas are registered in kernels/bindings. Whoever imports `ops` from here has them complete.
On a CPU no layer runs in this form: the ops are there for tests, and in torch.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.library import impl, register_fake

from ...ops import ops
from ...ops.packed_linear import linear_result, register_linear_autograd, register_unpacked_linear
from .layout import UNIT_WORDS, spread, unit_grid

__all__ = ["ops"]


def _check_units(units: Tensor, out_features: int, in_features: int) -> None:
    wanted = (*unit_grid(out_features, in_features), UNIT_WORDS)
    torch._check(
        units.dim() == 3 and all(a == b for a, b in zip(units.shape, wanted, strict=True)),
        lambda: (
            f"units of a [{out_features}, {in_features}] weight are {list(wanted)}, "
            f"not {list(units.shape)}"
        ),
    )


@register_fake("flashsparse::sparse_24_unpack")
def _(units, out_features, in_features, dtype):
    """Unpacks sparse_24 to the dense weight [out_features, in_features] of `dtype`."""
    _check_units(units, out_features, in_features)
    return units.new_empty(out_features, in_features, dtype=dtype)


@register_fake("flashsparse::sparse_24_linear")
def _(x, units, out_features, weight_dtype, bias=None, sparse_tokens=None):
    """Computes x [..., in_features] times the transposed weight, plus bias [out_features].

    x is float32, float16 or bfloat16 and its dtype rules the arithmetic; sums are kept in float32.

    On CUDA up to sparse_tokens tokens are multiplied by sparse tensor cores, from the units as they
    lie; for more the weight is unpacked, and torch's own linear multiplies. None: 192, or any
    number on compute capability 9.0; 0: always unpacked; a negative number raises. The choice is
    made in each call, from sizes alone: a graph of torch.compile holds any number of tokens. Always
    unpacked is a weight whose dtype x has not.

    Source: sparse tensor cores (Mishra et al., 2021), for the 2:4 case of NM-SpMM's pattern.
    """
    _check_units(units, out_features, x.shape[-1])
    return linear_result(x, out_features, bias)


@register_fake("flashsparse::sparse_24_linear_planned")
def _(x, units, out_features, weight_dtype, bias, plan):
    """sparse_24_linear by one sparse CUDA kernel, planned by the caller; for benchmarks.

    plan is the numbers of LinearPlan in kernels/cuda/sparse_24/linear_plan.h, in their order.
    """
    _check_units(units, out_features, x.shape[-1])
    return linear_result(x, out_features, bias)


@register_fake("flashsparse::sparse_24_wgmma_planned")
def _(x, units, out_features, weight_dtype, bias, plan):
    """sparse_24_linear by one wgmma kernel, planned by the caller; for benchmarks.

    plan is the numbers of WgmmaPlan in kernels/cuda/sparse_24/wgmma_plan.h, in their order.
    """
    _check_units(units, out_features, x.shape[-1])
    return linear_result(x, out_features, bias)


@impl("flashsparse::sparse_24_unpack", "CPU")
def _unpack(units: Tensor, out_features: int, in_features: int, dtype: torch.dtype) -> Tensor:
    _check_units(units, out_features, in_features)
    return spread(units, (out_features, in_features), dtype)


register_linear_autograd("sparse_24_linear", unpack="sparse_24_unpack")
register_unpacked_linear("sparse_24_linear", unpack="sparse_24_unpack")
