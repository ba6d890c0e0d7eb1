# SPDX-License-Identifier: Apache-2.0
"""Asks a model that vLLM serves, through OpenAI's API, and prints the answer as it is generated.

    vllm serve path/to/packed --served-model-name demo      # or: make serve
    pip install openai
    python examples/serve_client.py "Tell me about the sea."

Nothing here is special to sparse weights: clients do not notice them.
"""

import argparse
import time

from openai import OpenAI


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("question")
    parser.add_argument("--server", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--max-tokens", type=int, default=200)
    given = parser.parse_args(arguments)

    client = OpenAI(base_url=given.server, api_key="none")  # vLLM asks for no key unless told to
    start, pieces = time.perf_counter(), 0
    for chunk in client.chat.completions.create(
        model=given.model,
        messages=[{"role": "user", "content": given.question}],
        max_tokens=given.max_tokens,
        stream=True,
    ):
        text = chunk.choices[0].delta.content if chunk.choices else None
        if text:
            pieces += 1
            print(text, end="", flush=True)
    print(f"\n{pieces / (time.perf_counter() - start):.1f} pieces of text a second")


if __name__ == "__main__":
    main()
