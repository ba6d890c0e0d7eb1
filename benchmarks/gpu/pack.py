# SPDX-License-Identifier: Apache-2.0
"""Is packing on this GPU right, and is it as fast as a model can be read?

    python benchmarks/gpu/pack.py [--format NAME]    everything
    python benchmarks/gpu/pack.py --check            correctness only
    python benchmarks/gpu/pack.py --device cpu       a toy run that shows that this program works

First every packed tensor is compared with what the CPU packs, over shapes, densities, dtypes and
places in memory; nothing is timed unless all agree. Then layers of Llama 3 and OPT are timed at 50,
80 and 90% zeros, or by the patterns that a format has: whole calls as a loader makes them,
allocation and the wait for the device included, and the time of each kernel alone. Speeds are
gigabytes of dense weight a second. In brackets is the share of this card's copy bandwidth that the
kernels reach with the bytes that must move: to pack the weight twice and the packed tensors once,
to unpack both once, to validate the packed tensors. The bandwidth from main memory is printed too,
since packing while loading has to keep up with it.
"""

from __future__ import annotations

import argparse
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from _device import _formats, _measure, _results, require_device
from rich.table import Table
from torch import Tensor

import flashsparse_plugin as fs
from flashsparse_plugin.formats import DEFAULT_FORMAT, format_names, get_format
from flashsparse_plugin.formats.values.types import VALUE_TYPES

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
SHAPES = (
    *((1, 1), (3, 5), (16, 256), (17, 257), (127, 63), (128, 64), (129, 65), (300, 1), (1, 300)),
    (1000, 2056),
)
ROUNDED = ((600, 4100), (33, 70), (64, 28672))  # of weights that codes round
DENSITIES = (0.0, 0.01, 0.1, 0.2, 0.5, 0.51, 0.9, 0.99, 1.0)
KERNEL = re.compile(
    r"\bflashsparse::(?:\w+::)*(\w+_kernel)\b"
)  # a kernel of ours, in what torch profiled
Row = dict[str, Any]
Options = Mapping[str, Any]


def patterns(format: str, which: str) -> tuple[Options, ...]:
    """The options by which a format is tried, "CHECKED" or "MEASURED"; () where it has none."""
    own = _formats.room(format, "patterns")
    return getattr(own, which) if own else ()


def any_bits(shape: tuple[int, int], density: float, dtype: torch.dtype, seed: int) -> Tensor:
    """Any bit patterns, NaN and both zeros included, at about this density."""
    generator = torch.Generator().manual_seed(seed)
    bits = torch.randint(-(2**15), 2**15, shape, generator=generator, dtype=torch.int16)
    kept = torch.rand(shape, generator=generator) < density
    return torch.where(kept, bits, -(2**15) * (seed % 2)).view(dtype)


def weights() -> Iterator[tuple[str, Tensor]]:
    """Weights on the CPU that are hard to pack."""
    torch.manual_seed(0)
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
    """The same weight at several places and strides in the device's memory."""
    there = weight.to(device)
    yield "", there
    if weight.numel() < 1 << 22:
        yield ", transposed", there.t().contiguous().t()
        yield ", a slice", torch.nn.functional.pad(there, (3, 2))[:, 3:-2]
        shifted = torch.empty(weight.numel() + 1, dtype=weight.dtype, device=device)[1:]
        yield ", 2 bytes off", shifted.view(weight.shape).copy_(there)


