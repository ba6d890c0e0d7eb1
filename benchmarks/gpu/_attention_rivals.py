# SPDX-License-Identifier: Apache-2.0
"""Decode attention of others over the same pages, where it is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

WORKSPACE = 256 << 20  # bytes, as FlashInfer's own examples have


def flash_attention() -> Callable | None:
    """vLLM's FlashAttention 3 over a paged cache, or None without vLLM."""
    try:
        from vllm.vllm_flash_attn import flash_attn_varlen_func
    except ImportError:
        return None
    return partial(flash_attn_varlen_func, fa_version=3)


def triton_attention(
    sequences: int, heads: int, kv_heads: int, head_dim: int, device: torch.device
) -> Callable | None:
    """vLLM's Triton kernel for decode, as its backend calls it, or None without vLLM."""
    try:
        from vllm.v1.attention.backends import triton_attn
        from vllm.v1.attention.ops.triton_unified_attention import unified_attention
    except ImportError:
        return None
    segments = triton_attn.NUM_PAR_SOFTMAX_SEGMENTS
    most = triton_attn.MIN_LAUNCH_GRID_SIZE_2D // kv_heads  # sequences that are cut into segments
    room = partial(torch.empty, dtype=torch.float32, device=device)
    return partial(
        unified_attention,
        cu_seqlens_q=torch.arange(sequences + 1, device=device).int(),
        max_seqlen_q=1,
        causal=True,
        window_size=(-1, -1),
        softcap=0,
        q_descale=None,
        k_descale=None,
        v_descale=None,
        seq_threshold_3D=most,
        num_par_softmax_segments=segments,
        softmax_segm_output=room(most, heads, segments, head_dim),
        softmax_segm_max=room(most, heads, segments),
        softmax_segm_expsum=room(most, heads, segments),
    )


def flashinfer_attention(
    heads: int, kv_heads: int, head_dim: int, table: Tensor, page: int, dtype: torch.dtype,
    stored: torch.dtype, scale: float,
) -> Iterator[Callable]:  # fmt: skip
    """FlashInfer's decode over a paged cache, on CUDA cores and on tensor cores; none without it.

    Args:
        heads: Of the query.
        kv_heads: Of the cache.
        head_dim: Of both.
        table: Pages of each sequence, all of them full, int32 [sequences, pages].
        page: Positions of a page.
        dtype: Of the query.
        stored: Of the cache.
        scale: Of scores.
    """
    try:
        import flashinfer
    except ImportError:
        return
    sequences, count = table.shape
    # Planned on the host, before any graph; buffers are for graphs.
    ends = torch.arange(sequences + 1, dtype=torch.int32) * count
    last = torch.full((sequences,), page, dtype=torch.int32)
    buffers: dict[str, Any] = {
        "paged_kv_indptr_buffer": ends.to(table.device),
        "paged_kv_indices_buffer": table.flatten().clone(),
        "paged_kv_last_page_len_buffer": last.to(table.device),
    }
    for tensor_cores in (False, True):
        workspace = torch.empty(WORKSPACE, dtype=torch.uint8, device=table.device)
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            workspace, "NHD", use_cuda_graph=True, use_tensor_cores=tensor_cores, **buffers
        )
        sizes = (heads, kv_heads, head_dim, page)
        wrapper.plan(
            ends, table.flatten(), last, *sizes, q_data_type=dtype, kv_data_type=stored,
            sm_scale=scale,
        )  # fmt: skip
        yield wrapper.run
