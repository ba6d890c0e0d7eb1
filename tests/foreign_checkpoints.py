# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in the layouts of compressed-tensors: some that it wrote, and a writer."""

import json
import shutil
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from flashsparse_plugin.formats.values.types import VALUE_TYPES, quantise, spread_scales

WRITTEN = Path(__file__).parent / "data" / "compressed_tensors"
"""What releases of compressed-tensors wrote; make.py there tells how."""

LAYOUTS = ("sparse-bitmask", "sparse-24-bitmask")


def tensors_of(weight, layout):
    """The tensors of a weight as compressed-tensors 0.14 writes them."""
    if layout == "sparse-bitmask":
        kept, shape = weight != 0, torch.tensor(weight.shape)
    else:
        best = weight.view(-1, 4).abs().topk(2, dim=1).indices
        kept = torch.zeros(weight.numel() // 4, 4, dtype=torch.bool).scatter_(1, best, True)
        kept, shape = kept.view(weight.shape), torch.tensor(weight.shape).view(2, 1)
    mask = torch.from_numpy(np.packbits(kept.numpy(), axis=-1, bitorder="little"))
    made = {"shape": shape, "compressed": weight[kept], "bitmask": mask}
    if layout == "sparse-bitmask":
        return made | {"row_offsets": kept.sum(-1).cumsum(0) - kept.sum(-1)}
    return made | {"compressed": made["compressed"].view(len(weight), -1)}


def sparsity_config(layout):
    sparsity = {"format": layout, "targets": ["Linear"], "ignore": ["lm_head"]}
    return {
        "quant_method": "compressed-tensors",
        "sparsity_config": sparsity,
        "transform_config": {},
        "version": "0.14.0.1",
    }


def rewrite(folder, layout, config="quantization_config"):
    """Turns a dense model directory into one of a layout; a dense one is marked as sparse alone."""
    for file in folder.glob("*.safetensors"):
        written = {}
        for name, tensor in load_file(file).items():
            prefix = name.removesuffix(".weight")
            if layout in LAYOUTS and prefix.endswith("_proj"):
                parts = tensors_of(tensor, layout)
                written |= {f"{prefix}.{part}": each for part, each in parts.items()}
            else:
                written[name] = tensor
        save_file(written, file, {"format": "pt"})
    data = json.loads((folder / "config.json").read_text())
    data[config] = sparsity_config(layout)
    (folder / "config.json").write_text(json.dumps(data))
    return folder


def as_sparse_llama(folder):
    """Has a Llama of 2:4 weights describe itself as Sparse-Llama-3.1-8B-2of4 does on the Hub.

    That is, not at all: its weights are stored with their zeros, in a config.json of transformers 4
    without a word of them, of a Llama 3.1 with its scaled RoPE. Engines take it for a dense model.
    """
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for name in ("dtype", "rope_parameters", "head_dim", "quantization_config"):
        config.pop(name, None)
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling |= {"original_max_position_embeddings": 8192, "rope_type": "llama3"}
    config |= {"torch_dtype": "bfloat16", "rope_scaling": scaling, "rope_theta": 500000.0}
    config |= {"max_position_embeddings": 131072, "transformers_version": "4.45.2"}
    path.write_text(json.dumps(config))
    return folder


# What is quantized


IDLE_SPARSITY = {
    "format": "dense",
    "global_sparsity": 0.153,
    "ignore": ["model.layers.0.mlp.down_proj", "lm_head"],
    "registry_requires_subclass": False,
    "sparsity_structure": "unstructured",
    "targets": ["model.layers.1.self_attn.q_proj"],
}
"""Like that of RedHatAI's granite-3.1-8b-instruct-quantized.w4a16: rounding made some zeros, and
the weights are stored as any of 4 bits."""

QUANTIZED = (
    "fp8-dynamic-24",
    "fp8-tensor",
    "int8-24",
    "int8",
    "int8-packed",
    "int4-packed",
    "marlin-24",
)
"""Folders of checkpoints that compressed-tensors quantized; make_quantized.py tells how."""


def written(name, folder):
    """A copy of what compressed-tensors wrote, without what it is to be."""
    folder.mkdir(parents=True)
    for file in ("config.json", "model.safetensors"):
        shutil.copy(WRITTEN / name / file, folder)
    return folder


def unstructured(path, structure="unstructured"):
    """Has a checkpoint tell of zeros that follow no pattern, by one of the names for that."""
    file = path / "config.json"
    config = json.loads(file.read_text())
    sparsity = config["quantization_config"]["sparsity_config"]
    sparsity |= {"sparsity_structure": structure, "format": "dense"}
    file.write_text(json.dumps(config))
    return path


def expected(name):
    """The dense tensors that compressed-tensors makes of a checkpoint."""
    return load_file(WRITTEN / name / "expected.safetensors")


def edit_groups(folder, *, weights=None, **changes):
    """Changes what config.json says of quantization: of weights in every group, and at large."""
    path = folder / "config.json"
    data = json.loads(path.read_text())
    quantization = data["quantization_config"]
    quantization |= changes
    for group in quantization["config_groups"].values():
        group["weights"] |= weights or {}
    path.write_text(json.dumps(data))


def quantize(dense, target, values, group=None, activations=False):
    """Writes a dense model directory as compressed-tensors does, and the one that it stands for.

    8-bit codes are kept a byte each, int4 ones in words; config.json says that there are zeros, and
    where it is asked for that activations are rounded by token.

    Returns:
        The directory of the codes, and that of their products with the scales.
    """
    kind = VALUE_TYPES[values]
    folder, twin = (shutil.copytree(dense, target / name) for name in ("codes", "twin"))
    stored, products = {}, {}
    for name, tensor in load_file(dense / "model.safetensors").items():
        layer = name.removesuffix(".weight")
        if not layer.endswith("_proj"):
            stored[name] = products[name] = tensor
            continue
        codes, scales = quantise(tensor, kind, group)
        spread = spread_scales(scales.float(), codes.shape[1], group)
        products[name] = (codes.float() * spread).to(tensor.dtype)
        stored[f"{layer}.weight_scale"] = scales
        if kind.bits == 8:
            fp8 = values == "fp8_e4m3"
            stored[name] = codes.to(torch.float8_e4m3fn if fp8 else torch.int8)
            continue
        nibbles = (codes.to(torch.int32) + 8).unflatten(1, (-1, 8))
        words = (nibbles << torch.arange(0, 32, 4, dtype=torch.int32)).sum(2, dtype=torch.int32)
        stored[f"{layer}.weight_packed"] = words
        stored[f"{layer}.weight_shape"] = torch.tensor(codes.shape)
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    save_file(products, twin / "model.safetensors", {"format": "pt"})
    weights = {"num_bits": kind.bits, "type": "float" if values == "fp8_e4m3" else "int"}
    weights |= {"strategy": "group" if group else "channel", "group_size": group}
    how = {"targets": ["Linear"], "weights": weights}
    if activations:
        how["input_activations"] = weights | {"strategy": "token", "dynamic": True}
    data = json.loads((folder / "config.json").read_text())
    data["quantization_config"] = sparsity_config("dense") | {
        "config_groups": {"group_0": how},
        "format": "pack-quantized" if kind.bits == 4 else "naive-quantized",
    }
    data["quantization_config"]["sparsity_config"]["sparsity_structure"] = "2:4"
    (folder / "config.json").write_text(json.dumps(data))
    return folder, twin
