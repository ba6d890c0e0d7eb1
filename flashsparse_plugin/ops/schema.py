# SPDX-License-Identifier: Apache-2.0
"""What each op means, its shapes for torch.compile, and the gradient for its activations.

The schemas themselves are registered in kernels/bindings/cpu_ops.cpp.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.library import get_ctx, register_autograd, register_fake

from .library import ops

__all__ = ["ops"]


def _cdiv(a: int, b: int) -> int:
    return (a + b - 1) // b


@register_fake("flashsparse::tiled_csl_pack")
def _(weight: Tensor):
    """tiled_csl_pack(weight) -> (weight_packed, tile_offsets)

    Packs weight [out_features, in_features] (float16 or bfloat16) to Tiled-CSL: int32 words and
    int32 tile offsets. Inside a tile the words are ordered by shared-memory bank (after
    Flash-LLM, Algorithm 3; kernels/formats/tiled_csl.h states the order). The same bit for bit on
    every device. On CUDA it waits for the device, to learn how many words there are: no part of a
    CUDA graph.
    """
    out_features, in_features = weight.shape
    tiles = _cdiv(out_features, 128) * _cdiv(in_features, 64)
    words = get_ctx().new_dynamic_size()
    return (
        weight.new_empty(words, dtype=torch.int32),
        weight.new_empty(tiles + 1, dtype=torch.int32),
    )


@register_fake("flashsparse::tiled_csl_unpack")
def _(weight_packed, tile_offsets, out_features, in_features, dtype):
    """Unpacks Tiled-CSL to the dense weight [out_features, in_features] of `dtype`."""
    return weight_packed.new_empty(out_features, in_features, dtype=dtype)


@register_fake("flashsparse::tiled_csl_validate")
def _(weight_packed, tile_offsets, out_features, in_features):
    """Counts the nonzeros (int64 scalar) of sound Tiled-CSL tensors, and raises on any others.

    On CUDA it waits for the device.
    """
    return weight_packed.new_empty((), dtype=torch.int64)


@register_fake("flashsparse::tiled_csl_to_interleaved_bitmap")
def _(weight_packed, tile_offsets, out_features, in_features):
    """Turns Tiled-CSL into the CPU's runtime form: (values, masks, panel_offsets)."""
    return _bitmap(weight_packed, out_features, in_features)


@register_fake("flashsparse::interleaved_bitmap_pack")
def _(weight):
    """Packs a dense weight to the CPU's runtime form: (values, masks, panel_offsets)."""
    return _bitmap(weight, *weight.shape)


def _bitmap(like: Tensor, out_features: int, in_features: int):
    panels, values = _cdiv(out_features, 16), get_ctx().new_dynamic_size()
    return (
        like.new_empty(values, dtype=torch.int16),
        like.new_empty((panels, _cdiv(in_features, 2)), dtype=torch.int32),
        like.new_empty(panels + 1, dtype=torch.int64),
    )


@register_fake("flashsparse::interleaved_bitmap_unpack")
def _(values, masks, panel_offsets, out_features, in_features, dtype):
    """Unpacks the interleaved bitmap to the dense weight [out_features, in_features] of `dtype`."""
    return values.new_empty(out_features, in_features, dtype=dtype)


@register_fake("flashsparse::tiled_csl_linear")
def _(x, weight_packed, tile_offsets, out_features, weight_dtype, bias=None, sparse_tokens=None):
    """Computes x [..., in_features] times the transposed weight, plus bias [out_features].

    x is float32, float16 or bfloat16 and its dtype rules the arithmetic; sums are kept in float32.

    On CUDA up to sparse_tokens tokens are multiplied by the sparse kernel; for more the weight is
    unpacked, and torch's own linear multiplies. None: 256 on Hopper, else 192; 0: always unpacked;
    a negative number raises. The choice is made in each call, from sizes alone: a graph of
    torch.compile holds any number of tokens. Always unpacked are a weight whose dtype x has
    not, and one of more than 2^20 tiles or 2^19 rows. On a CPU there is one implementation, and
    sparse_tokens changes nothing.

    Source: Flash-LLM, section 4.1 (load as sparse, compute as dense).
    """
    return x.new_empty(*x.shape[:-1], out_features)


