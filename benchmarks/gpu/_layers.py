# SPDX-License-Identifier: Apache-2.0
"""The layers that spmm.py measures, and pruned random weights for them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from flashsparse_plugin.dataflow.tuner import random_weight
from flashsparse_plugin.ops import ops

TILE_ROWS, TILE_COLS = 128, 64
DISTINCT = (16, 16)  # tiles down and across of the small weight that large ones are made of


@dataclass(frozen=True)
class Layer:
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
    return [Layer(model, name, *shape) for name, shape in layers.items()]


# The 12 shapes of Flash-LLM, section 6.2, and Llama 3's as vLLM merges them.
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


@dataclass
class PackedLayer:
    """A weight, dense and in Tiled-CSL."""

    dense: Tensor
    weight_packed: Tensor
    tile_offsets: Tensor

    @property
    def nbytes(self) -> int:
        return self.weight_packed.nbytes + self.tile_offsets.nbytes


def assembled(
    layer: Layer, sparsity: float, dtype: torch.dtype, device: torch.device
) -> PackedLayer:
    """A large random weight, packed in no time.

    The words of a tile do not depend on its place, so a small weight of 256 random tiles is packed
    on the CPU, and a large one is made of its tiles, in random order, dense and packed alike.
    """
    down, across = layer.out_features // TILE_ROWS, layer.in_features // TILE_COLS
    if layer.shape != (down * TILE_ROWS, across * TILE_COLS):
        raise ValueError(f"{layer} is not made of whole tiles of {TILE_ROWS}x{TILE_COLS}")
    small = random_weight((DISTINCT[0] * TILE_ROWS, DISTINCT[1] * TILE_COLS), 1 - sparsity, dtype)
    words, offsets = (tensor.to(device) for tensor in ops.tiled_csl_pack(small))
    tiles = small.view(DISTINCT[0], TILE_ROWS, DISTINCT[1], TILE_COLS).transpose(1, 2)
    tiles = tiles.reshape(-1, TILE_ROWS, TILE_COLS).to(device)

    generator = torch.Generator().manual_seed(1)
    chosen = torch.randint(len(tiles), (down * across,), generator=generator).to(device)
    starts, lengths = offsets[:-1].long()[chosen], offsets.long().diff()[chosen]
    ends = lengths.cumsum(0)
    total = int(ends[-1])
    moved = torch.repeat_interleave(starts - (ends - lengths), lengths, output_size=total)
    moved += torch.arange(total, device=device)
    dense = tiles[chosen].view(down, across, TILE_ROWS, TILE_COLS).transpose(1, 2)
    return PackedLayer(
        dense=dense.reshape(layer.shape),
        weight_packed=words[moved],
        tile_offsets=torch.cat([ends.new_zeros(1), ends]).int(),
    )
