# SPDX-License-Identifier: Apache-2.0
"""Mixtures with packed experts: converted, loaded, packed while loading, saved, unpacked."""

import json
import shutil

import pytest
import torch
import transformers
from checkpoints import edit_weights, load_all
from families import FAMILIES
from test_every_family import class_of, small
from torch import nn
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM

import flashsparse_plugin as fs
from flashsparse_plugin.checkpoint import (
    CheckpointError,
    convert_checkpoint,
    inspect_checkpoint,
    unpack_checkpoint,
)
from flashsparse_plugin.experts.layer import PackedStack, activation_of, sparse_experts
from flashsparse_plugin.formats import get_format
from flashsparse_plugin.modules import linear_modules, weight_of
from flashsparse_plugin.pruning import prune, prune_weight
from flashsparse_plugin.pruning.experts import expert_views

NM = get_format("nm_vector")
IDS = torch.tensor([[5, 9, 33, 70, 12, 8], [1, 2, 3, 4, 5, 6]])
_DEEPSEEK = {**FAMILIES["DeepseekV3ForCausalLM"], "model_type": "deepseek_v2"}
MORE = {
    "DeepseekV2ForCausalLM": {**_DEEPSEEK, "topk_method": "greedy"},
    "Glm4MoeForCausalLM": {**FAMILIES["Qwen3MoeForCausalLM"], "model_type": "glm4_moe"}
    | dict(n_group=1, topk_group=1, first_k_dense_replace=1, n_shared_experts=1),
    "Qwen2MoeForCausalLM": {**FAMILIES["Qwen3MoeForCausalLM"], "model_type": "qwen2_moe"},
    "FlexOlmoForCausalLM": {**FAMILIES["OlmoeForCausalLM"], "model_type": "flex_olmo"},
    "PhimoeForCausalLM": {**FAMILIES["MixtralForCausalLM"], "model_type": "phimoe"},
    "MiniMaxM2ForCausalLM": {**FAMILIES["Qwen3MoeForCausalLM"], "model_type": "minimax_m2"},
}
IN_ONE_TENSOR = ("GraniteMoeForCausalLM", "GptOssForCausalLM")
"""Families whose files have all experts of a layer in one tensor; gpt-oss's transposed, with the
columns of gate and up by turns."""
MIXTURES = {
    name: FAMILIES.get(name) or MORE[name]
    for name in (
        "MixtralForCausalLM",
        "Qwen3MoeForCausalLM",
        "OlmoeForCausalLM",
        "DeepseekV3ForCausalLM",
        *MORE,
        *IN_ONE_TENSOR,
    )
}
INT8 = {"n": 2, "m": 4, "values": "int8"}


def made(architecture, path, options=None, dtype=torch.bfloat16):
    """A tiny mixture that is 2:4 in every weight, experts too, and saved."""
    settings = dict(MIXTURES[architecture])
    scheme = NM.scheme(dtype, options or {"n": 2, "m": 4})
    torch.manual_seed(0)
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    model = AutoModelForCausalLM.from_config(config).to(dtype).eval()
    with torch.no_grad():
        for view in expert_views(model).values():
            weight = view.weight.normal_(std=0.1)
            weight.copy_(NM.conform(weight.contiguous(), scheme))
            if view.owner.has_bias:
                view.owner.down_proj_bias.normal_()
                view.owner.gate_up_proj_bias.normal_()
        for layer in linear_modules(model).values():
            weight = weight_of(layer)
            weight.copy_(NM.conform(weight.contiguous(), scheme))
    model.save_pretrained(path)
    return path


def without_zeros(tensors, names):
    """Fills tensors, so that no pattern holds their experts."""
    for name in names:
        tensors[name] = torch.rand_like(tensors[name]) + 0.5


def load(path, config=None, **given):
    model = AutoModelForCausalLM.from_pretrained(
        path, quantization_config=config, dtype=torch.float32, **given
    )
    if config is None:
        model.set_experts_implementation("eager")
    return model


@torch.no_grad()
def logits(model):
    return model(IDS).logits


@pytest.fixture(scope="module")
def pruned(tmp_path_factory):
    return made("Qwen3MoeForCausalLM", tmp_path_factory.mktemp("moe") / "dense")


