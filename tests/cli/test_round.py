# SPDX-License-Identifier: Apache-2.0
"""`flashsparse round`: what it writes, what convert makes of it, and what it refuses."""

import json

import pytest
import torch
from checkpoints import load_all
from huggingface_hub import ModelCard
from typer.testing import CliRunner

from flashsparse_plugin.cli import app

WINDOWS = ("--samples", "8", "--length", "32")


def run(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)])


def said(result):
    """Without the frame, and the ends of its lines."""
    return " ".join(result.output.replace("│", "").split())


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("The fox saw a lantern in the snow, and the snow saw the fox. " * 40)
    return path


def test_packing_loses_nothing_more(model_dir, text, tmp_path):
    how = ("--format", "2:4-int4", "--option", "group=32")
    pruned, rounded, packed = (tmp_path / name for name in ("pruned", "rounded", "packed"))
    windows = ("--calibration", text, *WINDOWS)
    assert run("prune", model_dir, pruned, "--pattern", "2:4", *windows).exit_code == 0
    result = run("round", pruned, rounded, *how, *windows)
    assert result.exit_code == 0, result.output
    assert f"convert {rounded} PACKED --format 2:4-int4 --option group=32" in said(result)
    before, after = load_all(pruned), load_all(rounded)
    layers = [name for name in before if not torch.equal(before[name], after[name])]
    assert len(layers) == 21 and before.keys() == after.keys()
    for name in layers:
        assert (after[name][before[name] == 0] == 0).all()
        assert after[name].dtype == before[name].dtype
    result = run("convert", rounded, packed, *how, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["layers"]
    errors = [each["error"] for each in found if each["error"] is not None]
    assert len(errors) == 21 and max(errors) < 0.005
    nearest = run("convert", pruned, tmp_path / "nearest", *how, "--json")
    errors = [each["error"] for each in json.loads(nearest.stdout)["layers"]]
    assert min(error for error in errors if error is not None) > 0.05
    card = ModelCard.load(packed / "README.md")
    done = card.data.to_dict()
    assert done["pruning"]["pattern"] == "2:4" and done["rounding"]["format"] == "2:4-int4 group=32"
    assert done["rounding"]["after"] < done["rounding"]["before"]
    assert "(GPTQ), mean error" in card.text


def test_a_model_that_is_pruned_anew_was_not_rounded(model_dir, text, tmp_path):
    rounded, pruned = tmp_path / "rounded", tmp_path / "pruned"
    windows = ("--calibration", text, *WINDOWS)
    result = run("round", model_dir, rounded, "--format", "1:1-L128-int4", *windows, "--json")
    assert result.exit_code == 0, result.output
    layers = json.loads(result.stdout)["layers"]
    assert len(layers) == 21 and all(each["after"] <= each["before"] for each in layers)
    assert run("prune", rounded, pruned, "--method", "magnitude").exit_code == 0
    done = ModelCard.load(pruned / "README.md").data.to_dict()
    assert "pruning" in done and "rounding" not in done


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ([], "give either --format or --recipe"),
        (["--format", "2:4-int8"], "does not store values in 4 bits, and 8 bits lose too little"),
        (["--format", "2:4"], "does not store values in 4 bits"),
        (["--format", "int5"], "unknown format 'int5'"),
        (["--format", "2:4-int4", "--option", "group=7"], "group"),
    ],
)
def test_what_is_refused(how, message, model_dir, text, tmp_path):
    result = run("round", model_dir, tmp_path / "out", "--calibration", text, *how)
    assert result.exit_code == 2 and message in said(result)
    assert not (tmp_path / "out").exists()


def test_an_output_that_is_there_stays(model_dir, text, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    how = ("--format", "2:4-int4", "--calibration", text)
    result = run("round", model_dir, tmp_path / "out", *how)
    assert result.exit_code == 2 and "exists already" in said(result)
    assert (tmp_path / "out" / "mine").read_text() == "mine"


def test_a_recipe_for_another_model_is_refused(model_dir, text, tmp_path):
    recipe = tmp_path / "recipe.json"
    layer = {"format": "2:4-int4", "bits": 3.0, "loss": 0.1, "pattern": [2, 4]}
    given = {"model": "m", "method": "wanda", "bits": 3.0, "layers": {"other": layer}}
    recipe.write_text(json.dumps(given))
    how = ("--recipe", recipe, "--calibration", text, *WINDOWS)
    result = run("round", model_dir, tmp_path / "out", *how)
    assert result.exit_code == 2 and "names 'other', which is no layer" in said(result)
    layer["format"] = "2:4-int8"
    recipe.write_text(json.dumps(given))
    result = run("round", model_dir, tmp_path / "out", *how)
    assert result.exit_code == 2 and "no layer of the recipe has 4 bits" in said(result)
    assert not (tmp_path / "out").exists()
