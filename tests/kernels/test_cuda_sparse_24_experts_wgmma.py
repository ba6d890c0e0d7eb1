# SPDX-License-Identifier: Apache-2.0
"""The experts of mixtures in sparse_24 by wgmma: the kernel's own source, run by the emulator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from emulated_experts import (
    GPT_OSS,
    SILU,
    Case,
    Experts,
    WgmmaPlan,
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

DRIVER = "sparse_24/experts_wgmma_driver"


def many(*arguments: Any, **rest: Any) -> Experts:
    """Random experts, as wgmma multiplies them."""
    return replace(random_experts(*arguments, **rest), rounded_groups=(32, 64, 128))


def plans(shape: int, *, down: int = 1, stages: int = 4, clusters: int = 3):
    """w13's and w2's."""
    return (
        WgmmaPlan(down, stages, clusters, 0, shape),
        WgmmaPlan(down, stages + 1, clusters + 1, 0, shape),
    )


def native_cases() -> list[Case]:
    """Every routing that differs, by every shape, in clusters of one, two and four blocks."""
    small = many(5, 300, 40)
    halves = many(4, 264, 72, torch.float16, has_bias=True)
    biased = many(4, 264, 136, has_bias=True)
    everyone = torch.tensor([[3, token % 3] for token in range(70)]).int()  # one hot expert
    elsewhere = torch.tensor([-1, 2, 0, -1, 1, -1, 3]).int()  # two more than are local
    return [
        routed(small, uniform(11, 2, 5), plans=plans(0)),
        routed(small, everyone, 1, plans=plans(0, down=2, stages=4, clusters=1)),
        routed(biased, everyone.long(), 2, activation=GPT_OSS, plans=plans(0, down=4)),
        routed(small, uniform(1, 3, 5), 4, plans=plans(0, clusters=9)),  # most have nothing to do
        routed(halves, uniform(9, 3, 7), 5, map=elsewhere, plans=plans(2, stages=5)),
        routed(biased, uniform(33, 1, 4), 7, weights_on_input=True, plans=plans(3, down=2)),
        routed(biased, uniform(40, 2, 4), 6, plans=plans(3, down=4, clusters=2)),
        routed(halves, torch.tensor([[0, 9], [-1, 2]]).int(), 8, plans=plans(2)),  # no such
        routed(halves, torch.full((3, 2), -1).int(), 9, plans=plans(2)),  # none at all
    ]


CODES = (  # what the driver has: values, group, dtype, shape
    ("fp8_e4m3", 128, torch.float16, 3),
    ("int8", None, torch.bfloat16, 1),
    ("int4", 128, torch.bfloat16, 0),
    ("int4", 32, torch.bfloat16, 0),
)


def code_cases() -> list[Case]:
    cases = []
    for number, (values, group, dtype, shape) in enumerate(CODES):
        options = PatternOptions(n=2, m=4, values=values, group=group)
        experts = many(3, 300, 56, dtype, options, has_bias=number % 2 == 1)
        activation = GPT_OSS if number % 3 == 1 else SILU
        case = routed(experts, uniform(12, 2, 3, number), number, activation=activation)
        cases.append(replace(case, plans=plans(shape, down=1 + number % 2)))
    return cases


def test_every_routing_is_right(driver):
    require_all(driver(DRIVER, "plain"), native_cases())


def test_codes_are_multiplied(driver):
    require_all(driver(DRIVER, "plain"), code_cases())


def test_layers_as_they_are_planned(driver):
    """With few and many multiprocessors."""
    experts, planned = many(4, 520, 72), (WgmmaPlan(), WgmmaPlan())
    cases = [
        routed(experts, uniform(tokens, 2, 4), tokens, plans=planned, gpu=(count, 227 << 10))
        for tokens, count in ((1, 4), (60, 3), (130, 5))
    ]
    require_all(driver(DRIVER, "plain"), cases)


def test_schedules_give_the_same_bits(driver):
    for case in (native_cases()[1], code_cases()[2]):
        require_same_bits(driver(DRIVER, "plain"), case)


def test_a_token_has_the_same_bits_in_any_batch(driver):
    """Alone, among others that make its experts' blocks larger, by any plan."""
    experts = many(3, 300, 40)
    batch = routed(experts, uniform(70, 2, 3), plans=plans(2))
    alone = [
        replace(batch, x=batch.x[i:j], ids=batch.ids[i:j], weights=batch.weights[i:j],
                plans=plans(shape, down=down, clusters=clusters))
        for i, j, shape, down, clusters in ((0, 1, 0, 1, 2), (3, 9, 3, 2, 1))
    ]  # fmt: skip
    found = require_all(driver(DRIVER, "plain"), [batch, *alone])
    assert torch.equal(found[1].y, found[0].y[0:1])
    assert torch.equal(found[2].y, found[0].y[3:9])


def test_nan_of_a_token_stays_with_it(driver):
    require_nan_stays(driver(DRIVER, "plain"), native_cases()[1])


def switched_driver() -> tuple[Path, list[str]]:
    """Under the thread sanitizer: one program for what is right and for all mutants."""
    pattern = r"(?:__syncwarp|sync_threads_of)\([^;]*\);"
    headers, places = with_switched_barriers(["cuda/experts/wgmma_store.cuh"], pattern)
    return compile_driver(DRIVER, "thread", headers), places


@pytest.mark.parametrize("sanitizer", SANITIZED)
def test_sanitizers_find_nothing(driver, sanitizer):
    binary = switched_driver()[0] if sanitizer == "thread" else driver(DRIVER, sanitizer)
    native = native_cases()
    # Those that take longest, but for clusters of which others have as many blocks and tiles.
    cases = [case for number, case in enumerate(native) if number not in (2, 5)] + code_cases()
    require_all(binary, [replace(case, seed=7) for case in cases])


@pytest.mark.slow
def test_no_barrier_can_be_spared():
    """Without any one of them a race is found, a deadlock, or a wrong result."""
    binary, places = switched_driver()
    # Two tiles of a warp, whose buffers follow each other; an odd number of barriers in between.
    cases = [replace(native_cases()[number], seed=seed) for number in (0, 1, 5) for seed in (0, 7)]
    assert spared(binary, places, cases, judge, split) == []


def test_a_plan_that_cannot_be_is_refused(driver):
    case = native_cases()[0]
    for plan, told in (
        (WgmmaPlan(shape=4), "no such shape"),
        (WgmmaPlan(shape=1), "no such shape"),  # for native values
        (WgmmaPlan(down=3, shape=0), "1, 2, 4 or 8 blocks"),
        (WgmmaPlan(stages=1, shape=0), "2 to 16 stages"),
        (WgmmaPlan(stages=16, shape=3), "too little shared memory"),
        (WgmmaPlan(clusters=0, shape=0), "no thread block"),
    ):
        ran = run(driver(DRIVER, "plain"), [replace(case, plans=(plan, plan))])
        assert ran.returncode == 1 and told in ran.stderr.decode()
