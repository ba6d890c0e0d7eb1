# SPDX-License-Identifier: Apache-2.0
"""What linear ops of packed formats share: the shape of y, the gradient, a product on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.library import impl, register_autograd
from torch.nn import functional as F

from .library import ops

X_SCALES = "x_scales"
"""The argument with the scales of quantized activations, of ops that take some."""

_UNCHANGED = nullcontext()
_NONE_OF = {
    "sparse_tokens": "unpack for any number of tokens",
    "few_tokens": "the kernel for many, for any number of tokens",
}


def autograd_as_needed(x: Tensor, bias: Tensor | None) -> AbstractContextManager[None] | None:
    """A context in which a product is seen by autograd only where a gradient may be asked for.

    None where a transform may ask for one that the op does not have: see `transforms`.

    The kernel by which a linear op has its gradient (`register_linear_autograd`) is written in
    Python, and takes a product of one token as long as the rest of the call; so ops pass it by
    where nothing requires a gradient. It stays for torch.compile, whose graphs hold the op as it
    is.
    """
    if torch.compiler.is_compiling():
        return _UNCHANGED
    # `transforms.is_transformed`, without the call of it, which is in every call of a layer.
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return None
    if torch.is_inference_mode_enabled():  # which passes autograd by itself
        return _UNCHANGED
    if torch.is_grad_enabled() and (x.requires_grad or (bias is not None and bias.requires_grad)):
        return _UNCHANGED
    return torch._C._AutoDispatchBelowAutograd()


def register_linear_autograd(name: str, unpack: str) -> None:
    """Gives a linear op of a packed format a gradient for x and bias.

    dx = dy W, through the unpacked weight: training happens around a frozen sparse weight (LoRA),
    where the backward pass is one product among several and a transposed packed kernel would buy
    little. Packed tensors have no gradient.

    Args:
        name: The name of an op with arguments x, out_features, weight_dtype and bias among others.
        unpack: The name of the op that unpacks. It takes arguments of the linear op by their
            names, besides in_features, and dtype, which is weight_dtype.
    """
    defaults, wanted = _arguments(name), _arguments(unpack)
    names = list(defaults)
    unpacked: Callable[..., Tensor] = getattr(ops, unpack)

    def setup(ctx, inputs, output):
        given = wanted | defaults | dict(zip(names, inputs, strict=False))
        x, bias = given["x"], given["bias"]
        given |= {"in_features": x.shape[-1], "dtype": given["weight_dtype"]}
        ctx.tensors = [name for name in (*wanted, X_SCALES) if isinstance(given.get(name), Tensor)]
        ctx.save_for_backward(*(given[each] for each in ctx.tensors))
        ctx.plain = {each: given[each] for each in wanted if each not in ctx.tensors}
        ctx.bias_dtype = None if bias is None else bias.dtype

    def backward(ctx, dy):
        gradients = dict.fromkeys(names)
        if ctx.needs_input_grad[names.index("x")]:
            saved = dict(zip(ctx.tensors, ctx.saved_tensors, strict=True))
            scales = saved.pop(X_SCALES, None)
            weight = unpacked(**saved, **ctx.plain)
            of_sums = dy if scales is None else scaled(dy, scales)
            gradients["x"] = of_sums @ weight.to(dy.dtype)
        if ctx.bias_dtype is not None and ctx.needs_input_grad[names.index("bias")]:
            gradients["bias"] = dy.reshape(-1, dy.shape[-1]).sum(0).to(ctx.bias_dtype)
        return tuple(gradients.values())

    register_autograd(f"flashsparse::{name}", backward, setup_context=setup)


def register_unpacked_linear(name: str, unpack: str) -> None:
    """Gives a linear op whose kernels are for GPUs its meaning on a CPU: unpack, then multiply.

    For tests and the shapes of a model; no layer runs in such a form on a CPU. The product is
    float32.

    Args:
        name: The name of an op with arguments x, weight_dtype, bias and sparse_tokens among others.
        unpack: The name of the op that unpacks, with arguments as for `register_linear_autograd`.

    Raises:
        RuntimeError: By the op, where sparse_tokens or few_tokens is negative.
    """
    defaults, wanted = _arguments(name), _arguments(unpack)
    unpacked: Callable[..., Tensor] = getattr(ops, unpack)

    def linear(*inputs):
        given: dict[str, Any] = defaults | dict(zip(defaults, inputs, strict=False))
        x, bias = given["x"], given["bias"]
        for name, of_none in _NONE_OF.items():
            if (most := given.get(name)) is not None and most < 0:
                raise RuntimeError(f"{name} must be 0 ({of_none}) or more, not {most}")
        given |= {"in_features": x.shape[-1], "dtype": given["weight_dtype"]}
        weight = unpacked(**{each: given[each] for each in wanted})
        y = F.linear(x.float(), weight.float())
        if (scales := given.get(X_SCALES)) is not None:
            y = scaled(y, scales)
        return (y if bias is None else y + bias.float()).to(x.dtype)

    impl(f"flashsparse::{name}", "CPU", linear)


def scaled(y: Tensor, x_scales: Tensor) -> Tensor:
    """y [..., features] times float32 scales of its tokens, [tokens]; rounded to the dtype of y."""
    return (y * x_scales.view(*y.shape[:-1], 1)).to(y.dtype)


def _arguments(op: str) -> dict[str, Any]:
    """Arguments in their order, with their default values, None where there is none."""
    arguments = getattr(ops, op).default._schema.arguments
    return {argument.name: argument.default_value for argument in arguments}


def linear_result(x: Tensor, out_features: int, bias: Tensor | None = None) -> Tensor:
    """The shape of y for torch.compile, and the checks that need shapes alone."""
    check_bias(bias, out_features)
    return x.new_empty(*x.shape[:-1], out_features)


def check_bias(bias: Tensor | None, out_features: int) -> None:
    """Raises RuntimeError unless there is no bias or one of the right size."""
    if bias is not None:
        torch._check(
            bias.dim() == 1 and bias.shape[0] == out_features,
            lambda: f"bias must be [{out_features}], not {list(bias.shape)}",
        )
