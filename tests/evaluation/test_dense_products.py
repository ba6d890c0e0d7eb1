# SPDX-License-Identifier: Apache-2.0
"""Dense products of other libraries: what they multiply, and that a wrong one is noticed."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from flashsparse_plugin.dataflow.tuner import random_weight
from flashsparse_plugin.evaluation import dense_products
from flashsparse_plugin.evaluation.dense_products import TOLERANCE, relative_error

WEIGHT = random_weight((64, 256), 1.0, torch.bfloat16)
X = torch.randn(5, 256, generator=torch.Generator().manual_seed(1)).bfloat16()


def of_version(old):
    """vLLM's ops of a version, on weights as GPTQ stores them and with scales by group."""

    def unpacked(words, scales):
        codes = torch.stack([words >> 4 * place & 15 for place in range(8)], 1).flatten(0, 1)
        return (codes.bfloat16() - 8) * scales.repeat_interleave(dense_products.GROUP, 0)

    def gemm(a, b_q_weight, b_scales, b_q_type, size_m, size_n, size_k):
        assert (size_m, size_n, size_k, b_q_type) == (len(a), *WEIGHT.shape, "uint4b8")
        return a @ unpacked(b_q_weight, b_scales)

    def old_gemm(a, c, b_q_weight, b_bias, b_scales, a_scales, global_scale, b_zeros, g_idx, perm,
                 workspace, b_q_type, size_m, size_n, size_k, is_k_full=True,
                 use_fp32_reduce=False):  # fmt: skip
        assert use_fp32_reduce and workspace is not None and perm is None
        return gemm(a, b_q_weight, b_scales, b_q_type, size_m, size_n, size_k)

    def new_gemm(a, c, b_q_weight, b_bias, b_scales, a_scales, global_scale, b_zeros,
                 workspace, b_q_type, size_m, size_n, size_k,
                 use_fp32_reduce=False):  # fmt: skip
        return gemm(a, b_q_weight, b_scales, b_q_type, size_m, size_n, size_k)

    def old_repack(b_q_weight, perm, size_k, size_n, num_bits, is_a_8bit=False):
        return new_repack(b_q_weight, size_k, size_n, num_bits)

    def new_repack(b_q_weight, size_k, size_n, num_bits):
        assert b_q_weight.shape == (size_k // 8, size_n) and num_bits == 4
        return b_q_weight

    return (old_gemm, old_repack) if old else (new_gemm, new_repack)


@pytest.fixture(params=[True, False], ids=["0.26", "0.32"])
def vllm(request, monkeypatch):
    gemm, repack = of_version(request.param)
    utils = SimpleNamespace(
        marlin_permute_scales=lambda s, size_k, size_n, group_size: s,
        marlin_make_workspace_new=lambda device: torch.zeros(1),
    )
    folder = "vllm.model_executor.layers.quantization.utils"
    found = {
        "_custom_ops": {"marlin_gemm": gemm, "gptq_marlin_repack": repack},
        "scalar_type": {"scalar_types": SimpleNamespace(uint4b8="uint4b8")},
        folder.removeprefix("vllm."): {"marlin_utils": utils},
    }
    names = [folder.rsplit(".", steps)[0] for steps in range(1, 5)]
    for name in names:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for name, members in found.items():
        module = ModuleType(f"vllm.{name}")
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        if "." not in name:
            setattr(sys.modules["vllm"], name, module)


@pytest.mark.parametrize("make", [dense_products.fp8, dense_products.int4])
def test_a_product_is_that_of_its_rows(make):
    product = make(WEIGHT)
    assert product.error(X) < TOLERANCE
    rows = product.rows(slice(None))
    assert (rows - WEIGHT.double()).norm() / WEIGHT.double().norm() < 0.15
    assert 8 * product.nbytes / WEIGHT.numel() == pytest.approx(product.bits)
    copy = product.copy()
    assert torch.equal(copy[0].view(torch.uint8), product.tensors[0].view(torch.uint8))
    assert copy[0].data_ptr() != product.tensors[0].data_ptr()


def test_marlin_is_called_as_each_version_wants_it(vllm):
    product = dense_products.marlin(WEIGHT)
    assert product.error(X) < TOLERANCE and 8 * product.nbytes == product.bits * WEIGHT.numel()


def test_a_wrong_product_is_far_off():
    product = dense_products.int4(WEIGHT)
    product.tensors = (product.tensors[0].roll(1, 0), product.tensors[1])
    assert product.error(X) > 10 * TOLERANCE
    assert relative_error(X @ WEIGHT.T * torch.nan, X.double(), lambda part: WEIGHT[part].double())


def test_what_is_missing_is_named(monkeypatch):
    found = dict(dense_products.dense_products(WEIGHT[:, :100].contiguous()))
    assert found == {"int4": "100 columns are no multiple of a group of 128"}
    [product] = dense_products.dense_products(WEIGHT)  # on a CPU
    assert product.name == dense_products.INT4
