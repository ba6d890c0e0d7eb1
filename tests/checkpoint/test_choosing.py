# SPDX-License-Identifier: Apache-2.0
"""`--format auto`: the written configuration names what was chosen, and the model is the same."""

import json

import pytest
import torch
from checkpoints import load_all, save_llama

from flashsparse_plugin.checkpoint import CheckpointError, convert_checkpoint, inspect_checkpoint
from flashsparse_plugin.dataflow import choice, expected
from flashsparse_plugin.formats import get_format
from flashsparse_plugin.packed import FormatError


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """A Llama of which k, gate and down have no zeros."""
    path = save_llama(tmp_path_factory.mktemp("mixed") / "dense")
    from safetensors.torch import load_file, save_file

    tensors = load_file(path / "model.safetensors")
    for name, tensor in tensors.items():
        if any(f"{kind}_proj" in name for kind in ("k", "gate", "down")):
            tensor[tensor == 0] = 1e-25  # an exception of lossless, too
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    return path


def test_layers_that_engines_merge_have_one_format(mixed, tmp_path):
    report = convert_checkpoint(mixed, tmp_path / "out", format="auto", device="cpu")
    packed = {layer.kind: layer.is_packed for layer in report.layers}
    assert packed["q_proj"] == packed["k_proj"] == packed["v_proj"]
    assert packed["gate_proj"] == packed["up_proj"]
    assert packed["o_proj"] and not packed["down_proj"] and not packed["lm_head"]
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert config["format"] in report.formats and "auto" not in json.dumps(config["format"])
    reason = config["layers"]["model.layers.0.mlp.down_proj"]["reason"]
    assert "0% zeros do not pay" in reason
    assert any(line.startswith("down_proj (2): dense, 0% zeros") for line in report.choices)
    inspected = inspect_checkpoint(tmp_path / "out", device="cpu")
    assert {x.name: x.format is not None for x in inspected.layers} == {
        layer.name: layer.is_packed for layer in report.layers
    }
    assert load_all(tmp_path / "out")  # and the tensors are there


def test_the_same_run_again_goes_on(mixed, tmp_path):
    """What is chosen is the same, so that an interrupted run agrees with itself."""
    found = [
        convert_checkpoint(mixed, tmp_path / name, format="auto", device="cpu").to_dict()["layers"]
        for name in ("one", "two")
    ]
    assert found[0] == found[1]


def test_each_layer_gets_its_own_format(llama, tmp_path, monkeypatch):
    """Whatever is chosen, what is written reads back and says what it is."""
    kinds = {(128, 128): "tiled_csl", (128, 200): "tiled_bitmap"}

    def chosen(pattern, dtype, target):
        name = kinds.get(pattern.shape)
        return choice.Choice(name and get_format(name).scheme(dtype), "so")

    monkeypatch.setattr("flashsparse_plugin.checkpoint.convert.choosing.choose", chosen)
    report = convert_checkpoint(llama, tmp_path / "out", format="auto", device="H100", batch=1)
    assert sorted(report.schemes.split(" and ")) == ["tiled_bitmap", "tiled_csl"]
    inspected = inspect_checkpoint(tmp_path / "out", device="H100")
    assert {x.kind: x.scheme for x in inspected.layers if x.scheme} == {
        "o_proj": "tiled_csl",
        "down_proj": "tiled_bitmap",
    }
    assert all("at batch 8" in line for line in inspected.choices)


def test_nothing_that_pays_is_an_error_that_says_why(llama, tmp_path):
    with pytest.raises(
        CheckpointError, match=r"pays for no layer.*H200.*keep it dense there, prune it"
    ):
        convert_checkpoint(llama, tmp_path / "out", format="auto", device="H200")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"format": "tiled_csl", "device": "H200"}, "what format 'auto' chooses by"),
        ({"batch": 4}, "what format 'auto' chooses by"),
        ({"format": "auto", "device": "B300"}, "unknown device 'B300'"),
        ({"format": "auto", "batch": 0}, "at least one sequence"),
        ({"format": "auto", "pack_all": True}, "choose one of the two"),
        ({"format": "auto", "options": {"n": 2}}, "chooses the options, too"),
    ],
)
def test_what_is_refused(llama, tmp_path, settings, message):
    with pytest.raises((ValueError, FormatError), match=message):
        convert_checkpoint(llama, tmp_path / "out", **settings)


def test_a_dtype_that_is_rounded_to(tmp_path):
    path = save_llama(tmp_path / "dense", dtype=torch.float32)
    report = convert_checkpoint(path, tmp_path / "out", format="auto", device="cpu")
    assert report.dtype == "bfloat16" and report.packed
    assert expected.BATCH == 8  # what the documents say
