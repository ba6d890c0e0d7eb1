# SPDX-License-Identifier: Apache-2.0
"""Tiled-CSL: exact at every shape and density, and proof against damaged files."""

import pytest
import torch
from hypothesis import given
from weights import DTYPES, sparse_weight, weights

import flashsparse_plugin as fs
from flashsparse_plugin.formats.unstructured.tiled_csl import reference
from flashsparse_plugin.ops import ops
from flashsparse_plugin.ops.reference import linear
from flashsparse_plugin.packed import PackedWeight


def tensors_of(packed):
    return packed.tensors["weight_packed"], packed.tensors["tile_offsets"]


@given(weights())
def test_words_and_offsets_are_those_of_the_specification(weight):
    packed = fs.pack(weight, "tiled_csl")
    words, offsets = tensors_of(packed)
    reference_words, reference_offsets = reference.pack(weight, packed.scheme).values()
    assert torch.equal(offsets, reference_offsets)
    for tile in range(len(offsets) - 1):
        own = slice(offsets[tile], offsets[tile + 1])
        assert set(words[own].tolist()) == set(reference_words[own].tolist())


@pytest.mark.parametrize("density", [0.0, 0.01, 0.5, 0.51, 0.99, 1.0])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_density_is_legal(density, dtype):
    weight = sparse_weight(257, 130, density, dtype)
    packed = fs.pack(weight, "tiled_csl").validate()
    assert torch.equal(packed.unpack(), weight)
    assert packed.density == pytest.approx((weight != 0).double().mean().item())


def test_an_empty_tile_has_no_words():
    weight = torch.zeros(256, 128, dtype=torch.float16)
    weight[0, 64] = weight[200, 3] = 1.0
    words, offsets = tensors_of(fs.pack(weight, "tiled_csl"))
    assert offsets.tolist() == [0, 0, 4, 8, 8]
    assert len(set(words[:4].tolist())) == 1, "padding repeats a word of the same tile"


@pytest.mark.parametrize("sparsity", [0.5, 0.8, 0.9])
def test_consecutive_words_fall_into_different_banks(sparsity):
    """Flash-LLM, Algorithm 3: what keeps a GPU's stores to shared memory free of conflicts."""
    words, offsets = tensors_of(fs.pack(sparse_weight(128, 64, 1 - sparsity), "tiled_csl"))
    banks = ((words & 0xFFFF) // 2 % 32)[: len(words) // 32 * 32].view(-1, 32)
    conflicts = torch.stack([(banks == bank).sum(1) for bank in range(32)]).max(0).values
    in_location_order = 2.9  # wavefronts a group without reordering, at these densities
    assert conflicts.double().mean() < 0.6 * in_location_order


def test_a_weight_too_large_for_int32_offsets_is_refused():
    weight = torch.ones(1, dtype=torch.bfloat16).expand(46400, 46400)
    with pytest.raises(RuntimeError, match=r"\[46400, 46400\].*int32"):
        ops.tiled_csl_pack(weight)


# ---- damaged tensors ---------------------------------------------------------------------------


def damaged(change):
    packed = fs.pack(sparse_weight(200, 100), "tiled_csl")
    tensors = {name: tensor.clone() for name, tensor in packed.tensors.items()}
    change(tensors)
    return PackedWeight(packed.scheme, packed.shape, tensors)


def _set(name, index, value):
    def change(tensors):
        tensors[name][index] = value

    return change


def _replace(name, make):
    def change(tensors):
        tensors[name] = make(tensors[name])

    return change


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (_set("tile_offsets", 0, 4), r"tile_offsets\[0\]"),
        (_set("tile_offsets", 1, -4), r"tile_offsets\[1\]"),
        (_set("tile_offsets", 2, 2**30), "tile_offsets"),
        (_set("tile_offsets", 1, 6), "multiple of 4"),
        (_replace("weight_packed", lambda t: t[:-4]), "weight_packed"),
        (_replace("weight_packed", lambda t: t.repeat(2)), "weight_packed"),
        (_replace("tile_offsets", lambda t: t[:-1]), "tile_offsets"),
        (_set("weight_packed", 5, 0x7FFF), "outside its tile"),
        (_set("weight_packed", -1, (1 << 16) | 0x1FFF), "outside its tile"),
        (_replace("weight_packed", lambda t: t.to(torch.int64)), "int32"),
        (_replace("tile_offsets", lambda t: t.float()), "int32"),
        (lambda tensors: tensors.pop("tile_offsets"), "missing"),
        (lambda tensors: tensors.update(extra=torch.zeros(1)), "unknown"),
    ],
)
def test_validate_names_the_broken_rule(change, rule):
    with pytest.raises(fs.FormatError, match=rule) as error:
        damaged(change).validate("model.layers.0.mlp.up_proj")
    message = str(error.value)
    assert "model.layers.0.mlp.up_proj" in message and "[200, 100]" in message
    assert "flashsparse convert" in message, "the remedy"


