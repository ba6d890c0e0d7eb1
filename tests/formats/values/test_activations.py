# SPDX-License-Identifier: Apache-2.0
"""Activations that are rounded to codes by token: what they become, and products of them."""

import logging
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from weights import sparse_weight

import flashsparse_plugin as fs
from flashsparse_plugin.dataflow.model import Weight, seconds
from flashsparse_plugin.formats import get_format
from flashsparse_plugin.formats.pattern import sparse_24
from flashsparse_plugin.formats.pattern.sparse_24 import Sparse24
from flashsparse_plugin.formats.values import activations, quantization
from flashsparse_plugin.formats.values.types import VALUE_TYPES
from flashsparse_plugin.gpu import GPUS
from flashsparse_plugin.packed import FormatError

FORMAT = get_format("nm_vector")
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
TYPES = ["fp8_e4m3", "int8"]
CODES = {
    "int8": [float(code) for code in range(-127, 128)],
    "fp8_e4m3": sorted(
        sign * (fraction / 8 + (exponent > 0)) * 2.0 ** (max(exponent, 1) - 7)
        for sign in (-1, 1)
        for exponent in range(16)
        for fraction in range(8 if exponent < 15 else 7)
    ),
}
"""All codes in order, from the definitions of the types."""


def scheme_of(values, dtype=torch.bfloat16, **options):
    pattern = {"n": 2, "m": 4, "values": values, "activations": values}
    return FORMAT.scheme(dtype, pattern | options)


def packed_as(scheme, shape=(50, 70), seed=0):
    weight = sparse_weight(*shape, 0.7, scheme.dtype, seed)
    return FORMAT.pack(FORMAT.conform(weight, scheme), scheme)


def oracle(token, values):
    """Codes and scale of one token, by looking the nearest code up."""
    codes = torch.tensor(CODES[values])
    # Small tokens times a power of two, so that no float32 below is subnormal.
    token = token.double()
    lift = 2.0**100 if token.abs().max() < 2.0**-100 else 1.0
    token = token * lift
    largest = token.float().abs().max().clamp_min(2.0**-49)
    numbers = token.float() * (codes[-1] / largest)
    distance = (numbers[:, None].double() - codes.double()).abs()
    nearest = distance.min(1, keepdim=True).values == distance
    # Of two codes that are as near the one with an even last bit.
    bits = codes.to(torch.int8 if values == "int8" else torch.float8_e4m3fn).view(torch.uint8)
    even = bits % 2 == 0
    tied = nearest.sum(1, keepdim=True) > 1
    chosen = nearest & (even | ~tied)
    return codes[chosen.int().argmax(1)], largest / codes[-1] / lift


