# SPDX-License-Identifier: Apache-2.0
"""Presets: how the authors of a paper pruned, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from .relay import decoder_layers

# What the linears are called that a feed-forward network begins with. Models of one architecture
# share the name, and shapes alone do not tell: a fused attention projection has as many outputs.
_FFN_INPUTS = (
    *("c_fc", "dense_h_to_4h", "fc1", "fc_in", "gate_proj", "gate_up_proj", "lin1"),
    *("up_proj", "w1", "w3", "wi", "wi_0", "wi_1"),
)


@dataclass(frozen=True)
class Preset:
    """The choices of a paper; each can be replaced by one's own.

    Attributes:
        method: A method's name.
        sparsity: The share of zeros of each layer that is pruned.
    """

    method: str
    sparsity: float


FLASH_LLM = "flash-llm"
PRESETS: Mapping[str, Preset] = {FLASH_LLM: Preset("taylor", 0.8)}


def dense_layers(preset: str, model: nn.Module) -> list[str]:
    """Returns the names of the layers that a preset leaves dense.

    "flash-llm" (section 6.3.1): the inputs of the feed-forward networks in the first and in the
    last quarter of the decoder layers.

    Raises:
        ValueError: For an unknown preset, or a model in which no such layer is known.
    """
    if preset not in PRESETS:
        raise ValueError(
            f"preset {preset!r} is invalid: choose one of {', '.join(map(repr, PRESETS))}"
        )
    layers = decoder_layers(model)
    quarter = len(layers) // 4
    outer = {id(m) for i, x in enumerate(layers) for m in x.modules() if _outer(i, quarter, layers)}
    named = [(name, m) for name, m in model.named_modules() if id(m) in outer]
    found = [name for name, _ in named if name.rpartition(".")[2] in _FFN_INPUTS]
    if quarter and not found:
        raise ValueError(
            f"{type(model).__name__}: none of its linear layers is known as the input of a "
            "feed-forward network; leave the preset out, and name the layers to leave dense with "
            "--ignore (ignore=)"
        )
    return found


def _outer(index: int, quarter: int, layers: nn.ModuleList) -> bool:
    return index < quarter or index >= len(layers) - quarter
