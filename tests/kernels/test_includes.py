# SPDX-License-Identifier: Apache-2.0
"""What CUDA kernels of several formats share lies in a folder of its own: no format's."""

import re
from pathlib import Path

import pytest

CUDA = Path(__file__).parents[2] / "kernels" / "cuda"
SHARED = "mma_units"
FORMATS = sorted(path.name for path in CUDA.iterdir() if path.is_dir() and path.name != SHARED)


def included(folder: Path) -> set[str]:
    """Folders of kernels/cuda and headers of kernels/formats that sources of a folder include."""
    texts = [path.read_text() for path in folder.rglob("*") if path.is_file()]
    pattern = r'^#include "cuda/(\w+)/|^#include "formats/(\w+)\.h"'
    return {a or b for text in texts for a, b in re.findall(pattern, text, re.MULTILINE)}


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_includes_no_other(name):
    found = included(CUDA / name)
    assert name in found and not found & set(FORMATS) - {name}


def test_what_they_share_knows_none_of_them():
    assert included(CUDA / SHARED) == {SHARED}
