# SPDX-License-Identifier: Apache-2.0
"""The ops of decode attention: what each means, and its shapes for torch.compile.

Their schemas are registered in kernels/bindings.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.library import register_fake

from . import library  # noqa: F401  (the ops must exist before they are completed)


@register_fake("flashsparse::unified_max_decode")
def _(query, key, value, lengths=None, mask=None, *, scale, **options):
    """Attention of one new token a sequence over its keys and values -> (out, recomputed).

    out = softmax(scores) value over the positions p of a sequence with p < length, with
    p >= length - window where there is a window, and with mask[p] where there is a mask;
    scores = scale * query . key, or softcap * tanh(scale * query . key / softcap). With sinks each
    head has a further score, which joins the sum that divides and has no value. A sequence
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
        key: In the dtype of query or float8_e4m3fn, [sequences, kv_heads, positions, head_dim], any
            strides but the last (1); on CUDA rows start on 16 bytes. heads / kv_heads query heads
            share one.
        value: In the shape and dtype of key; its strides may differ.
        lengths: int32 [sequences], or None: all positions. On the CPU one beyond the positions is
            an error, on CUDA it counts for as many as there are.
        mask: bool [sequences, positions], true where to look, or None.
        scale: Above 0, usually head_dim ** -0.5.
        phi: float32 [heads], in the units of scores (natural logarithm), or None.
        low: Natural logarithm; None: what sums can hold, ln 2^-4 for float16, else ln 2^-60.
        high: Natural logarithm; None: ln 2^60. A float16 term above 65504 is noticed, too.
        softcap: 0: none.
        window: Positions to look back, 0: all.
        sinks: float32 or in the dtype of query, [heads], contiguous: a score of no position for
            each head, as gpt-oss learns them, neither scaled nor capped; or None.
        key_scale: float32, one number or [kv_heads], by which float8 keys are multiplied, or None.
            Scores, and so phi, are those of the products.
        value_scale: The same of values.

    Returns:
        out, [sequences, heads, head_dim] of the dtype of query, and recomputed, int32
        [sequences, heads]: how many parts of each were computed again; zeros without phi.
    """
    return _decode_result(query)


@register_fake("flashsparse::unified_max_paged_decode")
def _(query, key_cache, value_cache, block_table, lengths, *, scale, **options):
    """unified_max_decode over a paged cache.

    Args:
        query: As in unified_max_decode.
        key_cache: [blocks, block_size, kv_heads, head_dim], any strides but the last (1): a view of
            vLLM's cache, `kv_cache.transpose(1, 2).split(head_dim, -1)[0]`, whatever its layout in
            memory. block_size is a multiple of 16; on CUDA rows start on 16 bytes.
        value_cache: In the shape and dtype of key_cache; its strides may differ.
        block_table: int32 [sequences, most blocks of one], the last dimension contiguous. Entries
            beyond the length are not used. On the CPU one that names no block is an error, on CUDA
            it reads some other block.
        lengths: int32 [sequences].
        scale, phi, low, high, softcap, window, sinks, key_scale, value_scale: As in
            unified_max_decode.
    """
    return _decode_result(query)


@register_fake("flashsparse::unified_max_paged_decode.out")
def _(query, key_cache, value_cache, block_table, lengths, *, scale, out, **options):
    """unified_max_paged_decode.out(...) -> recomputed

    The same into a tensor of the caller's: vLLM has one for the attention of each layer.

    Args:
        out: In the dtype and shape of query, contiguous; on CUDA it starts on 8 bytes.
    """
    return query.new_empty(query.shape[:2], dtype=torch.int32)


def _decode_result(query: Tensor) -> tuple[Tensor, Tensor]:
    return query.new_empty(query.shape), query.new_empty(query.shape[:2], dtype=torch.int32)
