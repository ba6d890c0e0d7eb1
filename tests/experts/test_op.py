# SPDX-License-Identifier: Apache-2.0
"""Packed experts against a loop over dense ones in float64, which shares no code with them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashsparse_plugin.experts import ExpertStack, multiply
from flashsparse_plugin.formats import all_formats, get_format
from flashsparse_plugin.formats.values.types import VALUE_TYPES
from flashsparse_plugin.packed import FormatError

EXPERTS, HIDDEN, INNER, TOKENS, TOP = 6, 128, 64, 9, 2
STORED = [format for format in all_formats() if format.on_disk]
SCHEMES = [scheme for format in STORED for scheme in format.examples()]
EXACT = [scheme for scheme in SCHEMES if not scheme.rounds_activations]
SCHEME = get_format("nm_vector").scheme(torch.bfloat16, {"n": 2, "m": 4})


def packed(scheme, rows, columns, seed=0, experts=EXPERTS):
    """Random experts, one of them all zeros, each packed by itself."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(experts, rows, columns, generator=generator)
    weights *= torch.rand(weights.shape, generator=generator) > 0.5
    weights[-1] = 0
    format = scheme.format
    each = [format.conform(w.to(scheme.dtype), scheme).contiguous() for w in weights]
    return each, [format.pack(weight, scheme) for weight in each]


def layer(scheme, seed=0):
    """Both projections: the dense weights in float64, and the stacks that a CPU reads."""
    _, w13 = packed(scheme, 2 * INNER, HIDDEN, seed)
    _, w2 = packed(scheme, HIDDEN, INNER, seed + 1)
    stacks = [ExpertStack.of(each) for each in (w13, w2)]
    dense = [torch.stack([p.unpack() for p in each]).double() for each in (w13, w2)]
    return dense, [stack.prepare("cpu") for stack in stacks]


def routed(ids, seed=2, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(len(ids), HIDDEN, generator=generator).to(dtype)
    return x, ids, torch.rand(ids.shape, generator=generator)


def oracle(x, ids, weights, w13, w2):
    y = torch.zeros(x.shape, dtype=torch.float64)
    for token, row in enumerate(ids.tolist()):
        for slot, expert in enumerate(row):
            if 0 <= expert < len(w13):
                both = w13[expert] @ x[token].double()
                gate, up = both[:INNER], both[INNER:]
                inner = gate / (1 + torch.exp(-gate)) * up
                y[token] += weights[token, slot].double() * (w2[expert] @ inner)
    return y


ROUTINGS = {
    "uniform": torch.randint(0, EXPERTS, (TOKENS, TOP), generator=torch.Generator().manual_seed(1)),
    "one hot expert": torch.tensor([[3, 0]] * TOKENS),
    "one token": torch.tensor([[5, 2]]),
    "of other processes": torch.tensor([[-1, 2], [EXPERTS, 4], [-1, EXPERTS]]),
    "no tokens": torch.empty(0, TOP, dtype=torch.int64),
}


@pytest.mark.parametrize("scheme", EXACT, ids=str)
def test_every_format_against_dense_experts(scheme):
    dense, stacks = layer(scheme)
    for name, ids in ROUTINGS.items():
        x, ids, weights = routed(ids)
        found = multiply(x, ids, weights, *stacks, "silu")
        wanted = oracle(x, ids, weights, *dense)
        torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=2e-4, msg=name)


def test_ids_of_any_integer_dtype_an_expert_map_and_16_bits():
    dense, stacks = layer(SCHEME)
    x, ids, weights = routed(ROUTINGS["uniform"], dtype=torch.bfloat16)
    places = torch.tensor([-1, 0, 1, -1, 2, 3, 4, 5], dtype=torch.int32)
    ids = ids + 1
    found = multiply(x, ids.int(), weights, *stacks, "silu", expert_map=places)
    wanted = oracle(x, places[ids], weights, *dense)
    assert found.dtype == torch.bfloat16
    assert (found.double() - wanted).norm() < 1e-2 * wanted.norm() > 0