@settings(max_examples=50)
@given(st.sampled_from(TYPES), st.sampled_from(DTYPES), st.integers(1, 90), st.integers(0, 999))
def test_tokens_become_the_nearest_codes(values, dtype, columns, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(3, columns, generator=generator) * torch.tensor([1e-3, 1.0, 500.0])[:, None]
    x[1] = x[1].mul(8).round() / 8  # ties
    x = x.to(dtype)
    codes, scales = activations.quantise_tokens(x, VALUE_TYPES[values])
    for token, found, scale in zip(x, codes, scales, strict=True):
        wanted, of_token = oracle(token, values)
        assert torch.equal(found, wanted) and scale == of_token
        assert found.abs().max() == (CODES[values][-1] if token.any() else 0)


@pytest.mark.parametrize("values", TYPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("exponent", [-140, -131, -120, -108, -50, 60, 110, 120])
def test_no_token_is_too_small_or_too_large(values, dtype, exponent):
    """The formula in float64, wherever its result is a finite number of the dtype."""
    scheme = scheme_of(values, torch.bfloat16)
    packed = packed_as(scheme)
    base = torch.randn(5, 70, generator=torch.Generator().manual_seed(0)).bfloat16()
    base /= base.abs().amax(1, keepdim=True)
    base[0, 0] = 1.998
    x = (base.double() * 2.0**exponent * 128 / 1.998).to(dtype)
    assert x.any() and x.isfinite().all()
    codes = torch.stack([oracle(token, values)[0] for token in x]).double()
    scales = x.double().abs().amax(1, keepdim=True) / CODES[values][-1]
    weight = packed.unpack().double() * 2.0**-6
    light = FORMAT.pack_codes(
        FORMAT.codes(packed), packed.tensors["weight_scale"] * 2.0**-6, packed.scheme
    )
    exact = codes * scales @ weight.T
    room = (codes.abs() * scales @ weight.abs().T) * 70 * 2**-20 + exact.abs() * 2**-8
    # Where numbers are subnormal, codes of x, sums and y are rounded to multiples of the smallest.
    room += torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps * 4
    room += 2.0**-149 * weight.abs().sum(1)
    for form in (light, light.prepare("cpu")):
        y = form.linear(x)
        assert y.isfinite().all()
        assert ((y.double() - exact).abs() <= room).all()


@pytest.mark.parametrize("length", [1, 16])
def test_where_sums_of_activations_and_codes_overflow(length):
    """docs/formats.md: below 3.4e38 / (448 in_features) nowhere; rounded activations nowhere."""
    options = {"n": 2, "m": 4, "vector_length": length, "values": "fp8_e4m3"}
    for rounded_to in ("native", "fp8_e4m3"):
        scheme = FORMAT.scheme(torch.bfloat16, options | {"activations": rounded_to})
        codes = torch.tensor([448.0, 0, 448, 0]).repeat(16, 16)
        packed = FORMAT.pack_codes(codes, torch.full((16, 1), 2.0**-20), scheme)
        limit = torch.finfo(torch.float32).max / (448 * 64)
        running = packed.prepare("cpu")
        y = running.linear(torch.full((1, 64), limit))
        torch.testing.assert_close(y, torch.full_like(y, limit * 448 * 32 * 2.0**-20))
        large = running.linear(torch.full((1, 64), limit * 60))
        assert bool(large.isfinite().all()) == (rounded_to != "native")


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float64])
def test_other_dtypes_are_refused_as_without_rounding(dtype):
    for rounded_to in ("int8", "native"):
        packed = packed_as(scheme_of("int8", activations=rounded_to))
        for form in (packed, packed.prepare("cpu")):
            with pytest.raises(RuntimeError, match="x must be float32, float16 or bfloat16"):
                form.linear(torch.ones(2, 70).to(dtype))


@st.composite
def schemes(draw):
    values, m = draw(st.sampled_from(TYPES)), draw(st.sampled_from([4, 8, 32]))
    pattern = {"n": draw(st.integers(1, m)), "m": m, "group": draw(st.sampled_from([None, 32]))}
    length = draw(st.sampled_from([1, 4, 16]))
    return scheme_of(values, draw(st.sampled_from(DTYPES)), vector_length=length, **pattern)


@settings(max_examples=40)
@given(schemes(), st.sampled_from(DTYPES), st.sampled_from([1, 5]), st.integers(0, 99))
def test_codes_are_multiplied_by_codes(scheme, x_dtype, tokens, seed):
    packed = packed_as(scheme, (40, 70), seed)
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, 70, generator=generator).to(x_dtype)
    bias = torch.randn(40, generator=generator).to(x_dtype)
    seen, weight = scheme.format.round_activations(x, scheme), packed.unpack().double()
    exact, magnitude = seen @ weight.T + bias.double(), seen.abs() @ weight.abs().T
    room = (magnitude + bias.double().abs()) * 70 * 2**-22 + exact.abs() * torch.finfo(x_dtype).eps
    running = packed.prepare("cpu")
    assert running.scheme.options.activations == scheme.options.activations
    for form in (packed, running):
        y = form.linear(x, bias)
        assert y.dtype == x_dtype and ((y.double() - exact).abs() <= room).all()


