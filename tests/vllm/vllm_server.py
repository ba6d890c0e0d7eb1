# SPDX-License-Identifier: Apache-2.0
"""`vllm serve` as a user starts it, and a client of its HTTP interface."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

VLLM = Path(sys.executable).with_name("vllm")
REFUSAL_TIMEOUT = 60  # seconds; what is promised to users
TIMEOUT = 300  # seconds until a server has to answer; a busy machine takes its time


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


FORKED = """
import contextlib, json, os, sys
sys.argv[0] = json.loads(sys.argv[1])[0]["command"][0]
from vllm.entrypoints.cli import main  # what `vllm` runs
import vllm.entrypoints.openai.api_server  # what `vllm serve` imports
codes = []
for server in json.loads(sys.argv[1]):
    child = os.fork()
    if child == 0:
        os.setsid()
        log = os.open(server["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1), os.dup2(log, 2)
        sys.argv = server["command"]
        code = 1
        try:
            main.main()
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(json.dumps(codes))
"""


def _command(model: Path, port: int, *arguments: str) -> list[str]:
    return [
        *(str(VLLM), "serve", str(model), "--served-model-name", "model"),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--gpu-memory-utilization", "0.3", "--dtype", "float32"),
        *arguments,
    ]


def refusals(models: dict[Path, Path], environment: dict[str, str]) -> list[int]:
    """The exit codes of servers that must not start: each model's, with its log.

    One after the other, all forked from one process that has imported vLLM once: the imports take
    longer than the refusals, for each of which there are REFUSAL_TIMEOUT seconds.
    """
    servers = [
        {"command": _command(model, _free_port()), "log": str(log)} for model, log in models.items()
    ]
    ran = subprocess.run(
        [sys.executable, "-c", FORKED, json.dumps(servers)],
        env=environment,
        stdout=subprocess.PIPE,
        timeout=REFUSAL_TIMEOUT * (1 + len(servers)),
        check=True,
        text=True,
    )
    return json.loads(ran.stdout.splitlines()[-1])


def tail(log: Path, lines: int) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


class Server:
    """A server on 127.0.0.1, gone with all of its processes at the end of the `with` block."""

    def __init__(self, model: Path, log: Path, environment: dict[str, str], *arguments: str):
        self.port, self.log = _free_port(), log
        self.command = _command(model, self.port, *arguments)
        with log.open("w") as file:
            self.process = subprocess.Popen(
                self.command,
                env=environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a process group of its own, to be ended as one
            )

    def __enter__(self) -> Server:
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
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
            try:
                self.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                continue

    def wait_for_refusal(self) -> int:
        """Returns the exit code of a server that must not start, and must say so in time."""
        try:
            return self.process.wait(timeout=REFUSAL_TIMEOUT)
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
