# SPDX-License-Identifier: Apache-2.0
"""`flashsparse recover` on a tiny random model."""

import errno
import json
import shutil
from pathlib import Path

import families
import pytest
import torch
from checkpoints import load_all
from huggingface_hub import ModelCard
from tiny_causal_lms import character_tokenizer
from typer.testing import CliRunner

from flashsparse_plugin.checkpoint.prune import recovered
from flashsparse_plugin.cli import app

WINDOWS = ["--samples", "8", "--length", "32"]


def flashsparse(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)])


@pytest.fixture(scope="module")
def pruned_dir(model_dir, tmp_path_factory):
    path = tmp_path_factory.mktemp("pruned") / "pruned"
    result = flashsparse("prune", model_dir, path, "--method", "magnitude", "--pattern", "2:4")
    assert result.exit_code == 0, result.stderr
    return path


def recover(pruned_dir, model_dir, out, text_file, *more):
    return flashsparse(
        "recover", pruned_dir, model_dir, out, "--calibration", text_file, *WINDOWS, *more
    )


def test_values_change_and_zeros_stay(pruned_dir, model_dir, text_file, tmp_path):
    out = tmp_path / "out"
    result = recover(pruned_dir, model_dir, out, text_file, "--json")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert len(report["fits"]) == 21 and report["after"] < 0.9 * report["before"]
    before, after = load_all(pruned_dir), load_all(out)
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert after[name].dtype == tensor.dtype
        if name.endswith("proj.weight"):
            assert after[name][tensor == 0].eq(0).all()
            assert not torch.equal(after[name], tensor), name
        else:
            assert torch.equal(after[name], tensor), name
    assert {f.name for f in pruned_dir.iterdir()} == {f.name for f in out.iterdir()}
    assert [f.name for f in tmp_path.iterdir()] == ["out"]
    packed = tmp_path / "packed"
    result = flashsparse("convert", out, packed, "--format", "nm_vector", *NM, "--json")
    assert result.exit_code == 0, result.stderr
    for card in (out / "README.md", packed / "README.md"):
        data, text = ModelCard.load(card).data, card.read_text()
        assert data["pruning"]["pattern"] == "2:4"
        assert data["recovery"]["dense"] == model_dir.name
        assert data["recovery"]["after"] == pytest.approx(report["after"])
        assert "| Pruned by | `magnitude`" in text and "| Recovered by | least squares" in text
    # Of what is pruned again, the fit was of another model.
    again = tmp_path / "again"
    flashsparse("prune", out, again, "--method", "magnitude", "--sparsity", "0.9")
    assert "recovery" not in ModelCard.load(again / "README.md").data.to_dict()


NM = ["--option", "n=2", "--option", "m=4"]


def test_what_a_script_pruned_is_packed_by_what_its_zeros_allow(
    pruned_dir, model_dir, text_file, tmp_path
):
    pruned = shutil.copytree(pruned_dir, tmp_path / "pruned")
    (pruned / "README.md").unlink()
    result = recover(pruned, model_dir, tmp_path / "out", text_file)
    assert f"flashsparse convert {tmp_path / 'out'} PACKED --format auto\n" in result.stdout


def stop_after(monkeypatch, layers):
    """The power goes after some decoder layers are done."""
    save = recovered._Parts.save

    def stopping(parts, index, fits):
        save(parts, index, fits)
        if index + 1 == layers:
            raise KeyboardInterrupt

    monkeypatch.setattr(recovered._Parts, "save", stopping)


def test_the_same_command_goes_on(pruned_dir, model_dir, text_file, tmp_path, monkeypatch):
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert recover(pruned_dir, model_dir, whole, text_file).exit_code == 0
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        result = recover(pruned_dir, model_dir, out, text_file)
        assert result.exit_code == 130 and "The same command goes on" in result.stderr
    assert not out.exists() and (tmp_path / "out.partial").is_dir()
    result = recover(pruned_dir, model_dir, out, text_file)
    assert result.exit_code == 0 and "2 decoder layers kept" in result.stdout
    assert "error before" in result.stdout and "down_proj" in result.stdout
    assert f"Pack it:  flashsparse convert {out} PACKED --format 2:4\n" in result.stdout
    expected = load_all(whole)
    assert all(torch.equal(t, expected[name]) for name, t in load_all(out).items())


LORA = ["--method", "lora", "--rank", "4", "--steps", "6", "--rate", "0.01"]


