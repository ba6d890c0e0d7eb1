# SPDX-License-Identifier: Apache-2.0
"""Exact weights in vLLM on a CPU, head and tied embedding included: packed while a dense checkpoint
loads, and on disk. Tokens are those of transformers on the dense weights."""

import pytest
import vllm_checkpoints
from vllm_checkpoints import MAX_TOKENS, PROMPTS

from flashsparse_plugin.checkpoint import convert_checkpoint

EXACT = {"flashsparse": {"method": "lossless", "head": "lossless"}}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lossless")
    return {
        name: vllm_checkpoints.make(name, folder, sparsity=None)[0]
        for name in ("llama", "llama-tied")
    }


@pytest.fixture(scope="module")
def results(models, run_offline):
    jobs = {}
    for name, dense in models.items():
        packed = dense.with_name(f"{name}-exact")
        convert_checkpoint(dense, packed, format="lossless", head="lossless", pack_all=True)
        for kind, path, options in (
            ("dense", dense, {"additional_config": EXACT}),
            ("packed", packed, {}),
        ):
            jobs[f"{name} {kind}"] = {
                **{"model": str(path), "prompts": PROMPTS, "max_tokens": MAX_TOKENS},
                "options": options,
            }
    return run_offline(jobs)


@pytest.mark.parametrize("name", ["llama", "llama-tied"])
@pytest.mark.parametrize("kind", ["dense", "packed"])
def test_tokens_are_those_of_the_dense_model(results, models, name, kind):
    result = results[f"{name} {kind}"]
    assert "error" not in result, result["error"]
    assert result["tokens"] == vllm_checkpoints.greedy(models[name])
    layers = result["layers"]
    assert layers["model.layers.0.self_attn.qkv_proj"] == "SparseLinearMethod"
    owner = "lm_head" if name == "llama" else "model.embed_tokens"
    assert layers[owner] == ("SparseLinearMethod" if name == "llama" else "TiedEmbeddingMethod")
