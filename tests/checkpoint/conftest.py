# SPDX-License-Identifier: Apache-2.0
"""Small pruned models on disk."""

import pytest
import torch

CARD = """---
license: apache-2.0
base_model: example/tiny
language: [en]
---
# Tiny
"""


def prune_(model, sparsity=0.8, seed=0):
    """Sets weights of every linear layer but the head to zero at random."""
    generator = torch.Generator().manual_seed(seed)
    for name, module in model.named_modules():
        if type(module) is torch.nn.Linear and name != "lm_head":
            drop = torch.rand(module.weight.shape, generator=generator) < sparsity
            module.weight.data[drop] = 0
    return model


def save_llama(path, *, sparsity=0.8, dtype=torch.bfloat16, shards="1GB", **overrides):
    """Saves a random pruned Llama and what usually lies beside one."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    settings = dict(
        hidden_size=128,
        intermediate_size=200,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=256,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(LlamaConfig(**settings | overrides)).to(dtype)
    prune_(model, sparsity).save_pretrained(path, max_shard_size=shards)
    (path / "tokenizer.json").write_text("{}")
    (path / "tokenizer_config.json").write_text("{}")
    (path / "chat_template.jinja").write_text("{{ messages }}")
    (path / "LICENSE").write_text("Apache")
    (path / "README.md").write_text(CARD)
    (path / "pytorch_model.bin").write_bytes(b"pickle")
    (path / "optimizer.pt").write_bytes(b"pickle")
    return path


@pytest.fixture
def llama(tmp_path):
    """A pruned bfloat16 Llama in one file, head not tied."""
    return save_llama(tmp_path / "dense")


@pytest.fixture
def sharded(tmp_path):
    """The same in several files."""
    return save_llama(tmp_path / "dense", shards="100KB")
