# SPDX-License-Identifier: Apache-2.0
"""Fits what a pruned model has kept to the dense model, and compares perplexities.

    python examples/recover.py PRUNED DENSE OUT --text text.txt

`flashsparse recover` does the same, and goes on after an interruption.
"""

import argparse
from functools import partial
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

from flashsparse_plugin.evaluation import perplexity
from flashsparse_plugin.pruning import calibration_windows, recover_


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pruned")
    parser.add_argument("dense")
    parser.add_argument("out")
    parser.add_argument("--text", type=Path, required=True, help="calibration and test text")
    parser.add_argument("--samples", type=int, default=32, help="calibration windows")
    parser.add_argument("--length", type=int, default=256, help="tokens a window")
    given = parser.parse_args(arguments)

    tokenizer = AutoTokenizer.from_pretrained(given.dense)
    pruned = AutoModelForCausalLM.from_pretrained(given.pruned).eval()
    dense = AutoModelForCausalLM.from_pretrained(given.dense).eval()

    # Calibrate on the first four fifths of the text, judge on the rest.
    text = given.text.read_text()
    cut = len(text) * 4 // 5
    windows = calibration_windows(tokenizer, text[:cut], given.samples, given.length)
    judge = partial(perplexity, text=text[cut:], context=given.length, max_tokens=8 * given.length)
    before = judge(pruned, tokenizer)

    # Zeros stay zero: the result packs to the formats that the pruned model packs to.
    fits = recover_(pruned, dense, windows)
    worst = max(fits, key=lambda fit: fit.after)
    print(f"{len(fits)} layers fitted; the worst, {worst.name}: {worst.before:.3f} of its output "
          f"was lost, {worst.after:.3f} is")  # fmt: skip
    print(f"perplexity {before:.1f} pruned, {judge(pruned, tokenizer):.1f} recovered, "
          f"{judge(dense, tokenizer):.1f} dense")  # fmt: skip
    pruned.save_pretrained(given.out)
    tokenizer.save_pretrained(given.out)


if __name__ == "__main__":
    main()
