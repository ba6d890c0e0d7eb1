# SPDX-License-Identifier: Apache-2.0
"""What do zeros and fewer bits bring one user of transformers on a GPU? Quality, speed and bytes.

    python demo/stories15m.py
    python benchmarks/gpu/eval.py --model build/cache/stories15M --text build/cache/burgess.txt
    python benchmarks/gpu/eval.py --shape llama-3-8b     random weights: no quality, but the speed

Every linear layer but the output head is pruned (by Wanda on the beginning of the text, random
weights by magnitude), then packed or quantised as `flashsparse eval --with` does. A model of real
weights predicts the end of the text. Speed is that of one sequence: a prompt read, and tokens
written after it, each step a CUDA graph. Random weights are quantised by torchao with torch.compile
of the linear layers, as it is meant to be used, and as plain torch.
"""

from __future__ import annotations

import argparse
import copy
import gc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from _device import Budget, _measure, _results, machine, require_device
from _models import SHAPES, random_model
from quality import HELD_OUT, Rule, kind_of, pattern, title_of, values_of
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer

from flashsparse_plugin.evaluation import Method, parse_method, perplexity, sizes
from flashsparse_plugin.evaluation.measure import what_runs
from flashsparse_plugin.evaluation.speed import rates
from flashsparse_plugin.pruning import calibration_windows, prune
from flashsparse_plugin.text import token_stream

CODES = (":values=fp8_e4m3", ":values=int8", ":values=int4:group={group}")
RULES = (
    Rule("dense", {}, ("", "torchao_fp8", "torchao_int8", "torchao_int4:group={group}")),
    Rule("50% zeros", {"sparsity": 0.5}, ("tiled_bitmap",)),
    Rule("70% zeros", {"sparsity": 0.7}, ("tiled_bitmap",)),
    pattern(2, 4, values=CODES),
    pattern(8, 32, 32, values=CODES[1:2]),
)
COMPILED = ("torchao_fp8", "torchao_int8")  # int4 has a kernel of torch's own
SECONDS = 12.0  # that a line may take

Row = dict[str, Any]


class Subject:
    """A model, and what it predicts.

    Args:
        model: In bfloat16; random weights lie on the device already.
        group: Columns that share a scale of int4.
        prune: Arguments of `prune` for every rule.
        tokenizer, text: What it predicts; None for random weights.
    """

    def __init__(
        self, model: Any, group: int, prune: Row, tokenizer: Any = None, text: str | None = None
    ):
        self.model, self.group, self.prune = model, group, prune
        self.tokenizer, self.text = tokenizer, text

    @classmethod
    def real(cls, arguments: argparse.Namespace, device: torch.device) -> Subject:
        text = arguments.text.read_text()
        begin = round(len(text) * (1 - HELD_OUT))
        tokenizer = AutoTokenizer.from_pretrained(arguments.model)
        model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.bfloat16)
        windows = calibration_windows(tokenizer, text[:begin], 32, arguments.context)
        how = {"method": "wanda", "calibration": windows}
        return cls(model.eval(), 32, how, tokenizer, text[begin:])

    @classmethod
    def random(cls, arguments: argparse.Namespace, device: torch.device) -> Subject:
        shape = dict(SHAPES[arguments.shape])
        shape["num_hidden_layers"] = arguments.layers or shape["num_hidden_layers"]
        return cls(random_model(shape, device), 128, {"method": "magnitude"})


def lines(
    subject: Subject, arguments: argparse.Namespace, device: torch.device, budget: Budget
) -> Iterator[Row]:
    """A line for each rule and method, as long as there is time."""
    for rule in RULES:
        if rule.title not in (arguments.rules or [rule.title]) or budget.left < SECONDS:
            continue
        pruned = copy.deepcopy(subject.model)
        if rule.prune:  # where the model lies: on a CPU the zeros are those of quality.py
            prune(pruned, progress=False, **subject.prune, **rule.prune)
        pruned = pruned.to(device)
        for name in (each.format(group=subject.group) for each in rule.methods):
            method = parse_method(name) if name else None
            for compiles in (False, True):
                unfit = compiles and (name not in COMPILED or subject.text or device.type == "cpu")
                if unfit or budget.left < SECONDS:
                    continue
                row = {"rule": rule.title, "method": title_of(method), "values": values_of(name)}
                row["compiled"] = int(compiles)
                row["kind"] = "dense" if method is None else kind_of(method)
                try:
                    yield row | measured(subject, pruned, method, compiles, arguments)
                except (AssertionError, ImportError, RuntimeError, ValueError) as error:
                    print(f"{row['rule']}, {row['method']} is left out: {error}", flush=True)
                gc.collect()
                torch.cuda.empty_cache()


