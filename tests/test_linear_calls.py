# SPDX-License-Identifier: Apache-2.0
"""What a call of a packed layer goes through: no Python of autograd's where nothing needs it.

That path is safe wherever a gradient may be wanted all the same. Nothing is timed here;
benchmarks/host_cost.py does that.
"""

import copy
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn.utils import prune
from weights import sparse_weight

import flashsparse_plugin as fs
from flashsparse_plugin.formats import get_format

SCHEMES = {
    "tiled_csl": {},
    "tiled_bitmap": {},
    "nm_vector": {"n": 2, "m": 4},
    "nm_vector L=32": {"n": 2, "m": 4, "vector_length": 32},
    "nm_vector int8": {"n": 2, "m": 4, "values": "int8"},
}


@pytest.fixture(scope="module", params=SCHEMES)
def layer(request):
    return packed(request.param)


def packed(name):
    format, options = get_format(name.partition(" ")[0]), SCHEMES[name]
    scheme = format.scheme(torch.bfloat16, options)
    weight = format.conform(sparse_weight(48, 64), scheme)
    return fs.SparseLinear.from_weight(weight, torch.ones(48).bfloat16(), format.name, **options)


@pytest.fixture
def redispatched(monkeypatch):
    """Ops that went on from a kernel in Python, as autograd's is."""
    seen, inner = [], torch._ops.OpOverload.redispatch

    def redispatch(self, *arguments, **named):
        seen.append(self.name())
        return inner(self, *arguments, **named)

    monkeypatch.setattr(torch._ops.OpOverload, "redispatch", redispatch)
    return seen


@pytest.mark.parametrize("mode", [nullcontext, torch.no_grad, torch.inference_mode])
def test_a_call_is_one_op_and_no_python_kernel(layer, mode, redispatched):
    x = torch.randn(1, 1, 64).bfloat16()
    with mode(), torch.autograd.profiler.profile() as profile:
        y = layer(x)
    ops = [event.name for event in profile.function_events]
    assert redispatched == [] and not y.requires_grad
    assert len(ops) == 1 and ops[0].startswith("flashsparse::") and ops[0].endswith("_linear")


def test_a_gradient_goes_by_autograd(layer, redispatched):
    x = torch.randn(3, 64).bfloat16().requires_grad_()
    assert layer(x).requires_grad and len(redispatched) == 1
    layer.bias.requires_grad_()
    try:
        assert layer(x.detach()).requires_grad and len(redispatched) == 2
    finally:
        layer.bias.requires_grad_(False)


def test_transforms_of_torch_func_lose_no_gradient():
    layer, x = packed("tiled_csl"), torch.randn(3, 64, requires_grad=True)
    torch.func.vmap(layer)(x).sum().backward()  # a batched x does not say that it requires one
    torch.testing.assert_close(x.grad, layer.weight.float().sum(0).expand(3, 64))


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_transforms_give_what_a_dense_layer_gives(layer, batch):
    dense, x, dx = layer.to_linear(torch.float32), torch.randn(*batch, 64), torch.randn(*batch, 64)
    dy, func = torch.randn(*batch, 48), torch.func
    results = {
        "grad": lambda own: func.grad(lambda x: (own(x) * dy).sum())(x),
        "vjp": lambda own: func.vjp(own, x)[1](dy)[0],
        "jvp": lambda own: torch.stack(func.jvp(own, (x,), (dx,))),
        "vmap": lambda own: func.vmap(own)(torch.stack([x, dx])),
        "vmap over the second": lambda own: func.vmap(own, in_dims=1)(torch.stack([x, dx], 1)),
        "jacrev": lambda own: func.jacrev(own)(x),
        "jacfwd": lambda own: func.jacfwd(own)(x),
        "hessian": lambda own: func.hessian(lambda x: (own(x) ** 3).sum())(x),
        "grad for each": lambda own: func.vmap(func.grad(lambda x: own(x).square().sum()))(
            torch.stack([x, dx])
        ),
        "bias": lambda own: func.grad(
            lambda b: func.functional_call(own, {"bias": b}, x).square().sum()
        )(torch.ones(48)),
        "biases": lambda own: func.vmap(lambda b: func.functional_call(own, {"bias": b}, x))(
            torch.randn(2, 48, generator=torch.Generator().manual_seed(0))
        ),
    }
    for name, ask in results.items():
        torch.testing.assert_close(ask(layer), ask(dense), rtol=1e-3, atol=1e-3, msg=name)


