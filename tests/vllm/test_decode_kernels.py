# SPDX-License-Identifier: Apache-2.0
"""Layers of vLLM that are exchanged for ours on request. What they gain, a GPU must say."""

import pytest
import torch
import vllm_checkpoints as checkpoints
from torch import nn
from vllm_checkpoints import MAX_TOKENS, PROMPTS

EARLY = {"additional_config": {"flashsparse": {"decode_kernels": "early"}}}
MODELS = ["llama", "qwen3", "glm4", "gemma2"]  # norms of heads; interleaved pairs; weights plus one


@pytest.fixture(scope="module")
def results(tmp_path_factory, run_offline):
    folder = tmp_path_factory.mktemp("decode_kernels")
    jobs = {}
    for name in MODELS:
        _, packed = checkpoints.make(name, folder)
        job = {"model": str(packed), "prompts": PROMPTS, "max_tokens": MAX_TOKENS}
        compiled = {"enforce_eager": False} if name == "llama" else {}
        jobs[name] = job | {"options": {}}
        jobs[f"{name} ours"] = job | {"options": EARLY | compiled, "piecewise": bool(compiled)}
    return run_offline(jobs)


@pytest.mark.parametrize("model", MODELS)
def test_tokens_are_those_of_vllms_layers(results, model):
    ours, theirs = results[f"{model} ours"], results[model]
    assert "error" not in ours, ours["error"]
    assert ours["tokens"] == theirs["tokens"]
    for result, times in ((ours, 1), (theirs, 0)):
        assert sum(line.startswith("decode kernels: ") for line in result["log"]) == times
