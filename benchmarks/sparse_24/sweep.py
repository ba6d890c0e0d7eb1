# SPDX-License-Identifier: Apache-2.0
"""Times many launches of sparse_24's kernel for few tokens, over layers of real models.

    python benchmarks/sparse_24/sweep.py --seconds 60 --out sweep.csv

For each layer, type of values and number of tokens the launches that should be best, out of a cold
L2, in a CUDA graph; linear_plan.cpp is fitted to them. Each is held against the op's own result, to
rounding. Rows are written as they come. Ends with status 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
import time
from itertools import cycle, product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.append(str(Path(__file__).parents[1]))
from sparse_24 import launches

from flashsparse_plugin import PackedWeight
from flashsparse_plugin.dataflow.tuner import cold_bytes_of, random_weight, replayed
from flashsparse_plugin.formats.nm_pattern import PatternOptions
from flashsparse_plugin.formats.sparse_24 import Sparse24
from flashsparse_plugin.formats.sparse_24.layout import layout_of
from flashsparse_plugin.plan import FEW, Plan

LAYERS = (
    (28672, 7168), (4096, 4096), (4096, 14336), (28672, 4096), (57344, 8192), (7168, 28672),
    (8192, 8192), (6144, 4096), (14336, 4096), (8192, 28672),
)  # fmt: skip
VALUES = (("int8", None), ("int4", 128), ("native", None))
MOST = {8: 24, 16: 24, 32: 12}  # launches, by tokens
REPLAYS, TOLERANCE = 5, 1e-2  # of the norm


def weights(shape: tuple[int, int], options: PatternOptions) -> list[PackedWeight]:
    """Copies of a random weight, so many that none is in the L2 when its turn comes."""
    device, form = torch.device("cuda"), Sparse24()
    weight = options.keep_largest(random_weight(shape, 1.0, torch.bfloat16, device))
    copies = [form.pack(weight, form.scheme(torch.bfloat16, options.model_dump()))]
    while sum(each.nbytes for each in copies) < cold_bytes_of(device):
        tensors = {name: tensor.clone() for name, tensor in copies[0].tensors.items()}
        copies.append(PackedWeight(copies[0].scheme, copies[0].shape, tensors))
    return copies


def microseconds(launch: launches.Launch, copies: list[PackedWeight], x: Tensor) -> float:
    turns = cycle(copies)
    times = replayed(lambda: launch.linear(next(turns), x), len(copies), REPLAYS)
    return statistics.median(times) * 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    end, wrong, done = time.monotonic() + arguments.seconds, 0, 0
    processors = torch.cuda.get_device_properties("cuda").multi_processor_count
    with arguments.out.open("w", newline="") as file:
        rows = csv.DictWriter(file, ["rows", "cols", "values", "tokens", "launch", "us"])
        rows.writeheader()
        for shape, (values, group) in product(LAYERS, VALUES):
            options = PatternOptions(n=2, m=4, values=values, group=group)
            copies = weights(shape, options)
            for tokens, most in MOST.items():
                x = torch.randn(tokens, shape[1], device="cuda").bfloat16()
                right = copies[0].linear(x, None, Plan.only(FEW)).float()
                for launch in launches.plans(shape, tokens, processors, most, layout_of(options)):
                    if time.monotonic() > end:
                        print(f"time is over before {shape}; {wrong} of {done} launches are wrong")
                        return int(wrong > 0)
                    off = launch.linear(copies[0], x).float() - right
                    if not off.norm() <= TOLERANCE * right.norm():
                        wrong += 1
                        print(f"WRONG {shape} {values} {tokens} tokens: {launch}")
                    point: dict[str, Any] = {"rows": shape[0], "cols": shape[1], "values": values}
                    us = round(microseconds(launch, copies, x), 2)
                    rows.writerow(
                        point | {"tokens": tokens, "launch": " ".join(map(str, launch)), "us": us}
                    )
                    file.flush()
                    done += 1
            print(f"{shape} {values}", flush=True)
    print(f"{wrong} of {done} launches are wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
