# SPDX-License-Identifier: Apache-2.0
"""cusparselt_24: two copies of a 2:4 weight, one of them the library's, which a stand-in plays."""

from __future__ import annotations

import copy
import math
import re
from types import SimpleNamespace

import pytest
import torch
from kernel_weights import bits_without_negative_zero, every_bit_pattern
from pydantic import ValidationError
from stub_cusparselt import install
from torch.library import opcheck
from weights import sparse_weight

import flashsparse_plugin as fs
from flashsparse_plugin.dataflow import DeviceKey, Table, Weight, linear, model, plan_of
from flashsparse_plugin.dataflow.table import Entry, read_table, write_table
from flashsparse_plugin.dataflow.tuner import measure, packed_weight
from flashsparse_plugin.formats import find_form
from flashsparse_plugin.formats.cusparselt_24 import CUSPARSELT, CuSparselt24, library
from flashsparse_plugin.formats.cusparselt_24.ops import OWN_TOKENS
from flashsparse_plugin.formats.nm_pattern import PatternOptions
from flashsparse_plugin.formats.nm_vector import NMVector
from flashsparse_plugin.gpu import GPUS
from flashsparse_plugin.ops import ops
from flashsparse_plugin.packed import FormatError
from flashsparse_plugin.plan import FEW, MANY, Plan

FORM, GPU = CuSparselt24(), torch.device("cuda")
PATTERNS = [{"n": 2, "m": 4}, {"n": 1, "m": 2, "vector_length": 4}, {"n": 2, "m": 8}]
PROMPT = OWN_TOKENS + 5  # tokens


@pytest.fixture
def cusparselt(monkeypatch):
    return install(monkeypatch)


def weight_of(options, shape=(64, 128), dtype=torch.bfloat16, seed=0):
    """Any bits that the pattern can hold: NaN, infinities, subnormal numbers, zeros among them."""
    weight = every_bit_pattern(shape, dtype, seed)
    kept = PatternOptions(**options).keep_largest(sparse_weight(*shape, 0.7, dtype, seed)) != 0
    return bits_without_negative_zero(weight).where(kept, 0).view(dtype)


def finite_weight(shape=(64, 128), dtype=torch.bfloat16):
    return PatternOptions(n=2, m=4).keep_largest(sparse_weight(*shape, 0.9, dtype)).contiguous()


def held(weight, options=PATTERNS[0]):
    stored = fs.pack(weight, "nm_vector", options, prompts=CUSPARSELT)
    return stored.transcode(stored.format.runtime(stored.scheme, GPU))


@pytest.mark.usefixtures("cusparselt")
@pytest.mark.parametrize("options", PATTERNS, ids=str)
@pytest.mark.parametrize("dtype", FORM.dtypes, ids=str)
def test_both_copies_come_from_the_stored_weight_and_lead_back(options, dtype):
    weight = weight_of(options, dtype=dtype)
    stored = fs.pack(weight, "nm_vector", options, prompts=CUSPARSELT)
    packed = stored.transcode(stored.format.runtime(stored.scheme, GPU)).validate()
    assert packed.format is FORM and list(packed.tensors) == list(FORM.tensor_names)
    assert torch.equal(packed.unpack().view(torch.int16), weight.view(torch.int16))
    assert packed.density == stored.density
    back = packed.transcode(stored.scheme)
    assert back.scheme == stored.scheme
    assert all(torch.equal(back.tensors[name], each) for name, each in stored.tensors.items())
    part = FORM.cut(packed, range(0, 64), range(64, 128))  # as tensor parallelism does
    assert torch.equal(part.unpack().view(torch.int16), weight[:, 64:].view(torch.int16))
    assert part.tensors["compressed"].shape == (64, 36)


def test_few_tokens_are_ours_and_prompts_the_library_s(cusparselt):
    weight = finite_weight()
    packed, x = held(weight), torch.randn(3, PROMPT, 128).bfloat16()
    bias = torch.randn(64)
    for plan, tokens, asked in (
        (None, OWN_TOKENS, []),
        (None, PROMPT, [264]),
        (Plan.only(CUSPARSELT), 1, [8]),
        (Plan.of([(2, FEW), (7, MANY), (None, CUSPARSELT)]), 7, []),
        (Plan.of([(2, FEW), (7, MANY), (None, CUSPARSELT)]), 9, [16]),
        (Plan.only(MANY), PROMPT, []),
    ):
        cusparselt.products.clear()
        y = packed.linear(x[1, :tokens], bias.bfloat16(), plan)
        exact = torch.nn.functional.linear(x[1, :tokens].float(), weight.float(), bias)
        torch.testing.assert_close(y.float(), exact, rtol=2**-7, atol=2**-7)
        assert [tokens for tokens, _ in cusparselt.products] == asked
    assert packed.linear(x).shape == (3, PROMPT, 64)  # tokens of a batch count together
    assert cusparselt.products[-1][0] == 784
    cusparselt.products.clear()
    packed.linear(x.float())  # which the library's copy cannot be multiplied by
    assert not cusparselt.products


