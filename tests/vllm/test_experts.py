# SPDX-License-Identifier: Apache-2.0
"""`vllm serve` with packed experts in two processes: each with a part of every expert, or of them.

The experts of Mixtral are streams here, whose lengths differ; those of the others are 2:4 in int8.
"""

import functools

import pytest
import vllm_checkpoints as checkpoints
from vllm_server import Server

from flashsparse_plugin.checkpoint import convert_checkpoint, unpack_checkpoint

# Layers of vLLM that are packed: of each decoder layer qkv_proj, o_proj and the experts, or the two
# of an MLP; and the two of an expert that all tokens have.
PACKED = {"mixtral": 9, "qwen3_moe": 9, "granitemoe": 9, "olmoe": 9, "qwen2_moe": 15}
PACKED |= {"glm4_moe": 14}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("mixtures")


@functools.cache
def models(name, folder):
    """The dense directory of an architecture, and the packed one."""
    if name not in ("qwen3_moe", "olmoe"):
        return checkpoints.make(name, folder)
    pruned, _ = checkpoints.make(name, folder, sparsity=None, pattern=(2, 4))
    convert_checkpoint(pruned, folder / f"{name}-int8", format="2:4-int8")
    unpack_checkpoint(folder / f"{name}-int8", folder / f"{name}-rounded")
    return folder / f"{name}-rounded", folder / f"{name}-int8"


@pytest.mark.parametrize("by", ["tensors", "experts"])
@pytest.mark.parametrize("name", PACKED)
def test_experts_in_two_processes(folder, name, by, tmp_path, processes):
    dense, packed = models(name, folder)
    arguments = ["--tensor-parallel-size", "2", "--enforce-eager", "--max-model-len", "64"]
    if by == "experts":
        arguments.append("--enable-expert-parallel")
    with Server(packed, tmp_path / "log", processes, *arguments) as server:
        tokens = server.complete_all([(p, checkpoints.MAX_TOKENS) for p in checkpoints.PROMPTS])
        log = server.log.read_text()
    assert log.count(f"{PACKED[name]} layers packed") == 2
    assert tokens == checkpoints.greedy(dense)
