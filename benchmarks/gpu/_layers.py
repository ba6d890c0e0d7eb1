# SPDX-License-Identifier: Apache-2.0
"""The layers that the programs measure, and a weight that is hard on a kernel."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from flashsparse_plugin import served
from flashsparse_plugin.dataflow.tuner import random_weight


@dataclass(frozen=True)
class Layer:
    """A linear layer of a model."""

    model: str
    name: str
    out_features: int
    in_features: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.out_features, self.in_features

    def __str__(self) -> str:
        return f"{self.out_features}x{self.in_features}"


def model_layers(model: str, **layers: tuple[int, int]) -> list[Layer]:
    """Layers from their names and shapes."""
    return [Layer(model, name, *shape) for name, shape in layers.items()]


# The 12 shapes of Flash-LLM, section 6.1, and those of Llama 3 as vLLM merges its layers.
OPT = [
    *model_layers(
        "OPT-30B", qkv=(21504, 7168), out=(7168, 7168), fc1=(28672, 7168), fc2=(7168, 28672)
    ),
    *model_layers(
        "OPT-66B", qkv=(27648, 9216), out=(9216, 9216), fc1=(36864, 9216), fc2=(9216, 36864)
    ),
    *model_layers(
        "OPT-175B", qkv=(36864, 12288), out=(12288, 12288), fc1=(49152, 12288), fc2=(12288, 49152)
    ),
]
LLAMA = [
    *model_layers(
        "Llama-3-8B", qkv=(6144, 4096), o=(4096, 4096), gate_up=(28672, 4096), down=(4096, 14336)
    ),
    *model_layers(
        "Llama-3-70B", qkv=(10240, 8192), o=(8192, 8192), gate_up=(57344, 8192), down=(8192, 28672)
    ),
]


# The shapes of models that people serve, as vLLM merges their layers; the most used first.
SERVED = list(
    dict.fromkeys(Layer("", "", *shape) for model in served.SERVED for shape in model.shapes)
)


def layer(text: str) -> Layer:
    """A layer of the lists above, or any other, from "28672x7168"."""
    known = {str(each): each for each in [*OPT, *LLAMA]}
    out_features, _, in_features = text.partition("x")
    return known.get(text) or Layer("", "", int(out_features), int(in_features))


def skewed_weight(shape: tuple[int, int], density: float, dtype: torch.dtype, seed: int) -> Tensor:
    """A random weight whose density differs by row, from full rows to empty ones."""
    generator = torch.Generator().manual_seed(seed)
    of_row = (2 * density * torch.rand(shape[0], 1, generator=generator)) ** 2
    of_row[:: max(shape[0] // 5, 1)] = 1.0
    kept = torch.rand(shape, generator=generator) < of_row
    return random_weight(shape, 1.0, dtype, seed=seed) * kept
