# SPDX-License-Identifier: Apache-2.0
"""`vllm serve` as a user starts it, and a client of its HTTP interface."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from vllm_processes import Processes, command

VLLM = Path(sys.executable).with_name("vllm")
REFUSAL_TIMEOUT = 60  # seconds; what is promised to users
TIMEOUT = 300  # seconds until a server has to answer; a busy machine takes its time


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _command(model: Path, port: int, *arguments: str) -> list[str]:
    return [
        *(str(VLLM), "serve", str(model), "--served-model-name", "model"),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--gpu-memory-utilization", "0.3", "--dtype", "float32"),
        *arguments,
    ]


def tail(log: Path, lines: int) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


class Server:
    """A server on 127.0.0.1, gone with all of its processes at the end of the `with` block."""

    def __init__(
        self, model: Path, log: Path, processes: Processes, *arguments: str, start=command
    ):
        self.port, self.log = _free_port(), log
        self.command = _command(model, self.port, *arguments)
        self.process = processes.start(log, start, self.command)

    def __enter__(self) -> Server:
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            if self.process.exitcode is not None:
                raise AssertionError(f"the server ended:\n{self.tail()}")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5):
                    return self
            except OSError:
                time.sleep(0.5)
        self.close()
        raise AssertionError(f"the server did not start in {TIMEOUT} s:\n{self.tail()}")

    def __exit__(self, *exception) -> None:
        self.close()

    def close(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, number)
            except ProcessLookupError:
                return
            self.process.join(20)

    def wait_for_refusal(self) -> int:
        """Returns the exit code of a server that must not start, and must say so in time."""
        try:
            self.process.join(REFUSAL_TIMEOUT)
            assert self.process.exitcode is not None, f"it goes on:\n{self.tail()}"
            return self.process.exitcode
        finally:
            self.close()

    def tail(self) -> str:
        return tail(self.log, 40)

    # The client.

    def post(self, path: str, **body):
        """Sends a request; returns the answer, or the list of parts of one that is streamed."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            json.dumps({"model": "model", **body}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
            if not body.get("stream"):
                return json.load(response)
            events = [
                line[6:] for line in response.read().decode().splitlines() if line[:6] == "data: "
            ]
            assert events[-1] == "[DONE]"
            return [json.loads(event) for event in events[:-1]]

    def complete(self, prompt: list[int], max_tokens: int, **body) -> list[int]:
        """Greedy tokens after a prompt of tokens."""
        answer = self.post(
            "/v1/completions",
            prompt=prompt,
            max_tokens=max_tokens,
            temperature=0,
            ignore_eos=True,
            return_token_ids=True,
            **body,
        )
        if body.get("stream"):
            return [t for part in answer for c in part["choices"] for t in c.get("token_ids") or []]
        return answer["choices"][0]["token_ids"]

    def complete_all(self, requests: list[tuple[list[int], int]]) -> list[list[int]]:
        """All requests at once."""
        with ThreadPoolExecutor(len(requests)) as pool:
            return list(pool.map(lambda request: self.complete(*request), requests))
