# SPDX-License-Identifier: Apache-2.0
import copy

import pytest
import torch
from documents import ROOT, blocks
from tiny_causal_lms import VOCAB, tiny_model
from torch.nn.functional import cross_entropy

from flashsparse_plugin.cli.prune import Allocation, Method, Preset
from flashsparse_plugin.pruning import (
    ALLOCATIONS,
    PRESETS,
    methods,
    prunable_linears,
    prune,
    register_method,
    ria_scores,
)

GENERATOR = torch.Generator().manual_seed(0)
TOKENS = torch.randint(3, VOCAB, (5, 24), generator=GENERATOR)
WITH_TEXT = [name for name in methods.method_names() if methods.get_method(name).needs]


def weights(model):
    return {name: linear.weight for name, linear in prunable_linears(model).items()}


def quiet(model, method, **kwargs):
    return prune(model, method, calibration=TOKENS, progress=False, **kwargs)


def test_the_command_line_knows_all_of_them():
    assert set(Method) == set(methods.method_names())
    assert set(Allocation) == set(ALLOCATIONS) and set(Preset) == set(PRESETS)


@pytest.mark.parametrize("method", WITH_TEXT)
@pytest.mark.parametrize("scope", ["layer", "row"])
def test_every_method_reaches_the_exact_count(method, scope):
    model = tiny_model("llama", torch.bfloat16)
    dense = copy.deepcopy(model)
    with torch.no_grad():
        for weight in weights(model).values():
            weight[:, ::8] = 0  # zeros from before count, and stay
    report = quiet(model, method, sparsity=0.6, scope=scope)
    for layer in report.layers:
        zeros = model.get_submodule(layer.name).weight == 0
        assert zeros[:, ::8].all() and 0 < layer.retained.share < 1
        if scope == "row" and method != "sparsegpt":
            assert zeros.sum(1).eq(round(0.6 * layer.shape[1])).all()
        if scope == "layer":
            assert layer.zeros == round(0.6 * layer.elements)
    for name, weight in weights(model).items():
        kept = weight != 0
        same = torch.equal(weight[kept], dense.get_submodule(name).weight[kept])
        assert same == (method != "sparsegpt"), name


@pytest.mark.parametrize("method", WITH_TEXT)
@pytest.mark.parametrize(("pattern", "length"), [((2, 4), 1), ((3, 8), 4)])
def test_every_method_takes_patterns(method, pattern, length):
    n, m = pattern
    model = tiny_model("llama")
    quiet(model, method, pattern=pattern, vector_length=length)
    for weight in weights(model).values():
        kept = weight != 0
        assert (kept.view(-1, m).sum(1) == n).all()
        groups = kept.view(-1, length, weight.shape[1])
        assert torch.equal(groups.any(1), groups.all(1))


def test_ria_is_the_formula_of_the_paper():
    weight = torch.randn(6, 10, generator=GENERATOR)
    norms = torch.rand(10, generator=GENERATOR) + 0.1
    w = weight.abs()
    expected = (w / w.sum(0) + w / w.sum(1, keepdim=True)) * norms**0.5
    found = ria_scores(weight, norms)
    torch.testing.assert_close(found / found.sum(), expected / expected.sum())
    assert ria_scores(torch.zeros(2, 3), torch.ones(3)).eq(0).all()


def test_taylor_is_weight_times_gradient_of_every_window():
    model, expected = tiny_model("llama"), tiny_model("llama")
    linear = expected.model.layers[1].mlp.down_proj
    total = torch.zeros_like(linear.weight)
    for window in TOKENS:
        expected.zero_grad()
        logits = expected(input_ids=window[None]).logits[0, :-1]
        cross_entropy(logits, window[1:]).backward()
        total += linear.weight.grad.abs()
    drop = (linear.weight.abs() * total).flatten().argsort()[: linear.weight.numel() // 2]
    model.train()
    report = quiet(model, "taylor", batch_size=3)
    found = model.model.layers[1].mlp.down_proj.weight
    assert found.flatten()[drop].eq(0).all() and report.sparsity == 0.5
    assert model.training and all(p.requires_grad and p.grad is None for p in model.parameters())


def test_taylor_compares_layers():
    report = quiet(tiny_model("llama"), "taylor", scope="global")
    assert report.zeros == round(0.5 * report.elements)
    assert len({round(layer.sparsity, 2) for layer in report.layers}) > 1


@pytest.fixture
def clean_registry(monkeypatch):
    monkeypatch.setattr(methods, "_METHODS", dict(methods._METHODS))


def test_the_example_of_a_method_of_ones_own(clean_registry):
    """The first block of Python of docs/pruning.md, in at most 15 lines."""
    example = blocks((ROOT / "docs" / "pruning.md").read_text(), "python")[0]
    assert len(example.splitlines()) <= 15
    names = {"model": tiny_model("llama"), "windows": TOKENS}
    exec(compile(example, "pruning.md", "exec"), names)
    assert names["report"].sparsity == pytest.approx(0.6, abs=0.01)
    assert names["report"].method == methods.method_names()[-1]


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda w, s: w, r"model\.layers\.0\.self_attn\.q_proj: the scores of method 'mine'"),
        (lambda w, s: w.abs()[:1], "must be a matrix"),
        (lambda w, s: w.abs() * float("nan"), "without NaN"),
    ],
)
def test_scores_that_rank_nothing_are_refused(clean_registry, made, message):
    register_method("mine")(made)
    with pytest.raises(ValueError, match=message):
        prune(tiny_model("llama"), "mine", progress=False)


def test_methods_that_cannot_be_registered(clean_registry):
    with pytest.raises(ValueError, match="there is a method 'wanda' already"):
        register_method("wanda")(lambda w, s: w)
    with pytest.raises(ValueError, match="needs hessian, but the statistics of a layer are"):
        register_method("mine", needs=["hessian"])(lambda w, s: w)
    with pytest.raises(ValueError, match="'guess' is invalid: choose one of 'wanda'"):
        prune(tiny_model("llama"), "guess")
