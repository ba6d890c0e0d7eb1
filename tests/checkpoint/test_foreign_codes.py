# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that compressed-tensors quantized: its own, compared with what it makes of them."""

import json

import pytest
import torch
from checkpoints import edit_config, edit_weights, load_all, quantization
from foreign_checkpoints import (
    QUANTIZED,
    WRITTEN,
    edit_groups,
    expected,
    unstructured,
    written,
)
from safetensors.torch import load_file

from flashsparse_plugin.checkpoint import (
    CheckpointError,
    ModelDirectory,
    convert_checkpoint,
    inspect_checkpoint,
)
from flashsparse_plugin.checkpoint.foreign.packing import QuantizedConfig
from flashsparse_plugin.checkpoint.foreign.quantization import (
    Quantization,
    is_quantized,
    pattern_of,
)
from flashsparse_plugin.cli import app
from flashsparse_plugin.config import FlashSparseConfig
from flashsparse_plugin.formats import packed_names
from flashsparse_plugin.packed import FormatError, PackedWeight

Q, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.down_proj"
SCHEMES = {
    "fp8-dynamic-24": "2:4, fp8_e4m3 x fp8_e4m3",
    "fp8-tensor": "2:4, fp8_e4m3",
    "int8-24": "2:4, int8 x int8",
    "int8": "2:4, int8",
    "int8-packed": "2:4, int8",
    "int4-packed": "2:4, int4 by 32",
    "marlin-24": "2:4, int4 by 128",
}
"""Of down_proj."""


@pytest.fixture
def copy(tmp_path, request):
    return written(request.param, tmp_path / "written")


def of(*names):
    return pytest.mark.parametrize("copy", names, indirect=True)


def packed_weights(directory):
    """The packed layers of a directory, by name."""
    config = FlashSparseConfig(**directory.quantization)
    for layer, names in packed_names(directory.tensors).items():
        tensors = {own: directory.tensors[name].read() for own, name in names.items()}
        rows = len(tensors["weight_scale"])
        dense = expected_shape(directory, layer)
        assert rows == dense[0]
        yield layer, PackedWeight(config.scheme_of(layer), dense, tensors).validate(layer)


def expected_shape(directory, layer):
    hidden, wide = directory.config["hidden_size"], directory.config["intermediate_size"]
    kind = layer.rpartition(".")[2]
    rows = wide if kind in ("gate_proj", "up_proj") else hidden
    return rows, wide if kind == "down_proj" else hidden


# What they are


@pytest.mark.parametrize("name", QUANTIZED)
def test_the_weights_are_those_that_compressed_tensors_makes(name):
    directory = ModelDirectory(WRITTEN / name)
    assert directory.has_codes
    shown = directory.dense()
    assert shown.tensors.keys() == expected(name).keys()
    for key, tensor in expected(name).items():
        info = shown.tensors[key]
        assert (info.dtype, info.shape) == (tensor.dtype, tuple(tensor.shape))
        assert torch.equal(info.read(), tensor), key
        assert torch.equal(torch.cat([*info.rows(max_elements=50)]), tensor), key
    stored = load_file(WRITTEN / name / "model.safetensors").values()
    assert shown.nbytes == directory.packed().nbytes == sum(tensor.nbytes for tensor in stored)


def test_they_are_found_once_for_every_view(monkeypatch):
    read, asked = Quantization.read, []
    monkeypatch.setattr(Quantization, "read", lambda said: asked.append(said) or read(said))
    directory = ModelDirectory(WRITTEN / "int8-24")
    for view in (directory.dense(), directory.packed(), directory.dense(torch.float16)):
        assert not view.has_codes and view.nbytes == directory.nbytes
    assert directory.has_codes and len(asked) == 1


@pytest.mark.parametrize("name", QUANTIZED)
def test_packed_they_keep_their_codes_and_scales(name):
    shown = ModelDirectory(WRITTEN / name).dense().tensors
    packed = dict(packed_weights(ModelDirectory(WRITTEN / name).packed()))
    assert len(packed) == 7
    assert packed[DOWN].scheme.options.title == SCHEMES[name]
    for layer, weight in packed.items():
        assert torch.equal(weight.unpack(), expected(name)[f"{layer}.weight"]), layer
        codes, scales = shown[f"{layer}.weight"].read_codes()
        assert torch.equal(weight.tensors["weight_scale"], scales.to(torch.float32))
        # Every code, and no rounding of a product between: the scales are one.
        plain = {**weight.tensors, "weight_scale": torch.ones_like(weight.tensors["weight_scale"])}
        ones = PackedWeight(weight.scheme, weight.shape, plain).unpack()
        assert torch.equal(ones.float(), codes.float()), layer


