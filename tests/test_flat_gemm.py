# SPDX-License-Identifier: Apache-2.0
"""The ops of dense layers on the CPU: right, known to PyTorch, and clear about what they refuse."""

import pytest
import torch
from emulated_linear import Case, require_exact
from torch.library import opcheck

from flashsparse_plugin.ops import ops

OPS = {"flat_gemm": 64, "gemv": 8}  # and the most tokens that they take
OUT, IN = 30, 70
DTYPES = (torch.float16, torch.bfloat16)


def tensors(tokens, dtype=torch.bfloat16, gap=0, **options):
    """x, weight with rows `gap` elements further apart than needed, and bias."""
    x = torch.randn(tokens, IN).to(dtype).requires_grad_(options.get("grad", False))
    weight = torch.randn(OUT, IN + gap).to(dtype)[:, :IN]
    return x, weight, torch.randn(OUT).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_products(op, dtype):
    torch.manual_seed(0)
    for tokens in (1, 3, OPS[op]):
        x, weight, bias = tensors(tokens, dtype, gap=tokens % 2)
        for some_bias in (None, bias):
            y = getattr(ops, op)(x, weight, some_bias)
            require_exact(Case(weight, x, some_bias), y)


@pytest.mark.parametrize("op", OPS)
def test_batches_keep_their_shape(op):
    x, weight, bias = tensors(6)
    y = getattr(ops, op)(x.view(2, 3, IN), weight, bias)
    assert torch.equal(y.view(6, OUT), getattr(ops, op)(x, weight, bias))
    assert getattr(ops, op)(x[0], weight).shape == (OUT,)
    assert getattr(ops, op)(x[:0], weight).shape == (0, OUT)


@pytest.mark.parametrize("op", OPS)
def test_gradients_are_those_of_linear(op):
    ours = [tensor.requires_grad_() for tensor in tensors(4)]
    theirs = [tensor.detach().clone().requires_grad_() for tensor in ours]
    dy = torch.randn(4, OUT).bfloat16()
    getattr(ops, op)(*ours).backward(dy)
    torch.nn.functional.linear(*theirs).backward(dy)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, other.grad)


@pytest.mark.parametrize("op", OPS)
def test_opcheck(op):
    x, weight, bias = tensors(2, grad=True, gap=2)
    opcheck(getattr(ops, op).default, (x, weight))
    opcheck(getattr(ops, op).default, (x.view(1, 2, IN), weight, bias))


X, WEIGHT, BIAS = tensors(2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X, WEIGHT[0]), "must be .out_features, in_features., has 1 dimensions"),
        ((X[:, :0], WEIGHT[:, :0]), "at least one row and one column"),
        ((X.float(), WEIGHT.float()), "float16 or bfloat16; torch.nn.functional.linear"),
        ((X[:, 1:], WEIGHT), r"x must be \[..., 70\] for a \[30, 70\] weight"),
        ((torch.ones((), dtype=X.dtype), WEIGHT), "x must be"),
        ((X.half(), WEIGHT), r"x.to\(weight.dtype\)"),
        ((torch.ones(2, OUT).bfloat16(), WEIGHT.T), r"side by side: pass weight.contiguous\(\)"),
        ((X, WEIGHT, BIAS[1:]), r"bias must be \[30\]"),
        ((X, WEIGHT, BIAS.float()), "bias must have the dtype of weight"),
    ],
)
@pytest.mark.parametrize("op", OPS)
def test_bad_arguments_are_errors_before_any_kernel_runs(op, arguments, message):
    with pytest.raises(RuntimeError, match=f"{op}: .*{message}"):
        getattr(ops, op)(*arguments)


@pytest.mark.parametrize("op", OPS)
def test_too_many_tokens_are_sent_elsewhere(op):
    most = OPS[op]
    message = f"{op}: takes up to {most} tokens, not {most + 1}: torch.nn.functional.linear"
    with pytest.raises(RuntimeError, match=message):
        getattr(ops, op)(*tensors(most + 1))
