# SPDX-License-Identifier: Apache-2.0
import copy
import logging

import pytest
import torch
from tiny_causal_lms import CONFIGS, tiny_model
from torch import nn

from flashsparse_plugin.pruning import prunable_linears, prune, prune_weight

DTYPES = [torch.float16, torch.bfloat16, torch.float32]


def quiet(model, *args, **kwargs):
    return prune(model, *args, progress=False, **kwargs)


def weights(model):
    return {name: linear.weight for name, linear in prunable_linears(model).items()}


def assert_only_zeros_differ(pruned, dense):
    """What was kept is the same bit for bit, and so is every other tensor of the model."""
    before = dense.state_dict()
    linears = {f"{name}.weight" for name in prunable_linears(dense)}
    for name, tensor in pruned.state_dict().items():
        expected = before[name]
        if name in linears:
            expected = torch.where(tensor == 0, torch.zeros_like(expected), expected)
        assert tensor.dtype == expected.dtype
        assert torch.equal(tensor.view(torch.uint8), expected.view(torch.uint8)), name


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("scope", ["layer", "row", "global"])
def test_every_architecture_reaches_the_exact_count(name, scope):
    model = tiny_model(name)
    dense = copy.deepcopy(model)
    report = quiet(model, sparsity=0.6, scope=scope)
    assert_only_zeros_differ(model, dense)
    for layer in report.layers:
        weight = model.get_submodule(layer.name).weight
        zeros = weight == 0
        assert layer.shape == tuple(weight.shape)
        assert layer.zeros == zeros.sum()
        if scope == "layer":
            assert layer.zeros == round(0.6 * weight.numel())
        if scope == "row":
            assert (zeros.sum(1) == round(0.6 * weight.shape[1])).all()
    assert {layer.name for layer in report.layers} == set(weights(dense))
    assert report.elements == sum(weight.numel() for weight in weights(dense).values())
    if scope == "global":
        assert report.zeros == round(0.6 * report.elements)


@pytest.mark.parametrize("dtype", DTYPES)
def test_global_equals_sorting_all_weights(dtype):
    model = tiny_model("llama", dtype)
    joined = torch.cat([w.detach().abs().float().flatten() for w in weights(model).values()])
    expected = torch.ones_like(joined, dtype=torch.bool)
    count = round(0.7 * joined.numel())
    expected[joined.sort(stable=True).indices[:count]] = False
    report = quiet(model, sparsity=0.7, scope="global")
    kept = torch.cat([(w != 0).flatten() for w in weights(model).values()])
    assert torch.equal(kept, expected)
    assert report.zeros == count
    # The point of "global": layers end up with different sparsities.
    assert len({round(layer.sparsity, 3) for layer in report.layers}) > 1


def test_global_breaks_ties_in_the_order_of_the_layers():
    model = tiny_model("llama")
    with torch.no_grad():
        for weight in weights(model).values():
            weight.fill_(1.0)
    report = quiet(model, sparsity=0.5, scope="global")
    assert report.zeros == report.elements // 2
    shares = [layer.sparsity for layer in report.layers]
    assert shares == sorted(shares, reverse=True)
    assert sum(0 < share < 1 for share in shares) <= 1


@pytest.mark.parametrize("scope", ["layer", "row", "global"])
@pytest.mark.parametrize("sparsity", [0.0, 1.0])
def test_nothing_and_everything(scope, sparsity):
    model = tiny_model("llama")
    assert quiet(model, sparsity=sparsity, scope=scope).sparsity == sparsity


def test_zeros_that_are_there_count():
    model = tiny_model("llama")
    linear = prunable_linears(model)["model.layers.0.mlp.up_proj"]
    with torch.no_grad():
        linear.weight[:, ::4] = 0.0
        linear.weight[0, 0] = -0.0
    before = linear.weight.detach().clone()
    quiet(model, sparsity=0.5)
    assert (linear.weight == 0).sum() == linear.weight.numel() // 2
    quiet(model, sparsity=0.2)  # sparser than asked already: nothing is pruned
    assert (linear.weight == 0).sum() == linear.weight.numel() // 2
    assert (linear.weight[before == 0] == 0).all()


