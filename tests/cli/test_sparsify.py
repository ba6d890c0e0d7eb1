# SPDX-License-Identifier: Apache-2.0
"""`flashsparse sparsify`: the recipe in one command, on a tiny random model and on a real one."""

import json
import shlex
from types import SimpleNamespace

import pytest
import torch
from checkpoints import load_all
from documents import ROOT, commands
from huggingface_hub import ModelCard
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

import flashsparse_plugin as fs
from flashsparse_plugin import loading
from flashsparse_plugin.checkpoint.prune import recovered
from flashsparse_plugin.cli import app
from flashsparse_plugin.pruning.estimate import busy, duration
from flashsparse_plugin.sparsify import recipe, run

README = ROOT / "README.md"
QUICK = ["--samples", "8", "--length", "32", "--steps", "4"]


def sparsify(*arguments):
    return CliRunner().invoke(app, ["sparsify", *map(str, arguments)])


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("sparsify") / "text.txt"
    path.write_text("The fox saw a lantern in the snow, and the snow saw the fox. " * 40)
    return path


@pytest.fixture(scope="module")
def whole(model_dir, text, tmp_path_factory):
    """What an uninterrupted run makes, and what it says."""
    out = tmp_path_factory.mktemp("whole") / "out"
    result = sparsify(model_dir, out, "--calibration", text, "--pattern", "2:4", *QUICK)
    assert result.exit_code == 0, result.stderr
    return out, result


def test_one_command_prunes_recovers_and_packs(whole, model_dir):
    out, result = whole
    model = AutoModelForCausalLM.from_pretrained(out, dtype="auto")
    layers = [each for each in model.modules() if isinstance(each, fs.SparseLinear)]
    assert len(layers) == 21 and {each.scheme.title for each in layers} == {"nm_vector(2:4)"}
    dense = load_all(model_dir)
    weight = layers[0].packed.unpack()
    assert not torch.equal(
        weight,
        dense["model.layers.0.self_attn.q_proj.weight"].where(
            weight != 0, torch.zeros_like(weight)
        ),
    )  # what was kept has changed
    data = ModelCard.load(out / "README.md").data.to_dict()
    assert data["pruning"]["pattern"] == "2:4" and data["recovery"]["method"] == "lora"
    assert [each.name for each in out.parent.iterdir()] == ["out"]


def test_it_says_how_long_it_takes_what_it_cost_and_what_comes_next(whole):
    out, result = whole
    told = " ".join(result.stderr.split())
    assert "will take about" in told and "an estimate from a pass over" in told
    rows = {line.split()[0]: line.split() for line in result.stdout.splitlines() if line.strip()}
    assert [rows[name][2] for name in ("dense", "pruned")] == ["1.00", rows["pruned"][2]]
    assert rows["recovered"][1:] == rows["packed"][1:]  # packing is exact
    told = " ".join(result.stdout.split())
    assert "of the last tenth of" in told and "did not see" in told
    assert f"flashsparse generate {out}" in result.stdout


def test_a_cpu_without_16_bit_instructions_computes_in_float32(
    whole, model_dir, text, tmp_path, monkeypatch
):
    """And stores what the checkpoint does: weights that training has rounded to it."""
    seen = []
    load = run.load_model
    monkeypatch.setattr(run, "fast_dtype", lambda *_: "float32")
    monkeypatch.setattr(run, "load_model", lambda *given: seen.append(given[1]) or load(*given))
    command = [model_dir, tmp_path / "out", "--calibration", text, "--pattern", "2:4", *QUICK]
    result = sparsify(*command, "--json")
    assert result.exit_code == 0, result.stderr
    assert {*seen} == {"float32"}
    quality = json.loads(result.stdout)["perplexity"]
    assert quality["packed"] == pytest.approx(quality["recovered"], rel=1e-5)
    kept, other = load_all(tmp_path / "out"), load_all(whole[0])
    assert {n: (t.dtype, t.shape) for n, t in kept.items()} == {
        n: (t.dtype, t.shape) for n, t in other.items()
    }