def test_lora_goes_on_and_keeps_zeros(pruned_dir, model_dir, text_file, tmp_path, monkeypatch):
    whole, out = tmp_path / "whole", tmp_path / "out"
    result = recover(pruned_dir, model_dir, whole, text_file, *LORA, "--json")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["settings"] == {"rank": 4, "steps": 6, "rate": 0.01, "batch": 2}
    assert report["after"] < report["before"] and report["resumed"] == 0
    keep = recovered._keep

    def stopping(staging, tensors, end):
        """The power goes after a state is kept, of which only the latest is there."""
        keep(staging, tensors, end)
        assert len([*staging.path.glob("part-*")]) == 1
        if end == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(recovered, "_BETWEEN", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(recovered, "_keep", stopping)
        result = recover(pruned_dir, model_dir, out, text_file, *LORA)
        assert result.exit_code == 130 and "The same command goes on" in result.stderr
    assert not out.exists()
    result = recover(pruned_dir, model_dir, out, text_file, *LORA)
    assert result.exit_code == 0, result.stderr
    assert "3 steps kept" in result.stdout and "divergence" in result.stdout
    before, after = load_all(pruned_dir), load_all(out)
    expected = load_all(whole)
    for name, tensor in after.items():
        assert torch.equal(tensor, expected[name]), name
        assert tensor[before[name] == 0].eq(0).all(), name
        assert torch.equal(tensor, before[name]) != name.endswith("proj.weight"), name
    assert {f.name for f in pruned_dir.iterdir()} == {f.name for f in out.iterdir()}
    data, text = ModelCard.load(out / "README.md").data, (out / "README.md").read_text()
    assert data["recovery"]["method"] == "lora" and data["recovery"]["rank"] == 4
    assert "| Recovered by | LoRA of rank 4, 6 steps, to the predictions of" in text


def test_a_damaged_state_is_begun_again(pruned_dir, model_dir, text_file, tmp_path, monkeypatch):
    keep = recovered._keep

    def stopping(staging, tensors, end):
        keep(staging, {name: t for name, t in tensors.items() if name != "before"}, end)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(recovered, "_BETWEEN", 0.0)
        patch.setattr(recovered, "_keep", stopping)
        recover(pruned_dir, model_dir, tmp_path / "out", text_file, *LORA)
    result = recover(pruned_dir, model_dir, tmp_path / "out", text_file, *LORA, "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["resumed"] == 0


def test_what_was_kept_is_not_trusted(pruned_dir, model_dir, text_file, tmp_path, monkeypatch):
    """Another text begins anew, and a file that is not what it should be is made again."""
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        recover(pruned_dir, model_dir, out, text_file)
        recover(pruned_dir, model_dir, tmp_path / "other", text_file)
    result = recover(pruned_dir, model_dir, tmp_path / "other", text_file, "--seed", "7", "--json")
    assert json.loads(result.stdout)["resumed"] == 0

    def broken(parts, group, path):
        raise ValueError("it has other tensors")

    with monkeypatch.context() as patch:
        patch.setattr(recovered._Parts, "_read", broken)
        result = recover(pruned_dir, model_dir, out, text_file, "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["resumed"] == 0


def test_a_part_that_lost_a_zero_is_refused(
    pruned_dir, model_dir, text_file, tmp_path, monkeypatch
):
    with monkeypatch.context() as patch:
        stop_after(patch, 1)
        recover(pruned_dir, model_dir, tmp_path / "out", text_file, "--dtype", "float32")
    from safetensors.torch import load_file

    from flashsparse_plugin.loading import load_model
    from flashsparse_plugin.modules import linear_modules

    part = tmp_path / "out.partial" / "part-00001.safetensors"
    group = sorted(set(load_file(part)) - {"errors"})
    model = load_model(pruned_dir, "float32")

    class Stage:
        finished = ()

    parts = recovered._Parts(Stage(), model, [group])
    assert [fit.name for fit in parts._read(group, part)] == group
    weight = linear_modules(model)[group[0]].weight
    weight.data[weight.ne(0).nonzero()[0].tolist()] = 0
    with pytest.raises(ValueError, match="has lost zeros"):
        parts._read(group, part)


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (["--ridge", "0"], 2, "above 0"),
        (["--rank", "4"], 2, "this is for --method lora"),
        ([*LORA, "--ridge", "1"], 2, "this is for --method least-squares"),
        ([*LORA, "--rank", "0"], 2, "1 or more"),
        ([*LORA, "--rank", "999"], 1, "is not low-rank for any layer"),
        (["--length", "100000"], 1, "tokens"),
        (["--calibration", "/nowhere.txt"], 2, "/nowhere.txt"),
    ],
)
def test_what_fails_leaves_nothing_behind(
    pruned_dir, model_dir, text_file, tmp_path, change, code, message
):
    result = recover(pruned_dir, model_dir, tmp_path / "out", text_file, *change)
    assert result.exit_code == code and message in result.stderr
    assert "Traceback" not in result.stderr and list(tmp_path.iterdir()) == []


def test_no_room_for_the_first_word(pruned_dir, model_dir, text_file, tmp_path, monkeypatch):
    def full(self, text):
        self.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(Path, "write_text", full)
        result = recover(pruned_dir, model_dir, tmp_path / "out", text_file)
    assert result.exit_code == 1 and "no space left for" in result.stderr
    assert recover(pruned_dir, model_dir, tmp_path / "out", text_file).exit_code == 0


def test_swapped_models_are_refused(pruned_dir, model_dir, text_file, tmp_path):
    """The dense model bent towards the pruned one would be neither."""
    result = recover(model_dir, pruned_dir, tmp_path / "out", text_file)
    swapped = (
        f"Remedy: swap them: flashsparse recover {pruned_dir} {model_dir} OUT --calibration TEXT"
    )
    assert result.exit_code == 1 and swapped in result.stderr
    result = recover(pruned_dir, pruned_dir, tmp_path / "out", text_file)
    assert result.exit_code == 1 and "the second the dense one" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_short_calibration_is_told(pruned_dir, model_dir, text_file, tmp_path):
    few = ["--samples", "1", "--length", "16"]
    result = recover(pruned_dir, model_dir, tmp_path / "out", text_file, *few)
    assert "has 16 tokens, fewer than the 48 inputs of down_proj" in result.stderr
    result = recover(pruned_dir, model_dir, tmp_path / "more", text_file)
    assert "fewer than" not in result.stderr


def test_models_that_do_not_belong_together(pruned_dir, model_dir, text_file, tmp_path):
    result = recover(model_dir, model_dir, tmp_path / "out", text_file)
    assert result.exit_code == 1 and "no layer of the pruned model has zeros" in result.stderr
    other = tmp_path / "other"
    shutil.copytree(model_dir, other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"quantization_config": {}}))
    config["quantization_config"] = {"quant_method": "flashsparse"}
    (other / "config.json").write_text(json.dumps(config))
    result = recover(pruned_dir, other, tmp_path / "out", text_file)
    assert result.exit_code == 1 and "is packed already" in result.stderr


