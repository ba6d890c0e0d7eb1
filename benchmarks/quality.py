# SPDX-License-Identifier: Apache-2.0
"""What do zeros and fewer bits cost a real model? Perplexity and bytes.

    make demo; python benchmarks/quality.py
    python demo/stories15m.py; python benchmarks/quality.py --model build/cache/stories15M \\
        --text build/cache/burgess.txt --context 256 --group 32
    python benchmarks/quality.py --model DIRECTORY --text FILE --method magnitude
    python benchmarks/quality.py --plot    draws what is in the result
    python benchmarks/quality.py --rules "dense;2:4" --tasks arc_easy    scores, into tasks.csv

Every linear layer but the output head is pruned, by Wanda on the beginning of the text unless told
otherwise, then packed as `flashsparse eval --with` does, and the model predicts the end of the
text. What people could take instead is beside it: fp8, int8 and int4 of the dense model, the last
two by torch and torchao (the extra `eval`). Results are saved after each line, and a run goes on
with those that are missing, unless it is told to start --anew. Nothing is retrained but by the
rules that end in "LoRA", which recover what was pruned as `flashsparse recover --method lora` does.
The rules "fit" have so many bits a weight, by the recipe that `flashsparse fit` makes. Those and
the ones that end in "rounded" are rounded to 4 bits as `flashsparse round` does. Speed is not
measured here.
"""

from __future__ import annotations

import argparse
import datetime
import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import _measure
import _results
import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from flashsparse_plugin.evaluation import (
    Effort,
    Method,
    apply_method,
    chart,
    measure,
    parse_method,
)
from flashsparse_plugin.evaluation.methods import Packed
from flashsparse_plugin.fitting import CHOICES, Measured, Recipe, choose_by_bits, measure_losses
from flashsparse_plugin.formats.values.quantization import Quantization
from flashsparse_plugin.modules import shape_of
from flashsparse_plugin.names import DENSE
from flashsparse_plugin.pruning import (
    LoRA,
    calibration_windows,
    prunable_linears,
    prune,
    recover_,
    round_,
    rounding_of,
)
from flashsparse_plugin.pruning.calibration import calibration_batches

HELD_OUT = 0.1  # of the text, from its end
CACHE = Path(__file__).parents[1] / "build" / "cache"  # of `make demo`
CODES = (":values=fp8_e4m3", ":values=int8", ":values=int4:group={group}")
BOTH_SIDES = tuple(f":values={each}:activations={each}" for each in ("fp8_e4m3", "int8"))
MOST_POINTS = 20  # of a picture

Row = dict[str, Any]


@dataclass(frozen=True)
class Rule:
    """How to prune, and what to make of the result.

    Attributes:
        title: Of the zeros.
        prune: Arguments of `prune`; none for the dense model.
        methods: As `flashsparse eval --with` takes them; "" is the model as it is.
        recovery: How what is kept is trained; None for not at all.
        bits: A weight, of a recipe that says how layers are pruned and packed.
        rounds: Whether weights are rounded by inputs, for the one method that there is.
    """

    title: str
    prune: Mapping[str, Any] = field(default_factory=dict)
    methods: tuple[str, ...] = ()
    recovery: LoRA | None = None
    bits: float | None = None
    rounds: bool = False

    def recovered(self) -> Rule:
        """The same, and trained."""
        return replace(self, title=f"{self.title}, LoRA", recovery=LoRA())

    def rounded(self) -> Rule:
        """The same, of int4 alone, and rounded."""
        methods = tuple(method for method in self.methods if "values=int4" in method)
        return replace(self, title=f"{self.title}, rounded", methods=methods, rounds=True)


def pattern(n: int, m: int, length: int = 1, values: tuple[str, ...] = ()) -> Rule:
    title = f"{n}:{m}" + (f", L={length}" if length > 1 else "")
    packed = f"nm_vector:n={n}:m={m}:vector_length={length}"
    methods = tuple(packed + value for value in ("", *values))
    return Rule(title, {"pattern": (n, m), "vector_length": length}, methods)


