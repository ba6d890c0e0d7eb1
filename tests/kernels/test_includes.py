# SPDX-License-Identifier: Apache-2.0
"""What CUDA kernels of several formats share lies in a folder of its own: no format's."""

import re
from pathlib import Path

import pytest

CUDA = Path(__file__).parents[2] / "kernels" / "cuda"
SHARED = ("shared", "plan", "mma_units", "experts")  # each may include those before it
# A format whose units are those of another, too, or become those, for its kernels.
BUILT_ON = {"hybrid_units": "sparse_24", "exact_units": "sparse_24"}
ROOMS = {path.name for path in CUDA.iterdir() if path.is_dir()}


def included(folder: Path) -> set[str]:
    """Folders of kernels/cuda and headers of kernels/formats that sources of a folder include."""
    texts = [path.read_text() for path in folder.rglob("*") if path.is_file()]
    pattern = r'^#include "cuda/(\w+)/|^#include "formats/(\w+)\.h"'
    return {a or b for text in texts for a, b in re.findall(pattern, text, re.MULTILINE)}


@pytest.mark.parametrize("name", sorted(ROOMS))
def test_a_room_includes_itself_and_what_is_shared(name):
    known = SHARED[: SHARED.index(name)] if name in SHARED else SHARED
    assert included(CUDA / name) & ROOMS <= {name, BUILT_ON.get(name, name), *known}


def test_what_is_shared_knows_no_format():
    formats = ROOMS - {*SHARED}
    assert len(formats) > 5
    for name in SHARED:
        assert not included(CUDA / name) & formats


def test_no_file_lies_between_the_rooms():
    assert [path.name for path in CUDA.iterdir() if path.is_file()] == []