def measured(
    subject: Subject,
    pruned: Any,
    method: Method | None,
    compiles: bool,
    arguments: argparse.Namespace,
) -> Row:
    """Bytes, quality and speed of what a method makes of a model."""
    names = sizes.linear_names(pruned)
    count = sizes.count(pruned, names)
    zeros = sizes.zeros(pruned, names) / count
    model = copy.deepcopy(pruned)
    if method is not None:
        method.require(model.device.type)
        method.apply(model, names)
    held = sizes.sizes_of(model, names, count)
    if compiles:
        torch._dynamo.reset()
        for name in names:
            model.get_submodule(name).compile(dynamic=False)
    row = {
        "zeros": round(zeros, 4),
        "bits": round(held.bits, 3),
        "disk_bytes": held.disk,
        "memory_bytes": held.memory,
    }
    if subject.text is None:
        generator = torch.Generator().manual_seed(1)
        ids = torch.randint(model.config.vocab_size, (1, arguments.prompt), generator=generator)
        prompt = ids.shape[1]
    else:
        effort = (arguments.context, arguments.tokens)
        row["perplexity"] = round(perplexity(model, subject.tokenizer, subject.text, *effort), 3)
        ids = token_stream(subject.tokenizer, subject.text)[None, : arguments.context]
        prompt = ids.shape[1] - arguments.write  # small models cannot hold more
    found = rates(model, ids.to(model.device), prompt, arguments.write, arguments.rounds)
    return row | {
        "prefill_tokens_s": round(found.prefill, 1),
        "decode_tokens_s": round(found.decode, 2),
        "graphed": int(found.graphed),
        "ran": what_runs(model),
    }


def show(about: Row, rows: Sequence[Row]) -> None:
    table = Table(title=f"{about['model']}, one sequence, {about.get('gpu', about['cpu'])}")
    for head in ("", "bits a\nweight", "GB", "perplexity", "prefill\ntokens/s", "decode\ntokens/s"):
        table.add_column(head, justify="right" if head else "left", no_wrap=True)
    for row in rows:
        table.add_row(
            f"{row['rule']}, {row['method']}" + (", compiled" if row["compiled"] else ""),
            f"{row['bits']:.2f}",
            f"{row['memory_bytes'] / 1e9:.3f}",
            f"{row['perplexity']:.5g}" if "perplexity" in row else "",
            f"{row['prefill_tokens_s']:,.0f}",
            f"{row['decode_tokens_s']:,.1f}" + ("" if row["graphed"] else " *"),
        )
    if not all(row["graphed"] for row in rows):
        table.caption = "* without a CUDA graph"
    _measure.console(width=100).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="a directory of transformers")
    parser.add_argument("--text", type=Path, help="that it predicts")
    parser.add_argument("--shape", choices=SHAPES, help="random weights instead")
    parser.add_argument("--layers", type=int, help="of them; all unless told otherwise")
    parser.add_argument("--tokens", type=int, default=4096, help="of the held out text")
    parser.add_argument("--context", type=int, default=256, help="of a window of it")
    parser.add_argument("--prompt", type=int, default=2048, help="tokens, for random weights")
    parser.add_argument("--write", type=int, default=64, help="tokens")
    parser.add_argument("--rounds", type=int, default=5, help="of speed")
    parser.add_argument("--rules", type=lambda s: s.split(";"), help="only these; ; between")
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"))
    arguments = parser.parse_args()
    if (arguments.model is None) == (arguments.shape is None) or (
        (arguments.model is None) != (arguments.text is None)
    ):
        parser.error("give a --model with its --text, or a --shape")
    torch._dynamo.config.recompile_limit = 64  # a shape each
    budget, device = Budget(arguments.seconds), require_device(arguments.device)
    make = Subject.random if arguments.model is None else Subject.real
    subject = make(arguments, device)
    name = arguments.shape or arguments.model.name
    told = ("tokens", "context") if arguments.model else ("prompt",)
    about = {"model": name} | {key: getattr(arguments, key) for key in (*told, "write")}
    if arguments.text:
        about |= {"text": arguments.text.name, "held_out": HELD_OUT}
    about |= {"method": subject.prune["method"], "group": subject.group}
    about |= {"layers": subject.model.config.num_hidden_layers} | machine(device)
    target = arguments.out / f"eval-{name.lower()}.csv"
    rows: list[Row] = []
    for row in lines(subject, arguments, device, budget):
        rows.append(row)
        _results.write(target, about, rows)
        print(f"{row['rule']}, {row['method']}: {row['decode_tokens_s']} tokens/s", flush=True)
    show(about, rows)
    print(f"written to {target}")


if __name__ == "__main__":
    main()
