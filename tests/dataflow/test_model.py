# SPDX-License-Identifier: Apache-2.0
"""The model of bytes and latencies, held against what was measured; where the inflections lie."""

import itertools
import math
import statistics

import _results
import pytest
import torch
from estimates import PATTERN
from hypothesis import given, settings
from hypothesis import strategies as st

import flashsparse_plugin as fs
from flashsparse_plugin.data_sheets import GPU_NAMES, SHEETS
from flashsparse_plugin.dataflow import BUCKETS, DENSE, Weight, model
from flashsparse_plugin.dataflow.expected import typical_weight
from flashsparse_plugin.dataflow.tuner import packed_weight
from flashsparse_plugin.evaluation.kinds import KINDS
from flashsparse_plugin.formats import find_form, get_format
from flashsparse_plugin.gpu import DATA_SHEETS, GPUS, find_gpu, gpu_named
from flashsparse_plugin.ops import plan
from flashsparse_plugin.plan import FEW, LIBRARY, MANY, SPARSE

RESULTS = _results.FOLDER / "nvidia-h200"
SCHEME = get_format("tiled_csl").scheme(torch.float16)
H200 = find_gpu("NVIDIA H200", (9, 0))
SWEPT = {
    "2:4": {},
    "2:4 fp8_e4m3": {"values": "fp8_e4m3"},
    "2:4 int8": {"values": "int8"},
    "2:4 int4 by 128": {"values": "int4", "group": 128},
}
LLAMA2_7B = ((12288, 4096), (4096, 4096), (11008, 4096), (4096, 11008))


def measured():
    """Each point of the H200's results: what it was of, the weight, tokens and microseconds."""
    for row in _results.read(RESULTS / "spmm.csv")["rows"]:
        shape = tuple(map(int, row["shape"].split("x")))
        nbytes = round(row["packed_gb_s"] * row["us"] * 1e3)
        scheme = get_format(row["format"]).scheme(torch.float16)
        packed = Weight(shape, scheme, 1 - row["sparsity"] / 100, nbytes)
        yield "dense", Weight(shape), "library", row["tokens"], row["dense_us"]
        yield from of_packed(row["format"], packed, row)
    layers = _results.read(RESULTS / "layers.csv")  # few tokens, after another kernel
    for row in layers["rows"]:
        others = row["kind"] not in KINDS or "W8A8" in row["kind"]  # dense ones among them
        if others or row["implementation"] == "library":
            continue
        shape, kind = tuple(map(int, row["shape"].split("x"))), KINDS[row["kind"]]
        held = typical_weight(shape, kind.scheme(torch.bfloat16), kind.density)
        codes = ", codes" if "values" in kind.options else ""
        for tokens in (1, 8, 16, 24, 32, 48, 64):
            chosen = held.scheme.format.choose(held.scheme, shape, held.nbytes, tokens, H200)
            if str(tokens) in row and chosen == row["implementation"]:
                name = f"{held.scheme.format.name}{codes}, few"
                yield name, held, chosen, tokens, row[str(tokens)]
    for row in itertools.chain.from_iterable(
        _results.read(RESULTS / f"{name}.csv")["rows"] for name in ("nm", "nm_prompts", "nm_values")
    ):
        if not (pattern := PATTERN.fullmatch(row["pattern"])):  # activations in codes, cuSPARSELt
            continue
        n, m, length, values, group = pattern.groups()
        options = {"n": int(n), "m": int(m), "vector_length": int(length or 1)}
        options |= {"values": values} if values else {}
        options |= {"group": int(group)} if group else {}
        shape = tuple(map(int, row["shape"].split("x")))
        stored = get_format("nm_vector").scheme(torch.bfloat16, options)
        held = stored.format.runtime(stored, torch.device("cuda"))
        assert held.format.name == row["form"]
        packed = Weight(shape, held, int(n) / int(m), row["bytes"])
        yield from of_packed(f"{row['form']}{', codes' if values else ''}", packed, row)
    for row in _results.read(RESULTS / "steps.csv")["rows"]:
        if row["launch"] != "own choice" or row["tokens"] <= 64 or row["format"] == "sparse_24":
            continue  # of 2:4 the next has newer times
        shape = tuple(map(int, row["shape"].split("x")))
        scheme = get_format(row["format"]).scheme(torch.float16)
        density = 1 - int(row["zeros"].rstrip("%")) / 100
        packed = Weight(shape, scheme, density, row["bytes"])
        yield from of_packed(f"{row['format']}, steps", packed, row)
    fastest = {}
    for row in _results.read(RESULTS / "sparse_24_many_sweep.csv")["rows"]:
        point = row["values"], row["shape"], row["tokens"]
        fastest[point] = min(row["us"], fastest.get(point, math.inf))
    for (kind, shape, tokens), microseconds in fastest.items():
        if kind in SWEPT:
            scheme = find_form("sparse_24").scheme(torch.bfloat16, {"n": 2, "m": 4, **SWEPT[kind]})
            packed = typical_weight(tuple(map(int, shape.split("x"))), scheme, 0.5)
            row = {"tokens": tokens, "us": microseconds}
            yield from of_packed("sparse_24, swept", packed, row)


