# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that another tool quantized, as vLLM's front end takes and checks them."""

import json
from types import SimpleNamespace

import pytest
import torch
from checkpoints import edit_weights
from foreign_checkpoints import edit_groups, unstructured, written

from flashsparse_plugin.checkpoint.foreign.packing import QuantizedConfig
from flashsparse_plugin.integrations.vllm.codes import take
from flashsparse_plugin.integrations.vllm.preflight import DamagedCheckpointError, check_checkpoint
from flashsparse_plugin.integrations.vllm.settings import SettingsError, merge

DOWN = "model.layers.0.mlp.down_proj"


def taken(folder, **settings):
    """The configuration by which vLLM serves a checkpoint, with settings of a user."""
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    asked = QuantizedConfig.of(config, QuantizedConfig(foreign=config) if settings else None)
    model = SimpleNamespace(model=str(folder), dtype=torch.bfloat16)
    return take(asked, settings, model, SimpleNamespace(download_dir=None))


def test_the_files_shape_is_held_against_the_models(tmp_path):
    folder = written("int4-packed", tmp_path / "written")
    check_checkpoint(folder, taken(folder))
    other = written("int4-packed", tmp_path / "other")
    shape = torch.tensor([32, 63])
    edit_weights(other, lambda tensors: tensors.update({f"{DOWN}.weight_shape": shape}))
    with pytest.raises(DamagedCheckpointError, match=rf"{DOWN}'.*\[32, 63\].*\[32, 64\].*fetch"):
        check_checkpoint(other, taken(other))


def test_zeros_without_a_pattern_need_no_option_by_the_name_that_recipes_have(tmp_path):
    folder = unstructured(written("int8", tmp_path / "written"), "0:0")
    assert taken(folder).format == "tiled_bitmap"
    check_checkpoint(folder, taken(folder))


def test_nm_vector_needs_no_pattern_beside_codes(tmp_path):
    """It is config.json's, else 2:4; what is named beside it counts."""
    folder = written("fp8-tensor", tmp_path / "written")
    found = taken(folder, method="nm_vector", options={"activations": "native"})
    assert (found.format, found.options["n"], found.options["m"]) == ("nm_vector", 2, 4)
    check_checkpoint(folder, found)
    edit_groups(folder, sparsity_config={"sparsity_structure": "3:4"})
    assert taken(folder, method="nm_vector").options["n"] == 3


def test_nm_vector_needs_a_pattern_for_what_is_dense():
    with pytest.raises(SettingsError, match="nm_vector needs the option 'n'"):
        merge(None, {"method": "nm_vector"})
