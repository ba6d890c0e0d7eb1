# SPDX-License-Identifier: Apache-2.0
"""`vllm serve` as a user starts it, for the programs that ask it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

PATIENCE = 900  # seconds until a server has to be there, and for an answer, on a busy machine
NAME = "model"  # as the server calls what it serves


class Server(NamedTuple):
    """A server that runs.

    Attributes:
        url: Where it answers.
        group: The process group of all its processes.
        startup: Seconds until it answered.
    """

    url: str
    group: int
    startup: float


@contextmanager
def serving(model: Path, log: Path, options: Sequence[str]) -> Iterator[Server]:
    """`vllm serve` with some options while the block runs; its output goes to a log.

    Raises:
        RuntimeError: If it does not start.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # As the program `vllm` does, which may not be installed beside this Python; -P: what lies in
    # the folder that this was started in is not imported.
    command = [sys.executable, "-P", "-m", "vllm.entrypoints.cli.main", "serve", str(model)]
    command += ["--served-model-name", NAME, "--host", "127.0.0.1", "--port", str(port), *options]
    on_cpu = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    environment = {**on_cpu, "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", **os.environ}
    begin = time.monotonic()
    with open(log, "wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=out, env=environment, start_new_session=True
        )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_for(url, process, log)
        yield Server(url, process.pid, time.monotonic() - begin)
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, number)
                process.wait(20)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue


@contextmanager
def held(servers: Sequence[Server]) -> Iterator[None]:
    """Stops the processes of some servers while the block runs: an idle engine polls, too."""
    try:
        for server in servers:
            os.killpg(server.group, signal.SIGSTOP)
        yield
    finally:
        for server in servers:
            os.killpg(server.group, signal.SIGCONT)


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    raise RuntimeError(f"vllm serve did not start:\n{log.read_text(errors='replace')[-4000:]}")


def version_of(url: str) -> str:
    """The version of vLLM that a server says it is."""
    with urllib.request.urlopen(f"{url}/version", timeout=PATIENCE) as answer:
        return json.load(answer)["version"]
