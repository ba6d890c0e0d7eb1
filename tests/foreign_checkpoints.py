# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in the layouts of compressed-tensors: some that it wrote, and a writer."""

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

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