def hybrid(dense: float) -> Rule:
    """2:4 but for a share of dense blocks."""
    methods = tuple(f"hybrid_24{value}" for value in ("", *CODES))
    return Rule(f"2:4, {100 * dense:g}% dense", {"pattern": (2, 4), "dense": dense}, methods)


def anywhere(sparsity: float) -> Rule:
    """Zeros without a pattern."""
    methods = ("tiled_bitmap", "tiled_bitmap:values=int8")
    return Rule(f"{100 * sparsity:g}% zeros", {"sparsity": sparsity}, methods)


def fit(bits: float) -> Rule:
    """Zeros and values by layer."""
    return Rule(f"fit, {bits:g} bits", bits=bits, rounds=True)


@dataclass(frozen=True)
class ByRecipe:
    """Packs each layer as a recipe says."""

    recipe: Recipe | None = None  # which is made when it is wanted
    dtype = None
    is_timed = True
    title = "recipe"

    def require(self, device: str) -> None:
        """Formats run everywhere."""

    def apply(self, model: nn.Module, names: Iterable[str]) -> None:
        assert self.recipe is not None
        for name in names:
            own = self.recipe.formats[name]
            if own["format"] != DENSE:
                Packed(own["format"], own["options"]).apply(model, [name])


RIVALS = (
    "fp8",
    "torch_int8",
    "torchao_int8",
    "torchao_int4:group={group}",
    "gguf:type=q8_0",
    "gguf:type=q4_0",
)
_DENSE = Rule(
    "dense", {}, ("", *RIVALS, "nm_vector:n=1:m=1:vector_length=128:values=int4:group={group}")
)
RULES = (
    _DENSE,
    replace(_DENSE, methods=_DENSE.methods[-1:]).rounded(),
    pattern(2, 4, values=CODES + BOTH_SIDES),
    hybrid(0.125),
    hybrid(0.25),
    hybrid(0.5),
    pattern(8, 32, 32, values=CODES),
    anywhere(0.5),
    pattern(16, 32, 32, values=CODES),
    pattern(4, 8, values=CODES),
    pattern(8, 32),
    pattern(2, 4, 4),
    pattern(12, 32, 32),
    anywhere(0.625),
    anywhere(0.75),
    pattern(2, 4, values=CODES).recovered(),
    hybrid(0.125).recovered(),
    pattern(2, 4, values=CODES).recovered().rounded(),
    hybrid(0.25).recovered(),
    hybrid(0.25).recovered().rounded(),
    hybrid(0.5).recovered(),
    Rule("50% zeros", {"sparsity": 0.5}, ("tiled_bitmap",)).recovered(),
    fit(4),
    fit(4.5),
    fit(5),
    fit(6),
    fit(7),
    fit(7.5),
    fit(4).recovered(),
)


