# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in the layouts of compressed-tensors, which wrote those that are compared with."""

import json
import shutil

import pytest
import torch
from checkpoints import (
    assert_same_model,
    edit_config,
    edit_weights,
    load_all,
    quantization,
    save_llama,
)
from foreign_checkpoints import LAYOUTS, WRITTEN, rewrite, sparsity_config, tensors_of
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from flashsparse_plugin.checkpoint import (
    CheckpointError,
    ModelDirectory,
    convert_checkpoint,
    inspect_checkpoint,
)
from flashsparse_plugin.checkpoint.foreign import LAYOUTS as KNOWN
from flashsparse_plugin.checkpoint.foreign import dense_weights
from flashsparse_plugin.checkpoint.foreign.sparsity_config import is_sparse_alone
from flashsparse_plugin.checkpoint.write.report import human
from flashsparse_plugin.cli import app
from flashsparse_plugin.packed import FormatError
from flashsparse_plugin.pruning import prune_weight

FOLDERS = (*LAYOUTS, "sparse-bitmask-0.8")
Q = "model.layers.0.self_attn.q_proj"


def same_bits(one, other):
    return one.dtype == other.dtype and torch.equal(one.view(torch.int16), other.view(torch.int16))


@pytest.fixture
def written(tmp_path, request):
    """A copy of a checkpoint that compressed-tensors wrote."""
    name = getattr(request, "param", "sparse-bitmask")
    return shutil.copytree(WRITTEN / name, tmp_path / "written")


@pytest.mark.parametrize("name", FOLDERS)
def test_the_weights_are_those_that_compressed_tensors_makes(name):
    directory = ModelDirectory(WRITTEN / name)
    expected = load_file(WRITTEN / name / "expected.safetensors")
    assert directory.tensors.keys() == expected.keys()
    for key, tensor in expected.items():
        info = directory.tensors[key]
        assert (info.dtype, info.shape) == (tensor.dtype, tuple(tensor.shape))
        assert same_bits(info.read(), tensor), key
        assert same_bits(torch.cat([*info.rows(max_elements=50)]), tensor), key
    stored = load_file(WRITTEN / name / "model.safetensors").values()
    assert directory.nbytes == sum(tensor.nbytes for tensor in stored)


def test_dense_weights_of_a_sparse_model_are_taken_as_they_are():
    directory = ModelDirectory(WRITTEN / "dense")
    assert directory.quantization is None
    stored = load_file(WRITTEN / "dense" / "model.safetensors")
    assert all(same_bits(directory.tensors[name].read(), stored[name]) for name in stored)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_writer_of_these_tests_writes_what_compressed_tensors_does(layout):
    stored = load_file(WRITTEN / layout / "model.safetensors")
    weight = load_file(WRITTEN / layout / "expected.safetensors")[f"{Q}.weight"]
    for part, tensor in tensors_of(weight, layout).items():
        assert tensor.dtype == stored[f"{Q}.{part}"].dtype
        assert torch.equal(_bytes(tensor), _bytes(stored[f"{Q}.{part}"])), part


def _bytes(tensor):
    return tensor.flatten().view(torch.uint8)


@pytest.mark.parametrize("written", [*FOLDERS, "dense"], indirect=True)
def test_convert_packs_them(written, tmp_path):
    report = convert_checkpoint(written, tmp_path / "out", pack_all=True)
    assert len(report.packed) == 7
    assert report.bytes_source == ModelDirectory(written).nbytes
    expected = written / "expected.safetensors"
    if expected.exists():
        expected.rename(written / "model.safetensors")
    assert assert_same_model(written, tmp_path / "out") == 7
    assert quantization(tmp_path / "out")["quant_method"] == "flashsparse"
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert "compressed-tensors" not in json.dumps(config)


@pytest.mark.parametrize("written", ["sparse-24-bitmask"], indirect=True)
def test_inspect_shows_what_they_take(written):
    found = inspect_checkpoint(written)
    assert found.format is None and found.bytes_stored == 4940
    q = next(layer for layer in found.layers if layer.name == Q)
    assert (q.bytes_stored, q.bytes_dense) == (20 * 10 * 2 + 20 * 3 + 16, 20 * 20 * 2)


@pytest.mark.parametrize("written", ["sparse-24-bitmask"], indirect=True)
def test_prune_drops_more_of_their_weights(written, tmp_path):
    stored = load_file(written / "expected.safetensors")
    finite = {name: tensor.nan_to_num(0, 0, 0) for name, tensor in stored.items()}
    save_file(finite, written / "expected.safetensors")
    edit_weights(written, lambda tensors: _set_values_finite(tensors))
    arguments = ["prune", str(written), str(tmp_path / "out"), "--method", "magnitude"]
    app([*arguments, "--sparsity", "0.8"], standalone_mode=False)
    pruned = load_all(tmp_path / "out")
    assert pruned.keys() == finite.keys()
    weight, before = pruned[f"{Q}.weight"], finite[f"{Q}.weight"]
    assert int((weight == 0).sum()) == round(0.8 * weight.numel())
    assert torch.equal(weight[weight != 0], before[weight != 0])
    assert "quantization_config" not in json.loads((tmp_path / "out" / "config.json").read_text())


