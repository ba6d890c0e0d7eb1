# SPDX-License-Identifier: Apache-2.0
"""exact_units: the form in which lossless runs on a GPU."""

from __future__ import annotations

import itertools

import pytest
import torch
from emulated_exact_units import SCHEME, random_weight
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_weights import every_bit_pattern
from torch.library import opcheck

from flashsparse_plugin.formats import get_format, units
from flashsparse_plugin.formats.unstructured.exact_units import ExactUnits, exceptions, rows
from flashsparse_plugin.gpu import GPUS
from flashsparse_plugin.linear import SparseLinear
from flashsparse_plugin.ops import ops
from flashsparse_plugin.ops.reference import linear as exact_linear
from flashsparse_plugin.packed import FormatError, PackedWeight
from flashsparse_plugin.plan import Plan

FORM, STORED = ExactUnits(), get_format("lossless")
SHAPES = [(1, 1), (3, 70), (16, 256), (35, 513)]


def weights(shape, seed=0):
    """Any bits, ordinary weights with few and with many exceptions, and zeros."""
    yield every_bit_pattern(shape, torch.bfloat16, seed)
    yield random_weight(*shape, 0)
    yield random_weight(*shape, 2)
    yield torch.zeros(shape, dtype=torch.bfloat16)


def same(a, b):
    return torch.equal(a.contiguous().view(torch.int16), b.contiguous().view(torch.int16))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_holds_the_weight_as_the_reference_does(shape):
    for weight in itertools.islice(weights(shape), 4 if shape[0] < 16 else 3):
        packed = FORM.pack(weight, SCHEME).validate()
        reference = FORM.reference.pack(weight, SCHEME)
        assert list(packed.tensors) == list(reference) == list(FORM.tensor_names)
        assert all(torch.equal(packed.tensors[name], t) for name, t in reference.items())
        assert same(packed.unpack(), weight) and same(FORM.reference.unpack(packed), weight)
        assert FORM.nonzeros(packed) == weight.count_nonzero()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_storage_form_leads_here_and_back(shape):
    for weight in weights(shape, 1):
        stored = STORED.pack(weight, STORED.scheme(torch.bfloat16))
        there = stored.transcode(STORED.runtime(stored.scheme, torch.device("cuda")))
        direct = FORM.pack(weight, SCHEME)
        assert all(torch.equal(there.tensors[name], t) for name, t in direct.tensors.items())
        back = there.transcode(stored.scheme).validate()
        assert all(torch.equal(back.tensors[name], t) for name, t in stored.tensors.items())


@settings(max_examples=30, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 40), st.integers(1, 530)),
    seed=st.integers(0, 1000),
    scale=st.integers(-126, 100),
    share=st.floats(0, 0.05),
)
def test_any_weight_survives(shape, seed, scale, share):
    """Wherever its window is, and however its exceptions are spread."""
    generator = torch.Generator().manual_seed(seed)
    weight = (torch.randn(shape, generator=generator) * 2.0**scale).to(torch.bfloat16)
    wild = torch.rand(shape, generator=generator) < share
    weight[wild] = every_bit_pattern(shape, torch.bfloat16, seed)[wild]
    packed = FORM.pack(weight, SCHEME).validate()
    assert same(packed.unpack(), weight)


def test_slabs_of_rows_make_the_same(monkeypatch):
    weight = random_weight(70, 600, 2)
    whole = FORM.pack(weight, SCHEME)
    monkeypatch.setattr(units, "SLAB_ELEMENTS", 600 * 32)
    slabs = FORM.pack(weight, SCHEME)
    assert all(torch.equal(slabs.tensors[name], t) for name, t in whole.tensors.items())
    assert same(slabs.unpack(), weight)


