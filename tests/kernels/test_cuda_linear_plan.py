# SPDX-License-Identifier: Apache-2.0
"""How the host cuts the CUDA linear kernel's work, and which compiled shape it takes."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest
from emulation import KERNELS, compile_emulator
from hypothesis import example, given, settings
from hypothesis import strategies as st
from resources_program import resources

MAX_PIECE = 1024  # tiles of one block
TAIL = 128  # words at most that a team holds beside its lanes' `held`
MOST_TOKENS = {True: 128, False: 32}  # of a launch, by whether the GPU is a Hopper
MULTIPROCESSORS = {"H200": (132, True), "A100": (108, False), "RTX 4060": (24, False)}


@dataclass(frozen=True)
class Shape:
    tokens: int
    hopper: bool
    wgmma: bool
    team_warps: int
    held: int
    warps: int
    blocks: int
    threads: int
    shared_bytes: int


@dataclass(frozen=True)
class Plan:
    shape: Shape
    blocks: int
    misplaced: int  # tiles that block_of_tile looks for in another block
    bounds: list[int]  # first tiles of the blocks' pieces, and the end of the last
    tiles: int


class Program:
    """linear_plan_driver.cpp."""

    def __init__(self, folder: Path):
        self.binary = folder / "linear_plan_driver"
        compiler = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{KERNELS}"]
        checked = ["-O1", "-fsanitize=undefined", "-fno-sanitize-recover=all"]
        objects = [str(compile_emulator("plain"))]
        # The driver instantiates all kernels, and runs none: it is neither optimised nor checked.
        for source, flags in {
            Path(__file__).with_name("linear_plan_driver.cpp"): ["-O0"],
            KERNELS / "cuda" / "tiled_csl" / "stream_k_plan.cpp": checked,
            KERNELS / "cuda" / "tiled_csl" / "linear_plan.cpp": checked,
        }.items():
            objects.append(str(folder / f"{len(objects)}.o"))
            command = [*compiler, *flags, "-c", str(source), "-o", objects[-1]]
            subprocess.run(command, check=True)
        subprocess.run([*compiler, *checked, *objects, "-o", str(self.binary)], check=True)

    def ask(self, *numbers: int) -> list[list[int]]:
        command = [str(self.binary), *map(str, numbers)]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return [[int(word) for word in line.split()] for line in said.splitlines()]

    @cached_property
    def shapes(self) -> list[Shape]:
        return [
            Shape(first, bool(hopper), bool(wgmma), *rest)
            for first, hopper, wgmma, *rest in self.ask()
        ]

    def plan(self, rows, cols, tokens, words, multiprocessors, hopper) -> Plan:
        ((shape, blocks, misplaced, *bounds, tiles),) = self.ask(
            rows, cols, tokens, words, multiprocessors, int(hopper)
        )
        return Plan(self.shapes[shape], blocks, misplaced, bounds, tiles)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return Program(tmp_path_factory.mktemp("plan"))


@st.composite
def problems(draw):
    """rows, cols, tokens, words, multiprocessors and whether the GPU is a Hopper."""
    rows, cols = draw(st.integers(1, 40000)), draw(st.integers(1, 40000))
    hopper = draw(st.booleans())
    words = round(draw(st.floats(0, 1)) * rows * cols)
    return rows, cols, draw(st.integers(1, MOST_TOKENS[hopper])), words, draw(
        st.integers(1, 200)
    ), hopper  # fmt: skip


@settings(max_examples=200)
@given(problems())
@example((1, 1, 1, 0, 132, True))
@example((1, 40000, 128, 0, 1, True))
@example((40000, 1, 32, 40000, 200, False))
def test_every_tile_is_in_one_piece(program, problem):
    """No block is without work, and pieces differ by a tile at most."""
    rows, cols, tokens, words, multiprocessors, hopper = problem
    plan = program.plan(*problem)
    assert plan.tiles == -(-rows // 128) * -(-cols // 64)
    slots = multiprocessors * plan.shape.blocks
    assert 1 <= plan.blocks <= min(plan.tiles, max(slots, -(-plan.tiles // MAX_PIECE)))
    assert (plan.bounds[0], plan.bounds[-1]) == (0, plan.tiles)
    assert len(plan.bounds) == plan.blocks + 1
    pieces = {b - a for a, b in zip(plan.bounds, plan.bounds[1:], strict=False)}
    assert 1 <= min(pieces) <= max(pieces) <= min(MAX_PIECE, min(pieces) + 1)
    assert plan.misplaced == 0

    shape = plan.shape
    assert shape.hopper == hopper and shape.tokens >= tokens
    same = [each for each in program.shapes if each.hopper == hopper]
    assert shape.tokens == min(each.tokens for each in same if each.tokens >= tokens)
    # The ordinary tile's words fit its registers, if they fit those of any such shape.
    same = [each for each in same if each.tokens == shape.tokens]
    room = {each: 32 * each.team_warps * each.held + TAIL for each in same}
    assert room[shape] >= min(words / plan.tiles, max(room.values()))


@pytest.mark.parametrize(("gpu", "most"), [((132, True), 128), ((108, False), 32)])
def test_shapes_for_every_number_of_tokens(program, gpu, most):
    """Shapes of a kind are listed by tokens, then by words held: plan_linear relies on it."""
    kind = [shape for shape in program.shapes if shape.hopper == gpu[1]]
    assert max(shape.tokens for shape in kind) == most
    order = [(shape.tokens, shape.held * shape.team_warps) for shape in kind]
    assert order == sorted(order)
    for tokens in range(1, most + 1):
        assert program.plan(4096, 4096, tokens, 4096**2 // 5, *gpu).shape.tokens >= tokens


def test_shapes_fit_their_gpus(program):
    """Threads, shared memory and named barriers, of which a block has 16 and __syncthreads one."""
    for shape in program.shapes:
        arch = "sm_90a" if shape.hopper else "sm_80"
        limits = resources.LIMITS[arch]
        assert shape.threads == 32 * shape.warps <= 1024
        assert shape.warps // shape.team_warps + 1 <= 16
        block = shape.shared_bytes + resources.RESERVED_SHARED
        assert block * shape.blocks <= limits.shared, shape
    smallest = resources.LIMITS["sm_86"]
    for shape in program.shapes:
        assert shape.hopper or shape.shared_bytes + resources.RESERVED_SHARED <= smallest.shared


def test_dynamic_shared_memory_is_known(program):
    """resources.py reads from the template arguments what the launcher asks for."""
    assert program.shapes
    for shape in program.shapes:
        flags = f"{str(shape.hopper).lower()}, {str(shape.wgmma).lower()}"
        rest = f"{shape.team_warps}, {shape.warps}, {shape.blocks}"
        source = (
            f"tiled_csl::TileSource<linear::Shape<{shape.tokens}, {flags}, {rest}>, {shape.held}>"
        )
        name = f"linear::linear_kernel<Float16, {source}>"
        assert resources.dynamic_shared(name) == shape.shared_bytes
