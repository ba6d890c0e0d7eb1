#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What is built and was never timed on a card: is it right there, and how fast?

    python benchmarks/gpu/untimed.py --minutes 9.5
    python benchmarks/gpu/untimed.py --only doctor,bench

One program after the other, each with its share of the minutes; each holds its results against
float64 before it times them, and those of this folder save a file. Ends with a line for each, and
with status 1 if one of them found something wrong. A program leaves this list when its results are
committed.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from _program import parser

HERE = Path(__file__).parent
OURS = ["-c", "from flashsparse_plugin.cli import main; main()"]
# The program, its options, and its share of the time; none: it takes as long as it takes.
PROGRAMS: dict[str, tuple[list[str], float | None]] = {
    "doctor": ([*OURS, "doctor"], None),
    # As a reader of README runs it: its minutes and its figures.
    "bench": ([*OURS, "bench"], None),
    # Norms and rotary embeddings of transformers in a kernel each.
    "generate": (["generate.py"], None),
    # Of exact 2:4, by units of sparse_24.
    "prompts": (["lossless.py", "--prompts"], 1),
    # By launches for the GPU's own memory.
    "experts": (["experts_layer.py"], 1),
}


def commands(minutes: float, names: list[str], options: list[str]) -> dict[str, list[str]]:
    """The command line of each program.

    Args:
        minutes: Of all of them.
        names: Of PROGRAMS; which to run.
        options: That each of ours is given, too.
    """
    whole = sum(PROGRAMS[name][1] or 0 for name in names)
    found = {}
    for name in names:
        arguments, share = PROGRAMS[name]
        if share is not None:
            arguments = [str(HERE / arguments[0]), *arguments[1:], *options]
            arguments += ["--minutes", f"{minutes * share / whole:.2f}"]
        found[name] = [sys.executable, *arguments]
    return found


def main() -> int:
    made = parser(__doc__ or "", 9.5, "bfloat16")
    made.add_argument("--only", type=lambda text: text.split(","), default=list(PROGRAMS))
    arguments = made.parse_args()
    if unknown := [name for name in arguments.only if name not in PROGRAMS]:
        made.error(f"there is no {unknown[0]!r}; there are {', '.join(PROGRAMS)}")
    options = ["--device", arguments.device, "--dtype", arguments.dtype]
    options += ["--out", str(arguments.out)] if arguments.out else []
    lines, status = [], 0
    for name, command in commands(arguments.minutes, arguments.only, options).items():
        print(f"\n== {name}: {' '.join(command[1:])}", flush=True)
        start = time.perf_counter()
        code = subprocess.run(command, cwd=HERE, check=False).returncode
        lines.append(
            f"{name:10} {'right' if code == 0 else f'status {code}':10} "
            f"{time.perf_counter() - start:6.0f} s"
        )
        status |= code != 0
    print("\n" + "\n".join(lines))
    return status


if __name__ == "__main__":
    sys.exit(main())
