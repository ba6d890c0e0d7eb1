# SPDX-License-Identifier: Apache-2.0
"""Writes what the package knows of quality: perplexity / dense, of benchmarks/results.

    python benchmarks/known_quality.py

A row a model, rule and type of values: the best one-shot pruning, and the best after recovery.
Each file's figures are divided by its own dense one. A test holds it to what is committed.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from typing import Any

import _results

from flashsparse_plugin.known_quality import DENSE, TABLE

MODELS = {"SmolLM2-135M-Instruct": "smollm2-135m-instruct", "stories15M": "stories15m"}
VALUES = ("16 bits", "fp8", "int8", "int4")
UNFIT = ("torch dynamic int8", "GGUF")  # other rivals of as many bits, which lose more or less
COLUMNS = ("rule", "values", "model", "one_shot", "by", "recovered", "recovered_by")

Figure = tuple[str, str, str, float]  # rule, values, method, perplexity / dense


def figures(model: str) -> Iterator[Figure]:
    """What was measured of a model, by rules as the package has them."""
    folder = _results.FOLDER / MODELS[model]
    for name in ("quality", "recovery"):
        result = _results.read(folder / f"{name}.csv")
        rows = result["rows"]
        [dense] = {
            row["perplexity"]
            for row in rows
            if row["rule"] == DENSE and row.get("kind", DENSE) == DENSE
        }
        for row in rows:
            trained, rounded = (f", {x}" in row["rule"] for x in ("LoRA", "rounded"))
            rule = row["rule"].removesuffix(", rounded").removesuffix(", LoRA")
            rule = rule.replace(" zeros", "")
            rule = rule.replace("32 L=", "32, L=")
            method = row.get("method", "")
            if name == "quality":
                if method.startswith(UNFIT) or row["values"] not in VALUES or row["kind"] == DENSE:
                    continue
                if rule == DENSE and row["kind"] == "ours":  # what rivals do without zeros
                    continue
                how = "" if row["kind"] == "rival" else result["about"]["method"]
                how += " + lora" * trained + " + round" * rounded
                yield rule, row["values"], how, row["perplexity"] / dense
            elif rule != DENSE:
                yield rule, "16 bits", method, row["perplexity"] / dense


def table() -> list[dict[str, Any]]:
    """The rows of the file."""
    made: dict[tuple[str, str, str], dict[str, Any]] = {}
    for model in MODELS:
        for rule, values, method, ratio in figures(model):
            row = made.setdefault((rule, values, model), dict.fromkeys(COLUMNS, ""))
            row |= {"rule": rule, "values": values, "model": model}
            recovered = "lora" in method or "recover" in method
            figure, by = ("recovered", "recovered_by") if recovered else ("one_shot", "by")
            if row[figure] == "" or ratio < float(row[figure]):
                row |= {figure: f"{ratio:.3f}", by: method}
    return [made[key] for key in sorted(made)]


def main() -> None:
    with TABLE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(table())
    print(f"written to {TABLE}")


if __name__ == "__main__":
    main()
