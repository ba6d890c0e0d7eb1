# SPDX-License-Identifier: Apache-2.0
"""The tables that ship are made of what was measured of either implementation."""

from __future__ import annotations

import dataflow
import pytest

from flashsparse_plugin.dataflow.tuner import entry_of


def row(tokens, us, dense_us, **either):
    made = {"shape": "256x128", "sparsity": 80, "tokens": tokens, "us": us, "dense_us": dense_us}
    return made | {"format": "tiled_csl", "packed_gb_s": 1.0} | either


ROWS = [
    row(8, 10.0, 20.0),
    row(64, 30.0, 21.0, sparse_us=31.0, unpacked_us=61.0),
    row(96, 40.0, 22.0, sparse_us=51.0, unpacked_us=62.0),
    row(192, 80.0, 24.0, sparse_us=90.0, unpacked_us=64.0),
]


def test_what_was_measured_of_either_implementation_is_taken():
    other = [each | {"format": "another"} for each in ROWS]
    ((weight, times),) = dataflow.packed_times(ROWS + other, "tiled_csl").items()
    assert (weight.shape, weight.density, weight.nbytes) == ((256, 128), 0.2, 80_000)
    found = {
        tokens: tuple(round(each[name] * 1e6, 3) for name in ("sparse", "library"))
        for tokens, each in times.items()
    }
    assert found[8] == (10, 60)  # unpacking takes as long as of 64 tokens
    assert found[16] == (13, 60.143)  # on the lines between
    assert (found[64], found[96], found[192]) == ((31, 61), (51, 62), (90, 64))
    assert found[128] == (64, 62.667)
    assert max(found) == 192


def test_each_kernel_is_told_apart_where_it_was_measured():
    """The kernel for few tokens alone below, the one for many alone above."""
    crossing = {16: (11.0, 20.0), 64: (31.0, 25.0)}
    rows = [
        row(8, 10.0, 20.0),
        row(16, 11.0, 20.0, few_us=11.0, many_us=20.0),
        row(64, 25.0, 21.0, few_us=31.0, many_us=25.0, sparse_us=25.0, unpacked_us=61.0),
        row(192, 40.0, 24.0, sparse_us=41.0, unpacked_us=35.0),
    ]
    own = [each | {"format": "tiled_bitmap"} for each in rows]
    ((weight, times),) = dataflow.packed_times(own, "tiled_bitmap").items()
    for tokens, (few, many) in crossing.items():
        assert times[tokens]["few"] == few * 1e-6 and times[tokens]["many"] == many * 1e-6
    assert set(times[8]) == {"few", "library"} and set(times[192]) == {"many", "library"}
    entry = entry_of(weight, times)
    found = [(each.max_tokens, each.implementation) for each in entry.ranges]
    assert found == [(32, "few"), (129, "many"), (None, "library")]


def test_without_it_the_program_says_so():
    with pytest.raises(SystemExit, match="does not say what unpacking 256x128 takes"):
        dataflow.packed_times(ROWS[:1], "tiled_csl")
