# SPDX-License-Identifier: Apache-2.0
"""Is a small model slower packed than dense in transformers, where Python launches each kernel?

    python benchmarks/gpu/generate.py                              SmolLM2-135M's shapes
    python benchmarks/gpu/generate.py --shape tiny --device cpu    that this program works

Random weights, one sequence, `generate` as it comes: neither CUDA graphs nor torch.compile. A step
of so small a model is what the host needs to launch it, so this is the worst case for packed
layers, which have little to save by their weights. Packed models have our norms and rotary
embeddings, as those that are loaded do, and one dense model has, too, to tell what is gained by
these alone. The models take turns; a ratio is the median over the turns, and above 1 packed is
faster. Before it is timed, each packed model is compared with the same zeros in a dense one.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from _device import Budget, _measure, _results, machine, require_device
from _models import SHAPES, random_model
from rich import box
from rich.table import Table
from torch import Tensor

from flashsparse_plugin.decode_kernels import use_decode_kernels
from flashsparse_plugin.evaluation import parse_method, sizes
from flashsparse_plugin.pruning import prune

DENSE, OWN_NORMS = "dense", "dense, decode kernels"
METHODS: tuple[tuple[str, str, dict[str, Any]], ...] = (  # zeros, how they are packed, how made
    ("80%", "tiled_csl", {"sparsity": 0.8}),
    ("50%", "tiled_bitmap", {"sparsity": 0.5}),
    ("80%", "tiled_bitmap", {"sparsity": 0.8}),
    ("2:4", "nm_vector:n=2:m=4", {"pattern": (2, 4)}),
)
FEWEST = 3  # turns
MOST = 0.03  # of the norm of the logits, that rounding to bfloat16 may move

Row = dict[str, Any]


@torch.no_grad()
def packed(dense: Any, method: str, how: Row, ids: Tensor) -> Any:
    """The model pruned and packed.

    Raises:
        SystemExit: If its logits are not those of the same zeros in a dense model.
    """
    model = copy.deepcopy(dense)
    prune(model, progress=False, method="magnitude", **how)
    expected = model(input_ids=ids).logits.double()
    parse_method(method).apply(model, sizes.linear_names(model))
    found = model(input_ids=ids).logits.double()
    differ = float((found - expected).norm() / expected.norm())
    if not differ <= MOST:
        raise SystemExit(f"{method}, {how}: logits differ by {differ:.1%} of their norm")
    return model


def seconds(model: Any, ids: Tensor, tokens: int) -> float:
    """Of writing some tokens after a prompt of one token, which is all but free."""
    start = time.perf_counter()
    written = model.generate(ids, max_new_tokens=tokens, do_sample=False)
    assert written.cpu().shape[1] == ids.shape[1] + tokens
    return time.perf_counter() - start


def measure(arguments: argparse.Namespace, device: torch.device) -> list[Row]:
    dense = random_model(SHAPES[arguments.shape], device)
    dense.generation_config.eos_token_id = None  # what is written is as long as was asked for
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(dense.config.vocab_size, (1, 64), generator=generator).to(device)
    models = {("", DENSE): dense, ("", OWN_NORMS): copy.deepcopy(dense)}
    use_decode_kernels(models["", OWN_NORMS])
    for zeros, method, how in METHODS:
        models[zeros, method] = packed(dense, method, how, ids)
        print(f"{method}, {zeros}: says what its zeros say in a dense model", flush=True)
    for model in models.values():  # warm up
        seconds(model, ids[:, :1], arguments.tokens)
    budget = Budget(arguments.seconds)
    samples: dict[tuple[str, str], list[float]] = {name: [] for name in models}
    for turn in range(arguments.turns):
        if turn >= FEWEST and budget.left < 0:
            break
        for name, model in models.items():
            samples[name].append(seconds(model, ids[:, :1], arguments.tokens))
            print(f"{arguments.tokens / samples[name][-1]:8.1f}", end="", flush=True)
        print(" tokens/s", flush=True)
    rows = []
    for (zeros, method), own in samples.items():
        ratio = 1 / _measure.median_ratio(own, samples["", DENSE])
        speed = arguments.tokens / statistics.median(own)
        title = parse_method(method).title if zeros else method
        rows.append({"method": title, "zeros": zeros})
        rows[-1] |= {"tokens_s": round(speed, 1), "ratio": round(ratio, 3), "turns": len(own)}
    return rows


def show(rows: Sequence[Row], about: Row) -> None:
    table = Table(
        title=f"generate, {about['model']}, one sequence, {about.get('gpu', about['cpu'])}",
        box=box.SIMPLE_HEAD,
    )
    for head in ("", "zeros", "tokens/s", "dense time / time"):
        table.add_column(head, justify="right" if head else "left", no_wrap=True)
    for row in rows:
        colour = "green" if row["ratio"] >= 1 else "red"
        ratio = "" if row["method"] == DENSE else f"[{colour}]{row['ratio']:.2f}[/]"
        table.add_row(row["method"], row["zeros"], f"{row['tokens_s']:.1f}", ratio)
    _measure.console(width=80).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, default="smollm2-135m")
    parser.add_argument("--tokens", type=int, default=32, help="to write in a turn")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--out", type=Path, help="a file; default: in benchmarks/results")
    parser.add_argument("--seconds", type=float, default=30, help="of turns, three at least")
    arguments = parser.parse_args()
    device = require_device(arguments.device)
    about = {"model": arguments.shape, "tokens": arguments.tokens}
    about |= machine(device)
    rows = measure(arguments, device)
    show(rows, about)
    folder = _results.folder_of(about.get("gpu", about["cpu"]))
    path = arguments.out or folder / f"generate-{arguments.shape}.csv"
    _results.write(path, about, rows)
    print(f"written to {path}")


if __name__ == "__main__":
    main()