@pytest.mark.parametrize(
    ("units", "listed", "slots"), [(1, 5, 4), (2, 4, 4), (2, 5, 8), (1, 9, 4), (2, 9, 16)]
)
def test_slots_are_as_few_as_suffice(units, listed, slots):
    """Less than 1% of the units may need more: of 200, one."""
    weight = torch.ones(16 * 20, 256 * 10, dtype=torch.bfloat16)
    for unit in range(units):
        weight[unit * 16, 256 : 256 + listed] = 2.0**-30
    packed = FORM.pack(weight, SCHEME)
    assert packed.tensors["slots"].shape[2] == slots
    assert int(packed.tensors["listed_offsets"][-1]) == units * max(listed - slots, 0)
    assert len(packed.tensors["listed"]) == exceptions.LEAST_ROOM


def test_exceptions_that_are_near_are_in_slots_and_others_in_the_list():
    weight = torch.ones(16, 256, dtype=torch.bfloat16)
    weight[0, 1], weight[0, 2], weight[0, 3] = 2.0**-30, 2.0**70, torch.inf
    weight[1] = 2.0**-7
    weight[1, 0] = 2.0**-133  # subnormal
    packed = FORM.pack(weight, SCHEME)
    slots = packed.tensors["slots"].flatten()
    assert slots.count_nonzero() == 3 and int(packed.tensors["listed_offsets"][-1]) == 1
    listed = packed.tensors["listed"][0]
    assert listed.tolist() == [2, weight[:1, 2].view(torch.int16).item() << 16]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_its_product_is_exact_on_a_cpu_too(dtype):
    weight, x = random_weight(40, 300, 0), torch.randn(2, 3, 300).to(dtype)
    bias = torch.randn(40).to(dtype)
    y = FORM.pack(weight, SCHEME).linear(x, bias)
    exact = exact_linear(x, weight, bias)
    size = exact_linear(x.abs(), weight.abs(), bias.abs())
    room = size * 300 * 2**-23 + exact.abs() * torch.finfo(dtype).eps
    assert y.dtype == dtype and ((y.double() - exact).abs() <= room).all()


def test_ops_are_whole():
    packed = FORM.pack(random_weight(40, 300, 2), SCHEME)
    held = tuple(packed.tensors.values())
    opcheck(ops.exact_units_unpack.default, (*held, 40, 300))
    for x in (torch.randn(3, 300), torch.randn(2, 3, 300).to(torch.bfloat16)):
        x.requires_grad_()
        opcheck(ops.exact_units_linear.default, (x, *held, 40, torch.bfloat16))
        bias = torch.randn(40, dtype=x.dtype)
        opcheck(ops.exact_units_linear.default, (x, *held, 40, torch.bfloat16, bias, 4, 2))


def test_ops_refuse_other_shapes():
    packed = FORM.pack(random_weight(40, 300, 2), SCHEME)
    units, scales, slots, listed, offsets = packed.tensors.values()
    x = torch.randn(3, 300)
    for held, told in (
        ((units[:2], scales, slots, listed, offsets), "units of a"),
        ((units, scales[:39], slots, listed, offsets), "row_scales of a"),
        ((units, scales, slots[..., :5], listed, offsets), "4, 8 or 16 slots, not 5"),
        ((units, scales, slots[:2], listed, offsets), "slots of a"),
        ((units, scales, slots, listed, offsets[:3]), "listed_offsets of a"),
    ):
        with pytest.raises(RuntimeError, match=told):
            ops.exact_units_linear(x, *held, 40, torch.bfloat16)
    for limits in ((-1, None), (None, -1)):
        with pytest.raises(RuntimeError, match="or more"):
            ops.exact_units_linear(
                x, units, scales, slots, listed, offsets, 40, torch.bfloat16, None, *limits
            )


def damaged(name, change):
    packed = FORM.pack(random_weight(40, 300, 2), SCHEME)
    tensors = {key: each.clone() for key, each in packed.tensors.items()}
    change(tensors[name])
    return PackedWeight(SCHEME, packed.shape, tensors)


