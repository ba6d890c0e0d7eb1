# SPDX-License-Identifier: Apache-2.0
"""`flashsparse eval` on tiny random models."""

import csv
import json
import shutil
import sys

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from typer.testing import CliRunner

from flashsparse_plugin.checkpoint import convert_checkpoint
from flashsparse_plugin.cli import app
from flashsparse_plugin.pruning import prune

DENSE = 2 * 3 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 48 * 32)  # bytes of the linear layers


def evaluate(*arguments):
    return CliRunner().invoke(app, ["eval", *map(str, arguments)])


@pytest.fixture(scope="module")
def pruned(model_dir, tmp_path_factory):
    """The tiny model with a pattern of 2:4."""
    path = tmp_path_factory.mktemp("pruned") / "tiny-2of4"
    shutil.copytree(model_dir, path)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.bfloat16)
    prune(model, "magnitude", pattern=(2, 4), progress=False)
    model.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def packed(pruned, tmp_path_factory):
    path = tmp_path_factory.mktemp("packed") / "tiny-packed"
    convert_checkpoint(pruned, path, format="nm_vector", options={"n": 2, "m": 4})
    return path


def test_models_and_methods_side_by_side(model_dir, pruned, packed, text_file, tmp_path):
    result = evaluate(
        *(model_dir, pruned, packed, "--text", text_file, "--context", 32, "--max-tokens", 64),
        *("--with", "nm_vector:n=2:m=4", "--no-speed", "--csv", tmp_path / "lines.csv", "--json"),
    )
    assert result.exit_code == 0, result.stderr
    lines = json.loads(result.stdout)["lines"]
    found = {(line["model"], line["method"]): line for line in lines}
    dense, zeros, made, stored = (
        found[key]
        for key in (
            ("tiny", "bfloat16"),
            ("tiny-2of4", "bfloat16"),
            ("tiny-2of4", "nm_vector(2:4)"),
            ("tiny-packed", "nm_vector(2:4)"),
        )
    )
    assert len(found) == 4
    assert dense["disk_bytes"] == dense["memory_bytes"] == zeros["disk_bytes"] == DENSE
    assert made["disk_bytes"] == stored["disk_bytes"] < 0.6 * DENSE
    assert made["zeros"] == stored["zeros"] == 0.5
    assert made["perplexity"] == pytest.approx(zeros["perplexity"], rel=2e-2)
    assert made["perplexity"] == stored["perplexity"]
    assert "linear" in made["ran"] and "cpu" in made["ran"] and made["kind"] == "ours"
    with (tmp_path / "lines.csv").open() as file:
        assert [row["method"] for row in csv.DictReader(file)] == [x["method"] for x in lines]
    # What was not made is told of.
    assert "tiny cannot be nm_vector(2:4): layer 'model.layers.0." in result.stderr
    assert "tiny-packed is packed already" in result.stderr


def test_the_table_the_speed_and_the_card(packed, text_file, tmp_path):
    path = tmp_path / "a|b"
    shutil.copytree(packed, path)
    more = (["--plot", tmp_path / "bytes.png"], ["--no-speed"])
    for options in reversed(more):  # the second table takes the place of the first
        result = evaluate(
            *(path, "--text", text_file, "--context", 16, "--max-tokens", 32, "--card"), *options
        )
        assert result.exit_code == 0, result.stderr
    assert "decode" in result.stdout and "perplexity" in result.stdout
    assert (tmp_path / "bytes.png").stat().st_size > 1000
    card = (path / "README.md").read_text()
    assert card.count("## Evaluation") == card.count("<!-- flashsparse eval -->") == 1
    assert "| a\\|b | nm_vector(2:4) |" in card
    assert card.startswith("---\n") and "## How to load it" in card


def test_a_method_whose_speed_here_is_not_its_own_has_none(
    model_dir, text_file, tmp_path, monkeypatch
):
    monkeypatch.setattr("os.getloadavg", lambda: (4096.0, 0.0, 0.0))
    path = tmp_path / "blocks-of-32"
    shutil.copytree(model_dir, path)
    config = AutoConfig.from_pretrained(model_dir)
    config.intermediate_size = 64
    AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(path)
    few = ["--context", 16, "--max-tokens", 32]
    result = evaluate(path, "--text", text_file, *few, "--with", "gguf", "--json")
    assert result.exit_code == 0, result.stderr
    dense, codes = json.loads(result.stdout)["lines"]
    assert codes["method"] == "GGUF Q4_0" and codes["bits"] == 4.5 and codes["perplexity"] > 1
    assert "not timed" in codes["ran"]
    assert "busy (load 4096.0 on" in result.stderr
    assert "decode_tokens_s" in dense and "decode_tokens_s" not in codes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "there is nothing to predict"),
        (["--tasks", "a", "--plot", "x.png"], "needs --text"),
        (["--text", "TEXT", "--with", "awq"], "no method 'awq'"),
        (["--text", "TEXT", "--with", "torchao_fp8"], "fp8 needs"),
        (["--text", "TEXT", "--card"], "has no README.md"),
        (["--text", "TEXT", "--context", "65"], "context of 64"),
    ],
)
def test_what_is_refused(model_dir, text_file, arguments, message):
    given = [str(text_file) if each == "TEXT" else each for each in arguments]
    result = evaluate(model_dir, *given)
    assert result.exit_code in (1, 2)
    assert message in " ".join(result.stderr.replace("│", " ").split())


def test_scores_of_tasks_leave_room_for_the_bytes(model_dir, monkeypatch):
    names = [
        "a_task_with_a_long_name acc",
        "a_task_with_a_long_name acc_norm",
        "another f1 (strict)",
    ]
    scores = dict(zip(names, (0.25, 0.5, 0.75), strict=True))
    monkeypatch.setattr("flashsparse_plugin.evaluation.tasks.require_tasks", lambda tasks: None)
    module = sys.modules["flashsparse_plugin.evaluation.measure"]  # a function has its name
    monkeypatch.setattr(module, "task_scores", lambda *_: scores)
    result = evaluate(model_dir, "--tasks", "any", "--with", "torch_int8", "--no-speed")
    assert result.exit_code == 0, result.stderr
    assert "on disk" in result.stdout and "16.00" in result.stdout
    lines = [line.split() for line in result.stdout.splitlines()]
    for name, score in scores.items():
        assert [*name.split(), f"{score:.3f}", f"{score:.3f}"] in lines
