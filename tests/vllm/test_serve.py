# SPDX-License-Identifier: Apache-2.0
"""`vllm serve` on real weights: the tokens are those of transformers in float32, whatever way
they are asked for."""

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import vllm_checkpoints as checkpoints
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase
from vllm_server import Server

from flashsparse_plugin.checkpoint import convert_checkpoint
from flashsparse_plugin.pruning import prune

TEXTS = [
    "The capital of France is",
    "Once upon a time there was a little",
    "Water boils at",
    "My favourite animal is the",
    "To make bread you need",
    "The sun rises in the",
    "def add(a, b):",
    "She opened the door and",
]
TOKENS = 32


@dataclass
class Served:
    """A real model, half of it pruned; what transformers makes of it; and vLLM serving it."""

    layers: int
    dense: Path
    packed: Path
    tokenizer: PreTrainedTokenizerBase
    prompts: list[list[int]]
    expected: list[list[int]]
    server: Server | None = None


def pruned_smollm2(source: Path, folder: Path, layers: int) -> Served:
    """SmolLM2 up to a layer."""
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
    model.model.layers = model.model.layers[:layers]
    model.config.num_hidden_layers = layers
    model.config.layer_types = None
    prune(model, method="magnitude", sparsity=0.5, progress=False)
    dense, packed = folder / "dense", folder / "packed"
    model.save_pretrained(dense)
    tokenizer.save_pretrained(dense)
    convert_checkpoint(dense, packed, pack_all=True)
    prompts = [tokenizer(text)["input_ids"] for text in TEXTS]
    expected = checkpoints.greedy(dense, prompts, TOKENS)
    return Served(layers, dense, packed, tokenizer, prompts, expected)


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    return tmp_path_factory.mktemp("logs")


@contextmanager
def packed_server(source, folder, environment):
    """A packed checkpoint needs no option. Compiled, as is the default; two API servers; our decode
    attention, from a cache of many blocks. The compiler's time goes with the number of layers: of
    the model's there are a few."""
    served = pruned_smollm2(source, folder, layers=6)
    arguments = ("--max-model-len", "512", "--max-num-seqs", "32", "--api-server-count", "2")
    arguments += ("--decode-attention", "unified_max", "--block-size", "32")
    with Server(served.packed, folder / "log", environment, *arguments) as served.server:
        yield served


@contextmanager
def dense_server(source, folder, environment):
    """The whole model from a dense checkpoint, packed while it loads; asked for in a YAML file."""
    served = pruned_smollm2(source, folder, layers=30)
    config = folder / "config.yaml"
    config.write_text("sparse-method: tiled_csl\nmax-model-len: 512\nenforce-eager: true\n")
    arguments = ("--config", str(config))
    with Server(served.dense, folder / "log", environment, *arguments) as served.server:
        yield served


@pytest.fixture(params=[packed_server, dense_server], ids=lambda f: f.__name__, scope="module")
def served(request, smollm2_dir, tmp_path_factory, environment):
    with request.param(smollm2_dir, tmp_path_factory.mktemp("smollm2"), environment) as served:
        yield served


def test_completions_equal_transformers(served):
    server = served.server
    assert [server.complete(prompt, TOKENS) for prompt in served.prompts] == served.expected
    log = server.log.read_text()
    assert f"{4 * served.layers} layers packed" in log
    decode = f"decode attention of {served.layers} layers"
    ours = f"{decode}: flashsparse::unified_max_paged_decode on CPU" in log
    assert ours == ("--decode-attention" in server.command)


def test_streaming_gives_the_same(served):
    streamed = served.server.complete(served.prompts[1], TOKENS, stream=True)
    assert streamed == served.expected[1]


def test_chat_equals_transformers(served):
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    ids = served.tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=True
    )
    (expected,) = checkpoints.greedy(served.dense, [ids["input_ids"]], TOKENS)
    body = {"messages": messages, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    answer = served.server.post("/v1/chat/completions", **body, return_token_ids=True)
    assert answer["choices"][0]["token_ids"] == expected
    parts = served.server.post("/v1/chat/completions", **body, stream=True)
    text = "".join(part["choices"][0]["delta"].get("content") or "" for part in parts)
    assert text == answer["choices"][0]["message"]["content"]


def test_many_at_once_give_what_one_by_one_gives(served):
    requests = [(served.prompts[i % 8][: 1 + i % 5], 4 + i % 17) for i in range(32)]
    together = served.server.complete_all(requests)
    assert together == [served.server.complete(*request) for request in requests]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """One key-value head, which tensor parallelism has to replicate; each query head has a phi."""
    sizes = {"num_key_value_heads": 1, "head_dim": 64}
    dense, packed = checkpoints.make("llama", tmp_path_factory.mktemp("tiny"), **sizes)
    return dense, checkpoints.calibrate(packed, [0.0, 1.0, 2.0, 3.0])


@pytest.mark.parametrize("kind", ["packed", "dense"])
def test_tensor_parallel(tiny, kind, logs, environment):
    dense, packed = tiny
    arguments = ["--tensor-parallel-size", "2", "--enforce-eager", "--max-model-len", "64"]
    if kind == "dense":
        arguments += ["--sparse-method", "tiled_csl"]
    else:
        arguments += ["--attention-backend", "CUSTOM"]
    model = packed if kind == "packed" else dense
    with Server(model, logs / f"tp-{kind}.log", environment, *arguments) as server:
        tokens = [server.complete(p, checkpoints.MAX_TOKENS) for p in checkpoints.PROMPTS]
        log = server.log.read_text()
    assert log.count("12 layers packed") == 2
    assert log.count("with phi in 3") == (2 if kind == "packed" else 0)
    assert tokens == checkpoints.greedy(dense)


def test_pipeline_parallel_loads(tiny, logs, environment):
    """Each stage packs the layers that it has. vLLM's CPU backend goes no further: with two stages
    it cannot generate, from dense weights either."""
    arguments = ("--pipeline-parallel-size", "2", "--enforce-eager", "--max-model-len", "64")
    with Server(tiny[1], logs / "pp.log", environment, *arguments) as server:
        packed = [line for line in server.log.read_text().splitlines() if "layers packed" in line]
    assert sorted(line.split("] ")[-1].split()[0] for line in packed) == ["4", "8"]
