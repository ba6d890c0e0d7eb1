# SPDX-License-Identifier: Apache-2.0
"""What do a pattern and fewer bits cost a real model? Perplexity before any retraining.

    make demo; python benchmarks/pruning_quality.py
    python benchmarks/pruning_quality.py --values
    python benchmarks/pruning_quality.py --model DIRECTORY --text FILE --method magnitude

Every linear layer but the output head is pruned, by Wanda on the beginning of the text unless told
otherwise, and the model predicts the end of the text. --packed lets it do so from packed layers,
too, which takes longer and gives the same. --values stores what is left in 8 and 4 bits, of the
dense model and of some patterns, and says how many bits a weight takes. Results are saved after
each rule.
"""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import _measure
import _results
import torch
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer

import flashsparse_plugin as fs
from flashsparse_plugin.evaluation import perplexity
from flashsparse_plugin.pruning import calibration_windows, prune
from flashsparse_plugin.pruning.layers import prunable_linears

SAMPLES, WINDOW = 32, 256  # of calibration
CONTEXT = 512
HELD_OUT = 0.1  # of the text, from its end
CACHE = Path(__file__).parents[1] / "build" / "cache"  # of `make demo`
PATTERNS = ((2, 4, 1), (4, 8, 1), (2, 4, 4), (16, 32, 32), (12, 32, 32), (8, 32, 1), (8, 32, 32))
SPARSITIES = (0.5, 0.625, 0.75)  # without a pattern, to compare with
VALUES: tuple[Mapping[str, Any], ...] = (
    {},
    {"values": "fp8_e4m3"},
    {"values": "int8"},
    {"values": "int4", "group": 128},
    {"values": "int4", "group": 32},
)
VALUED = ("dense", "2:4", "4:8", "16:32, L=32")  # rules whose models are stored in all of these

Row = dict[str, Any]


def rules() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """How to prune, by name; the dense model first."""
    yield "dense", {}
    for sparsity in SPARSITIES:
        yield "no pattern", {"sparsity": sparsity}
    for n, m, length in PATTERNS:
        name = f"{n}:{m}" + (f", L={length}" if length > 1 else "")
        yield name, {"pattern": (n, m), "vector_length": length}


def pack_(model: torch.nn.Module, rule: Mapping[str, Any]) -> None:
    """Puts layers packed to the rule's pattern in place of the model's own."""
    n, m = rule["pattern"]
    options = {"n": n, "m": m, "vector_length": rule["vector_length"]}
    for name, linear in prunable_linears(model, ("lm_head",)).items():
        model.set_submodule(name, fs.SparseLinear.from_linear(linear, "nm_vector", **options))


def round_(linears: Mapping[str, torch.nn.Linear], options: Mapping[str, Any]) -> float:
    """Gives layers the weights that storing them so makes of theirs; returns bits a weight."""
    nbytes = weights = 0
    for linear in linears.values():
        packed = fs.pack(linear.weight.detach().bfloat16(), "nm_vector", dict(options))
        linear.weight.data = packed.unpack().float()
        nbytes, weights = nbytes + packed.nbytes, weights + linear.weight.numel()
    return 8 * nbytes / weights


def measure(arguments: argparse.Namespace) -> Iterator[Row]:
    text = arguments.text.read_text()
    begin = round(len(text) * (1 - HELD_OUT))
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    calibration = calibration_windows(tokenizer, text[:begin], SAMPLES, WINDOW)
    given = {"calibration": calibration} if arguments.method == "wanda" else {}
    for name, rule in rules():
        if arguments.values and name not in VALUED:
            continue
        model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).eval()
        row: Row = {"rule": name, "zeros": 0.0, "vector_length": rule.get("vector_length", 1)}
        if rule:
            made = prune(model, arguments.method, progress=False, **given, **rule)
            row["zeros"] = round(made.sparsity, 3)

        def predicts(model: torch.nn.Module = model) -> float:
            found = perplexity(model, tokenizer, text[begin:], CONTEXT, arguments.tokens)
            return round(found, 3)

        if arguments.values:
            yield from valued(model, rule, row, predicts)
            continue
        row["perplexity"] = predicts()
        if "pattern" in rule and arguments.packed:
            pack_(model, rule)
            row["packed"] = predicts()
        yield row


def valued(
    model: torch.nn.Module, rule: Mapping[str, Any], row: Row, predicts: Callable[[], float]
) -> Iterator[Row]:
    """A pruned model with its values in each type."""
    linears = prunable_linears(model, ("lm_head",))
    whole = {name: linear.weight.detach() for name, linear in linears.items()}
    n, m = rule.get("pattern", (1, 1))
    for values in VALUES:
        for name, linear in linears.items():
            linear.weight.data = whole[name]
        options = {"n": n, "m": m, "vector_length": row["vector_length"], **values}
        bits = 16.0 if not rule and not values else round_(linears, options)
        title = " by ".join(map(str, values.values())) or "native"
        own = {**row, "values": title, "bits": round(bits, 2)}
        yield own | {"perplexity": predicts()}


def show_values(rows: list[Row]) -> None:
    table = Table(title="perplexity (bits a weight), before any retraining")
    kinds = list(dict.fromkeys(row["values"] for row in rows))
    for title in ("rule", *kinds):
        table.add_column(title, justify="right")
    for rule in dict.fromkeys(row["rule"] for row in rows):
        own = {row["values"]: row for row in rows if row["rule"] == rule}
        cells = (f"{r['perplexity']:.2f} ({r['bits']:.2f})" for r in own.values())
        table.add_row(rule, *cells)
    _measure.console(width=120).print(table)


def show(rows: list[Row], method: str) -> None:
    table = Table(title=f"perplexity after pruning by {method}")
    for title in ("rule", "zeros", "perplexity", "packed"):
        table.add_column(title, justify="right")
    for row in rows:
        packed = f"{row['packed']:.2f}" if "packed" in row else ""
        table.add_row(row["rule"], f"{row['zeros']:.1%}", f"{row['perplexity']:.2f}", packed)
    _measure.console(width=100).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=CACHE / "SmolLM2-135M-Instruct")
    parser.add_argument("--text", type=Path, default=CACHE / "tinyshakespeare.txt")
    parser.add_argument("--method", choices=("wanda", "magnitude"), default="wanda")
    parser.add_argument("--tokens", type=int, default=4096, help="of the held out text")
    parser.add_argument("--packed", action="store_true", help="also from packed layers")
    parser.add_argument("--values", action="store_true", help="in 8 and 4 bits, too")
    arguments = parser.parse_args()
    about = {"model": arguments.model.name, "text": arguments.text.name}
    about |= {"method": arguments.method, "samples": SAMPLES, "window": WINDOW, "context": CONTEXT}
    about |= {"tokens": arguments.tokens, "held_out": HELD_OUT, "torch": torch.__version__}
    about["date"] = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    about["cpu"] = _measure.cpu_name()
    kind = "_values" if arguments.values else ""
    target = _results.folder_of(arguments.model.name) / f"quality_{arguments.method}{kind}.csv"
    rows: list[Row] = []
    for row in measure(arguments):
        rows.append(row)
        _results.write(target, about, rows)
    if arguments.values:
        show_values(rows)
    else:
        show(rows, arguments.method)
    print(f"written to {target}")


if __name__ == "__main__":
    main()
