# SPDX-License-Identifier: Apache-2.0
"""inspect_checkpoint: true numbers on dense and packed models."""

import json

import families
import pytest
import torch
from checkpoints import edit_config, edit_weights, load_all, save_llama
from safetensors.torch import load_file, save_file

import flashsparse_plugin as fs
from flashsparse_plugin.checkpoint import CheckpointError, convert_checkpoint, inspect_checkpoint


@pytest.fixture
def packed(llama, tmp_path):
    edit_weights(llama, lambda tensors: tensors["model.layers.0.mlp.up_proj.weight"].fill_(1))
    convert_checkpoint(llama, tmp_path / "packed")
    return tmp_path / "packed"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_dense(tmp_path, dtype):
    path = save_llama(tmp_path / "dense", dtype=dtype)
    found = inspect_checkpoint(path)
    tensors = load_all(path)
    assert (found.format, found.model_type) == (None, "llama")
    assert found.bytes_stored == sum(tensor.nbytes for tensor in tensors.values())
    assert len(found.layers) == 15
    refused = [
        "nm_vector",
        "exact_nm",
        "hybrid_24",
        *(["lossless"] if dtype == torch.float32 else []),
    ]
    for layer in found.layers:
        weight = tensors.pop(f"{layer.name}.weight")
        assert layer.shape == tuple(weight.shape)
        assert layer.dtype == str(dtype).removeprefix("torch.")
        assert layer.sparsity == pytest.approx(float((weight == 0).float().mean()))
        assert layer.bytes_stored == layer.bytes_dense == weight.nbytes
        half = weight.bfloat16()
        assert layer.bytes_in == {
            # Random zeros follow no pattern, not in some blocks either; lossless rounds nothing.
            name: None if name in refused else fs.pack(half, name).nbytes
            for name in fs.format_names()
        }
        listed = {} if dtype == torch.float32 else {"lossless"}
        assert set(layer.exceptions) == set(listed)
        assert layer.format is None
        if layer.name == "lm_head":
            assert layer.reason == "ignored by name"
            assert layer.bytes_after == dict.fromkeys(fs.format_names(), weight.nbytes)
            assert layer.bytes_cpu == weight.nbytes
        else:
            assert layer.reason is None
            assert layer.bytes_after == layer.bytes_in
            assert layer.bytes_cpu == fs.pack(half).prepare("cpu").nbytes
    assert found.bytes_other == sum(tensor.nbytes for tensor in tensors.values())


def test_packed_tells_the_same_as_dense(llama, packed):
    before, after = inspect_checkpoint(llama), inspect_checkpoint(packed)
    assert after.format == "tiled_bitmap"
    assert after.bytes_stored == sum(tensor.nbytes for tensor in load_all(packed).values())
    assert after.bytes_other == before.bytes_other
    assert after.sparsity == before.sparsity
    dense = {"model.layers.0.mlp.up_proj", "lm_head"}
    for was, layer in zip(before.layers, after.layers, strict=True):
        assert (layer.name, layer.shape, layer.sparsity) == (was.name, was.shape, was.sparsity)
        assert layer.bytes_in == was.bytes_in
        assert (layer.bytes_dense, layer.bytes_cpu) == (was.bytes_dense, was.bytes_cpu)
        assert layer.format == (None if layer.name in dense else "tiled_bitmap")
        stored = was.bytes_dense if layer.name in dense else layer.bytes_in["tiled_bitmap"]
        assert layer.bytes_stored == stored == layer.bytes_after["tiled_bitmap"]
        assert (layer.reason or "").partition(":")[0] == (was.reason or "").partition(":")[0]
    reasons = {layer.name: layer.reason for layer in after.layers if layer.reason}
    assert reasons.keys() == dense
    assert "larger packed than dense" in reasons["model.layers.0.mlp.up_proj"]
    assert json.loads(json.dumps(after.to_dict()))["layers"][0]["shape"] == [128, 128]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("sparsity", [0.0, 0.8])
