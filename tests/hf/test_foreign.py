# SPDX-License-Identifier: Apache-2.0
"""from_pretrained on sparse checkpoints of compressed-tensors: as on the dense ones."""

import shutil

import pytest
import tiny
import torch
from checkpoints import edit_config, edit_weights
from foreign_checkpoints import as_sparse_llama, rewrite, sparsity_config
from safetensors.torch import load_file, save_file

import flashsparse_plugin as fs
from flashsparse_plugin.checkpoint import CheckpointError
from flashsparse_plugin.pruning import prune_weight

pytestmark = pytest.mark.oldest_transformers

LAYOUTS = ("sparse-bitmask", "sparse-24-bitmask", "dense")
Q = "model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def twins(llama, tmp_path_factory):
    """By layout, a checkpoint and the dense one that it stands for."""
    root = tmp_path_factory.mktemp("twins")
    made = {}
    for layout in LAYOUTS:
        dense = shutil.copytree(llama.masked, root / f"{layout}-twin")
        if layout == "sparse-24-bitmask":
            weights = load_file(dense / "model.safetensors")
            for name in weights:
                if name.endswith("_proj.weight"):
                    weights[name] = prune_weight(weights[name], pattern=(2, 4))
            save_file(weights, dense / "model.safetensors", {"format": "pt"})
        made[layout] = rewrite(shutil.copytree(dense, root / layout), layout), dense
    return made


@pytest.mark.parametrize("layout", LAYOUTS)
def test_with_a_configuration_they_are_packed(layout, twins, tmp_path):
    path, dense = twins[layout]
    model = tiny.load(path, quantization_config=fs.FlashSparseConfig(dtype="bfloat16"))
    expected = tiny.load(dense, torch.bfloat16)
    assert len(tiny.sparse_layers(model)) == 14
    for name, layer in tiny.sparse_layers(model).items():
        assert torch.equal(layer.weight, expected.get_submodule(name).weight), name
    model.save_pretrained(tmp_path / "saved")
    assert tiny.quantization_config(tmp_path / "saved")["quant_method"] == "flashsparse"
    again = tiny.load(tmp_path / "saved")
    assert torch.equal(tiny.logits(again), tiny.logits(model))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("key", ["quantization_config", "compression_config"])
def test_with_none_they_are_dense(layout, key, twins, tmp_path):
    path, dense = twins[layout]
    if key == "compression_config":
        path = shutil.copytree(path, tmp_path / "old")
        edit_config(path, quantization_config=None, compression_config=sparsity_config(layout))
    model, expected = tiny.load(path), tiny.load(dense)
    state = expected.state_dict()
    assert model.state_dict().keys() == state.keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    model.save_pretrained(tmp_path / "saved")
    assert "compressed-tensors" not in (tmp_path / "saved" / "config.json").read_text()


def test_sparse_llama_as_it_is_published(checkpoints, tmp_path):
    path = as_sparse_llama(shutil.copytree(checkpoints("llama").dense, tmp_path / "model"))

    def drop(tensors):
        for name in tensors:
            if name.endswith("_proj.weight"):
                tensors[name] = prune_weight(tensors[name], pattern=(2, 4))

    edit_weights(path, drop)
    dense = tiny.load(path)
    assert dense.config.rope_parameters["rope_type"] == "llama3" and not tiny.sparse_layers(dense)
    config = fs.FlashSparseConfig(format="nm_vector", options={"n": 2, "m": 4})
    packed = tiny.load(path, quantization_config=config)
    assert len(tiny.sparse_layers(packed)) == 14
    for name, layer in tiny.sparse_layers(packed).items():
        assert torch.equal(layer.weight.float(), dense.get_submodule(name).weight), name
    tiny.assert_as_exact(packed, dense, tiny.logits(tiny.load(path, torch.float64)))


def test_layers_on_disk_are_not_taken_from_the_foreign_file(twins, tmp_path):
    path, dense = twins["sparse-bitmask"]
    device_map = dict(device_map=tiny.HERE_AND_ON_DISK, offload_folder=str(tmp_path))
    packed = tiny.load(path, quantization_config=fs.FlashSparseConfig(), **device_map)
    reference, exact = tiny.load(dense), tiny.logits(tiny.load(dense, torch.float64))
    tiny.assert_as_exact(packed, reference, exact)
    tiny.assert_as_exact(tiny.load(path, **device_map), reference, exact)


@pytest.mark.parametrize("config", [{}, {"quantization_config": fs.FlashSparseConfig()}], ids=len)
def test_a_hostile_mask_is_refused_by_name(config, twins, tmp_path):
    path = shutil.copytree(twins["sparse-bitmask"][0], tmp_path / "copy")

    def flip(tensors):
        tensors[f"{Q}.bitmask"][3, 2] ^= 4

    edit_weights(path, flip)
    with pytest.raises(CheckpointError, match=f"{Q}.weight' \\[64, 64\\].*its bitmask keeps"):
        tiny.load(path, **config)


def test_what_is_called_quantized_and_has_no_codes_is_refused(twins, tmp_path):
    path = shutil.copytree(twins["sparse-24-bitmask"][0], tmp_path / "copy")
    groups = {"group_0": {"weights": {"num_bits": 8}, "targets": ["Linear"]}}
    config = sparsity_config("sparse-24-bitmask")
    config |= {"config_groups": groups, "format": "int-quantized"}
    edit_config(path, quantization_config=config)
    with pytest.raises(CheckpointError, match="no layer of it has codes"):
        tiny.load(path, quantization_config=fs.FlashSparseConfig())
