# SPDX-License-Identifier: Apache-2.0
"""What every format must do, from one weight to a model: all that are registered, and a toy.

The toy (tests/toy_format.py) differs from ours wherever the interface allows it. A new format is
found by the registry, and nothing here has to change for it. The part that needs vLLM is
tests/vllm/test_contract.py.
"""

import copy
import json
import pickle
import re
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
import torch
from checkpoints import edit_config, edit_weights, load_all, quantization, save_llama
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import nn
from toy_format import Toy
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner
from weights import sparse_weight

import flashsparse_plugin as fs
from flashsparse_plugin import selftest
from flashsparse_plugin.checkpoint import convert_checkpoint, inspect_checkpoint
from flashsparse_plugin.cli import app
from flashsparse_plugin.dataflow import Weight, model
from flashsparse_plugin.dataflow.table import Entry
from flashsparse_plugin.formats import all_formats, get_format, packed_names, registry
from flashsparse_plugin.gpu import GPUS
from flashsparse_plugin.ops.reference import linear as exact_linear
from flashsparse_plugin.packed import FormatError, PackedWeight, TensorSpec

STORED = [format for format in all_formats() if format.on_disk]
SCHEMES = [s for format in (*STORED, Toy()) for s in format.examples()]
FORMATS = [format.examples()[0] for format in (*STORED, Toy())]  # one scheme each
SHAPES = [(1, 1), (3, 70), (130, 66), (200, 300)]

pytestmark = pytest.mark.usefixtures("toy")
every_scheme = pytest.mark.parametrize("scheme", SCHEMES, ids=str)
every_format = pytest.mark.parametrize("scheme", FORMATS, ids=str)


def weight_of(scheme, shape=(200, 300), density=0.4, seed=0):
    """A weight that a scheme can hold, with values that are easily lost."""
    weight = sparse_weight(*shape, density, scheme.dtype, seed)
    weight = scheme.format.conform(weight, scheme).contiguous()
    if not scheme.format.is_exact(scheme):
        return weight
    odd = torch.tensor([torch.inf, -torch.inf, torch.finfo(scheme.dtype).max, 1e-30])
    kept = weight.flatten().nonzero().flatten()[: len(odd)]
    weight.view(-1)[kept] = odd[: len(kept)].to(scheme.dtype)
    weight[weight == 0] = 0.0
    return weight


def finite_weight_of(scheme, shape=(200, 300)):
    return scheme.format.conform(sparse_weight(*shape, 0.4, scheme.dtype), scheme).contiguous()


def same(a, b):
    """Whether two weights have the same bits, -0 as +0: a code 0 is -0 by a negative scale."""
    integer = {2: torch.int16, 4: torch.int32}[a.dtype.itemsize]
    bits = (torch.where(each == 0, 0.0, each).contiguous().view(integer) for each in (a, b))
    return a.dtype == b.dtype and torch.equal(*bits)


PROMISES = "flashsparse_plugin.packed."  # what every format is


def test_a_family_is_one_class_and_no_method_is_defined_more_than_twice():
    """Once where it is promised or for all, and once for a format, or for a part of its own."""
    bases = set()
    for format in all_formats():
        own = [each for each in type(format).__mro__ if each.__module__.startswith("flashsparse_")]
        methods = [name for each in own for name, value in vars(each).items() if callable(value)]
        counts = Counter(name for name in methods if not name.startswith("__"))
        assert {name for name, count in counts.items() if count > 2} == set()
        known = (PROMISES, type(format).__module__)
        bases |= {each for each in own[1:] if not each.__module__.startswith(known)}
    assert len(bases) <= 2


# ---- one weight ---------------------------------------------------------------------------------


@every_scheme
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_unpack_gives_the_weight_back(scheme, shape):
    weight = weight_of(scheme, shape)
    packed = scheme.format.pack(weight, scheme).validate("name")
    assert packed.scheme == scheme and packed.shape == shape
    assert scheme.format.nbytes(scheme, shape) in (None, packed.nbytes)
    assert same(packed.unpack(), weight)
    assert packed.density == pytest.approx(weight.count_nonzero().item() / weight.numel())
    specs = scheme.format.tensors(scheme, shape)
    assert list(packed.tensors) == list(specs) and set(specs) <= set(scheme.format.tensor_names)
    assert all(isinstance(spec, TensorSpec) for spec in specs.values())


@every_scheme
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_packer_and_reference_read_each_other(scheme, shape):
    weight, reference = weight_of(scheme, shape), scheme.format.reference
    assert same(reference.unpack(scheme.format.pack(weight, scheme)), weight)
    theirs = PackedWeight(scheme, shape, reference.pack(weight, scheme))
    assert same(theirs.validate().unpack(), weight)


