# SPDX-License-Identifier: Apache-2.0
import copy

import pytest
import torch
from tiny_causal_lms import VOCAB, tiny_model

from flashsparse_plugin.pruning import dense_layers, prunable_linears, prune
from flashsparse_plugin.pruning.sensitivity import spend

TOKENS = torch.randint(3, VOCAB, (4, 24), generator=torch.Generator().manual_seed(0))


def by_layer(report):
    """Sparsities of the decoder layers, each the same for all of its linears but for rounding."""
    found = {}
    for layer in report.layers:
        found.setdefault(layer.name.split(".")[2], []).append(layer.sparsity)
    assert all(max(each) - min(each) < 0.03 for each in found.values())
    return [sum(each) / len(each) for each in found.values()]


@pytest.mark.parametrize("allocation", ["owl", "sensitivity"])
@pytest.mark.parametrize("budget", [0.5, 0.9])
def test_a_budget_is_spent_and_shared(allocation, budget):
    model = tiny_model("llama")
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight[:2] *= 30  # outliers, and costly to lose
    report = prune(
        model, "wanda", budget, calibration=TOKENS, allocation=allocation, progress=False
    )
    assert report.sparsity == pytest.approx(budget, abs=0.01)
    shares = by_layer(report)
    assert 0 < min(shares) < max(shares) < 1
    assert allocation != "owl" or shares[0] == min(shares)


def test_measuring_leaves_the_model_as_it_was():
    model = tiny_model("llama").train()
    before = copy.deepcopy(model.state_dict())
    prune(model, "magnitude", 0.0, calibration=TOKENS, allocation="sensitivity", progress=False)
    assert model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_the_cheapest_steps_are_taken_first():
    grid = [0.3, 0.5, 0.7]
    losses = [[1.0, 1.1, 9.0], [1.0, 1.5, 1.6]]  # the second group is dear at first
    assert spend([100, 100], grid, losses, 0.4) == pytest.approx([0.5, 0.3])
    assert spend([100, 100], grid, losses, 0.5) == pytest.approx([0.5, 0.5])
    assert spend([100, 300], grid, losses, 0.5) == pytest.approx([0.5, 0.5])
    assert spend([100, 100], grid, losses, 0.55) == pytest.approx([0.5, 0.6])
    assert spend([100, 100], grid, losses, 0.7) == pytest.approx([0.7, 0.7])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"allocation": "fair"}, "'fair' is invalid: choose one of 'uniform'"),
        ({"allocation": "owl", "pattern": (2, 4)}, "same sparsity in every layer"),
        ({"allocation": "owl", "method": "taylor", "scope": "global"}, "scope 'global' shares"),
        ({"allocation": "owl", "calibration": None}, "allocation='owl' needs calibration"),
    ],
)
def test_choices_that_do_not_go_together(arguments, message):
    model = tiny_model("llama")
    with pytest.raises(ValueError, match=message):
        prune(model, **{"calibration": TOKENS, "progress": False} | arguments)
    assert all((linear.weight != 0).all() for linear in prunable_linears(model).values())


@pytest.mark.parametrize(("name", "inputs"), [("llama", 2), ("opt", 1), ("gpt_neox", 1)])
def test_flash_llm_leaves_outer_inputs_of_ffns_dense(name, inputs):
    model = tiny_model(name)
    layers = next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList))
    layers.extend([copy.deepcopy(layers[0]) for _ in range(5)])  # 8 in all
    found = dense_layers("flash-llm", model)
    numbers = [int(part) for each in found for part in each.split(".") if part.isdecimal()]
    assert sorted(numbers) == sorted([0, 1, 6, 7] * inputs)
    with pytest.raises(ValueError, match="choose one of 'flash-llm'"):
        dense_layers("mine", model)
