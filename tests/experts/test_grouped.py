# SPDX-License-Identifier: Apache-2.0
"""Experts as a grouped kernel takes them, against dense ones in float64; on a CPU, by its torch."""

import logging
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from flashsparse_plugin.experts import ExpertStack, PackedStack, grouped, multiply, op, why_dense
from flashsparse_plugin.formats import find_form, get_format
from flashsparse_plugin.packed import Routed

NM = get_format("nm_vector")
KINDS = [
    *({}, {"values": "int8"}, {"values": "fp8_e4m3"}, {"values": "fp8_e4m3", "group": 128}),
    *({"values": "int4", "group": 32}, {"values": "int4", "group": 128}),
]
EXPERTS, HIDDEN, INNER = 5, 264, 40  # INNER is no multiple of 16: a block of each side is padded
H200 = ("NVIDIA H200", (9, 0))


def stored(rows, columns, options=None, dtype=torch.bfloat16, experts=EXPERTS, seed=0):
    """Random experts in the storage form."""
    scheme = NM.scheme(dtype, {"n": 2, "m": 4, **(options or {})})
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(experts, rows, columns, generator=generator) / columns**0.5
    conformed = (NM.conform(each.to(dtype), scheme).contiguous() for each in weights)
    return ExpertStack.of([NM.pack(each, scheme) for each in conformed])


def grouped_of(stack, sides):
    form = find_form("sparse_24").scheme(stack.scheme.dtype, stack.scheme.values)
    return stack.grouped(form, sides, "cpu")


def layer(options=None, hidden=HIDDEN, inner=INNER, experts=EXPERTS):
    """Both stacks in the form of the kernel, and their dense weights in float64."""
    stacks = (
        stored(2 * inner, hidden, options, experts=experts),
        stored(hidden, inner, options, experts=experts, seed=1),
    )
    made = [grouped_of(each, sides) for each, sides in zip(stacks, (2, 1), strict=True)]
    return made, [each.unpack().double() for each in stacks]


def routed(ids, hidden=HIDDEN, dtype=torch.bfloat16, **rest):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(len(ids), hidden, generator=generator).to(dtype)
    return Routed(x, ids, torch.rand(ids.shape, generator=generator), "silu", **rest)


def exact(batch, dense):
    y = torch.zeros(batch.x.shape, dtype=torch.float64)
    for token, row in enumerate(batch.ids.tolist()):
        for slot, expert in enumerate(row):
            if batch.expert_map is not None:
                inside = 0 <= expert < len(batch.expert_map)
                expert = int(batch.expert_map[expert]) if inside else -1
            if not 0 <= expert < len(dense[0]):
                continue
            weight = batch.weights[token, slot].double()
            both = dense[0][expert] @ batch.x[token].double()
            both = both * weight if batch.weights_on_input else both
            if batch.w13_bias is not None:
                both = both + batch.w13_bias[expert].double()
            gate, up = both.chunk(2)
            if batch.limit:
                gate, up = gate.clamp(max=batch.limit), up.clamp(-batch.limit, batch.limit)
            if batch.activation == "silu":
                h = F.silu(gate) * up
            else:
                h = gate * torch.sigmoid(batch.alpha * gate) * (up + 1)
            out = dense[1][expert] @ h
            if batch.w2_bias is not None:
                out = out + batch.w2_bias[expert].double()
            y[token] += out if batch.weights_on_input else out * weight
    return y


def close(found, wanted):
    return float((found.double() - wanted).norm()) <= 8e-3 * float(wanted.norm())


def call(batch, stacks):
    return multiply(
        *(batch.x, batch.ids, batch.weights, *stacks, batch.activation, batch.w13_bias),
        *(batch.w2_bias, batch.expert_map, batch.limit, batch.alpha, batch.weights_on_input),
    )


SEED = torch.Generator().manual_seed(0)
CHOSEN = torch.stack([torch.randperm(EXPERTS, generator=SEED)[:2] for _ in range(11)])
BIASES = {
    "w13_bias": torch.randn(EXPERTS, 2 * INNER, generator=SEED),
    "w2_bias": torch.randn(EXPERTS, HIDDEN, generator=SEED),
}
BATCHES = {
    "uniform": routed(CHOSEN),
    "one hot expert": routed(torch.tensor([[3, i % 3] for i in range(21)])),
    "empty experts": routed(torch.tensor([[4, 2]] * 7).int()),
    "one token": routed(torch.tensor([[1, 4]])),
    "no token": routed(torch.empty(0, 2, dtype=torch.int64)),
    "elsewhere": routed(torch.tensor([[-1, 2], [EXPERTS, 0], [-1, -1]])),
    "a map": routed(
        torch.tensor([[0, 6], [2, 3], [5, -1]]).int(),
        expert_map=torch.tensor([2, -1, 4, 0, -1, 1, 3]).int(),
    ),
    "weights on input": routed(CHOSEN, weights_on_input=True, **BIASES),
    "gpt-oss": Routed(
        *(routed(CHOSEN).x, CHOSEN, routed(CHOSEN).weights, "swigluoai", 0.6, 1.702),
        *BIASES.values(),
    ),
}