@every_scheme
@pytest.mark.parametrize("x_dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_linear_is_the_product_in_storage_and_runtime_form(scheme, x_dtype):
    weight = finite_weight_of(scheme)
    x, bias = torch.randn(2, 3, 300).to(x_dtype), torch.randn(200).to(x_dtype)
    seen = scheme.format.round_activations(x, scheme)
    exact, magnitude = (
        exact_linear(seen, weight, bias),
        exact_linear(seen.abs(), weight.abs(), bias.abs()),
    )
    tolerance = magnitude * 300 * 2**-23 + exact.abs() * torch.finfo(x_dtype).eps
    stored = scheme.format.pack(weight, scheme)
    for packed in (stored, stored.prepare("cpu")):
        y = packed.linear(x, bias)
        assert y.dtype == x_dtype and ((y.double() - exact).abs() <= tolerance).all()
        with pytest.raises(ValueError, match="299 features"):
            packed.linear(x[..., :299])


@every_scheme
def test_every_form_leads_back_to_the_same_tensors(scheme):
    stored = scheme.format.pack(weight_of(scheme), scheme)
    running = stored.prepare("cpu")
    back = running.transcode(scheme)
    assert list(back.tensors) == list(stored.tensors)
    for name, tensor in stored.tensors.items():
        assert torch.equal(back.tensors[name], tensor)


@every_scheme
def test_damaged_tensors_are_refused_by_name(scheme):
    packed = scheme.format.pack(weight_of(scheme), scheme)
    for name, tensor in packed.tensors.items():
        wrong = torch.int8 if tensor.dtype != torch.int8 else torch.int16
        for damaged in (tensor[:-1], tensor[None], tensor.to(wrong)):
            with pytest.raises(FormatError, match=r"layer 'mine'.*\[200, 300\].*convert"):
                PackedWeight(scheme, packed.shape, {**packed.tensors, name: damaged}).validate(
                    "mine"
                )
        without = {other: t for other, t in packed.tensors.items() if other != name}
        with pytest.raises(FormatError, match=f"missing: {name}"):
            PackedWeight(scheme, packed.shape, without).validate()
        strided = torch.stack([tensor, tensor], -1)[..., 0]
        with pytest.raises(FormatError, match=rf"{name} must be contiguous, .*{name}.contiguous"):
            PackedWeight(scheme, packed.shape, {**packed.tensors, name: strided}).validate()
    with pytest.raises(FormatError, match="unknown: surprise"):
        more = {**packed.tensors, "surprise": torch.ones(1)}
        PackedWeight(scheme, packed.shape, more).validate()


@every_scheme
def test_a_format_that_checks_as_it_reads_prepares_nothing_damaged(scheme):
    """Loading then leaves `validate` out; make fuzz tries what is found in other ways."""
    if not scheme.format.checks_as_it_reads:
        return
    packed = scheme.format.pack(weight_of(scheme), scheme)
    for name, tensor in packed.tensors.items():
        for index, change in ((0, 4), (len(tensor) // 2, -1), (-1, 4), (-1, -4), (1, 1 << 13)):
            damaged = PackedWeight(scheme, packed.shape, {**packed.tensors, name: tensor.clone()})
            damaged.tensors[name][index] += change
            try:
                damaged.validate()
            except FormatError:
                with pytest.raises((RuntimeError, FormatError)):
                    damaged.prepare("cpu")


@every_scheme
def test_a_lack_of_memory_is_no_verdict_on_a_weight(scheme, monkeypatch):
    packed = scheme.format.pack(weight_of(scheme), scheme)
    for error in (
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GB"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 byte"),
    ):

        def fail(*arguments, error=error):
            raise error

        monkeypatch.setattr(type(scheme.format), "check", fail)
        with pytest.raises(type(error)) as raised:
            packed.validate()
        assert raised.value is error


@every_scheme
def test_cut_and_join_are_those_of_the_dense_weight(scheme):
    shape = (384, 256)
    weight = weight_of(scheme, shape)
    packed, (row, column) = scheme.format.pack(weight, scheme), scheme.format.grain(scheme)
    ends = sorted({0, 4 * row, 128, 200 // row * row, 384})
    parts = [
        packed.format.cut(packed, range(a, b), range(256))
        for a, b in zip(ends, ends[1:], strict=False)
    ]
    for part, a, b in zip(parts, ends, ends[1:], strict=False):
        assert same(part.validate().unpack(), weight[a:b])
    whole = scheme.format.join(parts).validate()
    assert whole.shape == shape and same(whole.unpack(), weight)
    for columns in (range(64, 192), range(256 - 61, 256)):
        if column is None or columns.start % column:
            with pytest.raises(FormatError, match=r"\[384, 256\] cannot be cut at column"):
                scheme.format.cut(packed, range(384), columns)
        else:
            part = scheme.format.cut(packed, range(128, 384), columns)
            assert same(part.validate().unpack(), weight[128:, columns.start : columns.stop])
    if row > 1:
        with pytest.raises(FormatError, match="cannot be cut at row 1: only at multiples of"):
            scheme.format.cut(packed, range(1, 384), range(256))
        odd = scheme.format.cut(packed, range(384 - row, 384), range(256))
        stump = scheme.format.pack(weight_of(scheme, (1, 256)), scheme)
        with pytest.raises(FormatError, match="cannot join a weight of 1 rows"):
            scheme.format.join([stump, odd])


@every_scheme
def test_a_part_of_any_size_runs_in_every_form(scheme):
    """Also where it is one group of rows high, whose tensors are contiguous by any strides."""
    row, column = scheme.format.grain(scheme)
    shape = (2 * row, 13 * (column or 4))
    weight = finite_weight_of(scheme, shape)
    whole = scheme.format.pack(weight, scheme)
    for columns in (range(8 * (column or 0)), range(5 * (column or 0), shape[1])):
        if column is None:
            columns = range(shape[1])
        part = scheme.format.cut(whole, range(row), columns).validate()
        for device in ("cpu", "cuda"):
            form = scheme.format.runtime(scheme, torch.device(device))
            running = part.transcode(form).validate()
            assert same(running.unpack(), weight[:row, columns.start : columns.stop])
            again = running.transcode(scheme).validate()
            assert all(torch.equal(again.tensors[n], each) for n, each in part.tensors.items())


OWN_STORAGE = {
    "interleaved_bitmap": "tiled_bitmap",
    "hybrid_panels": "hybrid_24",
    "hybrid_units": "hybrid_24",
    "exact_units": "lossless",
}


def runtime_forms():
    """Storage schemes beside the runtime ones that hold the same weights, on any device."""
    for form in all_formats():
        if form.on_disk:
            continue
        stored = get_format(OWN_STORAGE.get(form.name, "nm_vector"))
        for target in form.examples():
            if target.values.get("two_of_four"):
                yield get_format("exact_nm").scheme(target.dtype, {"n": 2, "m": 4}), target
            elif target.dtype in stored.dtypes:
                options = {k: v for k, v in target.values.items() if k != "two_of_four"}
                yield stored.scheme(target.dtype, options), target


PAIRS = [pytest.param(*pair, id=str(pair[1])) for pair in runtime_forms()]


WITH_SIGNED_ZEROS = [
    pair
    for pair in PAIRS
    if pair.values[0].format.name == "nm_vector"
    and pair.values[1].values.get("values", "fp8_e4m3") == "fp8_e4m3"
]


def is_valid(packed):
    try:
        packed.validate()
    except FormatError:
        return False
    return True


def damaged(packed, draw):
    """A weight with a few elements or bytes changed, many of them in its last places."""
    tensors = {name: each.clone() for name, each in packed.tensors.items()}
    filled = [name for name, each in tensors.items() if each.numel()]
    for _ in range(draw(st.integers(1, 3))):
        flat = tensors[draw(st.sampled_from(sorted(filled)))].view(-1)
        value = draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
        if draw(st.booleans()) or flat.itemsize == 1:
            flat = flat.view(torch.uint8)
        elif not flat.is_floating_point() and flat.itemsize > 1:
            value = draw(st.sampled_from([packed.shape[1], torch.iinfo(flat.dtype).min]))
        place = draw(st.integers(0, len(flat) - 1) | st.integers(-min(64, len(flat)), -1))
        flat[place] = value
    return PackedWeight(packed.scheme, packed.shape, tensors)


@pytest.mark.parametrize(("scheme", "target"), PAIRS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.data(), st.sampled_from([(40, 70), (17, 300), (64, 32), (1, 5)]), st.sampled_from([0, 1])
)  # fmt: skip
def test_valid_in_one_form_is_valid_in_the_other(scheme, target, data, shape, direction):
    """The same weight, too, whatever a runtime form pads: damage finds what one of them allows."""
    pair = (scheme, target)
    packed = scheme.format.pack(finite_weight_of(scheme, shape), scheme).transcode(pair[direction])
    here = damaged(packed, data.draw)
    if not is_valid(here):
        return
    there = here.transcode(pair[1 - direction]).validate()
    back = there.transcode(pair[direction]).validate()
    for weight in (there.unpack(), back.unpack(), here.format.reference.unpack(here)):
        torch.testing.assert_close(weight, here.unpack(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("scheme", "target"), WITH_SIGNED_ZEROS)
def test_zeros_of_either_sign_may_lie_beyond_the_edge(scheme, target):
    """-0 is a zero for every reader, though no packer of ours writes it."""
    shape = (17, 4 * getattr(scheme.options, "m", 4) + 1)
    packed = scheme.format.pack(finite_weight_of(scheme, shape), scheme)
    bits = packed.tensors["weight_packed"]
    bits[bits == 0] = 0x80 if bits.dtype == torch.uint8 else torch.iinfo(bits.dtype).min
    there = packed.validate().transcode(target).validate()
    assert torch.equal(there.unpack(), packed.unpack())
    assert there.transcode(scheme).validate().density == packed.density


TWO_OF_FOUR, TWO_OF_EIGHT = {"n": 2, "m": 4}, {"n": 2, "m": 8}
PANELS = {"n": 2, "m": 4, "vector_length": 16}
GATHERED = {"n": 2, "m": 4, "vector_length": 8}
NIBBLES = {"n": 8, "m": 32, "vector_length": 32, "values": "int4", "group": 128}


@pytest.mark.parametrize(
    ("name", "options", "claimed", "shape", "rule"),
    [
        ("nm_panels", PANELS, PANELS, (15, 64), "values has a nonzero beyond the weight's edge"),
        (
            "nm_rows",
            TWO_OF_FOUR | {"values": "int8"},
            None,
            (15, 64),
            "values has a nonzero beyond",
        ),
        ("nm_gather", GATHERED, GATHERED, (15, 64), "has values for rows beyond"),
        ("sparse_24", TWO_OF_FOUR, TWO_OF_FOUR, (15, 64), "values beyond the weight's edge"),
        ("sparse_24", TWO_OF_FOUR, TWO_OF_FOUR, (16, 61), "values beyond the weight's edge"),
        ("sparse_24", TWO_OF_FOUR, TWO_OF_EIGHT, (16, 64), "in 4 columns of 8 .* 2:8 keeps 2"),
        (
            *("sparse_24", TWO_OF_FOUR | {"values": "int8", "group": 32}, None, (16, 32)),
            "scales beyond the weight's edge",
        ),
    ],
)
def test_a_form_holds_nothing_that_its_weight_has_not(name, options, claimed, shape, rule):
    """Of a weight [16, 64] in a form: claimed to be another pattern, or a smaller shape."""
    form, dtype = registry._FORMATS[name], torch.float16
    weight = torch.ones(16, 64, dtype=dtype)
    if "group" in options:  # zero, as what is claimed, but for the scales
        weight[:, 32:] = 0
    kept = form.conform(weight, form.scheme(dtype, options))
    packed = form.pack(kept, form.scheme(dtype, options)).validate()
    wrong = PackedWeight(form.scheme(dtype, claimed or options), shape, packed.tensors)
    wrong = PackedWeight(wrong.scheme, shape, trimmed(wrong))
    with pytest.raises(FormatError, match=rule):
        wrong.validate()


def trimmed(packed):
    """The tensors as large as those of the shape that is claimed."""
    specs = packed.format.tensors(packed.scheme, packed.shape)
    return {
        name: each[tuple(map(slice, specs[name].shape))].contiguous()
        for name, each in packed.tensors.items()
    }


@pytest.mark.parametrize(
    "damage",
    [
        {(0, 0, 512): 0x41},  # row 0, the first of two steps of a group
        {(1, 0, 631): 0x41, (1, 0, 639): 0x41},  # row 63 of 40, both steps
        {(1, -1, 513): 0x41},  # the last group of columns
    ],
)
def test_copies_of_a_scale_are_equal_and_zero_beyond_the_edge(damage):
    form = registry._FORMATS["nm_gather"]
    scheme = form.scheme(torch.bfloat16, NIBBLES)
    packed = form.pack(finite_weight_of(scheme, (40, 250)), scheme).validate()
    tensors = {name: each.clone() for name, each in packed.tensors.items()}
    for place, byte in damage.items():
        assert tensors["gather_values"][place] != byte
        tensors["gather_values"][place] = byte
    with pytest.raises(FormatError, match="other scales for the steps of a group"):
        PackedWeight(scheme, packed.shape, tensors).validate()


def test_columns_of_panels_are_those_of_their_window():
    """The one column beyond the edge, too: in another window it would lose a weight."""
    form = registry._FORMATS["nm_panels"]
    scheme = form.scheme(torch.bfloat16, PANELS)
    packed = form.pack(finite_weight_of(scheme, (32, 70)), scheme).validate()
    for place in (1, 3):
        tensors = {name: each.clone() for name, each in packed.tensors.items()}
        tensors["columns"][0, place] = 70
        with pytest.raises(FormatError, match="columns has one outside of its window"):
            PackedWeight(scheme, packed.shape, tensors).validate()


@every_scheme
def test_the_self_test_of_doctor_holds_it_against_its_reference(scheme):
    for promise, test in selftest._PROMISES.items():
        if selftest._takes(scheme, promise):
            assert test(scheme, "cpu") < 1e-2


# ---- schemes and configurations -----------------------------------------------------------------


@every_scheme
def test_schemes_are_values(scheme):
    again = scheme.format.scheme(scheme.dtype, scheme.values, scheme.format.version)
    copies = [again, copy.deepcopy(scheme), pickle.loads(pickle.dumps(scheme))]
    assert all(each == scheme and hash(each) == hash(scheme) for each in copies)
    assert all(each.format is scheme.format for each in copies)
    assert str(scheme).startswith(scheme.format.name)
    json.dumps(scheme.values)


@every_scheme
def test_what_a_format_does_not_know_is_refused(scheme):
    format, options = scheme.format, scheme.values
    with pytest.raises(FormatError, match=f"{format.name} has no option 'banana'; its options: "):
        format.scheme(scheme.dtype, {**options, "banana": 7})
    with pytest.raises(FormatError, match=f"{format.name} packs .* not int8"):
        format.scheme(torch.int8, options)
    with pytest.raises(FormatError, match=f"version {format.version + 1}.*pip install -U"):
        format.scheme(scheme.dtype, options, format.version + 1)
    with pytest.raises(FormatError, match="versions start at 1"):
        format.scheme(scheme.dtype, options, 0)


def test_options_are_typed_and_bounded(toy):
    for options, message in (
        ({}, "needs the option 'group'"),
        ({"group": 0}, "option group: .*greater than or equal to 1"),
        ({"group": "4"}, "option group: .*integer"),
        ({"group": True}, "option group"),
        ({"group": 4, "label": 3}, "option label: .*string"),
    ):
        with pytest.raises(FormatError, match=message):
            toy.scheme(torch.float32, options)


def config_of(scheme, **more):
    name, version = scheme.format.name, scheme.format.version
    dtype = str(scheme.dtype).removeprefix("torch.")
    return fs.FlashSparseConfig(
        format=name, format_version=version, dtype=dtype, options=scheme.values, **more
    )


@every_scheme
def test_a_configuration_carries_the_scheme(scheme):
    config = config_of(scheme, layers={"head": {"format": "dense", "reason": "small"}})
    again = fs.FlashSparseConfig(**json.loads(json.dumps(config.to_dict())))
    assert again == config
    assert again.scheme_of("model.any") == scheme and again.scheme_of("x", "head") is None


def test_a_layer_has_a_scheme_of_its_own(toy):
    config = fs.FlashSparseConfig(
        dtype="bfloat16",
        layers={
            "a": {"format": "toy", "options": {"group": 4}},
            "b": {"format": "toy", "options": {"group": 2}, "dtype": "float32"},
            "c": {"format": "tiled_csl", "dtype": "float16"},
        },
    )
    assert config.formats == ["tiled_bitmap", "toy", "tiled_csl"]
    assert config.scheme_of("a") == toy.scheme(torch.bfloat16, {"group": 4})
    assert config.scheme_of("b") == toy.scheme(torch.float32, {"group": 2})
    assert config.scheme_of("c") == fs.get_format("tiled_csl").scheme(torch.float16)
    assert config.scheme_of("d") == fs.get_format("tiled_bitmap").scheme(torch.bfloat16)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ({"format": "nonsense"}, "unknown format 'nonsense'"),
        ({"format": "toy_runtime", "options": {"group": 1}}, "unknown format 'toy_runtime'"),
        ({"format": "toy"}, "needs the option 'group'"),
        ({"format": "toy", "options": {"group": 65}}, "option group"),
        ({"format": "toy", "options": {"group": 1}, "format_version": 9}, "version 9.*pip install"),
        ({"format": "tiled_csl", "format_version": 0}, "versions start at 1"),
        ({"format": "tiled_csl", "options": {"banana": 7}}, "has no option 'banana'"),
        ({"format": "tiled_csl", "dtype": "float32"}, "float16 or bfloat16, not float32"),
    ],
)
def test_a_layer_that_cannot_be_is_refused_by_name(layer, message):
    with pytest.raises(fs.FormatError, match=rf"layer 'model\.a': .*{message}"):
        fs.FlashSparseConfig(dtype="bfloat16", layers={"model.a": layer})


def test_options_of_the_checkpoint_are_judged_too():
    with pytest.raises(fs.FormatError, match="tiled_bitmap has no option 'banana'"):
        fs.FlashSparseConfig(options={"banana": 7})


def test_packed_layers_are_found_by_their_tensors():
    names = ["a.weight_packed", "a.tile_offsets", "a.bias", "b.weight", "b.toy_scale"]
    assert packed_names([*names, "c.toy_values"]) == {
        "a": {"weight_packed": "a.weight_packed", "tile_offsets": "a.tile_offsets"},
        "c": {"toy_values": "c.toy_values"},
    }


# ---- a layer ------------------------------------------------------------------------------------


@every_scheme
def test_a_layer_is_saved_loaded_copied_moved_and_cast(scheme):
    weight = finite_weight_of(scheme, (96, 70))
    bias = torch.randn(96).half().float()  # which half() does not round
    layer = fs.SparseLinear.pack(weight, bias, scheme)
    assert layer.held == scheme.format.runtime(scheme, torch.device("cpu"))
    x = torch.randn(3, 70)
    expected = layer(x)
    seen = scheme.format.round_activations(x, scheme).float()
    torch.testing.assert_close(expected, torch.nn.functional.linear(seen, weight.float(), bias))

    state = layer.state_dict()
    assert set(state) == {*scheme.format.tensors(scheme, (96, 70)), "bias"}
    loaded = fs.SparseLinear(70, 96, scheme, bias=True, bias_dtype=torch.float32)
    loaded.load_state_dict(state)
    for each in (
        loaded,
        copy.deepcopy(layer),
        pickle.loads(pickle.dumps(layer)),
        copy.deepcopy(layer).half().float(),
        fs.SparseLinear.from_packed(scheme.format.pack(weight, scheme), bias),
    ):
        assert each.scheme == scheme and same(each.weight, weight)
        torch.testing.assert_close(each(x), expected, rtol=1e-3, atol=1e-3)
    half = copy.deepcopy(layer).half()
    assert half.bias.dtype == torch.float16
    assert {n: p.dtype for n, p in half.named_parameters() if n != "bias"} == {
        n: p.dtype for n, p in layer.named_parameters() if n != "bias"
    }
    meta = copy.deepcopy(layer).to("meta")
    assert meta.held == scheme.format.runtime(scheme, torch.device("meta"))
    assert all(p.is_meta for p in meta.parameters())
    assert str(scheme) in repr(layer) and str(scheme) in repr(meta)


@every_scheme
def test_a_layer_refuses_what_its_scheme_cannot_hold(scheme):
    """Also where the form that runs could hold it: it could not be saved."""
    weight = torch.randn(96, 70).to(scheme.dtype)
    if torch.equal(scheme.format.conform(weight, scheme), weight):
        return
    try:
        packed = scheme.format.pack(weight, scheme)
    except FormatError as refused:
        with pytest.raises(FormatError, match=re.escape(str(refused))):
            fs.SparseLinear.pack(weight, None, scheme)
    else:  # it holds any weight, or rounds it
        assert same(packed.unpack(), weight) or not scheme.format.is_exact(scheme)


@every_scheme
def test_a_scale_keeps_its_dtype_in_the_storage_form(scheme):
    specs = scheme.format.tensors(scheme, (96, 70))
    layer = fs.SparseLinear(70, 96, scheme, device="meta").half()
    assert {n: p.dtype for n, p in layer.named_parameters()} == {
        name: spec.dtype for name, spec in specs.items()
    }


@every_format
def test_it_compiles_in_one_graph(scheme):
    layer = fs.SparseLinear.pack(finite_weight_of(scheme, (96, 70)), None, scheme)
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=True)
    for tokens in (2, 5):
        x = torch.randn(tokens, 70)
        torch.testing.assert_close(compiled(x), layer(x))


@every_format
def test_a_weight_and_a_layer_are_packed_in_their_own_dtype_or_refused(scheme):
    name, options, linear = scheme.format.name, scheme.values, nn.Linear(8, 4)
    linear.weight.data = finite_weight_of(scheme, (4, 8)).float()
    if torch.float32 in scheme.format.dtypes:
        packed = fs.pack(linear.weight.detach(), name, **options)
        layer = fs.SparseLinear.from_linear(linear, name, **options)
        assert same(packed.unpack(), linear.weight.detach())
        assert same(layer.weight, linear.weight.detach())
        return
    refusals = []
    for attempt in (
        lambda: fs.pack(linear.weight.detach(), name, **options),
        lambda: fs.SparseLinear.from_linear(linear, name, **options),
    ):
        with pytest.raises(FormatError, match=r"not float32: convert the weight first") as refused:
            attempt()
        refusals.append(str(refused.value))
    assert refusals[0] == refusals[1]
    assert fs.SparseLinear.from_linear(linear.to(scheme.dtype), name, **options).scheme == scheme


# ---- a model ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    """A model whose weights follow the patterns of all formats at once."""
    path = save_llama(tmp_path_factory.mktemp("dense") / "model", sparsity=0.85)

    def follow(tensors):
        for name in filter(lambda name: name.endswith("_proj.weight"), tensors):
            for scheme in FORMATS:
                tensors[name] = scheme.format.conform(tensors[name], scheme).contiguous()

    edit_weights(path, follow)
    return path


@pytest.fixture(scope="module")
def tokens(dense):
    return generate(AutoModelForCausalLM.from_pretrained(dense, dtype=torch.float32))


def generate(model):
    ids = torch.arange(5, 12)[None]
    return model.generate(ids, max_new_tokens=8, do_sample=False, pad_token_id=0, eos_token_id=None)


def convert_options(scheme):
    return {"format": scheme.format.name, "options": scheme.values, "pack_all": True}


@every_format
def test_a_model_is_converted_inspected_and_loaded(scheme, dense, tokens, tmp_path):
    report = convert_checkpoint(dense, tmp_path / "packed", **convert_options(scheme))
    assert len(report.packed) == 14 and report.format == scheme.format.name
    assert {layer.scheme for layer in report.packed} == {scheme.title}
    found = inspect_checkpoint(tmp_path / "packed")
    packed = [layer for layer in found.layers if layer.format is not None]
    assert {layer.scheme for layer in packed} == {scheme.title} and len(packed) == 14
    assert all(layer.bytes_in[scheme.format.name] == layer.bytes_stored for layer in packed)

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "packed", dtype=torch.float32)
    layers = [m for m in model.modules() if isinstance(m, fs.SparseLinear)]
    assert len(layers) == 14 and {m.scheme.title for m in layers} == {scheme.title}
    assert torch.equal(generate(model), tokens)
    model.save_pretrained(tmp_path / "again")
    before, after = load_all(tmp_path / "packed"), load_all(tmp_path / "again")
    assert before.keys() == after.keys() and all(torch.equal(before[n], after[n]) for n in before)


@every_format
def test_a_dense_model_is_packed_while_it_loads(scheme, dense, tokens):
    config = fs.FlashSparseConfig(format=scheme.format.name, options=scheme.values)
    model = AutoModelForCausalLM.from_pretrained(
        dense, dtype=torch.float32, quantization_config=config
    )
    layers = [m for m in model.modules() if isinstance(m, fs.SparseLinear)]
    assert len(layers) == 14 and {m.scheme.title for m in layers} == {scheme.title}
    assert torch.equal(generate(model), tokens)


def test_formats_and_options_are_mixed_by_layer(dense, tokens, tmp_path):
    up, down = (f"model.layers.0.mlp.{kind}_proj" for kind in ("up", "down"))
    layers = {
        up: {"format": "toy", "options": {"group": 1}},
        down: {"format": "toy", "options": {"group": 1, "label": "other"}, "dtype": "float32"},
    }
    report = convert_checkpoint(dense, tmp_path / "packed", layers=layers, pack_all=True)
    assert report.format == "tiled_bitmap and toy"
    by_name = {layer.name: layer.scheme for layer in report.packed}
    assert by_name.pop(up) == "toy(group=1, label=plain)"
    assert by_name.pop(down) == "toy(group=1, label=other)"
    assert set(by_name.values()) == {"tiled_bitmap"} and len(by_name) == 12
    assert quantization(tmp_path / "packed")["layers"][up]["options"] == {"group": 1}

    found = {layer.name: layer for layer in inspect_checkpoint(tmp_path / "packed").layers}
    assert found[down].scheme == "toy(group=1, label=other)" and found[down].dtype == "float32"
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "packed", dtype=torch.float32)
    assert model.get_submodule(down).scheme.dtype == torch.float32
    assert model.get_submodule(up).scheme.title == "toy(group=1, label=plain)"
    assert torch.equal(generate(model), tokens)

    edit_config(
        tmp_path / "packed",
        quantization_config=quantization(tmp_path / "packed")
        | {"layers": {up: {"format": "tiled_csl"}}},
    )
    with pytest.raises(FormatError, match=f"layer '{up}', tiled_csl.*missing: tile_offsets"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "packed")


