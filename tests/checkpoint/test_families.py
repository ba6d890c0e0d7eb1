# SPDX-License-Identifier: Apache-2.0
"""convert_checkpoint on families whose names, heads or layers are not those of a Llama."""

import json

import families
import pytest
import torch
import transformers
from checkpoints import load_all, quantization
from safetensors.torch import load_file, save_file
from transformers import DbrxConfig, DbrxForCausalLM, conversion_mapping
from transformers.core_model_loading import WeightRenaming

from flashsparse_plugin.checkpoint import (
    CheckpointError,
    ModelDirectory,
    convert_checkpoint,
    inspect_checkpoint,
)
from flashsparse_plugin.checkpoint.read.linears import StoredModel
from flashsparse_plugin.checkpoint.read.renaming import Names
from flashsparse_plugin.linear import SparseLinear


@pytest.fixture
def dense(architecture, tmp_path):
    """A pruned model of the family that the test is parametrized with, on disk."""
    families.build(architecture).save_pretrained(tmp_path / "dense")
    return tmp_path / "dense"


def load(path):
    name = json.loads((path / "config.json").read_text())["architectures"][0]
    return getattr(transformers, name).from_pretrained(path, output_loading_info=True)


@pytest.mark.parametrize(
    ("architecture", "head"),
    [
        ("WhisperForConditionalGeneration", "proj_out"),
        ("BioGptForCausalLM", "output_projection"),
        ("BertForMaskedLM", "cls.predictions.decoder"),
        ("DistilBertForMaskedLM", "vocab_projector"),
        ("ModernBertForMaskedLM", "decoder"),
        ("ElectraForMaskedLM", "generator_lm_head"),
        ("DebertaForMaskedLM", "cls.predictions.decoder"),
        ("Zamba2ForCausalLM", "lm_head"),
    ],
)
def test_a_tied_layer_of_any_name_loads(dense, architecture, head, tmp_path):
    report = convert_checkpoint(dense, tmp_path / "out", pack_all=True)
    layers = {layer.name: layer for layer in report.layers}
    assert "tied to" in layers[head].reason
    _, told = load(tmp_path / "out")
    assert not any(told.values()), told


@pytest.mark.parametrize(
    ("architecture", "name", "stored"),
    [
        (
            "LlavaForConditionalGeneration",
            "model.language_model.layers.0.mlp.up_proj",
            "language_model.model.layers.0.mlp.up_proj",
        ),
        (
            "Qwen2_5_VLForConditionalGeneration",
            "model.language_model.layers.0.mlp.up_proj",
            "model.layers.0.mlp.up_proj",
        ),
        (
            "Gemma3ForConditionalGeneration",
            "model.language_model.layers.0.mlp.up_proj",
            "language_model.model.layers.0.mlp.up_proj",
        ),
        (
            "ViTForImageClassification",
            "vit.layers.0.attention.q_proj",
            "vit.encoder.layer.0.attention.attention.query",
        ),
    ],
)
def test_names_on_disk_that_are_not_those_of_modules(dense, architecture, name, stored, tmp_path):
    report = convert_checkpoint(dense, tmp_path / "out", pack_all=True)
    reasons = {layer.reason for layer in report.layers}
    assert reasons <= {
        None,
        "ignored by name",
        "tied to model.language_model.embed_tokens.weight",
        "nn.MultiheadAttention reads its weight itself",
    }
    assert name in {layer.name for layer in report.packed}
    assert f"{stored}.weight_packed" in load_all(tmp_path / "out")
    _, told = load(tmp_path / "out")
    assert not any(told.values()), told


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        ("FalconForCausalLM", "transformer.h.0.mlp.dense_h_to_4h"),
        ("GPT2LMHeadModel", "transformer.h.0.attn.c_attn"),
        ("OpenAIGPTLMHeadModel", "transformer.h.0.attn.c_attn"),
    ],
)
def test_layers_that_are_nn_linear_in_all_but_name(dense, architecture, name, tmp_path):
    """Conv1D keeps its weight transposed; packed it is [out_features, in_features] as any other."""
    report = convert_checkpoint(dense, tmp_path / "out", pack_all=True)
    assert [layer.name for layer in report.layers if not layer.is_packed] == ["lm_head"]
    weight = load(dense)[0].get_submodule(name).weight
    packed = load(tmp_path / "out")[0].get_submodule(name)
    expected = weight if architecture == "FalconForCausalLM" else weight.T
    assert packed.shape == expected.shape and torch.equal(packed.weight, expected)


@pytest.mark.parametrize("architecture", ["RwkvForCausalLM"])
def test_a_head_of_another_name_stays_dense(dense, tmp_path):
    report = convert_checkpoint(dense, tmp_path / "out", pack_all=True)
    assert {x.name: x.reason for x in report.layers if x.reason} == {"head": "ignored by name"}
    assert quantization(tmp_path / "out")["layers"].keys() == {"head"}


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM"])
def test_a_checkpoint_that_could_not_be_loaded_is_not_written(dense, tmp_path, monkeypatch):
    """Names that transformers renames by their end, which packed tensors have not."""
    renaming = [WeightRenaming(r"\.w1\.weight$", ".up_proj.weight")]
    monkeypatch.setitem(_mapping(), "llama", renaming)
    tensors = load_file(dense / "model.safetensors")
    renamed = {name.replace("up_proj", "w1"): tensor for name, tensor in tensors.items()}
    save_file(renamed, dense / "model.safetensors", {"format": "pt"})
    (linear,) = (x for x in StoredModel(ModelDirectory(dense)).linears if "0.mlp.up" in x.name)
    assert linear.stored == "model.layers.0.mlp.w1"
    with pytest.raises(
        CheckpointError, match=r"so that it loads: layer 'model.*up_proj'.*w1.*--ig"
    ):
        convert_checkpoint(dense, tmp_path / "out")
    assert not list(tmp_path.glob("out*"))
    # as the message says
    convert_checkpoint(dense, tmp_path / "out", ignore=["lm_head", "up_proj"])
    assert not any(load(tmp_path / "out")[1].values())


