# SPDX-License-Identifier: Apache-2.0
"""The experts of mixtures in sparse_24: the CUDA kernels' own source, run by the emulator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from emulated_experts import (
    GPT_OSS,
    SILU,
    Case,
    Experts,
    Plan,
    judge,
    random_experts,
    require_all,
    require_nan_stays,
    require_same_bits,
    routed,
    split,
    uniform,
)
from emulated_products import run, spared
from emulation import SANITIZED, compile_driver, with_switched_barriers

from flashsparse_plugin.formats.pattern.options import PatternOptions

DRIVER = "sparse_24/experts_driver"
# A step of w13 has three blocks of 256 columns, the last step two; w2 has one step.
HIDDEN, INTERMEDIATE = 256 * 5 - 12, 40


def plans(shape: int, *, row_warps: int = 1, x_stages: int = 2, blocks: int = 3):
    """w13's and w2's; 2 and 4 stages hold all columns of x, 1 and 3 of them do not."""
    return (
        Plan(row_warps, 2, x_stages, blocks, shape),
        Plan(row_warps, 3, x_stages, blocks + 1, shape),
    )


def native_cases() -> list[Case]:
    """Every routing that differs, by every shape, x resident and not; both dtypes."""
    small = random_experts(5, HIDDEN, INTERMEDIATE)
    halves = random_experts(4, 264, 72, torch.float16, has_bias=True)
    biased = random_experts(4, 264, 72, has_bias=True)
    everyone = torch.tensor([[3, token % 3] for token in range(21)]).int()  # one hot expert
    elsewhere = torch.tensor([-1, 2, 0, -1, 1, -1, 3]).int()  # two more than are local
    return [
        routed(small, uniform(11, 2, 5), plans=plans(0, x_stages=3)),
        routed(small, everyone, 1, plans=plans(0, row_warps=2)),
        routed(small, everyone, 2, plans=plans(1, x_stages=4, blocks=2)),
        routed(small, everyone.long(), 3, plans=plans(2, x_stages=1, blocks=1)),
        routed(small, uniform(1, 3, 5), 4, plans=plans(0, blocks=9)),  # most have nothing to do
        routed(halves, uniform(9, 3, 7), 5, map=elsewhere, plans=plans(0, row_warps=4)),
        routed(biased, uniform(40, 2, 4), 6, activation=GPT_OSS, plans=plans(2, row_warps=3)),
        routed(biased, uniform(13, 1, 4), 7, weights_on_input=True, plans=plans(1, row_warps=2)),
        routed(halves, torch.tensor([[0, 9], [-1, 2]]).int(), 8),  # no such experts
        routed(halves, torch.full((3, 2), -1).int(), 9),  # none at all
        many_slots(halves),
    ]


def many_slots(experts: Experts) -> Case:
    """More than one warp orders at once; of most no expert is here."""
    ids = torch.full((5, 210), -1).int()
    ids[:, ::13] = torch.arange(17).int() // 6
    return routed(experts, ids, 10, plans=plans(0, row_warps=2))


CODES = (  # what the driver has: values, group, dtype, shape
    ("fp8_e4m3", None, torch.float16, 0),
    ("fp8_e4m3", 128, torch.bfloat16, 0),
    ("int8", None, torch.bfloat16, 2),
    ("int4", 128, torch.bfloat16, 0),
    ("int4", 128, torch.bfloat16, 2),
    ("int4", 32, torch.float16, 1),
)


def code_cases() -> list[Case]:
    cases = []
    for number, (values, group, dtype, shape) in enumerate(CODES):
        options = PatternOptions(n=2, m=4, values=values, group=group)
        experts = random_experts(3, 300, 56, dtype, options, has_bias=number % 2 == 1)
        activation = GPT_OSS if number % 3 == 1 else SILU
        case = routed(experts, uniform(12, 2, 3, number), number, activation=activation)
        cases.append(replace(case, plans=plans(shape, row_warps=2)))
    return cases


def test_every_routing_is_right(driver):
    require_all(driver(DRIVER, "plain"), native_cases())


def test_codes_are_multiplied(driver):
    require_all(driver(DRIVER, "plain"), code_cases())


def test_layers_as_they_are_planned(driver):
    """On GPUs with little and much shared memory, from one token to many an expert."""
    experts = random_experts(4, 520, 72)
    cases = [
        routed(experts, uniform(tokens, 2, 4), tokens, plans=(Plan(), Plan()), gpu=gpu)
        for tokens in (1, 9, 50)
        for gpu in ((4, 227 << 10), (3, 99 << 10))
    ]
    require_all(driver(DRIVER, "plain"), cases)


def test_schedules_give_the_same_bits(driver):
    for case in (native_cases()[1], code_cases()[4]):
        require_same_bits(driver(DRIVER, "plain"), case)


@pytest.mark.parametrize("values", ["native", "int4"])
def test_a_token_has_the_same_bits_in_any_batch(driver, values):
    """Alone, among others that make its experts' blocks larger, by any plan."""
    options = PatternOptions(n=2, m=4, values=values, group=128 if values == "int4" else None)
    experts = random_experts(3, HIDDEN, INTERMEDIATE, options=options)
    batch = routed(experts, uniform(14, 2, 3), plans=plans(2))
    alone = [
        replace(batch, x=batch.x[i:j], ids=batch.ids[i:j], weights=batch.weights[i:j],
                plans=plans(0, row_warps=row_warps, x_stages=x_stages, blocks=blocks))
        for i, j, row_warps, x_stages, blocks in ((0, 1, 1, 2, 2), (3, 9, 2, 3, 1))
    ]  # fmt: skip
    found = require_all(driver(DRIVER, "plain"), [batch, *alone])
    assert torch.equal(found[1].y, found[0].y[0:1])
    assert torch.equal(found[2].y, found[0].y[3:9])