@pytest.fixture(scope="module")
def packed(pruned, tmp_path_factory):
    out = tmp_path_factory.mktemp("moe") / "packed"
    convert_checkpoint(pruned, out, format="2:4-int8")
    return out


@pytest.mark.parametrize("architecture", MIXTURES)
def test_a_packed_mixture_is_the_dense_pruned_one(architecture, tmp_path):
    dense = made(architecture, tmp_path / "dense", INT8)
    report = convert_checkpoint(dense, tmp_path / "packed", format="2:4-int8")
    experts = [layer for layer in report.layers if layer.kind.startswith("experts.")]
    assert experts and all(layer.is_packed for layer in experts) and not report.warnings
    unpack_checkpoint(tmp_path / "packed", tmp_path / "back")
    assert load_all(tmp_path / "back").keys() == load_all(dense).keys()

    reference = load(tmp_path / "back")
    model, info = AutoModelForCausalLM.from_pretrained(
        tmp_path / "packed", dtype=torch.float32, output_loading_info=True
    )
    assert not any(info.values())
    assert len([*sparse_experts(model)]) == len(
        {x.name.rpartition(".experts.")[0] for x in experts}
    )
    exact = logits(load(tmp_path / "back").double())  # float32 errs by as much as ours may
    assert (logits(model) - exact).norm() < 2e-6 * exact.norm()
    tokens = [m.generate(IDS, max_new_tokens=4, do_sample=False) for m in (model, reference)]
    assert torch.equal(*tokens)

    model.save_pretrained(tmp_path / "saved")
    before, after = load_all(tmp_path / "packed"), load_all(tmp_path / "saved")
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert name.endswith("norm.weight") or torch.equal(tensor, after[name].to(tensor.dtype)), (
            name
        )


@pytest.mark.parametrize("format", ["2:4", "tiled_csl"])
def test_a_dense_mixture_is_packed_while_it_loads(format, pruned):
    """Streams, whose lengths differ from expert to expert, too."""
    model = load(pruned, fs.FlashSparseConfig(format=format, dtype="bfloat16"))
    wanted = logits(load(pruned))
    stacks = [each for _, m in sparse_experts(model) for each in m.children()]
    assert sum(isinstance(each, PackedStack) for each in stacks) == 4
    assert (logits(model) - wanted).norm() < 1e-6 * wanted.norm()
    assert not any(p.dim() == 3 and p.is_floating_point() for p in model.parameters())
    state = model.state_dict()
    again = load(pruned, fs.FlashSparseConfig(format=format, dtype="bfloat16", pruning="none"))
    again.load_state_dict(state)
    assert torch.equal(logits(again), logits(model))
    assert torch.equal(logits(model.dequantize()), logits(load(pruned)))


@pytest.mark.parametrize("path", ["packed", "pruned"])
def test_on_a_gpu_experts_are_packed_where_a_kernel_is(path, request, monkeypatch, caplog):
    """From a packed checkpoint, and packed while a dense one loads; a GPU is made believe."""
    from flashsparse_plugin.integrations.hf import experts

    given = []

    def why_dense(schemes, count, device, activation, dtype):
        given.append(({str(each) for each in schemes}, count, activation, dtype))
        return told

    monkeypatch.setattr(experts, "why_dense", why_dense)
    source = request.getfixturevalue(path)
    for told, asked, is_packed in (
        (None, "auto", True),
        ("it is a test", "auto", False),
        ("it is a test", "packed", True),
        (None, "dense", False),
    ):
        caplog.clear()
        config = fs.FlashSparseConfig(format="2:4-int8", dtype="bfloat16", experts=asked)
        model = AutoModelForCausalLM.from_pretrained(
            source, quantization_config=config, dtype=torch.bfloat16
        )
        assert bool([*sparse_experts(model)]) == is_packed, (told, asked)
        assert ("experts stay dense on cpu: it is a test" in caplog.text) == (
            asked == "auto" and told is not None
        )
    assert given[0] == ({"nm_vector(2:4, int8) bfloat16"}, 4, "silu", torch.bfloat16)


