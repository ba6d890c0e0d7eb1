# SPDX-License-Identifier: Apache-2.0
"""What our attention backends share, mixed into vLLM's own classes.

A builder makes the metadata of each step and gives its layers their decoders, both before a CUDA
graph is captured. An implementation then computes decode batches with our kernel.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from vllm.config import VllmConfig, get_layers_from_vllm_config
from vllm.distributed import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
)
from vllm.model_executor.layers.attention import Attention
from vllm.v1.attention.backend import AttentionType
from vllm.v1.kv_cache_interface import is_quantized_kv_cache

from flashsparse_plugin.attention import (
    CalibrationError,
    Counter,
    UnifiedMax,
    counters,
    publish,
    unified_max_of,
)
from flashsparse_plugin.attention.counters import logger as counting
from flashsparse_plugin.ops import ops

logger = logging.getLogger("vllm.flashsparse")

HEAD_DIMS = (64, 80, 96, 128, 256)
FP8_CACHES = ("fp8", "fp8_e4m3")  # vLLM's names of the one 8-bit cache that our kernel reads
_STEPS = 1000  # steps between two lines of counts in the log


class DecodeBackend:
    """What CUSTOM supports, where that is less than the backend below.

    vLLM asks, and refuses with a reason what is not supported: layers that would never decode with
    our kernel, and settings whose promise would be broken (our last bits depend on the batch).
    """

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"  # by which vLLM looks up the member of its enumeration

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return head_size in HEAD_DIMS and super().supports_head_size(head_size)

    @classmethod
    def supports_kv_cache_dtype(cls, kv_cache_dtype: str | None) -> bool:
        quantized = kv_cache_dtype is not None and is_quantized_kv_cache(kv_cache_dtype)
        known = not quantized or kv_cache_dtype in FP8_CACHES
        return known and super().supports_kv_cache_dtype(kv_cache_dtype)

    @classmethod
    def supports_mm_prefix(cls) -> bool:
        return False

    @classmethod
    def supports_rswa(cls) -> bool:
        return False

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        return False


class Decoder:
    """One layer's decode step.

    Args:
        impl: vLLM's implementation of the layer's attention.
        window: Positions to attend back to; 0 for all.
        phi: float32 [heads of this rank], or None for the online softmax.
        counter: Counts recomputed parts, or None.
    """

    def __init__(self, impl: Any, window: int, phi: Tensor | None, counter: Counter | None):
        self.phi, self.counter = phi, counter
        self.options = {"scale": impl.scale, "softcap": impl.logits_soft_cap, "window": window}
        self.options["sinks"] = impl.sinks

    def __call__(
        self,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        table: Tensor,
        lengths: Tensor,
        out: Tensor,
        **scales: Tensor,
    ) -> None:
        """Writes attention into `out`; takes the arguments of the op."""
        inputs = (query, key_cache, value_cache, table, lengths)
        recomputed = ops.unified_max_paged_decode.out(
            *inputs, phi=self.phi, out=out, **self.options, **scales
        )
        if self.counter is not None:
            self.counter.add(recomputed)


class DecodeImpl:
    """One layer's attention: our kernel for decode batches, the class below for all others.

    A class with this mixin has to define `window` and `pages`.

    Attributes:
        prepared: Whether a builder has set the other attributes.
        decoder: Decodes the layer, or None if our kernel does not support it.
        reason: Why our kernel does not support the layer, or None.
    """

    prepared = False
    decoder: Decoder | None = None
    reason: str | None = None

    def forward(
        self,
        layer: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: Any,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        fused = output_scale is not None or output_block_scale is not None
        if self.decoder is None or fused or not _one_token_each(attn_metadata):
            return super().forward(
                layer,
                query,
                key,
                value,
                kv_cache,
                attn_metadata,
                output,
                output_scale,
                output_block_scale,
            )
        tokens = attn_metadata.num_actual_tokens
        pages = self.pages(layer, kv_cache, attn_metadata)
        query, scales = query[:tokens], {}
        if self.kv_cache_dtype in FP8_CACHES:
            query, scales = _with_scales(layer, query, output.dtype)
        out = output[:tokens].view(query.shape)
        self.decoder(query, *pages, attn_metadata.seq_lens, out, **scales)
        return output

    def reason_against(self, layer: Attention, dtype: torch.dtype) -> str | None:
        """Why our kernel cannot decode this layer, or None if it can."""
        if self.attn_type != AttentionType.DECODER:
            return f"attention of type {getattr(self.attn_type, 'value', self.attn_type)}"
        if self.alibi_slopes is not None:
            return "ALiBi"
        if self.sinks is not None and self.sinks.dtype not in (dtype, torch.float32):
            return f"attention sinks of {self.sinks.dtype} in a model of {dtype}"
        if self.head_size not in HEAD_DIMS or layer.head_size_v != self.head_size:
            return f"heads of {self.head_size} elements"
        if layer.kv_cache_torch_dtype != dtype and self.kv_cache_dtype not in FP8_CACHES:
            return f"a cache of {layer.kv_cache_torch_dtype} for a model in {dtype}"
        if getattr(self, "dcp_world_size", 1) > 1:
            return "decode context parallelism"
        return None


def _with_scales(layer: Any, query: Tensor, dtype: torch.dtype) -> tuple[Tensor, dict[str, Tensor]]:
    """The query and scales of an fp8 cache, as the op takes them.

    vLLM rounds the query to fp8, too, where its own attention multiplies in fp8. Then its codes
    are multiplied as they are, and their scale is the keys'.
    """
    key_scale = layer._k_scale
    if query.dtype != dtype:
        query, key_scale = query.to(dtype), key_scale * layer._q_scale
    return query, {"key_scale": key_scale, "value_scale": layer._v_scale}


def _one_token_each(metadata: Any) -> bool:
    """Whether a batch is one new token per sequence that attends to all positions before it.

    This is decided from sizes alone, since a CUDA graph keeps the decision. Sequences that pad a
    graph have a length of 0 and get zeros.
    """
    return (
        metadata is not None  # vLLM is measuring memory
        and metadata.max_query_len == 1
        and metadata.num_actual_tokens == metadata.seq_lens.shape[0]
        and metadata.causal is True
        and not getattr(metadata, "use_cascade", False)
        and getattr(metadata, "rswa_prefix_lens", None) is None
    )


class DecodeBuilder:
    """Makes the metadata of a group of layers, after giving each layer its decoder."""

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: VllmConfig, device: Any
    ):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        prepare(layer_names, vllm_config, torch.device(device))
        self._steps = 0
        layers = get_layers_from_vllm_config(vllm_config, Attention)
        impls = [layers[name].impl for name in layer_names if name in layers]
        decoders = [getattr(impl, "decoder", None) for impl in impls]
        self._is_ours = bool(decoders) and None not in decoders

    def build(
        self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
    ) -> Any:
        self._steps += 1
        if self._steps % _STEPS == 0:
            log_counts(self.layer_names)
        # Fast: without FlashAttention's schedule, which decode batches of ours never look at, and
        # which takes the host 0.1 ms a step. In its first build vLLM finds out about windows.
        ours = self._is_ours and self._steps > 1 and not common_prefix_len
        fast_build |= ours and _one_token_each(common_attn_metadata)
        return super().build(common_prefix_len, common_attn_metadata, fast_build)


def prepare(names: Iterable[str], vllm_config: VllmConfig, device: torch.device) -> None:
    """Gives layers their decoders; with the last layer of a model, logs what they will use.

    Raises:
        RuntimeError: With FLASHSPARSE_STRICT=1, if our kernel does not support a layer.
    """
    config = vllm_config.model_config
    entry = unified_max_of(config.hf_text_config)
    if entry is not None and not entry.holds_for(str(config.dtype).removeprefix("torch.")):
        entry = None  # the front end has warned already
    rank, ranks = get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size()
    layers = {
        name: layer
        for name, layer in get_layers_from_vllm_config(vllm_config, Attention).items()
        if isinstance(layer.impl, DecodeImpl)
    }
    new = [name for name in names if name in layers and not layers[name].impl.prepared]
    for name in new:  # vLLM may make a builder again, to measure how much memory graphs take
        impl = layers[name].impl
        impl.prepared, impl.reason = True, impl.reason_against(layers[name], config.dtype)
        if impl.reason is None:
            phi = phi_of(entry, name, impl.num_heads, rank, ranks)
            if phi is not None:
                phi = torch.tensor(phi, dtype=torch.float32, device=device)
            counter = Counter(name, device) if Counter.wanted(device) else None
            impl.decoder = Decoder(impl, impl.window(), phi, counter)
        elif os.environ.get("FLASHSPARSE_STRICT") == "1":
            raise RuntimeError(f"layer {name!r}: no decode attention for {impl.reason}")
    if new and all(layer.impl.prepared for layer in layers.values()):
        _tell({name: layer.impl for name, layer in layers.items()}, device)


def _tell(impls: dict[str, DecodeImpl], device: torch.device) -> None:
    decoders = [impl.decoder for impl in impls.values() if impl.decoder is not None]
    if decoders:
        with_phi = sum(decoder.phi is not None for decoder in decoders)
        logger.info(
            "decode attention of %d layers: flashsparse::unified_max_paged_decode on %s, %s",
            len(decoders),
            device.type.upper(),
            f"with phi in {with_phi}" if with_phi else "online softmax (no phi)",
        )
    reasons: dict[str, list[str]] = {}
    for name, impl in impls.items():
        if impl.reason is not None:
            reasons.setdefault(impl.reason, []).append(name)
    for reason, names in reasons.items():
        logger.warning(
            "decode attention of %d layers (%s, ...): vLLM's own, as ours does not support %s",
            len(names),
            names[0],
            reason,
        )


def phi_of(
    entry: UnifiedMax | None, name: str, heads: int, rank: int, ranks: int
) -> list[float] | None:
    """phi of the query heads of one layer on one rank, or None.

    Args:
        entry: The model's calibration, if it has one.
        name: Name of the layer, with its number: "model.layers.3.self_attn.attn".
        heads: Query heads per rank. vLLM cuts them evenly and in order, even if key and value heads
            are replicated.
        rank: Rank of this worker among those that share a layer.
        ranks: Number of these ranks.
    """
    numbers = [int(part) for part in name.split(".") if part.isdigit()]
    if entry is None or len(numbers) != 1:
        return None
    try:
        reference = entry.layer(numbers[0], heads * ranks)
    except CalibrationError:
        return None  # The front end has checked the model's own layers, so this is a draft model's.
    return reference and reference.phi[rank * heads : (rank + 1) * heads]


def log_counts(names: Iterable[str]) -> None:
    """Logs recomputed parts at DEBUG and publishes them; synchronises with the device."""
    if not counting.isEnabledFor(logging.DEBUG):
        return
    found = {name: count for name, count in counters().items() if name in set(names)}
    if not found:
        return
    again, looked_at = (sum(column) for column in zip(*found.values(), strict=True))
    most = max(found, key=lambda name: found[name][0])
    counting.debug(
        "decode attention of %d layers: %d parts of a softmax recomputed, for %d sequences x "
        "heads; most in %s, %d for %d",
        len(found),
        again,
        looked_at,
        most,
        *found[most],
    )
    try:
        publish()
    except OSError as error:  # not worth stopping a server for
        counting.warning("these counts could not be published for `flashsparse doctor`: %s", error)
