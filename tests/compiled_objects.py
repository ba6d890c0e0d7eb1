# SPDX-License-Identifier: Apache-2.0
"""Where the compiled objects are, for tests that look into them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from emulation import find_nvcc

from flashsparse_plugin.ops import STATUS


def compiled(name: str) -> Path:
    path = STATUS[name].path
    if path is None:
        if os.environ.get("FLASHSPARSE_CUDA") == "OFF":
            pytest.skip("built with FLASHSPARSE_CUDA=OFF")
        if find_nvcc() is None:
            pytest.skip(f"{name}.so is not built: this machine has no nvcc")
        pytest.fail(
            f"this machine has an nvcc, but {name}.so was not built: `make env` builds it, and "
            "rm .venv/.installed before it where it thinks that all is done"
        )
    return path