def check(format: str, device: torch.device) -> int:
    """Compares with the CPU; returns how many comparisons agreed, raises if one does not."""
    agreed = 0
    for number, (name, weight) in enumerate(weights()):
        options: Options = {}
        if own := patterns(format, "CHECKED"):
            options = own[number % len(own)]
            weight = conform(weight, format, options)
            name += f", {options}"
        wanted = fs.pack(weight, format, options)
        back = wanted.unpack().view(torch.int16)
        for place, there in places(weight, device):
            made = fs.pack(there, format, options)
            same = {
                name: torch.equal(made.tensors[name].cpu(), tensor)
                for name, tensor in wanted.tensors.items()
            }
            if not all(same.values()):
                raise SystemExit(f"WRONG: pack of {name}{place}: equal: {same}")
            agreed += 1
        if not torch.equal(made.unpack().cpu().view(torch.int16), back):
            raise SystemExit(f"WRONG: unpack of {name}")
        if made.density != wanted.density:
            raise SystemExit(f"WRONG: validate of {name} counts other nonzeros than the CPU does")
        agreed += 2
    return agreed + roundings(format, device) + refusals(format, device) + breaches(format, device)


def roundings(format: str, device: torch.device) -> int:
    """Weights that codes round have the CPU's codes and scales; returns how many were compared."""
    own, compared = get_format(format), 0
    codes = [(values, group) for values in VALUE_TYPES for group in (None, 32, 128)]
    for values, group in (each for each in codes if own.takes_codes(*each)):
        options: Options = {"values": values}
        if own.name != DEFAULT_FORMAT:
            options = {"n": 2, "m": 4, "values": values, "group": group}
        for number, (shape, dtype) in enumerate(product(ROUNDED, (torch.float16, torch.bfloat16))):
            torch.manual_seed(number)
            weight = torch.randn(shape) * torch.rand(shape[0], 1).pow(8)
            weight = weight.to(dtype) * torch.tensor([0, 1, 0, 1]).repeat(shape[1])[: shape[1]]
            wanted, made = (fs.pack(each, format, options) for each in (weight, weight.to(device)))
            for name, tensor in wanted.tensors.items():
                if not torch.equal(made.tensors[name].cpu(), tensor):
                    raise SystemExit(f"WRONG: {name} of {options} of {list(shape)}, {dtype}")
            compared += 1
    return compared


def conform(weight: Tensor, format: str, options: Options) -> Tensor:
    """A weight like this one that follows the pattern of the options."""
    own = get_format(format)
    if options.get("values", "native") != "native":  # codes hold what is finite
        weight = weight.nan_to_num(0.0, 1.0, -1.0).clamp(-1e3, 1e3)
    return own.conform(weight, own.scheme(weight.dtype, options))


def breaches(format: str, device: torch.device) -> int:
    """A weight that breaks its pattern is refused in the CPU's words; returns how many were."""
    refused = 0
    for options in patterns(format, "CHECKED"):
        weight = any_bits((300, 2056), 0.9, torch.bfloat16, refused)
        weight[: 17 * refused] = 0
        kept = conform(weight, format, options)
        if torch.equal(kept.view(torch.int16), weight.view(torch.int16)):
            continue  # a pattern that keeps all
        weights = (weight, weight.to(device))
        told = [refusal(partial(fs.pack, each, format, options)) for each in weights]
        if told[0] is None or told[0] != told[1]:
            raise SystemExit(f"WRONG: a weight that breaks {options} is told of as {told}")
        refused += 1
    return refused


def refusals(format: str, device: torch.device) -> int:
    """Damaged tensors, in the CPU's words, and a weight beyond the format's limits are errors.

    Returns how many.
    """
    own = _formats.room(format, "damages")
    if own is None:
        return 0
    options = getattr(own, "OPTIONS", {})
    weight = conform(any_bits(own.SHAPE, own.DENSITY, torch.bfloat16, 5), format, options)
    packed = fs.pack(weight.to(device), format, options)
    for number, damage in enumerate(own.DAMAGES):
        broken = _formats.copy_of(packed)
        damage(*broken.tensors.values())
        told = refusal(broken.validate)
        if told is None or told != refusal(broken.to("cpu").validate):
            raise SystemExit(f"WRONG: of damage {number} was said: {told}")
    if device.type == "cuda" and torch.cuda.mem_get_info()[0] > 16 << 30:
        large = torch.ones(1, dtype=torch.bfloat16, device=device).expand(own.TOO_LARGE)
        if refusal(lambda: fs.pack(large, format, options)) is None:
            raise SystemExit("WRONG: a weight that is too large was packed")
    return len(own.DAMAGES) + 1


