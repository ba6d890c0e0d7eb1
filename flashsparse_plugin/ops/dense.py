# SPDX-License-Identifier: Apache-2.0
"""The ops of dense layers: what each means, its shapes for torch.compile, and its gradients.

Their schemas are registered in kernels/bindings.
"""

from __future__ import annotations

import torch
from torch.library import register_autograd, register_fake

from . import library  # noqa: F401  (the ops must exist before they are completed)


def _result(x, weight):
    torch._check(
        x.shape[-1] == weight.shape[1],
        lambda: f"x ends in {x.shape[-1]} features, the weight takes {weight.shape[1]}",
    )
    return x.new_empty(*x.shape[:-1], weight.shape[0])


@register_fake("flashsparse::flat_gemm")
def _(x, weight, bias=None):
    """flat_gemm(x, weight, bias=None) -> y [..., out_features]

    Computes x [..., in_features] times the transposed weight [out_features, in_features], plus bias
    [out_features], for 1 to 64 tokens, on tensor cores, padded to 8 tokens only. float16 or
    bfloat16, one dtype for all; sums are kept in float32 and added in the same order every time.
    Any sizes; rows of the weight may lie any distance apart. Fast where each of them begins on 16
    bytes and in_features is a multiple of 8.

    More tokens, other dtypes and elements of a row that do not lie side by side raise.

    On a CPU it is torch's own linear: the library behind that reads a dense weight at the bandwidth
    of the memory for any number of tokens, so there is nothing to gain.

    Source: FlashDecoding++, section 4 (flat GEMM with double buffering); ImplB of section 5.
    """
    return _result(x, weight)


@register_fake("flashsparse::gemv")
def _(x, weight, bias=None):
    """gemv(x, weight, bias=None) -> y [..., out_features]

    The same product for 1 to 8 tokens, without tensor cores; made for 1 to 4. On a CPU it is
    torch's own linear, for the same reason.

    Source: FlashDecoding++, section 5 (ImplA, after FastGEMV).
    """
    return _result(x, weight)


@register_fake("flashsparse::dense_linear")
def _(x, weight, bias, gemv_tokens, flat_tokens):
    """dense_linear(x, weight, bias, gemv_tokens, flat_tokens) -> y [..., out_features]

    The same product for any number of tokens: up to gemv_tokens (0 to 8) by gemv, up to flat_tokens
    (0 to 64) by flat_gemm, else by torch's own linear, which takes any dtype. The choice is made in
    each call, from sizes alone: a graph of torch.compile holds any number of tokens.

    Source: FlashDecoding++, section 5: gemv_tokens is M1 - 1, flat_tokens M2 - 1 (where below
    M1, there is no flat GEMM).
    """
    return _result(x, weight)


def _register_dense_autograd(op: str) -> None:
    """Gives `op(x, weight, bias, ...)` the gradients of a dense linear layer."""

    def setup(ctx, inputs, output):
        x, weight, bias = inputs[:3]
        ctx.save_for_backward(x, weight)
        ctx.rest = len(inputs) - 3
        ctx.has_bias = bias is not None

    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        flat = dy.reshape(-1, dy.shape[-1])
        dx = dy @ weight if ctx.needs_input_grad[0] else None
        dweight = flat.T @ x.reshape(-1, x.shape[-1]) if ctx.needs_input_grad[1] else None
        dbias = flat.sum(0) if ctx.has_bias and ctx.needs_input_grad[2] else None
        return (dx, dweight, dbias, *([None] * ctx.rest))

    register_autograd(f"flashsparse::{op}", backward, setup_context=setup)


_register_dense_autograd("flat_gemm")
_register_dense_autograd("gemv")
_register_dense_autograd("dense_linear")
