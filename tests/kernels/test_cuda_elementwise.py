# SPDX-License-Identifier: Apache-2.0
"""The kernels between products, in the emulator, against torch's ops and float64."""

import pytest
import torch
from emulated_elementwise import DRIVER, GateMul, Norm, RopeCache, judge, run
from emulation import EACH_BUILD, SEEDS, compile_driver, is_caught

DTYPES = torch.bfloat16, torch.float16


def norms():
    generator = torch.Generator().manual_seed(1)

    def normal(*size):
        return torch.randn(*size, generator=generator)

    # Columns: one vector, edges of a warp, of a block, of what a thread holds.
    shapes = [(3, 1, 8, 0), (2, 3, 128, 64), (5, 1, 264, 8), (2, 1, 4096, 0), (2, 1, 4104, 16)]
    shapes += [(1, 1, 8200, 0)]
    for number, (tokens, heads, columns, gap) in enumerate(shapes):
        dtype = DTYPES[number % 2]
        x, residual = (normal(tokens, heads, columns).to(dtype) for _ in range(2))
        x[-1, -1] *= 2.0 ** (-6 if dtype == torch.float16 else -60)  # epsilon decides
        weight, seed = normal(columns).to(dtype), SEEDS[number % 3]
        yield Norm(x, residual if number % 3 else None, weight, number % 2 == 1, gap, seed)


def gates():
    generator = torch.Generator().manual_seed(2)
    for number, (tokens, columns, gap) in enumerate([(3, 8, 0), (2, 2056, 24), (1, 2048, 0)]):
        for dtype in DTYPES:
            x = torch.randn(tokens, 2 * columns, generator=generator) * 4
            x[0, :4] = torch.tensor([0.0, -100.0, 100.0, float("inf")])
            activation = ("silu", "gelu_tanh")[(number + (dtype == torch.float16)) % 2]
            yield GateMul(x.to(dtype), activation, gap, SEEDS[number % 3])


def ropes():
    generator = torch.Generator().manual_seed(3)
    # Heads, their sizes, rotated elements, tokens, pages and their size, cached tokens.
    shapes = [
        ((4, 2), (64, 64), 64, 3, 2, 16, 3),
        ((3, 1), (80, 80), 32, 2, 3, 16, 2),  # a part of each head is rotated
        ((2, 2), (128, 64), 128, 4, 2, 16, 3),  # the last token only pads the batch
        ((6, 1), (64, 64), 64, 2, 0, 16, 0),  # no cache
        ((0, 2), (64, 64), 0, 2, 1, 16, 2),  # no rotation
    ]
    for number, (heads, dims, rotary_dim, tokens, pages, page_size, cached) in enumerate(shapes):
        for is_neox in (True, False) if rotary_dim else (True,):
            dtype = DTYPES[(number + is_neox) % 2]
            width = heads[0] * dims[0] + heads[1] * sum(dims)
            qkv = torch.randn(tokens, width, generator=generator).to(dtype)
            angles = torch.rand(9, rotary_dim // 2, generator=generator) * 7
            cos_sin = torch.cat((angles.cos(), angles.sin()), -1).to(dtype)
            cache = torch.randn(pages, page_size, heads[1], sum(dims), generator=generator)
            slots = torch.randperm(max(pages * page_size, 1), generator=generator)[:cached]
            if number == 2:
                slots[1], slots[2] = -1, pages * page_size  # neither is a slot
            positions = torch.randint(0, 9, (tokens,), generator=generator)
            positions[0] = 8
            in_place = number != 1 and (number != 3 or is_neox)
            options = cache.to(dtype), slots, is_neox, in_place, SEEDS[number % 3]
            yield RopeCache(qkv, heads, dims, cos_sin, positions, *options)


CASES = [*norms(), *gates(), *ropes()]


@pytest.fixture(scope="module")
def driver():
    return lambda sanitizer: compile_driver(DRIVER, sanitizer)


@pytest.mark.parametrize("sanitizer", EACH_BUILD)
def test_results_are_right(driver, sanitizer):
    """With a preceding kernel that writes what they read at its end."""
    ran = run(driver(sanitizer), CASES)
    assert ran.returncode == 0, ran.stderr.decode()
    judge(CASES, ran.stdout)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("case", [CASES[1], CASES[4], CASES[7], CASES[-1]], ids=type)
def test_a_kernel_that_does_not_wait_is_caught(driver, case, seed):
    case.seed = seed
    ran = run(driver("plain"), [case], WITHOUT_WAIT="1")
    assert is_caught(ran, lambda written: judge([case], written))
