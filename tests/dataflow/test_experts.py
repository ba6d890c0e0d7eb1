# SPDX-License-Identifier: Apache-2.0
"""Experts of a mixture: how many a batch reads, and what the kernels of others take."""

import pytest

from flashsparse_plugin.dataflow import rivals
from flashsparse_plugin.gpu import GPUS
from flashsparse_plugin.served import Experts

QWEN3_30B = Experts(128, 8, {(1536, 2048): 48, (2048, 768): 48})
MIXTRAL = Experts(8, 2, {(28672, 4096): 32, (4096, 14336): 32})

# Microseconds of a layer's two products on an H200 by vLLM 0.26: fused_moe in bf16 and fp8, and
# Marlin for int4; tokens: times.
MEASURED = [
    (QWEN3_30B, {1: (27.5, 19.1, 21.3), 8: (121.6, 69.9, 59.5)}),
    (QWEN3_30B, {64: (290.5, 154.2, 124.6), 256: (315.2, 192.0, 193.5)}),
    (MIXTRAL, {8: (586, 321, 223), 64: (654, 345, 364)}),
]


def test_how_many_experts_a_batch_reads():
    found = [round(QWEN3_30B.read(tokens)) for tokens in (1, 8, 16, 64, 256)]
    assert found == [8, 52, 82, 126, 128]
    assert QWEN3_30B.parameters == 48 * 128 * 3 * 2048 * 768


@pytest.mark.parametrize(("experts", "times"), MEASURED)
def test_estimates_of_experts_are_near_what_was_measured(experts, times):
    kernels = (rivals.EXPERTS_16, rivals.EXPERTS_FP8, rivals.EXPERTS_INT4)
    layers = max(experts.matrices.values())
    for tokens, measured in times.items():
        found = [1e6 * kernel.seconds(experts, tokens, GPUS[0]) / layers for kernel in kernels]
        assert found == pytest.approx(measured, rel=0.12), tokens
