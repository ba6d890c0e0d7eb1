# SPDX-License-Identifier: Apache-2.0
"""Where the compiled objects are, for tests that look into them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from flashsparse_plugin.ops import STATUS


def compiled(name: str) -> Path:
    path = STATUS[name].path
    if path is None:
        if os.environ.get("FLASHSPARSE_CUDA") == "OFF":
            pytest.skip("built with FLASHSPARSE_CUDA=OFF")
        if not (shutil.which("nvcc") or Path("/usr/local/cuda/bin/nvcc").exists()):
            pytest.skip(f"{name}.so is not built: this machine has no nvcc")
        pytest.fail(
            f"this machine has an nvcc, but {name}.so was not built. `make demo` leaves it out "
            "where there is no GPU: rm .venv/.installed && make env"
        )
    return path
