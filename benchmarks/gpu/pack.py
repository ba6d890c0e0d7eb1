# SPDX-License-Identifier: Apache-2.0
"""Is packing on this GPU right, and is it as fast as a model can be read?

    python benchmarks/gpu/pack.py [--out DIRECTORY]    everything, in about 2 minutes
    python benchmarks/gpu/pack.py --check              correctness only
    python benchmarks/gpu/pack.py --device cpu         a toy run that shows that this program works

First every word and offset against the CPU's packer, over shapes, densities, dtypes and places in
memory; nothing is timed unless all agree. Then layers of Llama 3 and OPT at 50, 80 and 90% zeros:
whole ops as a loader calls them, allocation and the wait for the device included, and beside them
the time of each kernel alone. Speeds are gigabytes of dense weight a second. `bound` is what the
bytes that must move (the weight twice, the words once) take at the speed at which this card copies.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from flashsparse_plugin.ops import STATUS, ops

sys.path.append(str(Path(__file__).parents[1]))
import _measure

LAYERS = {
    "llama-3-8b o": (4096, 4096),
    "llama-3-8b down": (4096, 14336),
    "llama-3-8b gate+up": (28672, 4096),
    "llama-3-70b o": (8192, 8192),
    "llama-3-70b gate+up": (57344, 8192),
    "opt-30b fc1": (28672, 7168),
    "opt-175b fc2": (12288, 49152),
}
TOY = {"toy": (300, 200)}
SPARSITIES = (0.5, 0.8, 0.9)
MODEL_BYTES = 140e9  # a 70B model
SHAPES = ((1, 1), (3, 5), (127, 63), (128, 64), (129, 65), (300, 1), (1, 300), (1000, 2056))
DENSITIES = (0.0, 0.01, 0.1, 0.2, 0.5, 0.51, 0.9, 0.99, 1.0)
KERNELS = ("count_kernel", "offsets_kernel", "pack_kernel", "unpack_kernel", "validate_kernel")
Row = dict[str, Any]


def any_bits(shape: tuple[int, int], density: float, dtype: torch.dtype, seed: int) -> Tensor:
    """Any bit pattern, NaN and both zeros included, at about a density."""
    generator = torch.Generator().manual_seed(seed)
    bits = torch.randint(-(2**15), 2**15, shape, generator=generator, dtype=torch.int16)
    kept = torch.rand(shape, generator=generator) < density
    return torch.where(kept, bits, -(2**15) * (seed % 2)).view(dtype)


def weights() -> Iterator[tuple[str, Tensor]]:
    """Weights that are hard on a packer, on the CPU."""
    seed = 0
    for shape in SHAPES:
        for density in DENSITIES:
            seed += 1
            dtype = (torch.float16, torch.bfloat16)[seed % 2]
            yield f"{shape} at {density}", any_bits(shape, density, dtype, seed)
    rows = any_bits((700, 900), 1.0, torch.bfloat16, 1)
    rows[torch.rand(700, 900) < torch.rand(700, 1) ** 0.3] = 0
    yield "skewed rows", rows
    banks = torch.zeros(256, 256, dtype=torch.float16)
    banks[:, :2] = any_bits((256, 2), 1.0, torch.float16, 2)
    banks[7::8] = 1.0
    yield "one bank full, others empty", banks
    yield "many tiles", any_bits((4096, 8192), 0.2, torch.bfloat16, 3)


def places(weight: Tensor, device: torch.device) -> Iterator[tuple[str, Tensor]]:
    """The same weight at several places in the device's memory."""
    there = weight.to(device)
    yield "", there
    if weight.numel() < 1 << 22:
        yield ", transposed", there.t().contiguous().t()
        yield ", a slice", torch.nn.functional.pad(there, (3, 2))[:, 3:-2]
        shifted = torch.empty(weight.numel() + 1, dtype=weight.dtype, device=device)[1:]
        yield ", 2 bytes off", shifted.view(weight.shape).copy_(there)


