# SPDX-License-Identifier: Apache-2.0
"""`vllm serve` on real weights: the tokens are those of transformers in float32, whatever way
they are asked for."""

import pytest
import torch
import vllm_checkpoints as checkpoints
from vllm_server import Server

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


@pytest.fixture(scope="module")
def smollm2(smollm2_dir, tmp_path_factory):
    """SmolLM2, half of it pruned: dense directory, packed directory, tokenizer, expected tokens."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from flashsparse_plugin.checkpoint import convert_checkpoint
    from flashsparse_plugin.pruning import prune

    folder = tmp_path_factory.mktemp("smollm2")
    tokenizer = AutoTokenizer.from_pretrained(smollm2_dir)
    model = AutoModelForCausalLM.from_pretrained(smollm2_dir, dtype=torch.bfloat16)
    prune(model, method="magnitude", sparsity=0.5, progress=False)
    dense, packed = folder / "dense", folder / "packed"
    model.save_pretrained(dense)
    tokenizer.save_pretrained(dense)
    convert_checkpoint(dense, packed, pack_all=True)
    prompts = [tokenizer(text)["input_ids"] for text in TEXTS]
    return dense, packed, tokenizer, prompts, checkpoints.greedy(dense, prompts, TOKENS)


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="module")
def packed_server(smollm2, logs, environment):
    """A packed checkpoint needs no option. Compiled, as is the default; two API servers; our decode
    attention, from a cache of many blocks."""
    arguments = ("--max-model-len", "512", "--max-num-seqs", "32", "--api-server-count", "2")
    arguments += ("--decode-attention", "unified_max", "--block-size", "32")
    with Server(smollm2[1], logs / "packed.log", environment, *arguments) as server:
        yield server


@pytest.fixture(scope="module")
def dense_server(smollm2, logs, environment):
    """A dense checkpoint, packed while it loads; asked for in a YAML file."""
    config = logs / "config.yaml"
    config.write_text("sparse-method: tiled_csl\nmax-model-len: 512\nenforce-eager: true\n")
    with Server(smollm2[0], logs / "dense.log", environment, "--config", str(config)) as server:
        yield server


@pytest.fixture(params=["packed_server", "dense_server"], scope="module")
def server(request):
    return request.getfixturevalue(request.param)


def test_completions_equal_transformers(smollm2, server):
    *_, prompts, expected = smollm2
    assert [server.complete(prompt, TOKENS) for prompt in prompts] == expected
    log = server.log.read_text()
    assert "120 layers packed" in log
    ours = "decode attention of 30 layers: flashsparse::unified_max_paged_decode on CPU" in log
    assert ours == ("--decode-attention" in server.command)


def test_streaming_gives_the_same(server, smollm2):
    *_, prompts, expected = smollm2
    assert server.complete(prompts[1], TOKENS, stream=True) == expected[1]


def test_chat_equals_transformers(server, smollm2):
    dense, _, tokenizer, _, _ = smollm2
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
    (expected,) = checkpoints.greedy(dense, [ids["input_ids"]], TOKENS)
    body = {"messages": messages, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    answer = server.post("/v1/chat/completions", **body, return_token_ids=True)
    assert answer["choices"][0]["token_ids"] == expected
    parts = server.post("/v1/chat/completions", **body, stream=True)
    text = "".join(part["choices"][0]["delta"].get("content") or "" for part in parts)
    assert text == answer["choices"][0]["message"]["content"]


def test_many_at_once_give_what_one_by_one_gives(server, smollm2):
    *_, prompts, _ = smollm2
    requests = [(prompts[i % 8][: 1 + i % 5], 4 + i % 17) for i in range(32)]
    together = server.complete_all(requests)
    assert together == [server.complete(*request) for request in requests]


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
