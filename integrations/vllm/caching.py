# SPDX-License-Identifier: Apache-2.0
"""What vLLM's compile cache has to know beyond vLLM's own configuration."""

from __future__ import annotations

from typing import Any

from vllm.config import VllmConfig

# Kinds of values, which are keys in `additional_config`.
LENGTHS = "flashsparse_streams"  # of packed streams, in elements
PLANS = "flashsparse_dataflow"  # which implementation multiplies how many tokens


def count_into_cache_key(vllm_config: VllmConfig, kind: str, name: str, value: Any) -> None:
    """Has vLLM's compile cache tell models apart by a value of one layer, too.

    Compiled graphs hold such values, and the cache goes by the configuration alone: a model that
    was pruned anew and saved in the same place would be run by the graphs of the old one. The
    configuration is this process's own, and its key is asked for once the weights are there.

    Args:
        vllm_config: Whose `additional_config` takes it.
        kind: LENGTHS or PLANS.
        name: Of the layer.
        value: As JSON has it.
    """
    config = vllm_config.additional_config
    if isinstance(config, dict):
        vllm_config.additional_config = {**config, kind: {**config.get(kind, {}), name: value}}
