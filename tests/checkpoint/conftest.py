# SPDX-License-Identifier: Apache-2.0
import pytest
from checkpoints import save_llama


@pytest.fixture
def llama(tmp_path):
    """A pruned bfloat16 Llama in one file, head not tied."""
    return save_llama(tmp_path / "dense")


@pytest.fixture
def sharded(tmp_path):
    """The same in several files."""
    return save_llama(tmp_path / "dense", shards="100KB")
