# SPDX-License-Identifier: Apache-2.0
"""The commands and the code of the documents do what they say."""

import re
import shlex
from pathlib import Path

import pytest
import torch
from tiny_causal_lms import VOCAB, character_tokenizer
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig
from typer.main import get_command
from typer.testing import CliRunner
from weights import sparse_weight

from flashsparse_plugin.cli import app

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
README = (ROOT / "README.md").read_text()


def blocks(text: str, *languages: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```", text, re.S | re.M)
    return [block for language, block in found if language in languages]


def commands(text: str, program: str) -> list[list[str]]:
    """The lines of shell blocks that call a program, continued lines joined, comments left out."""
    lines = "\n".join(blocks(text, "bash", "sh", "")).replace("\\\n", " ").splitlines()
    asked = [shlex.split(line, comments=True) for line in lines if line.startswith(f"{program} ")]
    return [words for _, *words in asked]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the model and the text that the README speaks of, named as there."""
    place = tmp_path_factory.mktemp("readme")
    sizes = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    ends = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = LlamaConfig(**sizes, **heads, **ends, vocab_size=VOCAB, max_position_embeddings=1024)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    model.save_pretrained(place / "path/to/dense")
    character_tokenizer().save_pretrained(place / "path/to/dense")
    letters = torch.randint(97, 123, (80_000,)).tolist()
    (place / "text.txt").write_text("".join(map(chr, letters)))
    return place


@pytest.mark.slow
def test_the_readmes_commands_run_as_written(place, monkeypatch):
    monkeypatch.chdir(place)
    asked = commands(README, "flashsparse")
    assert {each[0] for each in asked} == {"prune", "convert", "inspect", "generate", "doctor"}
    for arguments in asked:
        if arguments[0] != "doctor":  # which has tests of its own
            result = CliRunner().invoke(app, arguments)
            assert result.exit_code == 0, result.stderr
    assert (place / "path/to/packed/config.json").exists()


def test_the_readmes_code_runs_as_written(place, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "path/to").mkdir(parents=True)
    (tmp_path / "path/to/dense").symlink_to(place / "path/to/dense")
    linear = nn.Linear(70, 150, dtype=torch.bfloat16)
    names = {"weight": sparse_weight(150, 70), "bias": torch.zeros(150, dtype=torch.bfloat16)}
    names |= {"x": torch.randn(3, 70, dtype=torch.bfloat16), "linear": linear}
    code = blocks(README, "python")
    assert len(code) == 2
    for block in code:
        exec(block, names)
    assert type(names["model"].model.layers[0].mlp.up_proj).__name__ == "SparseLinear"
    assert torch.equal(names["packed"].unpack(), names["weight"])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_options_and_targets_that_a_document_names_exist(document):
    text = document.read_text()
    known = get_command(app).commands
    for name, *arguments in commands(text, "flashsparse"):
        options = {option for param in known[name].params for option in param.opts}
        named = {word.partition("=")[0] for word in arguments if word.startswith("--")}
        assert named <= options, f"flashsparse {name}"
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    for target, *_ in commands(text, "make"):
        assert target in targets, f"make {target}"
