# SPDX-License-Identifier: Apache-2.0
"""The layers that the programs measure, and a weight that is hard on a kernel."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

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
    dict.fromkeys(
        Layer("", "", out_features, in_features)
        for hidden, heads, qkv, gate_up, down in (
            (4096, 4096, 6144, 28672, 14336),  # Llama-3-8B, Mistral-7B
            (8192, 8192, 10240, 57344, 28672),  # Llama-3-70B
            (4096, 4096, 6144, 24576, 12288),  # Qwen3-8B
            (5120, 8192, 10240, 51200, 25600),  # Qwen3-32B
            (5120, 5120, 7168, 34816, 17408),  # Qwen3-14B
            (2048, 2048, 3072, 16384, 8192),  # Llama-3.2-1B
            (3072, 3072, 5120, 16384, 8192),  # Llama-3.2-3B
            (2560, 4096, 6144, 19456, 9728),  # Qwen3-4B
            (5120, 5120, 7680, 35840, 17920),  # Phi-4
            (5120, 4096, 6144, 65536, 32768),  # Mistral-Small-24B
            (3840, 4096, 8192, 30720, 15360),  # Gemma-3-12B
            (5376, 4096, 8192, 43008, 21504),  # Gemma-3-27B
            (2560, 2048, 4096, 20480, 10240),  # Gemma-3-4B
            (2048, 2048, 4096, 12288, 6144),  # Qwen3-1.7B
            (5120, 4096, 6144, 28672, 14336),  # Mistral-Nemo-12B
            (1024, 2048, 4096, 6144, 3072),  # Qwen3-0.6B
        )
        for out_features, in_features in (
            *((qkv, hidden), (hidden, heads), (gate_up, hidden), (hidden, down)),
        )
    )
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
