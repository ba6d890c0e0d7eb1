# SPDX-License-Identifier: Apache-2.0
"""Model cards can be published as they are, and tell what is known of a model's zeros."""

import json

import pytest
from huggingface_hub import ModelCard
from typer.testing import CliRunner

from flashsparse_plugin.checkpoint import convert_checkpoint
from flashsparse_plugin.checkpoint.card.record import Calibration, Pruning
from flashsparse_plugin.checkpoint.card.section import EVALUATION
from flashsparse_plugin.cli import app

SHA = "0123456789abcdef" * 4
WANDA = Pruning(
    method="wanda",
    sparsity=0.5,
    pattern="2:4",
    calibration=Calibration(text="text.txt", sha256=SHA, samples=8, length=32),
)


def test_the_card_of_a_pruned_model_and_of_what_is_made_of_it(llama, tmp_path):
    pruned, packed = tmp_path / "pruned", tmp_path / "packed"
    command = ["prune", str(llama), str(pruned), "--method", "magnitude", "--sparsity", "0.9"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.stderr
    convert_checkpoint(pruned, packed, name="me/tiny-packed")
    for path, name, how in (
        (pruned, "pruned", 'from_pretrained("pruned")'),
        (packed, "tiny-packed", "vllm serve me/tiny-packed"),
    ):
        card = ModelCard.load(path / "README.md")
        assert (card.data.license, card.data.base_model) == ("apache-2.0", "example/tiny")
        told = {"method": "magnitude", "sparsity": pytest.approx(0.9, abs=1e-3)}
        assert card.data.to_dict()["pruning"] == told
        assert f"# {name}\n" in card.text and how in card.text
        assert "| Pruned by | `magnitude`, 90.0% zeros |" in card.text
        assert "| Base model | `example/tiny` |" in card.text
        begin, end = map(card.text.index, EVALUATION)
        assert "Not evaluated yet." in card.text[begin:end]
    assert "| q_proj | 2 | 128 x 128 | 90.0% |" in (pruned / "README.md").read_text()


def test_a_card_that_is_nested_without_end_is_not_carried_over(llama, tmp_path, caplog):
    (llama / "README.md").write_text(f"---\nlicense: {'[' * 100_000}\n---\n")
    convert_checkpoint(llama, tmp_path / "out")
    told = [
        each for each in caplog.messages if "the model card of the source is not carried" in each
    ]
    assert len(told) == 1 and told[0].isprintable() and len(told[0]) < 400
    assert "license: other" in (tmp_path / "out" / "README.md").read_text()


def test_the_calibration_text_is_named_by_its_hash(llama, tmp_path):
    data = f"---\npruning: {json.dumps(WANDA.model_dump(exclude_none=True))}\n---\n"
    (llama / "README.md").write_text(data)
    convert_checkpoint(llama, tmp_path / "out")
    text = (tmp_path / "out" / "README.md").read_text()
    assert "| Pruned by | `wanda`, 50.0% zeros, pattern 2:4 |" in text
    assert f"`text.txt`, 8 windows of 32 tokens, seed 0; SHA-256 `{SHA}`" in text
    # Without a card's word for it, a licence file is all that is known.
    assert ModelCard(text).data.license == "other"
    assert ModelCard(text).data.license_link == "LICENSE"


@pytest.mark.parametrize(
    "found",
    [
        "magic",
        {"method": "wanda"},
        {"method": "a|b", "sparsity": 0.5},
        {"method": "x", "sparsity": 9},
        {"method": "x", "sparsity": 0.5, "calibration": {"text": "<script>", "sha256": SHA}},
    ],
)
def test_what_a_strange_card_says_of_pruning_is_left_out(llama, tmp_path, found, caplog):
    (llama / "README.md").write_text(f"---\npruning: {json.dumps(found)}\n---\n")
    convert_checkpoint(llama, tmp_path / "out")
    assert "Pruned by" not in (tmp_path / "out" / "README.md").read_text()
    assert "pruning is not carried over" in caplog.text


def test_words_of_a_strange_card_stay_words(llama, tmp_path):
    (llama / "README.md").write_text('---\nbase_model: "a`b | <img src=x> \\e[31m"\n---\n')
    convert_checkpoint(llama, tmp_path / "out")
    assert "| Base model | `ab  img src=x [31m` |" in (tmp_path / "out" / "README.md").read_text()


def test_the_error_of_codes_is_told_by_kind(llama, tmp_path):
    options = {"n": 4, "m": 4, "values": "int8"}
    convert_checkpoint(llama, tmp_path / "out", format="nm_vector", options=options)
    text = (tmp_path / "out" / "README.md").read_text()
    assert "| dense | here | error |" in text
    (row,) = [line for line in text.splitlines() if line.startswith("| q_proj ")]
    assert 0 < float(row.rstrip("%| ").rpartition("| ")[2]) < 5