def test_a_stream_is_loaded_from_its_file(pruned, tmp_path):
    convert_checkpoint(pruned, tmp_path / "packed", format="tiled_csl", pack_all=True)
    wanted = logits(load(pruned))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "packed", dtype=torch.float32)
    assert (logits(model) - wanted).norm() < 1e-6 * wanted.norm()
    dense = AutoModelForCausalLM.from_pretrained(
        tmp_path / "packed", quantization_config=fs.FlashSparseConfig(experts="dense")
    )
    assert not [*sparse_experts(dense)] and all(p.device.type == "cpu" for p in dense.parameters())


def test_experts_are_one_kind_a_projection(packed):
    found = inspect_checkpoint(packed)
    kinds = [layer.kind for layer in found.layers]
    assert {kind: kinds.count(kind) for kind in kinds if "experts" in kind} == {
        f"experts.{each}_proj": 8 for each in ("gate", "up", "down")
    }
    config = json.loads((packed / "config.json").read_text())["quantization_config"]
    assert config["layers"].keys() == {"lm_head"}  # and no expert, of which there are thousands


def test_names_of_stacks_and_patterns_say_how_experts_are_packed(pruned, tmp_path):
    layers = {
        "model.layers.0.mlp.experts": {"format": "dense", "reason": "by choice"},
        r"re:.*\.1\.mlp\.experts\.\d+\.down_proj": {"format": "nm_vector", "options": INT8},
    }
    report = convert_checkpoint(pruned, tmp_path / "out", format="2:4", layers=layers)
    experts = [x for x in report.layers if x.kind.startswith("experts.")]
    told = {(x.name.split(".")[2], x.kind): x.reason or x.scheme for x in experts}
    assert told["0", "experts.up_proj"] == told["0", "experts.down_proj"] == "by choice"
    assert told["1", "experts.up_proj"] == "nm_vector(2:4)"
    assert told["1", "experts.down_proj"] == "nm_vector(2:4, int8)"
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert [name for name, _ in sparse_experts(model)] == ["model.layers.1.mlp.experts"]


def test_experts_without_zeros_stay_dense_together(pruned, tmp_path, caplog):
    shutil.copytree(pruned, tmp_path / "dense")

    def fill(tensors):
        name = "model.layers.0.mlp.experts.0.down_proj.weight"
        tensors[name] = torch.ones_like(tensors[name])

    edit_weights(tmp_path / "dense", fill)
    report = convert_checkpoint(tmp_path / "dense", tmp_path / "out", format="2:4")
    stay = {x.name.rpartition(".experts")[0] for x in report.layers if "zeros" in (x.reason or "")}
    assert stay == {"model.layers.0.mlp"}
    assert any("experts without the zeros of nm_vector(2:4)" in each for each in report.warnings)
    model = load(tmp_path / "dense", fs.FlashSparseConfig(format="2:4"))
    assert [name for name, _ in sparse_experts(model)] == ["model.layers.1.mlp.experts"]
    assert "stay as they are (2 tensors, for example model.layers.0.mlp.experts.down" in caplog.text
    wanted = logits(load(tmp_path / "dense"))
    assert (logits(model) - wanted).norm() < 1e-6 * wanted.norm()


@pytest.fixture(scope="module", params=IN_ONE_TENSOR)
def together(request, tmp_path_factory):
    """A mixture whose files have the experts of a layer in one tensor, and the names of those."""
    path = made(request.param, tmp_path_factory.mktemp("moe") / "dense")
    return path, [name for name, tensor in load_all(path).items() if tensor.dim() == 3]


def test_of_experts_in_one_tensor_some_layers_stay_dense(together, tmp_path):
    """They are written as they were, and others by names of their own."""
    path, names = together
    shutil.copytree(path, tmp_path / "dense")
    first = [name for name in names if ".0." in name]
    edit_weights(tmp_path / "dense", lambda tensors: without_zeros(tensors, first[:1]))
    wanted = logits(load(tmp_path / "dense"))
    report = convert_checkpoint(tmp_path / "dense", tmp_path / "out", format="2:4")
    dense = {x.name.split(".")[2] for x in report.layers if "zeros" in (x.reason or "")}
    kept = load_all(tmp_path / "out")
    assert dense == {"0"} and {*first} == {n for n, t in kept.items() if t.dim() == 3}
    assert all(torch.equal(kept[n], load_all(tmp_path / "dense")[n]) for n in first)
    config = fs.FlashSparseConfig(format="2:4", dtype="bfloat16")
    packed = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    for found in (load(tmp_path / "dense", config), packed):
        assert [name.split(".")[2] for name, _ in sparse_experts(found)] == ["1"]
        assert (logits(found) - wanted).norm() < 2e-6 * wanted.norm()
    unpack_checkpoint(tmp_path / "out", tmp_path / "back")
    assert load_all(tmp_path / "back").keys() == kept.keys() & {*first} | load_all(path).keys()


