# SPDX-License-Identifier: Apache-2.0
"""The attention backend CUSTOM on CUDA: FlashAttention, and our kernel for decode batches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.v1.attention.backend import AttentionCGSupport
from vllm.v1.attention.backends.flash_attn import (
    FlashAttentionBackend,
    FlashAttentionImpl,
    FlashAttentionMetadataBuilder,
)

from flashsparse_plugin.ops import ops

from .attention_layers import FP8_CACHES, DecodeBackend, DecodeBuilder, DecodeImpl


class CUDABuilder(DecodeBuilder, FlashAttentionMetadataBuilder):
    # A graph keeps the branch that `forward` took when it was captured. Graphs of uniform batches
    # (so many tokens for each sequence) are replayed for such batches only: those of one token
    # hold our kernel, those of more, for speculative decoding, FlashAttention. Graphs of mixed
    # batches, which FlashAttention 3 allows, must not be: they are replayed for pure decode
    # batches, too, which would never see our kernel; and where such a graph is captured from
    # sequences of one token each, as one of 0.26's model runners does, it would hold our kernel
    # and be replayed for prompts. With less than ALWAYS vLLM turns FULL into FULL_AND_PIECEWISE.
    _cudagraph_support = AttentionCGSupport.UNIFORM_BATCH


class CUDAImpl(DecodeImpl, FlashAttentionImpl):
    def window(self) -> int:
        return self.sliding_window[0] + 1  # (-1, -1): none; (w - 1, 0): the last w positions

    def pages(self, layer: Any, kv_cache: Tensor, metadata: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Keys, values and block table as the op takes them; no copy.

        The cache is [blocks, kv_heads, block_size, 2 * head_dim] whatever its layout in memory.
        """
        if self.kv_cache_dtype in FP8_CACHES:
            kv_cache = kv_cache.view(torch.float8_e4m3fn)
        return *self._keys_and_values(kv_cache), metadata.block_table

    def _keys_and_values(self, kv_cache: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = kv_cache.transpose(1, 2).split(self.head_size, dim=-1)
        return keys, values

    def do_kv_cache_update(
        self,
        layer: Any,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        slot_mapping: Tensor,
    ) -> None:
        """Writes new keys and values into the cache; decode attention after our kernel uses PDL.

        The bits are those of vLLM's kernel: a copy. An fp8 cache is vLLM's to write.
        """
        if self.decoder is None or kv_cache.dtype != key.dtype:
            super().do_kv_cache_update(layer, key, value, kv_cache, slot_mapping)
            return
        caches = self._keys_and_values(kv_cache)
        ops.rope_cache(None, key, value, None, None, True, *caches, slot_mapping)


class CUDABackend(DecodeBackend, FlashAttentionBackend):
    @staticmethod
    def get_impl_cls() -> type[CUDAImpl]:
        return CUDAImpl

    @staticmethod
    def get_builder_cls() -> type[CUDABuilder]:
        return CUDABuilder
