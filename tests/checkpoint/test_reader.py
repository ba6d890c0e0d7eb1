# SPDX-License-Identifier: Apache-2.0
"""ModelDirectory: reads what is sound and refuses everything else with a remedy."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from flashsparse_plugin.checkpoint import CheckpointError, ModelDirectory
from flashsparse_plugin.checkpoint.files import headers
from flashsparse_plugin.checkpoint.files.unmarked import refuse_unmarked
from flashsparse_plugin.cli import app

INDEX = "model.safetensors.index.json"


def edit_index(path, change):
    index = json.loads((path / INDEX).read_text())
    change(index["weight_map"])
    (path / INDEX).write_text(json.dumps(index))


def refused(path, *words):
    with pytest.raises(CheckpointError) as caught:
        ModelDirectory(path)
    for word in words:
        assert word in str(caught.value)


def test_a_conversion_reads_each_header_of_the_source_once(sharded, tmp_path, monkeypatch):
    read, asked = headers.read_header, []
    monkeypatch.setattr(headers, "read_header", lambda path: asked.append(path) or read(path))
    result = CliRunner().invoke(app, ["convert", str(sharded), str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert sorted(asked) == sorted(sharded.glob("*.safetensors"))


@pytest.mark.parametrize("which", ["llama", "sharded"])
def test_lists_and_reads_what_is_there(which, request):
    path = request.getfixturevalue(which)
    directory = ModelDirectory(path)
    stored = {}
    for shard in path.glob("*.safetensors"):
        stored |= load_file(shard)
    assert directory.tensors.keys() == stored.keys()
    assert len(directory.shards) == len(list(path.glob("*.safetensors")))
    assert directory.nbytes == sum(tensor.nbytes for tensor in stored.values())
    for name, info in directory.tensors.items():
        assert (info.dtype, info.shape) == (stored[name].dtype, tuple(stored[name].shape))
        assert torch.equal(info.read(), stored[name])
        parts = list(info.rows(max_elements=300))
        assert len(parts) > 1 or stored[name].numel() <= 300
        assert torch.equal(torch.cat(parts), stored[name])


def test_a_tensor_at_an_odd_address(tmp_path):
    """The format of files allows it, kernels do not."""
    words = torch.arange(40, dtype=torch.int32)
    entry = {"dtype": "I32", "shape": [40], "data_offsets": [0, 160]}
    text = json.dumps({"words": entry}).encode()
    text += b" " * (5 - len(text) % 4)
    file = tmp_path / "model.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text + words.numpy().tobytes())
    (tmp_path / "config.json").write_text("{}")
    read = ModelDirectory(tmp_path).tensors["words"].read()
    assert torch.equal(read, words) and read.data_ptr() % 4 == 0
    with safe_open(file, "pt") as opened:
        odd = opened.get_tensor("words")
    assert odd.data_ptr() % 4
    with pytest.raises(RuntimeError, match="must start on a multiple of 4 bytes"):
        torch.ops.flashsparse.tiled_csl_validate(odd, torch.zeros(2, dtype=torch.int32), 8, 8)


def test_layers_come_in_natural_order(tmp_path):
    names = [f"layers.{i}.weight" for i in range(12)]
    save_file({name: torch.ones(1) for name in names}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    assert list(ModelDirectory(tmp_path).tensors) == names


def test_no_directory(tmp_path):
    refused(tmp_path / "organisation/model", "not a directory", "ORG/NAME")
    refused(tmp_path, "config.json")


def test_pickles_are_refused_with_the_remedy(llama):
    (llama / "model.safetensors").unlink()
    refused(llama, "pickles", "optimizer.pt", "save_pretrained")


def test_no_weights(llama):
    for name in ("model.safetensors", "pytorch_model.bin", "optimizer.pt"):
        (llama / name).unlink()
    refused(llama, "neither")


def test_missing_shard(sharded):
    shard = sorted(sharded.glob("model-*.safetensors"))[1]
    shard.unlink()
    refused(sharded, shard.name, "missing")


@pytest.mark.parametrize(
    "file",
    ["../other/model.safetensors", "/etc/model.safetensors", "a\\b.safetensors", "x\0.safetensors"],
)
def test_index_that_points_elsewhere(sharded, file):
    other = sharded.parent / "other"
    other.mkdir()
    shutil.copy(sorted(sharded.glob("*.safetensors"))[0], other / "model.safetensors")
    edit_index(sharded, lambda weight_map: weight_map.update({"model.norm.weight": file}))
    refused(sharded, repr(file), "only files in the directory itself")


@pytest.mark.parametrize("file", [3, None, "pytorch_model.bin", ["x"], ".."])
def test_index_with_nonsense(sharded, file):
    edit_index(sharded, lambda weight_map: weight_map.update({"model.norm.weight": file}))
    refused(sharded, "model.norm.weight")


@pytest.mark.parametrize("content", ["", "[]", "{", "{}", '{"weight_map": {}}', "\udcff"])
def test_damaged_index(sharded, content):
    (sharded / INDEX).write_bytes(content.encode(errors="surrogateescape"))
    refused(sharded, INDEX)


def test_deeply_nested_json(llama):
    (llama / "config.json").write_text("[" * 100_000)
    refused(llama, "config.json")


def test_link_out_of_the_directory(llama):
    elsewhere = llama.parent / "elsewhere.safetensors"
    (llama / "model.safetensors").rename(elsewhere)
    (llama / "model.safetensors").symlink_to(elsewhere)
    refused(llama, "link that leads out", "copy the file")


def test_links_of_the_hub_cache_are_followed(llama, tmp_path):
    snapshot = tmp_path / "models--a--b" / "snapshots" / "0123"
    blobs = tmp_path / "models--a--b" / "blobs"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        shutil.copy(llama / name, blobs / name)
        (snapshot / name).symlink_to(f"../../blobs/{name}")
    assert ModelDirectory(snapshot).tensors.keys() == ModelDirectory(llama).tensors.keys()


def test_tensor_listed_twice(sharded):
    text = (sharded / INDEX).read_text()
    line = next(line for line in text.splitlines() if "model.norm.weight" in line).strip(" ,")
    (sharded / INDEX).write_text(text.replace(line, f"{line}, {line}"))
    refused(sharded, "model.norm.weight", "twice")


def test_tensor_in_two_shards(sharded):
    shards = sorted(sharded.glob("*.safetensors"))
    tensors = [load_file(shard) for shard in shards]
    name = next(iter(tensors[0]))
    save_file(tensors[1] | {name: tensors[0][name]}, shards[1])
    refused(sharded, name, shards[0].name, shards[1].name)


def test_index_that_claims_too_much(sharded):
    edit_index(sharded, lambda m: m.update({"ghost.weight": next(iter(m.values()))}))
    refused(sharded, "ghost.weight", "does not contain it")


def test_index_that_names_the_wrong_shard(sharded):
    files = sorted(sharded.glob("*.safetensors"))
    edit_index(
        sharded,
        lambda m: m.update({k: files[0].name for k, v in list(m.items()) if v == files[1].name}),
    )
    refused(sharded, files[0].name, "does not contain it")


def test_index_that_claims_too_little(sharded):
    shard = sorted(sharded.glob("*.safetensors"))[0]
    save_file(load_file(shard) | {"extra.weight": torch.ones(2)}, shard)
    refused(sharded, "extra.weight", f"not in {INDEX}")


def test_both_kinds_of_weights(sharded):
    shutil.copy(sorted(sharded.glob("*.safetensors"))[0], sharded / "model.safetensors")
    refused(sharded, "both", "remove")


def test_damaged_weights(llama):
    weights = llama / "model.safetensors"
    whole = weights.read_bytes()
    for damaged in (b"", whole[:100], whole[:-2], b"\xff" * 64, whole + b"x"):
        weights.write_bytes(damaged)
        refused(llama, "model.safetensors", "fetch it again")


@pytest.mark.parametrize("content", ["", "[1]", '{"a": 1, "a": 2}'])
def test_damaged_config(llama, content):
    (llama / "config.json").write_text(content)
    refused(llama, "config.json")


def test_tensors_of_another_method_are_left_to_it():
    """compressed-tensors calls its values as we do."""
    names = ["a.weight_packed", "a.weight_scale", "a.weight_shape"]
    refuse_unmarked(names, {"quant_method": "compressed-tensors"}, Path("model"))
    ours = "layer 'a' of model is packed by flashsparse"
    with pytest.raises(CheckpointError, match=ours):
        refuse_unmarked(names, None, Path("model"))
    # Half of a layer is ours where nothing foreign is beside it, or it has a checksum of ours.
    for half in (["a.weight_packed"], ["a.weight_index", "a.weight_scale"], ["a.tile_offsets"]):
        with pytest.raises(CheckpointError, match=ours):
            refuse_unmarked(half, {"quant_method": "compressed-tensors"}, Path("model"))
    with pytest.raises(CheckpointError, match=ours):
        refuse_unmarked(names[:2], {"quant_method": "mxfp4"}, Path("model"), sealed=names[:1])
