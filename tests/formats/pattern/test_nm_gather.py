# SPDX-License-Identifier: Apache-2.0
"""nm_gather's layout: its torch code against the loops of its reference, and what it refuses."""

import itertools

import pytest
import torch
from pattern_products import require_linear_and_gradient
from torch.nn import functional as F
from weights import bits, sparse_weight, without_negative_zero

import flashsparse_plugin as fs
from flashsparse_plugin.formats.pattern.nm_gather import NMGather, layout
from flashsparse_plugin.formats.pattern.options import PatternOptions
from flashsparse_plugin.packed import FormatError, PackedWeight

# Panels of 256 columns and fewer, of an odd number of steps, that begin between multiples of 32.
PATTERNS = [(2, 4), (8, 32), (1, 8), (5, 7), (3, 12), (2, 32), (16, 200), (1, 1), (16, 256)]
SHAPES = [(1, 1), (33, 70), (130, 300), (40, 520)]


def scheme_of(n, m, vector_length, dtype=torch.bfloat16, values="native", group=None):
    options = {"n": n, "m": m, "vector_length": vector_length, "values": values, "group": group}
    return NMGather().scheme(dtype, options)


def weight_of(scheme, shape, seed=0):
    return scheme.format.conform(sparse_weight(*shape, 0.6, scheme.dtype, seed), scheme)


CASES = [
    (scheme_of(n, m, length, dtype), shape)
    for (n, m), length, shape, dtype in zip(
        itertools.chain(PATTERNS, PATTERNS),
        itertools.cycle((8, 16, 32, 64, 128)),
        itertools.cycle(SHAPES),
        itertools.cycle((torch.bfloat16, torch.float16)),
        strict=False,
    )
]
CASES += [
    (scheme_of(*pattern, dtype, values), shape)
    for pattern, shape in (((3, 12, 16), (33, 400)), ((8, 32, 32), (70, 70)), ((2, 4, 128), (1, 1)))
    for dtype, values in ((torch.bfloat16, "fp8_e4m3"), (torch.float16, "int8"))
]


CASES += [
    (scheme_of(8, 32, 32, values="int4", group=128), (33, 300)),
    (scheme_of(5, 8, 64, torch.float16, "int4", 128), (70, 520)),  # a pair lies in two groups
    (scheme_of(2, 4, 32, values="int4", group=32), (1, 1)),
]


@pytest.mark.parametrize(("scheme", "shape"), CASES, ids=str)
def test_it_is_laid_out_as_the_reference_says_and_leads_back(scheme, shape):
    weight = weight_of(scheme, shape)
    packed = scheme.format.pack(weight, scheme).validate()
    reference = scheme.format.reference
    expected = reference.pack(weight, scheme)
    assert expected.keys() == packed.tensors.keys()
    for name, tensor in expected.items():
        assert torch.equal(packed.tensors[name], tensor), name
    # A code 0 is -0 by a negative scale.
    coded = scheme.quantization is not None
    for found in (packed.unpack(), reference.unpack(packed)):
        found = without_negative_zero(found) if coded else found
        assert torch.equal(bits(found), bits(weight))
    assert packed.density == pytest.approx((weight != 0).double().mean().item())
    options = scheme.values
    stored = fs.pack(weight, "nm_vector", options)
    arranged = stored.transcode(stored.format.runtime(stored.scheme, torch.device("cuda")), "cpu")
    assert arranged.scheme == scheme
    assert all(torch.equal(arranged.tensors[name], t) for name, t in packed.tensors.items())
    back = packed.transcode(stored.scheme)
    assert all(torch.equal(back.tensors[name], t) for name, t in stored.tensors.items())


