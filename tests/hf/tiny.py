# SPDX-License-Identifier: Apache-2.0
"""Tiny random language models of every architecture that is tested, and what to ask of them."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from flashsparse_plugin.linear import SparseLinear
from flashsparse_plugin.pruning import prune_weight

SPARSITY = 0.6
REAL_LAYERS = 6  # of SmolLM2's 30

# Small, not round numbers of tiles, and with gaps between logits that fp32 rounding cannot close.
_COMMON = dict(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=136,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=4,
    head_dim=16,
    max_position_embeddings=128,
    initializer_range=0.3,
    tie_word_embeddings=False,
    bos_token_id=1,
    eos_token_id=None,
    pad_token_id=0,
)

ARCHITECTURES = {
    "llama": dict(model_type="llama"),
    "llama-tied": dict(model_type="llama", tie_word_embeddings=True),
    "llama-gqa-bias": dict(
        model_type="llama", num_key_value_heads=2, attention_bias=True, mlp_bias=True
    ),
    "opt": dict(
        model_type="opt",
        ffn_dim=136,
        word_embed_proj_dim=64,
        init_std=0.3,
        tie_word_embeddings=True,
    ),
    "qwen3": dict(model_type="qwen3", num_key_value_heads=2),
    "gpt-neox": dict(model_type="gpt_neox"),
    "mistral": dict(model_type="mistral", num_key_value_heads=2, sliding_window=8),
    "phi3": dict(model_type="phi3", num_key_value_heads=2),
    "gemma2": dict(model_type="gemma2", num_key_value_heads=2, query_pre_attn_scalar=16),
    "glm4": dict(model_type="glm4", num_key_value_heads=2, attention_bias=True),
}


# A device map of the llamas, with one of their two layers on disk.
HERE_AND_ON_DISK = {
    "model.embed_tokens": "cpu",
    "model.layers.0": "cpu",
    "model.layers.1": "disk",
    "model.norm": "cpu",
    "model.rotary_emb": "cpu",
    "lm_head": "cpu",
}


def build(architecture: str) -> nn.Module:
    """A random model in bfloat16, with biases and norms that are not trivial either."""
    settings = {**_COMMON, **ARCHITECTURES[architecture]}
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model.to(torch.bfloat16).eval()


def linears(model: nn.Module) -> dict[str, nn.Linear]:
    """The layers that are to be packed: every linear layer but the output head."""
    head = model.get_output_embeddings()
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not head
    }


def masked_(model: nn.Module) -> nn.Module:
    """Zeros the smallest weights of every layer that is to be packed."""
    with torch.no_grad():
        for linear in linears(model).values():
            linear.weight.copy_(prune_weight(linear.weight, SPARSITY))
    return model


def sparse_layers(model: nn.Module) -> dict[str, SparseLinear]:
    return {name: m for name, m in model.named_modules() if isinstance(m, SparseLinear)}


def load(path: Path, dtype: torch.dtype = torch.float32, **kwargs) -> nn.Module:
    return AutoModelForCausalLM.from_pretrained(path, dtype=dtype, **kwargs)


def prompt() -> dict[str, torch.Tensor]:
    """Two prompts, the first of them padded on the left."""
    ids = torch.randint(2, 256, (2, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    return {"input_ids": ids, "attention_mask": mask}


def generate(model: nn.Module, **kwargs) -> torch.Tensor:
    """Greedy continuation, [2, 9 + 16]."""
    return model.generate(**prompt(), max_new_tokens=16, do_sample=False, **kwargs)


@torch.no_grad()
def logits(model: nn.Module) -> torch.Tensor:
    """[tokens that are not padding, vocabulary], float64."""
    given = prompt()
    return model(**given).logits[given["attention_mask"].bool()].double()


def assert_as_exact(model: nn.Module, reference: nn.Module, exact: torch.Tensor) -> None:
    """Logits of `model` are as close to float64's `exact` as those of the dense `reference` are.

    Both sum in float32 in an order of their own, which differs between processors. Errors of such
    sums are of one size, so a multiple of the dense model's own error bounds that of the other.
    """
    # Eager attention, Gemma 2's from transformers 5.23 on, gives NaN in float64 for a sequence with
    # padding: one of two.
    seen = exact.isfinite().all(-1)
    assert seen.float().mean() > 0.5
    bound = 8 * (logits(reference) - exact)[seen].abs().max()
    assert 0 < bound < 1e-2
    assert (logits(model) - exact)[seen].abs().max() <= bound


def packed_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """What a state_dict holds of the packed layers."""
    state = model.state_dict()
    return {
        f"{name}.{key}": state[f"{name}.{key}"]
        for name, layer in sparse_layers(model).items()
        for key in layer.scheme.format.tensors(layer.scheme, layer.shape)
    }


def quantization_config(path: Path) -> dict:
    return json.loads((path / "config.json").read_text()).get("quantization_config")