def test_transforms_of_a_packed_weight_and_of_a_bias(layer):
    x, dx = torch.randn(2, 3, 64).unbind()
    _, dy = torch.func.jvp(layer.packed.linear, (x,), (dx,))
    torch.testing.assert_close(dy, dx @ layer.weight.float().T, rtol=1e-3, atol=1e-3)
    bias = torch.randn(48)

    def moved(bias):
        return torch.func.functional_call(layer, {"bias": bias}, x)

    _, dy = torch.func.jvp(moved, (bias,), (2 * bias,))
    torch.testing.assert_close(dy, (2 * bias).expand(3, 48))


def test_forward_mode_loses_no_tangent(layer):
    x, dx = torch.randn(2, 3, 64).unbind()
    with forward_ad.dual_level():
        y, dy = forward_ad.unpack_dual(layer(forward_ad.make_dual(x, dx)))
    torch.testing.assert_close(y, layer(x))
    torch.testing.assert_close(dy, dx @ layer.weight.float().T, rtol=1e-3, atol=1e-3)


def test_a_layer_is_a_leaf_of_what_fx_traces(layer):
    block = nn.Sequential(nn.Linear(64, 64), layer, nn.ReLU())
    traced, x = torch.fx.symbolic_trace(block), torch.randn(3, 64)
    assert [node.op for node in traced.graph.nodes].count("call_module") == 3
    with torch.no_grad():
        assert torch.equal(traced(x), block(x))


def test_other_dtypes_are_refused_with_the_way_out(layer):
    for x in (torch.ones(2, 64, dtype=torch.float64), torch.ones(2, 64, dtype=torch.int64)):
        with pytest.raises(ValueError, match=r"x is (float|int)64, .*Remedy: x\.float\(\)"):
            layer(x)
    twice = nn.Sequential(packed("tiled_csl")).double()  # which makes wider what is not packed
    with pytest.raises(ValueError, match="model.to"):
        twice(torch.ones(2, 64).double())
    assert twice.to(torch.float32)(torch.ones(2, 64)).dtype == torch.float32


def test_a_weight_cannot_be_masked_and_is_left_alone():
    layer, x = packed("tiled_csl"), torch.randn(2, 64)
    before = layer(x)
    for mask in (
        lambda: prune.l1_unstructured(layer, "weight", 0.5),
        lambda: prune.global_unstructured([(layer, "weight")], prune.L1Unstructured, amount=0.5),
    ):
        with pytest.raises(fs.FormatError, match="cannot mask the weight of.*flashsparse prune"):
            mask()
        assert torch.equal(layer(x), before)


def test_a_masked_bias_is_added_as_it_is_masked(layer):
    layer, x = copy.deepcopy(layer), torch.randn(2, 64)
    without = layer(x) - 1  # each bias is one
    prune.random_unstructured(layer, "bias", 0.5)
    assert layer.bias_mask.sum() == 24
    torch.testing.assert_close(layer(x), without + layer.bias_mask.float(), rtol=1e-3, atol=1e-3)
    assert torch.equal(layer.state_dict()["bias"], layer.bias_mask.bfloat16())
    prune.remove(layer, "bias")
    torch.testing.assert_close(layer(x), without + layer.bias.float(), rtol=1e-3, atol=1e-3)


def test_parameters_are_taken_from_where_they_are():
    layer, x = packed("tiled_csl"), torch.randn(2, 64)
    y = layer(x)
    other = torch.func.functional_call(layer, {"bias": torch.zeros(48)}, x)
    torch.testing.assert_close(other + 1, y)
    copy = layer._replicate_for_data_parallel()  # whose parameters are plain attributes
    for name, parameter in layer.named_parameters():
        setattr(copy, name, parameter.detach())
    assert torch.equal(copy(x), y)
