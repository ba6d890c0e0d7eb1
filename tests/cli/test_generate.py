# SPDX-License-Identifier: Apache-2.0
"""`flashsparse generate` on a tiny random model."""

import json
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from flashsparse_plugin.cli import app
from flashsparse_plugin.generation import Stream, repeats_itself


def generate(*arguments, stdin=None):
    return CliRunner().invoke(app, ["generate", *map(str, arguments)], input=stdin)


@pytest.fixture(scope="module")
def expected(model_dir):
    """What transformers itself generates, greedily, without a chat."""
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype="auto")
    ids = tokenizer("Hello", return_tensors="pt").input_ids
    mask = torch.ones_like(ids)
    made = model.generate(ids, attention_mask=mask, max_new_tokens=8, do_sample=False)
    return tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True)


def test_greedy_text_goes_to_stdout_and_the_speed_to_stderr(model_dir, expected):
    result = generate(model_dir, "-p", "Hello", "-n", 8, "--no-chat")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == expected + "\n"
    assert "tokens/s" in result.stderr


def test_json(model_dir, expected):
    result = generate(model_dir, "-p", "Hello", "-n", 8, "--no-chat", "--json")
    answer = json.loads(result.stdout)
    assert answer["text"] == expected
    assert answer["prompt"] == "Hello"
    stats = answer["stats"]
    assert stats["prompt_tokens"] == 5
    assert 1 <= stats["new_tokens"] <= 8
    for name in ("prefill_seconds", "prefill_tokens_per_second", "decode_tokens_per_second"):
        assert stats[name] > 0


def test_one_token_has_no_decode_speed(model_dir):
    result = generate(model_dir, "-p", "Hello", "-n", 1, "--no-chat", "--json")
    assert json.loads(result.stdout)["stats"]["decode_tokens_per_second"] is None
    assert generate(model_dir, "-p", "Hello", "-n", 1, "--no-chat").exit_code == 0


def test_stdin_and_quiet(model_dir, expected):
    result = generate(model_dir, "-p", "-", "-n", 8, "--no-chat", "--no-stats", stdin="Hello")
    assert result.stdout == expected + "\n"
    assert "tokens/s" not in result.stderr


def test_a_chat_is_the_default_where_there_is_a_template(model_dir):
    def prompt_tokens(*options):
        result = generate(model_dir, "-p", "Hi", "-n", 1, "--json", *options)
        return json.loads(result.stdout)["stats"]["prompt_tokens"]

    assert prompt_tokens("--no-chat") == 2
    assert prompt_tokens() == prompt_tokens("--chat") == len("user: Hi assistant:")


def test_sampling_depends_on_the_seed_alone(model_dir):
    def text(seed):
        options = ["-n", 12, "--temperature", "1.5", "--seed", seed, "--json"]
        return json.loads(generate(model_dir, "-p", "Hello", *options).stdout)["text"]

    assert text(1) == text(1)
    assert len({text(seed) for seed in range(4)}) > 1


@pytest.mark.parametrize(
    ("text", "does"),
    [
        ("There was a fox. " + "The world is a place where " * 4 + "the w", False),
        ("There was a fox, " + "the world is a place where " * 4 + "the w", True),
        ("the world is a place where " * 3, False),
        ("A fox saw a lantern in the snow, and the snow saw the fox, and slept.", False),
        ("...................................", True),
        ("", False),
    ],
)
def test_a_text_that_repeats_itself_is_known(text, does):
    assert repeats_itself(text) == does


def test_it_says_what_to_do_about_a_text_that_repeats_itself(model_dir, monkeypatch):
    monkeypatch.setattr("flashsparse_plugin.generation.repeats_itself", lambda text: True)
    command = [model_dir, "-p", "Hello", "-n", 2, "--no-chat"]
    assert "--repetition-penalty 1.15" in " ".join(generate(*command).stderr.split())
    assert "Note" not in generate(*command, "--repetition-penalty", "1.15").stderr


def test_a_repetition_penalty_changes_the_text(model_dir):
    def text(*options):
        result = generate(model_dir, "-p", "Hello", "-n", 30, "--no-chat", *options)
        assert result.exit_code == 0, result.stderr
        return result.stdout

    plain = text()
    assert text("--repetition-penalty", "1") == plain
    assert text("--repetition-penalty", "1.5") != plain


def test_words_are_not_broken_on_a_terminal(model_dir, capsys):
    stream = Stream(AutoTokenizer.from_pretrained(model_dir), width=12)
    for word in ["One ", "lantern ", "snow ", "a\n", "twelve ", "cells", " ."]:
        stream._print(word)
    assert capsys.readouterr().out == "One lantern \nsnow a\ntwelve cells\n ."
    assert stream.text == "One lantern snow a\ntwelve cells ."


def test_dtype(model_dir):
    assert generate(model_dir, "-p", "Hi", "-n", 2, "--dtype", "float32").exit_code == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "Missing option"),
        (["-p", " "], "the prompt is empty"),
        (["-p", "Hi", "-n", "0"], "max-new-tokens"),
        (["-p", "Hi", "--dtype", "int3"], "int3"),
    ],
)
def test_wrong_usage(model_dir, options, message):
    result = generate(model_dir, *options)
    assert result.exit_code == 2
    assert message in result.stderr


def test_no_chat_template_and_no_tokenizer(model_dir, tmp_path):
    bare = tmp_path / "bare"
    shutil.copytree(model_dir, bare)
    (bare / "chat_template.jinja").unlink()
    result = generate(bare, "-p", "Hi", "--chat")
    assert result.exit_code == 2 and "--no-chat" in result.stderr
    assert generate(bare, "-p", "Hi", "-n", 1).exit_code == 0
    for file in bare.glob("tokenizer*"):
        file.unlink()
    result = generate(bare, "-p", "Hi")
    assert result.exit_code == 1 and "tokenizer.json" in result.stderr


def test_what_a_model_says_sends_nothing_to_the_terminal(model_dir, capsys):
    """Its tokenizer may spell a token as any control sequence."""
    stream = Stream(AutoTokenizer.from_pretrained(model_dir))
    stream._print("a\x1b]0;title\x07b\n")
    assert capsys.readouterr().out == "a\\x1b]0;title\\x07b\n"
    assert stream.text == "a\x1b]0;title\x07b\n"  # --json escapes it by itself


@pytest.mark.parametrize("value", ["x", [1, "x"], 1.5, True])
def test_ids_of_tokens_are_integers(value, model_dir, tmp_path):
    other = shutil.copytree(model_dir, tmp_path / "other")
    path = other / "generation_config.json"
    path.write_text(json.dumps({"eos_token_id": value}))
    result = generate(other, "--prompt", "Hello", "-n", "2")
    assert result.exit_code == 1
    assert f"eos_token_id of {other} is {value!r}" in " ".join(result.stderr.split())
