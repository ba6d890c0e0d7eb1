# SPDX-License-Identifier: Apache-2.0
"""`--decode-attention unified_max` gives the tokens of vLLM's own attention. On real weights, behind
a server, in test_serve.py; here with windows, capped scores, phi that fits and phi that does not."""

import json
import shutil
from types import SimpleNamespace

import pytest
import torch
import vllm_checkpoints as checkpoints

from flashsparse_plugin.attention import UnifiedMax

PROMPTS = [[(7 * i + 3 * n) % 90 + 3 for i in range(n)] for n in (1, 30, 33, 100)]
TOKENS = 40  # through more than one block of 32
LAYERS, HEADS = 3, 4
FAR = -1e4  # every part of every softmax leaves what fp32 can hold


def calibrated(dense, folder, phi=FAR, layers=LAYERS, heads=HEADS, **changes):
    """The same model with an entry of phi in its config.json."""
    shutil.copytree(dense, folder)
    config = json.loads((folder / "config.json").read_text())
    layer = {"phi": [phi] * heads, "a": -1.0, "b": 1.0, "recomputed": 0.0}
    entry = {"version": 1, "dtype": "bfloat16", "layers": [layer] * layers, **changes}
    (folder / "config.json").write_text(json.dumps(config | {"unified_max": entry}))
    return folder


def job(model, **options) -> dict:
    common = {"max_model_len": 192, "block_size": 32}
    return {
        "model": str(model),
        "prompts": PROMPTS,
        "max_tokens": TOKENS,
        "options": common | options,
    }


@pytest.fixture(scope="module")
def results(tmp_path_factory, run_offline):
    folder = tmp_path_factory.mktemp("attention")
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": 2, "head_dim": 64}
    heads |= {"max_position_embeddings": 192}
    # Every other layer has a window; scores are capped in all.
    capped = {"sliding_window": 24, "attn_logit_softcapping": 3.0, "tie_word_embeddings": False}
    gemma2, _ = checkpoints.make("gemma2", folder, **heads, **capped)
    # Heads of 80 elements have another layout in the cache, one key-value head other strides.
    odd = heads | {"num_key_value_heads": 1, "head_dim": 80}
    llama, packed = checkpoints.make("llama", folder, **odd)
    ours = {"decode_attention": "unified_max"}
    small, _ = checkpoints.make("qwen3", folder, max_position_embeddings=192)
    far = calibrated(llama, folder / "far")
    todo = {
        "gemma2": job(gemma2),
        "gemma2 ours": job(gemma2, **ours),
        "gemma2 far": job(calibrated(gemma2, folder / "gemma2-far"), **ours),
        "llama": job(llama),
        "llama ours": job(llama, attention_config={"backend": "CUSTOM"}),
        "llama packed": job(packed, **ours),
        "llama near": job(calibrated(llama, folder / "near", phi=0.0), **ours),
        "llama far": job(far, **ours),
        "llama float16": job(far, **ours, dtype="float16"),
        "without": job(far),
        # What cannot be meant.
        "another model": job(calibrated(llama, folder / "heads", heads=8), **ours),
        "too few layers": job(calibrated(llama, folder / "layers", layers=2), **ours),
        "broken": job(calibrated(llama, folder / "broken", version=9), **ours),
        "two backends": job(llama, **ours, attention_config={"backend": "CPU_ATTN"}),
        "no such": job(llama, decode_attention="flash"),
        "fp8 cache": job(llama, **ours, kv_cache_dtype="fp8"),
        "small heads": job(small, **ours),
    }
    return run_offline(todo)


def looked_at(result) -> list[int]:
    assert "error" not in result, result["error"]
    return [total for _, total in result["counts"].values()]


@pytest.mark.parametrize("name", ["gemma2 ours", "llama ours", "llama packed", "llama near"])
def test_tokens_are_those_of_vllms_attention(results, name):
    result, default = results[name], results[name.split()[0]]
    assert len(looked_at(result)) == LAYERS and min(looked_at(result)) >= (TOKENS - 1) * HEADS * 4
    assert result["tokens"] == default["tokens"]
    assert sum(again for again, _ in result["counts"].values()) == 0
    assert default["counts"] == {}  # the yardstick is none of ours


@pytest.mark.parametrize("name", ["gemma2 far", "llama far"])
def test_a_wrong_phi_costs_time_and_changes_nothing(results, name):
    result = results[name]
    assert looked_at(result) == looked_at(results[name.split()[0] + " ours"])
    for layer, (again, total) in result["counts"].items():
        assert again == total, layer  # on a CPU a sequence is one part
    assert result["tokens"] == results[name.split()[0]]["tokens"]


def test_phi_is_taken_where_it_is_of_use(results):
    assert any("with phi in 3" in line for line in results["llama near"]["log"])
    assert any("online softmax" in line for line in results["llama ours"]["log"])
    log = results["llama float16"]["log"]  # it was made for bfloat16, which has more room
    assert sum("calibrated for bfloat16 and runs in float16" in line for line in log) == 1
    assert sum(again for again, _ in results["llama float16"]["counts"].values()) == 0
    assert looked_at(results["without"]) == []
    assert results["without"]["tokens"] == results["llama"]["tokens"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("another model", ["layer 0", '"unified_max"', "8 heads", "flashsparse calibrate"]),
        ("too few layers", ['"unified_max"', "2 layers", "flashsparse calibrate"]),
        ("broken", ["unified_max.version", "flashsparse calibrate"]),
        ("two backends", ["unified_max", "CPU_ATTN", "Drop one"]),
        ("no such", ["flash", "unified_max, default"]),
        ("fp8 cache", ["CUSTOM", "kv_cache_dtype not supported"]),
        ("small heads", ["CUSTOM", "head_size not supported"]),
    ],
)
def test_what_cannot_be_meant_is_refused(results, name, words):
    error = results[name].get("error", "it was served")
    assert [word for word in words if word not in error] == [], error