def test_outside_of_cuda_graphs_small_products_are_left_to_us(cusparselt, monkeypatch):
    """torch's call takes the host longer than the GPU has to multiply."""
    capturing = [False]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    assert not library.pays(1024, 28672, 7168, GPU) and library.pays(2048, 28672, 7168, GPU)
    assert not library.pays(8192, 4096, 4096, GPU)
    capturing[0] = True
    assert library.pays(1, 16, 16, GPU)
    packed, x = held(finite_weight()), torch.randn(PROMPT, 128).bfloat16()
    by_library = packed.linear(x)
    cusparselt.products.clear()
    monkeypatch.setattr(library, "pays", lambda *sizes: False)
    torch.testing.assert_close(packed.linear(x), by_library)
    assert not cusparselt.products


def test_an_algorithm_is_searched_for_once_for_each_shape_and_number_of_tokens(cusparselt):
    packed = held(finite_weight())
    assert not cusparselt.searched
    for each in (packed, held(finite_weight())):
        FORM.search(each, {})
        assert cusparselt.searched == [(64, 128, tokens) for tokens in library.BUCKETS]
    for tokens in (1, 256, 257, 1024, 5000):
        packed.linear(torch.zeros(tokens, 128).bfloat16(), plan=Plan.only(CUSPARSELT))
    assert len(cusparselt.searched) == len(library.BUCKETS)
    found = [algorithm for _, algorithm in cusparselt.products]
    assert found == [9, 9, 10, 11, 13]  # the stand-in's numbers: of 256, 512, ... tokens
    FORM.search(held(finite_weight((128, 128))), {})
    assert len(cusparselt.searched) == 2 * len(library.BUCKETS)


KEPT = {"library": 801, "algorithms": {str(each): [3, 2, 3] for each in library.BUCKETS}}


def test_tune_keeps_what_the_search_found_and_loading_takes_it(cusparselt, tmp_path):
    weight = packed_weight((64, 128), FORM.examples()[0], 1.0)
    entry = measure(weight, torch.bfloat16, torch.device("cpu"), lambda *of: 1.0, 0, (8, 300))
    assert list(entry.searched["algorithms"].values()) == [[n, 2, 3] for n in range(9, 14)]
    gpu = DeviceKey(name="NVIDIA H200", capability=(9, 0), multiprocessors=132)
    write_table(Table(device=gpu, dtype="bfloat16", entries=[entry]), tmp_path / "table.json")
    (read,) = read_table(tmp_path / "table.json").entries
    assert read == entry
    library._algorithms.clear()  # as another process begins
    cusparselt.searched.clear()
    assert FORM.search(held(finite_weight()), read.searched) == entry.searched
    assert not cusparselt.searched


def test_tune_searches_before_it_captures(cusparselt, monkeypatch):
    """The call that warms up is too small for the library, which the graph then asks for."""
    monkeypatch.setattr(library, "pays", lambda *sizes: cusparselt.capturing)

    def timer(call, copies):  # as dataflow.tuner.Captured
        call()
        cusparselt.capturing = True
        call()
        cusparselt.capturing = False
        return 1.0

    weight = packed_weight((64, 128), FORM.examples()[0], 1.0)
    measure(weight, torch.bfloat16, torch.device("cpu"), timer, 0, (8, 300))
    assert cusparselt.products == [(8, 9), (304, 10)]


def test_a_layer_takes_what_the_table_of_its_gpu_keeps(cusparselt, monkeypatch):
    packed = held(finite_weight())
    monkeypatch.setattr(type(packed), "device", GPU)
    monkeypatch.setitem(linear.STATUS, "_C_cuda", SimpleNamespace(loaded=True))
    monkeypatch.setattr(linear, "searched", lambda weight, dtype, device: KEPT)
    monkeypatch.setattr(linear, "resolve", lambda *about: Plan.only(CUSPARSELT))
    plan = plan_of(packed)
    cusparselt.products.clear()
    packed.linear(torch.zeros(300, 128).bfloat16(), plan=plan)
    assert cusparselt.products == [(304, 3)] and not cusparselt.searched