def test_a_pattern_that_a_layer_does_not_follow_is_refused_by_name(dense, tmp_path):
    with pytest.raises(ValueError, match=r"layer 'model\..*cannot be packed to toy\(group=4.*rows"):
        convert_checkpoint(dense, tmp_path / "out", format="toy", options={"group": 4})


# ---- tuning -------------------------------------------------------------------------------------


@every_scheme
def test_tables_tell_schemes_apart(scheme):
    known = list(scheme.format.implementations(scheme))
    entry = Entry(
        shape=(8, 8),
        format=scheme.format.name,
        options=scheme.values,
        density=0.5,
        ranges=[{"max_tokens": None, "implementation": known[-1]}],
    )
    assert Entry.model_validate(json.loads(entry.model_dump_json())) == entry
    assert entry.scheme(scheme.dtype) == scheme
    with pytest.raises(ValidationError, match=f"'gemv' is not one of {known[0]}"):
        Entry.model_validate(
            entry.model_dump() | {"ranges": [{"max_tokens": None, "implementation": "gemv"}]}
        )


@every_format
def test_a_format_knows_what_its_implementations_cost_or_says_that_it_does_not(scheme):
    weight = Weight((4096, 4096), scheme, 0.5, 1 << 24)
    if scheme.format.name == "toy":
        with pytest.raises(FormatError, match="toy has no cost model.*flashsparse tune"):
            model.times(weight, GPUS[0])
    else:
        found = model.times(weight, GPUS[0])
        assert all(seconds > 0 for each in found.values() for seconds in each.values())


