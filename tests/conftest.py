# SPDX-License-Identifier: Apache-2.0
import gc
import os
import threading
from pathlib import Path

import models
import pytest
import stories15m
from hypothesis import settings

# Examples are judged by what they compute: on a busy machine any of them may be slow.
settings.register_profile("flashsparse", deadline=None, print_blob=True)
settings.load_profile("flashsparse")

# What is imported while tests are collected stays. Looking for garbage among it, again and again,
# would take a fifth of the time of the imports, and a part of every test's.
gc.disable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop():
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True, scope="module")
def no_server_is_left():
    """One whose socket is closed polls without a pause, and slows the tests of every later file."""
    yield
    left = [each.name for each in threading.enumerate() if "serve_forever" in each.name]
    assert left == [], "serving.serving ends a server however its test ends"


def _downloaded(fetch, errors=models.OfflineError):
    """Skip where the network is away; in CI that is a failure like any other."""
    try:
        return fetch()
    except errors as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def smollm2_dir() -> Path:
    """SmolLM2-135M-Instruct as a transformers directory, kept in build/cache."""
    return _downloaded(models.smollm2)


@pytest.fixture(scope="session")
def stories15m_dir() -> Path:
    """stories15M, the smallest model in its original precision, kept in build/cache."""
    return _downloaded(stories15m.stories15m, models.DownloadError)  # npm may be missing


@pytest.fixture(scope="session")
def book() -> Path:
    """A book that stories15M was not trained on, 85 kB, kept in build/cache."""
    return _downloaded(stories15m.burgess, models.DownloadError)


@pytest.fixture(scope="session")
def shakespeare() -> str:
    """1.1 MB of Shakespeare's plays, kept in build/cache."""
    return _downloaded(models.tinyshakespeare)
