# SPDX-License-Identifier: Apache-2.0
"""Writes the tiny checkpoints with codes beside this file, by the last release that could.

    pip install compressed-tensors==0.14.0.1 "transformers<5"   then   python make_quantized.py

`model.safetensors` and `config.json` are what compressed-tensors writes. `expected.safetensors` is
what it makes of them when it decompresses them. It cannot decompress marlin-24: there they are the
weights before, which are codes times scales already.
"""

from pathlib import Path

import torch
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.config import SparsityCompressionConfig
from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config
from compressed_tensors.quantization.lifecycle.forward import fake_quantize
from compressed_tensors.quantization.quant_scheme import preset_name_to_scheme
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

IGNORED = ["lm_head"]


def model(hidden: int, intermediate: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = dict(hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=1)
    heads = dict(num_attention_heads=hidden // 32, num_key_value_heads=hidden // 32)
    config = LlamaConfig(**sizes, **heads, vocab_size=16, max_position_embeddings=32)
    config.tie_word_embeddings = False
    return LlamaForCausalLM(config).to(torch.bfloat16)


def linears(made: LlamaForCausalLM):
    for name, module in made.named_modules():
        if isinstance(module, torch.nn.Linear) and name not in IGNORED:
            yield module


@torch.no_grad()
def write(
    name: str,
    presets: dict[str, str],
    format: str,
    sparsity: str = "dense",
    sizes: tuple[int, int] = (32, 64),
    **weights: object,
) -> None:
    """Writes a model with 2:4 codes.

    Args:
        name: Folder.
        presets: By target, compressed-tensors' name of a scheme.
        format: Its layout of codes.
        sparsity: Its layout of zeros, "dense" for none.
        sizes: hidden_size and intermediate_size.
        **weights: How weights differ from the preset.
    """
    folder = Path(__file__).parent / name
    made = model(*sizes)
    groups = {}
    for number, (target, preset) in enumerate(presets.items()):
        scheme = preset_name_to_scheme(preset, [target])
        own = scheme.weights.model_copy(update=weights)
        groups[f"group_{number}"] = scheme.model_copy(update={"weights": own, "format": format})
    quantization = QuantizationConfig(config_groups=groups, format=format, ignore=IGNORED)
    for module in linears(made):
        weight = module.weight.normal_()
        best = weight.view(-1, 4).abs().topk(2, dim=1).indices
        weight.mul_(torch.zeros_like(weight.view(-1, 4)).scatter_(1, best, 1).view(weight.shape))
        weight[1] = 0  # a row without a value
    apply_quantization_config(made, quantization)
    for module in linears(made):
        args = module.quantization_scheme.weights
        weight, width = module.weight, args.group_size or module.weight.shape[1]
        parts = weight if args.strategy == "tensor" else weight.view(len(weight), -1, width)
        ends = (torch.min, torch.max) if args.strategy == "tensor" else (torch.amin, torch.amax)
        low, high = (end(parts) if parts is weight else end(parts, -1) for end in ends)
        scale, _ = calculate_qparams(low, high, args)
        module.weight_scale.copy_(scale.view(module.weight_scale.shape))
        if hasattr(module, "input_scale"):
            module.input_scale.fill_(0.5)
        # What the codes stand for, so that they are found again.
        module.weight.copy_(fake_quantize(weight, module.weight_scale, None, args))
    before = {key: tensor.clone() for key, tensor in made.state_dict().items()}
    zeros = SparsityCompressionConfig.load_from_registry(
        sparsity,
        targets=["Linear"],
        ignore=IGNORED,
        global_sparsity=0.5,
        sparsity_structure="2:4",
    )
    compressor = ModelCompressor.from_pretrained_model(made, zeros, format)
    made.save_pretrained(folder, state_dict=compressor.compress(made), safe_serialization=True)
    compressor.update_config(folder)
    (folder / "generation_config.json").unlink()
    expected = {key: x for key, x in before.items() if "scale" not in key and "zero" not in key}
    if format != "marlin-24":
        compressor.compress_model(made)
        compressor.decompress_model(made)
        expected = {key: x for key, x in made.state_dict().items() if key in expected}
    save_file({key: x.contiguous() for key, x in expected.items()}, folder / "expected.safetensors")


if __name__ == "__main__":
    write("fp8-dynamic-24", {"Linear": "FP8_DYNAMIC"}, "float-quantized", "sparse-24-bitmask")
    write("fp8-tensor", {"Linear": "FP8"}, "float-quantized")
    write("int8-24", {"Linear": "W8A8"}, "int-quantized", "sparse-24-bitmask")
    write("int8", {"Linear": "W8A16"}, "int-quantized")
    write("int8-packed", {"Linear": "W8A16"}, "pack-quantized")
    write("int4-packed", {"Linear": "W4A16"}, "pack-quantized", group_size=32)
    mixed = {"Linear": "W8A16", "re:.*down_proj": "W4A16"}
    write("marlin-24", mixed, "marlin-24", sizes=(64, 384))