@pytest.mark.parametrize("why", ["another version", "refused"])
def test_what_does_not_hold_any_more_is_searched_for_and_told_once(
    cusparselt, monkeypatch, caplog, why
):
    kept = dict(KEPT)
    if why == "refused":
        multiply = cusparselt.multiply

        def refuse(*of):
            if of[6] == 3:
                raise RuntimeError("CUDA_SPARSE: not supported\nstack")
            return multiply(*of)

        monkeypatch.setattr(torch, "_cslt_sparse_mm", refuse)
        kept["algorithms"] = {"512": [3, 2, 3], "256": [4, 2, 3], "7": [1, 2, 3]}
        told, searched = "refuses the table's algorithm for 512 tokens .* not supported", 4
    else:
        kept["library"] = 700
        told, searched = "are those of cuSPARSELt 700, and this is 801", len(library.BUCKETS)
    for _ in range(2):
        found = FORM.search(held(finite_weight()), kept)
    assert len(cusparselt.searched) == searched and found["library"] == 801
    assert found["algorithms"]["512"] == [10, 2, 3]
    (message,) = [record.getMessage() for record in caplog.records]
    assert re.search(told, message)


@pytest.mark.parametrize(
    ("searched", "told"),
    [
        ({**KEPT, "algorithms": {"256": [4096, 1, 0]}}, "algorithms.256.0: .* less than 1024"),
        ({**KEPT, "algorithms": {"256": [1, -2, 0]}}, "algorithms.256.1: .* or equal to -1"),
        ({**KEPT, "algorithms": {"256": [1, 1]}}, "algorithms.256.2: Field required"),
        ({**KEPT, "algorithms": {"x": [1, 1, 0]}}, "algorithms.x"),
        ({**KEPT, "algorithms": {"256": ["1", 1, 0]}}, "valid integer"),
        ({**KEPT, "library": "801"}, "library: .* valid integer"),
        ({**KEPT, "run": "this"}, "run: Extra inputs are not permitted"),
        ({"algorithms": {}}, "library: Field required"),
    ],
    ids=str,
)
def test_a_table_from_outside_is_not_believed(searched, told):
    about = {"shape": (64, 128), "density": 0.5, "options": PATTERNS[0]}
    ranges = [{"max_tokens": None, "implementation": "cusparselt"}]
    with pytest.raises(ValidationError, match=told):
        Entry(**about, format=FORM.name, ranges=ranges, searched=searched)
    few = [{"max_tokens": None, "implementation": "few"}]
    with pytest.raises(ValidationError, match="sparse_24 searches for nothing"):
        Entry(**about, format="sparse_24", ranges=few, searched=searched)
    dense = [{"max_tokens": None, "implementation": "library"}]
    with pytest.raises(ValidationError, match="nothing is searched for"):
        Entry(shape=(64, 128), ranges=dense, searched=searched)


def test_the_op_keeps_its_promises(cusparselt):
    packed = held(finite_weight())
    x, bias = torch.randn(2, 5, 128, requires_grad=True), torch.randn(64, requires_grad=True)
    x16, bias16 = x.detach().bfloat16().requires_grad_(), bias.detach().bfloat16().requires_grad_()
    rest = *packed.tensors.values(), 64, torch.bfloat16
    opcheck(ops.cusparselt_24_linear.default, (x16, *rest, bias16, 4, 2))
    assert cusparselt.products
    ops.cusparselt_24_linear(x16, *rest, bias16, 0).sum().backward()
    ours = x16.grad, bias16.grad
    x16.grad = bias16.grad = None
    torch.nn.functional.linear(x16, packed.unpack(), bias16).sum().backward()
    torch.testing.assert_close(ours, (x16.grad, bias16.grad))
    units, compressed = packed.tensors.values()
    for bad, told in (
        ((x, units, compressed, 96, torch.bfloat16), r"units of a \[96, 128\] weight are"),
        ((x, units, compressed[:, 1:], 64, torch.bfloat16), r"is \[64, 72\], not \[64, 71\]"),
        ((x, units, compressed, 64, torch.float16), "float16 weight is .* torch.bfloat16"),
        ((x, units, compressed, 64, torch.bfloat16, bias[1:]), r"bias must be \[64\]"),
        ((x, units, compressed, 64, torch.bfloat16, None, -1), "sparse_tokens must be 0 .* not -1"),
        ((x, units, compressed, 64, torch.bfloat16, None, 9, -1), "few_tokens must be 0 .* not -1"),
    ):
        with pytest.raises(RuntimeError, match=told):
            ops.cusparselt_24_linear(*bad)


@pytest.mark.usefixtures("cusparselt")
def test_a_compiled_layer_takes_any_number_of_tokens_by_one_graph(cusparselt):
    packed = held(finite_weight())
    compiled = torch.compile(lambda x: packed.linear(x), dynamic=True, backend="eager")
    torch._dynamo.mark_dynamic(x := torch.randn(PROMPT, 128).bfloat16(), 0)
    torch.testing.assert_close(compiled(x), packed.linear(x))
    before = len(cusparselt.products)
    with torch._dynamo.config.patch(error_on_recompile=True):
        torch.testing.assert_close(compiled(x[:9]), packed.linear(x[:9]))
    assert len(cusparselt.products) == before


