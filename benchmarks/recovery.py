# SPDX-License-Identifier: Apache-2.0
"""What does pruning cost a real model, and what does recovery give back? Perplexities.

    make demo; python benchmarks/recovery.py
    python demo/stories15m.py; python benchmarks/recovery.py --model build/cache/stories15M \\
        --text build/cache/burgess.txt --context 256 --rules 2:4 --methods wanda --lora

Every linear layer but the output head is pruned by windows of the beginning of the text, recovered
by the same windows, and the model predicts the end of the text. Each figure is saved as soon as it
is there; a run goes on with those that are missing, unless it is told to start --anew. --lora
recovers by LoRA, too, both the pruned model and the fitted one. --allocate compares how a budget
of zeros is shared among the layers, instead.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import _measure
import _results
import torch
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer

from flashsparse_plugin.evaluation import perplexity
from flashsparse_plugin.pruning import LeastSquares, LoRA, calibration_windows, prune, recover_

CACHE = Path(__file__).parents[1] / "build" / "cache"  # of `make demo`
HELD_OUT = 0.1  # of the text, from its end
# In the order in which they are measured: the first ones tell the most.
RULES: Mapping[str, Mapping[str, Any]] = {
    "2:4": {"pattern": (2, 4)},
    "50%": {"sparsity": 0.5},
    "2:4 25% dense": {"pattern": (2, 4), "dense": 0.25},
    "16:32 L=32": {"pattern": (16, 32), "vector_length": 32},
    "60%": {"sparsity": 0.6},
    "70%": {"sparsity": 0.7},
    "8:32 L=32": {"pattern": (8, 32), "vector_length": 32},
}
METHODS = ("wanda", "sparsegpt")
ALLOCATIONS = ("uniform", "owl", "sensitivity")

Row = dict[str, Any]


class Bench:
    """A model, its dense perplexity, and the text to prune and to judge it by."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.tokenizer = AutoTokenizer.from_pretrained(arguments.model)
        text = arguments.text.read_text()
        begin = round(len(text) * (1 - HELD_OUT))
        self.held_out = text[begin:]
        samples, window = arguments.samples, arguments.window
        self.windows = calibration_windows(self.tokenizer, text[:begin], samples, window)

    def load(self) -> torch.nn.Module:
        path = self.arguments.model
        return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()

    def judge(self, model: torch.nn.Module) -> float:
        tokens = self.arguments.tokens
        return round(
            perplexity(model, self.tokenizer, self.held_out, self.arguments.context, tokens), 3
        )

    def rows(self, done: set[tuple[str, str]]) -> Iterator[Row]:
        """The figures that are missing; recovery follows the pruning that it needs."""
        if ("dense", "") not in done:
            yield {
                "rule": "dense",
                "method": "",
                "zeros": 0.0,
                "perplexity": self.judge(self.load()),
            }
        for rule in self.arguments.rules:
            for method in self.arguments.methods:
                yield from self.pruned(rule, method, done)

    def pruned(self, rule: str, method: str, done: set[tuple[str, str]]) -> Iterator[Row]:
        fitted, lora = f"{method} + recover", f"{method} + lora"
        names = [method, fitted] + [lora, f"{fitted} + lora"] * self.arguments.lora
        wanted = [name for name in names if (rule, name) not in done]
        if not wanted:
            return
        model, start = self.load(), time.process_time()
        made = prune(model, method, calibration=self.windows, progress=False, **RULES[rule])
        row = {"rule": rule, "method": method, "zeros": round(made.sparsity, 3)}
        seconds = time.process_time() - start
        if method in wanted:
            yield row | {"perplexity": self.judge(model), "cpu_seconds": round(seconds)}
        if lora in wanted:
            yield row | self.recovered(copy.deepcopy(model), lora, LoRA())
        if {fitted, f"{fitted} + lora"} & {*wanted}:
            recovered = self.recovered(model, fitted, LeastSquares(steps=self.arguments.steps))
            if fitted in wanted:
                yield row | recovered
            if f"{fitted} + lora" in wanted:
                yield row | self.recovered(model, f"{fitted} + lora", LoRA())

    def recovered(self, model: torch.nn.Module, name: str, how: LeastSquares | LoRA) -> Row:
        """Recovers a model; what it has cost and brought."""
        start = time.process_time()
        fits = recover_(model, self.load(), self.windows, how)
        row: Row = {"method": name, "cpu_seconds": round(time.process_time() - start)}
        for when in ("before", "after"):
            row[f"error_{when}"] = round(sum(getattr(x, when) for x in fits) / len(fits), 4)
        return row | {"perplexity": self.judge(model)}

    def allocations(self, done: set[tuple[str, str]]) -> Iterator[Row]:
        for budget in (0.5, 0.6):
            for allocation in ALLOCATIONS:
                name = f"{budget:.0%}"
                if (name, allocation) in done:
                    continue
                model, start = self.load(), time.process_time()
                given = {"calibration": self.windows, "allocation": allocation, "progress": False}
                made = prune(model, "wanda", budget, **given)
                row = {"rule": name, "method": allocation, "zeros": round(made.sparsity, 3)}
                row["cpu_seconds"] = round(time.process_time() - start)
                yield row | {"perplexity": self.judge(model)}


