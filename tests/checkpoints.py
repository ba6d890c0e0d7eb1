# SPDX-License-Identifier: Apache-2.0
"""Small pruned checkpoints on disk, and what tests ask of packed ones."""

import json

import torch
from safetensors.torch import load_file, save_file

import flashsparse_plugin as fs

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


PACKED = ("weight_packed", "unit_offsets")


def load_all(path):
    tensors = {}
    for file in path.glob("*.safetensors"):
        tensors |= load_file(file)
    return tensors


def edit_config(path, **changes):
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | changes))


def edit_weights(path, change):
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors")


def unalign(path):
    """Moves the tensors of a model by one byte, which is legal: a header need not be padded."""
    for file in path.glob("*.safetensors"):
        data = file.read_bytes()
        end = 8 + int.from_bytes(data[:8], "little")
        header = data[8:end].rstrip(b" ")
        header += b" " * (1 + -len(header) % 8)
        file.write_bytes(len(header).to_bytes(8, "little") + header + data[end:])
    return path


def quantization(path):
    return json.loads((path / "config.json").read_text())["quantization_config"]


def unpack(tensors, layer, shape, dtype=torch.bfloat16):
    stored = {name: tensors[f"{layer}.{name}"] for name in PACKED}
    scheme = fs.get_format("tiled_bitmap").scheme(dtype)
    return fs.PackedWeight(scheme, shape, stored).validate().unpack()


def bits(tensor):
    """Bits of a 16-bit tensor, -0 as +0."""
    found = tensor.contiguous().view(torch.int16)
    return torch.where((found & 0x7FFF) == 0, 0, found)


def assert_same_model(dense, packed, dtype=torch.bfloat16):
    """Every tensor of `dense` is in `packed`, as it is or packed; and nothing else is."""
    before, after = load_all(dense), load_all(packed)
    left = set(after)
    packed_layers = 0
    for name, tensor in before.items():
        layer = name.removesuffix(".weight")
        if f"{layer}.weight_packed" in after:
            weight = unpack(after, layer, tuple(tensor.shape), dtype)
            assert torch.equal(bits(weight), bits(tensor.to(dtype))), name
            left -= {f"{layer}.{part}" for part in PACKED}
            packed_layers += 1
        else:
            assert after[name].dtype == tensor.dtype
            assert torch.equal(after[name].view(torch.uint8), tensor.view(torch.uint8)), name
            left.discard(name)
    assert left == set()
    return packed_layers
