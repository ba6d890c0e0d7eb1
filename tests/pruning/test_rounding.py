# SPDX-License-Identifier: Apache-2.0
"""Rounding to 4 bits with compensation, against the algorithm written plainly."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashsparse_plugin.formats.values.quantization import Quantization
from flashsparse_plugin.formats.values.types import VALUE_TYPES, spread_scales
from flashsparse_plugin.packed import FormatError
from flashsparse_plugin.pruning import Statistics, rounding_of
from flashsparse_plugin.pruning.rounding import energies, round_weight

INT4 = VALUE_TYPES["int4"]


def inputs(columns, tokens, seed):
    """Correlated inputs, as those of a model are."""
    generator = torch.Generator().manual_seed(seed)
    mixed = torch.randn(columns, columns, generator=generator) / columns**0.5
    own = torch.randn(tokens, columns, generator=generator)
    return own + 2 * own @ mixed


def weight_of(rows, columns, zeros, seed=0):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, columns, generator=generator)
    return weight * (torch.rand(rows, columns, generator=generator) >= zeros)


def unpacked(weight, quantization):
    """What the nearest codes hold."""
    codes, scales = quantization.quantise(weight)
    scales = spread_scales(scales.float(), weight.shape[1], quantization.group)
    return (codes.float() * scales).to(weight.dtype)


def reference(weight, gram, quantization):
    """Column by column, with the inverse of the columns that are left computed anew at each."""
    w, keep = weight.double().clone(), weight != 0
    gram = gram.double() + 0.01 * gram.double().diagonal().mean() * torch.eye(len(gram))
    group = quantization.group or w.shape[1]
    for j in range(w.shape[1]):
        if j % group == 0:
            here = (w * keep)[:, j : j + group].float()
            scale = quantization.quantise(here.to(weight.dtype))[1].double()[:, 0]
            largest = here.abs().argmax(1) + j
        code = (w[:, j] / scale).clamp(-8, 7).round()
        code[largest == j] = -8
        value = code * scale * keep[:, j]
        inverse = torch.linalg.inv(gram[j:, j:])[0]
        error = (w[:, j] - value) / inverse[0]
        w[:, j:] -= error[:, None] * inverse
        w[:, j] = value
    return w


@pytest.mark.parametrize("columns", [40, 150])
@pytest.mark.parametrize("group", [None, 32, 128])
@pytest.mark.parametrize("zeros", [0.0, 0.5])
def test_equals_the_plain_algorithm_or_the_nearest_codes(columns, group, zeros):
    weight, x = weight_of(12, columns, zeros), inputs(columns, 400, seed=1)
    gram, quantization = x.T @ x, Quantization(INT4, group)
    found, before, after = round_weight(weight, Statistics(gram=gram), quantization)
    expected = reference(weight, gram, quantization).float()
    nearest = unpacked(weight, quantization)
    lost = [energies(weight - each, gram) for each in (expected, nearest)]
    wanted = torch.where((lost[0] < lost[1])[:, None], expected, nearest)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(before, lost[1])
    torch.testing.assert_close(after, energies(weight - found, gram))
    assert (after <= before).all()
    assert after.sum() < (0.9 if zeros else 0.75) * before.sum()


@settings(deadline=None)
@given(
    rows=st.integers(1, 9),
    columns=st.integers(1, 200),
    group=st.sampled_from([None, 32, 64, 128]),
    zeros=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    dtype=st.sampled_from([torch.bfloat16, torch.float16, torch.float32]),
    tokens=st.integers(0, 300),
    seed=st.integers(0, 1000),
)
def test_packing_finds_the_codes_again(rows, columns, group, zeros, dtype, tokens, seed):
    weight = weight_of(rows, columns, zeros, seed).to(dtype)
    x, quantization = inputs(columns, tokens, seed), Quantization(INT4, group)
    found, before, after = round_weight(weight, Statistics(gram=x.T @ x), quantization)
    assert found.dtype == dtype and found.isfinite().all()
    assert (found[weight == 0] == 0).all()
    assert (after <= before).all()
    again = unpacked(found, quantization).float()
    # A scale may be found anew that suits rounded values better by a bit of its dtype.
    bit = torch.finfo(dtype).eps if group is not None else torch.finfo(torch.float32).eps
    bit = max(bit, torch.finfo(dtype).eps)
    assert ((again - found.float()).abs() <= 2 * bit * found.float().abs()).all()


def test_inputs_that_were_never_seen_do_no_harm():
    weight, x = weight_of(4, 40, 0.5).bfloat16(), inputs(40, 100, seed=2)
    x[:, 5:9] = 0
    found, before, after = round_weight(weight, Statistics(gram=x.T @ x), Quantization(INT4, 32))
    assert found.isfinite().all() and (after <= before).all()
    assert (found[weight == 0] == 0).all()


def test_formats_of_four_bits_are_known():
    assert rounding_of("2:4-int4", {"group": 64}) == Quantization(INT4, 64)
    assert rounding_of("nm_vector", {"n": 2, "m": 4, "values": "int4"}) == Quantization(INT4)
    assert rounding_of("2:4-int8", {}) is None
    assert rounding_of("tiled_bitmap", {}) is None
    with pytest.raises(FormatError, match="unknown format 'int5'"):
        rounding_of("int5", {})
