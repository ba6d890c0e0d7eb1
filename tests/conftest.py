# SPDX-License-Identifier: Apache-2.0
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "demo"))

import models


def _downloaded(fetch):
    """Skip where the network is away; in CI that is a failure like any other."""
    try:
        return fetch()
    except models.OfflineError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def smollm2_dir() -> Path:
    """SmolLM2-135M-Instruct as a transformers directory, kept in build/cache."""
    return _downloaded(models.smollm2)


@pytest.fixture(scope="session")
def shakespeare() -> str:
    """1.1 MB of Shakespeare's plays, kept in build/cache."""
    return _downloaded(models.tinyshakespeare)
