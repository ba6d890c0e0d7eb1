# SPDX-License-Identifier: Apache-2.0
"""Measuring: every implementation is called as it is, on the CPU here, by a timer that pretends."""

import pytest
import torch
from torch.nn import functional as F

import flashsparse_plugin as fs
from flashsparse_plugin.dataflow import DeviceKey, Table, Weight, tuner
from flashsparse_plugin.dataflow.tuner import entry_of, measure, packed_weight
from flashsparse_plugin.evaluation.kinds import HYBRIDS, KINDS
from flashsparse_plugin.formats import get_format
from flashsparse_plugin.plan import NO_LIMIT, Plan

CPU = torch.device("cpu")
SCHEME = get_format("tiled_csl").scheme(torch.float16)


class Pretending:
    """Runs each call once for every copy and tells the times that it was given, in turn."""

    def __init__(self, *seconds):
        self.seconds, self.copies = list(seconds), []

    def __call__(self, call, copies):
        for _ in range(copies):
            call()
        self.copies.append(copies)
        return self.seconds.pop(0)


def test_a_dense_layer():
    weight = Weight((48, 64))
    seen = []
    #   tokens: 1: gemv, flat_gemm, library; 8: the same; 9: flat_gemm, library; 65: library
    timer = Pretending(1, 2, 3, 3, 2, 3, 2, 3, 3)
    entry = measure(
        weight, torch.bfloat16, CPU, timer, 4 * weight.nbytes, (65, 1, 8, 9), seen.append
    )
    assert seen == [1, 8, 9, 65] and timer.seconds == []
    assert set(timer.copies) == {5}
    found = [(each.max_tokens, each.implementation) for each in entry.ranges]
    assert found == [(1, "gemv"), (9, "flat_gemm"), (None, "library")]
    assert entry.measurements[0].microseconds == {"gemv": 1e6, "flat_gemm": 2e6, "library": 3e6}
    assert list(entry.measurements[-1].microseconds) == ["library"]


def test_a_packed_layer():
    weight = packed_weight((48, 64), SCHEME, 0.3)
    entry = measure(weight, torch.float16, CPU, Pretending(1, 2, 4, 3), 0, (1, 100))
    found = [(each.max_tokens, each.implementation) for each in entry.ranges]
    assert found == [(1, "sparse"), (None, "library")]
    assert (entry.format, entry.density) == ("tiled_csl", 0.3)


def test_a_packed_layer_with_a_kernel_for_few_tokens_and_one_for_many():
    weight = packed_weight((48, 64), get_format("tiled_bitmap").scheme(torch.float16), 0.3)
    seconds = [1, 2, 4, 3, 2, 4, 9, 4, 3]
    entry = measure(weight, torch.float16, CPU, Pretending(*seconds), 0, (1, 65, 512))
    found = [(each.max_tokens, each.implementation) for each in entry.ranges]
    assert found == [(1, "few"), (65, "many"), (None, "library")]
    assert list(entry.measurements[0].microseconds) == ["few", "many", "library"]


def of_format(name):
    return packed_weight((48, 64), get_format(name).scheme(torch.float16), 0.5)


def test_what_a_gpu_has_not_is_not_measured(monkeypatch):
    for capability, expected in (((9, 0), True), ((12, 0), False)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, own=capability: own)
        assert tuner._has(torch.device("cuda"), (9, 0)) == expected
        assert tuner._has(torch.device("cuda"), None)


@pytest.mark.parametrize("format", ["dense", "tiled_csl", "tiled_bitmap"])
def test_all_implementations_compute_the_product(monkeypatch, format):
    """What is timed is the product of the layer, and every copy takes its turn."""
    results = []
    monkeypatch.setattr(tuner, "_next", lambda multiply, turns: results.append(
        (multiply(first := next(turns)), first)))  # fmt: skip
    weight = Weight((48, 64)) if format == "dense" else of_format(format)
    measure(weight, torch.float16, CPU, Pretending(*[1] * 3), 0, (3,))
    dense = tuner.random_weight(weight.shape, weight.density, torch.float16, CPU)
    generator = torch.Generator().manual_seed(3)
    x = torch.randn((3, 64), generator=generator).half()
    assert len(results) == 2 * len(weight.implementations)
    for result, _ in results:
        torch.testing.assert_close(result, F.linear(x, dense), atol=2e-3, rtol=2e-3)
    assert len({id(copy) for _, copy in results}) == 2


def test_zeros_anywhere_stay_zeros_where_values_are_codes(monkeypatch):
    copies = []
    monkeypatch.setattr(tuner.PackedWeight, "linear", lambda self, *a, **k: copies.append(self))
    scheme = get_format("tiled_bitmap").scheme(torch.float16, {"values": "int8"})
    measure(packed_weight((64, 512), scheme, 0.3), torch.float16, CPU, Pretending(1, 1, 1), 0, (7,))
    assert copies[0].density == pytest.approx(0.3, abs=0.02)


@pytest.mark.parametrize("name", KINDS | HYBRIDS)
@pytest.mark.parametrize("zeros", [0.0, 0.2])  # among what a pattern keeps
def test_what_is_measured_is_what_a_layer_looks_up(name, zeros):
    """A table's entry is of a random weight, a layer counts its own: they have to meet."""
    kind, shape = (KINDS | HYBRIDS)[name], (256, 512)
    scheme = kind.scheme(torch.float16)
    measured = packed_weight(shape, scheme, kind.density)
    entry = entry_of(measured, {1: dict.fromkeys(measured.implementations, 1.0)})
    key = DeviceKey(name="NVIDIA H200", capability=(9, 0), multiprocessors=132)
    table = Table(device=key, dtype="float16", source="measured", entries=[entry])
    packed = kind.pack(shape, torch.float16, CPU)
    if scheme.format.is_fixed(scheme):
        dense = packed.unpack() * (torch.rand(shape) >= zeros)
        packed = fs.pack(dense, kind.format, **kind.options)
    assert table.find(Weight.of(packed.transcode(scheme))) == entry


def test_of_a_packed_layer_the_op_itself_is_timed(monkeypatch):
    """Told which of its implementations to take, as it will be in a model."""
    calls = []
    monkeypatch.setattr(tuner.PackedWeight, "linear", lambda *a, plan: calls.append(plan))
    measure(packed_weight((48, 64), SCHEME, 0.5), torch.float16, CPU, Pretending(1, 1), 0, (7,))
    sparse, library = Plan.only("sparse"), Plan.only("library")
    assert calls == [sparse, sparse, library, library]  # two copies each
    assert [each.most("sparse") for each in (sparse, library)] == [NO_LIMIT, 0]


def test_random_weights_are_as_dense_as_said():
    weight = tuner.random_weight((200, 300), 0.2, torch.float16, CPU)
    assert abs(float((weight != 0).double().mean()) - 0.2) < 0.01
    assert bool(tuner.random_weight((20, 30), 1.0, torch.float16, CPU).all())


def test_without_a_gpu_it_says_what_it_needs():
    if torch.cuda.is_available():
        pytest.fail("this test is about machines without a GPU")
    with pytest.raises(RuntimeError, match="needs|on an NVIDIA GPU.*--estimate H200"):
        tuner.require_gpu()
