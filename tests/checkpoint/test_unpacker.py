# SPDX-License-Identifier: Apache-2.0
"""unpack_checkpoint: what dequantize() gives, bit for bit, and resumable."""

import json
import shutil

import families
import pytest
import torch
from checkpoints import bits, edit_config, load_all, quantization, save_llama
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from flashsparse_plugin.checkpoint import CheckpointError, convert_checkpoint, unpack_checkpoint
from flashsparse_plugin.checkpoint.convert import unpacker
from flashsparse_plugin.cli import app


def test_the_dense_model_comes_back(sharded, tmp_path):
    convert_checkpoint(sharded, tmp_path / "packed", max_shard_size="100KB")
    report = unpack_checkpoint(tmp_path / "packed", tmp_path / "out", max_shard_size="100KB")
    before, after = load_all(sharded), load_all(tmp_path / "out")
    assert before.keys() == after.keys() and len(list((tmp_path / "out").glob("*.safetensors"))) > 3
    assert all(torch.equal(bits(each), bits(after[name])) for name, each in before.items())
    assert report.rounded == 0 and report.zeros.sparsity == pytest.approx(0.8, abs=0.01)
    assert report.schemes == {"tiled_bitmap": 14}
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config == json.loads((sharded / "config.json").read_text())
    card = (tmp_path / "out" / "README.md").read_text()
    assert "Its weights are stored dense" in card and "example/tiny" in card


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounded_values_are_those_that_dequantize_gives(dtype, tmp_path):
    dense = save_llama(tmp_path / "dense", sparsity=0.0, dtype=dtype)
    convert_checkpoint(dense, tmp_path / "packed", format="8:8-int8", ignore=["re:.*o_proj"])
    told = CliRunner().invoke(app, ["unpack", str(tmp_path / "packed"), str(tmp_path / "out")])
    assert told.exit_code == 0, told.stderr
    said = " ".join(told.stdout.split())
    assert "were rounded when they were packed; OUT has the rounded ones" in said
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "packed", dtype="auto")
    expected = model.dequantize().state_dict()
    unpacked = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto").state_dict()
    assert expected.keys() == unpacked.keys()
    assert all(torch.equal(each, unpacked[name]) for name, each in expected.items())
    source = load_all(dense)["model.layers.0.mlp.up_proj.weight"]
    assert not torch.equal(unpacked["model.layers.0.mlp.up_proj.weight"], source)


@pytest.mark.parametrize(
    "architecture", ["GPT2LMHeadModel", "FalconForCausalLM", "Phi3ForCausalLM", "BertForMaskedLM"]
)
def test_other_families_load_and_compute_the_same(architecture, tmp_path):
    """Weights that are kept transposed, fused or under other names."""
    dense = families.build(architecture)
    dense.save_pretrained(tmp_path / "dense")
    convert_checkpoint(tmp_path / "dense", tmp_path / "packed", pack_all=True)
    unpack_checkpoint(tmp_path / "packed", tmp_path / "out")
    found, told = type(dense).from_pretrained(
        tmp_path / "out", output_loading_info=True, dtype="auto"
    )
    assert not any(told.values()), told
    first, second = dense.state_dict(), found.state_dict()
    for name, tensor in first.items():
        if tensor.is_floating_point():
            assert torch.equal(second[name], tensor.to(second[name].dtype)), name


class Stopped(BaseException):
    """Like KeyboardInterrupt: nothing may swallow it."""


def test_a_run_that_was_stopped_goes_on(sharded, tmp_path):
    packed, out = tmp_path / "packed", tmp_path / "out"
    convert_checkpoint(sharded, packed)
    seen = []

    def stop(done, total, what):
        seen.append(what)
        if what.startswith("checking model.layers.1.mlp"):
            raise Stopped

    with pytest.raises(Stopped):
        unpack_checkpoint(packed, out, max_shard_size="100KB", on_progress=stop)
    assert not out.exists()
    part = next(iter((tmp_path / "out.partial").glob("part-*")))
    before = part.stat().st_mtime_ns
    report = unpack_checkpoint(packed, out, max_shard_size="100KB")
    assert report.resumed_shards > 0
    assert min(each.stat().st_mtime_ns for each in out.glob("*.safetensors")) <= before
    expected = load_all(sharded)
    assert all(torch.equal(bits(t), bits(expected[name])) for name, t in load_all(out).items())
    assert report.zeros.sparsity == pytest.approx(0.8, abs=0.01) and len(report.zeros.layers) == 14


def test_what_cannot_be_unpacked(llama, tmp_path):
    with pytest.raises(CheckpointError, match="is dense already"):
        unpack_checkpoint(llama, tmp_path / "out")
    packed = tmp_path / "packed"
    convert_checkpoint(llama, packed)
    with pytest.raises(CheckpointError, match="would replace the source"):
        unpack_checkpoint(packed, packed)
    damaged = tmp_path / "damaged"
    shutil.copytree(packed, damaged)
    edit_config(damaged, quantization_config=quantization(packed) | {"dtype": "float16"})
    with pytest.raises(CheckpointError, match=r"layer .* does not have the checksum"):
        unpack_checkpoint(damaged, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_disk_that_changes_bits_is_noticed(llama, tmp_path, monkeypatch):
    convert_checkpoint(llama, tmp_path / "packed")
    monkeypatch.setattr(unpacker, "same_bits", lambda a, b: False)
    with pytest.raises(CheckpointError, match="does not read back as it was written"):
        unpack_checkpoint(tmp_path / "packed", tmp_path / "out")
