# SPDX-License-Identifier: Apache-2.0
"""The op that chooses by the number of tokens, and what a layer calls when it is loaded."""

from types import SimpleNamespace

import pytest
import torch
from torch.library import opcheck
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

import flashsparse_plugin as fs
from flashsparse_plugin.dataflow import (
    DenseLinear,
    TableError,
    Weight,
    dense_linear,
    linear,
    plan_of,
)
from flashsparse_plugin.formats import find_form, get_format
from flashsparse_plugin.ops import ops
from flashsparse_plugin.plan import NO_LIMIT, Plan

OUT, IN = 30, 70
OPS = ("flashsparse::gemv", "flashsparse::flat_gemm")


def tensors(*shape, dtype=torch.bfloat16, grad=False):
    """x [*shape, in], weight and bias."""
    made = torch.randn(*shape, IN), torch.randn(OUT, IN), torch.randn(OUT)
    return [tensor.to(dtype).requires_grad_(grad) for tensor in made]


def called(flow, *arguments):
    """The result, and the ops of ours that multiplied."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        y = flow(*arguments)
    return y, [event.name for event in found.events() if event.name in OPS]


@pytest.mark.parametrize(
    ("gemv", "flat", "tokens", "expected"),
    [
        (2, 16, 1, OPS[:1]),
        (2, 16, 2, OPS[:1]),
        (2, 16, 3, OPS[1:]),
        (2, 16, 16, OPS[1:]),
        (2, 16, 17, ()),
        (2, 16, 0, ()),
        (0, 64, 1, OPS[1:]),
        (0, 64, 64, OPS[1:]),
        (0, 64, 65, ()),
        (8, 0, 8, OPS[:1]),
        (8, 0, 9, ()),
        (0, 0, 1, ()),
    ],
)
def test_the_number_of_tokens_chooses(gemv, flat, tokens, expected):
    torch.manual_seed(0)
    x, weight, bias = tensors(tokens)
    for arguments in ((x, weight), (x, weight, bias)):
        y, names = called(DenseLinear(gemv, flat), *arguments)
        assert tuple(names) == expected
        assert torch.equal(y, F.linear(*arguments))


def test_tokens_are_all_but_the_last_dimension():
    x, weight, _ = tensors(2, 3)
    y, names = called(DenseLinear(5, 6), x, weight)
    assert names == [OPS[1]] and torch.equal(y, F.linear(x, weight))
    y, names = called(DenseLinear(1, 6), x[0, 0], weight)
    assert names == [OPS[0]] and y.shape == (OUT,)


def test_the_library_takes_any_dtype_and_kernels_say_what_they_take():
    x, weight, bias = tensors(3, dtype=torch.float32)
    assert torch.equal(ops.dense_linear(x, weight, bias, 2, 2), F.linear(x, weight, bias))
    with pytest.raises(RuntimeError, match="dense_linear: weight must be float16 or bfloat16"):
        ops.dense_linear(x, weight, bias, 3, 3)


X, WEIGHT, BIAS = tensors(3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X, WEIGHT, BIAS, 9, 0), "gemv_tokens must be 0 to 8, not 9"),
        ((X, WEIGHT, BIAS, -1, 0), "gemv_tokens must be"),
        ((X, WEIGHT, BIAS, 0, 65), "flat_tokens must be 0 to 64, not 65"),
        ((X, WEIGHT, BIAS, 0, -1), "flat_tokens must be"),
        ((X[:, 1:], WEIGHT, BIAS, 0, 0), "x must be"),
        ((X, WEIGHT[0], BIAS, 0, 0), "x must be"),
        ((X[0, 0], WEIGHT, BIAS, 0, 0), "x must be"),
        ((X.half(), WEIGHT, BIAS, 0, 0), "dtype of weight"),
        ((X, WEIGHT, BIAS[1:], 0, 3), "bias must be"),
    ],
)
def test_bad_arguments_are_errors_before_any_kernel_runs(arguments, message):
    with pytest.raises(RuntimeError, match=f"dense_linear: .*{message}"):
        ops.dense_linear(*arguments)


@pytest.mark.parametrize("tokens", [1, 3, 5])
def test_opcheck_and_gradients(tokens):
    arguments = tensors(tokens, grad=True)
    opcheck(ops.dense_linear.default, (*arguments, 2, 4))
    opcheck(ops.dense_linear.default, (*arguments[:2], None, 2, 4))
    theirs = [tensor.detach().clone().requires_grad_() for tensor in arguments]
    dy = torch.randn(tokens, OUT).bfloat16()
    DenseLinear(2, 4)(*arguments).backward(dy)
    F.linear(*theirs).backward(dy)
    for mine, other in zip(arguments, theirs, strict=True):
        torch.testing.assert_close(mine.grad, other.grad)


def test_one_graph_for_any_number_of_tokens():
    """No graph break, and no graph for each number, or for each side of a threshold."""
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward

    flow = DenseLinear(2, 16)
    torch._dynamo.reset()
    layer = torch.compile(lambda *a: flow(*a) * 2, backend=backend, fullgraph=True, dynamic=True)
    _, weight, bias = tensors(1)
    for tokens in (5, 2, 3, 16, 17, 64, 65):
        x = tensors(tokens)[0]
        torch._dynamo.mark_dynamic(x, 0)
        assert torch.equal(layer(x, weight, bias), 2 * F.linear(x, weight, bias))
    assert len(compiled) == 1


def test_on_a_cpu_a_layer_stays_as_it_is():
    weight = torch.ones(OUT, IN).bfloat16()
    assert dense_linear(weight) is None and plan_of(fs.pack(weight)) is None


@pytest.fixture
def resolved(monkeypatch):
    """Pretends to be on a GPU where the given ranges were found; returns what was looked up."""

    def pretend(*ranges, loaded=True):
        flow = Plan.of(ranges, "table", "so")
        monkeypatch.setattr(linear, "STATUS", {"_C_cuda": SimpleNamespace(loaded=loaded)})
        asked = []
        monkeypatch.setattr(linear, "resolve", lambda *about: asked.append(about) or flow)
        return asked

    return pretend


ON_GPU = SimpleNamespace(
    **{"shape": (OUT, IN), "dtype": torch.float16, "device": torch.device("cuda"), "is_cuda": True},
    **{"scheme": get_format("tiled_csl").scheme(torch.float16), "density": 0.25, "nbytes": 600},
    format=get_format("tiled_csl"),
)
LIBRARY = (None, "library")


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ([(2, "gemv"), (16, "flat_gemm"), LIBRARY], DenseLinear(2, 16, "so")),
        ([(4, "gemv"), LIBRARY], DenseLinear(4, 0, "so")),
        ([(16, "flat_gemm"), LIBRARY], DenseLinear(0, 16, "so")),
        ([LIBRARY], None),
    ],
)
def test_a_dataflow_becomes_two_thresholds(resolved, ranges, expected):
    asked = resolved(*ranges)
    assert dense_linear(ON_GPU) == expected
    assert asked == [(Weight((OUT, IN)), torch.float16, torch.device("cuda"))]


@pytest.mark.parametrize(
    ("ranges", "most", "told"),
    [
        ([(192, "sparse"), LIBRARY], 192, "sparse for up to 192 tokens, else library (so)"),
        ([LIBRARY], 0, "library for any number of tokens (so)"),
        ([(None, "sparse")], NO_LIMIT, "sparse for any number of tokens (so)"),
        (
            [(48, "few"), (512, "many"), LIBRARY],
            512,
            "few for up to 48 tokens, many for up to 512 tokens, else library (so)",
        ),
    ],
)
def test_a_packed_weight_has_a_plan(resolved, ranges, most, told):
    asked = resolved(*ranges)
    found = plan_of(ON_GPU)
    assert found.sparse_tokens == most and str(found) == told
    weight = Weight((OUT, IN), ON_GPU.scheme, 0.25, 600)
    assert asked == [(weight, torch.float16, torch.device("cuda"))]


@pytest.mark.parametrize(
    ("ranges", "told"),
    [
        ([(48, "few"), (512, "many"), LIBRARY], (512, 48)),
        ([(512, "many"), LIBRARY], (512, 0)),
        ([(None, "few")], (NO_LIMIT, NO_LIMIT)),
        ([(200, "sparse"), LIBRARY], (200, None)),  # the format's own rule between its kernels
        ([LIBRARY], (0, 0)),
    ],
)
@pytest.mark.parametrize("form", ["tiled_bitmap", "sparse_24"])
def test_ops_are_told_both_thresholds(monkeypatch, form, ranges, told):
    format, calls = find_form(form), []
    fake = staticmethod(lambda *arguments: calls.append(arguments))
    monkeypatch.setattr(type(format), "linear_op", fake)
    scheme = format.scheme(torch.float16, {"n": 2, "m": 4} if form == "sparse_24" else {})
    tensors = dict.fromkeys(format.tensor_names, torch.empty(0))
    for plan, expected in ((Plan.of(ranges), told), (None, (None, None))):
        format.linear(torch.empty(1, 64), scheme, (16, 64), tensors, None, plan)
        assert calls.pop()[6 if form == "tiled_bitmap" else 5 :][:2] == expected


def test_without_cuda_kernels_there_is_nothing_to_choose(resolved):
    asked = resolved((2, "gemv"), LIBRARY, loaded=False)
    assert dense_linear(ON_GPU) is None and plan_of(ON_GPU) is None and asked == []


def test_a_table_that_cannot_be_read_is_an_error(resolved, monkeypatch):
    def refuse(*about):
        raise TableError("no table")

    resolved(LIBRARY)
    monkeypatch.setattr(linear, "resolve", refuse)
    for decide in (dense_linear, plan_of):
        with pytest.raises(TableError):
            decide(ON_GPU)