def test_validate_refuses_two_values_at_one_location():
    packed = fs.pack(torch.ones(128, 64, dtype=torch.float16), "tiled_csl")
    words = packed.tensors["weight_packed"]
    words[1] = (int(words[0]) & 0xFFFF) | (0x4000 << 16)
    with pytest.raises(fs.FormatError, match="second value"):
        packed.validate()


def test_ops_that_read_words_are_safe_without_validate():
    """The ops are public: garbage must give an error there too."""
    packed = damaged(_set("weight_packed", 5, 0x7FFF))
    words, offsets = tensors_of(packed)
    for call in (
        lambda: ops.tiled_csl_unpack(words, offsets, 200, 100, torch.bfloat16),
        lambda: ops.tiled_csl_to_interleaved_bitmap(words, offsets, 200, 100),
        lambda: ops.tiled_csl_linear(torch.ones(1, 100), words, offsets, 200, torch.bfloat16),
    ):
        with pytest.raises(RuntimeError, match="outside its tile"):
            call()


# ---- the public face ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "weight",
    [torch.zeros(3), torch.zeros(2, 3, 4), torch.zeros(0, 4), torch.zeros(4, 0)],
    ids=lambda weight: str(list(weight.shape)),
)
def test_only_weights_can_be_packed(weight):
    with pytest.raises(fs.FormatError, match=r"out_features, in_features"):
        fs.pack(weight.to(torch.float16))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int8])
def test_only_16_bit_floats_can_be_packed(dtype):
    with pytest.raises(fs.FormatError, match=r"float16 or bfloat16 weights.*weight\.to"):
        fs.pack(torch.zeros(4, 4, dtype=dtype))


def test_unknown_formats_and_options_are_refused_by_name():
    weight = torch.zeros(4, 4, dtype=torch.float16)
    with pytest.raises(fs.FormatError, match="'csr'.*tiled_csl"):
        fs.pack(weight, "csr")
    with pytest.raises(fs.FormatError, match="vector_length"):
        fs.pack(weight, "tiled_csl", vector_length=32)


def test_sizes_and_repr_tell_what_is_gained():
    packed = fs.pack(sparse_weight(1024, 1024, 0.2), "tiled_csl")
    assert packed.dense_nbytes == 2 * 1024 * 1024
    assert packed.nbytes == sum(tensor.nbytes for tensor in packed.tensors.values())
    assert 0.39 < packed.nbytes / packed.dense_nbytes < 0.42
    assert "tiled_csl" in repr(packed) and "density=20" in repr(packed)


def test_non_contiguous_weights_are_read_right():
    weight = sparse_weight(100, 140).T
    assert torch.equal(fs.pack(weight, "tiled_csl").unpack(), weight)


@pytest.mark.parametrize("dtype", [torch.float32, *DTYPES], ids=str)
@pytest.mark.parametrize("form", ["storage", "runtime"])
def test_linear_agrees_with_float64(dtype, form):
    weight = sparse_weight(200, 300, 0.4, torch.bfloat16)
    packed = (
        fs.pack(weight, "tiled_csl")
        if form == "storage"
        else fs.pack(weight, "tiled_csl").prepare("cpu")
    )
    x, bias = torch.randn(3, 5, 300).to(dtype), torch.randn(200).to(dtype)
    y = packed.linear(x, bias)
    exact = linear(x, weight, bias)
    # fp32 sums of up to 300 products, then one rounding to the dtype of x
    magnitude = linear(x.abs(), weight.abs(), bias.abs())
    tolerance = magnitude * 300 * 2**-23 + exact.abs() * torch.finfo(dtype).eps
    assert y.dtype == dtype and y.shape == (3, 5, 200)
    assert ((y.double() - exact).abs() <= tolerance).all()
    with pytest.raises(ValueError, match="299 features"):
        packed.linear(x[..., :299])


def test_a_sparse_tensor_is_refused_in_our_words():
    sparse = torch.eye(8, dtype=torch.bfloat16).to_sparse_csr()
    with pytest.raises(fs.FormatError, match=r"not a tensor of layout torch.sparse_csr.*to_dense"):
        fs.pack(sparse, "tiled_csl")
