# SPDX-License-Identifier: Apache-2.0
"""What each CUDA kernel takes of a multiprocessor, read from the compiled object.

    python kernels/resources.py            prints a table and compares it with resources.csv
    python kernels/resources.py --write    takes the figures as they are into resources.csv

For each kernel, on sm_80 and sm_90a: registers, shared memory, the warps that a multiprocessor
holds, and how often instructions of interest stand in the machine code. A figure worse than the one
in resources.csv is an error until the file is written anew, on purpose. Local memory (a spill, or
an array that registers cannot hold) always is, on every architecture.

Dynamic shared memory is chosen at the launch and stands in no object: dynamic_shared.csv has it, or
the template arguments of a kernel tell it. A kernel that is empty on an architecture has no row.
Figures are of one ptxas; an object made by another is only checked for local memory.
"""

from __future__ import annotations

import argparse
import csv
import fnmatch
import importlib.util
import math
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

HERE = Path(__file__).parent
COMMITTED = HERE / "resources.csv"
DYNAMIC_SHARED = HERE / "dynamic_shared.csv"
KEPT_ARCHS = ("sm_80", "sm_90a")  # in the file; the others follow them
# Kernels without wgmma are compiled for sm_90: the machine code is the same.
HOPPER = "sm_90a"
ARCHS_OF = {HOPPER: ("sm_90", "sm_90a")}
# Of a kernel's attributes in a cubin those that have bytes of their own, and that of
# __launch_bounds__: EIFMT_SVAL and EIATTR_MAX_THREADS to cuobjdump.
HAS_BYTES, MAX_THREADS = 4, 5
REWRITE = "python kernels/resources.py --write"
# Matrix products, loads of matrices and of words, asynchronous copies, stores to shared memory.
COUNTED = ("HMMA", "HGMMA", "LDSM", "LDGSTS", "LDG", "LDS", "STS")
OPCODE_BITS = 0xFFF  # of an instruction: they say which one it is
ASKED = 32  # instructions of each opcode, at most
# Code of a kernel that is empty on an architecture which it is not for. No other is as short.
EMPTY_INSTRUCTIONS = 4
RESERVED_SHARED = 1024  # bytes of each block that CUDA keeps for itself since sm_80


@dataclass(frozen=True)
class Limits:
    """What one multiprocessor holds: CUDA C++ Programming Guide, "Compute Capabilities"."""

    warps: int
    blocks: int
    shared: int
    registers: int = 65536


LIMITS = {
    "sm_80": Limits(64, 32, 164 << 10),
    "sm_86": Limits(48, 16, 100 << 10),
    "sm_89": Limits(48, 24, 100 << 10),
    "sm_90a": Limits(64, 32, 228 << 10),
    "sm_100": Limits(64, 32, 228 << 10),
    "sm_120": Limits(48, 24, 100 << 10),
}