def test_inspect_shows_them_packed():
    found = inspect_checkpoint(WRITTEN / "marlin-24")
    assert found.format == "nm_vector" and found.bytes_stored == 57088
    schemes = {layer.name: layer.scheme for layer in found.layers}
    assert schemes[Q] == "nm_vector(2:4, int8)" and schemes[DOWN] == "nm_vector(2:4, int4 by 128)"
    assert schemes["lm_head"] is None
    (how,) = found.notes
    assert "compressed-tensors (marlin-24)" in how


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("fp8-dynamic-24", "in float8 (dynamic, by token): they are rounded so, unless"),
        ("int8-24", "in int8 (dynamic, by token): they are rounded so, unless"),
        ("fp8-tensor", "in float8 (static, by tensor); here activations are 16 bits"),
    ],
)
def test_activations_are_told_of(name, told, capsys):
    app(["inspect", str(WRITTEN / name)], standalone_mode=False)
    shown = " ".join(capsys.readouterr().out.split())
    assert f"made for activations {told}" in shown
    assert f"packed to nm_vector({SCHEMES[name]})" in shown


@pytest.mark.parametrize("name", QUANTIZED)
def test_codes_that_may_be_lost_are_warned_of(name):
    notes = ModelDirectory(WRITTEN / name).packed().notes
    assert any("drops codes of -128" in note for note in notes) == (name == "int8-24")


@of("int8-24")
def test_what_is_told_of_activations_is_one_line(copy):
    quantization = json.loads((copy / "config.json").read_text())["quantization_config"]
    quantization["config_groups"]["group_0"]["input_activations"]["type"] = "x\nINFO verified"
    edit_config(copy, quantization_config=quantization)
    notes = ModelDirectory(copy).packed().notes
    assert any(r"x\nINFO verified" in note for note in notes)
    assert all(note.isprintable() for note in notes)


@pytest.mark.parametrize(
    "change",
    [
        {"dynamic": False},
        {"dynamic": "local"},
        {"strategy": "tensor"},
        {"symmetric": False},
        {"type": "int"},
        {"num_bits": 4},
    ],
)
@of("fp8-dynamic-24")
def test_activations_of_other_kinds_keep_their_bits(copy, change):
    quantization = json.loads((copy / "config.json").read_text())["quantization_config"]
    quantization["config_groups"]["group_0"]["input_activations"] |= change
    edit_config(copy, quantization_config=quantization)
    directory = ModelDirectory(copy).packed()
    assert {weight.scheme.options.activations for _, weight in packed_weights(directory)} == {
        "native"
    }
    assert any("here activations are 16 bits" in note for note in directory.notes)


def test_activations_are_rounded_or_not_as_is_asked_for(tmp_path):
    options = {"activations": "native"}
    convert_checkpoint(WRITTEN / "int8-24", tmp_path / "out", options=options)
    assert "activations" not in quantization(tmp_path / "out")["options"]
    options = {"values": "int8", "activations": "int8"}
    convert_checkpoint(WRITTEN / "int8", tmp_path / "other", options=options)
    assert quantization(tmp_path / "other")["options"]["activations"] == "int8"
    assert "`nm_vector(2:4, int8 x int8)`" in (tmp_path / "other" / "README.md").read_text()


# convert


@pytest.mark.parametrize("name", ["fp8-dynamic-24", "marlin-24"])
def test_convert_keeps_codes(name, tmp_path):
    report = convert_checkpoint(WRITTEN / name, tmp_path / "out")
    assert len(report.packed) == 7 and not report.inexact and not report.rounded_values
    assert any("codes and scales stay" in warning for warning in report.warnings)
    directory = ModelDirectory(tmp_path / "out")
    for layer, weight in packed_weights(directory):
        assert torch.equal(weight.unpack(), expected(name)[f"{layer}.weight"]), layer
    shown = ModelDirectory(WRITTEN / name).packed()
    stored = load_all(tmp_path / "out")
    assert stored.keys() == shown.tensors.keys()
    for key, tensor in stored.items():
        found = shown.tensors[key].read()
        assert found.dtype == tensor.dtype and torch.equal(found, tensor), key
    config = quantization(tmp_path / "out")
    assert config["quant_method"] == "flashsparse"
    assert config["layers"]["lm_head"]["reason"] == "not quantized in the source"
    assert "compressed-tensors" not in (tmp_path / "out" / "config.json").read_text()


def test_convert_to_a_format_without_codes_packs_the_products(tmp_path):
    name = "int4-packed"
    report = convert_checkpoint(WRITTEN / name, tmp_path / "out", format="tiled_csl", pack_all=True)
    assert len(report.packed) == 7
    found = inspect_checkpoint(tmp_path / "out")
    assert found.format == "tiled_csl"
    zeros = 1 - int(expected(name)[f"{Q}.weight"].count_nonzero()) / 32**2
    assert found.layers[0].sparsity == pytest.approx(zeros)