def _set_values_finite(tensors):
    for name in tensors:
        if tensors[name].is_floating_point():
            tensors[name] = tensors[name].nan_to_num(0, 0, 0)


# Streams


@pytest.mark.parametrize("name", FOLDERS)
def test_a_stream_of_tensors_becomes_one_of_weights(name):
    stored = load_file(WRITTEN / name / "model.safetensors")
    expected = load_file(WRITTEN / name / "expected.safetensors")
    layout = KNOWN[name.removesuffix("-0.8")]
    order = sorted(stored, key=lambda each: each.rpartition(".")[2])  # parts of a weight far apart
    found = dict(dense_weights(((key, stored[key]) for key in order), layout))
    assert found.keys() == expected.keys()
    assert all(same_bits(found[key], expected[key]) for key in found)


def test_a_stream_that_ends_within_a_weight_is_refused():
    stored = load_file(WRITTEN / "sparse-bitmask" / "model.safetensors")
    del stored[f"{Q}.row_offsets"]
    with pytest.raises(FormatError, match=f"{Q}.weight.*bitmask, compressed, shape alone"):
        dict(dense_weights(stored.items(), KNOWN["sparse-bitmask"]))


@settings(max_examples=60, deadline=None)
@given(data=st.data(), rows=st.integers(1, 9), columns=st.integers(1, 40))
def test_any_weight_comes_back(data, rows, columns):
    layout = data.draw(st.sampled_from(LAYOUTS))
    dtype = data.draw(st.sampled_from([torch.float16, torch.bfloat16, torch.float32]))
    columns = columns if layout == "sparse-bitmask" else 4 * columns
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    weight = torch.randn(rows, columns, generator=generator).to(dtype)
    if layout == "sparse-bitmask":
        density = data.draw(st.sampled_from([0, 0.1, 0.5, 1]))
        weight[torch.rand(weight.shape, generator=generator) >= density] = 0
    else:
        best = weight.view(-1, 4).abs().topk(2, dim=1).indices
        weight *= torch.zeros(rows * columns // 4, 4).scatter_(1, best, 1).view(weight.shape)
    assert torch.equal(KNOWN[layout].dense("w", tensors_of(weight, layout)), weight)


# What is refused


def _edit(part, change):
    def apply(tensors):
        tensors[f"{Q}.{part}"] = change(tensors[f"{Q}.{part}"].clone()).contiguous()

    return apply


def _flip(byte):
    def change(mask):
        mask.view(-1)[-1] ^= byte
        return mask

    return change


DAMAGES = {
    "huge-shape": ("shape", lambda t: t * 10**9, "its bitmask is uint8"),
    "negative-shape": ("shape", lambda t: -t, "its bitmask is uint8"),
    "other-shape": ("shape", lambda t: t.flip(0) + 8, "its bitmask is uint8"),
    "real-shape": ("shape", lambda t: t.double(), "no int64 tensor"),
    "long-shape": ("shape", lambda t: t.flatten().repeat(3), "no int64 tensor"),
    "no-shape": ("shape", lambda t: t[:0], "no int64 tensor"),
    "wide-mask": ("bitmask", lambda t: t.to(torch.int16), "its bitmask is int16"),
    "short-mask": ("bitmask", lambda t: t[:-1], "its bitmask is uint8"),
    "padding": ("bitmask", _flip(0x80), "bits beyond the last column"),
    "bit": ("bitmask", _flip(0x01), "its bitmask keeps"),
    "values": ("compressed", lambda t: t[:-1], "its (bitmask keeps|values are)"),
    "more-values": ("compressed", lambda t: t.repeat(2, 1), "its values are"),
    "codes": ("compressed", lambda t: t.to(torch.float8_e4m3fn), "values of float8_e4m3fn"),
}


@pytest.mark.parametrize("written", LAYOUTS, indirect=True)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_hostile_layer_is_refused_by_name(written, tmp_path, damage):
    part, change, rule = DAMAGES[damage]
    edit_weights(written, _edit(part, change))
    (written / "expected.safetensors").unlink()
    with pytest.raises(CheckpointError, match=f"{Q}.weight.*{rule}"):
        convert_checkpoint(written, tmp_path / "out", pack_all=True)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "change",
    [lambda t: t[:-1], lambda t: t + 1, lambda t: t.flip(0), lambda t: t.int()],
    ids=["short", "later", "backwards", "int32"],
)
def test_hostile_row_offsets_are_refused(written, change):
    edit_weights(written, _edit("row_offsets", change))
    with pytest.raises(CheckpointError, match=f"{Q}.weight.*its row_offsets are"):
        ModelDirectory(written).tensors[f"{Q}.weight"].read()