def of_packed(name, weight, row):
    """A packed layer by its own kernels, and unpacked where the row says what that took."""
    tokens = row["tokens"]
    if tokens > 64:  # of fewer layers.csv has what a model gains
        yield f"{name}, many", weight, "sparse", tokens, row.get("sparse_us", row["us"])
    if "unpacked_us" in row:
        yield f"{name}, unpacked", weight, "library", tokens, row["unpacked_us"]


def test_it_agrees_with_what_was_measured():
    """Every format that a GPU holds and that was measured, by its own kernels and unpacked."""
    shares = {}
    for name, weight, implementation, tokens, microseconds in measured():
        estimated = model.seconds(implementation, weight, tokens, H200) * 1e6
        shares.setdefault(name, []).append(estimated / microseconds)
    forms = ("tiled_csl", "tiled_bitmap", "sparse_24", "nm_gather")
    kinds = [f"{form}, {kind}" for form in forms for kind in ("few", "many", "unpacked")]
    codes = [f"{form}, codes, few" for form in ("sparse_24", "nm_gather", "tiled_bitmap")]
    steps = [f"{form}, steps, many" for form in ("tiled_csl", "tiled_bitmap")]
    assert set(shares) == {"dense", *kinds, *codes, *steps, "sparse_24, swept, many"}
    for name, ratios in shares.items():
        assert len(ratios) >= 40
        assert 0.93 < statistics.geometric_mean(ratios) < 1.1, name
        spread = WIDE.get(name, (0.65, 1.36))
        assert spread[0] < min(ratios) and max(ratios) < spread[1], name


# Points beyond: the smallest layers; codes with 32 and 64 tokens in the largest layer;
# int4 with 65 tokens in 8192x8192.
WIDE = {
    "tiled_bitmap, many": (0.75, 1.27),
    "sparse_24, few": (0.7, 1.5),
    "nm_gather, few": (0.7, 1.5),
    "sparse_24, codes, few": (0.6, 1.6),
    "nm_gather, codes, few": (0.6, 1.6),
}


def test_each_kernel_is_where_it_runs():
    """The kernel for many tokens needs wgmma; whose rule is not a plan's takes one of the two."""
    for scheme in (
        get_format("tiled_bitmap").scheme(torch.float16),
        find_form("sparse_24").scheme(torch.float16, {"n": 2, "m": 4}),
    ):
        weight = packed_weight((28672, 4096), scheme, 0.3)
        assert list(weight.implementations) == [FEW, MANY, LIBRARY]
        for gpu in GPUS:
            for tokens in (1, 32, 65, 512):
                found = [model.seconds(n, weight, tokens, gpu) for n in (FEW, MANY, SPARSE)]
                assert math.isinf(found[1]) == (gpu.capability != (9, 0))
                assert found[2] >= 0.99 * min(found[:2])
        blackwell = find_gpu("NVIDIA RTX 9999", (12, 0))
        assert math.isinf(model.seconds(MANY, weight, 512, blackwell))


