# SPDX-License-Identifier: Apache-2.0
"""The program that times launches of every kernel, without a GPU."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter

import _launches
import _results
import pytest
import sweep
import torch
from _launches import KERNELS, Launch, launches_of
from _layers import layer

from flashsparse_plugin.gpu import GPUS
from flashsparse_plugin.ops.plan import Product, candidates, plan

H200 = GPUS[0]


@pytest.fixture
def run(monkeypatch, tmp_path):
    def run(*options, status=0):
        toy = ["--device", "cpu", "--layers", "48x256", "--replays", "1", "--out", str(tmp_path)]
        monkeypatch.setattr(sys, "argv", [sweep.__file__, *toy, *options])
        assert sweep.main() == status
        return _results.read(tmp_path / "sweep.csv")["rows"] if status == 0 else []

    return run


def test_every_kernel_has_points(run):
    """Of every kind of values, each right on a CPU too."""
    assert tuple(sweep.SWEPT) == KERNELS
    rows = run("--tokens", "3", "--most", "1", "--near")
    found = {(row["kernel"], row["values"]) for row in rows}
    assert found == {(kernel, kind) for kernel, (kinds, _) in sweep.SWEPT.items() for kind in kinds}
    assert all(row["planned"] and min(row["us"], row["near_us"]) > 0 for row in rows)


def test_a_wrong_product_is_told(run, monkeypatch, capsys):
    monkeypatch.setattr(sweep, "error_of", lambda y, exact, values: 1.5)
    run("--kernels", "dense.gemv", "--tokens", "2", "--most", "2", "--check", status=1)
    told = capsys.readouterr().out
    assert "WRONG dense.gemv, dense, 48x256, 2 tokens, shape=" in told
    assert "2 of 2 launches are wrong" in told


def test_a_lost_element_is_wrong():
    small = layer("64x512")
    weight = sweep.Weight("2:4 int8", small, torch.bfloat16, torch.device("cpu"))
    x = torch.randn(2, 512).bfloat16()
    exact = weight.exact(x)
    y = weight.multiply("sparse_24.few")(x)
    assert sweep.error_of(y, exact, "2:4 int8") <= 1
    y[1, 63] *= 1.02
    assert sweep.error_of(y, exact, "2:4 int8") > 1


def test_a_launch_is_given_to_its_product(monkeypatch):
    given = []

    @contextlib.contextmanager
    def override(kernel, numbers):
        given.append((kernel, numbers))
        yield
        given.append("ended")

    monkeypatch.setattr(_launches, "override", override)
    launch = Launch("dense.gemv", (3,))
    assert launch.of(lambda x, y: given.append(x) or y)(1, y=2) == 2
    assert given == [("dense.gemv", (3,)), 1, "ended"]
    assert str(launch) == "dense.gemv shape=3"


def test_the_planned_launch_and_the_best_of_each_shape_come_first():
    product = Product((4096, 4096), 8, 10 << 20, "int8")
    every = candidates("sparse_24.few", product, H200)
    shapes = len({each.numbers[0] for each in every})
    found = launches_of("sparse_24.few", product, H200, most=shapes + 3)
    assert len({each.numbers for each in found}) == shapes + 3
    assert found[0].numbers == plan("sparse_24.few", product, H200).numbers
    assert {each.numbers[0] for each in found} == {each.numbers[0] for each in every}
    times = [each.seconds for each in found[shapes:]]
    assert times == sorted(times)


def test_losses_are_those_of_the_planned_launch():
    def row(tokens, us, planned):
        own = {"kernel": "dense.gemv", "values": "dense", "shape": "8x8", "tokens": tokens}
        return own | {"us": us, "planned": planned}

    rows = [row(1, 4.0, True), row(1, 3.2, False), row(2, 5.0, True), row(2, 6.0, False)]
    (own,) = sweep.losses(rows).values()
    assert own == [(1.25, "dense, 8x8, 1 tokens"), (1.0, "dense, 8x8, 2 tokens")]


def test_kernels_may_be_named_by_their_format():
    assert sweep._kernels("sparse_24,dense.gemv") == [
        "dense.gemv", "sparse_24.few", "sparse_24.many",
    ]  # fmt: skip
    assert Counter(each.split(".")[0] for each in KERNELS)["nm_gather"] == 3
    with pytest.raises(SystemExit, match="there is no kernel sparse_25, but dense.gemv"):
        sweep._kernels("sparse_24,sparse_25")
