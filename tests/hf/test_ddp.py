# SPDX-License-Identifier: Apache-2.0
"""LoRA on packed layers in two processes, by DistributedDataParallel with gloo."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from flashsparse_plugin.experts import ExpertStack, PackedStack
from flashsparse_plugin.formats import get_format
from flashsparse_plugin.linear import SparseLinear

PROGRAM = Path(__file__).with_name("ddp_ranks.py")
CASES = {
    "tiled_bitmap": ("tiled_bitmap", {}),
    "tiled_bitmap-int8": ("tiled_bitmap", {"values": "int8"}),
    "tiled_csl": ("tiled_csl", {}),
    "2:4": ("nm_vector", {"n": 2, "m": 4}),
    "2:4-int8": ("nm_vector", {"n": 2, "m": 4, "values": "int8"}),
}


@pytest.fixture(scope="module")
def trained(llama, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    given = [text for name, options in CASES.values() for text in (name, json.dumps(options))]
    run = subprocess.run(
        [sys.executable, PROGRAM, llama.dense, folder, *given],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    return run, folder


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_ranks_get_the_gradients_of_one_process(case, trained):
    run, folder = trained
    files = [folder / f"{list(CASES).index(case)}-{rank}.pt" for rank in range(2)]
    assert all(file.exists() for file in files), run.stderr[-3000:]
    first, second = (torch.load(file) for file in files)
    assert len(first["ranks"]) == 2 * 14
    assert first["ranks"].keys() == second["ranks"].keys() == first["joined"].keys()
    for name, joined in first["joined"].items():
        assert joined.abs().max() > 0
        assert torch.equal(first["ranks"][name], second["ranks"][name])
        assert (first["ranks"][name] - joined).norm() <= 1e-5 * joined.norm()


def test_what_a_model_ignores_itself_stays_ignored():
    linear = nn.Linear(64, 32).to(torch.bfloat16)
    layer = SparseLinear.from_linear(linear)
    layer.bias.requires_grad_()
    layer._ddp_params_and_buffers_to_ignore = ["own"]
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        ignored = DistributedDataParallel(layer).parameters_to_ignore
    finally:
        dist.destroy_process_group()
    assert ignored == {"own", *layer.packed.tensors}


def test_packed_experts_beside_packed_layers_are_not_broadcast():
    scheme = get_format("nm_vector").scheme(torch.bfloat16, {"n": 2, "m": 4})
    packed = scheme.format.pack(torch.zeros(32, 64, dtype=torch.bfloat16), scheme)
    model = nn.ModuleDict(
        {
            "layer": SparseLinear.from_packed(packed),
            "experts": PackedStack(ExpertStack.of([packed, packed]), ["up_proj"]),
            "dense": nn.Linear(4, 4),
        }
    )
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        ignored = DistributedDataParallel(model).parameters_to_ignore
    finally:
        dist.destroy_process_group()
    names = [name for name, _ in model.named_parameters() if not name.startswith("dense")]
    assert {name.partition(".")[0] for name in names} == {"layer", "experts"}
    assert ignored == {*names}
