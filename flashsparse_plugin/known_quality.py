# SPDX-License-Identifier: Apache-2.0
"""What zeros and fewer bits cost in quality, as far as it is known: beside what they gain in speed.

known_quality.csv has our own measurements of small models, perplexities over the dense model's;
benchmarks/known_quality.py makes it of benchmarks/results.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

RUINOUS = 2.0
"""A perplexity so many times the dense one's is of no use without training."""

DENSE = "dense"
TABLE = Path(__file__).with_suffix(".csv")

# Of large models, by others: (rule, type of values) and what they say, with its address.
PUBLISHED = {
    (DENSE, "fp8"): (
        "Llama 3.1: effectively lossless",
        "https://arxiv.org/abs/2411.02355",
    ),
    (DENSE, "int4"): (
        "Llama 3.1: competitive with 8 bits",
        "https://arxiv.org/abs/2411.02355",
    ),
    ("2:4", "16 bits"): (
        "Sparse-Llama-3.1-8B-2of4, trained with 13B tokens: 98.4% of dense on OpenLLM v1",
        "https://huggingface.co/RedHatAI/Sparse-Llama-3.1-8B-2of4",
    ),
}


@dataclass(frozen=True)
class Quality:
    """Perplexity / dense perplexity, a figure for each model that was measured.

    Attributes:
        rule: The zeros: DENSE, a share such as "50%", or a pattern such as "2:4".
        values: The type of kept values: "16 bits", "fp8", "int8" or "int4".
        one_shot: After the best pruning without training.
        recovered: After the best of `flashsparse recover`.
        models: Their names.
    """

    rule: str
    values: str
    one_shot: tuple[float, ...]
    recovered: tuple[float, ...] = ()
    models: tuple[str, ...] = ()

    @property
    def published(self) -> tuple[str, str] | None:
        """What others say of a large model, and where."""
        return PUBLISHED.get((self.rule, self.values))

    @property
    def short(self) -> str:
        """ "3.1→2.0": the worst one-shot figure, and the worst after recovery, "?" if not known.

        Without zeros there is nothing to recover: "1.3"; "1" of the same weights.
        """
        if self == SAME:
            return "1"
        first = ratio(max(self.one_shot))
        if self.rule == DENSE:
            return first
        all_of_them = len(self.recovered) == len(self.one_shot)
        return f"{first}→{ratio(max(self.recovered)) if all_of_them else '?'}"


SAME = Quality(DENSE, "16 bits", (1.0,))
"""The dense model's own weights, which lossless has, too."""


def ratio(number: float) -> str:
    return f"{number:.1f}" if number < 9.95 else f"{number:,.0f}"


def span(numbers: Sequence[float]) -> str:
    """ "1.6 to 1.7", or one figure where they are alike."""
    low, high = ratio(min(numbers)), ratio(max(numbers))
    return low if low == high else f"{low} to {high}"


@cache
def known() -> dict[tuple[str, str], Quality]:
    """All that was measured, by rule and type of values."""
    found: dict[tuple[str, str], list[dict[str, str]]] = {}
    with TABLE.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            found.setdefault((row["rule"], row["values"]), []).append(row)
    return {
        key: Quality(
            *key,
            tuple(float(row["one_shot"]) for row in rows if row["one_shot"]),
            tuple(float(row["recovered"]) for row in rows if row["recovered"]),
            tuple(row["model"] for row in rows),
        )
        for key, rows in found.items()
    }


def quality(rule: str, values: str = "16 bits") -> Quality | None:
    """What is known of a rule, by what is at least as hard on a model; None: nothing.

    A share of zeros counts as the next larger one that was measured. Beside zeros, values of 8 bits
    cost a few percent at most, so that 16 bits, with more methods, stand for them; those of 4 do
    not.

    Args:
        rule: As `Quality.rule` has it; any share of zeros.
        values: The type of the kept values.
    """
    if (rule, values) == (SAME.rule, SAME.values):
        return SAME
    if re.fullmatch(r"[\d.]+%", rule):
        shares = sorted(float(key[0][:-1]) for key in known() if key[0].endswith("%"))
        share = next((each for each in shares if each >= float(rule[:-1]) - 0.01), None)
        rule = f"{share:g}%" if share is not None else ""
    if rule != DENSE and values in ("fp8", "int8"):
        values = "16 bits"
    return known().get((rule, values))


def needs_training(rule: str, values: str = "16 bits") -> bool:
    """Whether weights of a rule are of no use without training, or nobody measured them."""
    found = quality(rule, values) or quality(rule)
    return found is None or not found.one_shot or max(found.one_shot) > RUINOUS