@register_fake("flashsparse::tiled_csl_linear_planned")
def _(x, weight_packed, tile_offsets, out_features, weight_dtype, bias, shape, blocks):
    """tiled_csl_linear by one sparse CUDA kernel, planned by the caller; for benchmarks.

    shape is an index into the compiled shapes of kernels/cuda/linear_plan.h, blocks the size of the
    grid.
    """
    return x.new_empty(*x.shape[:-1], out_features)


@register_fake("flashsparse::interleaved_bitmap_linear")
def _(x, values, masks, panel_offsets, out_features, weight_dtype, bias=None):
    """The same product from the CPU's runtime form."""
    return x.new_empty(*x.shape[:-1], out_features)


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
    return x.new_empty(*x.shape[:-1], weight.shape[0])


@register_fake("flashsparse::flat_gemm_planned")
def _(x, weight, bias, shape, split):
    """flat_gemm by one CUDA kernel, planned by the caller; for benchmarks and tuning.

    shape is an index into the compiled shapes of kernels/cuda/dense_plan.h, split the number of
    parts that in_features is cut into. More tokens than the shape has take several launches.
    """
    return x.new_empty(*x.shape[:-1], weight.shape[0])


@register_fake("flashsparse::gemv")
def _(x, weight, bias=None):
    """gemv(x, weight, bias=None) -> y [..., out_features]

    The same product for 1 to 8 tokens, without tensor cores; made for 1 to 4. On a CPU it is
    torch's own linear, for the same reason.

    Source: FlashDecoding++, section 5 (ImplA, after FastGEMV).
    """
    return x.new_empty(*x.shape[:-1], weight.shape[0])


@register_fake("flashsparse::gemv_planned")
def _(x, weight, bias, shape):
    """gemv by one CUDA kernel of the caller's choice; for benchmarks and tuning."""
    return x.new_empty(*x.shape[:-1], weight.shape[0])


@register_fake("flashsparse::dense_linear")
def _(x, weight, bias, gemv_tokens, flat_tokens):
    """dense_linear(x, weight, bias, gemv_tokens, flat_tokens) -> y [..., out_features]

    The same product for any number of tokens: up to gemv_tokens (0 to 8) by gemv, up to flat_tokens
    (0 to 64) by flat_gemm, else by torch's own linear, which takes any dtype. The choice is made in
    each call, from sizes alone: a graph of torch.compile holds any number of tokens.

    Source: FlashDecoding++, section 5: gemv_tokens is M1 - 1, flat_tokens M2 - 1 (where below
    M1, there is no flat GEMM).
    """
    return x.new_empty(*x.shape[:-1], weight.shape[0])


@register_fake("flashsparse::unified_max_decode")
def _(query, key, value, lengths=None, mask=None, *, scale, **options):
    """Attention of one new token a sequence over its keys and values -> (out, recomputed).

    out = softmax(scores) value over the positions p of a sequence with p < length, with
    p >= length - window where there is a window, and with mask[p] where there is a mask;
    scores = scale * query . key, or softcap * tanh(scale * query . key / softcap). A sequence
    without such positions gives zeros. Whatever lies at other positions, NaN included, is not used.
    No gradient; nothing waits for the device, so that a CUDA graph can hold it.

    With phi it is the asynchronized softmax of FlashDecoding++ (Hong et al., 2023, section 3):
    terms are e^(score - phi), with the same phi for all parts of a sequence, so that no part needs
    the maximum of another. A part (on CUDA a warp's positions of a split, on the CPU the whole
    sequence) whose sum of terms leaves [e^low, e^high) is computed again with the online softmax,
    inside the same launch: a wrong phi costs time and changes nothing else. Without phi it is the
    online softmax from the start, on CUDA with a lazy reference (8 in log2 units).

    Args:
        query: float16 or bfloat16, on the CPU also float32: [sequences, heads, head_dim], the last
            dimension contiguous; head_dim 64, 80, 96, 128 or 256.
        key: Of the dtype of query, [sequences, kv_heads, positions, head_dim], any strides but the
            last (1); on CUDA rows start on 16 bytes. heads / kv_heads query heads share one.
        value: As key; its strides may be others.
        lengths: int32 [sequences], or None: all positions. On the CPU one beyond the positions is
            an error, on CUDA it counts for as many as there are.
        mask: bool [sequences, positions], true where to look, or None.
        scale: Above 0, usually head_dim ** -0.5.
        phi: float32 [heads], in the units of scores (natural logarithm), or None.
        low: Natural logarithm; None: what sums can hold, ln 2^-4 for float16, else ln 2^-60.
        high: The same, None: ln 2^60. A float16 term above 65504 is noticed, too.
        softcap: 0: none.
        window: Positions to look back, 0: all.

    Returns:
        out, [sequences, heads, head_dim] of the dtype of query, and recomputed, int32
        [sequences, heads]: how many parts of each were computed again; zeros without phi.
    """
    return _decode_result(query)


