# SPDX-License-Identifier: Apache-2.0
"""Decode attention with a unified maximum in vLLM: the attention backend CUSTOM.

`--attention-backend CUSTOM` is vLLM's name for a plugin's backend, and `--decode-attention
unified_max` our alias of it. It is vLLM's own backend for the platform, except for batches in which
every sequence has one new token: those use ops.unified_max_paged_decode.

attention_layers.py   shared by both platforms: which batches are ours, phi, counters
attention_cuda.py     on FlashAttention
attention_cpu.py      on vLLM's CPU kernels
attention_default.py  where it is the default
"""

from __future__ import annotations

import functools
import logging
import multiprocessing
from typing import Any

from flashsparse_plugin.attention import UnifiedMax, unified_max_of
from flashsparse_plugin.attention.counters import logger as counting

from .settings import SettingsError

logger = logging.getLogger("vllm.flashsparse")

UNIFIED_MAX, DEFAULT = "unified_max", "default"
CHOICES = (UNIFIED_MAX, DEFAULT)  # values of --decode-attention
OWN = "auto"  # what `default` leaves in the field of the backend: vLLM's word for its own choice


def _path() -> str | None:
    """Path of our backend class for this platform, or None if there is none."""
    from vllm.platforms import current_platform

    if current_platform.is_cuda():
        return f"{__package__}.attention_cuda.CUDABackend"
    if current_platform.is_cpu():
        return f"{__package__}.attention_cpu.CPUBackend"
    return None


def custom_backend() -> Any:
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    return AttentionBackendEnum.CUSTOM


def is_ours() -> bool:
    custom = custom_backend()
    return custom.is_overridden() and custom.get_path() == _path()


def install() -> None:
    """Registers the backend CUSTOM if there is one for the platform."""
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.registry import register_backend

    path, custom = _path(), custom_backend()
    if path is None:
        return
    if custom.is_overridden() and custom.get_path() != path:
        logger.warning(
            "the attention backend CUSTOM belongs to another plugin, %s: flashsparse's decode "
            "attention is unavailable with it",
            custom.get_path(),
        )
        return
    register_backend(custom, path)
    if current_platform.is_cpu():
        _wrap_cpu_platform(type(current_platform))
    _count_where_vllm_debugs()


def _count_where_vllm_debugs() -> None:
    """Logs counts with VLLM_LOGGING_LEVEL=DEBUG, which sets only vLLM's own loggers."""
    vllm = logging.getLogger("vllm")
    if vllm.isEnabledFor(logging.DEBUG) and not counting.handlers:
        counting.setLevel(logging.DEBUG)
        for handler in vllm.handlers:
            counting.addHandler(handler)


def _wrap_cpu_platform(platform: Any) -> None:
    """Makes the CPU platform accept `--attention-backend CUSTOM`, as the CUDA platform does."""
    inner = platform.get_attn_backend_cls
    if getattr(inner, "_flashsparse", False):
        return

    @functools.wraps(inner.__func__)
    def get_attn_backend_cls(
        cls: Any, selected_backend: Any, attn_selector_config: Any, *args: Any, **kwargs: Any
    ) -> str:
        if selected_backend is not custom_backend() or not is_ours():
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
    """Writes `--decode-attention` into the field of vLLM that reaches every process.

    Args:
        attention_backend: vLLM's field of this name.
        attention_config: vLLM's field of this name: an object, a dict or None.
        decode_attention: One of `CHOICES`.

    Returns:
        The new `attention_backend`.

    Raises:
        SettingsError: For an invalid choice, beside another backend, or if our backend is not
            available.
    """
    if decode_attention not in CHOICES:
        raise SettingsError(
            f"decode_attention {decode_attention!r} is invalid: choose one of {', '.join(CHOICES)}"
        )
    if isinstance(attention_config, dict):
        configured = attention_config.get("backend")
    else:
        configured = getattr(attention_config, "backend", None)
    named = {name_of(backend) for backend in (attention_backend, configured)} - {None}
    if decode_attention == DEFAULT:
        if named == {"CUSTOM"}:
            raise SettingsError(
                "decode attention 'default' and attention backend CUSTOM, which is unified_max, "
                "exclude each other. Drop one of them"
            )
        return attention_backend if named else OWN
    if named - {"CUSTOM"}:
        raise SettingsError(
            f"decode attention {decode_attention!r} is the attention backend CUSTOM, and backend "
            f"{min(named - {'CUSTOM'})} was requested, too. Drop one of them"
        )
    if not is_ours():
        raise SettingsError(
            f"decode attention {decode_attention!r} is for NVIDIA GPUs and CPUs where no other "
            "plugin has the attention backend CUSTOM. Drop it"
        )
    return attention_backend if configured else custom_backend()


def name_of(backend: Any) -> str | None:
    """Name of a backend given as vLLM allows: a member, a name in any case, "auto" or None."""
    name = getattr(backend, "name", backend)
    return None if name is None or name.lower() == "auto" else name.upper()


def check_entry(model: Any) -> UnifiedMax | None:
    """The calibration of a model config, or None without one.

    Raises:
        CalibrationError: If it is invalid or was made for another model.
    """
    config = model.hf_text_config
    entry = unified_max_of(config)
    if entry is not None:
        entry.require_layers(config.num_hidden_layers)
        for number in range(len(entry.layers)):
            entry.layer(number, config.num_attention_heads)
    return entry


def check_calibration(vllm_config: Any) -> None:
    """Validates phi in the front end, before any other process is started.

    Raises:
        CalibrationError: For an entry "unified_max" in config.json that is invalid or was made for
            another model.
    """
    attention, model = vllm_config.attention_config, vllm_config.model_config
    per_kind = getattr(attention, "backend_per_kind", None) or {}
    if custom_backend() not in (attention.backend, *per_kind.values()) or not is_ours():
        return
    entry = check_entry(model)
    if entry is None:
        return
    dtype = str(model.dtype).removeprefix("torch.")
    if not entry.holds_for(dtype) and multiprocessing.parent_process() is None:
        logger.warning(
            "phi of this model was chosen for %s and does not fit %s: decode attention uses the "
            "online softmax. For phi: flashsparse calibrate MODEL --text FILE --dtype %s",
            entry.dtype,
            dtype,
            dtype,
        )