def test_experts_in_one_tensor_are_packed_while_they_load(together):
    path, _ = together
    model = load(path, fs.FlashSparseConfig(format="2:4", dtype="bfloat16"))
    wanted = logits(load(path))
    assert len([*sparse_experts(model)]) == 2
    assert (logits(model) - wanted).norm() < 1e-6 * wanted.norm()
    assert torch.equal(logits(model.dequantize()), logits(load(path)))


def test_auto_chooses_for_experts(together, tmp_path):
    """All of a layer together; where one lacks the others' zeros none is packed."""
    path, names = together
    report = convert_checkpoint(path, tmp_path / "out", format="auto", device="cpu")
    experts = [x for x in report.layers if x.kind.startswith("experts.")]
    assert {x.scheme for x in experts} == {"exact_nm(2:4, e4m7)"}
    assert any("experts.gate_proj, experts.up_proj, experts" in each for each in report.choices)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    wanted = logits(load(path))
    assert len([*sparse_experts(model)]) == 2
    assert (logits(model) - wanted).norm() < 2e-6 * wanted.norm()
    shutil.copytree(path, tmp_path / "dense")

    def fill(tensors):
        for name in names:
            if ".1." in name:
                tensors[name][-1] = torch.ones_like(tensors[name][-1])

    edit_weights(tmp_path / "dense", fill)
    report = convert_checkpoint(tmp_path / "dense", tmp_path / "some", format="auto", device="cpu")
    own = [x for x in report.layers if x.kind.startswith("experts.")]
    told = {x.name.split(".")[2]: x.reason or x.scheme for x in own}
    assert told == {
        "0": "exact_nm(2:4, e4m7)",
        "1": "experts: some have not the zeros of exact_nm(2:4, e4m7)",
    }


def test_experts_that_are_packed_and_in_one_tensor_are_refused(together, tmp_path):
    path, names = together
    convert_checkpoint(path, tmp_path / "packed", format="2:4")
    dense = load_all(path)[names[0]]
    edit_weights(tmp_path / "packed", lambda tensors: tensors.update({names[0]: dense}))
    for read in (AutoModelForCausalLM.from_pretrained, inspect_checkpoint):
        with pytest.raises(fs.FormatError, match="are packed|packed and dense"):
            read(tmp_path / "packed")


def test_experts_that_a_file_has_in_one_tensor_are_those_of_single_ones(pruned, packed, tmp_path):
    """Qwen3.5's files have what those of Qwen3 have one by one."""
    shutil.copytree(pruned, tmp_path / "dense")

    def merge(tensors):
        for layer in range(2):
            stem = f"model.layers.{layer}.mlp.experts"
            experts = [
                [tensors.pop(f"{stem}.{n}.{each}_proj.weight") for each in ("gate", "up", "down")]
                for n in range(4)
            ]
            tensors[f"{stem}.gate_up_proj"] = torch.stack([torch.cat(x[:2]) for x in experts])
            tensors[f"{stem}.down_proj"] = torch.stack([x[2] for x in experts])

    edit_weights(tmp_path / "dense", merge)
    convert_checkpoint(tmp_path / "dense", tmp_path / "packed", format="2:4-int8")
    found, wanted = load_all(tmp_path / "packed"), load_all(packed)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], each) for name, each in wanted.items())


