# SPDX-License-Identifier: Apache-2.0
"""N:M patterns in whole models: pruned while they load, and prompts=cusparselt by a stand-in."""

import pytest
import torch
from checkpoints import edit_weights, load_all, quantization, save_llama
from stub_cusparselt import install
from transformers import AutoModelForCausalLM

import flashsparse_plugin as fs
from flashsparse_plugin.checkpoint import convert_checkpoint
from flashsparse_plugin.formats.nm_pattern import PatternOptions
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


def load(path, **settings):
    config = fs.FlashSparseConfig(**settings, prompts="cusparselt")
    return AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.bfloat16, quantization_config=config
    )


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "packed while it loads"])
def test_a_model_takes_both_copies_and_is_saved_as_it_was(folders, tmp_path, monkeypatch, packed):
    library = install(monkeypatch, as_if_on_a_gpu=True)
    settings = {} if packed else {"format": "nm_vector", "options": PATTERN}
    model = load(folders[packed], **settings)
    layers = [m for m in model.modules() if isinstance(m, fs.SparseLinear)]
    assert layers and {layer.held.format.name for layer in layers} == {"cusparselt_24"}
    assert "27.00 bits a weight" in repr(layers[1])  # of 128 columns units are half empty
    ids = torch.randint(100, (1, 300), generator=torch.Generator().manual_seed(0))
    dense = AutoModelForCausalLM.from_pretrained(folders[0], dtype=torch.bfloat16)
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, dense(ids).logits, rtol=0.05, atol=0.05)
        assert len(library.products) == len(layers)
        model(ids[:, :9])
    assert len(library.products) == len(layers)
    model.save_pretrained(tmp_path)
    written, before = load_all(tmp_path), load_all(folders[1])
    assert written.keys() == before.keys()
    assert all(torch.equal(written[name], tensor) for name, tensor in before.items())
    for name in ("format", "options"):
        assert quantization(tmp_path)[name] == quantization(folders[1])[name]
    assert "prompts" not in quantization(tmp_path)


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


def test_on_a_cpu_it_is_refused_by_the_name_of_the_layer(folders):
    with pytest.raises(
        fs.FormatError, match=r"layer 'model.layers.0.*\[128, 128\].*NVIDIA GPUs.*Re"
    ):
        load(folders[1])
    with pytest.raises(fs.FormatError, match="NVIDIA GPUs"):
        load(folders[0], format="nm_vector", options=PATTERN)


def test_it_is_no_option_of_a_conversion(folders, tmp_path):
    with pytest.raises(fs.FormatError, match="chosen where a model is loaded, and not stored"):
        convert_checkpoint(
            folders[0], tmp_path / "out", format="nm_vector", options=PATTERN | {"prompts": "own"}
        )
