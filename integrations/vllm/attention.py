# SPDX-License-Identifier: Apache-2.0
"""Decode attention with a unified maximum in vLLM: the attention backend CUSTOM.

`--attention-backend CUSTOM` is the name that vLLM keeps for a backend from outside,
`--decode-attention unified_max` the friendly one. It is vLLM's own backend for the platform, but
for batches in which every sequence has one new token: those go to ops.unified_max_paged_decode.

attention_layers.py   what both platforms share: which batches are ours, phi, counters
attention_cuda.py     on FlashAttention
attention_cpu.py      on vLLM's CPU kernels
"""

from __future__ import annotations

import functools
import logging
import multiprocessing
from typing import Any

from flashsparse_plugin.attention import unified_max_of
from flashsparse_plugin.attention.counters import logger as counting

from .settings import SettingsError

logger = logging.getLogger("vllm.flashsparse")

UNIFIED_MAX, DEFAULT = "unified_max", "default"
CHOICES = (UNIFIED_MAX, DEFAULT)  # of --decode-attention


def _path() -> str | None:
    """Where our backend for this platform is; None where there is none."""
    from vllm.platforms import current_platform

    if current_platform.is_cuda():
        return f"{__package__}.attention_cuda.CUDABackend"
    if current_platform.is_cpu():
        return f"{__package__}.attention_cpu.CPUBackend"
    return None


def _custom() -> Any:
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    return AttentionBackendEnum.CUSTOM


def _is_ours() -> bool:
    custom = _custom()
    return custom.is_overridden() and custom.get_path() == _path()


def install() -> None:
    """Registers the backend CUSTOM where there is one for the platform."""
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.registry import register_backend

    path, custom = _path(), _custom()
    if path is None:
        return
    if custom.is_overridden() and custom.get_path() != path:
        logger.warning(
            "the attention backend CUSTOM is that of another plugin, %s: flashsparse's decode "
            "attention cannot be had beside it",
            custom.get_path(),
        )
        return
    register_backend(custom, path)
    if current_platform.is_cpu():
        _wrap_cpu_platform(type(current_platform))
    _count_where_vllm_debugs()


def _count_where_vllm_debugs() -> None:
    """Has counts in the log with VLLM_LOGGING_LEVEL=DEBUG, which no other logger listens to."""
    vllm = logging.getLogger("vllm")
    if vllm.isEnabledFor(logging.DEBUG) and not counting.handlers:
        counting.setLevel(logging.DEBUG)
        for handler in vllm.handlers:
            counting.addHandler(handler)


def _wrap_cpu_platform(platform: Any) -> None:
    """Makes the CPU platform listen to `--attention-backend CUSTOM`, as the CUDA platform does."""
    inner = platform.get_attn_backend_cls
    if getattr(inner, "_flashsparse", False):
        return

    @functools.wraps(inner.__func__)
    def get_attn_backend_cls(
        cls: Any, selected_backend: Any, attn_selector_config: Any, *args: Any, **kwargs: Any
    ) -> str:
        if selected_backend is not _custom() or not _is_ours():
            return inner(selected_backend, attn_selector_config, *args, **kwargs)
        reasons = selected_backend.get_class().validate_configuration(
            device_capability=None, **attn_selector_config._asdict()
        )
        if reasons:  # in the words of the CUDA platform
            raise ValueError(
                f"Selected backend {selected_backend} is not valid for this configuration. "
                f"Reason: {reasons}"
            )
        return selected_backend.get_path()

    get_attn_backend_cls._flashsparse = True
    platform.get_attn_backend_cls = classmethod(get_attn_backend_cls)


def fold_attention(attention_backend: Any, attention_config: Any, decode_attention: str) -> Any:
    """Writes `--decode-attention` into the field that vLLM hands around.

    Args:
        attention_backend: vLLM's field of this name.
        attention_config: Likewise: an object, a dict or None.
        decode_attention: One of `CHOICES`.

    Returns:
        The new `attention_backend`.

    Raises:
        SettingsError: For a choice that is none, beside another backend, or where ours is not to
            be had.
    """
    if decode_attention not in CHOICES:
        raise SettingsError(
            f"decode_attention {decode_attention!r} is none of {', '.join(CHOICES)}"
        )
    if isinstance(attention_config, dict):
        configured = attention_config.get("backend")
    else:
        configured = getattr(attention_config, "backend", None)
    named = {_name(backend) for backend in (attention_backend, configured)} - {None}
    if decode_attention == DEFAULT:
        if named == {"CUSTOM"}:
            raise SettingsError(
                "decode attention 'default' and attention backend CUSTOM, which is unified_max, "
                "exclude each other. Drop one of them"
            )
        return attention_backend
    if named - {"CUSTOM"}:
        raise SettingsError(
            f"decode attention {decode_attention!r} is the attention backend CUSTOM, and backend "
            f"{min(named - {'CUSTOM'})} was asked for, too. Drop one of them"
        )
    if not _is_ours():
        raise SettingsError(
            f"decode attention {decode_attention!r} is for NVIDIA GPUs and CPUs where no other "
            "plugin has the attention backend CUSTOM. Drop it"
        )
    return attention_backend if configured else _custom()


def _name(backend: Any) -> str | None:
    """Of a backend as vLLM takes them: its member, a name in any case, "auto" or None."""
    name = getattr(backend, "name", backend)
    return None if name is None or name.lower() == "auto" else name.upper()


def check_calibration(vllm_config: Any) -> None:
    """Looks at phi in the front end, before any other process is started.

    Raises:
        CalibrationError: For an entry "unified_max" in config.json that is broken or was made for
            another model.
    """
    attention, model = vllm_config.attention_config, vllm_config.model_config
    per_kind = getattr(attention, "backend_per_kind", None) or {}
    if _custom() not in (attention.backend, *per_kind.values()) or not _is_ours():
        return
    config = model.hf_text_config
    entry = unified_max_of(config)
    if entry is None:
        return
    entry.require_layers(config.num_hidden_layers)
    for number in range(len(entry.layers)):
        entry.layer(number, config.num_attention_heads)
    dtype = str(model.dtype).removeprefix("torch.")
    if not entry.holds_for(dtype) and multiprocessing.parent_process() is None:
        logger.warning(
            "phi of this model was chosen for %s and does not fit %s: decode attention takes the "
            "online softmax. For phi: flashsparse calibrate MODEL --text FILE --dtype %s",
            entry.dtype,
            dtype,
            dtype,
        )
