# SPDX-License-Identifier: Apache-2.0
"""Processes that run vLLM, forked from one that has imported it.

The import takes 15 seconds, and `vllm serve` starts three processes at least. `vllm_fork_server`
says what is the same in a forked process and a new one; `executed` is for the tests of what is not.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from multiprocessing import forkserver, process
from multiprocessing.process import BaseProcess
from pathlib import Path
from unittest import mock

HERE = str(Path(__file__).parent)


def join(log: str, group: int, environment: dict[str, str]) -> None:
    """Makes this process one of a process group, and what it writes a part of a log."""
    os.setpgid(0, group)
    os.environ.clear()
    os.environ.update(environment)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1), os.dup2(out, 2)


def _run(log: str, variables: dict[str, str], function, arguments: tuple) -> None:
    join(log, group=0, environment=os.environ | variables)
    assert "vllm_fork_server" in sys.modules, "the fork server could not import it"
    process._parent_process = None  # as that of a command, to which multiprocessing is a library
    try:
        function(*arguments)
    except Exception:
        sys.excepthook(*sys.exc_info())
        sys.exit(1)


class Processes:
    """Starts processes with one environment."""

    def __init__(self, environment: dict[str, str]):
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["vllm_fork_server"])
        path = {"PYTHONPATH": os.pathsep.join(filter(None, [HERE, environment.get("PYTHONPATH")]))}
        with mock.patch.dict(os.environ, environment | path, clear=True):
            forkserver.ensure_running()

    def start(self, log: Path, function, *arguments, **variables: str) -> BaseProcess:
        """Starts a function of a module; `log` gets what it writes, `variables` its environment."""
        log.unlink(missing_ok=True)
        started = self.context.Process(
            name="MainProcess", target=_run, args=(str(log), variables, function, arguments)
        )
        started.start()
        return started

    def run(self, log: Path, function, *arguments, timeout: float = 600, **variables: str) -> int:
        """Runs a function to its end and returns the exit code."""
        started = self.start(log, function, *arguments, **variables)
        started.join(timeout)
        if started.exitcode is None:
            started.kill()
            raise AssertionError(f"not done in {timeout} s:\n{log.read_text()[-4000:]}")
        return started.exitcode


def command(line: list[str]) -> None:
    """The command `vllm`."""
    from vllm.entrypoints.cli.main import main

    sys.argv = line
    main()


def executed(line: list[str]) -> None:
    """A command in a new Python, as a user starts it."""
    os.execv(line[0], line)


def run_code(text: str, names: dict | None = None) -> None:
    """Python code as `python -c` runs it, with some names given."""
    exec(text, {"__name__": "__main__"} | (names or {}))