# ---- what is refused ----------------------------------------------------------------------------


def test_without_the_library_or_a_gpu_it_is_refused(monkeypatch):
    stored = fs.pack(finite_weight(), "nm_vector", n=2, m=4, prompts=CUSPARSELT)
    with pytest.raises(FormatError, match="for NVIDIA GPUs, and the layer is on a cpu device"):
        stored.prepare("cpu")
    with pytest.raises(FormatError, match="runs on NVIDIA GPUs, and the weight is on a cpu device"):
        held(finite_weight())
    monkeypatch.setattr(torch.backends.cusparselt, "is_available", lambda: False)
    with pytest.raises(FormatError, match=r"built without cuSPARSELt. Remedy: .* leave prompts="):
        library.require(GPU)
    with pytest.raises(FormatError, match="is for bfloat16 weights, not float32 ones"):
        NMVector().runtime(
            NMVector().scheme(torch.float32, {**PATTERNS[0], "prompts": CUSPARSELT}), GPU
        )


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"n": 8, "m": 32, "vector_length": 32}, "this is 8:32, L=32"),
        ({"n": 2, "m": 4, "values": "int8"}, "of 16-bit values, and this is 2:4, int8"),
        ({"n": 2, "m": 4, "prompts": "cublas"}, "'own' or 'cusparselt'"),
    ],
    ids=str,
)
def test_what_the_library_cannot_hold_is_refused_as_an_option(options, told):
    with pytest.raises(FormatError, match=told):
        NMVector().scheme(torch.bfloat16, {"prompts": CUSPARSELT, **options})


@pytest.mark.parametrize("shape", [(96, 64), (64, 144)], ids=str)
def test_a_shape_that_the_library_pads_is_refused(shape):
    with pytest.raises(FormatError, match=r"multiples of 64, not \[(96|64), (64|144)\]. Remedy"):
        held(finite_weight(shape))


def test_a_refusal_of_the_library_is_told_with_its_words(cusparselt, monkeypatch):
    def refuse(*arguments):
        raise RuntimeError("CUDA_SPARSE: architecture mismatch\nstack")

    monkeypatch.setattr(cusparselt, "mm_search", refuse)
    with pytest.raises(
        FormatError, match=r"refuses a bfloat16 weight of shape \[64, 128\]: CUDA_SPARSE: archi.*Re"
    ):
        FORM.search(held(finite_weight()), {})


# ---- what it costs ------------------------------------------------------------------------------


def test_memory_and_time_count_both_copies():
    scheme = FORM.examples()[0]
    weight = packed_weight((28672, 7168), scheme, 1.0)
    assert 8 * weight.nbytes / (28672 * 7168) == 18 and weight.density == 0.5
    own = packed_weight(
        (28672, 7168), find_form("sparse_24").scheme(torch.bfloat16, PATTERNS[0]), 1
    )
    gpu = next(gpu for gpu in GPUS if gpu.name == "H200")
    for tokens in (8, 64):
        assert model.seconds(FEW, weight, tokens, gpu) == model.seconds(FEW, own, tokens, gpu)
        assert model.seconds(CUSPARSELT, weight, tokens, gpu) == math.inf
    # Measured on an H200 (benchmarks/results/nvidia-h200/cusparselt.csv), in microseconds.
    for tokens, measured in ((256, 106.8), (512, 202.5), (1024, 368.7), (2048, 782.0)):
        estimate = model.seconds(CUSPARSELT, weight, tokens, gpu) * 1e6
        assert estimate == pytest.approx(measured, rel=0.1)


def test_a_table_knows_it_by_its_own_implementations():
    ranges = [
        {"max_tokens": 16, "implementation": "few"},
        {"max_tokens": None, "implementation": CUSPARSELT},
    ]
    entry = Entry(
        shape=(64, 128), format=FORM.name, options=PATTERNS[0], density=0.5, ranges=ranges
    )
    assert entry.plan().sparse_tokens == entry.plan().few_tokens == 16
    old = Entry(
        **{**entry.model_dump(), "ranges": [{"max_tokens": None, "implementation": "sparse"}]}
    )
    assert list(old.implementations) == ["sparse", CUSPARSELT]
    assert Weight((48, 80), FORM.examples()[0], 0.5, 1).format == "cusparselt_24"


@pytest.mark.usefixtures("cusparselt")
def test_a_choice_of_the_machine_is_in_no_plain_values():
    scheme = NMVector().scheme(torch.bfloat16, {**PATTERNS[0], "prompts": CUSPARSELT})
    assert scheme.values == {"n": 2, "m": 4, "vector_length": 1}
    assert scheme.title == "nm_vector(2:4, cuSPARSELt)"
    packed = held(finite_weight())
    assert copy.deepcopy(packed.scheme) == packed.scheme == FORM.examples()[0]
