# SPDX-License-Identifier: Apache-2.0
"""A layer of experts on a GPU: by a grouped kernel, or unpacked for torch's grouped product.

Nothing here waits for the device, and all sizes follow from those of the tensors: a CUDA graph
holds any routing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from ..gpu import Gpu, find_gpu, unpacked_seconds
from ..ops import STATUS
from ..packed import Routed, Scheme
from .activations import gated
from .stack import ExpertStack

MOST_TOKENS = 1 << 14  # at once: bounds what is between the products
SLAB_BYTES = 2 << 30  # of experts that are unpacked at once
# What a layer takes unpacked, over what its products would take by cuBLAS: torch's grouped product
# reaches less of the memory's bandwidth, and slots are gathered and put back. 1.2 to 1.4 with 64
# tokens and more on an H200 (experts_layer.csv).
GROUPING = 1.28
_GROUPED_MM = ((9, 0), (10, 0))  # where torch's grouped product has a kernel, and does not wait


def why_dense(
    schemes: Iterable[Scheme],
    experts: int,
    device: torch.device,
    activation: str | None,
    dtype: torch.dtype | None = None,
) -> str | None:
    """Why packed experts would not run by a grouped kernel on a device; None where they would.

    On a CPU all of them run packed, by the kernels for one weight.

    Args:
        schemes: Of the projections, in the storage form.
        experts: How many there are.
        device: Where the layer is to run.
        activation: Of the gate, by name; None: an unknown one, or there is no gate.
        dtype: Of the activations; None: that of the schemes.
    """
    if device.type == "cpu":
        return None
    if device.type != "cuda":
        return f"there are no kernels for {device.type}"
    if not STATUS["_C_cuda"].loaded:
        return f"the CUDA kernels are {STATUS['_C_cuda'].reason}"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "the GPU has no sparse tensor cores"
    forms = {scheme.format.runtime(scheme, device) for scheme in schemes}
    form = next(iter(forms))
    if (why := form.format.why_not_grouped(form, experts)) is not None:
        return why
    return _why_not(forms, form.dtype if dtype is None else dtype, activation)


def why_not(batch: Routed, w13: ExpertStack, w2: ExpertStack) -> str | None:
    """Why no grouped kernel multiplies a batch by these stacks; None where one does."""
    if not (w13.sides and w2.sides):
        return w13.scheme.format.why_not_grouped(w13.scheme, w13.experts) or (
            f"{w13.scheme.title} is not prepared for a grouped kernel"
        )
    activation = batch.activation if w13.sides == 2 else None
    return _why_not({w13.scheme, w2.scheme}, batch.x.dtype, activation)


def _why_not(forms: set[Scheme], dtype: torch.dtype, activation: str | None) -> str | None:
    form = next(iter(forms))
    if len(forms) > 1:
        return f"the projections are packed differently ({' and '.join(sorted(map(str, forms)))})"
    if dtype != form.dtype:
        return f"activations are {dtype} and weights {form.dtype}"
    if activation not in form.format.expert_activations:
        known = ", ".join(form.format.expert_activations)
        own = "experts without a gate" if activation is None else f"activation {activation!r}"
        return f"the grouped kernel has no {own}; it has {known}"
    return None


def multiply(batch: Routed, w13: ExpertStack, w2: ExpertStack) -> Tensor:
    """The output of a layer that a grouped kernel has (`why_not`); see `op.multiply`.

    Large batches are unpacked for torch's grouped product where that should take less time.
    """
    tokens = len(batch.x)
    unpacks = tokens > 0 and _can_unpack(batch, w13) and _should_unpack(batch, w13, w2)
    run = by_unpacking if unpacks else by_kernel
    if tokens <= MOST_TOKENS:
        return run(batch, w13, w2)
    split = (each.split(MOST_TOKENS) for each in (batch.x, batch.ids, batch.weights))
    parts = zip(*split, strict=True)
    return torch.cat([run(replace(batch, x=x, ids=i, weights=w), w13, w2) for x, i, w in parts])


def by_kernel(batch: Routed, w13: ExpertStack, w2: ExpertStack) -> Tensor:
    """By the grouped kernel of the format."""
    return w13.scheme.format.multiply_experts(
        batch, w13.tensors, w2.tensors, w13.scheme, w13.experts, w2.shape[1]
    )


def by_unpacking(batch: Routed, w13: ExpertStack, w2: ExpertStack) -> Tensor:
    """By torch's grouped product on experts that are unpacked, as many at once as fit a slab.

    Slots, which are a token and one of its experts, are ordered by expert. What a slab multiplies
    begins with its first slot, so its other rows are computed by none, and are not read.
    """
    x, (tokens, k) = batch.x, batch.ids.shape
    experts, hidden = w13.experts, w2.shape[0]
    local = local_ids(batch.ids, batch.expert_map, experts).flatten()
    order = local.argsort(stable=True)
    every = torch.arange(experts, device=x.device)
    ends = torch.searchsorted(local[order], every, right=True).int()
    at = torch.arange(tokens * k, device=x.device, dtype=torch.int32)
    result = x.new_zeros(tokens * k, hidden)  # by `order`
    weights = batch.weights.flatten().float()
    for first in range(0, experts, step := _slab(w13, w2)):
        last = min(first + step, experts)
        begin = ends[first - 1] if first else ends.new_zeros(())
        own = order[(at + begin).clamp(max=len(order) - 1)]
        offsets, weight = ends[first:last] - begin, weights[own, None]
        both = _product(x[own // k], w13, first, last, offsets)
        gate, up = w13.sides_of(both)
        if batch.weights_on_input:
            gate, up = (each.float() * weight for each in (gate, up))
        expert = local[own].clamp(0, experts - 1)
        if batch.w13_bias is not None:
            biases = batch.w13_bias[expert].chunk(2, -1)
            gate, up = gate + biases[0], up + biases[1]
        h = gated(gate, up, batch.activation, batch.limit, batch.alpha).to(x.dtype)
        y = _product(h, w2, first, last, offsets)[:, :hidden]
        if batch.w2_bias is not None:
            y = y + batch.w2_bias[expert].to(y.dtype)
        inside = (at >= begin) & (at < ends[last - 1])
        place = (at - begin).clamp(0, len(order) - 1) if first else at
        result = torch.where(inside[:, None], y[place], result)
    back = torch.empty_like(order).scatter_(0, order, at.long()).view(tokens, k)
    sums = x.new_zeros(tokens, hidden, dtype=torch.float32)
    for j in range(k):
        y = result[back[:, j]].float()
        sums += y if batch.weights_on_input else y * batch.weights[:, j, None].float()
    return sums.to(x.dtype)


def local_ids(ids: Tensor, expert_map: Tensor | None, experts: int) -> Tensor:
    """int64 like `ids`: the place of each expert here, `experts` where it is not."""
    ids = ids.long()
    if expert_map is not None:
        known = (ids >= 0) & (ids < len(expert_map))
        ids = expert_map.long()[ids.clamp(0, len(expert_map) - 1)].where(known, -1)
    return ids.where((ids >= 0) & (ids < experts), experts)


def _product(x: Tensor, stack: ExpertStack, first: int, last: int, offsets: Tensor) -> Tensor:
    """Of rows by expert, which end at `offsets`, and experts from `first` to `last`, unpacked."""
    weight = stack.part(first, last).unpack().unflatten(0, (last - first, -1))
    return F.grouped_mm(x.contiguous(), weight.transpose(1, 2), offs=offsets)


def _slab(w13: ExpertStack, w2: ExpertStack) -> int:
    """Experts that are unpacked at once."""
    return max(1, SLAB_BYTES * w13.experts // (w13.dense_nbytes + w2.dense_nbytes))


def _can_unpack(batch: Routed, w13: ExpertStack) -> bool:
    """Whether torch's grouped product takes the batch, and does not wait for the device."""
    x, (both, hidden) = batch.x, w13.shape
    return (
        hasattr(F, "grouped_mm")
        and x.is_cuda
        and x.dtype == torch.bfloat16
        and torch.cuda.get_device_capability(x.device) in _GROUPED_MM
        and hidden % 8 == 0
        and both % 16 == 0
    )


