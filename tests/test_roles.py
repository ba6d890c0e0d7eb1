# SPDX-License-Identifier: Apache-2.0
"""Which linear layers are routers and output heads, in the models of transformers as they are.

Models are built on the meta device with seven experts, a number that no other layer has for its
rows: a layer with seven rows is a router, whatever it is called.
"""

import os
import re
from pathlib import Path

import pytest
import torch
import transformers
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from flashsparse_plugin.modules import linear_modules, shape_of
from flashsparse_plugin.pruning import prunable_linears
from flashsparse_plugin.roles import HEAD, ROUTER, called_head, called_router, kept_dense

EXPERTS = 7
COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
# What some families route to beside their experts: nothing (Zaya), and copies of the input.
MORE = {"zaya": 1, "longcat_flash": 256}
# What a default configuration lacks.
LACKING = {
    "dbrx": dict(
        attn_config=dict(rope_theta=1e4, clip_qkv=8.0), ffn_config=dict(moe_num_experts=7)
    ),
    "hunyuan_v1_moe": dict(head_dim=128),
    "gemma4_text": dict(
        enable_moe_block=True, num_experts=7, top_k_experts=2, moe_intermediate_size=64
    ),
    "lfm2_moe": dict(layer_types=["full_attention"] * 3, num_hidden_layers=3, num_dense_layers=1),
    "dots1": dict(n_routed_experts=7, n_shared_experts=1),
    "qwen4_exp_text": dict(
        indexer_n_heads=2,
        indexer_kv_heads=1,
        indexer_head_dim=256,
        indexer_budget=64,
        indexer_compress_ratio=4,
    ),
    "doge": dict(is_moe=True),
}
# The linear routers of each family whose routers are linear layers.
NAMES = {
    "afmoe": {"mlp.router.gate"},
    "dbrx": {"ffn.router.layer"},
    "doge": {"mlp.router_gate"},
    "gemma4_text": {"router.proj"},
    "gemma3n_text": {"altup.modality_router"},
    "hunyuan_v1_moe": {"mlp.gate.wg"},
    "jamba": {"feed_forward.router"},
    "jetmoe": {"mlp.router.layer", "self_attention.experts.router.layer"},
    "longcat_flash": {"mlp.router.classifier"},
    "nllb-moe": {"ffn.router.classifier"},
    "qwen2_moe": {"mlp.shared_expert_gate"},
    "qwen3_5_moe_text": {"mlp.shared_expert_gate"},
    "qwen4_exp_text": {"mlp.shared_expert_gate"},
    "qwen3_next": {"mlp.shared_expert_gate"},
    "switch_transformers": {"mlp.router.classifier"},
    "zaya": {
        "mlp.gate.down_proj",
        "mlp.gate.router_mlp.fc1",
        "mlp.gate.router_mlp.fc2",
        "mlp.gate.router_mlp.out_proj",
    },
}


def build(model_type):
    config = AutoConfig.for_model(model_type, **LACKING.get(model_type, {}))
    for part in (config, *vars(config).values()):
        if isinstance(part, transformers.PretrainedConfig):
            for name in COUNTS:
                if isinstance(getattr(part, name, None), int):
                    setattr(part, name, EXPERTS)
    mapping = transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    kind = AutoModelForCausalLM if type(config) in mapping else AutoModel
    with torch.device("meta"):
        return kind.from_config(config)


def kinds(names):
    """The last parts of names after the number of their layer."""
    return {re.sub(r"^.*?\.\d+\.(layer\.\d+\.)?", "", name) for name in names}


@pytest.mark.parametrize("model_type", NAMES)
def test_the_routers_of_a_family_are_kept_dense(model_type):
    model = build(model_type)
    kept = kept_dense(model, ["lm_head"])
    assert kinds(name for name, why in kept.items() if why == ROUTER) == NAMES[model_type]
    assert not kept.keys() & prunable_linears(model).keys()


def mixtures():
    """Model types whose code speaks of experts."""
    folder = Path(transformers.__file__).parent / "models"
    for model_type in transformers.CONFIG_MAPPING:
        name = transformers.models.auto.configuration_auto.model_type_to_module_name(model_type)
        files = list((folder / name).glob("modeling_*.py"))
        if any("xperts" in file.read_text() for file in files):
            yield model_type


