# SPDX-License-Identifier: Apache-2.0
"""The least loss of so many bytes, against trying everything."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashsparse_plugin.fitting.knapsack import choose, hull

POINTS = st.lists(
    st.tuples(st.integers(1, 40), st.floats(0, 1, allow_subnormal=False)), min_size=1, max_size=5
)


@settings(max_examples=200, deadline=None)
@given(st.lists(POINTS, min_size=1, max_size=4), st.floats(0, 1))
def test_within_one_step_of_the_best(layers, share):
    least = sum(min(points)[0] for points in layers)
    most = sum(max(points)[0] for points in layers)
    budget = round(least + share * (most - least))
    picked = choose(layers, budget)
    taken = [points[number] for points, number in zip(layers, picked, strict=True)]
    assert sum(size for size, _ in taken) <= budget
    best = min(
        sum(loss for _, loss in every)
        for every in itertools.product(*layers)
        if sum(size for size, _ in every) <= budget
    )
    steps = [points[own[0]][1] - points[own[-1]][1] for points in layers for own in [hull(points)]]
    assert best - 1e-9 <= sum(loss for _, loss in taken) <= best + max(steps) + 1e-9


def test_the_price_of_a_byte_is_the_same_everywhere():
    cheap, dear = [(10, 1.0), (20, 0.9), (40, 0.89)], [(10, 5.0), (20, 2.0), (40, 1.0)]
    assert choose([cheap, dear], 20) == [0, 0]
    assert choose([cheap, dear], 30) == [0, 1]
    assert choose([cheap, dear], 50) == [0, 2]
    assert choose([cheap, dear], 60) == [1, 2]
    assert choose([cheap, dear], 1000) == [2, 2]


def test_points_that_are_never_the_best_are_left_out():
    assert hull([(10, 1.0), (20, 1.0), (30, 0.9), (31, 0.1), (10, 2.0)]) == [0, 3]


def test_too_few_bytes_are_refused():
    with pytest.raises(ValueError, match="5 bytes more are needed than the budget of 15"):
        choose([[(10, 1.0)], [(10, 1.0), (20, 0.0)]], 15)
