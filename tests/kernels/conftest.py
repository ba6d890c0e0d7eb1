# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from functools import cache

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
def driver():
    """driver(name, sanitizer) is a program of kernels/emulator."""
    return cache(compile_driver)
