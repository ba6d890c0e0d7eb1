# SPDX-License-Identifier: Apache-2.0
"""A few hundred rounds of `make fuzz`, without a sanitizer."""

from random import Random

import fuzz_mutations
import pytest
from fuzz import fuzz
from fuzz_targets import TARGETS

ROUNDS = {"packed tensors": 150, "runtime forms": 150, "foreign layouts": 400,
          "foreign masks": 400, "foreign codes": 300, "checkpoints": 60, "configs": 400,
          "tables": 200, "states": 8}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_damage_is_refused_or_read_right(name, tmp_path):
    counts = fuzz(name, 1, tmp_path, rounds=ROUNDS[name])
    assert counts.failed == []
    assert counts.rounds == ROUNDS[name] and counts.accepted and counts.refused


def test_a_part_without_its_header_is_damaged_too():
    """A conversion that is stopped leaves one: the header is written last."""
    part = bytes(100)
    assert any(fuzz_mutations.of_safetensors(Random(n), part) != part for n in range(20))