@pytest.mark.parametrize(
    ("form", "options", "shape", "few"),
    [
        ("sparse_24", {}, (2048, 2048), 16),
        ("sparse_24", {}, (4096, 4096), 16),
        ("sparse_24", {}, (28672, 7168), 16),
        ("sparse_24", {"values": "fp8_e4m3"}, (3072, 4096), 16),
        ("sparse_24", {"values": "int8"}, (57344, 8192), 16),
        ("sparse_24", {"values": "int8", "group": 128}, (28672, 4096), 32),
        ("sparse_24", {"values": "int8", "group": 128}, (4096, 14336), 16),
        ("sparse_24", {"values": "int4", "group": 128}, (2048, 2048), 16),
        ("sparse_24", {"values": "int4", "group": 128}, (57344, 8192), 32),
        ("tiled_bitmap", {}, (4096, 4096), 32),
        ("tiled_bitmap", {}, (24576, 4096), 32),
    ],
)
def test_kernels_change_where_the_op_changes_them(form, options, shape, few):
    """choose_kernel in kernels/cuda/<format>/kernel_choice.h, by which the op launches, too."""
    pattern = {"n": 2, "m": 4} if form == "sparse_24" else {}
    weight = packed_weight(shape, find_form(form).scheme(torch.bfloat16, pattern | options), 0.5)
    for tokens in (1, 8, 9, 16, 17, 24, 32, 33, 48, 64, 65):
        (name,) = model.times(weight, H200, [tokens])[tokens]
        assert name == (FEW if tokens <= few else MANY), tokens


@settings(max_examples=200, deadline=None)
@given(
    rows=st.integers(1, 60_000), cols=st.integers(1, 30_000), tokens=st.integers(1, 9000),
    density=st.floats(0.02, 1), gpu=st.sampled_from(GPUS), data=st.data(),
)  # fmt: skip
def test_what_is_estimated_is_what_the_op_takes(rows, cols, tokens, density, gpu, data):
    """Of any format, type of values and GPU, without a table."""
    form = data.draw(st.sampled_from(["tiled_csl", "tiled_bitmap", "sparse_24", "nm_gather"]))
    scheme = data.draw(st.sampled_from(find_form(form).examples()))
    weight = typical_weight((rows, cols), scheme, density)
    (name,) = model.times(weight, gpu, [tokens])[tokens]
    product = scheme.format.product(scheme, weight.shape, weight.nbytes, tokens, gpu)
    taken = plan.choose_kernel(form, product, gpu)
    assert name == (taken if taken in weight.implementations else SPARSE)
    own = model.best_seconds(weight, tokens, gpu)
    assert own == model.seconds(name, weight, tokens, gpu) and 0 < own < 1
    if taken != LIBRARY:
        activations = 2 * tokens * (rows + cols) / gpu.memory
        planned = plan.plan(f"{form}.{taken}", product, gpu).seconds
        assert own == pytest.approx(planned + activations)


def test_what_it_expects_beyond_its_doubt_was_measured_to_be_faster():
    """Kernels for dense layers, beside the library."""
    believed = []
    for row in _results.read(RESULTS / "gemm.csv")["rows"]:
        weight = Weight(tuple(map(int, row["shape"].split("x"))))
        library, own = (
            model.seconds(name, weight, row["tokens"], H200) for name in ("library", row["op"])
        )
        if library / own > 1 + model.DOUBT:
            believed.append(row["ratio"])
    assert len(believed) > 10 and min(believed) > 1


def test_gpus():
    assert H200.name == "H200"
    assert find_gpu("NVIDIA A100-SXM4-80GB", (8, 0)).name == "A100"
    assert find_gpu("NVIDIA RTX 9999", (12, 0)).name == "H100"
    assert find_gpu("NVIDIA GeForce RTX 3090", (8, 6)).name == "A100"
    assert find_gpu("NVIDIA GeForce RTX 4090", (8, 9)).name == "RTX 4090"
    assert find_gpu("NVIDIA L40S", (8, 9)).name == "L40S"  # no L4
    assert find_gpu("NVIDIA H800", (9, 0)) == find_gpu("NVIDIA H100", (9, 0))  # whose tables it has


