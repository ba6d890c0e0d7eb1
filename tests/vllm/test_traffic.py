# SPDX-License-Identifier: Apache-2.0
"""benchmarks/gpu/_traffic.py asks a server through vLLM's own client."""

import _traffic
import pytest
from _models import SHAPES, make_config
from parrot import parrot


def test_vllms_client_measures_what_a_server_streams(tmp_path):
    make_config(SHAPES["tiny"], tmp_path)
    traffic = _traffic.Traffic("short", prompt=40, output=5, rounds=2)
    with parrot() as (url, prompts):
        row = _traffic.measure(url, tmp_path, traffic, clients=3, gpus=2)
    assert row["requests"] == 6 and row["first_token_ms"] > 0
    assert row["tokens_per_gpu_s"] == pytest.approx(6 * 5 / row["seconds"] / 2)
    assert len(prompts) >= 6
    with parrot(refused=6) as (url, _), pytest.raises(RuntimeError, match="1 requests of short"):
        _traffic.measure(url, tmp_path, traffic, clients=3, gpus=2)