@settings(max_examples=25, deadline=None)
@given(
    options=st.sampled_from(KINDS),
    dtype=st.sampled_from([torch.float16, torch.bfloat16]),
    sides=st.sampled_from([1, 2]),
    rows=st.integers(1, 40),
    columns=st.sampled_from([8, 96, 264]),
    experts=st.integers(1, 3),
)
def test_there_and_back_are_the_same_bits(options, dtype, sides, rows, columns, experts):
    stack = stored(sides * rows, columns, options, dtype, experts)
    made = grouped_of(stack, sides)
    back = made.transcode(stack.scheme)
    assert torch.equal(back.bounds, stack.bounds) and back.sides == 0
    for name, tensor in stack.tensors.items():
        assert torch.equal(back.tensors[name].view(torch.uint8), tensor.view(torch.uint8)), name
    assert torch.equal(made.unpack(), stack.unpack())
    # As they lie in memory: blocks of gate and of up in alternation, each side padded with zeros.
    count = -(-rows // 16)
    found = made.part(0, experts).unpack().view(experts, count, sides, 16, columns)
    padded = F.pad(stack.unpack().view(experts, sides, rows, columns), (0, 0, 0, -rows % 16))
    assert torch.equal(found, padded.view(experts, sides, count, 16, columns).transpose(1, 2))


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_each_value_type_is_the_loop_over_experts(options):
    stacks, dense = layer(options)
    for name in ("uniform", "elsewhere"):
        assert close(call(BATCHES[name], stacks), exact(BATCHES[name], dense)), name


@pytest.mark.parametrize(
    ("name", "inner"), [*((name, INNER) for name in BATCHES), ("uniform", 48), ("a map", 48)]
)
def test_each_way_is_the_loop_over_experts(name, inner, monkeypatch):
    """The op; unpacked in one slab, and in slabs of two experts; and a CUDA graph's fallback."""
    batch = BATCHES[name]
    (w13, w2), dense = layer(inner=inner)
    wanted = exact(batch, dense)
    assert close(call(batch, (w13, w2)), wanted)
    if hasattr(F, "grouped_mm"):
        assert close(grouped.by_unpacking(batch, w13, w2), wanted)
        pair = 2 * (w13.dense_nbytes + w2.dense_nbytes) // EXPERTS
        monkeypatch.setattr(grouped, "SLAB_BYTES", pair)
        assert close(grouped.by_unpacking(batch, w13, w2), wanted)

    def act(both):
        limits = (batch.activation, batch.limit, batch.alpha)
        return op.between(both, inner, *limits)

    for way in (op.loop, op._masked):
        assert close(way(batch, w13, w2, act), wanted)


def test_a_large_batch_runs_in_parts(monkeypatch):
    (w13, w2), dense = layer()
    batch, parts = BATCHES["uniform"], []
    monkeypatch.setattr(grouped, "MOST_TOKENS", 4)
    kernel = grouped.by_kernel

    def noted(part, *weights):
        parts.append(kernel(part, *weights))
        return parts[-1]

    monkeypatch.setattr(grouped, "by_kernel", noted)
    y = call(batch, (w13, w2))
    assert [len(part) for part in parts] == [4, 4, 3] and torch.equal(y, torch.cat(parts))
    # On a CPU, which is asked here, a product of fewer tokens may add up in another order.
    assert close(y, exact(batch, dense))


def test_the_op_is_sound_on_the_kernels_form():
    (w13, w2), _ = layer({"values": "int8"})
    batch = BATCHES["a map"]
    own = [[*w13.tensors.values()], w13.bounds, w13.written]
    own += [[*w2.tensors.values()], w2.bounds, w2.written]
    given = (batch.x, batch.ids, batch.weights, *own, "silu", None, None, batch.expert_map)
    torch.library.opcheck(torch.ops.flashsparse.experts.default, (*given, 0.0, 1.702, False))


def test_a_layer_in_the_kernels_form_is_saved_and_loaded_as_stored():
    stack = stored(2 * INNER, HIDDEN, {"values": "int8"})
    held = PackedStack(stack, ("gate_proj", "up_proj"))
    wanted = {name: packed.tensors for name, packed in held.storage()}
    held._hold(grouped_of(stack, 2))  # as on a GPU
    assert held.stack.sides == 2 and held.held.format.name == "sparse_24"
    found = {name: packed.tensors for name, packed in held.storage()}
    assert found.keys() == wanted.keys()
    for name, tensors in wanted.items():
        for own, tensor in tensors.items():
            assert torch.equal(found[name][own], tensor), (name, own)
    flat = {f"{name}.{own}": t for name, each in found.items() for own, t in each.items()}
    held.load(flat, "experts")
    assert torch.equal(held.stack.unpack(), stack.unpack())


def test_why_the_kernel_is_not_for_a_layer():
    (w13, w2), _ = layer()
    batch = BATCHES["uniform"]
    assert grouped.why_not(batch, w13, w2) is None
    for call_of, told in (
        ((replace(batch, x=batch.x.float()), w13, w2), "activations are torch.float32 and weights"),
        ((replace(batch, activation="gelu"), w13, w2), "no activation 'gelu'; it has silu, swig"),
        ((batch, w13, layer({"values": "int8"})[0][1]), "the projections are packed differently"),
        ((batch, replace(w13, sides=0, written=""), w2), "sparse_24(2:4) is not prepared"),
        ((batch, replace(w13, sides=1, written=""), w2), "no experts without a gate"),
        ((batch, stored(2 * INNER, HIDDEN), w2), "nm_vector(2:4) has no grouped kernel"),
    ):
        assert told in grouped.why_not(*call_of), told


def test_experts_are_packed_on_a_gpu_that_has_their_kernel(monkeypatch):
    scheme = NM.scheme(torch.bfloat16, {"n": 2, "m": 4, "values": "int8"})
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert why_dense([scheme], 8, cpu, None) is None
    status = type("Status", (), {"loaded": False, "reason": "not built"})
    monkeypatch.setitem(grouped.STATUS, "_C_cuda", status)
    assert why_dense([scheme], 8, gpu, "silu") == "the CUDA kernels are not built"
    monkeypatch.setattr(status, "loaded", True)
    capability = {"now": (7, 5)}
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability["now"])
    assert "no sparse tensor cores" in why_dense([scheme], 8, gpu, "silu")
    capability["now"] = (9, 0)
    assert why_dense([scheme, scheme], 8, gpu, "silu", torch.bfloat16) is None
    assert "torch.float32" in why_dense([scheme], 8, gpu, "silu", torch.float32)
    assert "without a gate" in why_dense([scheme], 8, gpu, None)
    assert "at most 1024" in why_dense([scheme], 1025, gpu, "silu")
    for options, told in (
        ({"n": 2, "m": 4, "values": "int8", "group": 64}, "int8 with scales of groups of 64"),
        ({"n": 2, "m": 4, "values": "int8", "activations": "int8"}, "does not quantize activ"),
        ({"n": 8, "m": 32, "vector_length": 32}, "has no grouped kernel"),
    ):
        assert told in why_dense([NM.scheme(torch.bfloat16, options)], 8, gpu, "silu"), told
    other = NM.scheme(torch.bfloat16, {"n": 2, "m": 4})
    assert "packed differently" in why_dense([scheme, other], 8, gpu, "silu")


