# SPDX-License-Identifier: Apache-2.0
"""Small pruned checkpoints, dense and packed, and what transformers makes of them."""

import functools
import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tiny_causal_lms import CONFIGS, VOCAB, character_tokenizer
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertForSequenceClassification,
    BloomConfig,
    Glm4MoeConfig,
    GPT2Config,
    GptOssConfig,
    GraniteMoeConfig,
    LlamaConfig,
    MixtralConfig,
    OlmoeConfig,
    Qwen2MoeConfig,
    Qwen3MoeConfig,
)

from flashsparse_plugin.checkpoint import convert_checkpoint
from flashsparse_plugin.pruning import prune

PROMPTS = [[5, 9, 33, 70, 12, 8], [44, 3, 17], [90, 61, 28, 28, 15, 7, 81, 60, 22], [10]]
MAX_TOKENS = 12

OWN_CONFIGS = CONFIGS | {
    # Its heads are interleaved in one weight, which vLLM takes apart while it loads.
    "bloom": lambda: BloomConfig(n_head=4, pad_token_id=0),
    # Its weights are transposed, and vLLM turns them while it loads.
    "gpt2": lambda: GPT2Config(n_embd=128, n_head=4, n_positions=64, eos_token_id=2),
    # Its experts are packed one by one, as streams of different lengths.
    "mixtral": lambda: MixtralConfig(
        num_attention_heads=4, num_key_value_heads=2, num_local_experts=4
    ),
    # Files have its experts in one tensor of a layer, and vLLM in another.
    "granitemoe": lambda: GraniteMoeConfig(
        num_attention_heads=4, num_key_value_heads=2, num_local_experts=4
    ),
    # Files have its experts in one tensor, transposed, with rows of gate and up by turns.
    "gpt_oss": lambda: GptOssConfig(
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        num_hidden_layers=3,
        layer_types=["full_attention"] * 3,
    ),
    "olmoe": lambda: OlmoeConfig(
        num_attention_heads=4, num_key_value_heads=4, num_experts=4, num_experts_per_tok=2
    ),
    # With an expert that all tokens have.
    "qwen2_moe": lambda: Qwen2MoeConfig(
        num_attention_heads=4,
        num_key_value_heads=2,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        shared_expert_intermediate_size=64,
        num_hidden_layers=3,
    ),
    # Its first layer has no experts; routed by groups, with a bias for each expert.
    "glm4_moe": lambda: Glm4MoeConfig(
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        first_k_dense_replace=1,
    ),
    # Its routers are linear layers in vLLM, and quantized there if a configuration says so.
    "qwen3_moe": lambda: Qwen3MoeConfig(
        num_attention_heads=4, num_key_value_heads=2, num_experts=8, moe_intermediate_size=64
    ),
}


def make(
    name: str, folder: Path, sparsity: float | None = 0.8, pattern=None, **changes
) -> tuple[Path, Path]:
    """Writes a tiny random pruned model; returns its dense directory and its packed one."""
    model = _random_model(OWN_CONFIGS[name](), **changes)
    if sparsity or pattern:
        prune(model, method="magnitude", sparsity=sparsity, pattern=pattern, progress=False)
    dense, packed = folder / f"{name}-dense", folder / f"{name}-packed"
    _save(model, dense)
    convert_checkpoint(dense, packed, pack_all=True)
    return dense, packed