def test_patterns():
    model = tiny_model("llama")
    report = quiet(model, pattern=(2, 8), vector_length=4)
    assert report.sparsity == 0.75
    for weight in weights(model).values():
        groups = (weight != 0).view(weight.shape[0] // 4, 4, -1)
        assert (groups == groups[:, :1]).all()
        assert (groups[:, 0].reshape(-1, 8).sum(1) == 2).all()


@pytest.mark.parametrize("scope", ["layer", "global"])
def test_the_report_says_what_of_the_scores_is_left(scope):
    model = tiny_model("llama")
    before = {name: weight.detach().abs().double() for name, weight in weights(model).items()}
    report = quiet(model, sparsity=0.6, scope=scope)
    for layer in report.layers:
        kept = before[layer.name][weights(model)[layer.name] != 0].sum() / before[layer.name].sum()
        assert layer.retained.share == pytest.approx(float(kept))
        assert layer.retained.unstructured is None
    shares = [(layer.elements, layer.retained.share) for layer in report.layers]
    mean = sum(count * share for count, share in shares) / report.elements
    assert report.to_dict()["retained"] == {"share": pytest.approx(mean), "unstructured": None}


def test_the_report_compares_a_pattern_with_none():
    patterns = {"free": {"sparsity": 0.5}, "4:8": {"pattern": (4, 8)}, "2:4": {"pattern": (2, 4)}}
    patterns |= {"2:4, L=4": {"pattern": (2, 4), "vector_length": 4}}
    found = {name: quiet(tiny_model("llama"), **rule).retained for name, rule in patterns.items()}
    shares = [each.share for each in found.values()]
    assert shares == sorted(shares, reverse=True) and len(set(shares)) == 4
    assert found["2:4"].unstructured == found["2:4, L=4"].unstructured
    assert found["2:4"].unstructured == pytest.approx(found["free"].share)


def test_ignore_takes_names_and_patterns(caplog):
    model = tiny_model("llama")
    ignore = ["lm_head", "down_proj", "re:model\\.layers\\.1\\.", "no.such.layer"]
    with caplog.at_level(logging.WARNING):
        report = quiet(model, ignore=ignore)
    names = [layer.name for layer in report.layers]
    assert names == [
        f"model.layers.{i}.{layer}"
        for i in (0, 2)
        for layer in (
            *(f"self_attn.{x}_proj" for x in "qkvo"),
            *(f"mlp.{x}_proj" for x in ("gate", "up")),
        )
    ]
    assert "'no.such.layer' matches no module" in caplog.text
    assert "down_proj" not in caplog.text


@pytest.mark.parametrize("name", ["llama", "llama-tied", "gpt_neox", "opt"])
def test_the_output_head_stays_dense_whatever_its_name(name):
    model = tiny_model(name)
    quiet(model, sparsity=0.9)
    assert (model.get_output_embeddings().weight == 0).sum() <= model.config.hidden_size  # padding


def test_an_untied_output_head_is_pruned_if_asked_for():
    model = tiny_model("llama")
    report = quiet(model, ignore=())
    assert report.layers[-1].name == "lm_head"
    assert report.layers[-1].sparsity == 0.5


def test_a_tied_output_head_is_refused_if_asked_for():
    model = tiny_model("llama-tied")
    dense = copy.deepcopy(model)
    with pytest.raises(ValueError, match="lm_head shares its weight with model.embed_tokens"):
        quiet(model, ignore=())
    assert_only_zeros_differ(model, dense)
    assert all((weight != 0).all() for weight in weights(model).values())


def test_a_weight_of_two_layers_is_pruned_once():
    model = tiny_model("llama")
    model.model.layers[1].mlp.up_proj.weight = model.model.layers[0].mlp.up_proj.weight
    names = [layer.name for layer in quiet(model).layers]
    assert "model.layers.0.mlp.up_proj" in names
    assert "model.layers.1.mlp.up_proj" not in names


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_broken_weight_is_named_before_any_is_changed(value):
    model = tiny_model("llama")
    with torch.no_grad():
        model.model.layers[2].mlp.up_proj.weight[3, 4] = value
    with pytest.raises(ValueError, match=r"model\.layers\.2\.mlp\.up_proj: 1 of 1536 elements"):
        quiet(model)
    assert all((weight != 0).all() for weight in weights(model).values())
    assert quiet(model, ignore=["lm_head", "layers.2"]).sparsity == 0.5


def test_weights_that_are_not_there_or_quantized_are_refused():
    model = tiny_model("llama")
    model.model.layers[0].mlp.up_proj.to("meta")
    with pytest.raises(ValueError, match=r"up_proj: .* not in memory"):
        quiet(model)
    linear = model.model.layers[0].mlp.up_proj
    linear.weight = nn.Parameter(torch.ones(48, 32, dtype=torch.int8), requires_grad=False)
    with pytest.raises(ValueError, match=r"up_proj: .*int8"):
        quiet(model)


def test_a_model_without_linears_is_refused():
    model = tiny_model("llama")
    with pytest.raises(ValueError, match="no linear layer to prune"):
        quiet(model, ignore=["model", "lm_head"])


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"method": "obd"}, "method 'obd'"),
        ({"scope": "column"}, "scope 'column'"),
        ({"sparsity": 1.5}, "sparsity 1.5"),
        ({"vector_length": 4}, "give pattern"),
        ({"pattern": (2, 4), "scope": "row"}, "leave scope None"),
        ({"pattern": (2, 4), "sparsity": 0.8}, "2:4 has a sparsity of 0.5"),
        ({"pattern": (4, 2)}, "4:2"),
        ({"calibration": torch.zeros(1, 4, dtype=torch.int64)}, "uses no calibration"),
        ({"method": "wanda"}, "needs calibration"),
    ],
)
def test_impossible_requests(arguments, message):
    with pytest.raises(ValueError, match=message):
        quiet(tiny_model("llama"), **arguments)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scope", ["layer", "row"])
