# SPDX-License-Identifier: Apache-2.0
"""nm_spmm's layout: its torch code against the loops of its reference, and what it refuses."""

import itertools

import pytest
import torch
from pattern_products import require_linear_and_gradient
from weights import sparse_weight

import flashsparse_plugin as fs
from flashsparse_plugin.formats.pattern.nm_spmm import NMSpmm, layout
from flashsparse_plugin.packed import FormatError, PackedWeight

# Panels of 16 entries and more, of fewer, and of columns that are no multiple of 4.
PATTERNS = [(8, 32), (3, 5), (2, 4), (32, 32), (1, 32), (16, 17), (2, 100), (4, 7)]
SHAPES = [(1, 1), (33, 70), (130, 300), (40, 130)]


def scheme_of(n, m, vector_length):
    return NMSpmm().scheme(torch.float32, {"n": n, "m": m, "vector_length": vector_length})


def weight_of(scheme, shape, seed=0):
    return scheme.format.conform(sparse_weight(*shape, 0.6, torch.float32, seed), scheme)


CASES = [
    (scheme_of(n, m, length), shape)
    for (n, m), length, shape in zip(
        PATTERNS, itertools.cycle((32, 4, 8, 16, 128)), itertools.cycle(SHAPES), strict=False
    )
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
    assert torch.equal(packed.unpack(), weight)
    assert torch.equal(reference.unpack(packed), weight)
    assert packed.density == pytest.approx((weight != 0).double().mean().item())
    stored = fs.pack(weight, "nm_vector", scheme.values)
    arranged = stored.transcode(scheme, "cpu")
    assert all(torch.equal(arranged.tensors[name], t) for name, t in packed.tensors.items())
    back = packed.transcode(stored.scheme)
    assert all(torch.equal(back.tensors[name], t) for name, t in stored.tensors.items())


def test_which_patterns_run_in_it():
    def runtime(n, m, length, dtype=torch.float32):
        stored = fs.pack(
            torch.zeros(8, 8, dtype=dtype), "nm_vector", n=n, m=m, vector_length=length
        )
        return stored.format.runtime(stored.scheme, torch.device("cuda")).format.name

    assert all(runtime(n, m, 4) == "nm_spmm" for n, m in PATTERNS)
    assert runtime(8, 32, 32, torch.bfloat16) == "nm_gather"
    assert runtime(2, 4, 2) == runtime(1, 100, 32) == runtime(200, 256, 32) == "nm_vector"
    with pytest.raises(FormatError, match=r"\[64, 64\] with 2:4.*vectors of 4 rows.*nm_vector"):
        NMSpmm().pack(torch.zeros(64, 64), scheme_of(2, 4, 1))


def test_slabs_change_nothing(monkeypatch):
    scheme = scheme_of(2, 4, 8)
    weight = weight_of(scheme, (300, 100))
    whole = scheme.format.pack(weight, scheme)
    monkeypatch.setattr(layout, "SLAB", 1)
    sliced = scheme.format.pack(weight, scheme)
    assert all(torch.equal(sliced.tensors[name], t) for name, t in whole.tensors.items())
    assert torch.equal(sliced.validate().unpack(), weight)


def test_lists_of_columns_take_little_memory():
    """NM-SpMM, section III-C: col_info takes 1 to 10% more; here with both of its indices."""
    for n, length in itertools.product((16, 8, 4), (16, 32)):
        scheme = scheme_of(n, 32, length)
        packed = scheme.format.pack(weight_of(scheme, (256, 512)), scheme)
        values, *more = (tensor.nbytes for tensor in packed.tensors.values())
        assert sum(more) < 0.05 * values


@pytest.mark.parametrize("x_dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_linear_and_its_gradient_are_the_product(x_dtype):
    require_linear_and_gradient(scheme_of(2, 4, 16), x_dtype)


def test_hostile_tensors_are_refused():
    scheme = scheme_of(3, 12, 16)
    packed = scheme.format.pack(weight_of(scheme, (40, 500)), scheme)

    def refuse(name, change, match):
        tensor = packed.tensors[name].clone()
        change(tensor)
        damaged = PackedWeight(scheme, packed.shape, {**packed.tensors, name: tensor})
        with pytest.raises(FormatError, match=match):
            damaged.validate("mine")

    rule = r"layer 'mine'.*\[40, 500\].*spmm_index does not name 3 columns of every 12"
    refuse("spmm_index", lambda index: index[0, 0, 1, 5].fill_(255), rule)
    refuse("spmm_index", lambda index: index[0, 1, 0, 0].copy_(index[0, 1, 0, 1]), rule)
    refuse("spmm_columns", lambda columns: columns[0, 0, 3].fill_(200), "does not list the columns")
    refuse("spmm_packed", lambda packed: packed[0, 0, 0, 0].fill_(200), "where each column is")
    refuse("spmm_values", lambda v: v[:, -1, 0, -1].fill_(1), "for columns beyond the weight's")
    refuse("spmm_values", lambda v: v[0, 0, 1, 0, 20].fill_(1), "for rows beyond the weight's")
