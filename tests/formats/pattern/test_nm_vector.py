# SPDX-License-Identifier: Apache-2.0
"""nm_vector: every pattern, every shape, and what its packer refuses."""

import math

import _results
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import flashsparse_plugin as fs
from flashsparse_plugin.dataflow import model
from flashsparse_plugin.dataflow.expected import typical_weight
from flashsparse_plugin.evaluation.kinds import KINDS
from flashsparse_plugin.formats.pattern.options import VECTOR_LENGTHS, PatternOptions
from flashsparse_plugin.gpu import GPUS
from flashsparse_plugin.packed import FormatError, PackedWeight

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@st.composite
def patterns(draw):
    m = draw(st.sampled_from([1, 2, 3, 4, 5, 8, 16, 31, 32, 100, 255, 256]))
    n = draw(st.integers(1, m))
    return PatternOptions(n=n, m=m, vector_length=draw(st.sampled_from(VECTOR_LENGTHS)))


def pattern_weight(shape, options, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    weight = options.keep_largest(torch.randn(shape, generator=generator)).to(dtype)
    weight[torch.rand(shape, generator=generator) < 0.1] = -0.0  # fewer than the pattern allows
    return weight


def packed_as(weight, options):
    return fs.pack(weight, "nm_vector", options.model_dump())


def bits(tensor):
    return tensor.contiguous().view({2: torch.int16, 4: torch.int32}[tensor.itemsize])


@settings(max_examples=60)
@given(
    patterns(), st.tuples(st.integers(1, 70), st.integers(1, 300)), st.sampled_from(DTYPES),
    st.integers(0, 99),
)  # fmt: skip
def test_any_pattern_and_shape_comes_back(options, shape, dtype, seed):
    weight = pattern_weight(shape, options, dtype, seed)
    packed = packed_as(weight, options).validate()
    wanted = torch.where(weight == 0, 0.0, weight)
    assert torch.equal(bits(packed.unpack()), bits(wanted))
    assert packed.format.nonzeros(packed) == weight.count_nonzero()
    theirs = packed.format.reference.pack(weight, packed.scheme)
    assert all(torch.equal(theirs[name], tensor) for name, tensor in packed.tensors.items())

    assert torch.equal(bits(packed.format.reference.unpack(packed)), bits(wanted))

    x = torch.randn(3, shape[1], dtype=dtype)
    exact = x.double() @ weight.double().T
    room = (x.double().abs() @ weight.double().abs().T) * shape[1] * 2**-22
    room += exact.abs() * 2 * torch.finfo(dtype).eps
    for form in (packed, packed.prepare("cpu").validate()):
        assert torch.equal(bits(form.unpack()), bits(wanted))
        assert ((form.linear(x).double() - exact).abs() <= room).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_specification_s_example(dtype):
    row = torch.tensor([[0, 1, 2, 0, 3, 0, 0, 4, 0, 0, 0, 5]], dtype=dtype)
    packed = fs.pack(row, "nm_vector", n=2, m=4)
    assert packed.tensors["weight_packed"].view(dtype).tolist() == [[1, 2, 3, 4, 0, 5]]
    assert packed.tensors["weight_index"].tolist() == [[0b11001001, 0b00001100]]


@pytest.mark.parametrize(
    ("place", "options", "message"),
    [
        ((70, 9), {"n": 2, "m": 4}, r"2:4 \(vector_length 1\) at row 70, columns 8 to 11: 3 "),
        ((70, 66), {"n": 1, "m": 32, "vector_length": 32}, "at rows 64 to 95, columns 64 to 95: 2"),
        ((70, 99), {"n": 1, "m": 64, "vector_length": 64}, "at rows 64 to 99, columns 64 to 99: 2"),
    ],
)
def test_a_weight_that_breaks_the_pattern_is_refused_by_place(place, options, message):
    pattern = PatternOptions(**options)
    weight = torch.zeros(100, 100)
    weight[70, 8:10] = 1.0
    weight[70, 64] = 1.0
    if options["n"] == 1:
        weight[70, 9] = 0.0
        weight[70, place[1]] = 1.0
    else:
        weight[70, 10] = 1.0
    with pytest.raises(FormatError, match=message):
        packed_as(weight, pattern)
    assert packed_as(pattern.keep_largest(weight), pattern).sparsity > 0.9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 5, "m": 4}, "5:4 is no pattern: n must not be more than m"),
        ({"n": 0, "m": 4}, "option n"),
        ({"n": 2, "m": 257}, "option m"),
        ({"n": 2, "m": 4, "vector_length": 3}, "vector_length: 3 is not a power of two up to 128"),
        ({"n": 2, "m": 4, "vector_length": 256}, "option vector_length"),
        ({"n": 2}, "needs the option 'm'"),
    ],
)
def test_impossible_patterns_are_refused(options, message):
    with pytest.raises(FormatError, match=message):
        fs.pack(torch.zeros(8, 8), "nm_vector", options)