@of("int4-packed")
def test_scales_that_do_not_survive_choose_the_dtype(copy, tmp_path):
    def refine(tensors):
        tensors[f"{DOWN}.weight_scale"] = tensors[f"{DOWN}.weight_scale"].half()
        tensors[f"{DOWN}.weight_scale"][0, 0] = 1 + 2**-10  # of eleven bits; bfloat16 has eight

    edit_weights(copy, refine)
    assert {weight.dtype for _, weight in packed_weights(ModelDirectory(copy).packed())} == {
        torch.float16
    }
    with pytest.raises(CheckpointError, match=f"{DOWN}.*does not survive in bfloat16"):
        convert_checkpoint(copy, tmp_path / "out", dtype="bfloat16")


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"values": "int8"}, "values=int8 is asked for"),
        ({"values": "fp8_e4m3", "group": 64}, "group=64 is asked for"),
        ({"n": 1}, "cannot be packed to nm_vector.1:4, fp8_e4m3"),
        ({"m": 3}, "cannot be packed to nm_vector.2:3"),
        ({"vector_length": 2}, "cannot be packed to nm_vector.2:4, L=2"),
    ],
)
def test_options_that_codes_do_not_follow_are_refused(options, rule, tmp_path):
    with pytest.raises(FormatError, match=rule):
        convert_checkpoint(WRITTEN / "fp8-tensor", tmp_path / "out", options=options)
    assert not (tmp_path / "out").exists()


def test_settings_that_leave_no_room_for_codes_are_refused():
    directory = ModelDirectory(WRITTEN / "fp8-tensor")
    with pytest.raises(FormatError, match=r"tiled_csl has no codes.*convert MODEL OUT --format"):
        directory.packed(FlashSparseConfig(format="tiled_csl"))
    with pytest.raises(FormatError, match="codes are not pruned"):
        directory.packed(FlashSparseConfig(pruning="magnitude", sparsity=0.5))


def test_prune_refuses_them(tmp_path, capsys):
    arguments = [str(WRITTEN / "int8"), str(tmp_path / "out"), "--method", "magnitude"]
    app(["prune", *arguments], standalone_mode=False)
    told = " ".join(capsys.readouterr().err.split())
    assert "is quantized already (quant_method 'compressed-tensors' in config.json)" in told
    assert not (tmp_path / "out").exists()


# Which are taken unasked


def test_those_that_say_that_they_have_zeros_are_taken():
    config = json.loads((WRITTEN / "int8" / "config.json").read_text())["quantization_config"]
    assert is_quantized(config) and pattern_of(config) == (2, 4)
    assert QuantizedConfig.of(config) is not None
    for structure in ("4:4", None, 7):
        config["sparsity_config"]["sparsity_structure"] = structure
        assert QuantizedConfig.of(config) is None
        assert QuantizedConfig.of(config, FlashSparseConfig()) is not None
    assert pattern_of({**config, "sparsity_config": {"format": "sparse-24-bitmask"}}) == (2, 4)
    assert pattern_of({**config, "format": "marlin-24"}) == (2, 4)
    for structure in ("unstructured", "0:0"):
        config["sparsity_config"]["sparsity_structure"] = structure
        assert QuantizedConfig.of(config) is not None and pattern_of(config) is None
    config["sparsity_config"]["global_sparsity"] = 0.1  # codes alone are smaller
    assert QuantizedConfig.of(config) is None
    assert QuantizedConfig.of({"quant_method": "gptq", "config_groups": {"a": {}}}) is None
    assert QuantizedConfig.of(None, FlashSparseConfig()) is None


@pytest.mark.parametrize("structure", ["unstructured", "0:0"])
def test_int8_codes_with_zeros_anywhere_are_packed_to_tiled_bitmap(structure, tmp_path):
    source = unstructured(written("int8", tmp_path / "written"), structure)
    assert inspect_checkpoint(source).format == "tiled_bitmap"
    packed = dict(packed_weights(ModelDirectory(source).packed()))
    convert_checkpoint(source, tmp_path / "out", pack_all=True)
    directory = ModelDirectory(tmp_path / "out")
    assert directory.quantization["options"] == {"values": "int8"}
    converted = load_all(tmp_path / "out")
    shown = ModelDirectory(source).dense().tensors
    for layer, weight in packed.items():
        assert weight.scheme.title == "tiled_bitmap(int8)"
        assert torch.equal(weight.unpack(), expected("int8")[f"{layer}.weight"])
        codes, scales = shown[f"{layer}.weight"].read_codes()
        assert torch.equal(weight.format.codes(weight), codes)
        assert torch.equal(weight.tensors["weight_scale"], scales.float())
        for own, tensor in weight.tensors.items():
            assert torch.equal(converted[f"{layer}.{own}"], tensor)


@pytest.mark.parametrize(("name", "values"), [("fp8-tensor", "fp8_e4m3"), ("int4-packed", "int4")])
def test_codes_that_need_a_pattern_say_so(name, values):
    asked = FlashSparseConfig(format="tiled_bitmap")
    with pytest.raises(FormatError, match=rf"layer '.*_proj' \[.*{values} codes need zeros in a"):
        ModelDirectory(WRITTEN / name).packed(asked)


@of("int8")
def test_static_actorder_leaves_columns_where_they_are(copy):
    edit_groups(copy, weights={"actorder": "static"})
    assert len(dict(packed_weights(ModelDirectory(copy).packed()))) == 7
