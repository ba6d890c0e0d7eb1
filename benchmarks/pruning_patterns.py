# SPDX-License-Identifier: Apache-2.0
"""What do wider windows and longer vectors cost? Scores that N:M patterns keep of a real model.

    make demo; python benchmarks/pruning_patterns.py
    python benchmarks/pruning_patterns.py --model DIRECTORY --text FILE

Every linear layer of some decoder layers is scored, by magnitude and by Wanda on a text, and pruned
to patterns of the same sparsity. A figure is the share of the scores that a pattern keeps, over the
share that the best elements have which no pattern binds, as many, of a row for Wanda, of a weight
for magnitude.
"""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import _measure
import _results
import torch
from rich.table import Table
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from flashsparse_plugin.pruning import (
    calibration_windows,
    keep_mask,
    magnitude_scores,
    nm_keep_mask,
    wanda_scores,
)
from flashsparse_plugin.pruning.rule import share_kept
from flashsparse_plugin.pruning.statistics import InputNorms

SPARSITIES = (0.5, 0.75)
WINDOWS = (4, 8, 16, 32, 64)
LENGTHS = (1, 4, 16, 32, 64, 128)
SAMPLES, TOKENS = 32, 256
CACHE = Path(__file__).parents[1] / "build" / "cache"  # of `make demo`
SCOPES = {"magnitude": "layer", "wanda": "row"}


@torch.no_grad()
def scores_of(path: Path, text: Path, every: int) -> dict[str, list[Tensor]]:
    """Scores of the linear layers of each `every`-th decoder layer, by method.

    Wanda's are by the activations of the dense model.
    """
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    linears = {
        name: module
        for index, layer in enumerate(model.model.layers)
        for name, module in layer.named_modules(prefix=f"model.layers.{index}")
        if isinstance(module, torch.nn.Linear) and index % every == 0
    }
    norms = {name: InputNorms(name, linear) for name, linear in linears.items()}
    for name, linear in linears.items():
        linear.register_forward_pre_hook(lambda _, args, own=norms[name]: own.add(args[0]))
    tokenizer = AutoTokenizer.from_pretrained(path)
    for window in calibration_windows(tokenizer, text.read_text(), SAMPLES, TOKENS).split(8):
        model(window, use_cache=False)
    return {
        "magnitude": [magnitude_scores(linear.weight) for linear in linears.values()],
        "wanda": [wanda_scores(x.weight, norms[name].norms()) for name, x in linears.items()],
    }


def mean(shares: list[float], scores: list[Tensor]) -> float:
    return sum(a * b.numel() for a, b in zip(shares, scores, strict=True)) / sum(
        each.numel() for each in scores
    )


def measure(found: Mapping[str, list[Tensor]]) -> list[dict[str, Any]]:
    rows = []
    for method, scores in found.items():
        for sparsity in SPARSITIES:
            best = [keep_mask(each, sparsity, SCOPES[method]) for each in scores]
            free = mean(list(map(share_kept, scores, best)), scores)
            for m in WINDOWS:
                for length in LENGTHS:
                    n = round((1 - sparsity) * m)
                    keeps = [nm_keep_mask(each, n, m, length) for each in scores]
                    share = mean(list(map(share_kept, scores, keeps)), scores)
                    row = {"score": method, "zeros": sparsity, "m": m, "vector_length": length}
                    row |= {"share": round(share, 4), "free": round(free, 4)}
                    rows.append(row | {"ratio": round(share / free, 4)})
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    for method in SCOPES:
        for sparsity in SPARSITIES:
            table = Table(title=f"{method}, {sparsity:.0%} zeros: score kept, over no pattern's")
            for title in ("M", *(f"L={length}" for length in LENGTHS)):
                table.add_column(title, justify="right")
            for m in WINDOWS:
                own = [r for r in rows if (r["score"], r["zeros"], r["m"]) == (method, sparsity, m)]
                table.add_row(str(m), *(f"{row['ratio']:.3f}" for row in own))
            _measure.console(width=120).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=CACHE / "SmolLM2-135M-Instruct")
    parser.add_argument("--text", type=Path, default=CACHE / "tinyshakespeare.txt")
    parser.add_argument(
        "--every", type=int, default=15, help="each so many decoder layers are read"
    )
    arguments = parser.parse_args()
    path, text = arguments.model, arguments.text
    rows = measure(scores_of(path, text, arguments.every))
    show(rows)
    about = {"model": path.name, "text": text.name, "every": arguments.every}
    about |= {"samples": SAMPLES, "tokens": TOKENS, "torch": torch.__version__}
    about["date"] = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    about["cpu"] = _measure.cpu_name()
    target = _results.folder_of(path.name) / "patterns.csv"
    _results.write(target, about, rows)
    print(f"written to {target}")


if __name__ == "__main__":
    main()
