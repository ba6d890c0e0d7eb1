# SPDX-License-Identifier: Apache-2.0
"""A flipped bit or another model's config.json is an error; files without checksums still load."""

import json

import families
import pytest
import tiny
import torch
from checkpoints import PACKED, edit_config, quantization, save_llama
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

import flashsparse_plugin as fs
from flashsparse_plugin.checkpoint import CheckpointError, convert_checkpoint, inspect_checkpoint
from flashsparse_plugin.checkpoint.files.checksums import checksum, verify
from flashsparse_plugin.checkpoint.files.headers import read_header

LAYER = "model.layers.1.mlp.up_proj"
DIFFERS = rf"layer '{LAYER}' \[200, 128\].*weight_packed.*checksum.*fetch both again"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("source")
    save_llama(path / "dense")
    convert_checkpoint(path / "dense", path / "packed")
    return path / "packed"


@pytest.fixture
def packed(source, tmp_path):
    path = tmp_path / "packed"
    path.mkdir()
    for file in source.iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    return path


def flip_a_value(path, name=f"{LAYER}.weight_packed"):
    """Changes one bit of a value, which no rule of the format could tell."""
    file = path / "model.safetensors"
    data = bytearray(file.read_bytes())
    length = int.from_bytes(data[:8], "little")
    start, _ = json.loads(data[8 : 8 + length])[name]["data_offsets"]
    data[8 + length + start + 3] ^= 0x10  # of the first word's value
    file.write_bytes(data)


def without_checksums(path):
    file = path / "model.safetensors"
    save_file(load_file(file), file, {"format": "pt"})


READERS = {
    "inspect": inspect_checkpoint,
    "transformers": lambda path: AutoModelForCausalLM.from_pretrained(path, dtype="auto"),
    "unpacked": lambda path: AutoModelForCausalLM.from_pretrained(
        path, dtype="auto", quantization_config=fs.FlashSparseConfig(dequantize=True)
    ),
}
every_reader = pytest.mark.parametrize("read", READERS.values(), ids=READERS)


def test_every_packed_tensor_has_one(source):
    infos = read_header(source / "model.safetensors")
    for info in infos:
        assert (info.checksum is not None) == info.name.endswith(PACKED)
    with safe_open(source / "model.safetensors", "pt") as file:
        metadata = file.metadata()
    assert metadata.pop("format") == "pt"
    assert len(metadata) == 28 and all(len(value) == 16 for value in metadata.values())


def test_it_is_as_specified():
    """docs/formats.md says what it covers; this is the example there."""
    weight = torch.zeros(2, 3, dtype=torch.bfloat16)
    weight[1, 2] = 1.0
    assert checksum(fs.pack(weight, "tiled_csl"), "weight_packed") == "470e010d61f2436f"


def checksums(path):
    infos = [info for file in path.glob("*.safetensors") for info in read_header(file)]
    return {info.name: info.checksum for info in infos if info.name.endswith(PACKED)}


def test_save_pretrained_writes_them_as_convert_does(source, tmp_path):
    AutoModelForCausalLM.from_pretrained(source).save_pretrained(tmp_path, max_shard_size="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    found = checksums(tmp_path)
    assert found == checksums(source) and None not in found.values()
    inspect_checkpoint(tmp_path)  # which compares them


def test_save_pretrained_writes_those_of_offloaded_layers(source, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(
        source, device_map=tiny.HERE_AND_ON_DISK, offload_folder=tmp_path / "away"
    )
    model.save_pretrained(tmp_path / "saved")
    assert checksums(tmp_path / "saved") == checksums(source)


def test_save_pretrained_writes_them_under_the_names_in_the_file(tmp_path):
    """Where transformers renames tensors as it saves them (LLaVA)."""
    families.build("LlavaForConditionalGeneration").save_pretrained(tmp_path / "dense")
    convert_checkpoint(tmp_path / "dense", tmp_path / "packed", pack_all=True)
    model = AutoModelForImageTextToText.from_pretrained(tmp_path / "packed")
    model.save_pretrained(tmp_path / "saved")
    assert not all(name in model.state_dict() for name in checksums(tmp_path / "packed"))
    assert checksums(tmp_path / "saved") == checksums(tmp_path / "packed")
    model.save_pretrained(tmp_path / "as_named", save_original_format=False)
    found = checksums(tmp_path / "as_named")
    assert found.keys() <= model.state_dict().keys() and None not in found.values()
    AutoModelForImageTextToText.from_pretrained(tmp_path / "as_named")


@every_reader
def test_a_flipped_bit_is_an_error(packed, read):
    flip_a_value(packed)
    with pytest.raises(fs.FormatError, match=DIFFERS):
        read(packed)


@every_reader
def test_another_dtype_in_the_config_is_an_error(packed, read):
    edit_config(packed, quantization_config={**quantization(packed), "dtype": "float16"})
    with pytest.raises(fs.FormatError, match="read as tiled_bitmap float16.*or config.json names"):
        read(packed)


@every_reader
def test_files_without_checksums_still_load(packed, read):
    without_checksums(packed)
    read(packed)
    flip_a_value(packed)
    read(packed)


def test_tensors_of_another_layer_are_an_error(packed):
    """Of the same shape, so that only the checksum tells."""
    file = packed / "model.safetensors"
    tensors = load_file(file)
    other = "model.layers.1.mlp.gate_proj"
    with safe_open(file, "pt") as opened:
        metadata = opened.metadata()
    for own in PACKED:
        one, two = f"{LAYER}.{own}", f"{other}.{own}"
        tensors[one], tensors[two] = tensors[two], tensors[one]
    save_file(tensors, file, metadata)
    with pytest.raises(CheckpointError, match="does not have the checksum"):
        inspect_checkpoint(packed)


def test_scheme_and_shape_are_covered():
    weight = torch.randn(64, 64).bfloat16()
    packed = fs.pack(weight)
    changed = [
        fs.PackedWeight(packed.format.scheme(torch.float16), packed.shape, packed.tensors),
        fs.PackedWeight(packed.scheme, (64, 63), packed.tensors),
        fs.pack(weight * 2),
    ]
    made = {checksum(each, "weight_packed") for each in (packed, *changed)}
    assert len(made) == 4 and checksum(packed, "unit_offsets") not in made


def test_a_tensor_without_one_is_taken_as_it_is(source):
    infos = {info.name: info for info in read_header(source / "model.safetensors")}
    own = {name: infos[f"{LAYER}.{name}"] for name in PACKED}
    tensors = {name: info.read() for name, info in own.items()}
    weight = fs.PackedWeight(
        fs.get_format("tiled_bitmap").scheme(torch.bfloat16), (200, 128), tensors
    )
    verify(LAYER, weight, own)
    tensors["weight_packed"] = tensors["weight_packed"].clone()
    tensors["weight_packed"][0] ^= 1 << 20
    with pytest.raises(CheckpointError, match="checksum"):
        verify(LAYER, weight, own)
    verify(LAYER, weight, {})
