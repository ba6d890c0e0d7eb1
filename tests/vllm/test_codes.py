# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that another tool quantized, as vLLM's front end takes and checks them."""

import json
from types import SimpleNamespace

import pytest
import torch
from checkpoints import edit_weights
from foreign_checkpoints import IDLE_SPARSITY, edit_groups, sparsity_config, unstructured, written

from flashsparse_plugin.checkpoint.foreign.packing import QuantizedConfig
from flashsparse_plugin.integrations.vllm.codes import take
from flashsparse_plugin.integrations.vllm.preflight import DamagedCheckpointError, check_directory
from flashsparse_plugin.integrations.vllm.quantization import FlashSparseQuantization
from flashsparse_plugin.integrations.vllm.settings import SettingsError, merge

DOWN = "model.layers.0.mlp.down_proj"


def taken(folder, **settings):
    """What vLLM takes a checkpoint for: its packed view and configuration, by a user's settings."""
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    asked = QuantizedConfig.of(config, QuantizedConfig(foreign=config) if settings else None)
    model = SimpleNamespace(model=str(folder), dtype=torch.bfloat16)
    return take(asked, settings, model, folder)


def test_the_files_shape_is_held_against_the_models(tmp_path):
    folder = written("int4-packed", tmp_path / "written")
    check_directory(*taken(folder))
    other = written("int4-packed", tmp_path / "other")
    shape = torch.tensor([32, 63])
    edit_weights(other, lambda tensors: tensors.update({f"{DOWN}.weight_shape": shape}))
    with pytest.raises(DamagedCheckpointError, match=rf"{DOWN}'.*\[32, 63\].*\[32, 64\].*fetch"):
        check_directory(*taken(other))


def test_zeros_without_a_pattern_need_no_option_by_the_name_that_recipes_have(tmp_path):
    folder = unstructured(written("int8", tmp_path / "written"), "0:0")
    directory, config = taken(folder)
    assert config.format == "tiled_bitmap"
    check_directory(directory, config)


def test_nm_vector_needs_no_pattern_beside_codes(tmp_path):
    """It is config.json's, else 2:4; what is named beside it counts."""
    folder = written("fp8-tensor", tmp_path / "written")
    directory, found = taken(folder, method="nm_vector", options={"activations": "native"})
    assert (found.format, found.options["n"], found.options["m"]) == ("nm_vector", 2, 4)
    check_directory(directory, found)
    edit_groups(folder, sparsity_config={"sparsity_structure": "3:4"})
    assert taken(folder, method="nm_vector")[1].options["n"] == 3


def test_nm_vector_needs_a_pattern_for_what_is_dense():
    with pytest.raises(SettingsError, match="nm_vector needs the option 'n'"):
        merge(None, {"method": "nm_vector"})


GROUPS = {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int"}}}
MENTIONED = {"quant_method": "compressed-tensors", "config_groups": GROUPS}
MENTIONED |= {"format": "pack-quantized", "sparsity_config": IDLE_SPARSITY}


@pytest.mark.parametrize(
    ("stored", "asked", "method", "stays"),
    [
        (MENTIONED, None, None, False),
        (MENTIONED, "compressed-tensors", None, False),
        (MENTIONED, "flashsparse", "flashsparse", True),
        (MENTIONED | sparsity_config("sparse-bitmask"), None, None, True),
        (MENTIONED | {"quant_method": "fp8"}, None, None, True),
        (sparsity_config("dense"), None, "flashsparse", True),
        (sparsity_config("sparse-24-bitmask"), "compressed-tensors", None, True),
    ],
)
@pytest.mark.parametrize("place", ["quantization_config", "compression_config", "text_config"])
def test_a_mention_of_zeros_is_dropped_where_vllm_reads_the_weights(
    stored, asked, method, stays, place
):
    """And only where it has no purpose: all else is as vLLM would have it without us."""
    read, kept = dict(stored), dict(stored)  # vLLM may ask by a copy
    held = {place: SimpleNamespace(quantization_config=kept) if place == "text_config" else kept}
    found = FlashSparseQuantization.override_quantization_method(
        read, asked, hf_config=SimpleNamespace(**held)
    )
    assert found == method
    for each in (read, kept):
        assert each == {k: v for k, v in stored.items() if stays or k != "sparsity_config"}
