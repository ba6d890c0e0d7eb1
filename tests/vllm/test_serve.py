# SPDX-License-Identifier: Apache-2.0
"""`vllm serve` on real weights: the tokens are those of transformers in float32, whatever way
they are asked for."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import vllm_checkpoints as checkpoints
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase
from vllm_processes import executed
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
LAYERS = 3


@dataclass
class Model:
    """A few layers of a real model, half of it pruned; and what transformers makes of it."""

    folder: Path
    dense: Path
    tokenizer: PreTrainedTokenizerBase
    prompts: list[list[int]]
    expected: list[list[int]]


@pytest.fixture(scope="module")
def model(smollm2_dir, tmp_path_factory) -> Model:
    """The compiler's time and a token's go with the number of layers."""
    folder = tmp_path_factory.mktemp("smollm2")
    tokenizer = AutoTokenizer.from_pretrained(smollm2_dir)
    pruned = AutoModelForCausalLM.from_pretrained(
        smollm2_dir, dtype=torch.bfloat16, num_hidden_layers=LAYERS
    )
    prune(pruned, method="magnitude", sparsity=0.5, progress=False)
    dense = folder / "dense"
    pruned.save_pretrained(dense)
    tokenizer.save_pretrained(dense)
    prompts = [tokenizer(text)["input_ids"] for text in TEXTS]
    expected = checkpoints.greedy(dense, prompts, TOKENS)
    return Model(folder, dense, tokenizer, prompts, expected)


def packed_server(model, processes) -> Server:
    """A packed checkpoint needs no option. Compiled, as is the default; two API servers; our decode
    attention, from a cache of many blocks."""
    packed = model.folder / "packed"
    convert_checkpoint(model.dense, packed, pack_all=True)
    arguments = ("--max-model-len", "512", "--max-num-seqs", "32", "--api-server-count", "2")
    arguments += ("--decode-attention", "unified_max", "--block-size", "32")
    return Server(packed, model.folder / "packed.log", processes, *arguments)


def dense_server(model, processes) -> Server:
    """A dense checkpoint, packed while it loads; asked for in a YAML file; started as users do."""
    config = model.folder / "config.yaml"
    config.write_text("sparse-method: tiled_csl\nmax-model-len: 512\nenforce-eager: true\n")
    arguments = ("--config", str(config))
    log = model.folder / "dense.log"
    return Server(model.dense, log, processes, *arguments, start=executed)


@pytest.fixture(params=[packed_server, dense_server], ids=lambda f: f.__name__, scope="module")
def server(request, model, processes):
    with request.param(model, processes) as server:
        yield server


def test_completions_equal_transformers(model, server):
    tokens = server.complete_all([(prompt, TOKENS) for prompt in model.prompts])
    assert tokens == model.expected
    log = server.log.read_text()
    assert f"{4 * LAYERS} layers packed" in log
    decode = f"decode attention of {LAYERS} layers"
    ours = f"{decode}: flashsparse::unified_max_paged_decode on CPU" in log
    assert ours == ("--decode-attention" in server.command)


def test_streaming_gives_the_same(model, server):
    streamed = server.complete(model.prompts[1], TOKENS, stream=True)
    assert streamed == model.expected[1]


def test_chat_equals_transformers(model, server):
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    ids = model.tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=True
    )
    (expected,) = checkpoints.greedy(model.dense, [ids["input_ids"]], TOKENS)
    body = {"messages": messages, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    answer = server.post("/v1/chat/completions", **body, return_token_ids=True)
    assert answer["choices"][0]["token_ids"] == expected
    parts = server.post("/v1/chat/completions", **body, stream=True)
    text = "".join(part["choices"][0]["delta"].get("content") or "" for part in parts)
    assert text == answer["choices"][0]["message"]["content"]


def test_many_at_once_give_what_one_by_one_gives(model, server):
    requests = [(model.prompts[i % 8][: 1 + i % 5], 2 + i % 7) for i in range(32)]
    together = server.complete_all(requests)
    assert together == [server.complete(*request) for request in requests]