def lines(arguments: argparse.Namespace, done: set[tuple[str, str]]) -> Iterator[Row]:
    """The lines that are missing: those whose rule and method are not among what is done."""
    text = arguments.text.read_text()
    begin = round(len(text) * (1 - HELD_OUT))
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    windows = calibration_windows(tokenizer, text[:begin], arguments.samples, arguments.window)
    given = {"calibration": windows} if arguments.method == "wanda" else {}
    effort = Effort(arguments.context, arguments.tokens, arguments.tasks, decode_tokens=0)

    def load(dtype: torch.dtype) -> Any:
        return AutoModelForCausalLM.from_pretrained(arguments.model, dtype=dtype).eval()

    @functools.cache
    def losses() -> tuple[dict[str, list[Measured]], dict[str, tuple[int, int]]]:
        model = load(torch.bfloat16).float()
        linears = prunable_linears(model)
        batches = calibration_batches(model, windows, 8)
        measured = measure_losses(
            model, linears, batches, CHOICES, arguments.method, True, torch.bfloat16
        )
        return measured, {name: shape_of(linears[name]) for name in measured}

    for rule in RULES:
        every = methods_of(rule, arguments.group)
        if arguments.tasks:  # which take long, and codes hardly change them
            every = every[:1]
        wanted = [(m, text) for m, text in every if (rule.title, title_of(m)) not in done]
        if not wanted or rule.title not in (arguments.rules or [rule.title]):
            continue
        kept: dict[str, torch.Tensor] = {}
        how = rule.prune
        if rule.bits is not None:
            measured, shapes = losses()
            chosen = choose_by_bits(measured, shapes, rule.bits)
            recipe = Recipe.of(arguments.model.name, arguments.method, chosen, shapes)
            wanted = [(ByRecipe(recipe), text) for _, text in wanted]
            how = {"rules": recipe.rules} if recipe.rules else {}
        if how or rule.rounds:
            model, dense = (load(torch.bfloat16).float() for _ in range(2))
            if how:
                prune(model, arguments.method, progress=False, **given, **how)
                if rule.recovery is not None:
                    recover_(model, dense, windows, rule.recovery, stored=torch.bfloat16)
            if rule.rounds:
                linears = prunable_linears(model)
                roundings = roundings_of(wanted[0][0], linears)
                round_(model, linears, roundings, windows, 8, False, torch.bfloat16)
            kept = model.bfloat16().state_dict()
        for method, text_of_method in wanted:
            model = load(method.dtype if method and method.dtype else torch.bfloat16)
            if kept:
                model.load_state_dict(kept)
            held, zeros = apply_method(model, method)
            found = measure(model, tokenizer, text[begin:], held, zeros, effort)
            yield {
                "rule": rule.title,
                "method": title_of(method),
                "kind": "dense" if method is None else kind_of(method),
                "values": values_of(text_of_method),
                "zeros": round(zeros, 4),
                "bits": round(held.bits, 3),
                "disk_bytes": held.disk,
                "memory_bytes": held.memory,
                "perplexity": round(found.perplexity or 0.0, 3),
                "ran": found.ran,
                **{name: round(score, 4) for name, score in found.tasks.items()},
            }


def methods_of(rule: Rule, group: int) -> list[tuple[Method | None, str]]:
    """What to make of a rule's model, and how `flashsparse eval --with` calls that."""
    if rule.bits is not None:
        return [(ByRecipe(), "recipe")]
    texts = [each.format(group=group) for each in rule.methods]
    return [(parse_method(each) if each else None, each) for each in texts]


def roundings_of(method: Method | None, names: Iterable[str]) -> dict[str, Quantization]:
    """The codes of 4 bits that a method stores layers as."""
    if isinstance(method, ByRecipe):
        assert method.recipe is not None
        return method.recipe.roundings
    assert isinstance(method, Packed)
    found = rounding_of(method.format, method.options)
    assert found is not None
    return dict.fromkeys(names, found)


def title_of(method: Method | None) -> str:
    return "bfloat16" if method is None else method.title


def kind_of(method: Method) -> str:
    return "ours" if isinstance(method, Packed | ByRecipe) else "rival"


def values_of(method: str) -> str:
    """What a value is stored as: "16 bits", or the type of its codes; and activations, if coded."""
    for name in ("fp8", "int8", "int4"):
        if name in method:
            return f"{name} x {name}" if "activations" in method else name
    return "by layer" if method == "recipe" else "16 bits"


