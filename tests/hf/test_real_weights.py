# SPDX-License-Identifier: Apache-2.0
"""Layers of SmolLM2-135M, pruned and packed, against the same model with the same zeros, dense."""

import pytest
import torch
from tiny import REAL_LAYERS, linears, sparse_layers
from transformers import AutoModelForCausalLM, AutoTokenizer

import flashsparse_plugin as fs
from flashsparse_plugin.pruning import prune_weight

# What is pruned, and how it is packed.
ANYWHERE = {"sparsity": 0.6}, {"sparsity": 0.6}
PATTERNS = [
    (
        {"pattern": (n, m), "vector_length": length},
        {"format": "nm_vector", "options": {"n": n, "m": m, "vector_length": length}},
    )
    for n, m, length in ((2, 4, 1), (4, 8, 1), (2, 4, 4), (16, 32, 32), (8, 32, 32))
]
PROMPTS = ("Once upon a time, in a small village by the sea, there lived", "The capital of France")


def continued(model, tokenizer, prompt):
    """12 greedy tokens after a prompt, and the logits that the prompt ends in."""
    given = tokenizer(prompt, return_tensors="pt")
    with torch.no_grad():
        logits = model(**given).logits[0, -1]
    tokens = model.generate(**given, max_new_tokens=12, do_sample=False)
    return tokens[0].tolist(), logits


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "packed"), [ANYWHERE, *PATTERNS], ids=str)
def test_packed_is_masked_dense(rule, packed, real_dir, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(real_dir)
    masked = AutoModelForCausalLM.from_pretrained(real_dir, dtype=torch.float32)
    weights = {}
    with torch.no_grad():
        for name, linear in linears(masked).items():
            linear.weight.copy_(prune_weight(linear.weight, **rule))
            weights[name] = linear.weight.to(torch.bfloat16)
            assert torch.equal(weights[name].float(), linear.weight), "the file holds bfloat16"
    expected = [continued(masked, tokenizer, prompt) for prompt in PROMPTS]
    del masked

    config = fs.FlashSparseConfig(pruning="magnitude", **packed)
    packing = AutoModelForCausalLM.from_pretrained(
        real_dir, dtype=torch.float32, quantization_config=config
    )
    packing.save_pretrained(tmp_path / "packed", max_shard_size="10MB")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "packed", dtype=torch.float32)
    for model in (packing, loaded):
        layers = sparse_layers(model)
        assert layers.keys() == weights.keys() and len(layers) == 7 * REAL_LAYERS
        for name, layer in layers.items():
            assert torch.equal(layer.weight, weights[name])
        for prompt, (tokens, logits) in zip(PROMPTS, expected, strict=True):
            own_tokens, own_logits = continued(model, tokenizer, prompt)
            assert own_tokens == tokens
            # layers of fp32 sums in another order
            torch.testing.assert_close(own_logits, logits, rtol=1e-4, atol=1e-3)
