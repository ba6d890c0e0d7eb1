# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest
import torch
from emulation import compile_driver


@pytest.fixture(autouse=True)
def one_thread():
    """Small products on one thread: waiting for a second core would take most of the test time.

    Tests of threads ask for more, and get their number back afterwards too.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def driver(tmp_path_factory):
    """driver(name, sanitizer) compiles each program of kernels/emulator once."""
    built: dict[tuple[str, str], Path] = {}

    def get(name: str, sanitizer: str) -> Path:
        if (name, sanitizer) not in built:
            folder = tmp_path_factory.mktemp("emulator")
            built[name, sanitizer] = compile_driver(name, sanitizer, folder)
        return built[name, sanitizer]

    return get
