# SPDX-License-Identifier: Apache-2.0
"""Shows that a wheel works in a CUDA build of torch, GPU or not.

`make test-cuda-load` runs it with the Python of an environment that has such a torch (several GB,
so no part of the test suite), from another folder than the repository's.
"""

from __future__ import annotations

import sys

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import flashsparse_plugin.formats  # noqa: F401  (which complete their ops)
from flashsparse_plugin.gpu import find_gpu
from flashsparse_plugin.ops import STATUS, ops
from flashsparse_plugin.ops.plan import Product, candidates, override


def registered(op: str, key: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(f"flashsparse::{op}", key)


def check_objects() -> str:
    assert torch.version.cuda is not None, "this torch is a CPU build: nothing to check"
    for name, status in STATUS.items():
        assert status.loaded, f"{name}: {status.reason}"
    return " and ".join(STATUS) + " are loaded"


def check_registrations() -> str:
    for op in ("pack", "unpack", "validate", "linear"):
        op = f"tiled_csl_{op}"
        assert registered(op, "CPU") and registered(op, "CUDA"), op
    for op in ("flat_gemm", "gemv", "unified_max_decode", "unified_max_paged_decode"):
        assert registered(op, "CPU") and registered(op, "CUDA"), op
    ops.override_launch("dense.gemv", [0])
    assert ops.end_override() == 0
    assert not registered("interleaved_bitmap_linear", "CUDA")
    before = [ops.begin_early(each) for each in (True, True, False, False)]
    assert before == [False, True, True, False]
    return "CUDA has its ops and no others"


def check_cpu() -> str:
    weight, words, offsets = packed()
    assert torch.equal(ops.tiled_csl_unpack(words, offsets, *weight.shape, weight.dtype), weight)
    return "CPU ops run beside it"


def check_fakes() -> str:
    with FakeTensorMode():
        words = torch.empty(1000, dtype=torch.int32, device="cuda")
        offsets = torch.empty(7, dtype=torch.int32, device="cuda")
        weight = ops.tiled_csl_unpack(words, offsets, 300, 128, torch.float16)
        assert weight.shape == (300, 128) and weight.dtype == torch.float16
        x = torch.empty(5, 128, dtype=torch.float16, device="cuda")
        for most in (None, 0, 4):
            y = ops.tiled_csl_linear(x, words, offsets, 300, torch.float16, None, most)
            assert y.shape == (5, 300) and y.device.type == "cuda"
        y = ops.dense_linear(x, weight, None, 2, 16)
        assert y.shape == (5, 300) and y.device.type == "cuda"
        query = torch.empty(2, 6, 64, dtype=torch.float16, device="cuda")
        cache = torch.empty(2, 3, 20, 64, dtype=torch.float16, device="cuda")
        out, recomputed = ops.unified_max_decode(query, cache, cache, scale=0.125)
        assert out.shape == query.shape and recomputed.shape == (2, 6)
        assert out.device.type == recomputed.device.type == "cuda"
    return "fake tensors on cuda pass through"


def check_binding() -> str:
    """The CUDA entries themselves run: they are the ones to refuse tensors of the CPU."""
    weight, words, offsets = packed()
    out_features, in_features = weight.shape
    x = torch.zeros(5, in_features, dtype=weight.dtype)
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
    calls = {
        ops.tiled_csl_pack: ((weight,), "must be on a CUDA device"),
        ops.tiled_csl_unpack: (
            (words, offsets, *weight.shape, weight.dtype),
            "weight_packed must be on a CUDA device here",
        ),
        ops.tiled_csl_validate: (
            (words, offsets, *weight.shape),
            "weight_packed must be on a CUDA device here",
        ),
        ops.tiled_csl_linear: (
            (x, words, offsets, out_features, weight.dtype, None),
            "weight_packed must be on a CUDA device here",
        ),
        ops.flat_gemm: ((x, weight, None), "must be on a CUDA device here"),
        ops.gemv: ((x, weight, None), "must be on a CUDA device here"),
    }
    query, cache, pages = torch.ones(2, 6, 64), torch.ones(2, 3, 20, 64), torch.ones(4, 16, 3, 64)
    table, lengths = torch.zeros(2, 2, dtype=torch.int32), torch.ones(2, dtype=torch.int32)
    attention = (ops.unified_max_decode, ops.unified_max_paged_decode)
    calls[ops.unified_max_decode] = ((query, cache, cache), "query must be on a CUDA device here")
    calls[ops.unified_max_paged_decode] = (
        (query, pages, pages, table, lengths),
        "query must be on a CUDA device here",
    )
    spmm = torch.zeros(1, 1, 4, 32, 32, dtype=torch.int32), *[torch.zeros(1, 1, 4)] * 3
    calls[ops.nm_spmm_linear] = (
        (x.float(), *spmm, out_features, 8, 32, 32, torch.float32),
        "spmm_values must be on a CUDA device here",
    )
    refused = (x, words, offsets, out_features, weight.dtype, None, -1), "sparse_tokens must be 0"
    for op, (arguments, message) in [*calls.items(), (ops.tiled_csl_linear, refused)]:
        options = {"scale": 0.125} if op in attention else {}
        try:
            op.default.redispatch(keys, *arguments, **options)
        except RuntimeError as error:
            assert message in str(error), error
        else:
            raise AssertionError(f"{op} took a CPU tensor")
    return "the CUDA ops check their arguments"


def check_gpu() -> str:
    if not torch.cuda.is_available():
        return "no GPU here: the kernel was not run"
    weight, words, offsets = packed()
    for made, expected in zip(ops.tiled_csl_pack(weight.cuda()), (words, offsets), strict=True):
        assert torch.equal(made.cpu(), expected)
    words, offsets = words.cuda(), offsets.cuda()
    assert int(ops.tiled_csl_validate(words, offsets, *weight.shape)) == weight.count_nonzero()
    unpacked = ops.tiled_csl_unpack(words, offsets, *weight.shape, weight.dtype)
    assert torch.equal(unpacked.cpu(), weight)
    x = torch.randn(5, weight.shape[1], device="cuda")
    y = ops.tiled_csl_linear(x, words, offsets, weight.shape[0], weight.dtype)
    torch.testing.assert_close(y.cpu(), x.cpu() @ weight.float().T)
    x = x.to(weight.dtype)
    expected = x.cpu().float() @ weight.float().T
    for most in (None, 0, 4, 5):
        y = ops.tiled_csl_linear(x, words, offsets, weight.shape[0], weight.dtype, None, most)
        torch.testing.assert_close(y.cpu().float(), expected, atol=2e-2, rtol=2e-2)
    for op in (ops.flat_gemm, ops.gemv):
        y = op(x, weight.cuda())
        torch.testing.assert_close(y.cpu(), op(x.cpu(), weight))
    gpu = find_gpu(torch.cuda.get_device_name(), torch.cuda.get_device_capability())
    product = Product((weight.shape[0], weight.shape[1]), len(x), 4 * len(words))
    for launch in candidates("tiled_csl.sparse", product, gpu):
        with override("tiled_csl.sparse", launch.numbers):
            y = ops.tiled_csl_linear(x, words, offsets, weight.shape[0], weight.dtype)
        torch.testing.assert_close(y.cpu().float(), expected, atol=2e-2, rtol=2e-2)
    try:
        with override("tiled_csl.sparse", [1000, 1]):
            ops.tiled_csl_linear(x, words, offsets, weight.shape[0], weight.dtype)
    except RuntimeError as error:
        assert "(shape blocks): there is no such shape" in str(error), error
    else:
        raise AssertionError("a launch of no shape was made")
    query, cache = torch.randn(2, 6, 64).half(), torch.randn(2, 3, 2000, 64).half()
    for phi in (None, torch.zeros(6), torch.full((6,), 80.0)):
        expected, _ = ops.unified_max_decode(query, cache, cache, scale=0.125, phi=phi)
        on_gpu = query.cuda(), cache.cuda(), cache.cuda()
        phi = None if phi is None else phi.cuda()
        out, recomputed = ops.unified_max_decode(*on_gpu, scale=0.125, phi=phi)
        torch.testing.assert_close(out.cpu(), expected, atol=2e-3, rtol=2e-3)
        assert bool(recomputed.bool().all()) == (phi is not None and phi[0] > 0)
    return f"all ops agree with the CPU on {torch.cuda.get_device_name()}"


def packed():
    torch.manual_seed(0)
    weight = torch.randn(300, 100, dtype=torch.bfloat16)
    weight[torch.rand(weight.shape) < 0.7] = 0
    return weight, *ops.tiled_csl_pack(weight)


def main() -> int:
    print(f"torch {torch.__version__} (CUDA {torch.version.cuda}), Python {sys.version.split()[0]}")
    checks = (check_objects, check_registrations, check_cpu, check_fakes, check_binding, check_gpu)
    for check in checks:
        print(f"  ok: {check()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