@pytest.mark.slow
def test_no_router_of_any_mixture_of_transformers_is_pruned(monkeypatch):
    monkeypatch.setitem(os.environ, "HF_HUB_OFFLINE", "1")
    built, wrong = [], []
    for model_type in mixtures():
        try:
            model = build(model_type)
        except Exception:  # the default configuration of some makes no model
            continue
        built.append(model_type)
        rows = (1, EXPERTS, EXPERTS + MORE.get(model_type, 0))
        chosen = prunable_linears(model)
        wrong += [f"{model_type}: {n}" for n, x in chosen.items() if shape_of(x)[0] in rows]
        ours = [name for name, why in kept_dense(model).items() if why == ROUTER]
        few = max((shape_of(model.get_submodule(name))[0] for name in ours), default=0)
        assert few <= 512, f"{model_type}: what is taken for a router has {few} rows"
    assert not wrong
    assert len(built) >= 50


class Experts(nn.ModuleList):
    pass


def test_what_has_as_many_rows_as_there_are_experts_is_told_by_what_it_stands_beside():
    block = nn.Module()
    block.experts = Experts(nn.Linear(16, 8) for _ in range(4))
    block.switch = nn.Linear(16, 4)
    block.always = nn.Linear(16, 1)
    block.mix = nn.Linear(16, 16)
    block.shared = nn.Sequential(nn.Linear(16, 4), nn.Linear(4, 16))
    model = nn.Module()
    model.block, model.other = block, nn.Linear(16, 4)
    assert kept_dense(model) == {"block.switch": ROUTER, "block.always": ROUTER}


def test_heads_of_every_task():
    small = dict(vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=2)
    bert = transformers.BertConfig(**small, intermediate_size=48)
    llama = transformers.LlamaConfig(**small, intermediate_size=48, tie_word_embeddings=False)
    vision = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48)
    clip = transformers.CLIPConfig(text_config=vision, vision_config=vision)
    wanted = {
        transformers.BertModel: (bert, set()),
        transformers.BertForMaskedLM: (bert, {"cls.predictions.decoder"}),
        transformers.BertForSequenceClassification: (bert, {"classifier"}),
        transformers.BertForQuestionAnswering: (bert, {"qa_outputs"}),
        transformers.RobertaForSequenceClassification: (
            transformers.RobertaConfig(**small, intermediate_size=48),
            {"classifier.dense", "classifier.out_proj"},
        ),
        transformers.LlamaForCausalLM: (llama, {"lm_head"}),
        transformers.LlamaForSequenceClassification: (llama, {"score"}),
        transformers.ViTForImageClassification: (transformers.ViTConfig(**vision), {"classifier"}),
        transformers.CLIPModel: (clip, set()),
        transformers.CLIPForImageClassification: (clip, {"classifier"}),
    }
    for kind, (config, heads) in wanted.items():
        with torch.device("meta"):
            model = kind(config)
        assert kept_dense(model, ["lm_head"]) == dict.fromkeys(heads, HEAD), kind
        assert not kept_dense(model, []), kind  # an emptied list leaves nothing dense but routers
        assert heads <= linear_modules(model).keys()


@pytest.mark.parametrize(
    ("name", "replicated", "wanted"),
    [
        ("model.layers.0.mlp.gate", True, True),
        ("model.layers.3.block_sparse_moe.gate", True, True),
        ("model.layers.0.feed_forward.router", True, True),
        ("model.layers.0.mlp.shared_expert_gate", True, True),
        ("model.layers.0.mlp.text_experts_gate", True, True),
        ("model.layers.0.per_layer_input_gate", True, False),
        ("model.layers.0.mlp.gate_up_proj", False, False),
        ("model.layers.0.mlp.gate", False, False),
        ("model.layers.0.self_attn.kv_a_proj_with_mqa", True, False),
    ],
)
def test_engines_routers_go_by_name(name, replicated, wanted):
    assert called_router(name, replicated) is wanted


def test_engines_heads_go_by_name():
    assert called_head("score", ["lm_head"])
    assert called_head("model.classifier", ["lm_head"])
    assert not called_head("score", [])
    assert not called_head("model.layers.0.mlp.down_proj", ["lm_head"])
