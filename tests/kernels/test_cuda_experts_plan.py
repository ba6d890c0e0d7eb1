# SPDX-License-Identifier: Apache-2.0
"""How the host cuts the products of a layer of experts, held to what was measured."""

from __future__ import annotations

import statistics
from collections import defaultdict

import _results
import pytest
import torch

from flashsparse_plugin.experts.grouped import unpacking_is_faster
from flashsparse_plugin.formats import get_format
from flashsparse_plugin.gpu import Gpu
from flashsparse_plugin.ops.plan import Product, candidates, choose_kernel, plan

LAYERS = {"Qwen3-30B-A3B": (768, 2048, 128, 8), "Mixtral-8x7B": (14336, 4096, 8, 2)}
VALUES = {"2:4": ("native", 0), "2:4, int8": ("int8", 0), "2:4, int4 by 128": ("int4", 128)}
GPUS = {"H100": "nvidia-h100-80gb-hbm3", "H200": "nvidia-h200"}
Point = tuple[str, str, int]  # model, kind, tokens


def product_of(point: Point, name: str) -> Product:
    model, kind, tokens = point
    rows, cols, experts, top_k = LAYERS[model]
    values, group = VALUES[kind]
    is_up = name.endswith("up")
    nbytes = experts * rows * cols * (2 if is_up else 1) * 5 // 8
    shape = (rows, cols) if is_up else (cols, rows)
    return Product(shape, tokens, nbytes, values, group, (2, 4, 1), experts=(experts, top_k))


def planned(point: Point, name: str, gpu: str) -> tuple[int, ...]:
    return plan(f"sparse_24_experts.{name}", product_of(point, name), Gpu.known(gpu)).numbers


def measured(
    gpu: str, file: str = "experts_launches.csv"
) -> dict[Point, dict[tuple[str, tuple[int, ...]], float]]:
    """Microseconds of a layer with a launch of one of its products, by layers."""
    found: dict[Point, dict[tuple[str, tuple[int, ...]], float]] = defaultdict(dict)
    path = _results.FOLDER / GPUS[gpu] / file
    for row in _results.read(path)["rows"]:
        if row["product"] == "planned":
            continue
        launch = tuple(map(int, row["launch"].split()))
        found[row["model"], row["kind"], row["tokens"]][row["product"], launch] = row["us"]
    return found


@pytest.mark.parametrize("gpu", GPUS)
def test_plans_are_near_the_fastest_launches(gpu):
    """After a change of the plan, measure: benchmarks/gpu/experts_launches.py."""
    lost, of_shapes = [], []
    for point, times in measured(gpu).items():
        for name in ("up", "down"):
            launch = planned(point, name, gpu)
            own = {numbers: us for (product, numbers), us in times.items() if product == name}
            of_shape = [us for numbers, us in own.items() if numbers[0] == launch[0]]
            lost.append(own[launch] / min(of_shape))
            of_shapes.append(min(of_shape) / min(own.values()))
    assert len(lost) >= 60
    assert statistics.geometric_mean(lost) < 1.02 and max(lost) < 1.12
    assert statistics.geometric_mean(of_shapes) < 1.03


@pytest.mark.parametrize("gpu", GPUS)
def test_estimates_are_near_what_the_fastest_launches_took(gpu):
    ratios = []
    for point, times in measured(gpu).items():
        found = [
            plan(f"sparse_24_experts.{name}", product_of(point, name), Gpu.known(gpu)).seconds
            for name in ("up", "down")
        ]
        ratios.append(sum(found) * 1e6 / min(times.values()))
    assert 0.92 < statistics.geometric_mean(ratios) < 1.08
    assert min(ratios) > 0.8 and max(ratios) < 1.4  # Mixtral in 16 bits with 64 tokens


MANY = "experts_launches_many.csv"  # of the kernel by wgmma, with the other's best beside them


def test_plans_by_wgmma_are_near_the_fastest_launches():
    """And it is chosen where it is faster than the other kernel."""
    lost, ratios, judged = [], [], 0
    for point, times in measured("H200", MANY).items():
        few, many = (
            [us for (product, _), us in times.items() if product in names]
            for names in (("up", "down"), ("many_up", "many_down"))
        )
        products = [(f"many_{name}", product_of(point, name)) for name in ("up", "down")]
        plans = [
            plan(f"sparse_24_experts.{name}", product, Gpu.known("H200"))
            for name, product in products
        ]
        own = [(name, each.numbers) for (name, _), each in zip(products, plans, strict=True)]
        if known := [times[each] for each in own if each in times]:
            lost.append(min(known) / min(many))
            ratios.append(sum(each.seconds for each in plans) * 1e6 / min(many))
        if few and many:
            chosen = choose_kernel("sparse_24_experts", product_of(point, "up"), Gpu.known("H200"))
            share = min(many) / min(few)
            assert chosen == ("many" if share < 1 else "few") or 0.98 < share < 1.02, (point, share)
            judged += 1
    assert len(lost) >= 20 and judged >= 20
    assert statistics.geometric_mean(lost) < 1.03 and max(lost) < 1.15
    assert 0.85 < statistics.geometric_mean(ratios) < 1.15


def test_no_layer_is_unpacked_that_is_slower_so():
    """On an H200 none of up to 256 tokens is faster."""
    rows = _results.read(_results.FOLDER / GPUS["H200"] / "experts_layer.csv")["rows"]
    times = {(r["model"], r["tokens"], r["kind"]): r["layer_us"] for r in rows}
    judged = 0
    for model, tokens, kind in times:
        if (model, tokens, f"{kind}, unpacked") not in times or kind not in VALUES:
            continue
        values, group = VALUES[kind]
        options = {"n": 2, "m": 4} | ({} if values == "native" else {"values": values})
        options |= {"group": group} if group else {}
        stored = get_format("nm_vector").scheme(torch.bfloat16, options)
        form = stored.format.runtime(stored, torch.device("cuda"))
        inner, hidden, experts, top_k = LAYERS[model]
        sizes = tuple(
            experts * form.format.nbytes(form, shape)
            for shape in ((2 * inner, hidden), (hidden, inner))
        )
        chosen = unpacking_is_faster(
            form, (hidden, inner), sizes, tokens, (experts, top_k), ("NVIDIA H200", (9, 0))
        )
        assert not chosen, (model, tokens, kind)
        judged += 1
    assert judged == 48


def test_products_of_a_layer_share_their_blocks_of_slots():
    for gpu in GPUS:
        for point in measured(gpu):
            assert planned(point, "up", gpu)[0] == planned(point, "down", gpu)[0]


def test_launches_of_every_shape_are_compared():
    found = candidates("sparse_24_experts.up", product_of(("Mixtral-8x7B", "2:4, int8", 64), "up"),
                       Gpu.known("H100"))  # fmt: skip
    assert {launch.numbers[0] for launch in found} == {0, 1, 2}
