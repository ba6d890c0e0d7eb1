# SPDX-License-Identifier: Apache-2.0
"""Products with codes of 8 and 4 bits on the CPU, against code x scale in float64.

Runs with the kernels of this machine, and in test_capability.py with each of the others.
"""

from __future__ import annotations

import pytest
import torch
from kernel_products import activations, assert_close

from flashsparse_plugin.formats import get_format
from flashsparse_plugin.formats.values.types import VALUE_TYPES
from flashsparse_plugin.packed import PackedWeight

TYPES = [("int8", None), ("fp8_e4m3", None), ("int4", None), ("int4", 32), ("int8", 64)]
PATTERNS = [
    (2, 4, 1), (1, 4, 8), (5, 8, 2), (9, 16, 1), (8, 32, 4), (3, 100, 1), (2, 4, 16), (3, 8, 32)
]  # fmt: skip
by_type = pytest.mark.parametrize(("values", "group"), TYPES)


def coded(values, group, pattern, shape, dtype=torch.bfloat16, seed=0):
    """Random codes of all kinds, prepared; and the weight in float64, which no dtype rounds."""
    n, m, length = pattern
    group = None if group and group % m else group
    options = {"n": n, "m": m, "vector_length": length, "values": values, "group": group}
    storage = get_format("nm_vector")
    scheme = storage.scheme(dtype, options)
    generator = torch.Generator().manual_seed(seed)
    most = 127 if values == "fp8_e4m3" else 256
    bits = torch.randint(most, shape, generator=generator).to(torch.uint8)
    if values == "fp8_e4m3":
        bits |= torch.randint(2, shape, generator=generator).to(torch.uint8) << 7
    kind = VALUE_TYPES[values]
    numbers = kind.decode(bits, shape[1]) if kind.bits == 8 else (bits % 16).half() - 8
    numbers = scheme.options.keep_largest(numbers.float())
    scales = torch.rand(shape[0], -(-shape[1] // (group or shape[1])), generator=generator) + 0.01
    scales = scales.to(storage.tensors(scheme, shape)["weight_scale"].dtype)
    packed = storage.pack_codes(numbers, scales, scheme)
    spread = scales.double().repeat_interleave(group or shape[1], 1)[:, : shape[1]]
    return packed.prepare("cpu"), numbers.double() * spread


@by_type
def test_every_code_is_exact(values, group):
    """A token with a single 1 picks a column of the weight, in float32 and bfloat16."""
    for pattern in ((2, 4, 1), (1, 1, 1), (1, 1, 16)):
        running, weight = coded(values, group, pattern, (37, 97), torch.float32)
        assert running.format.on_disk is False
        y = running.linear(torch.eye(97))
        assert torch.equal(y.double(), weight.T.float().double())
        running, weight = coded(values, group, pattern, (37, 97), torch.bfloat16)
        y = running.linear(torch.eye(97, dtype=torch.bfloat16))
        assert torch.equal(y, running.unpack().T)


@by_type
@pytest.mark.parametrize("tokens", [0, 1, 2, 3, 7, 9, 17])
def test_linear_is_the_product(tokens, values, group):
    for seed, pattern in enumerate(PATTERNS):
        for shape in ((50, 203), (1, 1), (16, 64)):
            dtype = (torch.bfloat16, torch.float16, torch.float32)[(seed + tokens) % 3]
            running, weight = coded(values, group, pattern, shape, torch.bfloat16, seed)
            bias = torch.randn(shape[0], generator=torch.Generator().manual_seed(seed)).to(dtype)
            x = activations(tokens, shape[1], dtype, seed)
            assert_close(running.linear(x, bias), x, weight, bias)


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_infinities_reach_the_rows_that_keep_their_column(pattern):
    running, weight = coded("int8", None, pattern, (50, 203))
    for value in (torch.inf, torch.nan):
        x = torch.ones(3, 203)
        x[1, 70] = value
        y = running.linear(x)
        assert torch.equal(y[0], y[2]) and y[0].isfinite().all()
        assert not y[1, weight[:, 70] != 0].isfinite().any()


@pytest.mark.parametrize("pattern", PATTERNS[:6], ids=str)
def test_positions_of_any_origin_reach_nothing(pattern):
    running, _ = coded("int4", None, pattern, (50, 203))
    wild = torch.full_like(running.tensors["positions"], -1)
    damaged = PackedWeight(running.scheme, running.shape, {**running.tensors, "positions": wild})
    assert damaged.linear(torch.ones(9, 203)).isfinite().all()
    assert damaged.unpack().shape == (50, 203)
