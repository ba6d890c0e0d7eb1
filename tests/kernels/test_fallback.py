# SPDX-License-Identifier: Apache-2.0
"""The CUDA fallback of tiled_csl_linear: a composition that runs on CPU tensors just as well."""

from __future__ import annotations

import logging

import pytest
import torch

from flashsparse_plugin.ops import fallback, ops, reference

DTYPES = (torch.float16, torch.bfloat16)


def problem(x_dtype, weight_dtype, tokens=(3, 2), bias=True):
    torch.manual_seed(0)
    weight = torch.randn(130, 70, dtype=torch.float64).to(weight_dtype)
    weight[torch.rand(weight.shape) < 0.6] = 0
    x = torch.randn(*tokens, 70, dtype=torch.float64).to(x_dtype)
    b = torch.randn(130, dtype=torch.float64).to(weight_dtype) if bias else None
    return weight, x, b, (x, *ops.tiled_csl_pack(weight), 130, weight_dtype, b)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("weight_dtype", DTYPES)
@pytest.mark.parametrize("x_dtype", [torch.float32, *DTYPES])
def test_against_float64(x_dtype, weight_dtype, bias):
    weight, x, b, arguments = problem(x_dtype, weight_dtype, bias=bias)
    y = fallback.linear_by_unpacking(*arguments)
    exact = reference.linear(x, weight, b)
    assert y.dtype == x_dtype and y.shape == (3, 2, 130)
    # Sums in float32 over 70 products of about 1, then one rounding to the dtype of x.
    bound = 70 * 2**-24 * (x.double().abs() @ weight.double().abs().T + 4)
    bound += exact.abs() * torch.finfo(x_dtype).eps / 2
    assert ((y.double() - exact).abs() <= 1.01 * bound).all()


def test_no_tokens():
    *_, arguments = problem(torch.float32, torch.bfloat16, tokens=(0,))
    assert fallback.linear_by_unpacking(*arguments).shape == (0, 130)


def test_is_said_once(caplog, monkeypatch):
    monkeypatch.delenv("FLASHSPARSE_STRICT", raising=False)
    fallback._announce.cache_clear()
    *_, arguments = problem(torch.bfloat16, torch.bfloat16)
    with caplog.at_level(logging.INFO, logger=fallback.__name__):
        results = [fallback._tiled_csl_linear(*arguments) for _ in range(3)]
    assert torch.equal(results[0], fallback.linear_by_unpacking(*arguments))
    assert [record.message.split()[0] for record in caplog.records] == [
        "flashsparse::tiled_csl_linear"
    ]


def test_strict_makes_it_an_error(monkeypatch):
    monkeypatch.setenv("FLASHSPARSE_STRICT", "1")
    *_, arguments = problem(torch.bfloat16, torch.bfloat16)
    with pytest.raises(RuntimeError, match="tiled_csl_linear has no CUDA kernel yet"):
        fallback._tiled_csl_linear(*arguments)
