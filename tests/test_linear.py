# SPDX-License-Identifier: Apache-2.0
"""SparseLinear behaves like a layer: state_dict, devices, dtypes, copies."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor
from weights import sparse_weight

import flashsparse_plugin as fs
from flashsparse_plugin import linear as module
from flashsparse_plugin.plan import Plan
from flashsparse_plugin.pruning.sparsify import sparsify_


@pytest.fixture
def linear():
    linear = nn.Linear(70, 150, dtype=torch.bfloat16)
    linear.weight.data = sparse_weight(150, 70)
    return linear


@pytest.fixture
def layer(linear):
    return fs.SparseLinear.from_linear(linear)


def empty_like(layer):
    return fs.SparseLinear(
        layer.in_features, layer.out_features, layer.scheme, bias=layer.bias is not None
    )


def test_computes_what_the_dense_layer_computes(linear, layer):
    x = torch.randn(5, 70, dtype=torch.bfloat16)
    torch.testing.assert_close(layer(x), linear(x), rtol=2**-7, atol=1e-2)


def test_there_and_back(linear, layer):
    assert torch.equal(layer.weight, linear.weight)
    dense = layer.to_linear()
    assert isinstance(dense, nn.Linear) and torch.equal(dense.weight, linear.weight)
    assert torch.equal(dense.bias, linear.bias)
    assert layer.to_linear(torch.float32).weight.dtype == torch.float32


def test_a_bias_keeps_its_dtype(linear):
    linear.bias = nn.Parameter(torch.ones(150, dtype=torch.float32))
    assert fs.SparseLinear.from_linear(linear).bias.dtype == torch.float32


def test_the_weight_is_held_once_in_the_runtime_form(layer):
    assert (
        layer.held.format.name == "interleaved_bitmap"
        and layer.scheme.format.name == "tiled_bitmap"
    )
    held = {name for name, _ in layer.named_parameters()}
    assert held == {"values", "masks", "panel_offsets", "bias"}


def test_state_dict_shows_the_storage_form_and_loads_again(layer):
    state = layer.state_dict()
    assert set(state) == {"weight_packed", "unit_offsets", "bias"}
    stored = fs.pack(layer.weight)
    assert all(torch.equal(state[name], tensor) for name, tensor in stored.tensors.items())

    again = empty_like(layer)
    again.load_state_dict(state)
    assert again.held.format.name == "interleaved_bitmap"
    x = torch.randn(3, 70)
    assert torch.equal(again(x), layer(x))


def test_state_dict_works_inside_a_model(layer):
    model = nn.Sequential(nn.Linear(4, 70), layer)
    other = nn.Sequential(nn.Linear(4, 70), empty_like(layer))
    other.load_state_dict(model.state_dict())
    x = torch.randn(3, 4)
    assert torch.equal(other(x), model(x))


def test_loading_says_what_is_wrong(layer):
    state = layer.state_dict()
    damaged = {**state, "weight_packed": state["weight_packed"][:-4]}
    with pytest.raises(RuntimeError, match="unit_offsets"):
        empty_like(layer).load_state_dict(damaged)
    with pytest.raises(RuntimeError, match="Missing.*unit_offsets"):
        empty_like(layer).load_state_dict({"weight_packed": state["weight_packed"]})
    with pytest.raises(RuntimeError, match="Unexpected.*weight_scale"):
        empty_like(layer).load_state_dict({**state, "weight_scale": torch.ones(1)})
    with pytest.raises(RuntimeError, match=r"bias must be \[150\]"):
        fs.SparseLinear.from_packed(fs.pack(layer.weight), torch.zeros(150)).load_state_dict(
            {**state, "bias": torch.zeros(3)}
        )


@pytest.mark.parametrize("cast", [nn.Module.half, nn.Module.float, nn.Module.bfloat16])
def test_casting_the_module_leaves_the_packed_weight_alone(layer, cast):
    before = layer.weight
    cast(layer)
    assert torch.equal(layer.weight, before) and layer.scheme.dtype == torch.bfloat16
    dtype = layer.bias.dtype
    assert layer(torch.randn(2, 70).to(dtype)).dtype == dtype


def test_moving_to_meta_and_printing(layer):
    moved = copy.deepcopy(layer).to("meta")
    assert moved.held.format.name == "tiled_bitmap" and moved.weight_packed.is_meta
    assert "bits a weight" not in repr(moved)
    assert "scheme=tiled_bitmap bfloat16" in repr(layer) and "bits a weight" in repr(layer)
    assert "in_features=70, out_features=150, bias=True" in repr(layer)


def test_copies_are_independent(layer):
    other = copy.deepcopy(layer)
    other.values.zero_()
    assert layer.weight.count_nonzero() > 0 and other.weight.count_nonzero() == 0


def test_no_packed_tensor_asks_for_a_gradient(layer):
    x = torch.randn(2, 70, requires_grad=True)
    layer(x).sum().backward()
    assert x.grad is not None and not any(p.requires_grad for p in layer.parameters())


def test_wrong_width_is_an_error_that_names_the_layer(layer):
    with pytest.raises(ValueError, match="71 features.*takes 70"):
        layer(torch.randn(2, 71))


PLAN = Plan.of([(7, "sparse"), (None, "library")], "table", "so")


@pytest.fixture
def dataflow(monkeypatch):
    """Pretends that weights leave a choice, as on a GPU; what was asked for, and what ops got."""
    asked, given = [], []
    monkeypatch.setattr(module, "plan_of", lambda packed: asked.append(packed) or PLAN)
    form = type(fs.pack(torch.ones(1, 1).half()).prepare("cpu").format)
    inner = form.linear

    def linear(self, *arguments):
        given.append(arguments[-1])
        return inner(self, *arguments)

    monkeypatch.setattr(form, "linear", linear)
    return asked, given


def test_the_dataflow_is_resolved_when_a_weight_is_there_and_obeyed(linear, dataflow):
    asked, given = dataflow
    layer = fs.SparseLinear.from_linear(linear)
    packed = fs.SparseLinear.from_packed(fs.pack(linear.weight.detach()), linear.bias)
    loaded = empty_like(layer)
    assert loaded.plan is None and "for up to" not in repr(loaded)
    loaded.load_state_dict(layer.state_dict())
    assert len(asked) == 3 and all(each.scheme == layer.held for each in asked)  # as it is run
    copies = [copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), layer.half()]
    x = torch.randn(2, 3, 70)
    for each in (layer, packed, loaded, *copies):
        assert each.plan == PLAN and "sparse for up to 7 tokens, else library" in repr(each)
        each(x)
    assert given == [PLAN] * 6 and len(asked) == 3  # and in no call


def test_moved_to_a_gpu_it_is_resolved(linear, dataflow):
    asked, _ = dataflow
    layer = fs.SparseLinear(70, 150, fs.pack(linear.weight.detach()).scheme)
    layer._set_tensors(fs.pack(linear.weight.detach()))
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert layer.to(torch.float16).plan is None  # is still where it was
        layer.to_empty(device="cuda")  # this torch may have no CUDA, and so no other way there
    assert layer.plan == PLAN and [each.device.type for each in asked] == ["cuda"]


def test_where_there_is_nothing_to_choose_the_op_is_left_to_itself(layer):
    assert layer.plan is None and "for up to" not in repr(layer)


def test_compiled_it_holds_its_threshold(linear, dataflow):
    layer = fs.SparseLinear.from_linear(linear)
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=True)
    for tokens in (2, 7, 8):
        x = torch.randn(tokens, 70)
        assert torch.equal(compiled(x), layer(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
def test_autocast_rules_the_dtype_as_of_a_dense_layer(stored, given, dtype):
    dense = nn.Linear(70, 150, dtype=stored)
    dense.weight.data = sparse_weight(150, 70).to(stored)
    packed = fs.SparseLinear.from_linear(dense)
    x = torch.randn(5, 70).to(given).requires_grad_()
    with torch.autocast("cpu", dtype):
        y, expected = packed(x), dense(x)
        torch.cat([y, torch.zeros(1, 150, dtype=dtype)])  # fails where dtypes are not of one kind
    assert y.dtype == expected.dtype == dtype
    torch.testing.assert_close(y, expected, rtol=2**-6, atol=2e-2)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert gradient.dtype == given
    x = x.detach().double()
    with torch.autocast("cpu", dtype):  # torch leaves float64 alone, and so it is an error
        for layer in (packed, dense):
            with pytest.raises((RuntimeError, TypeError, ValueError)):
                layer(x)


def test_weights_of_another_tool_in_memory_are_refused():
    """torchao and DTensor keep theirs in subclasses of Tensor, with the dtype of a plain one."""
    linear = torch.nn.Linear(64, 32).to(torch.bfloat16)
    inner = linear.weight.detach()
    linear.weight = torch.nn.Parameter(TwoTensor(inner, inner.clone()))
    with pytest.raises(fs.FormatError, match=r"not a TwoTensor.*Remedy: .*dequantize"):
        fs.SparseLinear.from_linear(linear)
    with pytest.raises(ValueError, match="a weight of TwoTensor cannot be pruned"):
        sparsify_(torch.nn.Sequential(linear), sparsity=0.5)