@pytest.mark.parametrize(
    ("sets", "device", "nbytes", "wanted"),
    [
        (["avx2", "avx512f"], "cpu", 1 << 20, "float32"),
        (["avx2", "avx512f"], "cpu", 1 << 50, "auto"),
        (["avx2", "avx512f"], "cuda", 1 << 20, "auto"),
        (["avx2", "avx512_bf16"], "cpu", 1 << 20, "auto"),
    ],
)
def test_what_computes_fastest(sets, device, nbytes, wanted, monkeypatch):
    here = {"architecture": "x86_64", "instruction_sets": sets}
    monkeypatch.setattr(loading, "hardware", lambda: here)
    assert loading.fast_dtype(SimpleNamespace(nbytes=nbytes), device) == wanted


def test_it_fits_80_columns(model_dir, text, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    plain = ["--pattern", "2:4", "--no-recover", *QUICK]
    result = sparsify(model_dir, "out", "--calibration", text, *plain)
    assert result.exit_code == 0, result.stderr
    assert (
        max(map(len, (result.stdout + result.stderr).replace(str(text), "text").splitlines())) <= 80
    )
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["quantization_config"]["options"] == {"n": 2, "m": 4}
    assert "recovery" not in ModelCard.load(tmp_path / "out" / "README.md").data.to_dict()
    assert "recovered" not in result.stdout


@pytest.mark.slow
def test_the_recipe_of_the_readme_ends_in_a_model_worth_using(smollm2_dir, shakespeare, tmp_path):
    """On the demo's model, with a sixth of the steps of the default: the recipe has room."""
    (recipe,) = (each for each in commands(README.read_text()) if " sparsify " in each)
    _, _, source, out, *options = shlex.split(recipe)
    assert (source, out) == ("path/to/dense", "path/to/packed")
    text = tmp_path / "text.txt"
    text.write_text(shakespeare[:56_000])
    options[options.index("--calibration") + 1] = text
    effort = ["--samples", "32", "--length", "128", "--steps", "10"]
    result = sparsify(smollm2_dir, tmp_path / "packed", *options, *effort, "--json")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    quality = report["perplexity"]
    assert report["judged_by"] > 1000 and quality["pruned"] > 2 * quality["dense"]
    assert quality["packed"] < 1.5 * quality["dense"]
    assert quality["packed"] == pytest.approx(quality["recovered"], rel=1e-3)


@pytest.mark.parametrize("stage", ["pruned", "fitted", "training", "packing"])
def test_the_same_command_goes_on(stage, whole, model_dir, text, tmp_path, monkeypatch):
    """Stopped once a stage is done, or inside of the last two; what was done is not done again."""

    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    out = tmp_path / "out"
    command = [model_dir, out, "--calibration", text, "--pattern", "2:4", *QUICK]
    save = recovered._keep

    def stop_training(staging, tensors, end):
        save(staging, tensors, end)
        if "step" in tensors and end == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if stage == "pruned":
            patch.setattr(run, "write_recovered", stop)
        elif stage == "packing":
            patch.setattr(recipe, "convert_checkpoint", stop)
        elif stage == "fitted":
            patch.setattr(recovered, "_train", stop)
        else:
            patch.setattr(recovered, "_BETWEEN", 0.0)
            patch.setattr(recovered, "_keep", stop_training)
        result = sparsify(*command)
    assert result.exit_code == 130 and "The same command goes on" in result.stderr
    assert not out.exists() and (tmp_path / "out.sparsify").is_dir()
    with monkeypatch.context() as patch:
        patch.setattr(run, "prune", stop)  # not again
        if stage == "packing":
            patch.setattr(run, "write_recovered", stop)
        result = sparsify(*command, "--json")
    assert result.exit_code == 0, result.stderr
    report, expected = json.loads(result.stdout), load_all(whole[0])
    assert list(report["perplexity"]) == ["dense", "pruned", "recovered", "packed"]
    assert all(torch.equal(t, expected[name]) for name, t in load_all(out).items())
    assert [each.name for each in tmp_path.iterdir()] == ["out"]


def test_another_job_starts_over(model_dir, text, tmp_path, monkeypatch):
    out, plain = tmp_path / "out", ["--pattern", "2:4", "--no-recover", *QUICK]

    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(recipe, "convert_checkpoint", stop)
        sparsify(model_dir, out, "--calibration", text, *plain)
    again = ["--pattern", "1:4", "--no-recover", "--json"]
    result = sparsify(model_dir, out, "--calibration", text, *again, *QUICK)
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["pruned"]["sparsity"] == 0.75


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (["--pattern", "two"], 2, "'two' is not a pattern N:M"),
        (["--pattern", "2:4", "--format", "4:8"], 2, "cannot hold --pattern 2:4"),
        (["--format", "zip"], 2, "unknown format 'zip'"),
        (["--format", "auto", "--option", "group=64"], 2, "auto chooses formats and their options"),
        (["--pattern", "2:4", "--option", "values=int4", "--option", "group=7"], 2, "group"),
        (["--option", "n=2"], 2, "n"),
        (["--sparsity", "50"], 2, "was 0.5 meant?"),
        (["--pattern", "2:4", "--sparsity", "0.7"], 1, "2:4"),
        (["--length", "100000"], 1, "tokens"),
    ],
)
def test_what_is_refused(model_dir, text, tmp_path, change, code, message):
    result = sparsify(model_dir, tmp_path / "out", "--calibration", text, *QUICK, *change)
    assert result.exit_code == code and message in result.stderr, result.stderr
    assert not (tmp_path / "out").exists()


