# SPDX-License-Identifier: Apache-2.0
"""What the documents say of goals for fewer bits follows from the rows that were measured."""

from __future__ import annotations

import _values_goals

ABOUT = {"gpu": "NVIDIA H200", "torch": "2", "date": "2026-11-23T00:00"}


def row(goal: _values_goals.Goal, tokens: int, gain: float, shape: str = "28672x7168"):
    shape = goal.shape or shape
    named = {"pattern": goal.pattern, "shape": shape, "tokens": tokens}
    return named | {"ratio": gain, "over_fp8": gain / 2}


def table(goal: _values_goals.Goal, rows):
    others = [row(each, tokens, 1.0) for each in _values_goals.GOALS for tokens in each.tokens]
    others = [each for each in others if each["pattern"] != goal.pattern]
    text = _values_goals.goals({"rows": rows + others, "about": ABOUT})
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return {name: [cell.strip() for cell in cells] for name, *cells in lines}


def test_a_goal_is_the_mean_of_the_layers_and_tokens_that_it_names():
    (goal,) = (each for each in _values_goals.GOALS if each.pattern == "2:4, fp8 x fp8")
    gains = {16: 2.0, 32: 3.0, 64: 4.5}
    rows = [row(goal, tokens, gain) for tokens, gain in gains.items()]
    rows += [row(goal, 8, 99.0), row(goal, 16, 99.0, "4096x4096")]
    found = table(goal, rows)
    assert found[goal.title] == ["2.8", "**3.00**", "1.45", "**1.50**"]
    found = table(goal, [row(goal, tokens, gain * 0.9) for tokens, gain in gains.items()])
    assert found[goal.title] == ["2.8", "2.70", "1.45", "1.35"]
    others = [each for each in _values_goals.GOALS if each != goal]
    assert [found[each.title][1] for each in others] == ["1.00"] * len(others)
