# SPDX-License-Identifier: Apache-2.0
"""`auto`: dense where packing does not pay, measurements before estimates, and why."""

import _results
import pytest
import torch

from flashsparse_plugin.dataflow import DeviceKey, Table, Weight, model
from flashsparse_plugin.dataflow.choice import Choice, Pattern, choose, lines, weigh
from flashsparse_plugin.dataflow.expected import (
    ESTIMATED,
    Target,
    pays_from,
    typical_weight,
    unstructured_schemes,
)
from flashsparse_plugin.dataflow.table import Entry, Measurement, Range
from flashsparse_plugin.formats import get_format
from flashsparse_plugin.gpu import GPUS
from flashsparse_plugin.packed import FormatError

H200 = Target(GPUS[0])
SHAPE = (8192, 8192)
BF16 = torch.bfloat16
UNSTRUCTURED = {scheme.format.name: {} for scheme in unstructured_schemes()}
CSL = get_format("tiled_csl").scheme(BF16)


def sparse(density, shape=SHAPE, options=UNSTRUCTURED):
    return choose(Pattern(shape, density, options), BF16, H200)


def measured(shape, times, density=0.3):
    """A table by which layers took so many microseconds at 8 tokens."""
    entries = [
        Entry(
            shape=shape,
            format=format,
            density=1.0 if format == "dense" else density,
            ranges=[Range(max_tokens=None, implementation="library")],
            measurements=[Measurement(tokens=8, microseconds={"library": microseconds})],
        )
        for format, microseconds in times.items()
    ]
    key = DeviceKey(name="NVIDIA H200", capability=(9, 0), multiprocessors=132)
    return Target(GPUS[0], 8, (Table(device=key, dtype="float16", entries=entries),))


def test_any_gpu_that_is_known_may_be_named():
    target = Target.named("rtx4090")
    assert target.gpu.name == "RTX 4090" and not target.tables
    found = choose(Pattern((28672, 4096), 0.3, UNSTRUCTURED), BF16, target)
    assert found.scheme is not None
    assert found.why.endswith("by its cost model of an RTX 4090 with unverified rates")


def test_dense_weights_stay_dense_and_sparse_ones_are_packed():
    assert sparse(1.0).scheme is None
    assert sparse(0.1).scheme is not None


@pytest.mark.parametrize("density", [0.05, 0.3, 0.5, 0.7])
@pytest.mark.parametrize("shape", [(512, 512), (4096, 4096), (28672, 4096)])
def test_never_slower_than_dense_by_its_own_estimate(shape, density):
    chosen = sparse(density, shape)
    if chosen.scheme is None:
        return
    held = chosen.scheme.format.runtime(chosen.scheme, H200.device)
    own = model.best_seconds(typical_weight(shape, held, density), 8, GPUS[0])
    dense = model.best_seconds(Weight(shape), 8, GPUS[0])
    assert own * ESTIMATED <= dense
    assert "by its cost model of an H200" in chosen.why


@pytest.mark.parametrize("gpu", ["H200", "H100"])
def test_what_it_packs_is_measured_to_be_faster_than_dense(gpu):
    """By the fastest way to call cuBLAS, of 32 tokens, where some layers are slower packed."""
    ratios = {}
    folder = {"H200": "nvidia-h200", "H100": "nvidia-h100-80gb-hbm3"}[gpu]
    for row in _results.read(_results.FOLDER / folder / "spmm.csv")["rows"]:
        if row["tokens"] == 32 and row["sparsity"] in (50, 60, 80):
            shape = tuple(map(int, row["shape"].split("x")))
            ratios.setdefault((shape, row["sparsity"]), {})[row["format"]] = row["ratio"]
    target, dense = Target.named(gpu, 32), 0
    for (shape, zeros), found in ratios.items():
        chosen = choose(Pattern(shape, 1 - zeros / 100, UNSTRUCTURED), BF16, target)
        dense += chosen.scheme is None
        assert chosen.scheme is None or found[chosen.scheme.format.name] >= 0.97
    assert dense < len(ratios) / 5 and len(ratios) == 60


def test_the_fastest_is_chosen():
    found = sparse(
        0.25, options=UNSTRUCTURED | {"nm_vector": {"n": 8, "m": 32, "vector_length": 32}}
    )
    assert found.title == "nm_vector(8:32, L=32)"
    assert sparse(0.25).title != found.title


def test_prompts_decide_between_formats_that_are_about_as_fast():
    """12 bits are read faster than 16, but of prompts all columns are multiplied."""
    both = {"nm_vector": {"n": 2, "m": 4}, "exact_nm": {"n": 2, "m": 4}}
    for shape, wanted in (((4096, 14336), "nm_vector"), ((28672, 4096), "exact_nm")):
        alone = {name: sparse(0.5, shape, {name: own}).why for name, own in both.items()}
        gains = {name: float(why.split("x")[0]) for name, why in alone.items()}
        assert gains["exact_nm"] > gains["nm_vector"] > 1
        assert sparse(0.5, shape, both).scheme.format.name == wanted
        assert (gains["nm_vector"] > 0.9 * gains["exact_nm"]) == (wanted == "nm_vector")