def test_a_fallback_is_said_once_and_refused_where_strict(monkeypatch, caplog):
    monkeypatch.delenv("FLASHSPARSE_STRICT", raising=False)
    op._say_once.cache_clear()
    with caplog.at_level(logging.WARNING, "flashsparse_plugin.experts.op"):
        op._fall_back("it is a test")
        op._fall_back("it is a test")
    assert [each.message for each in caplog.records] == [
        "packed experts run one after the other on the GPU, slower than dense: it is a test"
    ]
    monkeypatch.setenv("FLASHSPARSE_STRICT", "1")
    with pytest.raises(RuntimeError, match="it is a test.*FLASHSPARSE_STRICT=1"):
        op._fall_back("it is a test")


def test_only_large_batches_are_unpacked_and_none_where_wgmma_is():
    form = find_form("sparse_24").scheme(torch.bfloat16, {"n": 2, "m": 4, "values": "int8"})
    (both, down) = (128 * 2 * 768 * 2048 * 5 // 8, 128 * 2048 * 768 * 5 // 8)
    for device, unpacked in ((("NVIDIA B200", (10, 0)), [1 << 17]), (H200, [])):
        assert unpacked == [
            tokens
            for tokens in (1, 64, 512, 1 << 17)
            if grouped.unpacking_is_faster(
                form, (2048, 768), (both, down), tokens, (128, 8), device
            )
        ]
