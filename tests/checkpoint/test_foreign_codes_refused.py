# SPDX-License-Identifier: Apache-2.0
"""Quantized checkpoints that are not read, or damaged: refused by layer, rule and remedy."""

import pytest
import torch
from checkpoints import edit_config, edit_weights, quantization
from foreign_checkpoints import QUANTIZED, edit_groups, expected, written
from safetensors.torch import load_file

from flashsparse_plugin.checkpoint import (
    CheckpointError,
    ModelDirectory,
    convert_checkpoint,
    inspect_checkpoint,
)

DOWN = "model.layers.0.mlp.down_proj"


@pytest.fixture
def copy(tmp_path, request):
    return written(request.param, tmp_path / "written")


def of(*names):
    return pytest.mark.parametrize("copy", names, indirect=True)


RULES = {
    "asymmetric": ({"symmetric": False}, "asymmetric"),
    "actorder": (
        {"actorder": "group"},
        "columns are reordered .actorder 'group'.*must be of consecutive",
    ),
    "actorder-true": ({"actorder": True}, "columns are reordered.*must be of consecutive columns"),
    "bits": ({"num_bits": 3}, "codes are int3"),
    "block": ({"strategy": "block", "group_size": None}, "scales are by block"),
    "group": ({"group_size": 16}, "groups are 16 columns, and groups of 32, 64 and 128 are read"),
    "other-group": ({"group_size": 64}, r"weight_scale is bfloat16 \[32, 1\]|\[32, 2\]"),
    "row": ({"strategy": "channel", "group_size": None}, r"float tensor \[32, 1\]"),
    "type": ({"type": "float", "num_bits": 8}, "codes that are no integers"),
}


@of("int4-packed")
@pytest.mark.parametrize("rule", RULES)
def test_what_is_quantized_otherwise_is_refused_by_its_layer(copy, rule):
    weights, told = RULES[rule]
    edit_groups(copy, weights=weights)
    with pytest.raises(CheckpointError, match=f"layer 'model.layers.0.*({told}).*with vLLM alone"):
        ModelDirectory(copy).dense()