def calibrate(folder: Path, phi: list[float], **changes) -> Path:
    """Writes phi of the heads of a layer, the same for all layers, into a model's config.json."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    layer = {"phi": phi, "a": -1.0, "b": 1.0, "recomputed": 0.0}
    layers = [layer] * config["num_hidden_layers"]
    config["unified_max"] = {"version": 1, "dtype": "bfloat16", "layers": layers} | changes
    path.write_text(json.dumps(config))
    return folder


def make_uneven(folder: Path, layers: int, sparsity: float = 0.8) -> Path:
    """Writes a dense pruned Llama in which no two layers have the same number of zeros."""
    model = _random_model(OWN_CONFIGS["llama"](), num_hidden_layers=layers, hidden_size=256)
    with torch.no_grad():
        for i, layer in enumerate(model.model.layers):
            for linear in (m for m in layer.modules() if isinstance(m, torch.nn.Linear)):
                zeros = int((sparsity + 4e-3 * (i / layers - 0.5)) * linear.weight.numel())
                order = torch.randperm(linear.weight.numel())
                linear.weight.view(-1)[order[:zeros]] = 0
    _save(model, folder)
    return folder


def make_classifier(folder: Path) -> tuple[Path, Path]:
    """Writes a pruned BERT with a classifier; its pooler is a plain nn.Linear in vLLM."""
    sizes = {"hidden_size": 128, "intermediate_size": 160, "num_hidden_layers": 2}
    config = BertConfig(**sizes, num_attention_heads=4, vocab_size=VOCAB, initializer_range=0.2)
    torch.manual_seed(0)
    model = BertForSequenceClassification(config).to(torch.bfloat16).eval()
    prune(model, method="magnitude", sparsity=0.8, progress=False)
    _save(model, folder / "dense")
    convert_checkpoint(folder / "dense", folder / "packed", pack_all=True)
    return folder / "dense", folder / "packed"


@torch.no_grad()
def probabilities(path: Path) -> list[list[float]]:
    """What transformers says of the prompts in float32, from the dense weights of a classifier."""
    model = BertForSequenceClassification.from_pretrained(path, dtype=torch.float32)
    given = [model(input_ids=torch.tensor([prompt])).logits for prompt in PROMPTS]
    return [logits[0].softmax(-1).tolist() for logits in given]


def _random_model(config, **changes):
    """Heads are of 32 elements: the least that vLLM's attention on a CPU works with."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 160, "ffn_dim": 160, "vocab_size": VOCAB}
    sizes |= {"num_hidden_layers": 3, "head_dim": 32} | changes
    for key, value in sizes.items():
        if hasattr(config, key):
            setattr(config, key, value)
    model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:  # large enough for the logits to be far apart
                parameter.normal_(0, 0.25)
    return model


def _save(model, folder: Path) -> None:
    model.save_pretrained(folder)
    character_tokenizer().save_pretrained(folder)


def make_large(folder: Path, layers: int = 9, sparsity: float = 0.8) -> Path:
    """Writes a random pruned Llama of 103 MB a layer, dense, one file a layer."""
    sizes = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": layers}
    heads = {"num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": VOCAB}
    config = LlamaConfig(**sizes, **heads, max_position_embeddings=64, dtype="bfloat16")
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)
    character_tokenizer().save_pretrained(folder)
    with torch.device("meta"):
        shapes = {
            name: tuple(parameter.shape)
            for name, parameter in AutoModelForCausalLM.from_config(config).named_parameters()
        }

    @functools.cache  # all layers are the same: random numbers would take most of the time
    def weight(shape: tuple[int, ...], pruned: bool) -> torch.Tensor:
        made = torch.randn(shape).bfloat16() * 0.02
        return made * (torch.rand(shape) >= sparsity) if pruned else made

    torch.manual_seed(0)
    weight_map = {}
    for part in ["embed", *(f"layers.{i}." for i in range(layers)), "norm.weight", "lm_head"]:
        names = [name for name in shapes if part in name and name not in weight_map]
        tensors = {name: weight(shapes[name], "_proj" in name).clone() for name in names}
        file = f"{part.strip('.')}.safetensors"
        save_file(tensors, folder / file, {"format": "pt"})
        weight_map |= dict.fromkeys(tensors, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@torch.no_grad()
def greedy(
    path: Path,
    prompts=PROMPTS,
    max_tokens: int = MAX_TOKENS,
    head: torch.Tensor | None = None,
    embedding: torch.Tensor | None = None,
) -> list[list[int]]:
    """What transformers generates in float32 from the dense weights with their zeros.

    Where `head` or `embedding` is given, it is the weight of that.
    """
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    if head is not None:
        model.lm_head.weight = torch.nn.Parameter(head)
    if embedding is not None:
        model.model.embed_tokens.weight = torch.nn.Parameter(embedding)
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
