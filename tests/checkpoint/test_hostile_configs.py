# SPDX-License-Identifier: Apache-2.0
"""Configurations that would hang, fetch, run or fill the memory: a sentence in good time."""

import json
import socket
import time

import pytest
from checkpoints import edit_config
from transformers.integrations import hub_kernels

import flashsparse_plugin as fs
from flashsparse_plugin.checkpoint import (
    CheckpointError,
    ModelDirectory,
    convert_checkpoint,
    inspect_checkpoint,
)
from flashsparse_plugin.checkpoint.read.linears import find_linears
from flashsparse_plugin.matching import matches

NAME = "model.layers.10.self_attn.q_proj"


@pytest.fixture
def quick():
    """Holds the test to what a user waits for without asking why."""
    start = time.monotonic()
    yield
    assert time.monotonic() - start < 10


def test_a_pattern_that_would_backtrack_for_ever(quick):
    assert not matches(NAME, ["re:([a-z0-9_.]+)+!", "re:(.*)*(.*)*(.*)*x", "re:(a|aa)+$"])
    assert matches(NAME, ["re:([a-z0-9_.]+)+!", "re:.*q_proj$"])
    config = fs.FlashSparseConfig(ignore=["re:([a-z0-9_.]+)+!"])
    assert not matches(NAME, config.ignore)


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (["re:(?!lm_head)x"], r"'re:\(\?!lm_head\)x' is not a regular expression of RE2"),
        (["re:((a{100}){100}){100}"], "regular expression of RE2"),
        ([f"re:{i}{'[a-z]{500}' * 20}" for i in range(100)], "taken together"),
        (["re:x"] * 300, "more than 256 regular expressions"),
        (["re:\ud800"], "surrogates not allowed|unicode string"),
    ],
)
def test_a_pattern_that_cannot_be_is_refused(quick, patterns, message):
    with pytest.raises(ValueError, match=message):
        matches(NAME, patterns)
    with pytest.raises(ValueError, match=message):
        fs.FlashSparseConfig(ignore=patterns)


MANY = [f"layer{i}" for i in range(200_000)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"modules_to_not_convert": 5}, "must be lists of names"),
        ({"ignored_layers": "lm_head"}, "must be lists of names"),
        ({"ignore": 5, "modules_to_not_convert": ["x"]}, "must be lists of names"),
        ({"ignore": MANY}, "at most 4096"),
        ({"modules_to_not_convert": MANY}, "more than 4096"),
        ({"ignore": ["x" * 2000]}, "at most 1000 characters"),
        ({"layers": dict.fromkeys(MANY, {"format": "dense"})}, "at most 100000"),
        ({"layers": {"x" * 2000: {"format": "dense"}}}, "at most 1000 characters"),
        ({"options": {"n": 2}}, "tiled_bitmap has no option 'n'"),
        ({"options": 5}, "options: "),
        ({"layers": {"a": 5}}, r"layers\.a: "),
        ({"layers": {"\x1b[2J": {"format": 5}}}, r"layers\.\\x1b\[2J\.format: "),
    ],
)
def test_a_configuration_that_cannot_be_is_refused_in_a_sentence(quick, settings, message):
    """By the class that transformers calls, and by our own reader of a directory."""
    with pytest.raises(fs.FormatError, match=message) as caught:
        fs.FlashSparseConfig.from_dict({"dtype": "bfloat16", **settings})
    assert len(str(caught.value)) < 500 and str(caught.value).isprintable()


def edit(path, **changes):
    edit_config(path, quantization_config={"quant_method": "flashsparse", **changes})


def test_inspect_says_what_is_wrong_with_a_configuration(llama):
    for changes in ({"modules_to_not_convert": 5}, {"options": {"n": 2}}, {"ignore": ["re:("]}):
        edit(llama, **changes)
        with pytest.raises(CheckpointError, match="quantization_config of .* is not valid"):
            inspect_checkpoint(llama)


@pytest.mark.parametrize(
    "config",
    [
        {"num_hidden_layers": 1_000_000},
        {"num_hidden_layers": 10**15},
        {"text_config": {"n_layer": 10**400}},
        {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"],
         "num_hidden_layers": 900},
        {"model_type": "falcon_h1", "architectures": ["FalconH1ForCausalLM"],
         "num_hidden_layers": 900},
    ],
    ids=["layers", "more", "nested", "modules", "other-modules"],
)  # fmt: skip
def test_a_model_that_is_far_larger_than_its_files(quick, llama, config):
    edit_config(llama, **config)
    with pytest.raises(CheckpointError, match="the files hold 21 tensors: .* different models"):
        find_linears(ModelDirectory(llama))


def test_a_config_of_sixty_megabytes(quick, llama):
    edit_config(llama, padding="x" * (60 << 20))
    with pytest.raises(
        CheckpointError, match=r"config\.json cannot be read .*larger than 16,777,216 bytes"
    ):
        ModelDirectory(llama)


def test_a_number_of_too_many_digits(llama):
    (llama / "config.json").write_text('{"vocab_size": 1' + "0" * 5000 + "}")
    with pytest.raises(CheckpointError, match=r"config\.json is not valid JSON"):
        ModelDirectory(llama)


@pytest.fixture
def watched(monkeypatch):
    """A machine with the package `kernels` and no way out; what was tried is listed."""
    tried = []

    def reach(*arguments, **options):
        tried.append(arguments)
        raise OSError("no way out")

    monkeypatch.setattr(hub_kernels, "is_kernels_available", lambda *a, **k: True)
    monkeypatch.setattr("transformers.modeling_utils.is_kernels_available", lambda *a, **k: True)
    monkeypatch.setattr(hub_kernels, "get_kernel_hub", reach, raising=False)
    monkeypatch.setattr(socket.socket, "connect", reach)
    monkeypatch.setattr(socket, "getaddrinfo", reach)
    return tried


@pytest.mark.parametrize(
    "implementation",
    ["org/repo@rev", "kernels-community/flash-attn2", "flash_attention_2", {"": "org/repo"}],
    ids=str,
)
def test_no_attention_is_fetched_or_run(llama, watched, implementation):
    edit_config(llama, attn_implementation=implementation, _attn_implementation=implementation)
    assert len(find_linears(ModelDirectory(llama))) == 15
    assert convert_checkpoint(llama, llama.parent / "out").packed
    assert watched == []


def test_a_models_own_kernels_are_not_looked_up(llama, watched):
    config = dict(model_type="mamba", architectures=["MambaForCausalLM"], hidden_size=32)
    (llama / "config.json").write_text(json.dumps(config | dict(num_hidden_layers=1)))
    with pytest.raises(CheckpointError, match="different models"):
        find_linears(ModelDirectory(llama))
    assert watched == []


def test_no_backbone_is_fetched(llama, watched):
    config = dict(
        model_type="detr",
        architectures=["DetrForObjectDetection"],
        use_pretrained_backbone=True,
        use_timm_backbone=False,
        backbone="organisation/backbone",
    )
    (llama / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="cannot build the model"):
        find_linears(ModelDirectory(llama))
    assert watched == []
