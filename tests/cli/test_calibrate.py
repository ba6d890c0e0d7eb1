# SPDX-License-Identifier: Apache-2.0
"""`flashsparse calibrate` on a tiny random model."""

import json
import shutil
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from flashsparse_plugin.attention import unified_max_of
from flashsparse_plugin.cli import app

WINDOWS = ["--tokens", "128", "--context", "32"]


@pytest.fixture
def model(model_dir, tmp_path):
    return shutil.copytree(model_dir, tmp_path / "model")


@pytest.fixture
def calibrate(text_file):
    def run(model, *arguments):
        given = ["calibrate", model, "--text", text_file, *WINDOWS, *arguments]
        return CliRunner().invoke(app, list(map(str, given)))

    return run


def config(path):
    return json.loads((path / "config.json").read_text())


def spread(path, layers, factor=2e5):
    """Queries of some layers become so large that no phi fits their scores."""
    tensors = load_file(path / "model.safetensors")
    for number in layers:
        tensors[f"model.layers.{number}.self_attn.q_proj.weight"] *= factor
    save_file(tensors, path / "model.safetensors", {"format": "pt"})


def test_the_entry_is_written_and_nothing_else(calibrate, model):
    before = config(model)
    result = calibrate(model)
    assert result.exit_code == 0, result.stderr
    assert "phi for 3 of 3 layers, which recompute none of their parts." in result.stdout
    assert f"Written to {model / 'config.json'}" in result.stdout
    after = config(model)
    entry = unified_max_of(after)
    assert (entry.dtype, entry.tokens, entry.text) == ("bfloat16", 128, "text.txt")
    assert [len(layer.phi) for layer in entry.layers] == [4, 4, 4]
    del after["unified_max"]
    assert list(after.items()) == list(before.items())
    loaded = AutoModelForCausalLM.from_pretrained(model).config
    assert unified_max_of(loaded) == entry


def test_the_table_has_a_row_a_layer(calibrate, model):
    result = calibrate(model, "--dry-run")
    rows = [line.split() for line in result.stdout.splitlines() if line[:1] in "✓✗"]
    assert [(row[0], row[1], row[-1]) for row in rows if row] == [
        ("✓", number, "none") for number in "012"
    ]
    assert "text.txt" in result.stdout.splitlines()[0]


def test_a_dry_run_writes_nothing(calibrate, model):
    before = (model / "config.json").read_bytes()
    result = calibrate(model, "--dry-run")
    assert result.exit_code == 0 and "nothing was written" in result.stdout
    assert (model / "config.json").read_bytes() == before


def test_json_tells_all(calibrate, model):
    spread(model, [1], 2e3)
    result = calibrate(model, "--json", "--dtype", "float16")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["dtype"], found["tokens"], found["refused"]) == ("float16", 128, [1])
    assert found["layers"][1]["recomputed"] > 0.01 >= found["layers"][0]["recomputed"]
    entry = unified_max_of(config(model))
    assert entry.dtype == "float16" and entry.layers[1] is None
    assert entry.layers[2].phi == found["layers"][2]["phi"]


def test_a_model_of_spread_scores_is_refused(calibrate, model):
    spread(model, [0, 2])
    before = (model / "config.json").read_bytes()
    result = calibrate(model)
    assert result.exit_code == 1
    assert "2 of 3 layers are spread too widely" in result.stderr
    assert result.stdout.count("online") == 2  # the numbers are shown all the same
    assert (model / "config.json").read_bytes() == before
    result = calibrate(model, "--limit", "1")
    assert result.exit_code == 0 and "phi for 3 of 3 layers" in result.stdout


def test_a_packed_model(calibrate, model, tmp_path):
    packed = tmp_path / "packed"
    converted = CliRunner().invoke(app, ["convert", str(model), str(packed), "--pack-all"])
    assert converted.exit_code == 0, converted.stderr
    assert calibrate(packed).exit_code == 0 == calibrate(model).exit_code
    assert config(packed)["quantization_config"]["quant_method"] == "flashsparse"
    phi = [[each.phi for each in unified_max_of(config(p)).layers] for p in (packed, model)]
    torch.testing.assert_close(*map(torch.tensor, phi), rtol=0, atol=0.25)


def test_a_plot(calibrate, model, tmp_path):
    path = tmp_path / "scores.png"
    result = calibrate(model, "--dry-run", "--plot", path)
    assert result.exit_code == 0 and path.read_bytes()[:4] == b"\x89PNG"


def test_a_plot_without_matplotlib_tells_the_remedy_before_the_work(calibrate, model, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    module = sys.modules["flashsparse_plugin.cli.calibrate"]
    monkeypatch.setattr(module, "load_model", None)  # not called
    result = calibrate(model, "--plot", "scores.png")
    assert result.exit_code == 1 and "pip install matplotlib" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--context", "65"], 1, "windows of 65 tokens do not fit the model's context of 64"),
        (["--dtype", "float32"], 2, "--dtype"),
        (["--limit", "1.5"], 2, "--limit"),
        (["--text", "no/such/file"], 2, "no/such/file"),
    ],
)
def test_wrong_usage(calibrate, model, arguments, code, message):
    result = calibrate(model, *arguments)
    assert result.exit_code == code and message in result.stderr


def test_a_short_text(model, tmp_path):
    (tmp_path / "short.txt").write_text("fox")
    result = CliRunner().invoke(
        app, ["calibrate", str(model), "--text", str(tmp_path / "short.txt"), *WINDOWS]
    )
    assert result.exit_code == 1 and "give more text or shorter windows" in result.stderr


def test_a_name_from_a_hub(calibrate):
    result = calibrate("organisation/name")
    assert result.exit_code == 2 and "hf download organisation/name" in result.stderr


def test_inspect_tells_of_the_entry(calibrate, model):
    def told():
        result = CliRunner().invoke(app, ["inspect", str(model)])
        return [line for line in result.stdout.splitlines() if line.startswith("Attention: ")]

    assert told() == []
    assert calibrate(model).exit_code == 0
    assert told() == ["Attention: phi for 3 of 3 layers, chosen for bfloat16 on text.txt"]
    changed = config(model)
    changed["unified_max"]["dtype"] = "int8"
    (model / "config.json").write_text(json.dumps(changed))
    assert "unified_max.dtype" in told()[0]