@register_fake("flashsparse::unified_max_paged_decode")
def _(query, key_cache, value_cache, block_table, lengths, *, scale, **options):
    """unified_max_decode over a paged cache.

    Args:
        query: As there.
        key_cache: [blocks, block_size, kv_heads, head_dim], any strides but the last (1): a view of
            vLLM's cache, `kv_cache.transpose(1, 2).split(head_dim, -1)[0]`, whatever its layout in
            memory. block_size is a multiple of 16; on CUDA rows start on 16 bytes.
        value_cache: As key_cache.
        block_table: int32 [sequences, most blocks of one], the last dimension contiguous. Entries
            beyond the length are not used. On the CPU one that names no block is an error, on CUDA
            it reads some other block.
        lengths: int32 [sequences].
        scale, phi, low, high, softcap, window: As there.
    """
    return _decode_result(query)


@register_fake("flashsparse::unified_max_paged_decode.out")
def _(query, key_cache, value_cache, block_table, lengths, *, scale, out, **options):
    """unified_max_paged_decode.out(...) -> recomputed

    The same into a tensor of the caller's: vLLM has one for the attention of each layer.

    Args:
        out: Of the dtype and shape of query, contiguous; on CUDA it starts on 8 bytes.
    """
    return query.new_empty(query.shape[:2], dtype=torch.int32)


def _decode_result(query: Tensor) -> tuple[Tensor, Tensor]:
    return query.new_empty(query.shape), query.new_empty(query.shape[:2], dtype=torch.int32)


def _register_linear_autograd(op: str, unpack, tensors: int) -> None:
    """Gives `op(x, *packed, out_features, weight_dtype, bias, ...)` a gradient for x and bias.

    dx = dy W, through the unpacked weight: training happens around a frozen sparse weight (LoRA),
    where the backward pass is one product among several and a transposed packed kernel would buy
    little. Packed tensors have no gradient.
    """

    def setup(ctx, inputs, output):
        x, packed, (out_features, weight_dtype, bias, *rest) = (
            inputs[0],
            inputs[1 : 1 + tensors],
            inputs[1 + tensors :],
        )
        ctx.save_for_backward(*packed)
        ctx.shape, ctx.weight_dtype = (out_features, x.shape[-1]), weight_dtype
        ctx.bias_dtype = None if bias is None else bias.dtype
        ctx.rest = len(rest)

    def backward(ctx, dy):
        dx = dbias = None
        if ctx.needs_input_grad[0]:
            weight = unpack(*ctx.saved_tensors, *ctx.shape, ctx.weight_dtype)
            dx = dy @ weight.to(dy.dtype)
        if ctx.bias_dtype is not None and ctx.needs_input_grad[3 + tensors]:
            dbias = dy.reshape(-1, dy.shape[-1]).sum(0).to(ctx.bias_dtype)
        return (dx, *([None] * tensors), None, None, dbias, *([None] * ctx.rest))

    register_autograd(f"flashsparse::{op}", backward, setup_context=setup)


_register_linear_autograd("tiled_csl_linear", ops.tiled_csl_unpack, tensors=2)
_register_linear_autograd("interleaved_bitmap_linear", ops.interleaved_bitmap_unpack, tensors=3)


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
