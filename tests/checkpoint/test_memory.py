# SPDX-License-Identifier: Apache-2.0
"""A conversion never holds the model: peak memory is bounded by a shard, not by the checkpoint."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

from flashsparse_plugin.checkpoint import ModelDirectory

LAYERS, HIDDEN, INNER = 4, 2048, 8192
CONVERT = """
import json, pathlib, re, sys
from flashsparse_plugin.checkpoint import convert_checkpoint
report = convert_checkpoint(sys.argv[1], sys.argv[2])
# ru_maxrss would count the memory of the process that started this one.
status = pathlib.Path("/proc/self/status").read_text()
peak = int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) * 1024
print(json.dumps([peak, len(report.packed)]))
"""


def save_large(path):
    """A 620 MB bfloat16 Llama at about 80% sparsity, in one file a layer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=16,
        num_key_value_heads=16,
        vocab_size=8192,
        dtype="bfloat16",
    )
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(path)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    # One mask for all weights: making random numbers would take longer than the conversion.
    values = torch.randn(HIDDEN * INNER, generator=torch.Generator().manual_seed(0))
    values[values.abs() < 1.2816] = 0
    values = values.bfloat16()
    files = {}
    for name, parameter in model.named_parameters():
        part = name.split(".")[2] if ".layers." in name else "rest"
        weight = values[: parameter.numel()].view(parameter.shape)
        files.setdefault(f"model-{part}.safetensors", {})[name] = weight
    for file, tensors in files.items():
        save_file({name: tensor.clone() for name, tensor in tensors.items()}, path / file)
    weight_map = {name: file for file, tensors in files.items() for name in tensors}
    index = {"metadata": {}, "weight_map": weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.slow
def test_peak_memory_is_the_largest_shard_and_a_gigabyte(tmp_path):
    dense, out = tmp_path / "dense", tmp_path / "out"
    dense.mkdir()
    save_large(dense)
    directory = ModelDirectory(dense)
    assert len(directory.shards) == LAYERS + 1
    assert directory.nbytes > 600e6
    largest = max(path.stat().st_size for path in directory.shards)
    done = subprocess.run(
        [sys.executable, "-c", CONVERT, str(dense), str(out)],
        capture_output=True,
        text=True,
        check=True,
    )
    peak, packed = json.loads(done.stdout)
    print(f"peak {peak / 1e6:.0f} MB, largest shard {largest / 1e6:.0f} MB")
    assert packed == 7 * LAYERS
    assert peak <= largest + 1e9
    # Not only because the bound is wide: far below what holding the model would take, which is
    # what torch and transformers take (about 350 MB) and the model.
    assert peak < directory.nbytes + 200e6