def test_experts_that_files_have_transposed(tmp_path):
    """Those of Qwen3-VL, as its authors wrote them."""
    vision = dict(depth=2, num_heads=2, hidden_size=128, intermediate_size=96, patch_size=8)
    vision |= dict(out_hidden_size=128, deepstack_visual_indexes=[0])
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [8, 12, 12]}
    text = FAMILIES["Qwen3MoeForCausalLM"] | {"rope_parameters": rope, "head_dim": 64}
    text["model_type"] = "qwen3_vl_moe_text"
    config = AutoConfig.for_model("qwen3_vl_moe", text_config=text, vision_config=vision)
    torch.manual_seed(0)
    kind = transformers.Qwen3VLMoeForConditionalGeneration
    model = kind(config).to(torch.bfloat16).eval()
    prune(model, "magnitude", pattern=(2, 4), progress=False)
    model.save_pretrained(tmp_path / "dense")
    names = [n for n, t in load_all(tmp_path / "dense").items() if ".experts." in n]

    def turn(tensors):
        tensors.update({name: tensors[name].transpose(1, 2).contiguous() for name in names})

    edit_weights(tmp_path / "dense", turn)
    convert_checkpoint(tmp_path / "dense", tmp_path / "packed", format="2:4")
    unpack_checkpoint(tmp_path / "packed", tmp_path / "back")
    dense, back = load_all(tmp_path / "dense"), load_all(tmp_path / "back")
    assert dense.keys() == back.keys() and not {*names} & load_all(tmp_path / "packed").keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in dense.items())
    found = kind.from_pretrained(tmp_path / "packed", dtype=torch.bfloat16)
    for name, module in sparse_experts(found):
        for own in ("gate_up_proj", "down_proj"):
            held = getattr(module, own).stack.unpack()
            assert torch.equal(held, model.get_parameter(f"{name}.{own}"))


def _twice(tensors):
    name = "model.layers.0.mlp.experts.1.up_proj"
    tensors[f"{name}.weight"] = torch.zeros(48, 128, dtype=torch.bfloat16)


def _missing(tensors):
    for own in ("weight_packed", "weight_index", "weight_scale"):
        del tensors[f"model.layers.1.mlp.experts.3.gate_proj.{own}"]


def _of_another_shape(tensors):
    name = "model.layers.0.mlp.experts.2.down_proj.weight_packed"
    tensors[name] = tensors[name][:-1].clone()


def _out_of_range(tensors):
    for own in ("weight_packed", "weight_index", "weight_scale"):
        old = f"model.layers.0.mlp.experts.3.gate_proj.{own}"
        tensors[old.replace(".3.", ".7.")] = tensors[old].clone()


def _incomplete(tensors):
    del tensors["model.layers.0.mlp.experts.2.down_proj.weight_scale"]


def _scale(tensors):
    tensors["model.layers.0.mlp.experts.2.down_proj.weight_scale"][0] = torch.nan


HOSTILE = {
    _twice: r"experts\.1\.up_proj' \[48, 128\] is in the checkpoint twice",
    _missing: r"experts\.3\.gate_proj' \[48, 128\] is not in the checkpoint",
    _of_another_shape: r"experts\.2\.down_proj'.*\[128, 48\].*weight_packed",
    _out_of_range: r"expert 7 of 'model\.layers\.0\.mlp\.experts'.*4 experts",
    _incomplete: r"experts\.2\.down_proj'.*weight_scale",
    _scale: r"experts\.2\.down_proj'.*(scale|checksum)",
}


@pytest.mark.parametrize("damage", HOSTILE, ids=lambda each: each.__name__)
def test_damaged_experts_are_refused(damage, packed, tmp_path):
    shutil.copytree(packed, tmp_path / "bad")
    edit_weights(tmp_path / "bad", damage)
    with pytest.raises(fs.FormatError, match=HOSTILE[damage]):
        AutoModelForCausalLM.from_pretrained(tmp_path / "bad")
    with pytest.raises(fs.FormatError, match=HOSTILE[damage]):
        unpack_checkpoint(tmp_path / "bad", tmp_path / "out")


def test_a_dense_mixture_that_lacks_an_expert_is_not_converted(pruned, tmp_path):
    shutil.copytree(pruned, tmp_path / "bad")
    edit_weights(tmp_path / "bad", lambda t: t.pop("model.layers.0.mlp.experts.2.down_proj.weight"))
    with pytest.raises(CheckpointError, match=r"expert 2 .* has no down_proj \[128, 48\]"):
        convert_checkpoint(tmp_path / "bad", tmp_path / "out", format="2:4")


def test_a_gradient_goes_through_packed_experts(pruned):
    """As an adapter beside them asks for; their weights have none."""
    model = load(pruned, fs.FlashSparseConfig(format="2:4", dtype="bfloat16"))
    found = []
    for each in (model, load(pruned)):
        x = each.get_input_embeddings()(IDS).detach().requires_grad_()
        each(inputs_embeds=x).logits.square().sum().backward()
        found.append(x.grad)
    assert (found[0] - found[1]).norm() < 1e-5 * found[1].norm() > 0