def put(*place_and_value):
    *place, value = place_and_value
    return lambda tensor: tensor.__setitem__(tuple(place), value)


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("listed_offsets", put(0, 1), "must rise from 0"),
        ("listed_offsets", put(1, 10**6), "must rise from 0"),
        ("listed_offsets", put(3, 10**6), "must rise from 0 to at most"),
        ("listed", put(0, 0, 300), "columns outside"),
        ("listed", put(0, 0, -1), "columns outside"),
        ("listed", put(0, 1, 1 << 16 | 16), "rows outside"),
        ("listed", put(-1, 0, 7), "0 past the last offset"),
        ("row_scales", put(3, 0, 0.3), "powers of two"),
        ("row_scales", put(3, 0, -1.0), "powers of two"),
        ("row_scales", put(3, 0, torch.nan), "powers of two"),
        ("row_scales", put(3, 0, 2.0**-120), "powers of two"),
        ("row_scales", put(3, 0, 2.0**120), "do not have exceptions where"),
        ("slots", put(2, 0, 0, 1 << 16 | 9 << 8), "beyond the weight's edge"),
        ("slots", put(0, 1, 0, 1 << 16 | 45), "beyond the weight's edge"),
        ("slots", put(1, 0, 1, 0x5000 << 16 | 5 << 8 | 77), "in the place of"),
        ("slots", put(1, 0, 1, 0x3F80 << 16), "that has a code"),
        ("slots", lambda t: t[0, 0, 1].copy_(t[0, 0, 0]), "a weight twice"),
        ("slots", lambda t: t.copy_(t.flip(2)), "slots do not have exceptions where"),
        ("units", put(2, 1, 1535, -1), "beyond the weight's edge"),
        ("units", lambda t: t[0].bitwise_and_(~0x07800780), "a fraction without a code"),
    ],
)
def test_damaged_tensors_are_refused(name, change, told):
    with pytest.raises(FormatError, match=told):
        damaged(name, change).validate("layer")


def test_rows_are_read_by_themselves(monkeypatch):
    """As an embedding does: any of them, twice, and none."""
    monkeypatch.setattr(rows, "LISTED_AT_ONCE", 50)
    for weight in weights((70, 600), 2):
        packed = FORM.pack(weight, SCHEME)
        for ids in (torch.randint(70, (3, 40)), torch.arange(70), torch.empty(0, dtype=torch.long)):
            found = FORM.read_rows(ids, packed.tensors, 600)
            assert found.shape == (*ids.shape, 600) and same(found, weight[ids])


def test_a_part_keeps_the_bases_of_the_whole():
    """As lossless does: they need not be those that a packer chooses for the part."""
    weight = random_weight(40, 600, 2)
    stored = STORED.pack(weight, STORED.scheme(torch.bfloat16))
    part = STORED.cut(stored, range(8, 40), range(128, 384))
    there = part.transcode(STORED.runtime(stored.scheme, torch.device("cuda"))).validate()
    assert same(there.unpack(), weight[8:40, 128:384])


def test_a_layer_runs_saves_and_trains():
    """As a GPU has it: saving leads back to the form on disk."""
    weight = random_weight(40, 300, 0)
    layer = SparseLinear.from_packed(FORM.pack(weight, SCHEME))
    x = torch.randn(3, 300, requires_grad=True)
    y = layer(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, weight.float().sum(0).expand(3, -1), rtol=1e-5, atol=1e-3)
    stored = layer.packed.transcode(STORED.scheme(torch.bfloat16))
    assert same(stored.validate().unpack(), weight)
    for plan in (Plan.only("few"), Plan.only("many"), Plan.only("library")):
        assert torch.equal(layer.packed.linear(x, None, plan), y)


def test_kernels_are_chosen_by_tokens_and_gpu():
    h200, *_, a100 = GPUS
    nbytes = FORM.pack(torch.ones(16, 256, dtype=torch.bfloat16), SCHEME).nbytes * 256 * 16
    wanted = {1: ("few", "few"), 8: ("few", "few"), 16: ("few", "few"), 128: ("many", "few")}
    wanted |= {17: ("many", "few"), 512: ("many", "library"), 513: ("library", "library")}
    for tokens, kernels in wanted.items():
        for gpu, kernel in zip((h200, a100), kernels, strict=True):
            assert FORM.choose(SCHEME, (4096, 4096), nbytes, tokens, gpu) == kernel
            assert 0 < FORM.seconds(kernel, SCHEME, (4096, 4096), nbytes, tokens, gpu) < 1e-3
