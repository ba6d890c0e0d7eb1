# SPDX-License-Identifier: Apache-2.0
"""The programs of examples/ run, on a tiny model. That of the client is in tests/vllm."""

import json
import runpy
from pathlib import Path

import pytest
import torch
from tiny_causal_lms import VOCAB, character_tokenizer
from transformers import AutoModelForCausalLM, LlamaConfig

from flashsparse_plugin.pruning import prune

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("examples") / "model"
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    config = LlamaConfig(**sizes, **heads, vocab_size=VOCAB, pad_token_id=0)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(path)
    character_tokenizer().save_pretrained(path)
    return path


def run(name, *arguments):
    runpy.run_path(str(EXAMPLES / name))["main"](*arguments)


def linear_of(path):
    model = AutoModelForCausalLM.from_pretrained(path)
    return model.model.layers[0].mlp.up_proj


def test_generate(model, tmp_path, capsys):
    run("generate.py", [str(model), str(tmp_path), "--prompt", "sea", "--new-tokens", "4"])
    assert capsys.readouterr().out.startswith("s e a")  # its tokenizer puts spaces
    assert linear_of(tmp_path).packed.density == 0.5


def test_prune_your_own(model, tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("the sea and the shore " * 40)
    settings = ["--text", str(text), "--samples", "2", "--length", "32"]
    run("prune_your_own.py", [str(model), str(tmp_path / "out"), *settings])
    assert "pruned" in capsys.readouterr().out
    assert linear_of(tmp_path / "out" / "packed").scheme.format.name == "nm_vector"


def test_recover(model, tmp_path, capsys):
    pruned = AutoModelForCausalLM.from_pretrained(model)
    prune(pruned, "magnitude", 0.6, progress=False)
    pruned.save_pretrained(tmp_path / "pruned")
    text = tmp_path / "text.txt"
    text.write_text("the sea and the shore " * 40)
    settings = ["--text", str(text), "--samples", "4", "--length", "32"]
    run("recover.py", [str(tmp_path / "pruned"), str(model), str(tmp_path / "out"), *settings])
    assert "7 layers fitted" in capsys.readouterr().out
    before, after = (linear_of(path).weight for path in (tmp_path / "pruned", tmp_path / "out"))
    assert torch.equal(before == 0, after == 0) and not torch.equal(before, after)


def test_notebook(model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "path/to").mkdir(parents=True)
    (tmp_path / "path/to/dense").symlink_to(model)
    cells = json.loads((EXAMPLES / "quickstart.ipynb").read_text())["cells"]
    names: dict = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []  # figures of one machine are no documentation
            exec("".join(cell["source"]), names)
    assert names["packed_bytes"] < names["dense_bytes"]
    assert capsys.readouterr().out.count("tokens/s") == 2
    assert linear_of("packed").packed.density == 0.5


def test_layer(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run("layer.py", 128, 256)
    shown = capsys.readouterr().out
    assert "20% of the weights, 40% of the bytes" in shown and "refused: tiled_csl" in shown
    assert (tmp_path / "layer.safetensors").exists()


def test_each_is_listed():
    listed = (EXAMPLES / "README.md").read_text() + "(README.md)(__pycache__)"
    assert [path.name for path in EXAMPLES.iterdir() if f"({path.name})" not in listed] == []