def test_one_weight(dtype, scope):
    weight = torch.randn(24, 40, generator=torch.Generator().manual_seed(0)).to(dtype)
    before = weight.clone()
    pruned = prune_weight(weight, 0.3, scope)
    assert torch.equal(weight, before)
    assert pruned.dtype == dtype
    kept = pruned != 0
    assert torch.equal(pruned[kept], weight[kept])
    assert (~kept).sum() == round(0.3 * 40) * 24
    assert weight[~kept].abs().float().mean() < weight[kept].abs().float().mean()


def test_one_weight_by_pattern_and_by_default():
    weight = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))
    assert ((prune_weight(weight, pattern=(1, 4)) != 0).view(-1, 4).sum(1) == 1).all()
    assert (prune_weight(weight) == 0).sum() == 64


def test_one_weight_that_is_broken_is_named():
    with pytest.raises(ValueError, match="some.layer: 1 of 4 elements are NaN or infinite"):
        prune_weight(torch.tensor([[1.0, float("nan")], [1.0, 2.0]]), 0.5, name="some.layer")
    with pytest.raises(ValueError, match="some.layer: a weight is a matrix"):
        prune_weight(torch.ones(4), 0.5, name="some.layer")
    with pytest.raises(ValueError, match="global"):
        prune_weight(torch.ones(4, 4), 0.5, scope="global")


def test_the_report_as_plain_values():
    report = quiet(tiny_model("llama"), ignore=["lm_head", "re:.*([kvo]|gate|up|down)_proj"])
    data = report.to_dict()
    assert data["method"] == "magnitude"
    assert data["sparsity"] == 0.5
    assert data["layers"][0] == {
        "name": "model.layers.0.self_attn.q_proj",
        "shape": (32, 32),
        "zeros": 512,
        "sparsity": 0.5,
        "retained": {"share": report.layers[0].retained.share, "unstructured": None},
    }
