# SPDX-License-Identifier: Apache-2.0
"""The N:M weights that nm.py multiplies: patterns and layers."""

from __future__ import annotations

from typing import Any

import torch
from _layers import model_layers
from torch import Tensor

from flashsparse_plugin.dataflow.tuner import random_weight
from flashsparse_plugin.formats.pattern.options import PatternOptions

TWO_FOUR = PatternOptions(n=2, m=4)
VECTORS = tuple(PatternOptions(n=n, m=32, vector_length=32) for n in (16, 12, 8, 4))
LONG_VECTORS = tuple(
    PatternOptions(n=n, m=32, vector_length=length) for length in (64, 128) for n in (16, 12, 8, 4)
)
LAYERS = [
    *model_layers("Llama-3-70B", gate_up=(57344, 8192), down=(8192, 28672), o=(8192, 8192)),
    *model_layers("OPT-30B", fc1=(28672, 7168), fc2=(7168, 28672)),
    *model_layers("Llama-3-8B", gate_up=(28672, 4096), down=(4096, 14336), o=(4096, 4096)),
    *model_layers("Llama-3-8B", up=(14336, 4096), qkv=(6144, 4096)),
]
VALUES = (
    *(PatternOptions(n=2, m=4, values=values) for values in ("fp8_e4m3", "int8")),
    PatternOptions(n=2, m=4, values="int4", group=128),
    *(
        PatternOptions(n=n, m=32, vector_length=32, values=values)
        for n in (16, 8)
        for values in ("fp8_e4m3", "int8")
    ),
)
TOKENS = (1, 8, 16, 32, 64)
PROMPTS = (96, 128, 192, 256, 512, 1024, 2048, 4096)  # tokens
PROMPT_LAYERS = [LAYERS[0], LAYERS[3], *LAYERS[5:8]]


def pattern(text: str) -> PatternOptions:
    """A pattern from "2:4", "8:32x32", "2:4/int8" or "2:4/int4/128"."""
    text, *values = text.split("/")
    kept, _, rest = text.partition(":")
    window, _, length = rest.partition("x")
    codes: Any = {"values": values[0]} if values else {}
    if values[1:]:
        codes["group"] = int(values[1])
    return PatternOptions(n=int(kept), m=int(window), vector_length=int(length or 1), **codes)


def pattern_weight(
    shape: tuple[int, int], options: PatternOptions, dtype: torch.dtype, device: Any, seed: int = 0
) -> Tensor:
    """A random weight that follows the pattern, all kept."""
    return options.keep_largest(random_weight(shape, 1.0, dtype, device, seed=seed)).contiguous()