def test_it_tells_what_convert_does(tmp_path, dtype, sparsity):
    """Also of a head of its own, and of float32, which would be smaller by rounding alone."""
    path = save_llama(tmp_path / "dense", dtype=dtype, sparsity=sparsity)
    found = inspect_checkpoint(path)
    other = found.bytes_stored - sum(layer.bytes_stored for layer in found.layers)
    total = other + sum(layer.bytes_after["tiled_bitmap"] for layer in found.layers)
    if sparsity == 0:
        assert total == found.bytes_stored
        assert all("larger packed" in x.reason for x in found.layers if x.name != "lm_head")
        with pytest.raises(CheckpointError, match="would be smaller packed to tiled_bitmap"):
            convert_checkpoint(path, tmp_path / "out")
    else:
        report = convert_checkpoint(path, tmp_path / "out")
        assert total == report.bytes_out
        assert [x.reason for x in found.layers] == [x.reason for x in report.layers]


def test_experts_are_counted_as_experts(tmp_path):
    families.build("MixtralForCausalLM").save_pretrained(tmp_path / "dense")
    found = inspect_checkpoint(tmp_path / "dense")
    tensors = load_all(tmp_path / "dense")
    experts = sum(tensor.nbytes for name, tensor in tensors.items() if ".experts." in name)
    assert found.bytes_experts == experts > 0
    linears = sum(layer.bytes_stored for layer in found.layers)
    assert found.bytes_other + linears == found.bytes_stored


def test_a_damaged_layer_is_named(packed):
    tensors = load_file(packed / "model.safetensors")
    tensors["model.layers.1.mlp.down_proj.unit_offsets"][1] = 1 << 30
    save_file(tensors, packed / "model.safetensors")
    with pytest.raises(fs.FormatError, match=r"model\.layers\.1\.mlp\.down_proj.*not valid"):
        inspect_checkpoint(packed)


def test_half_a_layer_is_named(packed):
    tensors = load_file(packed / "model.safetensors")
    del tensors["model.layers.1.mlp.down_proj.unit_offsets"]
    save_file(tensors, packed / "model.safetensors")
    with pytest.raises(fs.FormatError, match=r"down_proj.*missing: unit_offsets"):
        inspect_checkpoint(packed)


def test_a_shape_that_is_not_that_of_the_tensors(packed):
    edit_config(packed, head_dim=64)
    with pytest.raises(fs.FormatError, match=r"q_proj': tiled_bitmap weight of shape \[256, 128\]"):
        inspect_checkpoint(packed)


def test_packed_without_saying_so(packed):
    edit_config(packed, quantization_config=None)
    with pytest.raises(CheckpointError, match=r"is packed.*no quantization_config"):
        inspect_checkpoint(packed)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format_version": 2}, "version 1.*pip install -U"),
        ({"format": "zip"}, "unknown format 'zip'"),
        ({"sparsity": 7}, "sparsity"),
        ({"quant_method": "gptq"}, "is packed by flashsparse.*quant_method 'gptq'"),
    ],
)
def test_a_config_that_cannot_be_read(packed, changes, message):
    own = json.loads((packed / "config.json").read_text())["quantization_config"]
    edit_config(packed, quantization_config=own | changes)
    with pytest.raises(CheckpointError, match=message):
        inspect_checkpoint(packed)


def test_weights_of_other_dtypes(llama):
    name = "model.layers.0.mlp.up_proj.weight"
    edit_weights(llama, lambda tensors: tensors.update({name: tensors[name].to(torch.int8)}))
    with pytest.raises(CheckpointError, match=r"up_proj' \[200, 128\] is int8"):
        inspect_checkpoint(llama)


def test_progress(llama):
    seen = []
    found = inspect_checkpoint(llama, on_progress=lambda *news: seen.append(news))
    assert [what for _, _, what in seen] == [layer.name for layer in found.layers]
    assert seen[-1][0] == seen[-1][1] == found.bytes_stored - found.bytes_other
