# SPDX-License-Identifier: Apache-2.0
"""What is no model that we read is explained in the same words by every command."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from transformers import MixtralConfig, MixtralForCausalLM
from typer.testing import CliRunner

from flashsparse_plugin.cli import app


def pickled(path):
    torch.save(load_file(path / "model.safetensors"), path / "pytorch_model.bin")
    (path / "model.safetensors").unlink()


def gguf(path):
    for file in ("model.safetensors", "config.json"):
        (path / file).unlink()
    (path / "tiny-Q4_0.gguf").write_bytes(b"GGUF")


def unmarked(path):
    """Packed, and config.json has forgotten it."""
    packed = path.with_name("packed")
    result = CliRunner().invoke(app, ["convert", str(path), str(packed), "--pack-all"])
    assert result.exit_code == 0, result.stderr
    config = json.loads((packed / "config.json").read_text())
    del config["quantization_config"]
    (packed / "config.json").write_text(json.dumps(config))
    shutil.rmtree(path)
    packed.rename(path)


def strange(path):
    """A model_type that transformers does not know, and code that is not run."""
    config = json.loads((path / "config.json").read_text())
    config |= {"model_type": "strange", "architectures": ["StrangeForCausalLM"]}
    config["auto_map"] = {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}
    (path / "config.json").write_text(json.dumps(config))
    (path / "code.py").write_text("raise SystemExit('code of a stranger was run')")


def quantized(path):
    """By a tool whose codes are not read."""
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    (path / "config.json").write_text(json.dumps(config))


EXPLAINED = {
    quantized: ["is quantized already (quant_method 'gptq' in config", "float32, before it was"],
    strange: ["cannot build the model of", "bring their own code are not supported"],
    pickled: ["pytorch_model.bin", "only safetensors", "import LlamaForCausalLM as M"],
    gguf: ["tiny-Q4_0.gguf is a GGUF file", "gguf_file='tiny-Q4_0.gguf'"],
    unmarked: ["is packed by flashsparse", "no quantization_config"],
    None: ["no directory example/tiny is here", "HF_HUB_OFFLINE keeps it from being fetched"],
}


@pytest.mark.parametrize("change", EXPLAINED, ids=lambda change: getattr(change, "__name__", "hub"))
def test_every_command_says_the_same(change, model_dir, text_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = "example/tiny"
    if change is not None:
        model = str(shutil.copytree(model_dir, tmp_path / "model"))
        change(tmp_path / "model")
    told = set()
    for command in (
        ["convert", model, "out"],
        ["inspect", model],
        ["prune", model, "out", "--method", "magnitude"],
        ["generate", model, "--prompt", "a"],
        ["calibrate", model, "--text", str(text_file), "--dry-run"],
        ["tune", model, "--estimate", "H200"],
    ):
        result = CliRunner().invoke(app, command)
        assert result.exit_code in (1, 2), command
        text = result.stderr
        assert [word for word in EXPLAINED[change] if word not in text] == [], (command, text)
        told.add(text[text.index(EXPLAINED[change][0]) :].strip(" │╯╰─\n"))
    assert len(told) == 1 and len(*told) < 600, told
    assert not (tmp_path / "out").exists()


def test_experts_that_stay_dense_are_told_of(tmp_path):
    settings = dict(hidden_size=64, intermediate_size=64, num_hidden_layers=1, vocab_size=64)
    heads = dict(num_attention_heads=4, num_key_value_heads=2, num_local_experts=2)
    path = tmp_path / "mixtral"
    MixtralForCausalLM(MixtralConfig(**settings, **heads)).bfloat16().save_pretrained(path)
    result = CliRunner().invoke(app, ["inspect", str(path)])
    assert result.exit_code == 0, result.stderr
    told = " ".join((result.stdout + result.stderr).split())
    assert "Note: The weights of experts stay as they are (49.2 kB, " in told
    assert "larger packed than dense" in told


def test_a_tokenizer_that_brings_code_is_refused_without_asking(model_dir, tmp_path):
    path = shutil.copytree(model_dir, tmp_path / "model")
    config = json.loads((path / "tokenizer_config.json").read_text())
    config |= {"tokenizer_class": "Strange", "auto_map": {"AutoTokenizer": ["code.Strange", None]}}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    (path / "code.py").write_text("raise SystemExit('code of a stranger was run')")
    result = CliRunner().invoke(app, ["generate", str(path), "--prompt", "a"], input="y\n")
    assert result.exit_code == 1, result.output
    assert "has no tokenizer that transformers can load" in " ".join(result.stderr.split())
    assert "run this custom code" not in result.stdout
