# SPDX-License-Identifier: Apache-2.0
"""Tiny random causal LMs of many architectures, and a tokenizer of one token a character."""

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    Gemma2Config,
    Gemma3TextConfig,
    Glm4Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    OPTConfig,
    Phi3Config,
    PreTrainedTokenizerFast,
    Qwen3Config,
)
from transformers.models.auto import AutoModelForCausalLM

VOCAB = 96

_COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GATED = _COMMON | {"intermediate_size": 48, "num_key_value_heads": 2, "head_dim": 8}

CONFIGS = {
    "llama": lambda: LlamaConfig(**_GATED, tie_word_embeddings=False),
    "llama-tied": lambda: LlamaConfig(**_GATED, tie_word_embeddings=True),
    "mistral": lambda: MistralConfig(**_GATED, sliding_window=8),
    "qwen3": lambda: Qwen3Config(**_GATED),
    "phi3": lambda: Phi3Config(**_GATED),
    # Layers that differ in their mask, and in Gemma 3 in their rotary embedding too.
    "gemma2": lambda: Gemma2Config(**_GATED, sliding_window=8),
    "gemma3": lambda: Gemma3TextConfig(
        **_GATED,
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    "glm4": lambda: Glm4Config(**_GATED),
    "gpt_neox": lambda: GPTNeoXConfig(**_COMMON, intermediate_size=48),
    "opt": lambda: OPTConfig(**_COMMON, ffn_dim=48),
    # As OPT-350m: linears before and after the decoder layers.
    "opt-projected": lambda: OPTConfig(
        **_COMMON, ffn_dim=48, word_embed_proj_dim=16, do_layer_norm_before=False
    ),
}


def tiny_model(name: str, dtype: torch.dtype = torch.float32):
    """A random model in evaluation mode; the same weights at every call."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[name]()).eval()
    return model.to(dtype)


def character_tokenizer(bos: bool = False) -> PreTrainedTokenizerFast:
    """One token a character, three special ones; `bos` adds a BOS in front of every text."""
    characters = ["<pad>", "<s>", "</s>", *map(chr, range(32, 32 + VOCAB - 3))]
    vocabulary = {character: i for i, character in enumerate(characters)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 1)]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
