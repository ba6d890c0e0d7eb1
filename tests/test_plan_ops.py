# SPDX-License-Identifier: Apache-2.0
"""What planners in C++ answer about launches, without a GPU."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashsparse_plugin.gpu import GPUS, Gpu
from flashsparse_plugin.ops import plan
from flashsparse_plugin.ops.plan import Product

H200, _, A100 = GPUS
PATTERN = {"pattern": (8, 32, 128)}
PRODUCTS = {
    "dense.gemv": Product((4096, 4096), 4),
    "dense.flat_gemm": Product((4096, 4096), 16),
    "exact_units.few": Product((4096, 4096), 16, 24 << 20),
    "exact_units.many": Product((4096, 4096), 64, 24 << 20),
    "hybrid_units.few": Product((4096, 4096), 16, 12 << 20, values="int8"),
    "hybrid_units.many": Product((4096, 4096), 64, 12 << 20, values="int8"),
    "tiled_csl.sparse": Product((4096, 4096), 16, 20 << 20),
    "tiled_bitmap.few": Product((4096, 4096), 16, 20 << 20),
    "tiled_bitmap.codes": Product((4096, 4096), 16, 12 << 20, values="int8"),
    "tiled_bitmap.many": Product((4096, 4096), 512, 20 << 20),
    "sparse_24.few": Product((4096, 4096), 16, 10 << 20, values="int8"),
    "sparse_24.many": Product((4096, 4096), 512, 10 << 20, values="int8", quantizes_x=True),
    "sparse_24_experts.up": Product((768, 2048), 64, 270 << 20, "int8", experts=(128, 8)),
    "sparse_24_experts.down": Product((2048, 768), 64, 135 << 20, "int8", experts=(128, 8)),
    "sparse_24_experts.many_up": Product((768, 2048), 512, 270 << 20, "int8", experts=(128, 8)),
    "sparse_24_experts.many_down": Product((2048, 768), 512, 135 << 20, "int8", experts=(128, 8)),
    "nm_gather.few": Product((4096, 4096), 16, 9 << 20, **PATTERN),
    "nm_gather.many": Product((4096, 4096), 512, 9 << 20, **PATTERN),
    "nm_gather.packed": Product((4096, 4096), 512, 9 << 20, **PATTERN),
    "nm_spmm.sparse": Product((4096, 4096), 512, 18 << 20, **PATTERN),
}


@pytest.mark.parametrize("kernel", PRODUCTS)
def test_the_plan_is_the_cheapest_candidate(kernel):
    product = PRODUCTS[kernel]
    chosen, found = (ask(kernel, product, H200) for ask in (plan.plan, plan.candidates))
    assert chosen.numbers in [each.numbers for each in found]
    assert chosen.seconds == pytest.approx(min(each.seconds for each in found))
    assert len({each.numbers for each in found}) > 1
    fields, shapes = plan.launch_fields(kernel), plan.compiled_shapes(kernel)
    assert fields[0] in ("shape", "kernel") and len(fields) == len(chosen.numbers)
    assert all(0 <= each.numbers[0] < len(shapes) for each in found)
    tokens = next(name for name in ("tokens", "warp_tokens", "tile_tokens") if name in shapes[0])
    assert all(shape[tokens] >= 1 for shape in shapes)


@pytest.mark.parametrize("kernel", PRODUCTS)
@settings(max_examples=20)
@given(
    shape=st.tuples(st.integers(1, 40_000), st.integers(1, 40_000)),
    tokens=st.sampled_from((1, 2, 4, 8, 9, 16, 33, 64, 200, 1000)),
    gpu=st.sampled_from(GPUS),
)
def test_the_plan_of_any_product_is_a_candidate(kernel, shape, tokens, gpu):
    """And where a kernel cannot be planned for a product or a GPU, there is no candidate either."""
    own = PRODUCTS[kernel]
    share = own.nbytes / math.prod(own.shape)
    product = replace(own, shape=shape, tokens=tokens, nbytes=round(share * math.prod(shape)))
    try:
        found = plan.candidates(kernel, product, gpu)
    except RuntimeError:
        found = []
    if not found:
        with pytest.raises(RuntimeError):
            plan.plan(kernel, product, gpu)
        return
    chosen = plan.plan(kernel, product, gpu)
    assert chosen.numbers in [each.numbers for each in found] and 0 < chosen.seconds < math.inf


@pytest.mark.parametrize("kernel", PRODUCTS)
def test_a_slower_gpu_takes_longer(kernel):
    slower = replace(H200, memory=H200.memory / 4, l2=H200.l2 / 4, clock=H200.clock / 4)
    own, other = (plan.plan(kernel, PRODUCTS[kernel], gpu).seconds for gpu in (H200, slower))
    assert 1.3 * own < other < 5 * own


@pytest.mark.parametrize("kernel", PRODUCTS)
def test_each_gpu_has_a_plan_of_its_own(kernel):
    """Plans are cached, candidates are not; GPUs may differ in the speed of their memory alone."""
    product = PRODUCTS[kernel]
    slower = replace(H200, memory=H200.memory / 8, bus=H200.bus / 8, l2=H200.l2 / 8)
    for gpu in (slower, *GPUS, slower):
        try:
            found = plan.candidates(kernel, product, gpu)
        except RuntimeError:  # the GPU has none of its kernels
            continue
        if found:
            own = plan.plan(kernel, product, gpu)
            alike = [each.seconds for each in found if each.numbers[0] == own.numbers[0]]
            assert own.seconds == min(alike)


@pytest.mark.parametrize("kernel", PRODUCTS)
@settings(max_examples=20)
@given(
    shape=st.tuples(st.integers(1, 40_000), st.integers(1, 40_000)),
    tokens=st.sampled_from((1, 2, 8, 16, 33, 64, 200, 1000)),
    gpu=st.sampled_from(GPUS),
)
def test_ops_plan_the_launches_that_are_told_of(kernel, shape, tokens, gpu):
    """On a device an op knows its multiprocessors, shared memory and bus, but no rates: no launch
    may depend on one."""
    own = PRODUCTS[kernel]
    share = own.nbytes / math.prod(own.shape)
    product = replace(own, shape=shape, tokens=tokens, nbytes=round(share * math.prod(shape)))
    rates = {"memory": 1 / 7, "l2": 1 / 3, "clock": 1 / 2, "arithmetic": 1 / 5}
    other = replace(gpu, **{name: getattr(gpu, name) * share for name, share in rates.items()})
    try:
        told = plan.plan(kernel, product, gpu)
    except RuntimeError:
        return
    assert plan.plan(kernel, product, other).numbers == told.numbers


def test_several_launches_take_as_long_as_each():
    """Of int8 with 32 tokens at most: three times the bytes."""
    one, three = (Product((28672, 8192), tokens, 130 << 20, "int8") for tokens in (32, 96))
    own, all_ = (plan.plan("sparse_24.few", each, H200) for each in (one, three))
    assert own.numbers == all_.numbers and all_.seconds == pytest.approx(3 * own.seconds)


def test_experts_take_as_long_as_those_that_are_active():
    """Of Qwen3-30B-A3B's: 8 of 128 with one token, nearly all with 64; blocks of slots grow."""
    product, times, tokens = PRODUCTS["sparse_24_experts.up"], [], []
    for count in (1, 8, 64, 256):
        found = plan.plan("sparse_24_experts.up", replace(product, tokens=count), H200)
        times.append(found.seconds)
        shapes = plan.compiled_shapes("sparse_24_experts.up")
        tokens.append(shapes[found.numbers[0]]["tokens"])
    assert times == sorted(times) and 4 * times[0] < times[2] < 40 * times[0]
    assert tokens == [8, 8, 8, 16]
    with pytest.raises(RuntimeError, match="of which a token has one or more"):
        plan.plan("sparse_24_experts.up", replace(product, experts=(4, 8)), H200)


