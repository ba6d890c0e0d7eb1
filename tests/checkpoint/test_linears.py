# SPDX-License-Identifier: Apache-2.0
"""find_linears: which tensors belong to nn.Linear modules, told by the model and not by names."""

import json
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_causal_lms import CONFIGS, tiny_model

from flashsparse_plugin.checkpoint import CheckpointError, ModelDirectory
from flashsparse_plugin.checkpoint.read.linears import StoredModel, find_linears, kind_of

GATED = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"}
OPT = {"q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2", "lm_head"}
KINDS = {
    "glm4": {"q_proj", "k_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj", "lm_head"},
    "gpt_neox": {"query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h", "lm_head"},
    "opt": OPT,
    "opt-projected": OPT | {"project_in", "project_out"},
    "phi3": {"qkv_proj", "o_proj", "gate_up_proj", "down_proj", "lm_head"},
}


def save(name, path):
    tiny_model(name).save_pretrained(path)
    return path, KINDS.get(name, GATED)


def rename(path, change):
    tensors = load_file(path / "model.safetensors")
    save_file({change(k): v for k, v in tensors.items()}, path / "model.safetensors")


@pytest.mark.parametrize("name", CONFIGS)
def test_all_linears_of_the_model_and_nothing_else(name, tmp_path):
    path, kinds = save(name, tmp_path)
    directory = ModelDirectory(path)
    stored = StoredModel(directory)
    linears = stored.linears
    assert {linear.kind for linear in linears} == kinds
    for linear in linears:
        if linear.stored is not None:
            assert directory.tensors[f"{linear.stored}.weight"].shape == linear.shape
    weights = {f"{linear.stored}.weight" for linear in linears}
    matrices = {name for name, info in directory.tensors.items() if len(info.shape) == 2}
    assert all("embed" in other for other in matrices - weights)
    assert stored.experts() == []


@pytest.mark.parametrize("tied", [True, False])
def test_a_tied_head_is_known(tied, tmp_path):
    path, _ = save("llama-tied" if tied else "llama", tmp_path)
    head = find_linears(ModelDirectory(path))[-1]
    assert head.name == "lm_head"
    assert head.tied_to == ("model.embed_tokens.weight" if tied else None)
    assert head.stored == (None if tied else "lm_head")


def test_names_without_the_base_models_prefix(tmp_path):
    path, _ = save("llama", tmp_path)
    rename(path, lambda name: name.removeprefix("model."))
    first = find_linears(ModelDirectory(path))[0]
    assert first.name == "model.layers.0.self_attn.q_proj"
    assert first.stored == "layers.0.self_attn.q_proj"


def test_names_with_a_prefix_that_the_model_lacks(tmp_path):
    path, _ = save("llama", tmp_path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"architectures": ["LlamaModel"]}))
    first = find_linears(ModelDirectory(path))[0]
    assert first.name == "layers.0.self_attn.q_proj"
    assert first.stored == "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize("architectures", [["pipeline"], ["sys"], [3], "x", None, ["No"]])
def test_nonsense_for_architectures_is_not_followed(architectures, tmp_path):
    path, kinds = save("llama", tmp_path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"architectures": architectures}))
    assert {linear.kind for linear in find_linears(ModelDirectory(path))} == kinds


def test_shape_against_config(tmp_path):
    path, _ = save("llama", tmp_path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"intermediate_size": 40}))
    with pytest.raises(CheckpointError, match=r"gate_proj.*\[48, 32\].*\[40, 32\]"):
        find_linears(ModelDirectory(path))


def test_a_model_of_other_names(tmp_path):
    path, _ = save("llama", tmp_path)
    rename(path, lambda name: f"other.{name}")
    with pytest.raises(CheckpointError, match="weight for none of them"):
        find_linears(ModelDirectory(path))


def test_a_model_that_transformers_does_not_know(tmp_path):
    path, _ = save("llama", tmp_path)
    auto = {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}
    (path / "code.py").write_text("raise SystemExit('code of a stranger was run')")
    (path / "config.json").write_text(json.dumps({"model_type": "strange", "auto_map": auto}))
    with pytest.raises(CheckpointError, match="cannot build the model"):
        find_linears(ModelDirectory(path))


def test_without_transformers(tmp_path, monkeypatch):
    path, _ = save("llama", tmp_path)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(CheckpointError, match="pip install transformers"):
        find_linears(ModelDirectory(path))


def test_a_subclass_of_linear_is_told_apart(tmp_path, monkeypatch):
    class Other(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x) + 1

    from transformers.models.llama import modeling_llama

    path, _ = save("llama", tmp_path)
    init = modeling_llama.LlamaMLP.__init__

    def with_other(self, config):
        init(self, config)
        self.up_proj = Other(config.hidden_size, config.intermediate_size, bias=False)

    monkeypatch.setattr(modeling_llama.LlamaMLP, "__init__", with_other)
    why = {linear.kind: linear.why_dense for linear in find_linears(ModelDirectory(path))}
    assert why.pop("up_proj") == "its class Other may compute something else than nn.Linear"
    assert set(why.values()) == {None}


@pytest.mark.parametrize(
    ("name", "kind"),
    [("model.layers.0.mlp.up_proj", "up_proj"), ("lm_head", "lm_head"), ("a.gate.0", "gate.0")],
)
def test_kind(name, kind):
    assert kind_of(name) == kind
