# SPDX-License-Identifier: Apache-2.0
"""How fast is tiled_bitmap's wgmma kernel beside cuBLAS, and which launch of it is fastest?

    python benchmarks/tiled_bitmap/many_tokens.py             its own choice, all layers
    python benchmarks/tiled_bitmap/many_tokens.py --launches  every launch, for two layers

Cold weights, CUDA graphs, medians; cuBLAS is the fastest of its layouts and libraries. Prints a
line for each point, and at the end the geometric mean for each number of tokens and share of zeros;
--csv writes all points to a file.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path

import torch

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "gpu")]
from _device import Stopwatch, _formats, _measure, cold_bytes
from _layers import layer
from _speed import Dense, activations
from wgmma_launches import launches, own_choice

import flashsparse_plugin as fs
from flashsparse_plugin.dataflow.tuner import random_weight

LAYERS = ("28672x7168", "7168x28672", "28672x4096", "4096x14336", "6144x4096", "4096x4096")
TUNED = ("28672x7168", "4096x4096")
TOKENS = (33, 64, 65, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096)


def numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def multiply(
    linear: Callable[[fs.PackedWeight, torch.Tensor], torch.Tensor],
    copies: _measure.Rotation,
    x: torch.Tensor,
) -> torch.Tensor:
    return linear(copies(), x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--layers", type=lambda text: text.split(","))
    parser.add_argument("--tokens", type=numbers, default=list(TOKENS))
    parser.add_argument("--sparsity", type=numbers, default=[50, 70, 80])
    parser.add_argument("--launches", action="store_true")
    parser.add_argument("--replays", type=int, default=7)
    parser.add_argument("--csv", type=Path)
    arguments = parser.parse_args()
    device, dtype = torch.device("cuda"), torch.float16
    stopwatch = Stopwatch(device, arguments.replays)
    multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
    rows = []
    for name in arguments.layers or (TUNED if arguments.launches else LAYERS):
        each = layer(name)
        packed_at = {}
        for sparsity in arguments.sparsity:
            weight = random_weight(each.shape, 1 - sparsity / 100, dtype, device)
            packed_at[sparsity] = fs.pack(weight, "tiled_bitmap")
            del weight
        # Dense beside sparse, few tokens first: many heat the card, and its clock falls then.
        dense: dict[int, dict] = {}
        for tokens, sparsity in product(arguments.tokens, arguments.sparsity):
            if tokens not in dense:
                dense |= Dense(each, dtype, device).time([tokens], stopwatch)
            packed = packed_at[sparsity]
            copies = _measure.Rotation(
                partial(_formats.copy_of, packed), packed.nbytes, cold_bytes(device)
            )
            x = activations(tokens, each, dtype, device)
            ways = {"own choice": own_choice}
            if arguments.launches:
                ways |= {
                    str(launch): launch.linear
                    for launch in launches(each.shape, tokens, multiprocessors)
                }
            found = []
            for way, linear in ways.items():
                us = stopwatch(partial(multiply, linear, copies, x), len(copies)).microseconds
                found.append((us, way))
            for us, way in sorted(found)[:6] + found[:1] * (len(found) > 1):
                dense_us = dense[tokens]["dense_us"]
                rows.append(
                    {"layer": name, "zeros": sparsity, "tokens": tokens, "us": round(us, 2),
                     "dense_us": dense_us, "ratio": round(dense_us / us, 3), "launch": way}
                )  # fmt: skip
                print(*rows[-1].values(), flush=True)
    for sparsity, tokens in product(arguments.sparsity, arguments.tokens):
        ratios = [
            row["ratio"]
            for row in rows
            if (row["zeros"], row["tokens"], row["launch"]) == (sparsity, tokens, "own choice")
        ]
        mean, least = statistics.geometric_mean(ratios), min(ratios)
        print(f"{sparsity}% zeros, {tokens} tokens: {mean:.3f} of cuBLAS, least {least:.3f}")
    if arguments.csv:
        with arguments.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
