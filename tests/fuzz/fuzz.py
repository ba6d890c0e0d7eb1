# SPDX-License-Identifier: Apache-2.0
"""Damages what we read from outside, for as long as there is time (`make fuzz`), and counts.

    python tests/fuzz/fuzz.py [--seconds S] [--seed N] [--target NAME [--round R]] [--objects DIR]

A round that fails is named, so that it can be run again alone. Where a sanitizer ended the process,
a file names the round that ran.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from random import Random

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

if "--objects" in sys.argv:  # before they are loaded
    import flashsparse_plugin

    flashsparse_plugin.__path__.insert(0, sys.argv[sys.argv.index("--objects") + 1])

from fuzz_targets import TARGETS, Target  # noqa: E402

from flashsparse_plugin.ops import STATUS  # noqa: E402

_MOST_SECONDS = 60  # of a round: more is a hang


@dataclass
class Counts:
    """How a target fared.

    Attributes:
        accepted: Rounds in which the damaged thing was read, and read right.
        refused: Rounds in which it was refused as it should be.
        failed: Descriptions of all other rounds.
        seconds: How long it took.
    """

    accepted: int = 0
    refused: int = 0
    failed: list[str] | None = None
    seconds: float = 0.0

    @property
    def rounds(self) -> int:
        return self.accepted + self.refused + len(self.failed or [])


def fuzz(
    name: str, seed: int, folder: Path, rounds: int | None = None, seconds: float = 0.0
) -> Counts:
    """Fuzzes one target for some rounds, or for some seconds."""
    target = TARGETS[name](folder)
    counts, start = Counts(failed=[]), time.monotonic()
    while counts.rounds < rounds if rounds is not None else counts.seconds < seconds:
        play(target, name, seed, counts.rounds, counts)
        counts.seconds = time.monotonic() - start
    return counts


def play(target: Target, name: str, seed: int, number: int, counts: Counts) -> None:
    """One round, all of whose random numbers follow from seed and number."""
    _LAST.write_text(f"--target {name!r} --seed {seed} --round {number}\n")  # if it ends here
    signal.alarm(_MOST_SECONDS)
    try:
        if target.round(Random(f"{name} {seed} {number}")):
            counts.accepted += 1
        else:
            counts.refused += 1
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        counts.failed.append(f"round {number}: {type(error).__name__} in {where}: {error!s:.300}")
    finally:
        signal.alarm(0)


def _hang(number: int, frame: object) -> None:
    raise TimeoutError(f"a round took more than {_MOST_SECONDS} s")


_LAST = Path(tempfile.gettempdir()) / f"flashsparse-fuzz-{os.getpid()}"
signal.signal(signal.SIGALRM, _hang)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60, help="for all targets together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", choices=TARGETS)
    parser.add_argument("--round", type=int, help="this one alone")
    parser.add_argument("--objects", help="folder of the compiled objects to test")
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    names = [given.target] if given.target else list(TARGETS)
    print(f"{STATUS['_C_cpu'].path}, seed {given.seed}; the round that runs is in {_LAST}")
    print(f"{'target':16} {'mutations':>9} {'accepted':>8} {'refused':>8} {'failed':>6} {'s':>5}")
    failed = 0
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            if given.round is not None:
                accepted = TARGETS[name](Path(folder)).round(
                    Random(f"{name} {given.seed} {given.round}")
                )
                print("accepted" if accepted else "refused")
                continue
            counts = fuzz(name, given.seed, Path(folder), seconds=given.seconds / len(names))
        print(
            f"{name:16} {counts.rounds:9,} {counts.accepted:8,} {counts.refused:8,} "
            f"{len(counts.failed):6} {counts.seconds:5.0f}",
            flush=True,
        )
        for line in counts.failed[:5]:
            print(f"  --target {name!r} --seed {given.seed}, {line}")
        failed += len(counts.failed)
    _LAST.unlink(missing_ok=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
