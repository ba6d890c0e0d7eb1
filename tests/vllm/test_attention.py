# SPDX-License-Identifier: Apache-2.0
"""`--decode-attention unified_max` gives the tokens of vLLM's own attention. On real weights,
behind a server, in test_serve.py; here with windows, capped scores, phi that fits or does not."""

import shutil

import pytest
import torch
import vllm_checkpoints as checkpoints
from safetensors.torch import load_file, save_file

PROMPTS = [[(7 * i + 3 * n) % 90 + 3 for i in range(n)] for n in (1, 30, 33, 110)]
TOKENS = 24  # from one block of 32 to the next
LAYERS, HEADS = 3, 4
FAR = -1e4  # every part of every softmax leaves what fp32 can hold


def calibrated(model, folder, phi=FAR, heads=HEADS, **changes):
    """The same model with phi in its config.json."""
    shutil.copytree(model, folder)
    return checkpoints.calibrate(folder, [phi] * heads, **changes)


def make_gemma2(folder):
    """Every other layer has a window, and all have capped scores. What attention adds to tokens
    counts for more than in the beginning of a training, or each token would only repeat itself."""
    sizes = {"num_attention_heads": HEADS, "head_dim": 64, "max_position_embeddings": 192}
    capped = {"sliding_window": 24, "attn_logit_softcapping": 3.0}
    dense, _ = checkpoints.make("gemma2", folder, **sizes, **capped)
    tensors = load_file(dense / "model.safetensors")
    tensors["model.embed_tokens.weight"] /= 16
    save_file(tensors, dense / "model.safetensors", {"format": "pt"})
    return dense


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
    gemma2 = make_gemma2(folder)
    # Heads of 80 elements have another layout in the cache, one key-value head other strides.
    sizes = {"num_attention_heads": HEADS, "num_key_value_heads": 1, "head_dim": 80}
    llama, packed = checkpoints.make("llama", folder, max_position_embeddings=192, **sizes)
    small, _ = checkpoints.make("llama", folder / "small", max_position_embeddings=192)
    near = calibrated(packed, folder / "near", phi=0.0)
    ours = {"decode_attention": "unified_max"}
    todo = {
        "gemma2": job(gemma2),
        "gemma2 ours": job(gemma2, **ours),
        "gemma2 far": job(calibrated(gemma2, folder / "far"), **ours),
        "llama": job(llama),
        "llama ours": job(near, attention_config={"backend": "CUSTOM"}),
        # Invalid settings and entries.
        "another model": job(calibrated(llama, folder / "heads", heads=8), **ours),
        "broken": job(calibrated(llama, folder / "broken", version=9), **ours),
        "two backends": job(llama, **ours, attention_config={"backend": "CPU_ATTN"}),
        "fp8": job(gemma2, kv_cache_dtype="fp8"),
        "fp8 ours": job(gemma2, **ours, kv_cache_dtype="fp8_e4m3"),
        "fp8 cache": job(llama, **ours, kv_cache_dtype="fp8_e5m2"),
        "small heads": job(small, **ours),
    }
    return run_offline(todo)


def counts(result) -> tuple[int, int]:
    """Parts computed again and looked at, of all layers."""
    assert "error" not in result, result["error"]
    return tuple(sum(column) for column in zip(*result["counts"].values(), strict=True))


@pytest.mark.parametrize("model", ["gemma2", "llama", "fp8"])
def test_tokens_are_those_of_vllms_attention(results, model):
    ours, default = results[f"{model} ours"], results[model]
    if model == "fp8" and not torch.cpu._is_avx512_supported():  # vLLM has no such cache there
        assert "AVX-512" in default["error"] and "AVX-512" in ours["error"]
        return
    assert len({token for tokens in default["tokens"] for token in tokens}) > 10
    assert ours["tokens"] == default["tokens"]
    # All steps but the one of the prompt, for all sequences; where they begin together.
    assert counts(ours) == (0, LAYERS * len(PROMPTS) * HEADS * (TOKENS - 1))
    assert default["counts"] == {}  # the baseline does not use our kernel


def test_a_wrong_phi_costs_time_and_changes_nothing(results):
    again, looked_at = counts(results["gemma2 far"])
    assert again == looked_at == counts(results["gemma2 ours"])[1]  # on a CPU each is one part
    assert results["gemma2 far"]["tokens"] == results["gemma2"]["tokens"]


def test_the_log_tells_who_decodes_and_whether_with_phi(results):
    line = "decode attention of 3 layers: flashsparse::unified_max_paged_decode on CPU, "
    assert line + "with phi in 3" in results["llama ours"]["log"]
    assert line + "online softmax (no phi)" in results["gemma2 ours"]["log"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("another model", ["layer 0", '"unified_max"', "8 heads", "flashsparse calibrate"]),
        ("broken", ["unified_max.version", "flashsparse calibrate"]),
        ("two backends", ["unified_max", "CPU_ATTN", "Drop one"]),
        ("fp8 cache", ["CUSTOM", "kv_cache_dtype not supported"]),
        ("small heads", ["CUSTOM", "head_size not supported"]),
    ],
)
def test_what_cannot_be_meant_is_refused(results, name, words):
    error = results[name].get("error", "it was served")
    assert [word for word in words if word not in error] == [], error


@pytest.mark.parametrize("layout", ["as it is", "transposed", "shuffled"])
def test_elements_are_found_wherever_a_layout_keeps_them(layout):
    """By strides in the first two, which are all that this machine may have; "amx" has others."""
    from flashsparse_plugin.integrations.vllm.attention_cpu import in_order

    size, head_dim = 32, 80
    order = torch.arange(size * head_dim)
    order = {
        "as it is": order.view(size, head_dim),
        "transposed": order.view(head_dim, size).T,
        "shuffled": torch.randperm(order.numel()).view(size, head_dim),
    }[layout]
    both = torch.randn(5, 2, 2, size * head_dim)
    for stored in (both[:, :, 0], both[:, :, 1]):
        found = in_order(stored, order)
        assert torch.equal(found, stored[:, :, order]) and found.stride(-1) == 1
