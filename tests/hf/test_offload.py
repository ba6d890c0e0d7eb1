# SPDX-License-Identifier: Apache-2.0
"""accelerate moves a loaded model away and back as it does with a dense one."""

import pytest
import tiny
import torch
from accelerate import cpu_offload, disk_offload, dispatch_model
from accelerate.hooks import remove_hook_from_submodules

pytestmark = pytest.mark.oldest_transformers


def packed_names(model) -> set[str]:
    return {name for name, _ in model.named_parameters() if "mlp.up_proj" in name}


@pytest.mark.parametrize("how", ["cpu", "disk", "dispatch"])
def test_offloaded_it_generates_the_same(how, llama, wanted, tmp_path):
    model = tiny.load(llama.packed)
    prepared = packed_names(model)
    if how == "cpu":
        model = cpu_offload(model, execution_device="cpu")
    elif how == "disk":
        disk_offload(model, tmp_path, execution_device="cpu")
    else:
        dispatch_model(model, tiny.HERE_AND_ON_DISK, main_device="cpu", offload_dir=tmp_path)
    away = model.model.layers[1].mlp.up_proj
    assert away.packed.device.type == "meta" and away.held == away.scheme
    here = model.model.layers[0].mlp.up_proj
    assert (here.held != here.scheme) == (how == "dispatch")
    assert torch.equal(tiny.generate(model), wanted)
    assert packed_names(model) != prepared


def test_brought_back_it_is_whole(llama, wanted):
    model = cpu_offload(tiny.load(llama.packed), execution_device="cpu")
    remove_hook_from_submodules(model)
    assert torch.equal(tiny.generate(model), wanted)
    for tensor in model.state_dict().values():
        assert tensor.device == torch.device("cpu")
