# SPDX-License-Identifier: Apache-2.0
"""Small pruned checkpoints, dense and packed, and what transformers makes of them."""

from pathlib import Path

import torch
from tiny_causal_lms import CONFIGS, VOCAB, character_tokenizer
from transformers import AutoModelForCausalLM

from flashsparse_plugin.checkpoint import convert_checkpoint
from flashsparse_plugin.pruning import prune

PROMPTS = [[5, 9, 33, 70, 12, 8], [44, 3, 17], [90, 61, 28, 28, 15, 7, 81, 60, 22], [10]]
MAX_TOKENS = 12


def make(name: str, folder: Path, sparsity: float = 0.8, **changes) -> tuple[Path, Path]:
    """Writes a tiny random pruned model; returns its dense directory and its packed one.

    Heads are of 32 elements: the least that vLLM's attention on a CPU works with.
    """
    torch.manual_seed(0)
    config = CONFIGS[name]()
    heads = {"hidden_size": 128, "intermediate_size": 160, "ffn_dim": 160}
    heads |= {"head_dim": 32, "vocab_size": VOCAB} | changes
    for key, value in heads.items():
        if hasattr(config, key):
            setattr(config, key, value)
    model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:  # large enough for the logits to be far apart
                parameter.normal_(0, 0.25)
    if sparsity:
        prune(model, method="magnitude", sparsity=sparsity, progress=False)
    dense, packed = folder / f"{name}-dense", folder / f"{name}-packed"
    model.save_pretrained(dense)
    character_tokenizer().save_pretrained(dense)
    convert_checkpoint(dense, packed, pack_all=True)
    return dense, packed


@torch.no_grad()
def greedy(path: Path, prompts=PROMPTS, max_tokens: int = MAX_TOKENS) -> list[list[int]]:
    """What transformers generates in float32 from the dense weights with their zeros."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    tokens = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        tokens.append(out[0, len(prompt) :].tolist())
    return tokens