@pytest.mark.parametrize("form", ["storage", "panels"])
def test_hostile_positions_are_refused_and_reach_nothing(form):
    options = PatternOptions(n=3, m=5, vector_length=16)
    weight = pattern_weight((40, 33), options, torch.float32)
    packed = packed_as(weight, options)
    packed = packed if form == "storage" else packed.prepare("cpu")
    name = "weight_index" if form == "storage" else "columns"
    generator, refused = torch.Generator().manual_seed(1), 0
    for _ in range(200):
        index = packed.tensors[name].clone()
        most = 256 if form == "storage" else 2**31 - 1
        where = int(torch.randint(index.numel(), (1,), generator=generator))
        index.view(-1)[where] = torch.randint(most, (1,), generator=generator)[0]
        damaged = PackedWeight(packed.scheme, packed.shape, {**packed.tensors, name: index})
        damaged.unpack()
        try:
            damaged.validate("up")
        except FormatError:
            refused += 1
    assert refused > 100


def test_values_beyond_the_edge_are_refused():
    packed = fs.pack(torch.ones(2, 5), "nm_vector", n=4, m=4)
    assert packed.validate().unpack().shape == (2, 5)
    values = packed.tensors["weight_packed"].clone()
    values[1, -1] = 7
    with pytest.raises(FormatError, match="row 1, columns 4 to 4: .*zeros beyond the weight's"):
        PackedWeight(packed.scheme, (2, 5), {**packed.tensors, "weight_packed": values}).validate()


def test_parts_are_cut_and_joined_without_unpacking(monkeypatch):
    options = PatternOptions(n=4, m=16, vector_length=8)
    weight = pattern_weight((96, 128), options, torch.bfloat16)
    packed, wanted = packed_as(weight, options), {}
    for rows in (range(0, 96), range(8, 40), range(40, 96)):
        for columns in (range(0, 128), range(32, 96), range(96, 128)):
            part = weight[rows.start : rows.stop, columns.start : columns.stop].contiguous()
            wanted[rows, columns] = packed_as(part, options)
    monkeypatch.setattr(type(packed.format), "unpack", None)
    for (rows, columns), expected in wanted.items():
        made = packed.format.cut(packed, rows, columns)
        assert made.shape == expected.shape
        assert all(torch.equal(made.tensors[name], t) for name, t in expected.tensors.items())
    tops = [packed.format.cut(packed, range(a, b), range(128)) for a, b in ((0, 8), (8, 96))]
    whole = packed.format.join(tops)
    assert all(torch.equal(whole.tensors[name], t) for name, t in packed.tensors.items())


def test_estimates_come_near_what_was_measured():
    """Of both forms on an H200, over all layers: within 10%, and each layer within twice."""
    errors: dict[tuple[str, str], list[float]] = {}
    layers = _results.read(_results.FOLDER / "nvidia-h200" / "layers.csv")
    for row in layers["rows"]:
        if row["kind"] not in ("2:4", "8:32"):
            continue
        kind, (rows, _, columns) = KINDS[row["kind"]], row["shape"].partition("x")
        weight = typical_weight(
            (int(rows), int(columns)), kind.scheme(torch.bfloat16), kind.density
        )
        for tokens in filter(str.isdigit, row):
            arguments = weight.scheme, weight.shape, weight.nbytes, int(tokens), GPUS[0]
            form = weight.scheme.format
            if row["implementation"] == form.choose(*arguments):
                error = math.log(
                    model.best_seconds(weight, int(tokens), GPUS[0]) * 1e6 / row[tokens]
                )
                errors.setdefault((form.name, tokens), []).append(error)
    assert len(errors) == 18
    for found in errors.values():
        assert abs(math.fsum(found) / len(found)) < 0.1 and max(map(abs, found)) < math.log(2)
