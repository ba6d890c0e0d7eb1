# SPDX-License-Identifier: Apache-2.0
"""The attention backend CUSTOM on a CPU: vLLM's own, and our kernel for decode batches.

It is for tests and for comparison with a GPU, not for speed: vLLM's CPU kernels store the elements
of a block in an order that suits the instructions of the machine ("vec" transposes each block of
keys, "amx" pairs up elements), and our op needs those of a head to be contiguous. So each step
copies the blocks of its sequences, once for each layer.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from vllm import _custom_ops as vllm_ops
from vllm.v1.attention.backends.cpu_attn import (
    CPUAttentionBackend,
    CPUAttentionBackendImpl,
    CPUAttentionMetadataBuilder,
)

from .attention_layers import FP8_CACHES, DecodeBackend, DecodeBuilder, DecodeImpl
from .compat import cpu_layout


class CPUBuilder(DecodeBuilder, CPUAttentionMetadataBuilder):
    pass


class CPUImpl(DecodeImpl, CPUAttentionBackendImpl):
    def window(self) -> int:
        return max(self.sliding_window, 0)  # -1: none

    def pages(self, layer: Any, kv_cache: Tensor, metadata: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Keys, values and block table for the op, made of copies of the blocks in use."""
        _, heads, size, both = kv_cache.shape
        layout = cpu_layout(self, layer)
        orders = element_orders(layout, kv_cache.dtype, size, both // 2, self.kv_cache_dtype)
        table, lengths = metadata.block_table, metadata.seq_lens
        used = torch.arange(table.shape[1]) < (lengths.unsqueeze(1) + size - 1) // size
        # In a block, the keys of each head are before its values.
        stored = kv_cache.index_select(0, table[used]).view(-1, heads, 2, size * both // 2)
        keys, values = (
            in_order(stored[:, :, i], order).transpose(1, 2) for i, order in enumerate(orders)
        )
        if self.kv_cache_dtype in FP8_CACHES:
            keys, values = keys.view(torch.float8_e4m3fn), values.view(torch.float8_e4m3fn)
        numbers = torch.zeros_like(table)
        numbers[used] = torch.arange(len(stored), dtype=table.dtype)
        return keys, values, numbers


def in_order(stored: Tensor, order: Tensor) -> Tensor:
    """Gathers elements from their places in a layout, by strides if possible.

    Args:
        stored: [blocks, heads, size * head_dim], the last dimension contiguous.
        order: int64 [size, head_dim], the place of each element.

    Returns:
        [blocks, heads, size, head_dim], the last dimension contiguous.
    """
    across, along = (order[1, 0] - order[0, 0]).item(), (order[0, 1] - order[0, 0]).item()
    rows, columns = (torch.arange(length) for length in order.shape)
    if not torch.equal(order, rows.unsqueeze(1) * across + columns * along):
        return stored[:, :, order]
    strides = (*stored.stride()[:2], across, along)
    view = stored.as_strided((*stored.shape[:2], *order.shape), strides, stored.storage_offset())
    return view.contiguous() if along != 1 else view


@functools.cache
def element_orders(
    layout: str, dtype: torch.dtype, size: int, head_dim: int, kv_cache_dtype: str = "auto"
) -> Tensor:
    """The places of the elements of a block in a layout, learnt from vLLM's own writer.

    Args:
        layout: vLLM's name for it: "vec", "vec16", "amx", "neon", ...
        dtype: Dtype of the cache.
        size: Positions per block.
        head_dim: Elements per head.
        kv_cache_dtype: vLLM's name of what it stores, if it is not the dtype's numbers.

    Returns:
        int64 [2, size, head_dim], of keys and of values: the place of each element.

    Raises:
        RuntimeError: If the layout does not hold each element exactly once.
    """
    codes = kv_cache_dtype in FP8_CACHES
    base = 16 if codes else 256  # every dtype represents 0 to 255, and e4m3 0 to 15
    numbers, stored = torch.arange(size * head_dim), 0
    for digit in range(4):
        tokens = (numbers // base**digit % base).to(torch.bfloat16 if codes else dtype)
        tokens = tokens.view(size, 1, head_dim)
        cache = torch.zeros(1, 1, 2 * size, head_dim, dtype=dtype)
        vllm_ops.cpu_attn_reshape_and_cache(
            tokens,
            tokens,
            *cache.chunk(2, dim=2),
            torch.arange(size),
            layout,
            k_scale=1.0,
            v_scale=1.0,
            kv_cache_dtype=kv_cache_dtype,
        )
        cache = cache.view(torch.float8_e4m3fn).float() if codes else cache
        stored = stored + cache.view(2, -1).long() * base**digit
    if not torch.equal(stored.sort(dim=1).values, numbers.expand(2, -1)):
        raise RuntimeError(
            f"vLLM's layout {layout!r} of a {dtype} cache is not one that decode attention can "
            "read. Serve without --decode-attention unified_max"
        )
    return stored.argsort(dim=1).view(2, size, head_dim)


class CPUBackend(DecodeBackend, CPUAttentionBackend):
    @staticmethod
    def get_impl_cls() -> type[CPUImpl]:
        return CPUImpl

    @staticmethod
    def get_builder_cls() -> type[CPUBuilder]:
        return CPUBuilder
