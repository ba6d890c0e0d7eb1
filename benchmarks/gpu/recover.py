# SPDX-License-Identifier: Apache-2.0
"""What does it take to recover a model of 8B parameters on one GPU? Seconds and memory.

    python benchmarks/gpu/recover.py --shape llama-3-8b
    python benchmarks/gpu/recover.py --only command --command-layers 32

Random weights, half of them zeros, which cost what real ones cost and gain nothing. First both
models are in memory: LoRA with windows of several lengths, as many steps as there is time for, and
some decoder layers by least squares. Then the command itself recovers checkpoints, unless told
otherwise of fewer layers: it loads, trains some steps, and writes. Alone it has a file of its own.
"""

from __future__ import annotations

import argparse
import copy
import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from _device import Budget, _measure, _results, machine, require_device
from _models import SHAPES, make_checkpoint, make_config
from rich.table import Table
from torch import Tensor
from transformers import AutoModelForCausalLM

from flashsparse_plugin.checkpoint import ModelDirectory
from flashsparse_plugin.checkpoint.prune.recovered import write_recovered
from flashsparse_plugin.checkpoint.read.linears import StoredModel
from flashsparse_plugin.loading import load_model
from flashsparse_plugin.pruning import LoRA, prune
from flashsparse_plugin.pruning.lora import Training, _Linear
from flashsparse_plugin.pruning.recovery import pruned_layers, recover_layers

SAMPLES, LENGTH, BATCH = 128, 512, 2  # what the command takes unless told otherwise
OTHER_WINDOWS = ((1, 512), (8, 512), (2, 2048))  # windows a step, and their length
FEW = 4  # steps of these, the first of which is left out
PARTS = ("lora", "least-squares", "command")

Row = dict[str, Any]


class Clock:
    """Seconds of work on a device, and the most memory that it took."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def _settle(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def begin(self) -> None:
        """Forgets the peak of memory, and starts."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        self.lap()

    def lap(self) -> float:
        """Seconds since the last call."""
        self._settle()
        before, self._last = getattr(self, "_last", 0.0), time.perf_counter()
        return self._last - before

    def memory(self) -> Row:
        """Bytes that tensors hold, and the most that they held since `begin`."""
        if self.device.type != "cuda":
            return {}
        held, peak = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
        return {"held_bytes": held, "peak_bytes": peak}


def check(device: torch.device) -> None:
    """Ends the program unless a layer's product and gradients are those of float64."""
    generator = torch.Generator(device).manual_seed(0)
    sizes = ((2, 96, 640), (512, 640), (512, 16), (16, 640), (2, 96, 512))
    x, weight, up, down, out = (
        torch.randn(size, generator=generator, device=device) for size in sizes
    )
    weight[torch.rand(weight.shape, generator=generator, device=device) < 0.5] = 0

    def results(forward: Callable[..., Any], out: Tensor, *given: Tensor) -> list[Tensor]:
        leaves = [each.clone().requires_grad_() for each in given]
        y = forward(*leaves)
        (y * out).sum().backward()
        return [y.detach(), *(leaf.grad for leaf in leaves)]

    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
        low_x, low, low_out = (each.to(dtype) for each in (x, weight, out))
        exact = low.double()
        found = results(
            lambda x, up, down, w=low: _Linear.apply(x, w, up, down, w.dtype),
            low_out,
            low_x,
            up,
            down,
        )
        wanted = results(
            lambda x, up, down, w=exact: x @ (w + (up @ down) * (w != 0)).T,
            *(each.double() for each in (low_out, low_x, up, down)),
        )
        for name, own, right in zip(("y", "x", "up", "down"), found, wanted, strict=True):
            error = float((own.double() - right).abs().max() / right.abs().max())
            print(f"check: {dtype}, {name}: {error:.1e} of the largest value", flush=True)
            if not error < tolerance:
                raise SystemExit(f"{name} is wrong in {dtype}")


def models(shape: Row, device: torch.device) -> tuple[Any, Any]:
    """A pruned model and the dense one, of random weights."""
    with tempfile.TemporaryDirectory() as folder:
        config = make_config(shape, Path(folder))
    torch.manual_seed(0)
    with device:
        dense = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    pruned = copy.deepcopy(dense)
    prune(pruned, "magnitude", pattern=(2, 4), progress=False)
    return pruned, dense