@settings(max_examples=12)
@given(
    values=st.sampled_from(["native", *VALUE_TYPES]),
    pattern=st.sampled_from([(2, 4, 1), (8, 32, 32), (3, 5, 2), (1, 4, 1)]),
    dtype=st.sampled_from([torch.float16, torch.bfloat16]),
    group=st.booleans(),
    experts=st.integers(1, 5),
)
def test_packed_apart_they_are_the_tall_weight_bit_for_bit(values, pattern, dtype, group, experts):
    """For every pattern and value type of nm_vector, whose units are of a fixed size."""
    n, m, length = pattern
    options = {"n": n, "m": m, "vector_length": length}
    if values != "native":
        options |= {"values": values} | ({"group": 32} if group and m == 32 else {})
    format = get_format("nm_vector")
    scheme = format.scheme(dtype, options)
    weights, parts = packed(scheme, 64, 96, experts=experts)
    stack, tall = ExpertStack.of(parts), format.pack(torch.cat(weights), scheme)
    assert tall.tensors.keys() == stack.tensors.keys()
    for name, tensor in tall.tensors.items():
        assert torch.equal(stack.tensors[name].view(torch.uint8), tensor.view(torch.uint8)), name
        assert torch.equal(stack.tall().tensors[name].view(torch.uint8), tensor.view(torch.uint8))


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_a_runtime_form_and_back_are_the_same_bits(scheme):
    _, parts = packed(scheme, 64, 96)
    stack = ExpertStack.of(parts)
    back = stack.prepare("cpu").transcode(scheme)
    assert torch.equal(back.bounds, stack.bounds)
    for name, tensor in stack.tensors.items():
        assert torch.equal(back.tensors[name].view(torch.uint8), tensor.view(torch.uint8)), name


def test_the_op_is_one_node_and_sound():
    _, stacks = layer(SCHEME)
    x, ids, weights = routed(ROUTINGS["uniform"])
    seen = []

    def backend(graph, inputs):
        calls = [n.target for n in graph.graph.nodes if n.op == "call_function"]
        seen.extend(str(each) for each in calls if "flashsparse" in str(each))
        return graph.forward

    def run(x):
        return multiply(x, ids, weights, *stacks, "silu") * 2

    assert torch.equal(torch.compile(run, backend=backend, fullgraph=True)(x), run(x))
    assert seen == ["flashsparse.experts.default"] or seen == ["flashsparse.experts"]
    up, down = stacks
    given = (*up.tensors.values(),), (*down.tensors.values(),)
    own = [list(given[0]), up.bounds, up.written, list(given[1]), down.bounds, down.written]
    torch.library.opcheck(
        torch.ops.flashsparse.experts.default,
        (x, ids, weights, *own, "silu", None, None, None, 0.0, 1.702, False),
    )


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (dict(x=torch.zeros(3, HIDDEN + 1)), rf"must be \[tokens, {HIDDEN}\]"),
        (dict(topk_ids=torch.zeros(3, 3, dtype=torch.int64)), r"must be \[3, k\] both"),
        (dict(activation="swish"), "'swish' is not one of silu, gelu"),
    ],
)
def test_what_does_not_fit_is_refused(change, match):
    _, (w13, w2) = layer(SCHEME)
    ids = torch.zeros(3, 2, dtype=torch.int64)
    given = dict(x=torch.zeros(3, HIDDEN), topk_ids=ids, topk_weights=ids.float())
    given |= dict(w13=w13, w2=w2, activation="silu")
    with pytest.raises(RuntimeError, match=match):
        multiply(**given | change)
    with pytest.raises(RuntimeError, match="do not follow each other"):
        multiply(**given | dict(w13=w13, w2=ExpertStack.of(packed(SCHEME, HIDDEN, 40)[1])))
    with pytest.raises(FormatError, match=r"expert 1 is .*\[64, 96\].*expert 0 .*\[32, 96\]"):
        ExpertStack.of([packed(SCHEME, 32, 96)[1][0], packed(SCHEME, 64, 96)[1][0]])
