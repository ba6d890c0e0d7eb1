# SPDX-License-Identifier: Apache-2.0
"""The op of cusparselt_24, written in torch: few tokens by sparse_24, prompts by cuSPARSELt.

One op, and not a choice in Python, so that a graph of torch.compile holds any number of tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.library import define, impl, register_fake

from ...ops import ops
from ...ops.packed_linear import check_bias, linear_result, register_linear_autograd
from ...plan import NO_LIMIT
from ..sparse_24.ops import check_units
from . import library

__all__ = ["ops"]

OWN_TOKENS = 256
"""The most tokens that go to our kernels where no plan says it."""

define(
    "flashsparse::cusparselt_24_linear",
    "(Tensor x, Tensor units, Tensor compressed, int out_features, ScalarType weight_dtype, "
    "Tensor? bias=None, int? sparse_tokens=None, int? few_tokens=None) -> Tensor",
    tags=torch.Tag.pt2_compliant_tag,
)


def _check(
    x: Tensor,
    units: Tensor,
    compressed: Tensor,
    rows: int,
    dtype: torch.dtype,
    sparse_tokens: int | None,
) -> None:
    torch._check(
        sparse_tokens is None or sparse_tokens >= 0,
        lambda: f"sparse_tokens must be 0 (the library for any) or more, not {sparse_tokens}",
    )
    check_units(units, rows, x.shape[-1], None, "native", 0)
    wanted = library.compressed_shape(rows, x.shape[-1])
    torch._check(
        compressed.dtype == dtype and tuple(compressed.shape) == wanted,
        lambda: (
            f"compressed of a [{rows}, {x.shape[-1]}] {dtype} weight is {list(wanted)}, not "
            f"{list(compressed.shape)} {compressed.dtype}"
        ),
    )


@register_fake("flashsparse::cusparselt_24_linear")
def _(
    x,
    units,
    compressed,
    out_features,
    weight_dtype,
    bias=None,
    sparse_tokens=None,
    few_tokens=None,
):
    """Computes x [..., in_features] times the transposed weight, plus bias [out_features].

    Up to sparse_tokens tokens (None: 256) are multiplied by sparse_24_linear, from units, and of
    them few_tokens by its kernel for few; more by cuSPARSELt, from compressed, which torch made of
    the same weight: [out_features, in_features * 9 / 16] of weight_dtype. Both sum in float32. x of
    another dtype than weight_dtype goes to sparse_24_linear whatever its tokens, and so does,
    outside of CUDA graphs, a product that the library is done with before the host (see
    `library.pays`).

    The library's algorithm is the one that its search finds for a shape, dtype and number of tokens
    (rounded up to a power of two, 256 to 4096): once in a process, or once for all where
    `flashsparse tune` keeps it. Another search may find another, whose sums end in other last bits.

    Source: sparse tensor cores (Mishra et al., 2021).

    Raises:
        RuntimeError: For tensors that do not fit together, and negative numbers of tokens; and
            while a CUDA graph is captured, for a shape that the search has not seen.
    """
    _check(x, units, compressed, out_features, weight_dtype, sparse_tokens)
    return linear_result(x, out_features, bias)


@impl("flashsparse::cusparselt_24_linear", ("CPU", "CUDA"))
def _linear(
    x: Tensor,
    units: Tensor,
    compressed: Tensor,
    out_features: int,
    weight_dtype: torch.dtype,
    bias: Tensor | None = None,
    sparse_tokens: int | None = None,
    few_tokens: int | None = None,
) -> Tensor:
    _check(x, units, compressed, out_features, weight_dtype, sparse_tokens)
    check_bias(bias, out_features)
    tokens, most = x.shape[:-1].numel(), OWN_TOKENS if sparse_tokens is None else sparse_tokens
    own = tokens <= most or x.dtype != weight_dtype
    if not own:  # for a product of ours, too: a CUDA graph that is captured later cannot search
        library.find(compressed, x.shape[-1], tokens)
    if own or not library.pays(tokens, out_features, x.shape[-1], x.device):
        limit = NO_LIMIT if own else None
        return ops.sparse_24_linear(x, units, out_features, weight_dtype, bias, limit, few_tokens)
    flat, own_bias = x.reshape(tokens, -1).contiguous(), None if bias is None else bias.to(x.dtype)
    return library.product(flat, compressed, own_bias).view(*x.shape[:-1], -1)


register_linear_autograd("cusparselt_24_linear", unpack="sparse_24_unpack")
