# SPDX-License-Identifier: Apache-2.0
"""Which decode attention a server uses that was not told: ours where it was measured.

That is on Hopper, for bfloat16 models whose heads are within what the tables attention.csv in
benchmarks/results timed beside FlashAttention 3. Everything else keeps vLLM's own. It cannot change
what is right: without a calibration our kernel computes the online softmax, and with one a guard
recomputes what phi does not fit.
"""

from __future__ import annotations

import logging
import os
from typing import Any

import torch

from flashsparse_plugin.attention import CalibrationError

from .attention import OWN, check_entry, custom_backend, is_ours, name_of

logger = logging.getLogger("vllm.flashsparse")

HEAD_DIM, KV_HEADS, MOST_OF_GROUP = 128, range(2, 33), 16  # as timed; kv heads are those of a rank


def choose(arguments: Any, model: Any) -> None:
    """Sets `attention_backend` of EngineArgs where nobody named a backend, and says why in the log.

    Args:
        arguments: EngineArgs, whose model config has just been made.
        model: That model config.
    """
    own = arguments.attention_backend == OWN or getattr(arguments, "_flashsparse_own", False)
    if own:
        arguments._flashsparse_own, arguments.attention_backend = True, None
    config = getattr(arguments, "attention_config", None)
    named = name_of(arguments.attention_backend) or name_of(getattr(config, "backend", None))
    if named or getattr(config, "backend_per_kind", None) or not _is_hopper():
        return
    try:
        reason = "it was asked for" if own else reason_against(arguments, model)
    except Exception as error:  # a default must not stop a server, whatever vLLM's next release has
        reason = f"{type(error).__name__}: {error}"
    if reason is None:
        arguments.attention_backend = custom_backend()
        logger.info(
            "decode attention: FlashSparse's, as it was measured on this kind of GPU and for such "
            "heads (vLLM's own: --decode-attention default)"
        )
    else:
        logger.info("decode attention: vLLM's own (%s)", reason)


def _is_hopper() -> bool:
    from vllm.platforms import current_platform

    if not current_platform.is_cuda():
        return False
    capability = current_platform.get_device_capability()
    return capability is not None and tuple(capability) == (9, 0)


def reason_against(arguments: Any, model: Any) -> str | None:
    """Why our decode attention is not the default of this model, or None if it is."""
    text = model.hf_text_config
    ranks = arguments.tensor_parallel_size
    kv_heads = max(model.get_total_num_kv_heads() // ranks, 1)
    group = -(-text.num_attention_heads // ranks // kv_heads)
    layers = {kind for kind in getattr(text, "layer_types", None) or ()} - {"full_attention"}
    stored = getattr(model.hf_config, "quantization_config", None) or {}
    found = {
        "another plugin has the backend CUSTOM": not is_ours(),
        "results must not depend on the batch": os.environ.get("VLLM_BATCH_INVARIANT", "0") != "0",
        f"{model.dtype} was not timed": model.dtype != torch.bfloat16,
        "a cache of another dtype was not timed": arguments.kv_cache_dtype
        not in ("auto", "bfloat16")
        or any(str(key).startswith("kv_cache") and stored[key] for key in stored),
        "only models that generate text were timed": model.runner_type != "generate"
        or model.is_multimodal_model
        or model.is_encoder_decoder,
        "latent attention": model.use_mla,
        "sliding windows were not timed": bool(model.get_sliding_window()),
        "layers of other kinds were not timed": bool(layers) or model.is_hybrid,
        "capped scores were not timed": bool(getattr(text, "attn_logit_softcapping", None)),
        "sinks were not timed": any("sink" in key for key in text.to_dict()),
        f"heads of {model.get_head_size()} elements were not timed": model.get_head_size()
        != HEAD_DIM,
        f"{kv_heads} kv heads of {group} heads were not timed": kv_heads not in KV_HEADS
        or group > MOST_OF_GROUP,
        "steps of several tokens": arguments.speculative_config is not None,
        "context parallelism": getattr(arguments, "decode_context_parallel_size", 1) > 1,
        "CUDA graphs of mixed batches": _mixed_graphs(arguments),
    }
    reasons = [reason for reason, holds in found.items() if holds]
    if reasons:
        return reasons[0]
    try:
        check_entry(model)
    except CalibrationError as error:
        return str(error)
    return None


def _mixed_graphs(arguments: Any) -> bool:
    """Whether graphs were asked for that our backend would have to turn into others."""
    mode = getattr(arguments.compilation_config, "cudagraph_mode", None)
    return getattr(mode, "name", mode) == "FULL"