def show(rows: list[Row]) -> None:
    methods = list(dict.fromkeys(row["method"] for row in rows if row["method"]))
    table = Table(title="perplexity of text that was held out")
    for title in ("zeros", *methods):
        table.add_column(title, justify="right")
    for rule in dict.fromkeys(row["rule"] for row in rows):
        found = {row["method"]: f"{row['perplexity']:.1f}" for row in rows if row["rule"] == rule}
        table.add_row(rule, *(found.get(method, found.get("", "")) for method in methods))
    _measure.console(width=100).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=CACHE / "SmolLM2-135M-Instruct")
    parser.add_argument("--text", type=Path, default=CACHE / "tinyshakespeare.txt")
    parser.add_argument("--rules", type=lambda s: s.split(","), default=list(RULES))
    parser.add_argument("--methods", type=lambda s: s.split(","), default=list(METHODS))
    parser.add_argument("--samples", type=int, default=32, help="windows of calibration")
    parser.add_argument("--window", type=int, default=256, help="tokens of each")
    parser.add_argument("--steps", type=int, default=10, help="of recovery, for each weight")
    parser.add_argument("--tokens", type=int, default=4096, help="of the held out text")
    parser.add_argument("--context", type=int, default=512, help="tokens of a window of it")
    parser.add_argument("--lora", action="store_true", help="recover by LoRA, too")
    parser.add_argument("--allocate", action="store_true", help="compare allocations, by wanda")
    parser.add_argument("--anew", action="store_true", help="measure everything again")
    arguments = parser.parse_args()
    about: Row = {"model": arguments.model.name, "text": arguments.text.name}
    about |= {
        key: getattr(arguments, key) for key in ("samples", "window", "steps", "tokens", "context")
    }
    about |= {"held_out": HELD_OUT, "torch": torch.__version__}
    if arguments.lora:
        about["lora"] = asdict(LoRA())
    kind = "allocation" if arguments.allocate else "recovery"
    target = _results.folder_of(arguments.model.name) / f"{kind}.csv"
    rows: list[Row] = []
    if target.exists() and not arguments.anew:
        found = _results.read(target)
        # A file without figures of LoRA says nothing of its settings.
        if any(found["about"].get(key, own) != own for key, own in about.items()):
            raise SystemExit(f"{target} was measured under other conditions: use --anew")
        rows, about = [{"method": "", **row} for row in found["rows"]], found["about"] | about
    # Perplexities are those of any CPU, up to rounding; seconds are not.
    where = {"cpu": _measure.cpu_name(), "date": str(datetime.datetime.now(datetime.UTC).date())}
    bench, done = Bench(arguments), {(row["rule"], row["method"]) for row in rows}
    for row in bench.allocations(done) if arguments.allocate else bench.rows(done):
        rows.append(row | where)
        _results.write(target, about, rows)
        print(row, flush=True)
    show(rows)
    print(f"written to {target}")


if __name__ == "__main__":
    main()
