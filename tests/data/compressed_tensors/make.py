# SPDX-License-Identifier: Apache-2.0
"""Writes the tiny checkpoints beside this file by releases of compressed-tensors that could.

0.14 is the last that writes sparse layouts, and it excludes the transformers and vLLM of the test
environment. Each in an environment of its own, with torch:

    pip install compressed-tensors==0.14.0.1 "transformers<5"   then   python make.py
    pip install compressed-tensors==0.8.1 transformers==4.46.3  then   python make.py

`model.safetensors` and `config.json` are what compressed-tensors writes, `expected.safetensors` is
what it makes of them when it decompresses them.
"""

from importlib.metadata import version
from pathlib import Path

import torch
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.compressors.sparse_compressors.sparse_bitmask import BitmaskTensor
from compressed_tensors.config import SparsityCompressionConfig
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

OLD = version("compressed-tensors").startswith("0.8.")


def model() -> LlamaForCausalLM:
    """A Llama whose shapes leave bits of the masks' last bytes unused."""
    torch.manual_seed(0)
    sizes = dict(hidden_size=20, intermediate_size=28, num_hidden_layers=1, vocab_size=16)
    heads = dict(num_attention_heads=2, num_key_value_heads=1, head_dim=10, attention_bias=True)
    config = LlamaConfig(**sizes, **heads, max_position_embeddings=32, tie_word_embeddings=False)
    made = LlamaForCausalLM(config).to(torch.bfloat16)
    for module in made.modules():
        if isinstance(module, torch.nn.Linear):
            module.weight.data.normal_()
            if module.bias is not None:
                module.bias.data.normal_()[0] = 0
    return made


@torch.no_grad()
def drop(made: LlamaForCausalLM, structure: str) -> None:
    for name, module in made.named_modules():
        if not isinstance(module, torch.nn.Linear) or name == "lm_head":
            continue
        weight = module.weight
        if structure == "2:4":
            best = weight.view(-1, 4).abs().topk(2, dim=1).indices
            keep = torch.zeros_like(weight.view(-1, 4)).scatter_(1, best, 1).view(weight.shape)
        else:
            keep = torch.rand_like(weight.float()) < 0.4
        weight.mul_(keep)
        weight[0] = 0  # a row without a value, of both signs of zero
        weight[0, ::2] = -0.0
        weight[1, 4:8] = torch.tensor([0, float("nan"), 0, float("-inf")])


def write(name: str, format: str, structure: str) -> None:
    folder = Path(__file__).parent / name
    made = model()
    drop(made, structure)
    options = {} if OLD else {"targets": ["Linear"], "ignore": ["lm_head"]}
    options |= {"format": format, "global_sparsity": 0.5, "sparsity_structure": structure}
    config = SparsityCompressionConfig.load_from_registry(options.pop("format"), **options)
    compressor = ModelCompressor.from_pretrained_model(made, config)
    made.save_pretrained(folder, state_dict=compressor.compress(made))
    compressor.update_config(folder)
    (folder / "generation_config.json").unlink()
    if format == "dense":
        return
    if OLD:  # decompress() of 0.8 takes a bias for a weight
        back = ((n, BitmaskTensor.from_dense(t).decompress()) for n, t in made.state_dict().items())
    else:
        back = compressor.sparsity_compressor.decompress(str(folder), params_to_skip_load=())
    save_file({name: tensor.contiguous() for name, tensor in back}, folder / "expected.safetensors")


if OLD:
    write("sparse-bitmask-0.8", "sparse-bitmask", "unstructured")
else:
    write("sparse-bitmask", "sparse-bitmask", "unstructured")
    write("sparse-24-bitmask", "sparse-24-bitmask", "2:4")
    write("dense", "dense", "2:4")