def windows_of(vocabulary: int, samples: int, length: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(3, vocabulary, (samples, length), generator=generator)


def by_lora(pruned: Any, dense: Any, arguments: argparse.Namespace, clock: Clock) -> Iterator[Row]:
    """The default as long as there is time, then other windows."""
    budget = Budget(arguments.seconds)
    names = [name for group in pruned_layers(pruned, dense) for name in group]
    zeros = {name: pruned.get_submodule(name).weight == 0 for name in names[:7]}
    ours = (arguments.batch, arguments.length, arguments.steps)
    for batch, length, steps in (ours, *((*each, FEW) for each in arguments.others)):
        ids = windows_of(pruned.config.vocab_size, max(8, batch), length)
        clock.begin()
        training = Training(pruned, dense, names, ids, LoRA(steps=steps, batch=batch))
        training.before = training.divergence()
        judging, taken = clock.lap(), []
        for _ in training.run():
            taken.append(clock.lap())
            if budget.left < 0:
                break
        row: Row = {"part": "lora", "windows": batch, "length": length, "steps": len(taken)}
        row |= {"seconds": statistics.median(taken[1:] or taken), "all_seconds": sum(taken)}
        row |= {"judging_seconds": judging} | clock.memory()
        if (batch, length, steps) == ours:  # also the end of it, which changes the weights
            clock.lap()
            before, after = training.merge_()
            row |= {"merging_seconds": clock.lap(), "before": before, "after": after}
            for name, gone in zeros.items():
                if not bool((pruned.get_submodule(name).weight[gone] == 0).all()):
                    raise SystemExit(f"{name} has lost zeros")
        yield row
        del training


def by_least_squares(pruned: Any, dense: Any, arguments: argparse.Namespace, clock: Clock) -> Row:
    """Some decoder layers of the default."""
    ids = windows_of(pruned.config.vocab_size, arguments.samples, arguments.length)
    clock.begin()
    taken = []
    for fits in islice(recover_layers(pruned, dense, ids), arguments.fitted):
        taken.append(clock.lap())
        if not all(fit.after <= fit.before for fit in fits):
            raise SystemExit("a layer became worse")
    row: Row = {"part": "least squares", "windows": arguments.samples, "length": arguments.length}
    row |= {"steps": len(taken), "all_seconds": sum(taken)}
    return row | {"seconds": statistics.median(taken[1:] or taken)} | clock.memory()


def by_command(shape: Row, arguments: argparse.Namespace, clock: Clock) -> Row:
    """All that `flashsparse recover --method lora` does, on checkpoints of some layers."""
    with tempfile.TemporaryDirectory(dir=arguments.disk) as name:
        folder = Path(name)
        for own, zeros in (("dense", 0.0), ("pruned", 0.5)):
            (folder / own).mkdir()
            make_checkpoint(shape, folder / own, clock.device.type, zeros)
        size = sum(path.stat().st_size for path in (folder / "pruned").glob("*.safetensors"))
        steps = arguments.command_steps
        clock.begin()
        pruned, dense = (
            load_model(folder / own, dense=True, device=clock.device.type)
            for own in ("pruned", "dense")
        )
        report = write_recovered(
            StoredModel(ModelDirectory(folder / "pruned")),
            pruned,
            ModelDirectory(folder / "dense"),
            dense,
            windows_of(shape["vocab_size"], 16, arguments.length),
            folder / "out",
            LoRA(steps=steps, batch=BATCH),
        )
        row: Row = {"part": "command", "windows": BATCH, "length": arguments.length}
        row |= {"layers": shape["num_hidden_layers"], "steps": steps, "all_seconds": clock.lap()}
        row |= {"before": report.before, "after": report.after}
        return row | {"model_bytes": size} | clock.memory()


def show(about: Row, rows: Sequence[Row]) -> None:
    table = Table(title=f"{about['model']}, {about['layers']} layers, {about.get('gpu', 'CPU')}")
    for head in ("", "tokens\na step", "steps or\nlayers", "s each", "s in all", "GB at\nmost"):
        table.add_column(head, justify="right" if head else "left", no_wrap=True)
    for row in rows:
        own = f", {row['layers']} of the layers" if "layers" in row else ""
        table.add_row(
            row["part"] + own,
            f"{row['windows'] * row['length']:,}",
            f"{row['steps']}",
            f"{row['seconds']:.3f}" if "seconds" in row else "",
            f"{row['all_seconds']:.1f}",
            f"{row['peak_bytes'] / 1e9:.1f}" if "peak_bytes" in row else "",
        )
    _measure.console(width=100).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, default="llama-3-8b")
    parser.add_argument("--layers", type=int, help="of them; all unless told otherwise")
    parser.add_argument("--samples", type=int, default=SAMPLES, help="windows of least squares")
    parser.add_argument("--length", type=int, default=LENGTH, help="tokens a window")
    parser.add_argument("--batch", type=int, default=BATCH, help="windows a step of LoRA")
    parser.add_argument("--steps", type=int, default=100, help="of LoRA")
    parser.add_argument("--others", type=pairs, default=OTHER_WINDOWS, help="as 1x512,2x2048")
    parser.add_argument("--fitted", type=int, default=3, help="decoder layers by least squares")
    parser.add_argument("--command-layers", type=int, default=8, help="of the checkpoints")
    parser.add_argument("--command-steps", type=int, default=20)
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS)
    parser.add_argument("--disk", type=Path, help="where these are put")
    parser.add_argument("--seconds", type=float, default=60, help="for steps of LoRA")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"))
    arguments = parser.parse_args()
    device = require_device(arguments.device)
    clock = Clock(device)
    check(device)
    shape = dict(SHAPES[arguments.shape])
    shape["num_hidden_layers"] = arguments.layers or shape["num_hidden_layers"]
    alone = "-command" if set(arguments.only) == {"command"} else ""
    about: Row = {"model": arguments.shape, "layers": shape["num_hidden_layers"]}
    about |= {"pattern": "50%" if alone else "2:4", "rank": LoRA().rank, "dtype": "bfloat16"}
    about |= machine(device)
    target = arguments.out / f"recover-{arguments.shape}{alone}.csv"
    rows: list[Row] = []

    def keep(row: Row) -> None:
        rows.append({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()})
        _results.write(target, about, rows)
        print(rows[-1], flush=True)

    if not alone:
        clock.begin()
        pruned, dense = models(shape, device)
        print(f"two models made in {clock.lap():.1f} s", flush=True)
        if "lora" in arguments.only:
            for row in by_lora(pruned, dense, arguments, clock):
                keep(row)
        if "least-squares" in arguments.only:
            keep(by_least_squares(pruned, dense, arguments, clock))
        del pruned, dense
    if "command" in arguments.only:
        keep(by_command(shape | {"num_hidden_layers": arguments.command_layers}, arguments, clock))
    show(about, rows)
    print(f"written to {target}")


def pairs(text: str) -> list[tuple[int, int]]:
    """Windows and their length from "1x512,2x2048"."""
    return [(int(a), int(b)) for a, b in (each.split("x") for each in text.split(","))]


if __name__ == "__main__":
    main()
