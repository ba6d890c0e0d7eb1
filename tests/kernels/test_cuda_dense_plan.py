# SPDX-License-Identifier: Apache-2.0
"""Which compiled shape of the dense kernels runs, how its work is cut, whether it fits a GPU."""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from emulation import KERNELS, compile_emulator
from resources_program import resources

MAX_ROW_BLOCKS = 4096  # that have a counter each, where K is cut
GPUS = {"H200": (132, 227 << 10), "A100": (108, 163 << 10), "RTX 4060": (24, 99 << 10)}


class Shape(NamedTuple):
    gemv: int
    tokens: int
    rows: int
    blocks: int
    threads: int
    shared_bytes: int


class Plan(NamedTuple):
    shape: int
    split: int
    row_blocks: int
    partial_floats: int
    max_split: int
    gemv: int


@pytest.fixture(scope="module")
def binary(tmp_path_factory):
    path = tmp_path_factory.mktemp("plan") / "dense_plan_driver"
    sources = [Path(__file__).with_name("dense_plan_driver.cpp")]
    sources += [KERNELS / "cuda" / "dense" / "dense_plan.cpp"]
    command = ["g++", "-std=c++17", "-fsanitize=undefined", "-fno-sanitize-recover=all", "-Wall"]
    command += ["-Wextra", "-Werror", f"-I{KERNELS}", *map(str, sources)]
    command += [str(compile_emulator("plain")), "-o", str(path)]
    subprocess.run(command, check=True)
    return path


@pytest.fixture(scope="module")
def shapes(binary):
    said = subprocess.run([binary], check=True, capture_output=True, text=True).stdout
    found = [Shape(*map(int, line.split())) for line in said.splitlines()]
    return [s for s in found if not s.gemv], [s for s in found if s.gemv]


def plans(binary, problems) -> list[Plan]:
    fed = "".join(" ".join(map(str, map(int, problem))) + "\n" for problem in problems)
    command = [str(binary), "plan"]
    said = subprocess.run(command, input=fed, check=True, capture_output=True, text=True).stdout
    return [Plan(*map(int, line.split())) for line in said.splitlines()]


def test_every_plan_can_be_launched(binary, shapes):
    flat, gemv = shapes
    sizes = (1, 7, 64, 129, 1000, 4096, 11008, 50272, 300_000)
    gpus = ((1, 99 << 10), *GPUS.values())
    problems = list(itertools.product(sizes, sizes, (1, 4, 8, 9, 16), (0, 1), gpus))
    problems += list(itertools.product(sizes, sizes, (17, 32, 33, 64), (1,), gpus))
    problems = [(*problem, *gpu) for *problem, gpu in problems]
    for problem, plan in zip(problems, plans(binary, problems), strict=True):
        rows, cols, tokens, aligned, _, shared = problem
        shape = flat[plan.shape]
        assert shape.shared_bytes <= shared
        assert (plan.shape == len(flat) - 1) == (not aligned)
        assert shape.tokens >= tokens, problem
        if aligned:  # the fewest tokens that will do
            assert shape.tokens == min(s.tokens for s in flat[:-1] if s.tokens >= tokens)
        assert plan.row_blocks == -(-rows // shape.rows)
        assert 1 <= plan.split <= plan.max_split <= max(-(-cols // 64), 1), problem
        assert plan.split == 1 or plan.row_blocks <= MAX_ROW_BLOCKS
        floats = plan.row_blocks * plan.split * shape.tokens * shape.rows
        assert plan.partial_floats == (floats if plan.split > 1 else 0)
        if tokens <= (8 if aligned else 4):
            assert gemv[plan.gemv].tokens >= tokens
            assert (plan.gemv == len(gemv) - 1) == (not aligned)
        else:
            assert plan.gemv == -1


@pytest.mark.parametrize("tokens", [1, 8, 16, 32, 64])
def test_layers_of_models_keep_an_h200_busy(binary, shapes, tokens):
    """Two thirds of the multiprocessors have a block; a small layer is cut, a head is not."""
    h200 = GPUS["H200"]
    layers = [(12288, 4096), (4096, 4096), (11008, 4096), (4096, 11008)]
    found = plans(binary, [(*layer, tokens, 1, *h200) for layer in layers])
    for layer, plan in zip(layers, found, strict=True):
        assert plan.row_blocks * plan.split >= 0.65 * h200[0], (layer, plan)
    layers = [(128256, 4096), (12288, 4096), (1024, 4096)]
    head, large, small = plans(binary, [(*layer, tokens, 1, *h200) for layer in layers])
    assert head.split == large.split == 1 and small.split >= 3


def test_shapes_fit_their_gpus(shapes):
    """As many blocks as promised on Hopper, and one of each number of tokens on the smallest."""
    for shape in itertools.chain(*shapes):
        assert shape.threads <= 1024
        block = shape.shared_bytes + resources.RESERVED_SHARED
        assert block * shape.blocks <= resources.LIMITS["sm_90a"].shared, shape
    small = GPUS["RTX 4060"][1]
    for listed in shapes:
        fitting = {shape.tokens for shape in listed if shape.shared_bytes <= small}
        assert fitting == {shape.tokens for shape in listed}


def test_dynamic_shared_memory_is_known(shapes):
    """resources.py reads from the template arguments what the launcher asks for."""
    text = (KERNELS / "cuda" / "dense" / "dense_plan.h").read_text()
    for found, name, kernel in zip(shapes, ("FLAT", "GEMV"), ("Flat", "Gemv"), strict=True):
        listed = text[text.index(f"#define FS_{name}_SHAPES") :]
        lines = [line.partition("X(")[2].partition(")")[0] for line in listed.splitlines()[1:]]
        for shape, line in zip(found[:-1], lines, strict=False):
            symbol = f"dense::kernel<Float16, dense::{kernel}Shape<{line}>, true>"
            assert resources.dynamic_shared(symbol) == shape.shared_bytes
