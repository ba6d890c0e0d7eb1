# SPDX-License-Identifier: Apache-2.0
"""What the documents say of N:M goals follows from the rows that were measured."""

from __future__ import annotations

import _nm_goals
import pytest

ABOUT = {"gpu": "NVIDIA H200", "dtype": "bfloat16", "torch": "2", "date": "2026-11-23T00:00"}
ABOUT |= {"clocks.sm": "1980 MHz", "multiprocessors": 132}


def row(pattern="8:32, L=32", shape="28672x7168", tokens=8, us=25.0, **more):
    return {"pattern": pattern, "shape": shape, "tokens": tokens, "us": us, "dense_us": 100} | more


def table(rows, dtype="bfloat16"):
    text = _nm_goals.goals({"rows": rows, "about": ABOUT | {"dtype": dtype}})
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return {name: [cell.strip() for cell in cells] for name, *cells in lines}


def test_a_goal_counts_the_layers_and_tokens_that_it_names():
    rows = [row(of_bound=0.5), row(tokens=1, us=50.0, of_bound=0.5)]
    rows += [row(tokens=64, us=1.0), row(shape="14336x4096", us=40.0), row("4:32, L=64", us=1.0)]
    found = table(rows)
    goal, measured, bound = list(found)[2:5]
    assert goal == "1 to 8 tokens, over 100 M weights, L=32: goal"
    assert found[goal] == ["1.75", "2.25", "3.2", "5.5"]
    assert (measured, bound) == ("measured", "memory alone") and found[bound][2] == "5.66"
    assert not any("4096x4096" in name or "2:4" in name for name in found)  # not measured


@pytest.mark.parametrize(("us", "shown"), [(64.6, "1.55"), (64.5, "**1.55**")])
def test_a_goal_that_is_reached_is_bold(us, shown):
    found = table([row("2:4", us=us, cusparselt_us=50.0)])  # the last goal: all layers, 1.55
    assert found["measured"][0] == shown and found["cuSPARSELt"][0] == "2.00"


def test_prompts_compare_lengths_of_vectors_and_unpacking():
    rows = [row(f"16:32, L={length}", tokens=1024, us=us, unpacked_us=200.0)
            for length, us in ((32, 125.0), (64, 100.0), (128, 80.0))]  # fmt: skip
    found = table(rows)
    assert [found[f"measured, L={length}"][0] for length in (64, 128, 32)] == [
        *("1.00", "**1.25**", "0.80")  # only the long vectors have a goal, 1.1
    ]
    assert found["unpacked for cuBLAS"][0] == "0.50"


def test_the_peak_of_the_fma_units_is_that_of_the_gpu():
    peak = 2 * 128 * 132 * 1.98e9 * 1e-12
    rows = [{"shape": "4096x4096", "tokens": 256, "zeros": 0.75, "us": 50, "dense_us": 100}]
    found = table([rows[0] | {"dense_tflops": peak / 2}], "float32")
    assert found["measured"][2] == "2.00" and found["FMA units alone"][2] == "8.00"
    assert table(rows, "bfloat16").keys() == {"dense time / time, zeros:", "---"}


def test_what_a_layer_takes_beside_its_bytes():
    rows = [
        row(f"{n}:32, L=32", tokens=tokens, bytes=n * 10**6, us=5 + n / 4)
        for n in (16, 8, 4)
        for tokens in (1, 8)
    ]
    text = _nm_goals.fixed({"rows": [*rows, row("2:4", bytes=1)], "about": ABOUT})
    assert "| 28672x7168 | 5.0 | 4.0 | 6.0 | 5.0 | 4.0 | 6.0 |" in text
