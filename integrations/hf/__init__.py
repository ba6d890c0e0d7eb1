# SPDX-License-Identifier: Apache-2.0
"""Hugging Face transformers: `from_pretrained` on packed and on dense checkpoints."""

from collections.abc import Callable
from typing import Any

from flashsparse_plugin.wrapping import wrap_once


def register() -> None:
    """Registers the quantization method `flashsparse`; calling it again changes nothing.

    A configuration that says of a checkpoint that it is sparse, and nothing else, is no method. One
    that says that it is sparse and quantized is ours.

    FlashSparseConfig itself goes into transformers' table. Its function
    `register_quantization_config` would ask for a subclass of its own mixin, which would either
    bring transformers into the core or make two classes of one; transformers then only ever calls
    `from_dict`, `to_dict`, `get_loading_attributes` and a few attributes.
    """
    from transformers.quantizers import auto

    from flashsparse_plugin.config import QUANT_METHOD, FlashSparseConfig

    auto.AUTO_QUANTIZATION_CONFIG_MAPPING[QUANT_METHOD] = FlashSparseConfig
    auto.AUTO_QUANTIZER_MAPPING[QUANT_METHOD] = _quantizer
    # Lets `quantization_config=FlashSparseConfig(dequantize=True)` through on a packed checkpoint.
    loading = getattr(auto, "LOADING_ATTRIBUTES_CONFIG_TYPES", None)
    if loading is not None and FlashSparseConfig not in loading:
        auto.LOADING_ATTRIBUTES_CONFIG_TYPES = (*loading, FlashSparseConfig)
    wrap_once(auto.AutoHfQuantizer, "supports_quant_method", _no_method_of_zeros_alone)
    wrap_once(auto.AutoHfQuantizer, "merge_quantization_configs", _ours_with_zeros)


def _quantizer(*args: Any, **kwargs: Any) -> Any:
    # Imported when a model is loaded: at registration transformers may be half imported.
    from .quantizer import FlashSparseQuantizer

    return FlashSparseQuantizer(*args, **kwargs)


def _no_method_of_zeros_alone(inner: Callable[[Any], bool]) -> Callable[[Any], bool]:
    def supports_quant_method(quantization_config_dict: Any) -> bool:
        from flashsparse_plugin.checkpoint.foreign.sparsity_config import is_sparse_alone

        return not is_sparse_alone(quantization_config_dict) and inner(quantization_config_dict)

    return supports_quant_method


def _ours_with_zeros(inner: Callable[..., Any]) -> Callable[..., Any]:
    def merge_quantization_configs(quantization_config: Any, given: Any, **more: Any) -> Any:
        from flashsparse_plugin.checkpoint.files.explanations import about_quantized
        from flashsparse_plugin.checkpoint.foreign.packing import QuantizedConfig
        from flashsparse_plugin.config import QUANT_METHOD, FlashSparseConfig
        from flashsparse_plugin.packed import FormatError

        ours = QuantizedConfig.of(quantization_config, given)
        if ours is None and isinstance(given, FlashSparseConfig):
            is_read = not isinstance(quantization_config, dict)
            stored = quantization_config.to_dict() if is_read else quantization_config
            method = stored.get("quant_method")
            if method != QUANT_METHOD:  # transformers would ask for a config of that class
                raise FormatError(about_quantized("this checkpoint", method))
        return inner(quantization_config, given, **more) if ours is None else ours

    return merge_quantization_configs
