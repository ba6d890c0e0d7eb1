# SPDX-License-Identifier: Apache-2.0
"""Traffic of streaming clients, by vLLM's own benchmark client (`vllm bench serve`)."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _device import _server

Row = dict[str, Any]
WARM_CLIENTS, WARM_TOKENS = 8, 8  # of the requests before those that are measured: at most


@dataclass(frozen=True)
class Traffic:
    """What clients ask of a server; so many of them at once, each again when it is answered.

    Attributes:
        name: As tables call it.
        prompt: Tokens in.
        output: Tokens out.
        rounds: Requests of each client.
        spread: Both numbers of tokens are random, up to this share below and above.
        clients: How many at once, a measurement each.
    """

    name: str
    prompt: int
    output: int
    rounds: int
    spread: float = 0.0
    clients: tuple[int, ...] = ()

    @property
    def longest(self) -> int:
        """Tokens of the longest request, the prompt included."""
        return round((self.prompt + self.output) * (1 + self.spread)) + 2

    def shortened(self, by: int) -> Traffic:
        """The same with fewer tokens, for a machine without a GPU."""
        prompt, output = max(4, self.prompt // by), max(4, self.output // by)
        rounds = min(self.rounds, 2)
        return dataclasses.replace(self, prompt=prompt, output=output, rounds=rounds)


# The first as in Flash-LLM, section 6.3. In mixed traffic prompts arrive while others are answered:
# vLLM cuts them into chunks, which share their steps with the tokens of the others.
TRAFFICS = {
    each.name: each
    for each in (
        Traffic("decoding", prompt=64, output=512, rounds=1),
        Traffic("prompts", prompt=2016, output=16, rounds=4),
        Traffic("mixed", prompt=896, output=128, rounds=4, spread=0.8),
    )
}


def traffic_of(text: str) -> Traffic:
    """The traffic of a name, with its own numbers of clients after "=": "prompts=1,16".

    Raises:
        argparse.ArgumentTypeError: If there is none of this name, or a number is none.
    """
    name, _, numbers = text.partition("=")
    try:
        clients = tuple(int(each) for each in numbers.split(",") if each)
        return dataclasses.replace(TRAFFICS[name], clients=clients)
    except (KeyError, ValueError) as error:
        known = ", ".join(TRAFFICS)
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {known}, =1,16") from error


def measure(url: str, model: Path, traffic: Traffic, clients: int, gpus: int) -> Row:
    """Sends the traffic of so many clients; returns medians, 99th percentiles and throughput.

    Args:
        url: Of the server.
        model: The folder of its tokenizer.
        traffic: What each client asks.
        clients: How many at once.
        gpus: Among which the throughput is shared.

    Raises:
        RuntimeError: If a request fails.
    """
    warm_up = dataclasses.replace(traffic, output=min(traffic.output, WARM_TOKENS), rounds=1)
    _bench(url, model, warm_up, min(clients, WARM_CLIENTS))
    found = _bench(url, model, traffic, clients)
    if found["completed"] < clients * traffic.rounds:
        errors = [error for error in found.get("errors", ()) if error]
        lost = clients * traffic.rounds - found["completed"]
        raise RuntimeError(f"{lost} requests of {traffic.name} failed: {errors[:1]}")
    return {
        "tokens_per_gpu_s": found["output_throughput"] / gpus,
        "all_tokens_per_gpu_s": found["total_token_throughput"] / gpus,
        "first_token_ms": found["median_ttft_ms"],
        "first_token_p99_ms": found["p99_ttft_ms"],
        "ms_per_token": found["median_tpot_ms"],
        "gap_p99_ms": found["p99_itl_ms"],
        "requests": found["completed"],
        "seconds": found["duration"],
    }


def _bench(url: str, model: Path, traffic: Traffic, clients: int) -> Row:
    """Runs vLLM's client in this process, which imports vLLM only once for all traffic."""
    from vllm.benchmarks.serve import add_cli_args, main

    requests = clients * traffic.rounds
    options = ["--base-url", url, "--model", _server.NAME, "--tokenizer", str(model)]
    options += ["--dataset-name", "random", "--random-range-ratio", str(traffic.spread)]
    options += ["--random-input-len", str(traffic.prompt)]
    options += ["--random-output-len", str(traffic.output)]
    options += ["--num-prompts", str(requests), "--max-concurrency", str(clients)]
    options += ["--temperature", "0", "--ignore-eos", "--disable-tqdm"]
    options += ["--percentile-metrics", "ttft,tpot,itl", "--metric-percentiles", "99"]
    parser = argparse.ArgumentParser()
    add_cli_args(parser)
    with contextlib.redirect_stdout(io.StringIO()):  # its report, which ours replaces
        return main(parser.parse_args(options))
