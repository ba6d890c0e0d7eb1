# SPDX-License-Identifier: Apache-2.0
"""What a call of a packed layer goes through: no Python of autograd's where nothing needs it.

That path is safe wherever a gradient may be wanted all the same. Nothing is timed here;
benchmarks/host_cost.py does that.
"""

from contextlib import nullcontext

import pytest
import torch
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
    with pytest.raises(RuntimeError, match="functorch"):  # the kernel knows no other transform
        torch.func.grad(lambda x: layer(x).sum())(x)


def test_parameters_are_taken_from_where_they_are():
    layer, x = packed("tiled_csl"), torch.randn(2, 64)
    y = layer(x)
    other = torch.func.functional_call(layer, {"bias": torch.zeros(48)}, x)
    torch.testing.assert_close(other + 1, y)
    copy = layer._replicate_for_data_parallel()  # whose parameters are plain attributes
    for name, parameter in layer.named_parameters():
        setattr(copy, name, parameter.detach())
    assert torch.equal(copy(x), y)
