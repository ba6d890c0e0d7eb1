# SPDX-License-Identifier: Apache-2.0
"""Pruning, recovery and counting of the experts of mixtures, against what their own tokens say."""

import copy
import logging

import pytest
import torch
from families import FAMILIES
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForCausalLM

from flashsparse_plugin.checkpoint import ModelDirectory, convert_checkpoint
from flashsparse_plugin.checkpoint.prune.pruned import write_pruned
from flashsparse_plugin.checkpoint.read.linears import StoredModel
from flashsparse_plugin.evaluation import sizes
from flashsparse_plugin.expert_layout import experts_of
from flashsparse_plugin.experts.layer import sparse_experts
from flashsparse_plugin.pruning import LeastSquares, LoRA, prune, recover_
from flashsparse_plugin.pruning.experts import FEW_TOKENS, expert_views

IN_ONE_TENSOR = ("GraniteMoeForCausalLM", "GptOssForCausalLM")
ARCHITECTURES = (
    *("MixtralForCausalLM", "Qwen3MoeForCausalLM", "OlmoeForCausalLM"),
    *IN_ONE_TENSOR,
)
TOKENS = torch.randint(0, 90, (8, 64), generator=torch.Generator().manual_seed(3))


def made(architecture, dtype=torch.float32):
    settings = dict(FAMILIES[architecture])
    torch.manual_seed(0)
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    model = AutoModelForCausalLM.from_config(config).to(dtype).eval()
    with torch.no_grad():
        for parameter in experts_of(model).values():
            parameter.normal_(std=0.1)
        for name, parameter in model.named_parameters():
            if name.endswith("proj_bias"):
                parameter.normal_(std=0.1)
    return model


def first_experts(model):
    """The module of experts of the first layer that has some, and what it is given."""
    name = min(experts_of(model)).rpartition(".")[0]
    module, seen = model.get_submodule(name), []
    hook = module.register_forward_pre_hook(lambda _, args: seen.append(args))
    with torch.no_grad():
        model(input_ids=TOKENS)
    hook.remove()
    x, ids, weights = seen[0]
    return name, module, x.reshape(-1, x.shape[-1]).double(), ids, weights.double()


def plain(module, matrix):
    """A matrix of an expert as [out_features, in_features], in the order of its module."""
    return (matrix.T if module.is_transposed else matrix).detach()


def two_of_four(weight, norms):
    """Wanda's choice, by another way than the package's."""
    scores = (weight.double().abs() * norms).unflatten(1, (-1, 4))
    keep = scores.argsort(-1, descending=True).argsort(-1) < 2
    return torch.where(keep.flatten(1), weight, 0)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_an_expert_is_pruned_by_its_own_tokens(architecture, weighted):
    dense = made(architecture)
    name, module, x, ids, weights = first_experts(dense)
    pruned = copy.deepcopy(dense)
    report = prune(
        pruned, "wanda", pattern=(2, 4), calibration=TOKENS, progress=False,
        router_weighted=weighted,
    )  # fmt: skip
    found = pruned.get_submodule(name)
    judged = 0
    for number in range(module.num_experts):
        token, slot = (ids == number).nonzero(as_tuple=True)
        if len(token) < FEW_TOKENS:
            continue
        by = weights[token, slot, None] if weighted else 1.0
        both, inner = plain(module, module.gate_up_proj[number]), x[token]
        wanted = two_of_four(both, (inner * by).square().sum(0).sqrt())
        assert torch.equal(plain(found, found.gate_up_proj[number]), wanted)
        inner = inner @ both.double().T
        if architecture == "GptOssForCausalLM":
            inner = inner + module.gate_up_proj_bias[number].detach()
            gate, up = inner[:, ::2].clamp(max=7), inner[:, 1::2].clamp(-7, 7)
            inner = gate * torch.sigmoid(1.702 * gate) * (up + 1)
        else:
            gate, up = inner.chunk(2, 1)
            inner = F.silu(gate) * up
        down = plain(module, module.down_proj[number])
        wanted = two_of_four(down, (inner * by).square().sum(0).sqrt())
        same = (plain(found, found.down_proj[number]) == wanted).double().mean()
        assert same > 0.999  # silu in float32 may turn a near tie
        judged += 1
    assert judged
    layers = {layer.name: layer for layer in report.layers}
    views = expert_views(dense)
    assert views.keys() <= layers.keys() and all(layers[each].sparsity == 0.5 for each in views)
    assert layers[f"{name}.0.up_proj"].kind == "experts.up_proj"


