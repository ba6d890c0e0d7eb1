# SPDX-License-Identifier: Apache-2.0
"""What do zeros and fewer bits cost an embedding model? Retrieval by all-MiniLM-L6-v2.

    python demo/minilm.py; make demo; python benchmarks/embeddings.py

Passages of 128 words of a text are cut in half; for each first half the second halves of all are
ranked by the cosine of their embeddings. The score is the mean over passages of one over the rank
of the right one (MRR); beside it is the mean cosine of embeddings and the dense model's. Weights
are pruned in one shot by `sparsify_`, calibrated on the part of the text that holds no passage, and
nothing is retrained.
torchao, of the extra `eval`, makes what people could take instead.
"""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import _measure
import _results
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModel, AutoTokenizer

import flashsparse_plugin as fs
from flashsparse_plugin.evaluation import apply_method, parse_method

CACHE = Path(__file__).parents[1] / "build" / "cache"
WORDS = 64  # of half a passage
BATCH = 32
# By title: the method that chooses zeros, its arguments, and what packs the result.
RULES: tuple[tuple[str, str | None, dict[str, Any], Sequence[str]], ...] = (
    ("dense", None, {}, ("", "fp8", "torchao_int8", "torchao_int4:group=32")),
    *(
        (f"{title}, {method}", method, {"pattern": pattern, "sparsity": zeros}, packings)
        for title, zeros, pattern, packings in (
            ("50% zeros", 0.5, None, ("tiled_bitmap", "tiled_bitmap:values=int8")),
            ("4:8", None, (4, 8), ("nm_vector:n=4:m=8", "nm_vector:n=4:m=8:values=int8")),
            (
                "2:4",
                None,
                (2, 4),
                tuple(
                    f"nm_vector:n=2:m=4{values}"
                    for values in ("", ":values=int8", ":values=int4:group=32")
                ),
            ),
        )
        for method in ("wanda", "sparsegpt")
    ),
)


def passages(text: str, count: int) -> tuple[list[str], list[str], list[str]]:
    """The first and the second halves of passages from the end of a text, and what is before."""
    words = text.split()
    begin = len(words) - count * 2 * WORDS
    parts = [" ".join(words[start : start + WORDS]) for start in range(begin, len(words), WORDS)]
    before = [" ".join(words[start : start + WORDS]) for start in range(0, begin, WORDS)]
    return parts[::2], parts[1::2], before


@torch.no_grad()
def embed(model: nn.Module, tokenizer: Any, texts: Sequence[str]) -> Tensor:
    """Means of the last hidden states, of norm 1: float32 [texts, features]."""
    found = []
    for start in range(0, len(texts), BATCH):
        batch = tokenizer([*texts[start : start + BATCH]], padding=True, return_tensors="pt")
        hidden = model(**batch).last_hidden_state.float()
        mask = batch["attention_mask"].unsqueeze(-1)
        found.append(F.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1))
    return torch.cat(found)


def mean_reciprocal_rank(queries: Tensor, wanted: Tensor) -> float:
    """Of the second half that belongs to a first one, among all."""
    likeness = queries @ wanted.T
    ranks = (likeness > likeness.diagonal().unsqueeze(1)).sum(1) + 1
    return float((1 / ranks).mean())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=CACHE / "all-MiniLM-L6-v2")
    parser.add_argument("--text", type=Path, default=CACHE / "tinyshakespeare.txt")
    parser.add_argument("--passages", type=int, default=400)
    parser.add_argument("--samples", type=int, default=256, help="halves of passages to calibrate")
    arguments = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    queries, wanted, before = passages(arguments.text.read_text(), arguments.passages)
    step = len(before) // arguments.samples
    chosen = before[::step][: arguments.samples]
    batches = [
        dict(tokenizer(chosen[start : start + BATCH], padding=True, return_tensors="pt"))
        for start in range(0, len(chosen), BATCH)
    ]
    about = {"model": arguments.model.name, "text": arguments.text.name, "words": WORDS}
    about |= {"passages": arguments.passages, "samples": arguments.samples}
    about |= {"torch": torch.__version__, "cpu": _measure.cpu_name()}
    about |= {"date": str(datetime.datetime.now(datetime.UTC).date())}
    dense: Tensor | None = None
    target, rows = _results.folder_of(arguments.model.name) / "embeddings.csv", []
    for title, how, rule, packings in RULES:
        pruned: dict[str, Tensor] = {}
        if how is not None:
            model = AutoModel.from_pretrained(arguments.model, dtype=torch.float32).eval()
            fs.sparsify_(model, how, calibration=batches, format=None, **rule)
            pruned = model.bfloat16().state_dict()
        for packing in packings:
            method = parse_method(packing) if packing else None
            model = AutoModel.from_pretrained(arguments.model, dtype=torch.bfloat16).eval()
            if pruned:
                model.load_state_dict(pruned)
            held, zeros = apply_method(model, method)
            firsts, seconds = (embed(model, tokenizer, texts) for texts in (queries, wanted))
            dense = firsts if dense is None else dense
            rows.append(
                {
                    "rule": title,
                    "method": method.title if method else "bfloat16",
                    "values": next((x for x in ("int8", "int4", "fp8") if x in packing), "16 bits"),
                    "kind": "ours" if how else "dense" if method is None else "rival",
                    "zeros": round(zeros, 4),
                    "bits": round(held.bits, 3),
                    "mrr": round(mean_reciprocal_rank(firsts, seconds), 4),
                    "cosine": round(float((firsts * dense).sum(1).mean()), 4),
                }
            )
            _results.write(target, about, rows)
            print(
                f"{title:<22} {rows[-1]['method']:<40} {held.bits:6.2f} {rows[-1]['mrr']:.4f} "
                f"{rows[-1]['cosine']:.4f}",
                flush=True,
            )
    print(f"written to {target}")


if __name__ == "__main__":
    main()
