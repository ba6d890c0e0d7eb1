# SPDX-License-Identifier: Apache-2.0
"""The ops of Tiled-CSL: what each means, its shapes for torch.compile, and the gradient.

Their schemas are registered in kernels/bindings. Whoever imports `ops` from here has them complete.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.library import get_ctx, register_fake

from ....ops import ops
from ....ops.packed_linear import linear_result, register_linear_autograd
from ..interleaved_bitmap.ops import empty_bitmap

__all__ = ["ops"]


def _tiles(out_features: int, in_features: int) -> int:
    return (out_features + 127) // 128 * ((in_features + 63) // 64)


def _check_offsets(tile_offsets: Tensor, out_features: int, in_features: int) -> None:
    tiles = _tiles(out_features, in_features)
    torch._check(
        tile_offsets.shape[0] == tiles + 1,
        lambda: (
            f"tile_offsets of a [{out_features}, {in_features}] weight has {tiles + 1} "
            f"entries, not {tile_offsets.shape[0]}"
        ),
    )


def empty_tiles(like: Tensor, out_features: int, in_features: int) -> tuple[Tensor, Tensor]:
    """(weight_packed, tile_offsets) of a weight, for torch.compile."""
    words = get_ctx().new_dynamic_size()
    return (
        like.new_empty(words, dtype=torch.int32),
        like.new_empty(_tiles(out_features, in_features) + 1, dtype=torch.int32),
    )


@register_fake("flashsparse::tiled_csl_pack")
def _(weight: Tensor):
    """tiled_csl_pack(weight) -> (weight_packed, tile_offsets)

    Packs weight [out_features, in_features] (float16 or bfloat16) to Tiled-CSL: int32 words and
    int32 tile offsets. Inside a tile the words are ordered by shared-memory bank (after
    Flash-LLM, Algorithm 3; kernels/formats/tiled_csl.h states the order). The same bit for bit on
    every device. On CUDA it waits for the device, to learn how many words there are: no part of a
    CUDA graph.
    """
    return empty_tiles(weight, *weight.shape)


@register_fake("flashsparse::tiled_csl_unpack")
def _(weight_packed, tile_offsets, out_features, in_features, dtype):
    """Unpacks Tiled-CSL to the dense weight [out_features, in_features] of `dtype`."""
    return weight_packed.new_empty(out_features, in_features, dtype=dtype)


@register_fake("flashsparse::tiled_csl_validate")
def _(weight_packed, tile_offsets, out_features, in_features):
    """Counts the nonzeros (int64 scalar) of sound Tiled-CSL tensors, and raises on any others.

    On CUDA it waits for the device.
    """
    return weight_packed.new_empty((), dtype=torch.int64)


@register_fake("flashsparse::tiled_csl_to_interleaved_bitmap")
def _(weight_packed, tile_offsets, out_features, in_features):
    """Turns Tiled-CSL into the CPU's runtime form: (values, masks, panel_offsets)."""
    return empty_bitmap(weight_packed, out_features, in_features)


@register_fake("flashsparse::tiled_csl_linear")
def _(x, weight_packed, tile_offsets, out_features, weight_dtype, bias=None, sparse_tokens=None):
    """Computes x [..., in_features] times the transposed weight, plus bias [out_features].

    x is float32, float16 or bfloat16 and its dtype rules the arithmetic; sums are kept in float32.

    On CUDA up to sparse_tokens tokens are multiplied by the sparse kernel; for more the weight is
    unpacked, and torch's own linear multiplies. None: 32 to 256, the more the larger the layer (192
    before Hopper); 0: always unpacked; a negative number raises. The choice is made in each call,
    from sizes alone: a graph of torch.compile holds any number of tokens. Always unpacked are a
    weight whose dtype x has not, and one of more than 2^20 tiles or 2^19 rows. On a CPU there is
    one implementation, and sparse_tokens changes nothing.

    Source: Flash-LLM, section 4.1 (load as sparse, compute as dense).
    """
    _check_offsets(tile_offsets, out_features, x.shape[-1])
    return linear_result(x, out_features, bias)


register_linear_autograd("tiled_csl_linear", unpack="tiled_csl_unpack")
