# SPDX-License-Identifier: Apache-2.0
"""Packs a model while it loads, generates text from its sparse weights, and saves it packed.

    python examples/generate.py MODEL OUT --prompt "Once upon a time"

MODEL is a dense model. Its smallest weights become zero while it loads, which costs quality: for a
model that was pruned with more care, or has its zeros already, pass --sparsity 0.
"""

import argparse

from transformers import AutoModelForCausalLM, AutoTokenizer

import flashsparse_plugin as fs


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("out")
    parser.add_argument("--prompt", default="Once upon a time")
    parser.add_argument("--sparsity", type=float, default=0.5)
    parser.add_argument("--new-tokens", type=int, default=64)
    given = parser.parse_args(arguments)

    # One option packs the linear layers as they are read; only one is dense at a time.
    pruning = {"pruning": "magnitude", "sparsity": given.sparsity} if given.sparsity else {}
    model = AutoModelForCausalLM.from_pretrained(
        given.model, quantization_config=fs.FlashSparseConfig(**pruning), device_map="auto"
    )
    tokenizer = AutoTokenizer.from_pretrained(given.model)

    # From here on it is a model like any other.
    prompt = tokenizer(given.prompt, return_tensors="pt").to(model.device)
    ids = model.generate(**prompt, max_new_tokens=given.new_tokens, do_sample=False)
    print(tokenizer.decode(ids[0], skip_special_tokens=True))

    # The copy loads without any option, in transformers and in vLLM.
    model.save_pretrained(given.out)
    tokenizer.save_pretrained(given.out)


if __name__ == "__main__":
    main()
