# SPDX-License-Identifier: Apache-2.0
"""FlashSparseConfig: what is in config.json."""

import json
import logging
import re

import pytest

import flashsparse_plugin as fs


def test_writes_what_the_design_shows():
    config = fs.FlashSparseConfig(format="tiled_csl", dtype="bfloat16", sparsity=0.8)
    assert config.to_dict() == {
        "quant_method": "flashsparse",
        "format": "tiled_csl",
        "format_version": 1,
        "dtype": "bfloat16",
        "sparsity": 0.8,
        "pruning": "none",
        "ignore": ["lm_head"],
    }
    assert fs.FlashSparseConfig(**json.loads(config.to_json_string())) == config


def test_unknown_keys_are_kept_and_warned_of(caplog):
    with caplog.at_level(logging.WARNING):
        config = fs.FlashSparseConfig(sparsity=0.5, rotation="hadamard")
    assert "rotation" in caplog.text
    assert config.to_dict()["rotation"] == "hadamard"


def test_layers_that_differ_keep_their_reason():
    layers = {"model.layers.0.mlp.up_proj": {"format": "dense", "reason": "density 71%"}}
    config = fs.FlashSparseConfig(layers=layers)
    assert config.to_dict()["layers"] == layers


@pytest.mark.parametrize("name", ["modules_to_not_convert", "ignored_layers"])
def test_reads_the_ignore_lists_of_other_methods(name):
    config = fs.FlashSparseConfig(**{name: ["re:.*router", "lm_head"]})
    assert config.ignore == ["lm_head", "re:.*router"]
    assert name not in config.to_dict()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"format_version": 2}, r"tiled_bitmap version 2.*pip install -U flashsparse-plugin"),
        ({"format": "tiled_cls"}, r"'tiled_cls'.*tiled_bitmap"),
        ({"pruning": "magnitude"}, "sparsity=0.5"),
        ({"format": "auto", "options": {"n": 2}}, "chooses the options, too"),
        ({"format": "auto", "batch": 0}, "greater than or equal to 1"),
        ({"pruning": "wanda"}, r"""pruning: .*"magnitude" alone, not 'wanda'.*flashsparse prune"""),
        ({"format": "nm_vector", "options": {"n": 5, "m": 4}}, "nm_vector: .*5"),
        ({"format": "nm_vector", "options": {"n": 2}}, "needs the option 'm'"),
        ({"format": "nm_vector", "options": {"values": "int3"}}, "option values"),
        ({"sparsity": 1.5}, "less than or equal to 1"),
        ({"dtype": "float32"}, "float16.*bfloat16"),
        ({"quant_method": "gptq"}, "flashsparse"),
        ({"format_version": 1.0}, "format_version: .*valid integer"),
        ({"format_version": True}, "format_version: .*valid integer"),
        ({"format_version": "1"}, "format_version: .*valid integer"),
        ({"layers": {"a": {"format": "tiled_csl", "format_version": 1.0}}}, "valid integer"),
        ({"format_version": 0}, r"version 0.*start at 1.*flashsparse convert"),
    ],
)
def test_refuses_by_name(settings, message):
    with pytest.raises(fs.FormatError, match=f"(?s)^(?!.*pydantic).*{message}"):
        fs.FlashSparseConfig(**settings)


def test_only_codes_of_another_tool_bring_their_own_pattern():
    config = fs.FlashSparseConfig(format="nm_vector", dtype="bfloat16")
    for refused in (
        lambda: config.scheme_of("layer"),
        lambda: config.refuse_open("config.json"),
    ):
        with pytest.raises(fs.FormatError, match="nm_vector needs the option 'n'"):
            refused()


def test_what_is_assigned_is_checked_as_what_is_given():
    config = fs.FlashSparseConfig()
    with pytest.raises(fs.FormatError, match=r"^sparsity: .*less than or equal to 1$"):
        config.sparsity = 50


def test_a_pattern_says_how_many_zeros_pruning_makes():
    pattern = {"format": "nm_vector", "options": {"n": 2, "m": 4}}
    assert fs.FlashSparseConfig(**pattern, pruning="magnitude").sparsity is None
    with pytest.raises(fs.FormatError, match="needs sparsity="):
        fs.FlashSparseConfig(pruning="magnitude")


@pytest.mark.parametrize("format", ["nm_vector", "auto"])
def test_the_choice_of_cusparselt_is_ignored_with_a_line(format, caplog):
    named = {"format": format, "dtype": "bfloat16"}
    named |= {"options": {"n": 2, "m": 4}} if format == "nm_vector" else {}
    config = fs.FlashSparseConfig.from_dict({**named, "prompts": "cusparselt"})
    (message,) = caplog.messages
    assert re.search(r'prompts="cusparselt" is ignored: .* Leave prompts out', message)
    assert config == fs.FlashSparseConfig(**named, prompts="own")
    assert "prompts" not in config.to_dict() and len(caplog.messages) == 1
    how = {"dequantize": False, "experts": "auto", "decode_kernels": "early"}
    assert config.get_loading_attributes() == how


def test_how_to_run_survives_the_choice_of_formats():
    how = {"dequantize": True, "experts": "dense", "decode_kernels": "default"}
    chosen = fs.FlashSparseConfig(format="auto", **how).settled({"fc": (None, "it does not pay")})
    assert chosen.get_loading_attributes() == how


def test_what_a_file_says_stays_in_one_line(caplog):
    """Names and reasons that would begin another line of a log, or of what `inspect` shows."""
    forged = "evil\n2026-11-21 INFO verified\t"
    config = fs.FlashSparseConfig(
        **{forged: 1}, layers={"a": {"format": "dense", "reason": forged}}
    )
    assert caplog.messages and all(message.isprintable() for message in caplog.messages)
    assert config.layers["a"].reason == r"evil\n2026-11-21 INFO verified\t"
    assert str(fs.FormatError(forged)) == config.layers["a"].reason
    with pytest.raises(fs.FormatError) as caught:
        fs.FlashSparseConfig(layers={forged: {"format": 5}})
    assert str(caught.value).isprintable()