AT_LARGE = {
    "format": ({"format": "nvfp4-pack-quantized"}, "format 'nvfp4-pack-quantized' are not read"),
    "caches": ({"kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme"),
    "transforms": ({"transform_config": {"config_groups": {"u": {}}}}, "transform_config"),
}


@of("int8")
@pytest.mark.parametrize("rule", AT_LARGE)
def test_what_is_not_read_at_all_is_refused(copy, rule, tmp_path):
    changes, told = AT_LARGE[rule]
    edit_groups(copy, **changes)
    for read in (inspect_checkpoint, lambda path: convert_checkpoint(path, tmp_path / "out")):
        with pytest.raises(CheckpointError, match=f"compressed-tensors: .*{told}.*with vLLM alone"):
            read(copy)


@of("int8")
@pytest.mark.parametrize("groups", [{"a": 1}, {"a": {"targets": "Linear"}}, {"a": {}}, [1], "ab"])
def test_groups_that_are_none_are_refused(copy, groups):
    edit_config(copy, quantization_config=quantization(copy) | {"config_groups": groups})
    with pytest.raises(CheckpointError, match="compressed-tensors: config_groups"):
        ModelDirectory(copy).packed()


@of("int8")
def test_targets_that_are_no_expressions_are_refused(copy):
    groups = {"a": {"targets": ["re:(?=a)"], "weights": {"strategy": "channel"}}}
    edit_config(copy, quantization_config=quantization(copy) | {"config_groups": groups})
    with pytest.raises(CheckpointError, match="targets in config_groups .*regular expression"):
        ModelDirectory(copy).packed()


@of("int8")
def test_a_layer_that_no_group_means_is_refused(copy):
    groups = {"a": {"targets": ["re:.*q_proj"], "weights": {"strategy": "channel"}}}
    edit_config(copy, quantization_config=quantization(copy) | {"config_groups": groups})
    with pytest.raises(CheckpointError, match="layer 'model.layers.0.mlp.*no group of config.json"):
        ModelDirectory(copy).packed()


def change(layer, part, by):
    def apply(tensors):
        tensors[f"{layer}.{part}"] = by(tensors[f"{layer}.{part}"].clone()).contiguous()

    return apply


def set_first(value):
    def apply(tensor):
        tensor.view(-1)[0] = value
        return tensor

    return apply


DAMAGES = {
    "int8": {
        "real-weight": ("weight", lambda t: t.bfloat16(), "its weight is bfloat16"),
        "fp8-weight": ("weight", lambda t: t.to(torch.float8_e4m3fn), "its weight is float8"),
        "flat-weight": ("weight", lambda t: t.flatten(), "its weight is int8"),
        "no-weight": ("weight", lambda t: t[:0], "its weight is int8"),
        "short-scale": ("weight_scale", lambda t: t[:-1], "its weight_scale is"),
        "wide-scale": ("weight_scale", lambda t: t.expand(-1, 2), "its weight_scale is"),
        "coded-scale": ("weight_scale", lambda t: t.to(torch.int8), "its weight_scale is int8"),
    },
    "int8-24": {
        "huge-shape": ("shape", lambda t: t * 10**9, "its bitmask is uint8"),
        "negative-shape": ("shape", lambda t: -t, "its bitmask is uint8"),
        "real-values": ("compressed", lambda t: t.bfloat16(), "values of bfloat16"),
        "mask": ("bitmask", lambda t: t[:-1], "its bitmask is uint8"),
    },
    "int4-packed": {
        "huge-shape": ("weight_shape", lambda t: t * 10**9, "its weight_packed is int32"),
        "negative-shape": ("weight_shape", lambda t: -t, "its weight_packed is int32"),
        "turned-shape": ("weight_shape", lambda t: t.flip(0) + 8, "its weight_packed is int32"),
        "real-shape": ("weight_shape", lambda t: t.double(), "its weight_shape is no integer"),
        "long-shape": ("weight_shape", lambda t: t.repeat(9), "its weight_shape is no integer"),
        "short": ("weight_packed", lambda t: t[:, :-1], "its weight_packed is int32"),
        "flat": ("weight_packed", lambda t: t.flatten(), "its weight_packed is int32"),
        "int64": ("weight_packed", lambda t: t.long(), "its weight_packed is int64"),
    },
    "marlin-24": {
        "short": ("weight_packed", lambda t: t[:-1], "its meta is int16"),
        "flat": ("weight_packed", lambda t: t.flatten(), "is no matrix"),
        "narrow": ("weight_packed", lambda t: t[:, :-1], "its weight_packed is int32"),
        "meta": ("meta", lambda t: t.int(), "its meta is int32"),
        "scales": ("scale_packed", lambda t: t[:-1], "its scale_packed is float16"),
        "rows": ("scale_packed", lambda t: t[:, :-1], "for int4 codes of rows in 64s"),
        "flat-scales": ("scale_packed", lambda t: t.flatten(), "is no matrix"),
    },
}


@pytest.mark.parametrize(
    ("copy", "damage"),
    [(name, damage) for name, damages in DAMAGES.items() for damage in damages],
    indirect=["copy"],
)
def test_a_hostile_header_is_refused_by_its_layer(copy, damage, request):
    part, by, rule = DAMAGES[request.node.callspec.params["copy"]][damage]
    edit_weights(copy, change(DOWN, part, by))
    with pytest.raises(CheckpointError, match=f"{DOWN}.*({rule})"):
        ModelDirectory(copy).packed()


CONTENTS = {
    "nan": ("fp8-tensor", "weight", set_first(torch.nan), "no fp8_e4m3 numbers"),
    "infinite-scale": ("int8", "weight_scale", set_first(torch.inf), "must be finite"),
    "huge-scale": ("int8", "weight_scale", set_first(1e38), "too large for bfloat16"),
    "dense": ("int8", "weight", lambda t: t | 1, "cannot be packed to nm_vector.2:4, int8"),
    "dense-words": ("int4-packed", "weight_packed", lambda t: t * 0, "to nm_vector.2:4, int4"),
    "meta": ("marlin-24", "meta", set_first(0), "keeps the columns 0 and 0 of row 0"),
    "mask": ("int8-24", "bitmask", set_first(0x17), "its bitmask keeps"),
}


@pytest.mark.parametrize(
    ("copy", "content"),
    [(name, content) for content, (name, *_) in CONTENTS.items()],
    indirect=["copy"],
)
def test_hostile_contents_are_refused_by_their_layer(copy, content):
    _, part, by, rule = CONTENTS[content]
    edit_weights(copy, change(DOWN, part, by))
    shown = ModelDirectory(copy).packed()
    with pytest.raises(CheckpointError, match=f"(?s){DOWN}.*{rule}.*vLLM alone|its bitmask keeps"):
        shown.tensors[f"{DOWN}.weight_packed"].read()


SCALES = {
    "nan": (torch.nan, "must be finite"),
    "infinite": (torch.inf, "must be finite"),
    "huge": (6e4, "too large for float16. Remedy: dtype bfloat16"),
}


@pytest.mark.parametrize("copy", QUANTIZED, indirect=True)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("format", [None, "tiled_csl"])
def test_hostile_scales_are_refused_with_codes_kept_and_unpacked(copy, scale, format, tmp_path):
    value, rule = SCALES[scale]
    stored = load_file(copy / "model.safetensors")
    part = next(x for x in ("scale_packed", "weight_scale") if f"{DOWN}.{x}" in stored)
    edit_weights(copy, change(DOWN, part, set_first(value)))
    with pytest.raises(CheckpointError, match=rf"{DOWN}' \[\d+, \d+\].*its {part} .*{rule}"):
        convert_checkpoint(copy, tmp_path / "out", format=format, dtype="float16", pack_all=True)
    assert not (tmp_path / "out").exists()


@of("fp8-tensor")
def test_codes_that_are_nan_are_refused_where_they_are_unpacked(copy):
    edit_weights(copy, change(DOWN, "weight", set_first(-torch.nan)))
    with pytest.raises(CheckpointError, match=f"{DOWN}.*no fp8_e4m3 numbers"):
        ModelDirectory(copy).dense().tensors[f"{DOWN}.weight"].read()


@of("int4-packed")
@pytest.mark.parametrize("read", [inspect_checkpoint, convert_checkpoint])
def test_the_files_shape_is_held_against_the_models(copy, read, tmp_path):
    """One that packs to tensors of the same shapes, so that nothing else tells of it."""
    edit_weights(copy, change(DOWN, "weight_shape", lambda t: t - torch.tensor([0, 1])))
    arguments = (copy,) if read is inspect_checkpoint else (copy, tmp_path / "out")
    with pytest.raises(CheckpointError, match=rf"{DOWN}'.*\[32, 63\].*\[32, 64\].*fetch"):
        read(*arguments)


@of("int8")
def test_zero_points_may_be_zeros(copy):
    zeros = torch.zeros(32, 1, dtype=torch.int8)
    edit_weights(copy, lambda tensors: tensors.update({f"{DOWN}.weight_zero_point": zeros}))
    shown = ModelDirectory(copy).dense()
    assert torch.equal(shown.tensors[f"{DOWN}.weight"].read(), expected("int8")[f"{DOWN}.weight"])
    zeros[3] = 1
    edit_weights(copy, lambda tensors: tensors.update({f"{DOWN}.weight_zero_point": zeros}))
    with pytest.raises(CheckpointError, match=f"{DOWN}.*asymmetric"):
        ModelDirectory(copy).dense().tensors[f"{DOWN}.weight"].read()


@of("int4-packed")
def test_reordered_columns_are_refused(copy):
    places = torch.zeros(64, dtype=torch.int32)
    edit_weights(copy, lambda tensors: tensors.update({f"{DOWN}.weight_g_idx": places}))
    with pytest.raises(CheckpointError, match=f"{DOWN}.*weight_g_idx.*without actorder"):
        ModelDirectory(copy).packed()


@of("int4-packed", "marlin-24", "int8-24")
def test_a_layer_of_which_a_part_is_missing_or_too_much_is_refused(copy):
    tensors = load_file(copy / "model.safetensors")
    parts = [name for name in tensors if name.startswith(DOWN)]
    for lost in parts:
        edit_weights(copy, lambda tensors, lost=lost: tensors.pop(lost))
        with pytest.raises(CheckpointError, match=f"{DOWN}|kept as"):
            ModelDirectory(copy).packed()
        edit_weights(copy, lambda now, lost=lost: now.update({lost: tensors[lost]}))
    edit_weights(copy, lambda now: now.update({f"{DOWN}.weight": torch.zeros(2, 2)}))
    with pytest.raises(CheckpointError, match=f"{DOWN}.*which no layout has"):
        ModelDirectory(copy).packed()


@of("int8")
def test_a_model_without_codes_that_says_it_is_quantized_is_refused(copy):
    edit_weights(copy, lambda tensors: (tensors.clear(), tensors.update(expected("int8"))))
    with pytest.raises(CheckpointError, match="quantized by config.json, and no layer of it"):
        ModelDirectory(copy).packed()
