# SPDX-License-Identifier: Apache-2.0
"""`flashsparse convert` and `flashsparse inspect`, on the same small models."""

import json

import pytest
import torch
import typer
from checkpoints import assert_same_model, load_all, save_llama
from typer.testing import CliRunner

from flashsparse_plugin.cli.console import reported
from flashsparse_plugin.cli.convert import convert
from flashsparse_plugin.cli.inspect import inspect

app = typer.Typer(rich_markup_mode="rich")
app.command()(reported(convert))
app.command()(reported(inspect))


def flashsparse(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def dense(tmp_path):
    return save_llama(tmp_path / "dense")


def rows(text):
    return {line.split()[0]: line.split() for line in text.splitlines() if line.strip()}


def test_convert_shows_what_it_did(dense, tmp_path):
    result = flashsparse("convert", dense, tmp_path / "out")
    assert result.exit_code == 0, result.stderr
    assert assert_same_model(dense, tmp_path / "out") == 14
    table = rows(result.stdout)
    assert table["q_proj"][1:7] == ["2", "of", "2", "128", "x", "128"]
    assert table["lm_head"][1:4] == ["0", "of", "1"]
    assert table["model"][1:4] == ["14", "of", "15"]
    assert f"flashsparse generate {tmp_path / 'out'}" in result.stdout
    assert result.stderr == ""  # no bar in a pipe


def test_convert_json(dense, tmp_path):
    result = flashsparse("convert", dense, tmp_path / "out", "--json", "--max-shard-size", "60kB")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert report["format"] == "tiled_bitmap"
    assert sum(layer["packed"] for layer in report["layers"]) == 14
    assert report["seconds"] > 0
    assert len(list((tmp_path / "out").glob("*.safetensors"))) > 3


def test_convert_options_arrive(tmp_path):
    dense = save_llama(tmp_path / "dense", sparsity=0.02, dtype=torch.float32)
    out = tmp_path / "out"
    out.mkdir()
    (out / "config.json").write_text("{}")
    ignore = ["--ignore", "lm_head", "--ignore", "re:.*down_proj"]
    options = ["--dtype", "float16", "--pack-all", "--overwrite", *ignore]
    result = flashsparse("convert", dense, out, *options)
    assert result.exit_code == 0, result.stderr
    own = json.loads((out / "config.json").read_text())["quantization_config"]
    assert own["dtype"] == "float16"
    assert own["ignore"] == ["lm_head", "re:.*down_proj"]
    assert rows(result.stdout)["down_proj"][1:4] == ["0", "of", "2"]
    assert "Note: 12 layers are larger packed than dense" in result.stdout


def test_a_pattern_is_a_format_in_short(tmp_path):
    """The same model as with all its options written out."""
    source = save_llama(tmp_path / "dense", sparsity=0.0)
    spelt = ["n=8", "m=8", "vector_length=2", "values=int8"]
    options = [part for each in spelt for part in ("--option", each)]
    for out, how in (
        ("short", ["--format", "8:8-L2-int8"]),
        ("long", ["--format", "nm_vector", *options]),
    ):
        result = flashsparse("convert", source, tmp_path / out, *how)
        assert result.exit_code == 0, result.stderr
    files = [(tmp_path / out / "config.json").read_text() for out in ("short", "long")]
    assert files[0] == files[1]
    assert json.loads(files[0])["quantization_config"]["format"] == "nm_vector"
    short, long = (load_all(tmp_path / out) for out in ("short", "long"))
    assert short.keys() == long.keys() and "weight_scale" in " ".join(short)
    assert all(torch.equal(tensor, long[name]) for name, tensor in short.items())


def test_an_output_that_cannot_be_made(dense):
    result = flashsparse("convert", dense, "/proc/nope")
    assert result.exit_code == 1
    assert result.stderr == (
        "Error: /proc/nope.partial cannot be made (No such file or directory): choose another "
        "output\n"
    )


def test_convert_tells_warnings_once(tmp_path):
    dense = save_llama(tmp_path / "dense", dtype=torch.float32)
    result = flashsparse("convert", dense, tmp_path / "out")
    assert result.stdout.count("were rounded to bfloat16") == 1
    assert "rounded" not in result.stderr


def test_convert_errors_are_one_paragraph(tmp_path, monkeypatch):
    monkeypatch.delenv("FLASHSPARSE_DEBUG", raising=False)
    dense = save_llama(tmp_path / "dense", sparsity=0.02)
    result = flashsparse("convert", dense, tmp_path / "out")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("Error: no layer of")
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()
    monkeypatch.setenv("FLASHSPARSE_DEBUG", "1")
    result = flashsparse("convert", dense, tmp_path / "out")
    assert isinstance(result.exception, ValueError)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--format", "zip"], "unknown format 'zip'"),
        (["--format", "zip"], "auto chooses for each layer"),
        (["--format", "2:4-int7"], "is not a pattern"),
        (["--format", "2:4", "--option", "n=1"], "means n=2, and the option says 1"),
        (["--dtype", "float32"], "float32"),
        (["--max-shard-size", "many"], "not 'many'"),
        (["--ignore", "re:("], "not a regular expression"),
        (["--option", "n"], "NAME=VALUE"),
        (["--option", "n=2"], "has no option 'n'"),
    ],
)
def test_convert_wrong_usage(dense, tmp_path, options, message):
    result = flashsparse("convert", dense, tmp_path / "out", *options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", [["convert", "nowhere", "out"], ["inspect", "nowhere"]])
def test_no_such_model(command):
    result = flashsparse(*command)
    assert result.exit_code == 2
    assert "the name of one on the Hugging Face Hub" in " ".join(result.stderr.split())


def test_inspect_dense_and_packed(dense, tmp_path):
    result = flashsparse("inspect", dense)
    assert result.exit_code == 0, result.stderr
    assert "llama, dense" in result.stdout
    assert "stored" not in result.stdout
    assert rows(result.stdout)["q_proj"][1:5] == ["(2)", "128", "x", "128"]
    flashsparse("convert", dense, tmp_path / "out")
    result = flashsparse("inspect", tmp_path / "out")
    assert "packed to tiled_bitmap" in result.stdout
    assert "stored" in result.stdout
    assert "Dense: lm_head (ignored by name)" in result.stdout


@pytest.mark.parametrize("columns", [80, 140])
def test_inspect_has_all_names_at_any_width(dense, tmp_path, monkeypatch, columns):
    """A format that finds no room is named below; a packed model has one more column."""
    monkeypatch.setenv("COLUMNS", str(columns))
    flashsparse("convert", dense, tmp_path / "out")
    for path in (dense, tmp_path / "out"):
        result = flashsparse("inspect", path)
        lines = result.stdout.splitlines()
        assert all(len(line) <= columns for line in lines[2:14])
        for name in ("q_proj (2)", "down_proj (2)", "lm_head (1)", "of dense"):
            assert sum(line.startswith(name) for line in lines) == 1, result.stdout
        assert ("Not shown, for lack of width" in result.stdout) <= (columns == 80)


def test_inspect_layers(dense):
    result = flashsparse("inspect", dense, "--layers")
    assert rows(result.stdout)["model.layers.1.mlp.down_proj"][1:4] == ["128", "x", "200"]


def test_inspect_json(dense):
    found = json.loads(flashsparse("inspect", dense, "--json").stdout)
    assert found["format"] is None
    assert found["layers"][0]["bytes_in"]["tiled_bitmap"] < found["layers"][0]["bytes_dense"]


def test_reports_fit_80_columns_and_say_what_comes_next(dense, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    commands = (["convert", dense, "out"], ["inspect", dense], ["inspect", "out"])
    shown = [flashsparse(*command).stdout for command in commands]
    for place, name in ((f"{tmp_path}/", ""), (str(dense), "MODEL")):
        shown = [each.replace(place, name) for each in shown]
    assert max(len(line.rstrip()) for each in shown for line in each.splitlines()) <= 80
    hint = "flashsparse generate out --no-chat --repetition-penalty 1.15 \\\n"
    assert hint in shown[0] and "Serve it:" in shown[0]


def test_a_packed_model_that_is_damaged(dense, tmp_path):
    flashsparse("convert", dense, tmp_path / "out")
    weights = tmp_path / "out" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    result = flashsparse("inspect", tmp_path / "out")
    assert result.exit_code == 1
    assert "not a whole safetensors file" in result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--for", "H200"], "only --format auto chooses by it"),
        (["--format", "auto", "--pack-all"], "chooses options and layers itself"),
        (["--format", "auto", "--option", "n=2"], "chooses options and layers itself"),
        (["--format", "auto", "--for", "B300"], "'B300' is not one of H200"),
    ],
)
def test_auto_is_asked_for_alone(llama_dense, tmp_path, options, message):
    result = flashsparse("convert", llama_dense, tmp_path / "out", *options)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())


def test_auto_says_what_it_chose(llama_dense, tmp_path):
    result = flashsparse(
        "convert", llama_dense, tmp_path / "out", "--format", "auto", "--for", "cpu"
    )
    assert result.exit_code == 0, result.stderr
    assert "auto: q_proj, k_proj, v_proj" in result.stdout and "on a CPU" in result.stdout
    shown = flashsparse("inspect", llama_dense, "--for", "A100", "--batch", "4").stdout
    assert "zeros do not pay" in shown and "at batch 4 by its cost model of an A100" in shown


@pytest.fixture(scope="module")
def llama_dense(tmp_path_factory):
    return save_llama(tmp_path_factory.mktemp("auto") / "dense")