def check(device: torch.device) -> int:
    """Compares every op with the CPU's; returns how many comparisons agreed, raises otherwise."""
    agreed = 0
    for name, weight in weights():
        words, offsets = ops.tiled_csl_pack(weight)
        shape, dtype = tuple(weight.shape), weight.dtype
        nonzeros = int(ops.tiled_csl_validate(words, offsets, *shape))
        back = ops.tiled_csl_unpack(words, offsets, *shape, dtype).view(torch.int16)
        for place, there in places(weight, device):
            made = ops.tiled_csl_pack(there)
            same = [torch.equal(a.cpu(), b) for a, b in zip(made, (words, offsets), strict=True)]
            if not all(same):
                raise SystemExit(f"WRONG: pack of {name}{place}: words, offsets equal: {same}")
            agreed += 1
        unpacked = ops.tiled_csl_unpack(*made, *shape, dtype)
        if not torch.equal(unpacked.cpu().view(torch.int16), back):
            raise SystemExit(f"WRONG: unpack of {name}")
        if int(ops.tiled_csl_validate(*made, *shape)) != nonzeros:
            raise SystemExit(f"WRONG: validate of {name} counts other nonzeros than {nonzeros}")
        agreed += 2
    return agreed + refusals(device)


def refusals(device: torch.device) -> int:
    """Damaged tensors and a weight beyond int32 are errors; returns how many."""
    weight = any_bits((300, 200), 0.5, torch.bfloat16, 5)
    words, offsets = (tensor.to(device) for tensor in ops.tiled_csl_pack(weight))
    damages: list[Callable[[Tensor, Tensor], object]] = [
        lambda w, o: w[9].bitwise_or_(0x8000),
        lambda w, o: w[5].copy_(w[4] ^ (1 << 20)),
        lambda w, o: o[0].fill_(4),
        lambda w, o: o[2].fill_(-8),
        lambda w, o: o[3].add_(2),
        lambda w, o: o[-1].add_(4),
    ]
    calls = []
    for damage in damages:
        broken = words.clone(), offsets.clone()
        damage(*broken)
        calls.append(lambda broken=broken: ops.tiled_csl_validate(*broken, 300, 200))
    if device.type == "cuda" and torch.cuda.mem_get_info()[0] > 16 << 30:
        large = torch.ones(1, dtype=torch.bfloat16, device=device).expand(46400, 46400)
        calls.append(lambda: ops.tiled_csl_pack(large))
    for number, call in enumerate(calls):
        try:
            call()
        except RuntimeError as error:
            if "CUDA error" in str(error):
                raise
            continue
        raise SystemExit(f"WRONG: damage {number} was not refused")
    return len(calls)


def pruned(shape: tuple[int, int], sparsity: float, device: torch.device) -> Tensor:
    generator = torch.Generator(device).manual_seed(0)
    weight = torch.randn(shape, generator=generator, device=device).bfloat16()
    kept = torch.rand(shape, generator=generator, device=device) >= sparsity
    return weight.mul_(kept)


