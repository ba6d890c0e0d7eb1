# SPDX-License-Identifier: Apache-2.0
"""Experts of a mixture: how many a batch reads, and what kernels take, ours and those of others."""

import csv
from pathlib import Path

import pytest
import torch

from flashsparse_plugin.dataflow import rivals
from flashsparse_plugin.dataflow.advice import sparse_choice
from flashsparse_plugin.dataflow.choice import Pattern, choose_experts
from flashsparse_plugin.dataflow.expected import Target
from flashsparse_plugin.dataflow.experts import PackedExperts
from flashsparse_plugin.gpu import GPUS
from flashsparse_plugin.served import Experts

QWEN3_30B = Experts(128, 8, {(1536, 2048): 48, (2048, 768): 48})
MIXTRAL = Experts(8, 2, {(28672, 4096): 32, (4096, 14336): 32})

# Microseconds of a layer's two products on an H200 by vLLM 0.26: fused_moe in bf16 and fp8, and
# Marlin for int4; tokens: times.
MEASURED = [
    (QWEN3_30B, {1: (27.5, 19.1, 21.3), 8: (121.6, 69.9, 59.5)}),
    (QWEN3_30B, {64: (290.5, 154.2, 124.6), 256: (315.2, 192.0, 193.5)}),
    (MIXTRAL, {8: (586, 321, 223), 64: (654, 345, 364)}),
]


def test_how_many_experts_a_batch_reads():
    found = [round(QWEN3_30B.read(tokens)) for tokens in (1, 8, 16, 64, 256)]
    assert found == [8, 52, 82, 126, 128]
    assert QWEN3_30B.parameters == 48 * 128 * 3 * 2048 * 768


@pytest.mark.parametrize(("experts", "times"), MEASURED)
def test_estimates_of_experts_are_near_what_was_measured(experts, times):
    kernels = (rivals.EXPERTS_16, rivals.EXPERTS_FP8, rivals.EXPERTS_INT4)
    layers = max(experts.matrices.values())
    for tokens, measured in times.items():
        found = [1e6 * kernel.seconds(experts, tokens, GPUS[0]) / layers for kernel in kernels]
        assert found == pytest.approx(measured, rel=0.12), tokens


RESULTS = Path(__file__).parents[2] / "benchmarks/results/nvidia-h200"
LAYERS = ("experts_layer.csv", "experts_layer_many.csv")  # by mma; by the faster kernel
PATTERN = {"n": 2, "m": 4}
KINDS = {
    "2:4": {},
    "2:4, int8": {"values": "int8"},
    "2:4, int4 by 128": {"values": "int4", "group": 128},
}


@pytest.mark.parametrize("kind", KINDS)
def test_estimates_of_packed_experts_are_near_what_was_measured(kind):
    """Layers of the grouped kernels, as an H200 ran them."""
    choice = sparse_choice(GPUS[0], "nm_vector", PATTERN | KINDS[kind], 16, 0.5)
    assert isinstance(choice.experts, PackedExperts) and choice.experts.takes(QWEN3_30B)
    few, many = (
        {
            (row["model"], int(row["tokens"])): float(row["layer_us"])
            for row in csv.DictReader(x for x in (RESULTS / name).open() if x[0] != "#")
            if row["kind"] == kind
        }
        for name in LAYERS
    )
    for experts, model, most in ((QWEN3_30B, "Qwen3-30B-A3B", 256), (MIXTRAL, "Mixtral-8x7B", 8)):
        layers = max(experts.matrices.values())
        for tokens in (1, 4, 8, 16, 64, 256):
            if tokens <= most:
                found = 1e6 * choice.experts.seconds(experts, tokens, GPUS[0]) / layers
                measured = few if tokens < 256 else many
                rel = 0.21 if tokens == 256 and kind == "2:4" else 0.15
                assert found == pytest.approx(measured[model, tokens], rel=rel), (model, tokens)


def test_experts_that_no_grouped_kernel_takes_are_dense():
    for format, options in (("tiled_bitmap", {}), ("nm_vector", {"n": 8, "m": 32})):
        choice = sparse_choice(GPUS[0], format, options, 16, 0.5)
        assert choice.experts is rivals.EXPERTS_16
    choice = sparse_choice(GPUS[0], "nm_vector", PATTERN, 16, 0.5)
    many = Experts(4096, 8, QWEN3_30B.matrices)
    ungated = Experts(128, 8, {(768, 2048): 48, (2048, 768): 48})
    for experts in (many, ungated):
        dense = rivals.EXPERTS_16.seconds(experts, 8, GPUS[0])
        assert choice.experts.seconds(experts, 8, GPUS[0]) == dense


SHAPES = ((768, 2048), (768, 2048), (2048, 768))
ANY, TWO_OF_FOUR = {"tiled_bitmap": {}}, {"tiled_bitmap": {}, "nm_vector": {"n": 2, "m": 4}}


@pytest.mark.parametrize(
    ("device", "batch", "options", "title", "why"),
    [
        ("H200", 8, TWO_OF_FOUR, "nm_vector(2:4)", "x dense at batch 8 by its cost model"),
        ("H100", 64, TWO_OF_FOUR, "nm_vector(2:4)", "x dense at batch 64"),
        ("H200", 4096, TWO_OF_FOUR, "dense", "nm_vector(2:4) 0."),
        ("H200", 8, ANY, "dense", "no format that multiplies them"),
        ("cpu", 8, ANY, "tiled_bitmap", "% of the dense bytes on a CPU"),
    ],
)
def test_auto_asks_the_planner_for_experts(device, batch, options, title, why):
    patterns = [Pattern(shape, 0.5, options) for shape in SHAPES]
    one_layer = Experts(128, 8, dict.fromkeys(QWEN3_30B.matrices, 1))
    target = Target.named(device, batch)
    choice = choose_experts(patterns, one_layer, torch.bfloat16, target)
    assert choice.title == title and why in choice.why, choice
