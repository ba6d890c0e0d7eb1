# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of random weights with zeros, in the shapes of known models.

Random weights suffice for the speed, which depends on the shapes and the zeros.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

SPARSITY = 0.8  # unless --sparsity says otherwise
Shape = dict[str, Any]


def _llama(
    hidden: int, inner: int, layers: int, heads: int, kv: int, words: int, tied: bool = False
) -> Shape:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "vocab_size": words,
        "max_position_embeddings": 8192,
        "rope_theta": 500000.0,
        "tie_word_embeddings": tied,
    }


def _opt(hidden: int, layers: int, heads: int) -> Shape:
    return {
        "architectures": ["OPTForCausalLM"],
        "model_type": "opt",
        "hidden_size": hidden,
        "ffn_dim": 4 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "vocab_size": 50272,
        "word_embed_proj_dim": hidden,
        "max_position_embeddings": 2048,
    }


def _qwen3_moe(
    hidden: int, inner: int, layers: int, heads: int, kv: int, experts: int, each: int, words: int
) -> Shape:
    """A mixture of so many experts, of which a token has `each`."""
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "moe_intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": 128,
        "num_experts": experts,
        "num_experts_per_tok": each,
        "norm_topk_prob": True,
        "vocab_size": words,
        "max_position_embeddings": 8192,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": False,
    }


SHAPES = {
    "llama-3-8b": _llama(4096, 14336, 32, 32, 8, 128256),
    "llama-3-70b": _llama(8192, 28672, 80, 64, 8, 128256),
    "qwen3-30b-a3b": _qwen3_moe(2048, 768, 48, 32, 4, 128, 8, 151936),
    "opt-30b": _opt(7168, 48, 56),
    "opt-66b": _opt(9216, 64, 72),
    "smollm2-135m": _llama(576, 1536, 30, 9, 3, 49152, tied=True),
    "tiny": _llama(256, 256, 2, 4, 2, 512),
}


def kept_of(size: tuple[int, int], zeros: float | None, generator: torch.Generator) -> Tensor:
    """What is kept of a random weight: a share of all elements, or what all of our patterns keep.

    One of every 4 columns, the same for 32 rows, follows 2:4 and 8:32 with vectors of 32 rows.
    """
    device = generator.device
    if zeros is not None:
        return torch.rand(size, generator=generator, device=device) >= zeros
    groups, fours = -(-size[0] // 32), size[1] // 4
    choice = torch.randint(4, (groups, fours, 1), generator=generator, device=device)
    kept = choice == torch.arange(4, device=device)
    return kept.view(groups, 1, -1).expand(-1, 32, -1).reshape(groups * 32, -1)[: size[0]]


def make_config(shape: Shape, folder: Path) -> Any:
    """Writes the configuration, and a tokenizer with a word for each number; returns the first.

    vLLM refuses prompts of more characters than its tokens can have by the tokenizer's longest
    word, which therefore has to be longer than the others and the space between them.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoConfig, PreTrainedTokenizerFast

    config = AutoConfig.for_model(**shape, dtype="bfloat16")
    config.architectures = shape["architectures"]
    config.save_pretrained(folder)
    end = "<end of text>"
    words = {f"w{number}": number for number in range(shape["vocab_size"]) if number != 2}
    words[end] = 2
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end)
    made.save_pretrained(folder)
    return config


def random_model(shape: Shape, device: torch.device) -> Any:
    """A model of random weights in bfloat16, in evaluation mode."""
    from transformers import AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as folder:
        config = make_config(shape, Path(folder))
    torch.manual_seed(0)
    with device:
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return model.eval()


def make_checkpoint(shape: Shape, folder: Path, device: str, zeros: float | None) -> None:
    """Writes random weights, one file a layer, with zeros in the linear layers of the decoder.

    Args:
        shape: Of the model.
        folder: To write to.
        device: Where the weights are made.
        zeros: Their share; None for those of every pattern that is compared.
    """
    from transformers import AutoModelForCausalLM

    config = make_config(shape, folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    tied = set(getattr(model, "all_tied_weights_keys", {}))
    shapes = {k: tuple(v.shape) for k, v in model.state_dict().items() if k not in tied}
    linears = {f"{k}.weight" for k, v in model.named_modules() if type(v) is torch.nn.Linear}
    files: dict[str, list[str]] = {}
    for name in shapes:
        files.setdefault(name.partition(".layers.")[2].partition(".")[0] or "rest", []).append(name)
    generator = torch.Generator(device).manual_seed(0)
    weight_map = {}
    for part, names in files.items():
        tensors = {}
        for name in names:
            size = shapes[name]
            if name in linears and ".layers." in name:
                weight = torch.randn(size, generator=generator, device=device) * size[1] ** -0.5
                kept = kept_of(size, zeros, generator)
                weight *= kept * kept.float().mean() ** -0.5  # keeps the scale of activations
            elif len(size) == 2:
                weight = torch.randn(size, generator=generator, device=device) * 0.5
            else:
                weight = torch.full(size, float("norm" in name and name.endswith("weight")))
            tensors[name] = weight.bfloat16().cpu()
        save_file(tensors, folder / f"part-{part}.safetensors", {"format": "pt"})
        weight_map |= dict.fromkeys(tensors, f"part-{part}.safetensors")
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