def test_an_output_that_is_there_stays(model_dir, text, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    result = sparsify(model_dir, tmp_path / "out", "--calibration", text, *QUICK)
    assert result.exit_code == 1 and "exists and is not empty" in result.stderr
    (tmp_path / "new.sparsify").mkdir()
    (tmp_path / "new.sparsify" / "mine").touch()
    result = sparsify(model_dir, tmp_path / "new", "--calibration", text, *QUICK)
    assert result.exit_code == 1 and "holds something else" in result.stderr
    assert (tmp_path / "new.sparsify" / "mine").exists() and (tmp_path / "out" / "mine").exists()


def test_a_text_too_short_to_judge_by(model_dir, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("The fox saw a lantern in the snow. " * 4)
    plain = ["--pattern", "2:4", "--no-recover", *QUICK]
    result = sparsify(model_dir, tmp_path / "out", "--calibration", text, *plain)
    assert result.exit_code == 0, result.stderr
    assert "too short to measure perplexity" in result.stdout and "of dense" not in result.stdout


@pytest.mark.parametrize(("seconds", "told"), [(0.2, "1 s"), (89, "89 s"), (600, "10 min")])
def test_durations(seconds, told):
    assert duration(seconds) == told
    assert duration(3600 * 2.5) == "2 h 30 min"


@pytest.mark.parametrize(("load", "told"), [(0.4, False), (1e4, True)])
def test_an_estimate_on_a_busy_machine_says_so(load, told, monkeypatch):
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    assert ("Other programs are running" in busy()) == told


def test_values_of_four_bits_are_rounded_by_inputs(model_dir, text, tmp_path):
    how = ["--calibration", text, "--format", "2:4-int4", "--option", "group=32"]
    how += ["--json", *QUICK]
    result = sparsify(model_dir, tmp_path / "out", *how)
    assert result.exit_code == 0, result.stderr
    assert "rounding to 4 bits and packing come on top" in " ".join(result.stderr.split())
    done = ModelCard.load(tmp_path / "out" / "README.md").data.to_dict()["rounding"]
    assert done["format"] == "2:4-int4 group=32" and 0 < done["after"] < done["before"]
    assert [each.name for each in tmp_path.iterdir()] == ["out"]
    # Packing takes the codes as they are: it loses next to nothing more.
    packed = json.loads(result.stdout)["packed"]
    errors = [each["error"] for each in packed["layers"] if each["error"] is not None]
    assert len(errors) == 21 and max(errors) < 0.005


def test_a_run_goes_on_behind_its_rounding(model_dir, text, tmp_path, monkeypatch):
    how = ["--calibration", text, "--format", "2:4-int4", *QUICK]

    def stop(*_, **__):
        raise RuntimeError("stopped")

    with monkeypatch.context() as patch:
        patch.setattr(recipe, "convert_checkpoint", stop)
        assert sparsify(model_dir, tmp_path / "out", *how).exit_code == 1
    left = [each.name for each in (tmp_path / "out.sparsify").iterdir() if each.is_dir()]
    assert left == ["rounded"]
    monkeypatch.setattr(run, "write_rounded", stop)
    result = sparsify(model_dir, tmp_path / "out", *how)
    assert result.exit_code == 0, result.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["out"]