def test_biased_and_ungated_experts_are_what_the_models_own_forward_gives():
    """The flags that transformers' decorator sets, on a class of a test."""
    from transformers.integrations.moe import use_experts_implementation

    from flashsparse_plugin.experts import ExpertStack
    from flashsparse_plugin.experts.layer import pack_module, unpack_module

    @use_experts_implementation(has_gate=False, has_bias=True)
    class Own(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.num_experts, self.act_fn = 3, nn.ReLU()
            self.up_proj = nn.Parameter(torch.randn(3, 16, 8))
            self.up_proj_bias = nn.Parameter(torch.randn(3, 16))
            self.down_proj = nn.Parameter(torch.randn(3, 8, 16))
            self.down_proj_bias = nn.Parameter(torch.randn(3, 8))

        def forward(self, x, ids, weights):
            y = torch.zeros_like(x)
            for token, (row, own) in enumerate(zip(ids.tolist(), weights, strict=True)):
                for expert, weight in zip(row, own, strict=True):
                    up = self.up_proj[expert] @ x[token] + self.up_proj_bias[expert]
                    down = self.down_proj[expert] @ up.relu() + self.down_proj_bias[expert]
                    y[token] += weight * down
            return y

    torch.manual_seed(0)
    scheme = NM.scheme(torch.float32, {"n": 2, "m": 4})
    kind = type("Config", (), {"_experts_implementation": "eager"})
    module = Own(kind())
    stacks = {}
    with torch.no_grad():
        for own in ("up_proj", "down_proj"):
            parameter = getattr(module, own)
            for each in parameter:
                each.copy_(NM.conform(each.contiguous(), scheme))
            parts = [NM.pack(each.detach().contiguous(), scheme) for each in parameter]
            stacks[own] = PackedStack(ExpertStack.of(parts), (own,))
        x, ids = torch.randn(5, 8), torch.randint(0, 3, (5, 2))
        given = (x, ids, torch.rand(5, 2))
        wanted = module(*given)
        pack_module(module, stacks)
        torch.testing.assert_close(module(*given), wanted)
        unpack_module(module, torch.float32)
        assert type(module) is Own and torch.equal(module(*given), wanted)


OWN_GATES = {
    "deepseek_v4": ("silu", 10.0),
    "hy_v4": ("silu", 10.0),
    "minimax_m3_vl_text": ("swigluoai", 7.0),
    "openai_privacy_filter": ("swigluoai", 7.0),
}


@pytest.mark.parametrize("model_type", OWN_GATES)
def test_a_gate_of_its_own_is_known_by_its_values(model_type, tmp_path):
    kind = class_of(model_type)
    torch.manual_seed(0)
    model = kind(small(CONFIG_MAPPING[model_type])).to(torch.bfloat16).eval()
    views = expert_views(model)
    with torch.no_grad():
        for view in views.values():
            weight = view.weight.normal_(std=0.4)
            weight.copy_(prune_weight(weight.contiguous(), 0.5))
    model.save_pretrained(tmp_path / "dense")
    convert_checkpoint(tmp_path / "dense", tmp_path / "packed", pack_all=True)
    reference = kind.from_pretrained(tmp_path / "dense", dtype=torch.float32)
    reference.set_experts_implementation("eager")
    found = kind.from_pretrained(tmp_path / "packed", dtype=torch.float32)
    for _, module in sparse_experts(found):
        act = activation_of(module)
        assert (act.name, act.limit) == OWN_GATES[model_type]
    with torch.no_grad():
        wanted, given = (each(IDS)[0] for each in (reference, found))
    assert len([*sparse_experts(found)]) > 0
    assert (given - wanted).norm() < 3e-6 * wanted.norm()


def test_a_gate_that_nobody_knows_is_asked_each_time(pruned):
    model = load(pruned, fs.FlashSparseConfig(format="2:4", dtype="bfloat16"))
    _, module = next(sparse_experts(model))
    kind = type("Own", (type(module),), {"_apply_gate": lambda self, both: both.chunk(2, -1)[0]})
    module.__class__ = kind
    assert activation_of(module) is None
