# SPDX-License-Identifier: Apache-2.0
"""from_pretrained on checkpoints that compressed-tensors quantized: packed, with their codes."""

import pytest
import tiny
import torch
from checkpoints import edit_weights
from foreign_checkpoints import QUANTIZED, WRITTEN, edit_groups, expected, unstructured, written

import flashsparse_plugin as fs
from flashsparse_plugin.checkpoint import CheckpointError
from flashsparse_plugin.packed import FormatError

pytestmark = pytest.mark.oldest_transformers

DOWN = "model.layers.0.mlp.down_proj"


@pytest.mark.parametrize("name", QUANTIZED)
def test_unasked_they_are_packed_with_their_codes(name, tmp_path, caplog):
    path = written(name, tmp_path / "written")
    model = tiny.load(path)
    layers = tiny.sparse_layers(model)
    assert len(layers) == 7
    for layer, module in layers.items():
        assert torch.equal(module.weight, expected(name)[f"{layer}.weight"]), layer
    if name == "fp8-dynamic-24":
        assert "activations in float8 (dynamic, by token): they are rounded so" in caplog.text
    model.save_pretrained(tmp_path / "saved")
    assert tiny.quantization_config(tmp_path / "saved")["quant_method"] == "flashsparse"
    again = tiny.load(tmp_path / "saved")
    ids = torch.arange(8)[None]
    assert torch.equal(again(ids).logits, model(ids).logits)
    for layer, module in tiny.sparse_layers(again).items():
        assert module.scheme == layers[layer].scheme
        packed, before = module.storage().tensors, layers[layer].storage().tensors
        assert all(torch.equal(packed[own], before[own]) for own in before)


def rounded_by_token(x, name):
    """Activations as compressed-tensors' dynamic quantisation of tokens has them."""
    most = 448 if name.startswith("fp8") else 127
    scale = x.abs().amax(-1, keepdim=True) / most
    codes = (x / scale).clamp(-most, most)
    return (codes.to(torch.float8_e4m3fn).float() if most == 448 else codes.round()) * scale


@pytest.mark.parametrize("name", ["fp8-dynamic-24", "int8-24"])
def test_activations_are_rounded_as_config_json_says_or_not_as_is_asked_for(name, tmp_path):
    ids, model = torch.arange(8)[None], tiny.load(written(name, tmp_path / "a"))
    options = {"n": 2, "m": 4, "activations": "native"}
    config = fs.FlashSparseConfig(format="nm_vector", options=options)
    native = tiny.load(written(name, tmp_path / "b"), quantization_config=config)
    plain = fs.FlashSparseConfig(dequantize=True)
    dense = tiny.load(written(name, tmp_path / "c"), quantization_config=plain)
    for layer, module in tiny.sparse_layers(model).items():
        stored = module.storage()
        exact = stored.format.codes(stored).float() * stored.tensors["weight_scale"]
        dense.get_submodule(layer).weight.data = exact  # as is multiplied, not rounded to bfloat16
    torch.testing.assert_close(native(ids).logits, dense(ids).logits)
    for layer in tiny.sparse_layers(model):
        dense.get_submodule(layer).register_forward_pre_hook(
            lambda module, inputs: rounded_by_token(inputs[0], name)
        )
    torch.testing.assert_close(model(ids).logits, dense(ids).logits, atol=1e-4, rtol=0)
    assert (native(ids).logits - dense(ids).logits).abs().max() > 1e-3


def test_what_is_asked_for_is_done(tmp_path):
    path = WRITTEN / "int4-packed"
    model = tiny.load(
        written(path.name, tmp_path / "a"), quantization_config=fs.FlashSparseConfig()
    )
    assert len(tiny.sparse_layers(model)) == 7
    plain = fs.FlashSparseConfig(dequantize=True)
    model = tiny.load(written(path.name, tmp_path / "b"), quantization_config=plain)
    assert not tiny.sparse_layers(model)
    assert torch.equal(
        model.get_submodule(DOWN).weight, expected(path.name)[f"{DOWN}.weight"].to(model.dtype)
    )
    half = tiny.load(written(path.name, tmp_path / "c"), torch.float16)
    scheme = tiny.sparse_layers(half)[DOWN].scheme
    assert (scheme.dtype, scheme.options.title) == (torch.float16, "2:4, int4 by 32")


def test_what_leaves_no_room_for_codes_is_refused(tmp_path):
    path = written("int8", tmp_path / "written")
    config = fs.FlashSparseConfig(format="tiled_csl")
    with pytest.raises(FormatError, match="tiled_csl has no codes"):
        tiny.load(path, quantization_config=config)
    on_disk = dict(device_map=tiny.HERE_AND_ON_DISK, offload_folder=str(tmp_path))
    with pytest.raises(ValueError, match="layers on disk.*`flashsparse convert`"):
        tiny.load(path, **on_disk)


def test_one_that_tells_of_no_zeros_is_packed_where_that_is_asked_for(tmp_path):
    path = written("int8", tmp_path / "written")
    edit_groups(path, sparsity_config={})
    model = tiny.load(path, quantization_config=fs.FlashSparseConfig())
    assert len(tiny.sparse_layers(model)) == 7


def test_one_without_zeros_is_refused_by_its_layer(tmp_path):
    path = written("int8", tmp_path / "written")
    edit_weights(path, lambda tensors: tensors[f"{DOWN}.weight"].bitwise_or_(1))
    with pytest.raises(CheckpointError, match=f"{DOWN}.*2:4, int8.*with vLLM alone"):
        tiny.load(path)


def test_the_files_shape_is_held_against_the_models(tmp_path):
    path = written("int4-packed", tmp_path / "written")
    shape = torch.tensor([32, 63])  # packs to tensors of the same shapes
    edit_weights(path, lambda tensors: tensors.update({f"{DOWN}.weight_shape": shape}))
    with pytest.raises(CheckpointError, match=rf"{DOWN}'.*\[32, 63\].*\[32, 64\].*fetch"):
        tiny.load(path)


def test_zeros_without_a_pattern_need_no_option_by_the_name_that_recipes_have(tmp_path):
    path = unstructured(written("int8", tmp_path / "written"), "0:0")
    for given in ({}, {"quantization_config": fs.FlashSparseConfig()}):
        schemes = {
            each.scheme.title for each in tiny.sparse_layers(tiny.load(path, **given)).values()
        }
        assert schemes == {"tiled_bitmap(int8)"}


def test_nm_vector_needs_no_pattern_beside_codes(tmp_path):
    """It is config.json's, else 2:4; one that is dense still needs it."""
    path = written("int8", tmp_path / "written")
    edit_groups(path, sparsity_config={})
    asked = fs.FlashSparseConfig(format="nm_vector")
    schemes = {
        each.scheme.title
        for each in tiny.sparse_layers(tiny.load(path, quantization_config=asked)).values()
    }
    assert schemes == {"nm_vector(2:4, int8)"}
    dense = tmp_path / "dense"
    tiny.build("llama").save_pretrained(dense)
    with pytest.raises(FormatError, match="nm_vector needs the option 'n'"):
        tiny.load(dense, quantization_config=asked)
