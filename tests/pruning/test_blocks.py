# SPDX-License-Identifier: Apache-2.0
"""Blocks that stay dense beside 2:4 ones: those that lose most, as many as were asked for."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import flashsparse_plugin as fs
from flashsparse_plugin.formats.units import UNIT_COLS, UNIT_ROWS
from flashsparse_plugin.pruning import (
    LeastSquares,
    Statistics,
    prunable_linears,
    prune,
    recover_,
)
from flashsparse_plugin.pruning.blocks import (
    BLOCK,
    block_sizes,
    block_sums,
    dense_mask,
    share_dense,
    take,
)
from flashsparse_plugin.pruning.methods import get_method
from flashsparse_plugin.pruning.rule import PruningRule

TOKENS = torch.randint(3, 90, (4, 24), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def dense_model():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=90,
        hidden_size=288,
        intermediate_size=320,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    return LlamaForCausalLM(config).eval()


def follows_24(weight):
    """Blocks by the definition of 2:4, one by one."""
    return [
        [
            all(int((w != 0).sum(1).max()) <= 2 for w in tile.split(4, 1))
            for tile in band.split(256, 1)
        ]
        for band in weight.split(16)
    ]


def test_blocks_are_those_of_the_format():
    assert BLOCK == (UNIT_ROWS, UNIT_COLS)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 50), st.integers(1, 600), st.floats(0, 1), st.integers(0, 99))
def test_the_share_is_met_by_the_blocks_that_lose_most(rows, cols, share, seed):
    losses = torch.rand(rows, cols, generator=torch.Generator().manual_seed(seed))
    sums, sizes = block_sums(losses), block_sizes(rows, cols)
    assert sizes.sum() == rows * cols and sums.sum() == pytest.approx(float(losses.double().sum()))
    chosen = take(sums, sizes, share)
    mask = dense_mask(losses, share)
    assert int(mask.sum()) == int(sizes[chosen].sum())
    assert abs(int(mask.sum()) - share * rows * cols) <= sizes.max() / 2
    ratios = sums / sizes
    if chosen.any() and not chosen.all():
        assert ratios[chosen].min() >= ratios[~chosen].max()


@pytest.mark.parametrize("method", ["wanda", "ria", "sparsegpt", "taylor", "magnitude"])
def test_every_method_leaves_blocks_dense_and_the_rest_24(dense_model, method):
    model = copy.deepcopy(dense_model)
    given = {} if method == "magnitude" else {"calibration": TOKENS}
    report = prune(model, method, pattern=(2, 4), dense=0.25, progress=False, **given)
    # Blocks of 16 x 288 weights come out even to a few of them.
    assert report.sparsity == pytest.approx(0.375, abs=0.02)
    shares = [1 - 2 * layer.sparsity for layer in report.layers]
    assert max(shares) - min(shares) > 0.05, "layers get what they need, not all the same"
    for name, linear in model.named_modules():
        if not isinstance(linear, nn.Linear) or name == "lm_head":
            continue
        weight, before = linear.weight.detach(), dense_model.get_submodule(name).weight
        kinds = fs.pack(weight, "hybrid_24").tensors["weight_kinds"]
        assert (kinds == 0).tolist() == follows_24(weight)
        dense = (
            dense_mask((weight != 0).float(), 0)
            | (kinds.bool().repeat_interleave(16, 0)[: weight.shape[0]].repeat_interleave(256, 1))[
                :, : weight.shape[1]
            ]
        )
        assert int((weight == 0)[dense].sum()) == 0
        if method != "sparsegpt":
            assert torch.equal(weight[weight != 0], before[weight != 0])


def test_a_block_that_matters_stays_dense(dense_model):
    model = copy.deepcopy(dense_model)
    weight = model.model.layers[1].mlp.up_proj.weight
    with torch.no_grad():
        weight[32:48, :256] *= 50
    prune(model, "magnitude", pattern=(2, 4), dense=0.02, progress=False)
    kinds = fs.pack(weight.detach(), "hybrid_24").tensors["weight_kinds"]
    assert kinds[2, 0] == 1


def test_layers_that_lose_more_get_more(dense_model):
    """A layer whose weights are equal in size loses half of its outputs by 2:4, one of a few large
    weights next to nothing."""
    layers = {"flat": nn.Linear(512, 64), "peaked": nn.Linear(512, 64)}
    with torch.no_grad():
        layers["flat"].weight.fill_(1)
        layers["peaked"].weight.fill_(1e-3)
        layers["peaked"].weight[:, ::4] = 1
    shares = share_dense(dense_model, layers, 0.5, (), False)
    assert shares == {"flat": 1.0, "peaked": 0.0}
    assert share_dense(dense_model, layers, 0.25, (), False) == {"flat": 0.5, "peaked": 0.0}


def test_layers_that_move_no_prediction_get_no_dense_blocks(dense_model):
    """However large the errors of their outputs are: the layer behind them is all zeros."""
    model = copy.deepcopy(dense_model)
    attention = model.model.layers[0].self_attn
    attention.o_proj.weight.data.zero_()
    attention.v_proj.weight.data *= 100
    shares = share_dense(model, prunable_linears(model), 0.5, [TOKENS], False)
    assert [shares[f"model.layers.0.self_attn.{each}_proj"] for each in "qkv"] == [0, 0, 0]
    assert shares["model.layers.1.self_attn.v_proj"] > 0


def test_squares_of_scores_that_are_outputs_and_scores_that_are_losses():
    """One large loss beats many small ones by its square, but not by its size."""
    weight = torch.full((32, 256), 1.0)
    weight[:16] = 0.01
    weight[0, :3] = 60.0  # dropping one costs 3600, or 60 where scores are losses
    for power, lower in ((2, False), (1, True)):
        keep = PruningRule(pattern=(2, 4), dense=0.5).keep_mask(weight, power)
        assert keep[16:].all() == lower and keep[:16].all() != lower
    assert {get_method(name).power for name in ("wanda", "magnitude", "ria")} == {2}
    assert {get_method(name).power for name in ("sparsegpt", "taylor")} == {1}


def test_recovery_keeps_both_kinds(dense_model):
    model = copy.deepcopy(dense_model)
    prune(model, "wanda", pattern=(2, 4), dense=0.25, calibration=TOKENS, progress=False)
    linear = model.model.layers[0].mlp.down_proj
    before = fs.pack(linear.weight.detach().clone(), "hybrid_24").tensors["weight_kinds"]
    recover_(model, dense_model, TOKENS, LeastSquares(steps=2))
    assert torch.equal(fs.pack(linear.weight.detach(), "hybrid_24").tensors["weight_kinds"], before)


def test_zeros_that_were_there_stay(dense_model):
    model = copy.deepcopy(dense_model)
    weight = model.model.layers[0].self_attn.q_proj.weight
    with torch.no_grad():
        weight[:, ::3] = 0
    prune(model, "sparsegpt", pattern=(2, 4), dense=0.5, calibration=TOKENS, progress=False)
    assert not weight[:, ::3].any()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dense": 0.5}, "dense blocks stand beside 2:4 ones alone: give pattern="),
        ({"pattern": (4, 8), "dense": 0.5}, "dense blocks stand beside 2:4 ones alone"),
        ({"pattern": (2, 4), "vector_length": 4, "dense": 0.5}, "of single rows"),
        ({"pattern": (2, 4), "dense": 1.5}, "dense=1.5 is not a share of blocks from 0 to 1"),
        ({"pattern": (2, 4), "dense": -0.1}, "dense=-0.1 is not a share"),
        ({"pattern": (2, 4), "dense": 0.5, "sparsity": 0.5}, "has a sparsity of 0.25, not 0.5"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_changed(dense_model, given, message):
    model = copy.deepcopy(dense_model)
    with pytest.raises(ValueError, match=message):
        prune(model, "magnitude", progress=False, **given)
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), dense_model.parameters(), strict=True)
    )


def test_one_weight_by_a_rule_alone():
    weight = torch.randn(32, 512, generator=torch.Generator().manual_seed(3))
    rule = PruningRule(pattern=(2, 4), dense=0.25)
    assert rule.sparsity == 0.375
    kept = get_method("magnitude").prune_(weight, Statistics(), rule)
    assert weight.count_nonzero() == 0.625 * weight.numel()
    assert kept.unstructured is not None and 0.8 < kept.share < kept.unstructured
