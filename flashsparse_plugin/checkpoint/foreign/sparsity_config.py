# SPDX-License-Identifier: Apache-2.0
"""The `quantization_config` that compressed-tensors writes for a model that is sparse alone.

Its key `sparsity_config` names the layout of the weights. What else can be in it tells of quantized
weights, activations or caches, and of transforms.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from . import LAYOUTS
from .layout import Layout

METHODS: Final = ("compressed-tensors", "compressed_tensors")
_DENSE: Final = "dense"
KEYS: Final = ("quantization_config", "compression_config")
"""Where it is in config.json; the latter up to release 0.6, which names no method."""

_MORE: Final = ("config_groups", "kv_cache_scheme", "transform_config")


def is_sparse_alone(quantization: object) -> bool:
    """Whether a `quantization_config` says that weights have zeros, and nothing else of them."""
    if not isinstance(quantization, Mapping):
        return False
    if (quantization.get("quant_method") or METHODS[0]) not in METHODS:
        return False
    if any(quantization.get(key) for key in _MORE):
        return False
    named = sparsity_format(quantization)
    return quantization.get("format", _DENSE) == _DENSE and (named == _DENSE or named in LAYOUTS)


def layout_of(quantization: Mapping[str, Any]) -> Layout | None:
    """The layout of the weights of a model that is sparse alone; None where they are dense."""
    return LAYOUTS.get(sparsity_format(quantization) or _DENSE)


def without_sparsity(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json without what compressed-tensors says in it of a model that is sparse alone.

    Its weights are dense to whoever reads them.
    """
    drop = {key for key in KEYS if is_sparse_alone(config.get(key))}
    return {key: value for key, value in config.items() if key not in drop}


def sparsity_format(quantization: Mapping[str, Any]) -> str | None:
    """The layout that `sparsity_config` names, if any."""
    sparsity = quantization.get("sparsity_config")
    found = sparsity.get("format") if isinstance(sparsity, Mapping) else None
    return found if isinstance(found, str) else None