@settings(max_examples=40)
@given(st.sampled_from(TYPES), st.sampled_from(DTYPES[1:]), st.integers(-130, 120))
def test_kernels_for_16_bits_are_given_codes_that_are_exact(values, dtype, exponent):
    """Each times one power of two, by which no scale is a subnormal number."""
    generator = torch.Generator().manual_seed(exponent)
    x = torch.randn(4, 200, generator=generator).clamp(-3.9, 3.9).double()
    x = (x * 2.0**exponent).to(dtype)
    x[2] = 0
    x = x[x.isfinite().all(1)]
    given, scales = activations.codes_in_16_bits(x, VALUE_TYPES[values])
    assert given.dtype == dtype and scales.shape == (len(x),)
    codes, _ = activations.quantise_tokens(x, VALUE_TYPES[values])
    shares = given.double() / codes.double().where(codes != 0, 1)
    assert torch.equal(shares.log2().round().exp2().where(codes != 0, 0), shares)
    assert (scales[x.any(1)] >= torch.finfo(torch.float32).tiny).all()
    rounded = given.double() * scales.double()[:, None]
    torch.testing.assert_close(rounded, activations.rounded_tokens(x, VALUE_TYPES[values]))


def in_16_bits(monkeypatch):
    """As on GPUs, whose kernels multiply 16-bit x: ops have that meaning on a CPU, too."""
    monkeypatch.setattr(
        quantization, "takes_16_bits", lambda x, dtype: x.dtype == dtype and dtype != torch.float32
    )


def on_a_gpu(packed):
    """Packed as a GPU's form, whose ops compute on a CPU what they mean."""
    form = packed.format.runtime(packed.scheme, torch.device("cuda"))
    assert form.format.name in ("sparse_24", "nm_gather")
    return packed.transcode(form)


@pytest.mark.parametrize("values", TYPES)
@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize("options", [{}, {"vector_length": 16}, {"group": 32}], ids=str)
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_16_bit_kernels_round_once(values, dtype, options, scale, monkeypatch):
    """To the bits of the float64 product of what was rounded, but for sums in float32."""
    if dtype == torch.float16 and scale != 1:
        scale = 1e-4 if scale < 1 else 1e2
    in_16_bits(monkeypatch)
    stored = packed_as(scheme_of(values, dtype, **options), (256, 1024))
    packed = on_a_gpu(stored)
    generator = torch.Generator().manual_seed(0)
    x = (torch.randn(16, 1024, generator=generator) * scale).to(dtype)
    x[0] = x[0].abs()
    bias = (torch.randn(256, generator=generator) * scale).to(dtype)
    codes = FORMAT.round_activations(x, packed.scheme)
    weight = stored.unpack().double()  # of the op's meaning on a CPU
    for added in (None, bias):
        exact = codes @ weight.T + (0.0 if added is None else added.double())
        y = packed.linear(x, added).double()
        of_one_rounding = (exact.to(dtype).double() - exact).norm()
        assert (y - exact).norm() <= 1.01 * of_one_rounding


@pytest.mark.parametrize("values", TYPES)
def test_gradients_go_straight_through_16_bit_kernels(values, monkeypatch):
    stored = packed_as(scheme_of(values))
    packed, dy = (
        stored.transcode(Sparse24().scheme(stored.dtype, stored.scheme.values)),
        torch.randn(3, 50).bfloat16(),
    )
    x, bias = torch.randn(3, 70).bfloat16(), torch.randn(50).bfloat16()
    in_16_bits(monkeypatch)
    y = packed.linear(x, bias)
    x.requires_grad_(), bias.requires_grad_()
    trained = packed.linear(x, bias)
    assert torch.equal(trained, y)
    trained.backward(dy)
    torch.testing.assert_close(x.grad, dy @ stored.unpack())
    torch.testing.assert_close(bias.grad, dy.sum(0))


def test_16_bit_kernels_compile_in_one_graph(monkeypatch):
    in_16_bits(monkeypatch)
    packed = on_a_gpu(packed_as(scheme_of("int8")))

    def layer(x):
        return packed.format.linear(x, packed.scheme, packed.shape, packed.tensors)

    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=True)
    for tokens in (2, 5):
        x = torch.randn(tokens, 70).bfloat16()
        assert torch.equal(compiled(x), layer(x))


