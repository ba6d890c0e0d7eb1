# SPDX-License-Identifier: Apache-2.0
"""The packed layers of a transformers model, and where accelerate keeps their tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import nn
from transformers.integrations.accelerate import get_device

from flashsparse_plugin.linear import SparseLinear
from flashsparse_plugin.packed import FormatError, PackedWeight


def sparse_layers(model: nn.Module) -> Iterator[tuple[str, SparseLinear]]:
    """The packed layers by name; the model may be changed meanwhile."""
    yield from [(name, m) for name, m in model.named_modules() if isinstance(m, SparseLinear)]


def is_offloaded(device_map: dict[str, Any] | None, name: str) -> bool:
    """Whether accelerate will keep a parameter elsewhere than where it is used."""
    if device_map is None:
        return False
    device = str(get_device(device_map, name))
    gpus = [d for d in map(str, device_map.values()) if d not in ("cpu", "disk")]
    return device == "disk" or (device == "cpu" and bool(gpus))


def _hooks(layer: nn.Module) -> list[Any]:
    hook = getattr(layer, "_hf_hook", None)
    return list(getattr(hook, "hooks", [hook]))  # a SequentialHook holds several


def has_offload_hook(layer: nn.Module) -> bool:
    """Whether accelerate keeps the tensors of a layer elsewhere while it does not run."""
    return any(getattr(hook, "offload", False) for hook in _hooks(layer))


def stored_weight(layer: SparseLinear) -> PackedWeight:
    """The weight as it is, read from where accelerate keeps it if it is offloaded."""
    packed = layer.packed
    for hook in _hooks(layer):
        if getattr(hook, "offload", False):
            tensors = {name: hook.weights_map[name] for name in packed.tensors}
            return replace(packed, tensors=tensors)
    return packed


def require_bias(name: str, layer: SparseLinear) -> None:
    """Refuses a bias that nothing has loaded: `state_dict=` tells only then what it has."""
    if layer.bias is not None and not getattr(layer.bias, "_is_hf_initialized", False):
        raise FormatError(
            f"layer {name!r}: its bias [{layer.out_features}] is not in the state_dict. Remedy: "
            "give it, zeros where it has none"
        )
