# SPDX-License-Identifier: Apache-2.0
"""`vllm serve` with a model in several processes: by heads and rows, and by layers."""

import pytest
import vllm_checkpoints as checkpoints
from vllm_server import Server


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """One key-value head, which tensor parallelism has to replicate; each query head has a phi."""
    sizes = {"num_key_value_heads": 1, "head_dim": 64}
    dense, packed = checkpoints.make("llama", tmp_path_factory.mktemp("tiny"), **sizes)
    return dense, checkpoints.calibrate(packed, [0.0, 1.0, 2.0, 3.0])


@pytest.mark.parametrize("kind", ["packed", "dense"])
def test_tensor_parallel(tiny, kind, tmp_path, processes):
    dense, packed = tiny
    arguments = ["--tensor-parallel-size", "2", "--enforce-eager", "--max-model-len", "64"]
    if kind == "dense":
        arguments += ["--sparse-method", "tiled_csl"]
    else:
        arguments += ["--attention-backend", "CUSTOM"]
    model = packed if kind == "packed" else dense
    with Server(model, tmp_path / "log", processes, *arguments) as server:
        tokens = server.complete_all([(p, checkpoints.MAX_TOKENS) for p in checkpoints.PROMPTS])
        log = server.log.read_text()
    assert log.count("12 layers packed") == 2
    assert log.count("with phi in 3") == (2 if kind == "packed" else 0)
    assert tokens == checkpoints.greedy(dense)


def test_pipeline_parallel_loads(tiny, tmp_path, processes):
    """Each stage packs the layers that it has. vLLM's CPU backend goes no further: with two stages
    it cannot generate, from dense weights either."""
    arguments = ("--pipeline-parallel-size", "2", "--enforce-eager", "--max-model-len", "64")
    with Server(tiny[1], tmp_path / "log", processes, *arguments) as server:
        packed = [line for line in server.log.read_text().splitlines() if "layers packed" in line]
    assert sorted(line.split("] ")[-1].split()[0] for line in packed) == ["4", "8"]
