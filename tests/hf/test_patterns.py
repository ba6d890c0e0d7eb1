# SPDX-License-Identifier: Apache-2.0
"""N:M patterns in whole models: pruned while they load, saved as they were."""

import pytest
import torch
from checkpoints import edit_weights, load_all, quantization, save_llama
from transformers import AutoModelForCausalLM

import flashsparse_plugin as fs
from flashsparse_plugin.checkpoint import convert_checkpoint
from flashsparse_plugin.formats.pattern.options import PatternOptions
from flashsparse_plugin.pruning import prune_weight

PATTERN = {"n": 2, "m": 4}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A dense checkpoint that follows 2:4, and the same packed."""
    dense, packed = tmp_path_factory.mktemp("dense"), tmp_path_factory.mktemp("packed") / "model"
    save_llama(dense, intermediate_size=192)

    def prune(tensors):
        for name, tensor in tensors.items():
            if "_proj" in name:
                tensors[name] = PatternOptions(**PATTERN).keep_largest(tensor).contiguous()

    edit_weights(dense, prune)
    convert_checkpoint(dense, packed, format="nm_vector", options=PATTERN)
    return dense, packed


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "packed while it loads"])
def test_a_model_that_is_asked_for_cusparselt_loads_without_it(folders, tmp_path, caplog, packed):
    settings = {} if packed else {"format": "nm_vector", "options": PATTERN}
    config = fs.FlashSparseConfig(**settings, prompts="cusparselt")
    assert 'prompts="cusparselt" is ignored' in caplog.text
    model = AutoModelForCausalLM.from_pretrained(
        folders[packed], dtype=torch.bfloat16, quantization_config=config
    )
    assert any(isinstance(module, fs.SparseLinear) for module in model.modules())
    model.save_pretrained(tmp_path)
    written, before = load_all(tmp_path), load_all(folders[1])
    assert written.keys() == before.keys()
    assert all(torch.equal(written[name], tensor) for name, tensor in before.items())
    for name in ("format", "options"):
        assert quantization(tmp_path)[name] == quantization(folders[1])[name]
    assert "prompts" not in quantization(tmp_path)


def test_a_broken_pattern_names_the_layer(folders, tmp_path):
    dense = save_llama(tmp_path, intermediate_size=192)
    name = "model.layers.1.mlp.up_proj"

    def but_one(tensors):
        tensors.update(load_all(folders[0]))
        tensors[f"{name}.weight"] = torch.ones_like(tensors[f"{name}.weight"])

    edit_weights(dense, but_one)
    config = fs.FlashSparseConfig(format="2:4")
    with pytest.raises(fs.FormatError, match=rf"layer '{name}' \[192, 128\]: .*pattern 2:4"):
        AutoModelForCausalLM.from_pretrained(dense, quantization_config=config)


@pytest.mark.parametrize(("settings", "told"), [({}, True), ({"format": "tiled_bitmap"}, False)])
def test_a_pattern_that_nobody_named_is_told(tmp_path, caplog, settings, told):
    dense = save_llama(tmp_path, sparsity=0)

    def prune(tensors):
        for name, tensor in tensors.items():
            if "_proj" in name:
                tensors[name] = PatternOptions(**PATTERN).keep_largest(tensor).contiguous()

    edit_weights(dense, prune)
    config = fs.FlashSparseConfig(**settings)
    AutoModelForCausalLM.from_pretrained(dense, quantization_config=config)
    assert ("faster: FlashSparseConfig(format='2:4'), or" in caplog.text) == told


def test_zeros_anywhere_are_no_pattern(tmp_path, caplog):
    config = fs.FlashSparseConfig()
    AutoModelForCausalLM.from_pretrained(save_llama(tmp_path), quantization_config=config)
    assert "follow a pattern" not in caplog.text


def test_a_dense_model_is_pruned_by_the_pattern_that_it_is_packed_to(tmp_path):
    dense = save_llama(tmp_path, sparsity=0)
    options = {"n": 8, "m": 32, "vector_length": 4}
    config = fs.FlashSparseConfig(format="nm_vector", options=options, pruning="magnitude")
    model = AutoModelForCausalLM.from_pretrained(dense, quantization_config=config)
    layers = {n: m for n, m in model.named_modules() if isinstance(m, fs.SparseLinear)}
    weight = load_all(dense)["model.layers.0.mlp.up_proj.weight"]
    kept = prune_weight(weight, pattern=(8, 32), vector_length=4)
    assert torch.equal(layers["model.layers.0.mlp.up_proj"].weight, kept)
    config.sparsity = 0.5
    with pytest.raises(ValueError, match="8:32 has a sparsity of 0.75, not 0.5"):
        AutoModelForCausalLM.from_pretrained(dense, quantization_config=config)
