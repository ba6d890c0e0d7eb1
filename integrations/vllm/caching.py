# SPDX-License-Identifier: Apache-2.0
"""Keys of vLLM's compile cache beyond vLLM's own configuration."""

from __future__ import annotations

from typing import Any

from vllm.config import VllmConfig

# Kinds of values: keys in `additional_config`.
LENGTHS = "flashsparse_streams"  # sizes of packed tensors that follow from the weight
SCHEMES = "flashsparse_schemes"  # formats and options that were chosen by the weight
PLANS = "flashsparse_dataflow"  # which implementation multiplies how many tokens


def count_into_cache_key(vllm_config: VllmConfig, kind: str, name: str, value: Any) -> None:
    """Adds a value of one layer to the key of vLLM's compile cache.

    Compiled graphs contain such values, and the cache is keyed by the configuration alone: a model
    that was pruned again and saved in the same directory would run the graphs of the old one. The
    configuration belongs to this process, and its key is computed after the weights are loaded.

    Args:
        vllm_config: The configuration whose `additional_config` gets the value.
        kind: LENGTHS, SCHEMES or PLANS.
        name: Name of the layer.
        value: A JSON value.
    """
    config = vllm_config.additional_config
    if isinstance(config, dict):
        vllm_config.additional_config = {**config, kind: {**config.get(kind, {}), name: value}}
