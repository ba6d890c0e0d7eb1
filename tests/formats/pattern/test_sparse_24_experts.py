# SPDX-License-Identifier: Apache-2.0
"""A layer of experts in sparse_24, on a CPU: the op, and the order of slots."""

from __future__ import annotations

import pytest
import torch
from emulated_experts import (
    GPT_OSS,
    SILU,
    Answer,
    Case,
    Experts,
    judge_order,
    judge_y,
    random_experts,
)
from torch.library import opcheck

from flashsparse_plugin.formats.pattern.options import PatternOptions
from flashsparse_plugin.ops import ops

MAP = torch.tensor([-1, 2, 0, -1, 1]).int()


def case_of(experts: Experts, **rest) -> Case:
    ids = torch.tensor([[1, 2], [2, 4], [0, 3], [4, 1], [9, -1]]).int()
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(len(ids), experts.gate.shape[2], generator=generator).to(experts.gate.dtype)
    return Case(experts, x, ids, torch.rand(ids.shape, generator=generator), map=MAP, **rest)


def arguments(case: Case) -> tuple:
    """Of the op; gate and up packed apart, as a checkpoint has them."""
    experts, (count, intermediate, _) = case.experts, case.experts.gate.shape
    units, scales = [], []
    for packed in experts.packed:
        units.append(packed.tensors["units"].unflatten(0, (count, -1)))
        scale = packed.tensors.get("weight_scale")
        scales.append(None if scale is None else scale.view(count, -1))
    options, (alpha, offset, limit) = experts.options, case.activation
    activation = ("swigluoai", limit) if offset else ("silu", 0.0)
    return (
        *(case.x, case.ids, case.weights, units[0], scales[0], units[1], scales[1]),
        *(intermediate, case.x.dtype, options.values, options.group or 0, *activation, alpha),
        *(experts.biases or (None, None)),
        *(case.map, case.weights_on_input),
    )


@pytest.mark.parametrize(
    ("values", "group", "activation", "weights_on_input"),
    [
        ("native", None, SILU, False),
        ("int8", None, GPT_OSS, False),
        ("int4", 32, SILU, True),
    ],
)
def test_a_layer_is_the_loop_over_experts(values, group, activation, weights_on_input):
    options = PatternOptions(n=2, m=4, values=values, group=group)
    experts = random_experts(3, 40, 24, torch.bfloat16, options, has_bias=values != "native")
    case = case_of(experts, activation=activation, weights_on_input=weights_on_input)
    judge_y(case, ops.sparse_24_experts(*arguments(case)))
    opcheck(ops.sparse_24_experts.default, arguments(case))


@pytest.mark.parametrize("block", [1, 8, 32])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_slots_are_ordered_by_expert(block, dtype):
    case = case_of(random_experts(3, 40, 24))
    slots, experts, blocks = ops.experts_order(case.ids.to(dtype), 3, block, MAP)
    judge_order(case, Answer(block, slots.tolist(), experts.tolist(), int(blocks), case.x))


def test_what_does_not_fit_is_refused():
    case = case_of(random_experts(3, 40, 24))
    good = arguments(case)
    for place, wrong, told in (
        (3, good[3][:, :-1], "w13 must be units"),
        (5, good[5].repeat(1, 2, 1, 1), "w2 must be units"),
        (4, torch.ones(3, 64), "w13_scale must be"),
        (2, case.weights[:-1], "topk_ids and topk_weights"),
        (11, "relu", "there is no relu"),
    ):
        with pytest.raises(RuntimeError, match=told):
            ops.sparse_24_experts(*good[:place], wrong, *good[place + 1 :])
    for ids, experts, told in (
        (case.ids.float(), 3, "int32 or int64"),
        (case.ids, 0, "between 1 and 1024 experts"),
        (case.ids[0], 3, "must have 2 dimensions"),
    ):
        with pytest.raises(RuntimeError, match=told):
            ops.experts_order(ids, experts, 8)