def test_experts_that_few_tokens_reach_are_pruned_by_those_of_their_layer():
    dense = made("Qwen3MoeForCausalLM")
    short = TOKENS[:1, :20]  # so that no expert sees many
    pruned = copy.deepcopy(dense)
    report = prune(pruned, "wanda", pattern=(2, 4), calibration=short, progress=False)
    name = min(experts_of(dense)).rpartition(".")[0]
    module, seen = dense.get_submodule(name), []
    module.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with torch.no_grad():
        dense(input_ids=short)
    norms = seen[0].reshape(-1, seen[0].shape[-1]).double().square().sum(0).sqrt()
    for number in range(module.num_experts):
        wanted = two_of_four(module.gate_up_proj[number].detach(), norms)
        assert torch.equal(pruned.get_submodule(name).gate_up_proj[number], wanted)
    assert report.few_tokens.keys() == expert_views(dense).keys()
    (note, *_) = report.notes
    assert f"{module.num_experts} of {module.num_experts} experts of {name} saw fewer" in note
    assert report.to_dict()["few_tokens"] == report.few_tokens


@pytest.mark.parametrize("method", ["magnitude", "sparsegpt", "taylor", "ria"])
def test_every_method_prunes_experts(method):
    model = made("Qwen3MoeForCausalLM")
    text = None if method == "magnitude" else TOKENS
    before = {name: view.weight.clone() for name, view in expert_views(model).items()}
    prune(model, method, 0.5, calibration=text, progress=False)
    for name, view in expert_views(model).items():
        weight = view.weight
        assert abs(float((weight == 0).double().mean()) - 0.5) < 0.02, name
        kept = weight != 0
        assert torch.equal(weight[kept], before[name][kept]) == (method != "sparsegpt"), name


def test_experts_are_left_out_by_name_and_scores_need_inputs():
    model = made("Qwen3MoeForCausalLM")
    ignore = ["lm_head", r"re:.*\.experts\.\d+\.down_proj"]
    report = prune(model, "magnitude", 0.5, ignore=ignore, progress=False)
    kinds = {layer.kind for layer in report.layers}
    assert {"experts.gate_proj", "experts.up_proj"} <= kinds and "experts.down_proj" not in kinds
    with pytest.raises(ValueError, match="reads no inputs"):
        prune(model, "magnitude", router_weighted=True, progress=False)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_pruned_experts_are_written_packed_and_counted(architecture, tmp_path):
    made(architecture, torch.bfloat16).save_pretrained(tmp_path / "dense")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "dense", dtype=torch.bfloat16)
    report = prune(model, "magnitude", pattern=(2, 4), progress=False)
    stored = StoredModel(ModelDirectory(tmp_path / "dense"))
    names = [layer.name for layer in report.layers]
    write_pruned(stored, model, names, tmp_path / "pruned")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "pruned", dtype=torch.bfloat16)
    for name, parameter in model.named_parameters():
        assert torch.equal(again.get_parameter(name), parameter), name

    convert_checkpoint(tmp_path / "pruned", tmp_path / "packed", format="2:4")
    packed = AutoModelForCausalLM.from_pretrained(tmp_path / "packed", dtype=torch.bfloat16)
    assert [*sparse_experts(packed)]
    counted = [sizes.linear_names(each) for each in (again, packed)]
    weights = sizes.count(again, counted[0])
    assert sizes.count(packed, counted[1]) == weights
    assert weights > sum(each.numel() for each in experts_of(again).values())
    zeros = [sizes.zeros(m, names) for m, names in zip((again, packed), counted, strict=True)]
    assert zeros[0] >= zeros[1] > 0.45 * weights
    found = sizes.sizes_of(packed, counted[1], weights)
    assert found.disk == sizes.stored_bytes(tmp_path / "packed")
    assert 0.5 < found.disk / sizes.sizes_of(again, counted[0], weights).disk < 0.75


def test_least_squares_fits_experts_and_lora_leaves_them(caplog):
    dense = made("Qwen3MoeForCausalLM")
    pruned = copy.deepcopy(dense)
    prune(pruned, "magnitude", pattern=(2, 4), progress=False)
    views = expert_views(pruned)
    before = {name: view.weight.clone() for name, view in views.items()}
    text = torch.randint(0, 90, (16, 64), generator=torch.Generator().manual_seed(5))
    trained = copy.deepcopy(pruned)
    with caplog.at_level(logging.WARNING):
        recover_(trained, dense, text, LoRA(rank=2, steps=1, batch=1))
    assert f"{len(views)} projections of experts stay" in caplog.text
    for name, view in expert_views(trained).items():
        assert torch.equal(view.weight, before[name])

    fits = {fit.name: fit for fit in recover_(pruned, dense, text, LeastSquares(steps=4))}
    own = [fits[name] for name in views]
    better = [fit for fit in own if fit.after < 0.95 * fit.before]
    assert len(better) > len(own) / 2
    for name, view in views.items():
        assert not view.weight[before[name] == 0].any()
        assert torch.equal(view.weight, before[name]) == (fits[name].after == fits[name].before)


def test_lora_alone_does_not_recover_experts():
    dense = made("Qwen3MoeForCausalLM")
    pruned = copy.deepcopy(dense)
    prune(pruned, "magnitude", pattern=(2, 4), ignore=["re:.*self_attn.*"], progress=False)
    with pytest.raises(ValueError, match="only experts are pruned.*least squares"):
        recover_(pruned, dense, TOKENS, LoRA(rank=2, steps=1))
