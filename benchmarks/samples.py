# SPDX-License-Identifier: Apache-2.0
"""Writes what random weights take by the schemes that `advise` asks about.

    python benchmarks/samples.py

The figures are the same on every machine, and packing the 80 samples takes longer than all else
that `advise` does. A test holds a row of each scheme to what packing gives.
"""

from __future__ import annotations

import csv
from unittest import mock

from flashsparse_plugin.dataflow import advice, expected
from flashsparse_plugin.gpu import GPUS
from flashsparse_plugin.packed import Scheme


def main() -> None:
    found = {}

    def packed(scheme: Scheme, density: float) -> tuple[float, float]:
        found[str(scheme), density] = expected.packed_sample(scheme, density)
        return found[str(scheme), density]

    with mock.patch.object(advice, "sample", packed):
        advice.sparse_choices(GPUS[0], 0.5)
        list(advice.ladders(GPUS[0]))
    with expected.SAMPLES.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("scheme", "density", "bits", "kept"))
        rows.writerows((*key, *figures) for key, figures in sorted(found.items()))


if __name__ == "__main__":
    main()