def seconds(call: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Median of whole calls, from one waiting host to the next."""
    samples = []
    for _ in range(repeats + 2):
        wait(device)
        start = time.perf_counter()
        call()
        wait(device)
        samples.append(time.perf_counter() - start)
    return statistics.median(samples[2:])


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def kernel_seconds(call: Callable[[], object], repeats: int) -> dict[str, float]:
    """Mean seconds of each of our kernels in a call, as the profiler sees them."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(repeats):
            call()
        torch.cuda.synchronize()
    found: dict[str, float] = {}
    for event in profile.key_averages():
        for kernel in KERNELS:
            if f"::{kernel}(" in event.key or event.key.endswith(f"::{kernel}"):
                found[kernel] = event.device_time_total / repeats / 1e6
    return found


def copy_bandwidth(device: torch.device, repeats: int) -> float:
    """Bytes read and written a second by a copy that is larger than any cache."""
    source = torch.ones((1 << 30) if device.type == "cuda" else (1 << 22), device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / seconds(lambda: target.copy_(source), device, repeats)


def measure(
    name: str, shape: tuple[int, int], sparsity: float, device: torch.device, repeats: int
) -> Row:
    weight = pruned(shape, sparsity, device)
    packed = ops.tiled_csl_pack(weight)
    calls = {
        "pack": lambda: ops.tiled_csl_pack(weight),
        "unpack": lambda: ops.tiled_csl_unpack(*packed, *shape, weight.dtype),
        "validate": lambda: ops.tiled_csl_validate(*packed, *shape),
    }
    row: Row = {
        "layer": name,
        "shape": f"{shape[0]}x{shape[1]}",
        "zeros": sparsity,
        "dense_bytes": weight.nbytes,
        "packed_bytes": sum(tensor.nbytes for tensor in packed),
    }
    for op, call in calls.items():
        took = seconds(call, device, repeats)
        row[f"{op}_us"] = round(took * 1e6, 1)
        row[f"{op}_gb_s"] = round(weight.nbytes / took / 1e9, 2)
    if device.type == "cuda":
        for call in calls.values():
            for kernel, took in kernel_seconds(call, 5).items():
                row[f"{kernel}_us"] = round(took * 1e6, 2)
    return row


def cpu_gigabytes(repeats: int) -> float:
    """The CPU packer beside it, with all of torch's threads."""
    weight = pruned((4096, 4096), 0.8, torch.device("cpu"))
    took = seconds(lambda: ops.tiled_csl_pack(weight), torch.device("cpu"), repeats)
    return weight.nbytes / took / 1e9


def about(device: torch.device, repeats: int) -> dict[str, Any]:
    found = _measure.machine() | {"cpu_pack_gb_s": round(cpu_gigabytes(repeats), 2)}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {"gpu": properties.name, "multiprocessors": properties.multi_processor_count}
    return found | {"copy_gb_s": round(copy_bandwidth(device, repeats) / 1e9, 1)}


def save(folder: Path, conditions: dict[str, Any], rows: list[Row]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with (folder / "pack.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    text = json.dumps({"about": conditions, "rows": rows}, indent=1)
    (folder / "pack.json").write_text(text + "\n")


def show(conditions: dict[str, Any], rows: list[Row]) -> None:
    table = Table(
        title=f"GB of dense bf16 a second, {conditions.get('gpu', conditions['cpu'])}",
        caption=f"copies at {conditions['copy_gb_s']:,} GB/s (read + written); the CPU here packs "
        f"{conditions['cpu_pack_gb_s']} GB/s with {conditions['threads']} threads",
    )
    for column in ("layer", "shape", "zeros"):
        table.add_column(column)
    for column in ("pack", "bound", "kernels alone", "unpack", "validate"):
        table.add_column(column, justify="right")
    kernels = ("count_kernel_us", "offsets_kernel_us", "pack_kernel_us")
    for row in rows:
        moved = 2 * row["dense_bytes"] + row["packed_bytes"]
        bound = row["dense_bytes"] * conditions["copy_gb_s"] / moved
        alone = sum(row[kernel] for kernel in kernels) if kernels[-1] in row else None
        table.add_row(
            row["layer"],
            row["shape"],
            f"{row['zeros']:.0%}",
            f"[bold]{row['pack_gb_s']:,.0f}[/]",
            f"{bound:,.0f}",
            f"{row['dense_bytes'] / alone / 1e3:,.0f}" if alone else "",
            f"{row['unpack_gb_s']:,.0f}",
            f"{row['validate_gb_s']:,.0f}",
        )
    console = _measure.console(width=110)
    console.print(table)
    for zeros in SPARSITIES:
        own = [row for row in rows if row["zeros"] == zeros]
        speed = sum(row["dense_bytes"] for row in own) / sum(row["pack_us"] for row in own) * 1e6
        console.print(
            f"70B model, {MODEL_BYTES / 1e9:.0f} GB, {zeros:.0%} zeros: packed in "
            f"{MODEL_BYTES / speed:,.2f} s ({speed / 1e9:,.0f} GB/s)"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--check", action="store_true", help="correctness only")
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"))
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    if device.type == "cuda":
        if not STATUS["_C_cuda"].loaded:
            raise SystemExit(f"_C_cuda: {STATUS['_C_cuda'].reason}")
        device = torch.device("cuda", torch.cuda.current_device())
    print(f"correct: {check(device)} comparisons with the CPU's ops agree", flush=True)
    if arguments.check:
        return
    conditions, rows = about(device, arguments.repeats), []
    for name, shape in (LAYERS if device.type == "cuda" else TOY).items():
        for sparsity in SPARSITIES:
            rows.append(measure(name, shape, sparsity, device, arguments.repeats))
            save(arguments.out, conditions, rows)
        if device.type == "cuda":
            torch.cuda.empty_cache()
    show(conditions, rows)
    print(f"written to {arguments.out}/pack.csv and .json")


if __name__ == "__main__":
    main()
