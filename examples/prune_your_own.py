# SPDX-License-Identifier: Apache-2.0
"""Prunes a model to a pattern with calibration text, packs it, and compares perplexities.

    python examples/prune_your_own.py MODEL OUT --text text.txt

`flashsparse prune` and `flashsparse convert` do the same, also for large models.
"""

import argparse
from functools import partial
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import flashsparse_plugin as fs
from flashsparse_plugin.evaluation import perplexity
from flashsparse_plugin.pruning import calibration_windows, prune


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("out")
    parser.add_argument("--text", type=Path, required=True, help="calibration and test text")
    parser.add_argument("--samples", type=int, default=32, help="calibration windows")
    parser.add_argument("--length", type=int, default=256, help="tokens a window")
    given = parser.parse_args(arguments)

    tokenizer = AutoTokenizer.from_pretrained(given.model)
    model = AutoModelForCausalLM.from_pretrained(given.model, dtype=torch.bfloat16).eval()

    # Calibrate on the first four fifths of the text, judge on the rest.
    text = given.text.read_text()
    cut = len(text) * 4 // 5
    windows = calibration_windows(tokenizer, text[:cut], given.samples, given.length)
    judge = partial(perplexity, text=text[cut:], context=given.length, max_tokens=8 * given.length)
    before = judge(model, tokenizer)

    # 2:4 keeps two of every four columns, the pattern of sparse tensor cores.
    report = prune(model, "wanda", pattern=(2, 4), calibration=windows)
    after = judge(model, tokenizer)
    print(f"{report.zeros:,} of {report.elements:,} weights are zero")
    print(f"perplexity {before:.1f} dense, {after:.1f} pruned")

    # What was pruned is saved dense, and packed while it is loaded.
    dense = Path(given.out, "dense")
    model.save_pretrained(dense)
    config = fs.FlashSparseConfig(format="nm_vector", options={"n": 2, "m": 4})
    packed = AutoModelForCausalLM.from_pretrained(dense, quantization_config=config)
    packed.save_pretrained(Path(given.out, "packed"))
    tokenizer.save_pretrained(Path(given.out, "packed"))


if __name__ == "__main__":
    main()