def test_experts_of_many_tokens_are_multiplied_by_wgmma():
    """Of Qwen3-30B-A3B's with some 16 slots each, where a GPU has it."""
    product = PRODUCTS["sparse_24_experts.up"]
    for tokens, kernel in ((1, "few"), (64, "few"), (512, "many"), (4096, "many")):
        own = replace(product, tokens=tokens)
        assert plan.choose_kernel("sparse_24_experts", own, H200) == kernel, tokens
        assert plan.choose_kernel("sparse_24_experts", own, A100) == "few", tokens


def test_kernels_are_where_gpus_have_them():
    product = PRODUCTS["sparse_24.many"]
    assert plan.choose_kernel("sparse_24", product, H200) == "many"
    assert plan.choose_kernel("sparse_24", product, A100) == "few"
    with pytest.raises(RuntimeError, match="no launch is legal"):
        plan.plan("sparse_24.many", product, A100)
    with pytest.raises(RuntimeError, match="compute capability 9.0"):
        plan.plan("nm_gather.packed", PRODUCTS["nm_gather.packed"], A100)


@pytest.mark.parametrize(
    ("kernel", "change", "message"),
    [
        ("toy.sparse", {}, "there is no planner for a kernel toy.sparse"),
        ("sparse_24.few", {"tokens": 0}, "a row, a column and a token"),
        ("sparse_24.few", {"shape": (1 << 31, 1)}, "fewer than 2"),
        ("sparse_24.few", {"values": "int3"}, "native or fp8_e4m3 or int8 or int4, not int3"),
        ("nm_gather.few", {"pattern": (3, 5, 4)}, "nm_gather cannot hold 3:5"),
        ("dense.gemv", {"tokens": 9}, "takes up to 8 tokens, not 9"),
    ],
)
def test_wrong_questions_are_refused(kernel, change, message):
    product = replace(PRODUCTS.get(kernel, Product((64, 64), 1)), **change)
    for ask in (plan.plan, plan.candidates):
        with pytest.raises(RuntimeError, match=message):
            ask(kernel, product, H200)


def test_a_gpu_is_a_row_of_the_table():
    assert [gpu.name for gpu in GPUS] == ["H200", "H100", "A100"]
    assert (H200.capability, H200.multiprocessors, A100.capability) == ((9, 0), 132, (8, 0))
    assert all(gpu.memory < gpu.bus < gpu.l2 for gpu in GPUS)
    with pytest.raises(RuntimeError, match="no rates are known of a GPU B300"):
        Gpu.known("B300")
    with pytest.raises(RuntimeError, match="its rates are above 0"):
        plan.plan("dense.gemv", PRODUCTS["dense.gemv"], replace(H200, clock=0.0))
