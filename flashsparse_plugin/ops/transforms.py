# SPDX-License-Identifier: Apache-2.0
"""A product with a packed weight under torch.func and forward-mode differentiation.

The gradient that an op has by `register_linear_autograd` is for `backward()` alone: torch.func.grad
refuses it, and a tangent gets lost on its way through the op without a word. torch.func.vmap would
call the op once for each element.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

Multiply = Callable[[Tensor, Tensor | None], Tensor]


def is_transformed() -> bool:
    """Whether a transform of torch.func or forward-mode differentiation is at work."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def transformed_linear(
    x: Tensor, bias: Tensor | None, multiply: Multiply, unpack: Callable[[], Tensor]
) -> Tensor:
    """Computes a product that any transform of torch.func can be taken of.

    Args:
        x: [..., in_features].
        bias: Optional [out_features].
        multiply: Computes the product of x and bias.
        unpack: Gives the weight [out_features, in_features], which derivatives are taken through.

    Returns:
        [..., out_features].
    """
    return _Product.apply(x, bias, multiply, unpack)


class _Product(Function):
    @staticmethod
    def forward(
        x: Tensor, bias: Tensor | None, multiply: Multiply, unpack: Callable[[], Tensor]
    ) -> Tensor:
        return multiply(x, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, bias, _, ctx.unpack = inputs
        ctx.bias_dtype = None if bias is None else bias.dtype
        ctx.dtype, ctx.shape = output.dtype, output.shape

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        dx, dbias = dy @ ctx.unpack().to(dy.dtype), None
        if ctx.bias_dtype is not None:
            dbias = dy.reshape(-1, dy.shape[-1]).sum(0).to(ctx.bias_dtype)
        return dx, dbias, None, None

    @staticmethod
    def jvp(ctx: Any, dx: Tensor | None, dbias: Tensor | None, *_: None) -> Tensor:
        if dx is None:
            assert dbias is not None
            return dbias.to(ctx.dtype).expand(ctx.shape)
        dy = dx @ ctx.unpack().to(dx.dtype).T
        return dy if dbias is None else dy + dbias.to(dy.dtype)

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        x: Tensor,
        bias: Tensor | None,
        multiply: Multiply,
        unpack: Callable[[], Tensor],
    ) -> tuple[Tensor, int]:
        first, second, *_ = in_dims
        x = x.expand(info.batch_size, *x.shape) if first is None else x.movedim(first, 0)
        if bias is None or second is None:
            return _Product.apply(x, bias, multiply, unpack), 0
        y = _Product.apply(x, None, multiply, unpack)
        each = bias.movedim(second, 0)
        return y + each.reshape(len(each), *[1] * (y.dim() - 2), -1).to(y.dtype), 0