@every_format
def test_tune_shows_its_implementations(scheme):
    options = [f"--option={name}={value}" for name, value in scheme.values.items()]
    arguments = ["tune", "512x512", "--sparsity", "0.5", "--estimate", "H200"]
    result = CliRunner().invoke(app, [*arguments, "--format", scheme.format.name, *options])
    stored = scheme.format.scheme(torch.bfloat16, scheme.values)  # the default of `tune`
    held = stored.format.runtime(stored, torch.device("cuda"))
    if scheme.format.name == "toy":
        assert result.exit_code == 1 and "toy_runtime has no cost model" in result.stderr
    else:
        assert result.exit_code == 0, result.output
        assert held.title in result.stdout and "512x512" in result.stdout


def test_tune_measures_every_implementation_of_a_format(toy, monkeypatch):
    from flashsparse_plugin.dataflow import tuner

    scheme, plans = toy.scheme(torch.bfloat16, {"group": 4}), []
    monkeypatch.setattr(tuner.PackedWeight, "linear", lambda *a, plan: plans.append(str(plan)))
    weight = tuner.packed_weight((48, 64), scheme, 0.5)
    entry = tuner.measure(
        weight, torch.bfloat16, torch.device("cpu"), lambda call, copies: call() or 1.0, 0, (1, 9)
    )
    assert plans == [f"{name} for any number of tokens" for name in ("loop", "whole", "whole")]
    assert (entry.format, entry.options) == ("toy", {"group": 4, "label": "plain"})