def _mapping():
    conversion_mapping.get_checkpoint_conversion_mapping("llama")  # fills the cache
    return conversion_mapping._checkpoint_conversion_mapping_cache


@pytest.mark.parametrize("architecture", ["MixtralForCausalLM", "GptOssForCausalLM"])
def test_experts_are_known_by_what_they_are(dense, architecture):
    names = {info.name for info in StoredModel(ModelDirectory(dense)).experts()}
    parts = {name.split(".experts.")[1].lstrip("0123456789.") for name in names}
    if architecture == "MixtralForCausalLM":
        assert parts == {"w1.weight", "w2.weight", "w3.weight"} and len(names) == 2 * 4 * 3
    else:
        assert parts == {"gate_up_proj", "down_proj"} and len(names) == 4


def test_experts_below_each_other_are_known_too(tmp_path):
    """DBRX has the matrices of a layer's experts in one of two dimensions."""
    heads = {"attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 1e4}}
    experts = {"ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2}}
    config = DbrxConfig(d_model=64, n_heads=4, n_layers=2, vocab_size=64, **heads, **experts)
    DbrxForCausalLM(config).save_pretrained(tmp_path)
    directory = ModelDirectory(tmp_path)
    found = [info.name for info in StoredModel(directory).experts()]
    assert found == [name for name in directory.tensors if ".experts." in name] and len(found) == 6
    assert inspect_checkpoint(tmp_path).bytes_experts == 6 * 4 * 48 * 64 * 4


@pytest.mark.parametrize("architecture", ["ViTForImageClassification", "SiglipModel"])
def test_tensors_of_three_dimensions_are_no_experts(dense, architecture):
    directory = ModelDirectory(dense)
    assert any(len(info.shape) == 3 for info in directory.tensors.values())
    assert StoredModel(directory).experts() == []


@pytest.mark.parametrize("architecture", ["JambaForCausalLM"])
def test_routers_stay_dense(dense, tmp_path):
    report = convert_checkpoint(dense, tmp_path / "out", pack_all=True)
    reasons = {x.name: x.reason for x in report.layers if "router" in x.name}
    assert reasons and set(reasons.values()) == {"router"}
    stored = quantization(tmp_path / "out")["layers"]
    assert {stored[name]["reason"] for name in reasons} == {"router"}
    for path in (dense, tmp_path / "out"):
        inspected = {x.name: x.reason for x in inspect_checkpoint(path).layers}
        assert {inspected[name] for name in reasons} == {"router"}
    model, _ = load(tmp_path / "out")
    assert {type(model.get_submodule(name)) for name in reasons} == {torch.nn.Linear}


@pytest.mark.parametrize("architecture", ["JambaForCausalLM"])
def test_a_router_that_is_named_is_packed_and_one_that_is_packed_loads(dense, tmp_path):
    """As in checkpoints that were made before routers were left out, where nothing names it."""
    stored = StoredModel(ModelDirectory(dense))
    named = {name: {"format": "tiled_csl"} for name in stored.routers()}
    assert named
    convert_checkpoint(dense, tmp_path / "out", format="tiled_csl", layers=named, pack_all=True)
    config = json.loads((tmp_path / "out/config.json").read_text())
    for name in named:
        del config["quantization_config"]["layers"][name]
    (tmp_path / "out/config.json").write_text(json.dumps(config))
    model, told = load(tmp_path / "out")
    assert not any(told.values()), told
    dense_model, _ = load(dense)
    for name in named:
        assert isinstance(model.get_submodule(name), SparseLinear)
        assert torch.equal(model.get_submodule(name).weight, dense_model.get_submodule(name).weight)


def test_a_fused_tensor_is_split_once_to_pack_its_parts_and_once_to_check_them(
    tmp_path, monkeypatch
):
    cycles = {"num_layers_per_stack": 1, "H_cycles": 1, "L_cycles": 1}
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "head_dim": 16}
    config = transformers.HrmTextConfig(vocab_size=96, num_hidden_layers=2, **cycles, **sizes)
    transformers.HrmTextForCausalLM(config).save_pretrained(tmp_path / "dense")
    parts, split = Names.parts, []

    def counted(self, key, tensor):
        split.extend([key] * (tensor.device.type != "meta"))
        return parts(self, key, tensor)

    monkeypatch.setattr(Names, "parts", counted)
    report = convert_checkpoint(tmp_path / "dense", tmp_path / "out", pack_all=True)
    fused = [name for name in ModelDirectory(tmp_path / "dense").tensors if "gqkv" in name]
    assert fused and len(report.packed) > 3 * len(fused)
    assert all(split.count(name) <= 2 for name in fused), split
