# SPDX-License-Identifier: Apache-2.0
"""The GPU benchmark of attention, without a GPU: a toy run, and its checks find mistakes."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import attention
import pytest
import torch
from _attention_rivals import flashinfer_attention
from _device import Budget, _results
from torch.nn import functional as F

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "gpu" / "attention.py"
CASES = [
    attention.Case(attention.Shape(2, 2, 3, 64, 90), torch.bfloat16, masked=True),
    attention.Case(attention.Shape(2, 2, 3, 64, 90), torch.float16, paged=True, nhd=True),
]


def checker():
    cpu = torch.device("cpu")
    return attention.AttentionChecker(cpu, cpu, graphs=False)


@pytest.mark.slow
def test_a_toy_run_from_end_to_end(tmp_path):
    command = [sys.executable, str(PROGRAM), "--device", "cpu", "--out", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ", 0 failures" in ran.stdout and "µs of one token a sequence" in ran.stdout
    (row,) = _results.read(tmp_path / "attention.csv")["rows"]
    assert all(row[f"{name}_us"] > 0 for name in ("online", "phi", "paged", "sdpa"))


@pytest.mark.parametrize(
    ("spoil", "check"),
    [
        (lambda out, recomputed: (out * 1.05, recomputed), "exact"),
        (
            lambda out, recomputed: (out.index_fill(2, torch.tensor(3), torch.nan), recomputed),
            "exact",
        ),
        (lambda out, recomputed: (out, torch.zeros_like(recomputed)), "recomputed"),
        (lambda out, recomputed: (out, recomputed + 1), "recomputed"),
        (lambda out, recomputed: (out, recomputed + torch.randint_like(recomputed, 9)), "again"),
    ],
)
def test_planted_mistakes_are_found(monkeypatch, spoil, check):
    call = attention.AttentionChecker._call

    def spoiled(self, *args, **options):
        right = call(self, *args, **options)
        return lambda query, phi: spoil(*right(query, phi))

    def failures():
        tally = checker().run(iter(CASES), Budget(60))
        return tally.failures

    assert failures() == []
    monkeypatch.setattr(attention.AttentionChecker, "_call", spoiled)
    assert any(check in failure for failure in failures())


def test_its_time_ends():
    tally = checker().run(iter(CASES), Budget(-1))
    assert tally.out_of_time and not tally.checks


class Wrapper:
    """FlashInfer's, as far as it is called: attention over the pages that it was told of."""

    def __init__(self, workspace, layout, use_cuda_graph, use_tensor_cores, **buffers):
        assert layout == "NHD" and use_cuda_graph
        self.buffers = list(buffers.values())

    def plan(self, ends, pages, last, heads, kv_heads, head_dim, page, **rest):
        assert all(map(torch.equal, self.buffers, (ends, pages, last)))
        self.ends, self.pages, self.scale = ends.tolist(), pages, rest["sm_scale"]
        assert last.tolist() == [page] * len(last) and rest["kv_data_type"] == torch.float16

    def run(self, query, caches, out):
        for number, (begin, end) in enumerate(pairwise(self.ends)):
            key, value = (cache[self.pages[begin:end]].flatten(0, 1) for cache in caches)
            inputs = (query[number, :, None], key.transpose(0, 1), value.transpose(0, 1))
            attended = F.scaled_dot_product_attention(*inputs, scale=self.scale, enable_gqa=True)
            out[number] = attended[:, 0]
        return out


def test_flashinfer_reads_the_pages_that_we_read(monkeypatch):
    module = SimpleNamespace(BatchDecodeWithPagedKVCacheWrapper=Wrapper)
    monkeypatch.setitem(sys.modules, "flashinfer", module)
    query, key, value = (torch.randn(2, heads, 32, 64).half() for heads in (32, 2, 2))
    *cache, table = attention.paged(key, value)
    lengths = torch.full((2,), 32, dtype=torch.int32)
    ours, _ = attention.ops.unified_max_paged_decode(
        query[:, :, 0], *cache, table, lengths, scale=0.125
    )
    ways = list(
        flashinfer_attention(32, 2, 64, table, attention.PAGE, torch.float16, torch.float16, 0.125)
    )
    assert len(ways) == 2  # on CUDA cores and on tensor cores
    for run in ways:
        found = run(query[:, :, 0], cache, out=torch.empty_like(ours))
        torch.testing.assert_close(found, ours, atol=2e-3, rtol=2e-3)
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    assert not list(flashinfer_attention(32, 2, 64, table, 16, torch.float16, torch.float16, 0.125))