def test_measurements_go_before_estimates():
    """Of both sides: a measured layer is not compared with an estimated one."""
    pattern = Pattern(SHAPE, 0.3, {"tiled_csl": {}})
    for microseconds, is_packed in ((90, True), (99, False), (200, False)):
        target = measured(SHAPE, {"dense": 100, "tiled_csl": microseconds})
        found = choose(pattern, BF16, target)
        assert (found.scheme is not None) == is_packed
        assert "measured on an NVIDIA H200" in found.why
    half = measured(SHAPE, {"tiled_csl": 1e6})
    assert choose(pattern, BF16, half) == choose(pattern, BF16, H200)


def test_more_tokens_than_were_measured_are_estimated():
    target = measured(SHAPE, {"dense": 100, "tiled_csl": 50})
    assert (
        "cost model" in weigh(CSL, Pattern(SHAPE, 0.3, {}), Target(GPUS[0], 9, target.tables)).why
    )


def test_what_pays_from_a_share_of_zeros_on_is_chosen_from_it_on():
    for shape in ((8192, 8192), (28672, 4096)):
        least = pays_from(shape, H200)
        assert least is not None and 0 < least < 0.95
        assert sparse(1 - least - 0.01, shape).scheme is not None
        assert sparse(1 - least + 0.06, shape).scheme is None
        assert f"from {least:.0%} on" in sparse(1 - least + 0.06, shape).why
    assert pays_from((64, 64), H200) is None
    assert "(no share does)" in sparse(0.5, (64, 64)).why


def test_on_a_cpu_bytes_decide_and_on_disk_where_they_are_equal():
    cpu = Target(None)
    assert choose(Pattern(SHAPE, 0.99, UNSTRUCTURED), BF16, cpu).scheme is None
    every, names = {**UNSTRUCTURED, "lossless": {}}, {}
    assert choose(Pattern(SHAPE, 0.99, every), BF16, cpu).scheme.format.name == "lossless"
    for density in (0.5, 0.01):
        chosen = choose(Pattern(SHAPE, density, every), BF16, cpu)
        sizes = {
            scheme.format.name: typical_weight(SHAPE, scheme, density).nbytes
            for scheme in unstructured_schemes()
        }
        names[density] = chosen.scheme.format.name
        assert names[density] == min(sizes, key=sizes.get)
    assert len(set(names.values())) == 2  # a bitmap of 99% zeros takes more than their places


def test_a_format_of_unknown_cost_is_passed_over(monkeypatch):
    def unknown(*arguments):
        raise FormatError("no cost model")

    monkeypatch.setattr(type(CSL.format), "seconds", unknown)
    found = sparse(0.1, options={"tiled_csl": {}})
    assert found.scheme is None
    assert "cost there is unknown" in weigh(CSL, Pattern(SHAPE, 0.1, {}), H200).why


def test_the_zeros_of_a_weight_are_looked_at():
    weight = torch.randn(64, 64).bfloat16()
    assert Pattern.of(weight).options == {**UNSTRUCTURED, "lossless": {}}
    weight.view(64, 16, 4)[..., :2] = 0
    found = Pattern.of(weight)
    assert found.density == 0.5 and found.options["nm_vector"] == {"n": 2, "m": 4}
    vectors = torch.zeros(64, 64)
    vectors[:32, 3:10] = vectors[32:, 40:45] = 1
    expected = {"n": 8, "m": 32, "vector_length": 32}
    assert Pattern.of(vectors).options["nm_vector"] == expected


def test_merged_layers_are_one():
    """vLLM multiplies q, k and v by one weight, which has one format."""
    q = Pattern((96, 64), 0.5, {"a": {}, "b": {"n": 2}})
    k = Pattern((32, 64), 0.1, {"a": {}, "b": {"n": 1}})
    assert Pattern.joined([q, k]) == Pattern((128, 64), 0.4, {"a": {}})


def test_a_line_a_kind_of_layer():
    packed, dense = Choice(CSL, "2x"), Choice(None, "few zeros")
    found = [("q_proj", packed), ("o_proj", packed), ("up_proj", dense), ("q_proj", packed)]
    assert lines(found) == ["q_proj, o_proj (3): tiled_csl, 2x", "up_proj (1): dense, few zeros"]


@pytest.mark.parametrize(("name", "batch"), [("B300", 8), ("H200", 0)])
def test_devices_that_there_are_not(name, batch):
    with pytest.raises(
        ValueError, match="B300.*H200, H100, A100, H800, .*5090, cpu, this|at least one sequence"
    ):
        Target.named(name, batch)