def resident_warps(arch: str, threads: int, registers: int, shared: int) -> int:
    """Warps that one multiprocessor holds at a time, by the rules of CUDA's occupancy calculator.

    Args:
        arch: A key of LIMITS.
        threads: Threads of a block.
        registers: Registers of a thread.
        shared: Bytes of a block, static and dynamic, without those that CUDA reserves.
    """
    limits = LIMITS[arch]
    warps = math.ceil(threads / 32)
    # Registers are given to warps in units of 256, from four partitions of the register file.
    by_registers = limits.registers // 4 // (math.ceil(registers * 32 / 256) * 256) * 4 // warps
    by_shared = limits.shared // (math.ceil((shared + RESERVED_SHARED) / 128) * 128)
    return min(limits.blocks, limits.warps // warps, by_registers, by_shared) * warps


@dataclass(frozen=True)
class Kernel:
    """One kernel for one architecture. What CSV columns hold; worse means more, of warps fewer."""

    kernel: str
    arch: str
    threads: int
    registers: int
    static_shared: int
    dynamic_shared: int
    warps: int
    instructions: int
    HMMA: int
    HGMMA: int
    LDSM: int
    LDGSTS: int
    LDG: int
    LDS: int
    STS: int
    local: int  # bytes of stack and of local memory, and instructions that touch it

    @property
    def key(self) -> tuple[str, str]:
        return self.kernel, self.arch


COLUMNS = [field.name for field in fields(Kernel) if field.name != "local"]
FIGURES = [name for name in COLUMNS if name not in ("kernel", "arch")]


def find_tool(name: str) -> Path:
    """cuobjdump or nvdisasm, from the CUDA toolkit or from NVIDIA's pip packages."""
    folders = [os.environ.get("PATH", ""), "/usr/local/cuda/bin"]
    if home := os.environ.get("CUDA_HOME"):
        folders.insert(0, f"{home}/bin")
    if spec := importlib.util.find_spec("nvidia"):
        for place in spec.submodule_search_locations or ():
            folders += map(str, Path(place).glob("cu*/bin"))
    found = shutil.which(name, path=os.pathsep.join(folders))
    if found is None:
        raise SystemExit(
            f"{name} was not found. It is part of the CUDA toolkit, and of\n"
            f"  pip install nvidia-cuda-{name}"
        )
    return Path(found)


def _dump(what: str, path: Path) -> Iterator[tuple[str, str]]:
    """What cuobjdump says, cut by architecture."""
    command = [find_tool("cuobjdump"), what, path]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    parts = re.split(r"^arch = (sm_\w+)$", ran.stdout, flags=re.M)
    for arch, text in zip(parts[1::2], parts[2::2], strict=True):
        yield HOPPER if arch in ARCHS_OF[HOPPER] else arch, text


def _short(symbols: Sequence[str]) -> dict[str, str]:
    """Symbols as a person would name the kernels: no arguments, no namespace that all share."""
    ran = subprocess.run(
        ["c++filt"], input="\n".join(symbols), capture_output=True, text=True, check=True
    )
    names = {}
    for symbol, name in zip(symbols, ran.stdout.splitlines(), strict=True):
        name = re.sub(r"^void |flashsparse::|\(anonymous namespace\)::|\((int|bool)\)", "", name)
        depths = accumulate((letter == "<") - (letter == ">") for letter in name)
        arguments = [i for i, depth in enumerate(depths) if depth == 0 and name[i] == "("]
        names[symbol] = (name[: arguments[0]] if arguments else name).replace("> >", ">>")
    return names


def linear_shared(tokens: int, team_warps: int, warps: int) -> int:
    """Bytes of a linear::Shape (tiled_csl/linear_shape.h), without those of the tile source."""
    tile, x, flags = 128 * 64 * 2, tokens * 64 * 2, 2 * 4
    return warps // team_warps * (tile + 2 * x) + flags


def flat_shared(tokens: int, row_blocks: int, warps_n: int, warps_k: int, stages: int) -> int:
    """kSharedBytes of a FlatShape in cuda/dense/flat_gemm.cuh: lines of 128 bytes of W and of x."""
    return warps_n * warps_k * stages * (16 * row_blocks + tokens) * 128


def gemv_shared(rows: int, warps_n: int, warps_k: int, stages: int) -> int:
    """kSharedBytes of a GemvShape in cuda/dense/gemv.cuh: 16 bytes a lane, row and stage."""
    return warps_n * warps_k * stages * rows * 32 * 16


def dynamic_shared(kernel: str) -> int:
    """Bytes that a kernel is launched with."""
    if shape := re.search(r"FlatShape<(\d+), (\d+), (\d+), (\d+), (\d+), \d+>", kernel):
        return flat_shared(*map(int, shape.groups()))
    if shape := re.search(r"GemvShape<\d+, (\d+), (\d+), (\d+), (\d+), \d+>", kernel):
        return gemv_shared(*map(int, shape.groups()))
    own = int(_launch(kernel)["bytes"])
    if shape := re.search(r"linear::Shape<(\d+), \w+, \w+, (\d+), (\d+), \d+>", kernel):
        return linear_shared(*map(int, shape.groups())) + own
    return own


def launched_threads(kernel: str, most: int) -> int:
    """Threads of a block as it is usually launched; `most` is its launch bound."""
    if "Shape<" in kernel:
        return most
    return int(_launch(kernel)["threads"] or most)


def _launch(kernel: str) -> dict[str, str]:
    with DYNAMIC_SHARED.open() as file:
        for row in csv.DictReader(file):
            if fnmatch.fnmatchcase(kernel, row["kernel"]):
                return row
    raise SystemExit(f"{DYNAMIC_SHARED.name} does not say how {kernel} is launched: add a line")


@cache
def _cubins(path: Path, arch: str) -> list[dict[str, bytes]]:
    """The object files of an architecture: the bytes of their sections, by name."""
    with tempfile.TemporaryDirectory() as folder:
        for own in ARCHS_OF.get(arch, (arch,)):
            command = [find_tool("cuobjdump"), "-xelf", f".{own}.", path.resolve()]
            subprocess.run(command, cwd=folder, capture_output=True, check=True)
        return [_sections(cubin.read_bytes()) for cubin in sorted(Path(folder).iterdir())]


def _sections(cubin: bytes) -> dict[str, bytes]:
    """Those of an ELF file of 64 bits."""
    (headers,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    # Of each: where its name begins among the names, where it begins, its bytes.
    sections = [struct.unpack_from("<I20xQQ", cubin, headers + i * size) for i in range(count)]
    found = {}
    for name, start, length in sections:
        begin = sections[names][1] + name
        found[cubin[begin : cubin.index(0, begin)].decode()] = cubin[start : start + length]
    return found


def _of_kernels(sections: Mapping[str, bytes], prefix: str) -> Iterator[tuple[str, bytes]]:
    """The sections that each kernel has one of, by its symbol."""
    for name, section in sections.items():
        if name.startswith(prefix):
            yield name.removeprefix(prefix), section


def _most_threads(attributes: bytes) -> int | None:
    """What __launch_bounds__ says, in a kernel's attributes; None without."""
    at = 0
    while at < len(attributes):
        kind, attribute, length = struct.unpack_from("<BBH", attributes, at)
        at += 4
        if kind != HAS_BYTES:
            continue
        if attribute == MAX_THREADS:
            return math.prod(struct.unpack_from("<3I", attributes, at))
        at += length
    return None


def ptxas_version(path: Path) -> str:
    """The version of the assembler that made what is read of the object."""
    notes = [
        sections.get(".note.nv.tkinfo", b"") for a in KEPT_ARCHS for sections in _cubins(path, a)
    ]
    versions = {v.decode() for note in notes for v in re.findall(rb"V(\d[\d.]+)", note)}
    return " and ".join(sorted(versions)) or "unknown"


def _usage(path: Path) -> dict[tuple[str, str], list[int]]:
    """Registers, and bytes of stack, shared and local memory, by architecture and symbol."""
    usage = {}
    for arch, text in _dump("-res-usage", path):
        for symbol, *numbers in re.findall(
            r"Function (\S+):\s*REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", text
        ):
            usage[arch, symbol] = [int(number) for number in numbers]
    return usage


def kernels_of(path: Path) -> dict[str, set[str]]:
    """Names of the kernels that an object has code of, by architecture."""
    usage = _usage(path)
    names = _short(sorted({symbol for _, symbol in usage}))
    kernels: dict[str, set[str]] = {}
    for arch, symbol in usage:
        kernels.setdefault(arch, set()).add(names[symbol])
    return kernels


def _code(sections: Mapping[str, bytes]) -> Iterator[tuple[str, NDArray[np.uint64]]]:
    """Symbols and machine code, [instructions, 2 words]."""
    for symbol, section in _of_kernels(sections, ".text."):
        yield symbol, np.frombuffer(section, "<u8").reshape(-1, 2)


def _instructions(path: Path, arch: str) -> dict[str, Counter[str]]:
    """How often each instruction stands in each function, by its symbol.

    OPCODE_BITS of an instruction say which one it is. So the disassembler is asked for a few of
    each opcode, which takes no second; for all of them it would take a minute.
    """
    functions = {symbol: words for each in _cubins(path, arch) for symbol, words in _code(each)}
    names = _names_of_opcodes(np.concatenate(list(functions.values())), arch)
    counts: dict[str, Counter[str]] = {}
    for symbol, words in functions.items():
        counts[symbol] = Counter()
        opcodes, numbers = np.unique(words[:, 0] & OPCODE_BITS, return_counts=True)
        for opcode, number in zip(opcodes.tolist(), numbers.tolist(), strict=True):
            counts[symbol][names[opcode]] += number
    return counts


def _names_of_opcodes(words: NDArray[np.uint64], arch: str) -> dict[int, str]:
    """What the disassembler calls each opcode that occurs in `words`, [instructions, 2]."""
    opcodes = words[:, 0] & OPCODE_BITS
    order = np.argsort(opcodes, kind="stable")
    starts = np.flatnonzero(np.diff(opcodes[order])) + 1
    each = np.split(order, starts)
    asked = np.concatenate([found[:: math.ceil(len(found) / ASKED)] for found in each])
    with tempfile.NamedTemporaryFile() as file:
        file.write(words[asked].tobytes())
        file.flush()
        command = [find_tool("nvdisasm"), "--binary", arch.replace("sm_", "SM"), file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    line = r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)"
    names: dict[int, str] = {}
    for opcode, name in zip(opcodes[asked].tolist(), re.findall(line, text, re.M), strict=True):
        if names.setdefault(opcode, name) != name:
            raise SystemExit(f"opcode {opcode:#x} of {arch} is {names[opcode]} and {name}")
    return names


def read(path: Path) -> list[Kernel]:
    """The kernels of a compiled object, for each of KEPT_ARCHS that they do something on.

    The others are only checked for local memory.
    """
    usage = {key: found for key, found in _usage(path).items() if key[0] in KEPT_ARCHS}
    threads, counts = {}, {}
    archs = sorted({arch for arch, _ in usage})
    for arch in archs:
        for sections in _cubins(path, arch):
            for symbol, attributes in _of_kernels(sections, ".nv.info."):
                if bounds := _most_threads(attributes):
                    threads[arch, symbol] = bounds
        for symbol, found in _instructions(path, arch).items():
            counts[arch, symbol] = found
    names = _short(sorted({symbol for _, symbol in usage}))
    kernels = []
    for (arch, symbol), (registers, stack, shared, local) in sorted(usage.items()):
        name, found = names[symbol], counts[arch, symbol]
        instructions = sum(found.values()) - found["NOP"]
        if instructions <= EMPTY_INSTRUCTIONS:
            continue
        if (arch, symbol) not in threads:
            raise SystemExit(f"{name} has no __launch_bounds__: how many threads is unknown")
        # For sm_90 and newer the object counts what CUDA reserves, of kernels that use any.
        reserved = 0 if arch in ("sm_80", "sm_86", "sm_89") else RESERVED_SHARED
        static = max(shared - reserved, 0)
        dynamic = dynamic_shared(name)
        block = launched_threads(name, threads[arch, symbol])
        kernels.append(
            Kernel(
                kernel=name,
                arch=arch,
                threads=block,
                registers=registers,
                static_shared=static,
                dynamic_shared=dynamic,
                warps=resident_warps(arch, block, registers, static + dynamic),
                instructions=instructions,
                **{name: found[name] for name in COUNTED},
                local=stack + local + found["LDL"] + found["STL"],
            )
        )
    return sorted(kernels, key=lambda each: (each.kernel, int(re.sub(r"\D", "", each.arch))))


def read_committed() -> tuple[str, list[Kernel]]:
    """The ptxas of resources.csv, and its rows."""
    first, *lines = COMMITTED.read_text().splitlines()
    rows = [
        Kernel(**{k: v if k in ("kernel", "arch") else int(v) for k, v in row.items()}, local=0)
        for row in csv.DictReader(lines)
    ]
    return first.removeprefix("# ptxas ").split(":")[0], rows


def write(kernels: Sequence[Kernel], version: str) -> None:
    with COMMITTED.open("w", newline="") as file:
        file.write(f"# ptxas {version}: {REWRITE}\n")
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(asdict(each) for each in kernels if each.arch in KEPT_ARCHS)


def in_local_memory(path: Path, kernels: Sequence[Kernel]) -> list[str]:
    """What uses local memory: by its frame for every architecture of an object, and by the
    instructions of those kernels that were read from it."""
    usage = _usage(path)
    names = _short(sorted({symbol for _, symbol in usage}))
    found = {(k.kernel, k.arch): k.local for k in kernels}
    for (arch, symbol), (_, stack, _, local) in usage.items():
        found.setdefault((names[symbol], arch), stack + local)
    return [f"{name} for {arch} uses local memory ({n})" for (name, arch), n in found.items() if n]


def compare(kernels: Sequence[Kernel], committed: Sequence[Kernel]) -> tuple[list[str], list[str]]:
    """What is worse than it was, kernels without a row and rows without a kernel; what is better.

    Only architectures that the object has are compared: a build may be for fewer.
    """
    archs = {kernel.arch for kernel in kernels} & set(KEPT_ARCHS)
    new = {kernel.key: kernel for kernel in kernels if kernel.arch in archs}
    old = {kernel.key: kernel for kernel in committed if kernel.arch in archs}
    worse = [f"{name} for {arch} has no row" for name, arch in sorted(new.keys() - old.keys())]
    worse += [f"{name} for {arch} is gone" for name, arch in sorted(old.keys() - new.keys())]
    better = []
    for key in sorted(new.keys() & old.keys()):
        for figure in FIGURES:
            before, now = getattr(old[key], figure), getattr(new[key], figure)
            if before != now:
                told = f"{key[0]} for {key[1]}: {figure} {before} -> {now}"
                gained = now > before if figure == "warps" else now < before
                (better if gained else worse).append(told)
    return worse, better


def show(kernels: Sequence[Kernel], file: TextIO | None = None) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, caption="shared: static + dynamic bytes of a block")
    table.add_column("kernel", no_wrap=True)
    titles = ("arch", "threads", "regs", "shared", "warps", "instr.", *COUNTED, "local")
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    for k in kernels:
        arch = k.arch.removeprefix("sm_")
        shared = f"{k.static_shared}+{k.dynamic_shared}"
        warps = f"{k.warps}/{LIMITS[k.arch].warps}"
        counts = [str(getattr(k, name) or "") for name in COUNTED]
        cells = [k.kernel, arch, k.threads, k.registers, shared, warps, k.instructions, *counts]
        table.add_row(*map(str, cells), f"[red]{k.local}[/]" if k.local else "")
    # Wider than the terminal rather than cut: a figure that is not there tells nothing.
    needed = Console(width=1000).measure(table).maximum
    Console(width=max(needed, Console().width), file=file).print(table)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("object", nargs="?", type=Path, help="default: the one that is installed")
    parser.add_argument("--write", action="store_true", help=f"write {COMMITTED.name}")
    arguments = parser.parse_args()
    path = arguments.object
    if path is None:
        from flashsparse_plugin.ops import STATUS

        path = STATUS["_C_cuda"].path
        if path is None:
            raise SystemExit(f"_C_cuda.so is {STATUS['_C_cuda'].reason}")
    kernels, version = read(path), ptxas_version(path)
    show(kernels)
    problems = in_local_memory(path, kernels)
    if arguments.write:
        if missing := set(KEPT_ARCHS) - {kernel.arch for kernel in kernels}:
            raise SystemExit(f"this object is not for {', '.join(sorted(missing))}: build it so")
        write(kernels, version)
        print(f"{COMMITTED.name} written")
    made_by, committed = read_committed()
    if made_by == version:
        worse, better = compare(kernels, committed)
        problems += worse
        for line in better:
            print(f"better: {line} (to keep it so: {REWRITE})")
    else:
        print(f"made by ptxas {version}, {COMMITTED.name} by {made_by}: not compared")
    for line in problems:
        print(f"WORSE: {line}")
    if problems:
        print(f"If that is worth it: {REWRITE}, and say why in the commit.")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
