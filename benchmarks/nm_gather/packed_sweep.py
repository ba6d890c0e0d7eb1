# SPDX-License-Identifier: Apache-2.0
"""Times every tile of nm_gather's packed kernel, over layers of real models.

    python benchmarks/nm_gather/packed_sweep.py --seconds 75 --out nm_packed_sweep.csv

packed_plan.cpp is fitted to them. For each layer, pattern and number of tokens both tiles of its
vectors, in some bands, x transposed within the timing, out of a cold L2, in a CUDA graph, beside
cuBLAS. Each is held against float64 first, to rounding. Ends with status 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

sys.path.append(str(Path(__file__).parents[1]))
import _formats
import _measure
import _results
from nm_gather.packed import find_packed

import flashsparse_plugin as fs
from flashsparse_plugin.dataflow.tuner import cold_bytes_of, random_weight, replayed
from flashsparse_plugin.formats.pattern.nm_gather.layout import Layout
from flashsparse_plugin.formats.pattern.options import PatternOptions, options_of

LAYERS = ((28672, 7168), (4096, 4096), (4096, 14336), (28672, 4096), (57344, 8192))
KEPT, LENGTHS = (8, 16, 4, 12), (128, 64)  # of 32
TOKENS = (96, 128, 192, 256, 300, 512, 1024, 2048, 4096)
REPLAYS, TOLERANCE, CHECKED = 3, 1e-2, 128  # of the norm, by the last of the tokens
DENSE_ZEROS = 0.8  # as in benchmarks/gpu: where arithmetic binds, zeros make dense products quicker


def microseconds(call: Callable[[], object], copies: int) -> float:
    return round(statistics.median(replayed(call, copies, REPLAYS)) * 1e6, 2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=75.0)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    device, end = torch.device("cuda"), time.monotonic() + arguments.seconds
    name = torch.cuda.get_device_name()
    about = _measure.machine() | {"gpu": name, "dtype": "bfloat16"}
    rows: list[dict[str, Any]] = []
    wrong = 0
    for shape in LAYERS:
        dense = random_weight(shape, 1 - DENSE_ZEROS, torch.bfloat16, device)
        weights = _measure.Rotation(dense.clone, dense.nbytes, cold_bytes_of(device))
        inputs = {n: torch.randn(n, shape[1], device=device).bfloat16() for n in TOKENS}
        dense_us = {
            n: microseconds(lambda x=x, w=weights: F.linear(x, w()), len(weights))
            for n, x in inputs.items()
        }
        for kept, length in product(KEPT, LENGTHS):
            options = PatternOptions(n=kept, m=32, vector_length=length)
            weight = options.keep_largest(random_weight(shape, 1.0, torch.bfloat16, device))
            packed = fs.pack(weight, "nm_vector", options.model_dump()).prepare(device)
            copies = _measure.Rotation(
                lambda packed=packed: _formats.copy_of(packed), packed.nbytes, cold_bytes_of(device)
            )
            layout = Layout(options_of(packed.scheme), packed.shape)
            for tokens, x in inputs.items():
                exact = x[-CHECKED:].double() @ weight.double().T
                for launch in find_packed(layout, tokens):
                    if time.monotonic() > end:
                        continue
                    off = launch.linear(copies(), x)[-CHECKED:].double() - exact
                    if not off.norm() <= TOLERANCE * exact.norm():
                        wrong += 1
                        print(f"WRONG {shape} {options.title}, {tokens} tokens: {launch}")
                    us = microseconds(
                        lambda launch=launch, x=x, c=copies: launch.linear(c(), x), len(copies)
                    )
                    at = {"rows": shape[0], "cols": shape[1], "kept": kept, "length": length}
                    at |= {"tokens": tokens, "shape": launch.shape.index, "band": launch.band}
                    ratio = round(dense_us[tokens] / us, 3)
                    rows.append(at | {"us": us, "dense_us": dense_us[tokens], "ratio": ratio})
            _results.write(arguments.out, about, rows)
            best = [
                f"{row['tokens']}: {row['ratio']}"
                for row in rows
                if row["kept"] == kept
                and (row["rows"], row["cols"], row["length"]) == (*shape, length)
            ]
            print(f"{shape} {options.title}: {', '.join(best)}", flush=True)
    print(f"{wrong} of {len(rows)} launches are wrong, {name}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