# ---- the documentation's example ----------------------------------------------------------------


def test_the_example_of_the_documentation_keeps_the_contract(dense, tokens, tmp_path, monkeypatch):
    text = (Path(__file__).parents[2] / "docs" / "adding-a-format.md").read_text()
    module = ModuleType("example_of_a_format")  # pickle finds classes by their module
    monkeypatch.setitem(sys.modules, module.__name__, module)
    example = vars(module)
    for block in re.findall(r"```python\n(.*?)```", text, re.S):
        exec(compile(block, "docs/adding-a-format.md", "exec"), example)
    assert "masked" in fs.format_names() and example["layer"].scheme.format.name == "masked"
    for dtype in (torch.float16, torch.bfloat16):
        scheme = example["Masked"]().scheme(dtype)
        test_unpack_gives_the_weight_back(scheme, (130, 66))
        test_packer_and_reference_read_each_other(scheme, (130, 66))
        test_linear_is_the_product_in_storage_and_runtime_form(scheme, torch.float32)
        test_damaged_tensors_are_refused_by_name(scheme)
        test_cut_and_join_are_those_of_the_dense_weight(scheme)
        test_a_layer_is_saved_loaded_copied_moved_and_cast(scheme)
    test_a_model_is_converted_inspected_and_loaded(scheme, dense, tokens, tmp_path)
    options = example["PatternOptions"]
    with pytest.raises(ValidationError):
        options(n=0, m=4)
