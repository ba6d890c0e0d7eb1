# SPDX-License-Identifier: Apache-2.0
"""The ops between the products of a layer: norms, rotary embeddings, gated activations.

On CUDA each is one kernel for 16-bit floats, after which a product can load its first weights while
it runs (programmatic dependent launch). Here is what each means, its shapes for torch.compile, and
its implementation for CPUs, in torch's own ops: these serve tests, and are what the kernels are
judged by. Schemas are registered in kernels/bindings. No op has gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.library import impl, register_fake

from . import library  # noqa: F401  (the ops must exist before they are completed)

ACTIVATIONS = ("silu", "gelu_tanh")
MAX_NORM_COLUMNS = 32768  # kernels/cuda/elementwise/rms_norm_arguments.h


@register_fake("flashsparse::rms_norm")
def _(x, weight, epsilon, adds_one=False):
    """rms_norm(x, weight, epsilon, adds_one=False) -> y, in the shape of x, contiguous

    x / sqrt(mean(x^2) + epsilon) * weight over the last dimension, in float32. The normalized x is
    rounded to its dtype before it is multiplied by the weight, as transformers and vLLM do; with
    `adds_one` (Gemma) it is multiplied by 1 + weight in float32, and rounded once.

    A row's bits do not depend on which others there are. They are those of torch's ops, as below,
    unless another order of the float32 sum or a last bit of its square root moves a value over the
    middle between two 16-bit ones.

    Args:
        x: float16 or bfloat16, on the CPU also float32: [..., columns] of two or three dimensions,
            with the last one contiguous. On CUDA rows start on 16 bytes, and columns is a multiple
            of 8, at most 32768.
        weight: [columns], of the dtype of x.
        epsilon: Added to the mean.
        adds_one: Whether to multiply by 1 + weight.
    """
    return x.new_empty(x.shape)


@register_fake("flashsparse::add_rms_norm")
def _(x, residual, weight, epsilon, adds_one=False):
    """add_rms_norm(x, residual, weight, epsilon, adds_one=False) -> (y, sum)

    sum = x + residual, and y = rms_norm(sum) with the float32 sum before it is rounded, as in
    vLLM's own implementation in torch. transformers rounds the sum first: a last bit may differ.

    Args:
        x, weight, epsilon, adds_one: As in rms_norm.
        residual: In the shape and dtype of x; its strides may differ.

    Returns:
        y and sum, in the shape and dtype of x, contiguous.
    """
    return x.new_empty(x.shape), x.new_empty(x.shape)


@register_fake("flashsparse::gate_mul")
def _(x, activation):
    """gate_mul(x, activation) -> y [..., columns]

    activation(x[..., :columns]) * x[..., columns:]. The activation is computed in float32 and
    rounded to the dtype of x before it is multiplied, as torch's ops do.

    Args:
        x: float16 or bfloat16, on the CPU also float32: [..., 2 * columns], the last dimension
            contiguous. On CUDA columns is a multiple of 8, and rows start on 16 bytes.
        activation: "silu" or "gelu_tanh".
    """
    torch._check(x.shape[-1] % 2 == 0, lambda: f"x ends in {x.shape[-1]}: no gate and up")
    return x.new_empty(*x.shape[:-1], x.shape[-1] // 2)


@register_fake("flashsparse::rope")
def _(query, key, positions, cos_sin, is_neox):
    """rope(query, key, positions, cos_sin, is_neox) -> (query, key), contiguous

    What rope_cache does without a cache, into new tensors, for graphs of torch.compile.
    """
    return query.new_empty(query.shape), key.new_empty(key.shape)


@register_fake("flashsparse::rope_cache")
def _(query, key, value, positions, cos_sin, is_neox, key_cache=None, value_cache=None, slots=None):
    """rope_cache(query?, key, value?, positions?, cos_sin?, is_neox, key_cache=None,
    value_cache=None, slots=None) -> ()

    Rotates the first rotary_dim elements of each head of query and key in place, if there are
    positions, and then writes key and value into a paged cache, if there is one. Each product and
    sum of the rotation is rounded to the dtype: the bits are those of transformers and of vLLM's
    own implementation in torch.

    Args:
        query: float16 or bfloat16, on the CPU also float32: [tokens, heads, head_dim] with the last
            dimension contiguous, such as a view of the output of a merged layer of q, k and v; or
            None.
        key: The same, [tokens, kv_heads, head_dim].
        value: [tokens, kv_heads, value_dim]; read only where there is a cache.
        positions: int64 [tokens], or None: no rotation. Beyond the rows of cos_sin the last counts.
        cos_sin: [rows, rotary_dim] of the dtype of key, contiguous: cosines, then sines. On CUDA
            rotary_dim is a multiple of 16, and head_dim and value_dim of 8.
        is_neox: Pairs are elements i and i + rotary_dim / 2; otherwise 2i and 2i + 1.
        key_cache: [blocks, block_size, kv_heads, head_dim] of the dtype of key, any strides but the
            last (1), or None: no write.
        value_cache: [blocks, block_size, kv_heads, value_dim], likewise.
        slots: int64 [at most tokens]: block * block_size + position of each token. One that is
            negative, or names no slot, is not written.
    """


def _normalized(value: Tensor, weight: Tensor, epsilon: float, adds_one: bool) -> Tensor:
    value = value * torch.rsqrt(value.pow(2).mean(-1, keepdim=True) + epsilon)
    if adds_one:
        return (value * (1 + weight.float())).to(weight.dtype)
    return value.to(weight.dtype) * weight


def rms_norm(x: Tensor, weight: Tensor, epsilon: float, adds_one: bool = False) -> Tensor:
    return _normalized(x.float(), weight, epsilon, adds_one).contiguous()


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, epsilon: float, adds_one: bool = False
) -> tuple[Tensor, Tensor]:
    total = x.float() + residual.float()
    y = _normalized(total, weight, epsilon, adds_one)
    # Never views: of float32 `to` would give the argument, and an op may not return it.
    return y.contiguous(), total.to(x.dtype).contiguous()


def gate_mul(x: Tensor, activation: str) -> Tensor:
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, not {activation!r}")
    gate, up = x.chunk(2, -1)
    if activation == "silu":
        return torch.nn.functional.silu(gate) * up
    return torch.nn.functional.gelu(gate, approximate="tanh") * up


def rope(
    query: Tensor, key: Tensor, positions: Tensor, cos_sin: Tensor, is_neox: bool
) -> tuple[Tensor, Tensor]:
    query, key = (heads.clone(memory_format=torch.contiguous_format) for heads in (query, key))
    rope_cache(query, key, None, positions, cos_sin, is_neox)
    return query, key


def rope_cache(
    query: Tensor | None,
    key: Tensor,
    value: Tensor | None,
    positions: Tensor | None,
    cos_sin: Tensor | None,
    is_neox: bool,
    key_cache: Tensor | None = None,
    value_cache: Tensor | None = None,
    slots: Tensor | None = None,
) -> None:
    if positions is not None and cos_sin is not None:
        rows = cos_sin[positions.clamp(0, cos_sin.shape[0] - 1)]
        cosine, sine = rows.unsqueeze(1).chunk(2, -1)
        for heads in (query, key):
            if heads is not None:
                turned = heads[..., : cos_sin.shape[1]]
                pairs = turned.chunk(2, -1) if is_neox else (turned[..., ::2], turned[..., 1::2])
                x, y = (part.clone() for part in pairs)
                pairs[0].copy_(x * cosine - y * sine)
                pairs[1].copy_(y * cosine + x * sine)
    if key_cache is None or value_cache is None or value is None or slots is None:
        return
    blocks, block_size = key_cache.shape[:2]
    for token, slot in enumerate(slots.tolist()):
        if not 0 <= slot < blocks * block_size:
            continue
        block, place = divmod(slot, block_size)
        key_cache[block, place] = key[token]
        value_cache[block, place] = value[token]


for _op in (rms_norm, add_rms_norm, gate_mul, rope, rope_cache):
    impl(f"flashsparse::{_op.__name__}", "CPU", _op)