@pytest.mark.parametrize("name", ["sparse_24", "nm_gather", "nm_vector"])
def test_scales_of_tokens_go_with_quantized_values_on_a_gpu(name):
    """Where their kernels are: an op refuses them rather than to leave them out."""
    packed = packed_as(scheme_of("int8", vector_length=16 if name == "nm_gather" else 1))
    stored = packed if name == "nm_vector" else on_a_gpu(packed)
    tensors = stored.tensors | {"x_scales": torch.rand(3)}
    x = torch.randn(3, 70).bfloat16()
    if name == "nm_vector":
        with pytest.raises(RuntimeError, match="x_scales are for x in the 16-bit dtype"):
            stored.format.multiply(x, stored.scheme, stored.shape, tensors, None, None)
        return
    y = stored.format.multiply(x, stored.scheme, stored.shape, tensors, None, None)
    exact = x.double() * tensors["x_scales"].double()[:, None] @ stored.unpack().double().T
    torch.testing.assert_close(y, exact.bfloat16())


def test_a_token_does_not_depend_on_its_batch_and_spoils_no_other():
    for values in TYPES:
        packed = packed_as(scheme_of(values)).prepare("cpu")
        x = torch.randn(5, 70).bfloat16()
        x[1], x[3, 7] = 0, torch.inf
        y = packed.linear(x)
        assert not y[3].isfinite().all() and not y[1].any()
        for token in (0, 1, 2, 4):
            assert torch.equal(packed.linear(x[token]), y[token])


@pytest.mark.parametrize("options", [{}, {"vector_length": 16}, {"n": 4, "m": 8}], ids=str)
def test_int8_by_int8_does_not_depend_on_the_batch_on_a_cpu(options):
    """docs/exactness.md: sums of codes below 2^24 are exact, in whatever order."""
    packed = packed_as(scheme_of("int8", **options), (64, 2048))
    bitmap = get_format("tiled_bitmap")
    scheme = bitmap.scheme(torch.bfloat16, {"values": "int8", "activations": "int8"})
    weight = sparse_weight(64, 2048, 0.5, torch.bfloat16)
    for running in (packed.prepare("cpu"), bitmap.pack(weight, scheme).prepare("cpu")):
        for dtype in DTYPES:
            x = torch.randn(65, 2048, generator=torch.Generator().manual_seed(0)).to(dtype)
            y = running.linear(x)
            assert torch.equal(torch.cat([running.linear(token[None]) for token in x]), y)
            assert torch.equal(torch.cat([running.linear(some) for some in x.split(7)]), y)


def with_kernels(monkeypatch):
    """As where sparse_24 has a kernel for codes on both sides: here its op's meaning on a CPU."""
    monkeypatch.setattr(Sparse24, "multiplies_codes", lambda *arguments: True)


@pytest.mark.parametrize("values", TYPES)
@pytest.mark.parametrize("tokens", [1, 40])
def test_the_kernel_for_both_sides_computes_the_same(values, tokens, monkeypatch):
    stored = packed_as(scheme_of(values))
    packed = stored.transcode(Sparse24().scheme(stored.dtype, stored.scheme.values))
    x, bias = torch.randn(tokens, 70).bfloat16(), torch.randn(50).bfloat16()
    known = Sparse24().implementations(packed.scheme)
    assert list(known) == ["sparse"]  # no plan may choose another one for other tokens
    without = packed.linear(x, bias)
    with_kernels(monkeypatch)
    monkeypatch.setattr(Sparse24, "multiply", None)
    torch.testing.assert_close(packed.linear(x, bias), without)


def test_which_gpus_multiply_codes_by_codes(monkeypatch):
    """int8 all, fp8 those whose tensor cores do; a scale of a group no kernel takes."""
    device, form = torch.device("cuda"), Sparse24()
    by_group = {"n": 2, "m": 4, "values": "int8", "activations": "int8", "group": 64}
    for capability in ((8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)):
        found = SimpleNamespace(major=capability[0], minor=capability[1])
        monkeypatch.setattr(sparse_24, "get_device_properties", lambda _, found=found: found)
        assert form.multiplies_codes(scheme_of("int8"), device)
        has_fp8 = capability in ((8, 9), (9, 0), (12, 0))
        assert form.multiplies_codes(scheme_of("fp8_e4m3"), device) == has_fp8
        assert not form.multiplies_codes(scheme_of("int8", activations="native"), device)
        assert not form.multiplies_codes(form.scheme(torch.bfloat16, by_group), device)