def test_slabs_change_nothing(monkeypatch):
    scheme = scheme_of(2, 4, 8)
    weight = weight_of(scheme, (100, 300))
    whole = scheme.format.pack(weight, scheme)
    monkeypatch.setattr(layout, "SLAB", 8 * 300 * 3)
    sliced = scheme.format.pack(weight, scheme)
    assert all(torch.equal(sliced.tensors[name], t) for name, t in whole.tensors.items())
    assert torch.equal(sliced.validate().unpack(), weight)


def test_what_fits():
    def of(n, m, length):
        return NMGather().fits(PatternOptions(n=n, m=m, vector_length=length))

    def codes(length, values="int8", group=None):
        options = PatternOptions(n=8, m=32, vector_length=length, values=values, group=group)
        return NMGather().fits(options)

    assert all(of(n, m, 8) for n, m in PATTERNS)
    assert codes(16) and codes(128, "fp8_e4m3")
    assert codes(32, "int4", 128) and codes(64, "int4", 64)
    assert not codes(8) and not codes(32, group=128) and not codes(16, "int4", 128)
    assert not codes(32, "int4", 32)  # which keeps 8 columns
    assert not of(2, 4, 4) and not of(1, 32, 32) and not of(8, 256, 32) and not of(16, 250, 32)
    weight = torch.zeros(64, 64, dtype=torch.bfloat16)
    for options in ((2, 4, 4), (1, 32, 32)):
        scheme = scheme_of(*options)
        with pytest.raises(FormatError, match=r"\[64, 64\] with .*nm_vector"):
            scheme.format.pack(weight, scheme)


def test_few_banks_meet():
    """What ldmatrix takes at once lies in different banks, as far as a random choice lets it."""
    for n, most in ((16, 1.5), (8, 1.8), (4, 2.1)):
        scheme = scheme_of(n, 32, 32)
        weight = scheme.format.conform(torch.randn(256, 2048).bfloat16(), scheme)
        index = scheme.format.pack(weight, scheme).tensors["gather_index"]
        banks = F.one_hot((index & 7).long().view(-1, 8), 8).sum(1)
        assert banks.amax(1).float().mean() < most


@pytest.mark.parametrize("x_dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("values", ["native", "fp8_e4m3", "int4"])
def test_linear_and_its_gradient_are_the_product(x_dtype, values):
    scheme = scheme_of(2, 4, 32, values=values, group=32 if values == "int4" else None)
    require_linear_and_gradient(scheme, x_dtype)


def test_hostile_tensors_are_refused():
    scheme = scheme_of(3, 12, 16)  # 3 steps a panel of 192 columns: bytes reach beyond it
    packed = scheme.format.pack(weight_of(scheme, (40, 500)), scheme)

    def refuse(name, change, match):
        tensor = packed.tensors[name].clone()
        change(tensor)
        damaged = PackedWeight(scheme, packed.shape, {**packed.tensors, name: tensor})
        with pytest.raises(FormatError, match=match):
            damaged.validate("mine")

    rule = r"layer 'mine'.*\[40, 500\].*gather_index does not name 3 columns of every 12"
    refuse("gather_index", lambda index: index[0, 0, 5].fill_(255), rule)
    refuse("gather_index", lambda index: index[1, 2].copy_(index[1, 3]), rule)
    refuse("gather_index", lambda index: index[2, -1, -1].copy_(index[2, -1, -2]), rule)
    refuse("gather_values", lambda v: v[:, -1].fill_(1), "values for columns beyond the weight")
    scheme = scheme_of(3, 12, 16, values="fp8_e4m3")
    packed = scheme.format.pack(weight_of(scheme, (40, 500)), scheme)
    refuse("gather_values", lambda v: v[0, 0, 3].fill_(0x7F), "code that is NaN")
    refuse("weight_scale", lambda scales: scales[5].fill_(float("nan")), "must be finite")
    scheme = scheme_of(8, 32, 32, values="int4", group=128)
    packed = scheme.format.pack(weight_of(scheme, (40, 500)), scheme)
    refuse("gather_values", lambda v: v[0, 0, -128:].fill_(0xFF), "must be finite")
