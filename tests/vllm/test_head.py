# SPDX-License-Identifier: Apache-2.0
"""The output head in 8 bits in vLLM: a dense checkpoint and a packed one, tied or not; tokens are
those of transformers on the dense weights that the head stands for."""

import pytest
import torch
import vllm_checkpoints
from checkpoints import load_all
from vllm_checkpoints import MAX_TOKENS, PROMPTS

from flashsparse_plugin.checkpoint import convert_checkpoint
from flashsparse_plugin.checkpoint.convert.unpacker import unpack_checkpoint

HEAD = {"flashsparse": {"head": "int8"}}


def job(model, **options) -> dict:
    return {"model": str(model), "prompts": PROMPTS, "max_tokens": MAX_TOKENS, "options": options}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """By name: a dense model, one with its head packed, and what that unpacks to."""
    folder, made = tmp_path_factory.mktemp("head"), {}
    for name in ("llama", "llama-tied"):
        dense, _ = vllm_checkpoints.make(name, folder)
        packed, whole = folder / f"{name}-head", folder / f"{name}-whole"
        convert_checkpoint(dense, packed, head="int8", ignore=["re:.*"])
        unpack_checkpoint(packed, whole)
        made[name] = dense, packed, whole
    return made


@pytest.fixture(scope="module")
def results(models, run_offline):
    jobs = {}
    for name, (dense, packed, _) in models.items():
        jobs[f"{name} dense"] = job(dense, additional_config=HEAD)
        jobs[f"{name} packed"] = job(packed)
    dense = models["llama"][0]
    jobs["unknown"] = job(dense, additional_config={"flashsparse": {"head": "int4"}})
    both = {"flashsparse": {"head": "int8", "method": "none"}}
    jobs["none"] = job(dense, additional_config=both)
    return run_offline(jobs)


def head_of(packed, name) -> torch.Tensor:
    """Code x scale, which a product in float32 does not round to 16 bits."""
    owner = "model.embed_tokens" if name == "llama-tied" else "lm_head"
    tensors = load_all(packed)
    codes = tensors[f"{owner}.weight_packed"].view(torch.int8)
    return codes.float() * tensors[f"{owner}.weight_scale"]


@pytest.mark.parametrize("name", ["llama", "llama-tied"])
@pytest.mark.parametrize("kind", ["dense", "packed"])
def test_tokens(results, models, name, kind):
    _, packed, whole = models[name]
    head = head_of(packed, name)
    # While a dense checkpoint loads, weights are packed in the dtype of the activations, float32.
    embedding = head if (name, kind) == ("llama-tied", "dense") else None
    result = results[f"{name} {kind}"]
    assert "error" not in result, result["error"]
    assert result["tokens"] == vllm_checkpoints.greedy(whole, head=head, embedding=embedding)
    layers = result["layers"]
    if name == "llama":
        assert layers["lm_head"] == "SparseLinearMethod"
    else:
        assert layers["model.embed_tokens"] == "TiedEmbeddingMethod" and "lm_head" not in layers


def test_refusals(results):
    assert "head: Input should be 'int8', 'fp8' or 'lossless'" in results["unknown"]["error"]
    assert "--sparse-method none unpacks" in results["none"]["error"]