@pytest.mark.parametrize("architecture", ["MixtralForCausalLM", "GptOssForCausalLM"])
def test_a_mixture_is_pruned_recovered_and_packed(architecture, text_file, tmp_path, monkeypatch):
    """Whose files have experts by themselves, and in one tensor."""
    monkeypatch.chdir(tmp_path)
    families.build(architecture).save_pretrained("dense")
    character_tokenizer().save_pretrained("dense")
    calibration = ["--calibration", text_file, *WINDOWS]
    result = flashsparse("prune", "dense", "pruned", "--pattern", "2:4", *calibration)
    assert result.exit_code == 0, result.stderr
    assert "experts.gate_proj" in result.stdout and "--method least-squares" in result.stdout
    result = flashsparse(
        "recover", "pruned", "dense", "out", "--method", "least-squares", *calibration, "--json"
    )
    assert result.exit_code == 0, result.stderr
    fits = {fit["name"]: fit for fit in json.loads(result.stdout)["fits"]}
    own = [fit for name, fit in fits.items() if ".experts." in name]
    assert len(own) == 24 and any(fit["after"] < 0.9 * fit["before"] for fit in own)
    before, after = load_all(tmp_path / "pruned"), load_all(tmp_path / "out")
    assert before.keys() == after.keys()
    assert all(after[name][tensor == 0].eq(0).all() for name, tensor in before.items())
    result = flashsparse("convert", "out", "packed", "--format", "2:4")
    assert result.exit_code == 0, result.stderr
    result = flashsparse("inspect", "packed", "--json")
    kinds = [x["kind"] for x in json.loads(result.stdout)["layers"] if x["scheme"]]
    assert sum(kind.startswith("experts.") for kind in kinds) == 24
