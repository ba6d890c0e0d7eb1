# SPDX-License-Identifier: Apache-2.0
"""`vllm serve` with packed experts in two processes: each with a part of every expert, or of them.

The experts of Mixtral are streams here, whose lengths differ; those of Qwen3-MoE are 2:4 in int8.
"""

import pytest
import vllm_checkpoints as checkpoints
from vllm_server import Server

from flashsparse_plugin.checkpoint import convert_checkpoint, unpack_checkpoint


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Per architecture the dense directory and the packed one."""
    folder = tmp_path_factory.mktemp("mixtures")
    made = {"mixtral": checkpoints.make("mixtral", folder)}
    pruned, _ = checkpoints.make("qwen3_moe", folder, sparsity=None, pattern=(2, 4))
    convert_checkpoint(pruned, folder / "int8", format="2:4-int8")
    unpack_checkpoint(folder / "int8", folder / "rounded")
    made["qwen3_moe"] = folder / "rounded", folder / "int8"
    return made


@pytest.mark.parametrize("by", ["tensors", "experts"])
@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
def test_experts_in_two_processes(models, name, by, tmp_path, processes):
    dense, packed = models[name]
    arguments = ["--tensor-parallel-size", "2", "--enforce-eager", "--max-model-len", "64"]
    if by == "experts":
        arguments.append("--enable-expert-parallel")
    with Server(packed, tmp_path / "log", processes, *arguments) as server:
        tokens = server.complete_all([(p, checkpoints.MAX_TOKENS) for p in checkpoints.PROMPTS])
        log = server.log.read_text()
    # Of a decoder layer qkv_proj, o_proj and the experts.
    assert log.count("9 layers packed") == 2
    assert tokens == checkpoints.greedy(dense)