def _should_unpack(batch: Routed, w13: ExpertStack, w2: ExpertStack) -> bool:
    tokens, k = batch.ids.shape
    if batch.expert_map is not None:  # of a token's experts the share that is here
        k = k * w13.experts // max(len(batch.expert_map), 1)
    properties = torch.cuda.get_device_properties(batch.x.device)
    return unpacking_is_faster(
        *(w13.scheme, w2.shape, (w13.nbytes, w2.nbytes)),
        1 << (tokens - 1).bit_length(),  # in steps, so that few answers are remembered
        (w13.experts, min(max(k, 1), w13.experts)),
        (properties.name, (properties.major, properties.minor)),
    )


@lru_cache(maxsize=1024)
def unpacking_is_faster(
    scheme: Scheme,
    shape: tuple[int, int],
    nbytes: tuple[int, int],
    tokens: int,
    experts: tuple[int, int],
    device: tuple[str, tuple[int, int]],
) -> bool:
    """Whether a layer should take less time unpacked than by the grouped kernel: by calculation.

    Args:
        scheme: Of both weights, in the form of the kernel.
        shape: (hidden, intermediate).
        nbytes: Of w13 and w2.
        tokens: At least 1.
        experts: How many there are, and how many of them a token has.
        device: Name and compute capability of the GPU.
    """
    kernel, unpacked = layer_seconds(scheme, shape, nbytes, tokens, experts, find_gpu(*device))
    return unpacked < kernel


def layer_seconds(
    scheme: Scheme,
    shape: tuple[int, int],
    nbytes: tuple[int, int],
    tokens: int,
    experts: tuple[int, int],
    gpu: Gpu,
) -> tuple[float, float]:
    """Estimated time of a layer by the grouped kernel, and unpacked; see `unpacking_is_faster`."""
    (count, k), (hidden, inner) = experts, shape
    kernel = scheme.format.experts_seconds(scheme, (inner, hidden), nbytes, tokens, experts, gpu)
    each, (share, reading) = -(-tokens * k // count), scheme.format.unpacking
    unpacked = sum(
        unpacked_seconds(tall, size, each, gpu, share, reading=reading)
        for tall, size in zip(
            ((count * 2 * inner, hidden), (count * hidden, inner)), nbytes, strict=True
        )
    )
    return kernel, GROUPING * unpacked
