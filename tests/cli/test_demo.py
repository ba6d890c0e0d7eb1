# SPDX-License-Identifier: Apache-2.0
"""demo/run.py on a tiny random model: what it makes, what it says, and when it reuses its work."""

import json
import logging

import pytest
import run as demo
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import flashsparse_plugin as fs

EFFORT = demo.Effort(story_tokens=6, eval_tokens=60, eval_context=20, rounds=2, decode_tokens=3)


@pytest.fixture(autouse=True)
def own_sources(model_dir, text_file, monkeypatch):
    """The tiny model and text in place of the downloads, and windows that fit its context."""
    monkeypatch.setattr(demo, "smollm2", lambda: model_dir)
    monkeypatch.setattr(demo, "tinyshakespeare", text_file.read_text)
    monkeypatch.setattr(demo, "PROMPT", "Tell me.")
    monkeypatch.setattr(demo, "Effort", lambda: EFFORT)
    monkeypatch.setattr(demo, "SAMPLES", 4)
    monkeypatch.setattr(demo, "LENGTH", 16)
    library = logging.getLogger("flashsparse_plugin.checkpoint")
    level = library.level
    yield
    library.setLevel(level)  # the program silences it, for good


@pytest.fixture
def build(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "BUILD", tmp_path / "build")
    return tmp_path / "build"


def result(build):
    return json.loads((build / "result.json").read_text())


def test_the_whole_demo(build, capsys):
    assert demo.main([]) == 0
    found, said = result(build), capsys.readouterr().out
    assert found["reused"] is False
    assert found["sparsity"] == pytest.approx(0.5)
    quality = found["perplexity"]
    assert quality["packed"] == pytest.approx(quality["recovered"], rel=1e-5)
    assert len({quality[name] for name in ("dense", "pruned", "recovered")}) == 3
    sizes = found["bytes"]
    assert sizes["linears_in_memory"]["dense"] == 2 * 3 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 48 * 32)
    assert sizes["linears_in_memory"]["packed"] < sizes["model_in_memory"]["packed"]
    assert sizes["linears_on_disk"]["packed"] >= sizes["linears_on_disk"]["dense"]
    assert all(rates["packed"] > 0 for rates in found["tokens_per_second"].values())
    assert set(found["tokens_per_second"]) == {"bfloat16", "float32"}
    for name in ("dense", "sparse"):
        assert f"from the {name} weights" in said
        assert found["stories"][name]["text"].strip() in said
    for expected in ("perplexity", "tokens a second", "Packing changed nothing", "On disk"):
        assert expected in said
    assert "a repetition penalty of 1.15" in said


def test_what_it_packs_is_what_it_recovered(build):
    assert demo.main(["--method", "magnitude", "--sparsity", "0.75"]) == 0
    (folder,) = (path for path in build.iterdir() if path.is_dir())
    pruned = AutoModelForCausalLM.from_pretrained(folder / "recovered", dtype=torch.float32)
    packed = AutoModelForCausalLM.from_pretrained(folder / "packed", dtype=torch.float32)
    assert sum(isinstance(m, fs.SparseLinear) for m in packed.modules()) == 21
    ids = torch.arange(3, 19)[None]
    with torch.no_grad():
        assert torch.allclose(pruned(ids).logits, packed(ids).logits, atol=1e-5)
    files = [folder / name / "model.safetensors" for name in ("pruned", "recovered")]
    first, second = (load_file(file)["model.layers.0.mlp.up_proj.weight"] for file in files)
    assert torch.equal(first == 0, second == 0) and not torch.equal(first, second)
    assert (first == 0).float().mean() == 0.75


def test_a_second_run_reuses_and_other_settings_do_not(build, capsys):
    def reused(*arguments):
        assert demo.main(list(arguments)) == 0
        said = capsys.readouterr().out
        assert ("reused from the last run" in said) == result(build)["reused"]
        return result(build)["reused"]

    assert not reused("--method", "magnitude")
    assert reused("--method", "magnitude")
    assert not reused("--method", "magnitude", "--sparsity", "0.6")
    assert reused("--method", "magnitude", "--sparsity", "0.6")


def test_half_made_work_is_made_again(build, monkeypatch):
    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    convert = demo.convert_checkpoint
    monkeypatch.setattr(demo, "convert_checkpoint", stop)
    assert demo.main(["--method", "magnitude"]) == 130
    monkeypatch.setattr(demo, "convert_checkpoint", convert)
    assert demo.main(["--method", "magnitude"]) == 0
    assert result(build)["reused"] is False


def test_an_own_model(build, model_dir):
    assert demo.main(["--model", str(model_dir), "--method", "magnitude"]) == 0
    assert result(build)["settings"]["model"] == str(model_dir)


def test_the_name_of_a_folder_sends_nothing_to_the_terminal(build, model_dir, tmp_path, capsys):
    folder = tmp_path / "mo\x1b[31mdel"
    folder.symlink_to(model_dir)
    assert demo.main(["--model", str(folder), "--method", "magnitude"]) == 0
    said = capsys.readouterr().out
    assert "\x1b" not in said and "mo\\x1b[31mdel" in said


@pytest.mark.parametrize("arguments", [["--model", "/nowhere"], ["--sparsity", "1.5"], ["--x"]])
def test_wrong_usage(build, arguments):
    with pytest.raises(SystemExit) as stopped:
        demo.main(arguments)
    assert stopped.value.code == 2
    assert not build.exists()


def test_a_failure_is_one_paragraph(build, monkeypatch, capsys):
    def fail():
        raise RuntimeError("no network")

    monkeypatch.setattr(demo, "smollm2", fail)
    assert demo.main([]) == 1
    assert capsys.readouterr().err.endswith("Error: no network\n")


FINDINGS = {
    "perplexity": {"dense": 20.0, "pruned": 60.0, "recovered": 40.0, "packed": 40.0},
    "bytes": {
        "linears_on_disk": {"dense": 100, "packed": 100},
        "linears_in_memory": {"dense": 100, "packed": 56},
    },
    "tokens_per_second": {"bfloat16": {"dense": 40.0, "packed": 60.0}},
    "load": 0.4,
    "cores": 2,
}

FINDINGS_OF_A_BUG = {"dense": 20.0, "pruned": 60.0, "recovered": 40.0, "packed": 41.0}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, "1.50 times as fast"),
        ({"tokens_per_second": {"bfloat16": {"dense": 40.0, "packed": 20.0}}}, "SLOWER"),
        ({"tokens_per_second": {"bfloat16": {"dense": 40.0, "packed": 40.1}}}, "not faster"),
        ({"load": 6.6}, "BUSY"),
        ({"perplexity": FINDINGS_OF_A_BUG}, "a bug"),
    ],
)
def test_the_verdict_is_that_of_the_figures(change, expected):
    text = " ".join(demo.verdict(FINDINGS | change))
    assert expected in text
    assert ("BUSY" in text) == ("load" in change)
    assert ("a bug" in text) == ("perplexity" in change)
    assert "above 50% zeros only" in text