def test_a_weight_of_which_a_part_is_missing_is_refused(written):
    edit_weights(written, lambda tensors: tensors.pop(f"{Q}.bitmask"))
    with pytest.raises(CheckpointError, match=f"{Q}.weight' is kept as compressed, row_offsets"):
        ModelDirectory(written)


def test_a_weight_that_is_there_twice_is_refused(written):
    edit_weights(written, lambda tensors: tensors.update({f"{Q}.weight": torch.zeros(20, 20)}))
    with pytest.raises(CheckpointError, match="both plain and as bitmask, compressed"):
        ModelDirectory(written)


def test_a_weight_of_another_model_is_refused(written, tmp_path):
    edit_config(written, hidden_size=40)
    with pytest.raises(CheckpointError, match="config.json makes it"):
        convert_checkpoint(written, tmp_path / "out")


QUANTIZED = {
    "weights": {"config_groups": {"group_0": {"targets": ["Linear"], "weights": {}}}},
    "caches": {"kv_cache_scheme": {"num_bits": 8}},
    "transforms": {"transform_config": {"config_groups": {"u": {}}}},
    "format": {"format": "marlin-24"},
    "sparsity": {"sparsity_config": {"format": "sparse-wonder"}},
    "none": {"sparsity_config": {}},
    "text": {"sparsity_config": "sparse-bitmask"},
}


@pytest.mark.parametrize("more", QUANTIZED)
def test_what_is_quantized_too_is_refused(written, tmp_path, more):
    edit_config(written, quantization_config=sparsity_config("sparse-bitmask") | QUANTIZED[more])
    for read in (inspect_checkpoint, lambda path: convert_checkpoint(path, tmp_path / "out")):
        with pytest.raises(
            CheckpointError, match="(quantized (already|by).*|of )compressed-tensors"
        ):
            read(written)


def test_configurations_of_earlier_releases_are_known():
    old = sparsity_config("sparse-bitmask")
    del old["quant_method"], old["transform_config"]
    assert is_sparse_alone(old)
    assert is_sparse_alone({**old, "config_groups": {}, "format": "dense", "ignore": []})
    assert not is_sparse_alone({"quant_method": "gptq", "bits": 4})
    assert not is_sparse_alone(None)


# Advice


@pytest.fixture
def two_of_four(tmp_path):
    """A checkpoint whose linear layers, but the head, follow 2:4."""
    path = save_llama(tmp_path / "2of4", sparsity=0)

    def prune(tensors):
        for name in tensors:
            if name.endswith("_proj.weight"):
                tensors[name] = prune_weight(tensors[name], pattern=(2, 4))

    edit_weights(path, prune)
    return rewrite(path, "sparse-24-bitmask")


def test_convert_advises_the_format_of_a_pattern_that_all_layers_follow(two_of_four, tmp_path):
    report = convert_checkpoint(two_of_four, tmp_path / "csl", pack_all=True)
    (told,) = [warning for warning in report.warnings if "follow" in warning]
    assert "All 14 layers that can be packed follow nm_vector(2:4)" in told
    assert "with --format 2:4 (format=)" in told
    better = convert_checkpoint(
        two_of_four, tmp_path / "nm", format="nm_vector", options={"n": 2, "m": 4}
    )
    assert len(better.packed) == 14 and not better.warnings
    nbytes = sum(layer.bytes_written for layer in better.packed)
    assert f"they take {human(nbytes)} " in told

    def break_one(tensors):
        tensors["model.layers.1.mlp.up_proj.weight"] = torch.ones(200, 128, dtype=torch.bfloat16)
        for part in ("shape", "compressed", "bitmask"):
            del tensors[f"model.layers.1.mlp.up_proj.{part}"]

    edit_weights(two_of_four, break_one)
    report = convert_checkpoint(two_of_four, tmp_path / "again", pack_all=True)
    assert not [warning for warning in report.warnings if "follow" in warning]


def test_inspect_shows_the_format_of_a_pattern_that_all_layers_follow(two_of_four, capsys):
    found = inspect_checkpoint(two_of_four)
    q = found.layers[0]
    assert q.options_in["nm_vector"]["n"] == 2
    assert q.bytes_in["nm_vector"] == q.bytes_dense * 9 / 16
    app(["inspect", str(two_of_four)], standalone_mode=False)
    told = " ".join(capsys.readouterr().out.split())
    assert "Converted with --format 2:4, the whole model" in told