def refusal(call: Callable[[], object]) -> str | None:
    """What a call says that refuses; None where it does not refuse."""
    try:
        call()
    except (fs.FormatError, RuntimeError) as error:
        if "CUDA error" in str(error):
            raise
        return str(error)
    return None


def pruned(shape: tuple[int, int], sparsity: float, device: torch.device) -> Tensor:
    generator = torch.Generator(device).manual_seed(0)
    weight = torch.randn(shape, generator=generator, device=device).bfloat16()
    kept = torch.rand(shape, generator=generator, device=device) >= sparsity
    return weight.mul_(kept)


def seconds(call: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Median time of whole calls, with the wait for the device."""
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
    """Mean seconds of each of our kernels in a call, by the profiler."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(repeats):
            call()
        torch.cuda.synchronize()
    found: dict[str, float] = {}
    for event in profile.key_averages():
        if kernel := KERNEL.search(event.key):
            took = event.device_time_total / repeats / 1e6
            found[kernel[1]] = found.get(kernel[1], 0.0) + took
    return found


def copy_bandwidth(device: torch.device, repeats: int) -> float:
    """Bytes a second, read plus written, of a copy that is larger than any cache."""
    source = torch.ones((1 << 30) if device.type == "cuda" else (1 << 22), device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / seconds(lambda: target.copy_(source), device, repeats)


def upload_bandwidth(device: torch.device, repeats: int, pinned: bool) -> float:
    """Bytes a second from main memory to the device."""
    source = torch.ones(64 << 20, pin_memory=pinned)
    target = torch.empty_like(source, device=device)
    return source.nbytes / seconds(lambda: target.copy_(source), device, repeats)


def measure(
    format: str,
    name: str,
    shape: tuple[int, int],
    kind: float | Options,
    device: torch.device,
    repeats: int,
) -> Row:
    """`kind`: the share of zeros, or the options of a pattern that the weight follows."""
    options: Options = {} if isinstance(kind, float) else kind
    weight = pruned(shape, kind if isinstance(kind, float) else 0.0, device)
    if options:
        weight = conform(weight, format, options)
    packed = fs.pack(weight, format, options)
    calls = {
        "pack": lambda: fs.pack(weight, format, options),
        "unpack": packed.unpack,
        "validate": packed.validate,
    }
    row: Row = {
        "layer": name,
        "shape": f"{shape[0]}x{shape[1]}",
        "zeros": kind if isinstance(kind, float) else packed.scheme.options.title,
        "dense_bytes": weight.nbytes,
        "packed_bytes": packed.nbytes,
    }
    for op, call in calls.items():
        took = seconds(call, device, repeats)
        row[f"{op}_us"] = round(took * 1e6, 1)
        row[f"{op}_gb_s"] = round(weight.nbytes / took / 1e9, 2)
    if device.type == "cuda":
        for op, call in calls.items():
            found = kernel_seconds(call, 5)
            row[f"{op}_kernels_us"] = round(sum(found.values()) * 1e6, 2)
            row |= {f"{kernel}_us": round(took * 1e6, 2) for kernel, took in found.items()}
    return row


def cpu_gigabytes(format: str, repeats: int) -> float:
    """Gigabytes a second of the CPU's packer, with all of torch's threads."""
    weight = pruned((4096, 4096), 0.8, torch.device("cpu"))
    options: Options = {}
    if own := patterns(format, "MEASURED"):
        options = own[0]
        weight = conform(weight, format, options)
    took = seconds(lambda: fs.pack(weight, format, options), torch.device("cpu"), repeats)
    return weight.nbytes / took / 1e9


def about(format: str, device: torch.device, repeats: int) -> dict[str, Any]:
    """The conditions of the measurement."""
    found = _measure.machine() | {"format": format}
    found["cpu_pack_gb_s"] = round(cpu_gigabytes(format, repeats), 2)
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {"gpu": properties.name, "multiprocessors": properties.multi_processor_count}
        for name, pinned in (("upload", False), ("pinned_upload", True)):
            found[f"{name}_gb_s"] = round(upload_bandwidth(device, repeats, pinned) / 1e9, 1)
    return found | {"copy_gb_s": round(copy_bandwidth(device, repeats) / 1e9, 1)}


def title(row: Row) -> str:
    """ "50% zeros", or the pattern."""
    return f"{row['zeros']:.0%} zeros" if isinstance(row["zeros"], float) else row["zeros"]


# How often the dense weight and the packed tensors move.
MOVED = {"pack": (2, 1), "unpack": (1, 1), "validate": (0, 1)}


def speed_of(op: str, row: Row, copies: float) -> str:
    """ "1,234 (80%)": the speed of whole calls, and the share of `copies` that kernels reach."""
    speed = f"{row[f'{op}_gb_s']:,.0f}"
    if not row.get(f"{op}_kernels_us"):
        return speed
    dense, packed = MOVED[op]
    moved = dense * row["dense_bytes"] + packed * row["packed_bytes"]
    return f"{speed} ({moved / row[f'{op}_kernels_us'] / 1e3 / copies:.0%})"


def show(conditions: dict[str, Any], rows: list[Row]) -> None:
    table = Table(
        title=f"GB of dense bf16 a second, {conditions.get('gpu', conditions['cpu'])}",
        caption=f"copies at {conditions['copy_gb_s']:,} GB/s (read + written); the CPU here packs "
        f"{conditions['cpu_pack_gb_s']} GB/s with {conditions['threads']} threads",
    )
    for column in ("layer", "shape", "weight"):
        table.add_column(column)
    for op in MOVED:
        table.add_column(op, justify="right")
    for row in rows:
        cells = (speed_of(op, row, conditions["copy_gb_s"]) for op in MOVED)
        table.add_row(row["layer"], row["shape"], title(row), *cells)
    console = _measure.console(width=110)
    console.print(table)
    if "upload_gb_s" in conditions:
        console.print(
            f"weights come from main memory at {conditions['upload_gb_s']} GB/s, from pinned "
            f"memory at {conditions['pinned_upload_gb_s']} GB/s"
        )
    for zeros in dict.fromkeys(row["zeros"] for row in rows):
        own = [row for row in rows if row["zeros"] == zeros]
        speed = sum(row["dense_bytes"] for row in own) / sum(row["pack_us"] for row in own) * 1e6
        console.print(
            f"70B model, {MODEL_BYTES / 1e9:.0f} GB, {title(own[0])}: packed in "
            f"{MODEL_BYTES / speed:,.2f} s ({speed / 1e9:,.0f} GB/s)"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--format", default=DEFAULT_FORMAT, choices=format_names())
    parser.add_argument("--check", action="store_true", help="correctness only")
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"))
    arguments = parser.parse_args()
    device = require_device(arguments.device)
    print(f"correct: {check(arguments.format, device)} comparisons with the CPU agree", flush=True)
    if arguments.check:
        return
    conditions, rows = about(arguments.format, device, arguments.repeats), []
    path = arguments.out / "pack.csv"
    for name, shape in (LAYERS if device.type == "cuda" else TOY).items():
        for kind in patterns(arguments.format, "MEASURED") or SPARSITIES:
            rows.append(measure(arguments.format, name, shape, kind, device, arguments.repeats))
            _results.write(path, conditions, rows)
        if device.type == "cuda":
            torch.cuda.empty_cache()
    show(conditions, rows)
    print(f"written to {path}")


if __name__ == "__main__":
    main()