def test_its_cost_is_near_what_was_measured():
    """28672x4096 on an H200, benchmarks/results/nvidia-h200/sparse_24_many_sweep.csv."""
    scheme, (h200,) = scheme_of("fp8_e4m3"), (gpu for gpu in GPUS if gpu.name == "H200")
    form, nbytes = Sparse24().scheme(scheme.dtype, scheme.values), 28672 * 4096 * 5 // 8
    for tokens, measured in ((16, 23.06e-6), (64, 26.95e-6)):
        weight = Weight((28672, 4096), form, 0.5, nbytes)
        assert seconds("sparse", weight, tokens, h200) == pytest.approx(measured, rel=0.15)


@pytest.mark.parametrize("values", TYPES)
def test_gradients_go_straight_through(values, monkeypatch):
    stored = packed_as(scheme_of(values))
    form = Sparse24().scheme(stored.dtype, stored.scheme.values)
    for packed in (stored, stored.prepare("cpu"), stored.transcode(form)):
        x, bias = torch.randn(2, 3, 70, requires_grad=True), torch.randn(50, requires_grad=True)
        y = packed.linear(x, bias)
        assert torch.equal(y, packed.linear(x.detach(), bias.detach()))
        dy = torch.randn(2, 3, 50)
        y.backward(dy)
        torch.testing.assert_close(x.grad, dy @ stored.unpack().float())
        torch.testing.assert_close(bias.grad, dy.sum((0, 1)))
    x = torch.randn(3, 70, dtype=torch.bfloat16, requires_grad=True)
    with_kernels(monkeypatch)
    packed.linear(x).sum().backward()
    torch.testing.assert_close(x.grad, stored.unpack().sum(0).expand(3, -1))


def test_it_compiles_in_one_graph():
    layer = fs.SparseLinear.from_packed(packed_as(scheme_of("fp8_e4m3")))
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=True)
    for tokens in (2, 5):
        x = torch.randn(tokens, 70)
        torch.testing.assert_close(compiled(x), layer(x))


def test_what_becomes_of_them_is_told_once(caplog):
    quantization._tell_of_activations.cache_clear()
    caplog.set_level(logging.INFO)
    for _ in range(2):
        packed_as(scheme_of("int8")).prepare("cpu")
    told = "rounded to int8 per token, and multiplied in 32 bits: nm_rows has no W8A8 kernel"
    assert caplog.text.count(told) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"activations": "int8"}, "int8 values alone, and these are native. Remedy: values=int8"),
        ({"values": "int8", "activations": "fp8_e4m3"}, "these are int8.*activations=native"),
        ({"values": "int4", "activations": "int8"}, "these are int4"),
        ({"values": "int4", "activations": "int4"}, "activations"),
    ],
)
def test_activations_that_there_are_not(options, said):
    with pytest.raises(FormatError, match=said):
        FORMAT.scheme(torch.bfloat16, {"n": 2, "m": 4, **options})


def test_they_are_a_part_of_the_scheme():
    rounded, native = scheme_of("int8"), scheme_of("int8", activations="native")
    assert rounded != native and "activations" not in native.values
    assert rounded.title == "nm_vector(2:4, int8 x int8)"
    assert FORMAT.scheme(torch.bfloat16, rounded.values) == rounded
    layers = {"a": {"format": "nm_vector", "options": native.values}}
    config = fs.FlashSparseConfig(
        format="nm_vector", dtype="bfloat16", options=rounded.values, layers=layers
    )
    config = fs.FlashSparseConfig.from_dict(config.to_dict())
    assert (config.scheme_of("a"), config.scheme_of("b")) == (native, rounded)