def draw(target: Path) -> None:
    """The lines of a result that are near the best perplexity, as many as labels have room for."""
    found = _results.read(target)
    about = found["about"]
    # fp8 has the bytes of int8, with activations in 8 bits or not, and nearly its perplexity, which
    # 16 bits have, too, for more bytes; and rounded int4 is better than int4 of nearest codes.
    ours = [row for row in found["rows"] if row["kind"] == "ours"]
    coded = {row["rule"] for row in ours if row["values"] == "int8"}
    alike = [row for row in ours if "fp8" in row["values"] or " x " in row["values"]]
    alike += [row for row in ours if row["values"] == "16 bits" and row["rule"] in coded]
    rounded = {row["rule"].removesuffix(", rounded") for row in ours if "rounded" in row["rule"]}
    alike += [row for row in ours if row["values"] == "int4" and row["rule"] in rounded]
    rows = [row for row in found["rows"] if row not in alike]
    best = min(row["perplexity"] for row in rows)
    for times in (5, 2, 1.5, 1.25, 1.1):
        near = [row for row in rows if row["perplexity"] <= times * best]
        if len(near) <= MOST_POINTS:
            break
    points = [
        chart.Point(label_of(row), row["bits"], row["perplexity"], row["kind"]) for row in near
    ]
    trained = " but with LoRA" if any("LoRA" in row["rule"] for row in near) else ""
    left = f"; {len(rows) - len(near)} lines beyond {times:g} times the best are left out"
    chart.draw(
        points,
        f"{about['model']}, {about['text']}, {about['method']}, nothing retrained{trained}"
        + (left if len(near) < len(rows) else ""),
        target.with_suffix(".png"),
    )
    print(f"drawn to {target.with_suffix('.png')}")


def label_of(row: Row) -> str:
    if row["kind"] != "ours":
        return str(row["method"])
    values = "" if row["values"] in ("16 bits", "by layer") else f", {row['values']}"
    return f"{row['rule']}{values}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=CACHE / "SmolLM2-135M-Instruct")
    parser.add_argument("--text", type=Path, default=CACHE / "tinyshakespeare.txt")
    parser.add_argument("--method", choices=("wanda", "magnitude"), default="wanda")
    parser.add_argument("--tokens", type=int, default=4096, help="of the held out text")
    parser.add_argument("--context", type=int, default=512, help="of a window of it")
    parser.add_argument("--samples", type=int, default=32, help="windows of calibration")
    parser.add_argument("--window", type=int, default=256, help="tokens of each")
    parser.add_argument("--group", type=int, default=64, help="columns that share a scale of int4")
    parser.add_argument("--rules", type=lambda s: s.split(";"), help="only these; ; between")
    parser.add_argument("--anew", action="store_true", help="measure everything again")
    parser.add_argument("--plot", action="store_true", help="draw the result, measure nothing")
    parser.add_argument(
        "--tasks", nargs="+", default=[], help="of lm-eval, names or files, into tasks.csv"
    )
    arguments = parser.parse_args()
    kind = "tasks" if arguments.tasks else "quality"
    target = _results.folder_of(arguments.model.name) / f"{kind}.csv"
    if arguments.plot:
        draw(target)
        return
    names = ("method", "tokens", "context", "samples", "window", "group")
    about = {"model": arguments.model.name, "text": arguments.text.name, "held_out": HELD_OUT}
    about |= {name: getattr(arguments, name) for name in names} | {"torch": torch.__version__}
    if arguments.tasks:
        about["tasks"] = sorted(Path(task).stem for task in arguments.tasks)
    rows: list[Row] = []
    if target.exists() and not arguments.anew:
        found = _results.read(target)
        if found["about"] != about:
            raise SystemExit(f"{target} was measured under other conditions: use --anew")
        rows = found["rows"]
    made = [
        (rule.title, title_of(m)) for rule in RULES for m, _ in methods_of(rule, arguments.group)
    ]
    rows = [row for row in rows if (row["rule"], row["method"]) in made]
    where = {"cpu": _measure.cpu_name(), "date": str(datetime.datetime.now(datetime.UTC).date())}
    for row in lines(arguments, {(row["rule"], row["method"]) for row in rows}):
        rows.append(row | where)
        rows.sort(key=lambda each: made.index((each["rule"], each["method"])))
        _results.write(target, about, rows)
        print(f"{row['rule']:>12} {row['method']:<44} {row['bits']:6.2f} {row['perplexity']:10.3f}",
              flush=True)  # fmt: skip
    print(f"written to {target}")


if __name__ == "__main__":
    main()
