# SPDX-License-Identifier: Apache-2.0
"""What README says in sentences, by the files that it comes from. Its tables are made of theirs."""

import functools

import _results
import choices
import pytest
import torch
from documents import ROOT

import flashsparse_plugin as fs
from flashsparse_plugin.known_quality import PUBLISHED

README = " ".join((ROOT / "README.md").read_text().split())
H200 = "nvidia-h200"
STEP = "traffic-llama-3-8b-step"


@functools.cache
def rows(name):
    return _results.read(_results.FOLDER / H200 / f"{name}.csv")["rows"]


def served(name, weights, traffic, clients, figure):
    wanted = (weights, traffic, clients)
    (row,) = (r for r in rows(name) if (r["weights"], r["traffic"], r["clients"]) == wanted)
    return row[figure]


def bits(form):
    torch.manual_seed(0)
    weight = torch.randn(1024, 4096).bfloat16()
    smallest = weight.view(-1, 4).abs().topk(2, dim=1, largest=False).indices
    weight = weight.view(-1, 4).scatter(1, smallest, 0).view(1024, 4096)
    return fs.pack(weight, format=form).nbytes * 8 / weight.numel()


def exact_share():
    torch.manual_seed(0)
    packed = fs.pack(torch.randn(1024, 4096).bfloat16(), format="lossless")
    return packed.nbytes / packed.dense_nbytes


def the_first_token_is_late():
    name = "traffic-llama-3-8b-50-zeros-codes"
    figures = [
        served(name, weights, "prompts", clients, "first_token_ms")
        for clients in (1, 16, 64)
        for weights in ("tiled_bitmap", "none")
    ]
    return all(ours > dense for ours, dense in zip(figures[::2], figures[1::2], strict=True))


def prompts_gain_from_patterns_alone():
    pattern = [
        r["ratio"] for r in rows("nm_prompts") if (r["pattern"], r["tokens"]) == ("2:4", 2048)
    ]
    anywhere = [
        r["dense_us"] / r["us"]
        for r in rows("tiled_bitmap_prompts")
        if r["tokens"] == 2048 and r["way"] != "int8 alone"  # which gains by its bits
    ]
    return min(pattern) > 1.2 and max(anywhere) < 1.02


def models_gain_less():
    tokens = [served(STEP, each, "decoding", 1, "tokens_per_gpu_s") for each in CLAIMED]
    layers = choices.far_at(1, "2:4, 8-bit values")
    return 1 < tokens[0] / tokens[2] < min(layers)


def of_h100(name):
    return _results.read(_results.FOLDER / "nvidia-h100-80gb-hbm3" / f"{name}.csv")["rows"]


def exact_is_faster():
    few = [
        r
        for each in (rows("lossless"), of_h100("lossless"))
        for r in each
        if r["kind"] == "lossless" and r["tokens"] <= 16
    ]
    dense, exact = (
        [
            served("traffic-llama-3-8b-step-exact", each, "decoding", n, "tokens_per_gpu_s")
            for n in (1, 16, 64)
        ]
        for each in ("none", "lossless")
    )
    layers = min(r["dense_us"] / r["us"] for r in few)
    return layers > 1.02 and min(own / its for own, its in zip(exact, dense, strict=True)) > 1.1


def mixtures_are_faster():
    name = "traffic-qwen3-30b-a3b-experts"
    fp8, int8 = (
        [served(name, each, "decoding", n, "tokens_per_gpu_s") for n in (1, 16, 64)]
        for each in ("fp8", "2of4-int8-experts")
    )
    return min(ours / theirs for ours, theirs in zip(int8, fp8, strict=True)) >= 1.45


def hybrids_are_faster():
    name = "traffic-llama-3-8b-step-hybrid"
    fp8, *hybrids = (
        [served(name, each, "decoding", n, "tokens_per_gpu_s") for n in (1, 16, 64)]
        for each in ("fp8", "hybrid-fp8", "hybrid-int4")
    )
    return all(
        own[0] > 1.5 * fp8[0] and own[1] > 1.2 * fp8[1] and own[2] >= fp8[2] for own in hybrids
    )


CLAIMED = ("2of4-fp8_e4m3", "fp8", "none")
CLAIMS = {
    "take 7 to 9 bits, exact; `--sparse-method 2:4-fp8` is the [5 bits]": lambda: (
        [round(bits(form)) for form in ("2:4-e4m7", "2:4", "2:4-fp8")] == [7, 9, 5]
    ),
    "keeps all in 75% of the bytes": lambda: round(exact_share(), 2) == 0.75,
    "[more tokens than bfloat16](docs/results/serving.md#exact-weights-and-fp8-on-both-sides)": (
        exact_is_faster
    ),
    "[one and a half times as many tokens](docs/results/serving.md#mixtures)": mixtures_are_faster,
    "more tokens than fp8 for few clients, and as many for many": hybrids_are_faster,
    "says its card": lambda: "98.4% of dense" in PUBLISHED["2:4", "16 bits"][0],
    "**Models gain less than layers**": models_gain_less,
    "gain from N:M patterns only": prompts_gain_from_patterns_alone,
    "the first token takes [longer]": the_first_token_is_late,
    "compute capability 8.0 or newer": lambda: (
        "8.0 to 12.0" in (ROOT / "requirements" / "supported.csv").read_text()
    ),
}


@pytest.mark.parametrize("sentence", CLAIMS)
def test_a_sentence_is_so(sentence):
    assert README.count(sentence) == 1
    assert CLAIMS[sentence]()
