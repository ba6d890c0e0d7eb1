# SPDX-License-Identifier: Apache-2.0
"""Compiles the drivers in tests/kernels that tell how the host would cut a kernel's work."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

from emulation import KERNELS

Ask = Callable[[Iterable[Iterable[object]]], list[str]]


def plan_driver(folder: Path, name: str, source: str) -> Ask:
    """Compiles tests/kernels/<name>_plan_driver.cpp, which fails at undefined behaviour.

    Args:
        folder: Where the program is written.
        name: Of the driver.
        source: The plan, below kernels/cuda.

    Returns:
        A function of products, each a line of words for the driver, that returns its answers.
    """
    program = folder / "plan"
    sources = [
        Path(__file__).parent / "kernels" / f"{name}_plan_driver.cpp",
        KERNELS / "cuda" / source,
    ]
    command = ["g++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{KERNELS}"]
    command += ["-fsanitize=undefined", "-fno-sanitize-recover=all"]
    subprocess.run([*command, *map(str, sources), "-o", str(program)], check=True)

    def ask(products: Iterable[Iterable[object]]) -> list[str]:
        asked = "".join(" ".join(map(str, each)) + "\n" for each in products)
        ran = subprocess.run([program], input=asked, text=True, check=True, capture_output=True)
        return ran.stdout.splitlines()

    return ask
