# SPDX-License-Identifier: Apache-2.0
"""What is looked up of random weights is what packing them gives, and `advise` packs none."""

import csv

import pytest

from flashsparse_plugin.dataflow import advice, expected
from flashsparse_plugin.gpu import GPUS


def test_advise_packs_nothing(monkeypatch):
    """Packing took longer than all else that it does; benchmarks/samples.py adds what is asked."""
    expected.sample.cache_clear()
    monkeypatch.setattr(expected, "packed_sample", None)
    assert advice.sparse_choices(GPUS[0], 0.5)
    assert list(advice.ladders(GPUS[0]))


def test_samples_are_those_of_the_formats(monkeypatch):
    """One of each scheme: whoever changes a format's layout writes the file again."""
    with expected.SAMPLES.open(encoding="utf-8") as file:
        stored = {row["scheme"]: row for row in csv.DictReader(file)}  # the last of each
    found = {}

    def packed(scheme, density):
        row = stored.get(str(scheme), {})
        if row and density == float(row["density"]):
            found[str(scheme)] = expected.packed_sample(scheme, density)
        return 1.0, 1.0

    monkeypatch.setattr(advice, "sample", packed)
    advice.sparse_choices(GPUS[0], 0.5)
    list(advice.ladders(GPUS[0]))
    assert found.keys() == stored.keys()
    for scheme, figures in found.items():
        wanted = tuple(float(stored[scheme][name]) for name in ("bits", "kept"))
        assert figures == pytest.approx(wanted, rel=1e-6), f"{scheme}: run benchmarks/samples.py"