def test_gpus_that_users_name():
    named = ("H200", "rtx 4090", "4090", "RTX-5090", "a6000", "6000 ada", "NVIDIA L4")
    found = [gpu_named(name) for name in named]
    assert [gpu and gpu.name for gpu in found] == [
        *("H200", "RTX 4090", "RTX 4090", "RTX 5090", "RTX A6000", "RTX 6000 Ada", "L4")
    ]
    assert gpu_named("H2000") is None
    names = [gpu.name for gpu in (*GPUS, *DATA_SHEETS)]
    assert len(set(names)) == len(names)  # one truth
    assert names == [*GPU_NAMES]
    for gpu in (*GPUS, *DATA_SHEETS):  # in units of each other
        assert 0.85 < gpu.memory / gpu.bus < 0.96 and gpu.memory < gpu.l2 < 10 * gpu.memory
        assert 25 < gpu.arithmetic / gpu.memory < 400


def test_data_sheets_agree_with_themselves():
    """TFLOPS are SMs x clock x operations a clock, where NVIDIA's chips are not slowed down."""
    a_clock = {"A800": 2048, "A10G": 512, "RTX 4090": 512, "RTX 5090": 512}
    a_clock |= dict.fromkeys(("RTX A6000", "L4", "L40S", "RTX 6000 Ada"), 1024)
    for sheet in SHEETS:
        if sheet.name in a_clock:
            found = sheet.sms * sheet.clock * a_clock[sheet.name] / 1e3
            assert found == pytest.approx(sheet.dense, rel=0.02), sheet.name
        else:
            assert sheet.name in {"H800", "H20", "B200"} and "clock" in sheet.unverified


@pytest.mark.parametrize("shape", LLAMA2_7B)
@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_more_tokens_never_take_less(gpu, shape):
    for weight in (Weight(shape), packed_weight(shape, SCHEME, 0.3)):
        for name, (most, *_) in weight.implementations.items():
            found = [model.seconds(name, weight, tokens, gpu) for tokens in BUCKETS]
            # Another compiled shape may make up for a few tokens.
            assert all(more >= 0.98 * less for less, more in itertools.pairwise(found))
            for tokens, each in zip(BUCKETS, found, strict=True):
                assert math.isinf(each) == (most is not None and tokens > most)
        # And what reads the weight takes at least as long as its bytes do.
        floor = weight.nbytes / gpu.memory
        assert min(model.seconds(name, weight, 1, gpu) for name in weight.implementations) > floor


def test_where_implementations_change():
    assert model.inflections(times(gemv=[1, 2, 4, 8], flat_gemm=[3, 3, 3, 3]), DENSE) == [4, 9]
    assert model.inflections(times(gemv=[9] * 4, flat_gemm=[9] * 4, library=[1] * 4), DENSE) == [
        1,
        1,
    ]
    # What takes no more tokens is not chosen for them, however fast it was.
    limited = times(gemv=[1, 1, math.inf, math.inf], flat_gemm=[2, 2, 2, math.inf])
    assert model.inflections(limited, DENSE) == [4, 8]


def test_a_noisy_measurement_does_not_end_the_walk():
    """The paper's flow would stop at the first number of tokens where the next one is faster."""
    noisy = times(gemv=[1, 2.01, 1.2, 8], flat_gemm=[2, 2, 2, 2])
    assert model.inflections(noisy, DENSE) == [8, 9]


def times(**found):
    """Of 1, 2, 4 and 8 tokens; the library takes long where nothing is said."""
    found = {"library": [100] * 4} | found
    return {
        tokens: {name: each[index] for name, each in found.items()}
        for index, tokens in enumerate((1, 2, 4, 8))
    }


def test_weights():
    weight = torch.zeros(256, 128, dtype=torch.float16)
    weight[:64] = 1
    packed = fs.pack(weight, "tiled_csl")
    found = Weight.of(packed)
    assert (found.shape, found.format, found.density) == ((256, 128), "tiled_csl", 0.25)
    assert found.nbytes == packed.nbytes
    assert Weight((256, 128)).nbytes == weight.nbytes
    with pytest.raises(ValueError, match="bytes of a packed weight must be given"):
        Weight((256, 128), SCHEME, 0.25)
    assumed = packed_weight((2560, 1280), SCHEME, 0.25)
    assert abs(assumed.nbytes / (100 * found.nbytes) - 1) < 0.02