def test_nan_of_a_token_stays_with_it(driver):
    require_nan_stays(driver(DRIVER, "plain"), native_cases()[1])


def switched_driver() -> tuple[Path, list[str]]:
    """Under the thread sanitizer: one program for what is right and for all mutants."""
    parts = [f"cuda/experts/{part}.cuh" for part in ("order", "x_stages", "warp_sums")]
    parts.append("cuda/sparse_24/experts.cuh")
    pattern = r"(?:__syncthreads|__syncwarp|sync_threads_of|mbarrier_wait)\([^;]*\);"
    headers, places = with_switched_barriers(parts, pattern)
    return compile_driver(DRIVER, "thread", headers), places


@pytest.mark.parametrize("sanitizer", SANITIZED)
def test_sanitizers_find_nothing(driver, sanitizer):
    binary = switched_driver()[0] if sanitizer == "thread" else driver(DRIVER, sanitizer)
    require_all(binary, [replace(case, seed=7) for case in (*native_cases(), *code_cases())])


@pytest.mark.slow
def test_no_barrier_can_be_spared():
    """Without any one of them a race is found, a deadlock, or a wrong result."""
    binary, places = switched_driver()
    # x that is filled again, resident and not; scales of groups; a warp that orders more than once.
    cases = [native_cases()[1], native_cases()[0], code_cases()[3], native_cases()[-1]]
    cases = [cases[0], *(replace(case, seed=7) for case in cases)]
    assert spared(binary, places, cases, judge, split) == []


def test_a_plan_that_cannot_be_is_refused(driver):
    case = native_cases()[0]
    for plan, told in (
        (Plan(shape=3), "no such shape"),
        (Plan(row_warps=6, shape=0), "fewer warps"),
        (Plan(weight_stages=0, shape=0), "at least one stage"),
        (Plan(x_stages=200, shape=0), "too little shared memory"),
        (Plan(blocks=0, shape=0), "no thread block"),
    ):
        ran = run(driver(DRIVER, "plain"), [replace(case, plans=(plan, plan))])
        assert ran.returncode == 1 and told in ran.stderr.decode()
    int8 = PatternOptions(n=2, m=4, values="int8", group=32)
    few = routed(random_experts(2, 264, 40, options=int8), uniform(2, 1, 2))
    ran = run(driver(DRIVER, "plain"), [few])
    assert ran.returncode == 1 and "int8 (group 0)" in ran.stderr.decode()
