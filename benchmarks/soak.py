# SPDX-License-Identifier: Apache-2.0
"""Does a server of packed weights hold out? Many streams at once, every token compared.

    python benchmarks/soak.py [--seconds 600] [--streams 64] [--packed SCHEME | --model PACKED]
                              [-- VLLM OPTIONS]

Starts `vllm serve` on a packed model, by default a tiny one of random weights, and asks it for
greedy continuations from 64 clients at once until the time is over, half of them streamed; a
quarter of those hang up after a few tokens. Each answer, up to where its client hung up, has to be
what transformers gives in float32. The memory of the server's processes is read once a second: it
has to be flat from the second quarter of the time to the last. The exit code is 1 after a wrong
token, a request that failed, or memory that grew.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from _server import NAME, PATIENCE, serving

GROWTH = 0.02  # of memory, that is noise
SHOWN = 5  # of what went wrong
CANCELLED = 4  # events of a stream whose client hangs up, of 8 tokens at least
PACKED: dict[str, dict[str, Any]] = {
    "tiled_bitmap": {"format": "tiled_bitmap"},
    "tiled_bitmap-int8": {"format": "tiled_bitmap", "options": {"values": "int8"}},
    "2:4": {"format": "nm_vector", "options": {"n": 2, "m": 4}},
    "2:4-int8": {"format": "nm_vector", "options": {"n": 2, "m": 4, "values": "int8"}},
}


@dataclass(frozen=True)
class Request:
    """A prompt and its greedy continuation, as ids of tokens."""

    prompt: tuple[int, ...]
    expected: tuple[int, ...]


@dataclass
class Outcome:
    """What came of a soak.

    Attributes:
        requests, tokens: How many were answered right.
        cancelled: How many of these requests hung up early.
        wrong: What the others got, one sentence each.
        memory: Bytes of the server's processes, a sample a second.
        seconds: How long it took.
    """

    requests: int = 0
    tokens: int = 0
    cancelled: int = 0
    wrong: list[str] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def growth(self) -> float:
        """By which share memory has grown from the second quarter of the time to the last."""
        quarter = len(self.memory) // 4
        if quarter == 0:
            return 0.0
        early, late = self.memory[quarter : 2 * quarter], self.memory[-quarter:]
        return median(late) / max(median(early), 1) - 1

    @property
    def holds(self) -> bool:
        return self.requests > 0 and not self.wrong and self.growth <= GROWTH

    def lines(self) -> list[str]:
        """The outcome for people."""
        flat = f"{self.growth:+.1%} from the second quarter of the time to the last"
        start, end = (self.memory[0], self.memory[-1]) if self.memory else (0, 0)
        return [
            f"answers    {self.requests:,} right, {len(self.wrong):,} wrong",
            f"hung up    {self.cancelled:,} of the right ones, by the client",
            f"tokens     {self.tokens:,}, {self.tokens / max(self.seconds, 1e-9):,.0f} a second",
            f"memory     {start / 1e6:,.0f} MB at first, {end / 1e6:,.0f} MB at last: {flat}",
            *(f"wrong      {each}" for each in self.wrong[:SHOWN]),
            "It holds." if self.holds else "It does not hold.",
        ]


# ---- the load -----------------------------------------------------------------------------------


def soak(
    url: str, requests: Sequence[Request], streams: int, seconds: float, group: int
) -> Outcome:
    """Asks a server from many threads until the time is over; each ends what it has begun.

    Args:
        url: Of an OpenAI-compatible server.
        requests: What to ask, in turn.
        streams: How many at once.
        seconds: How long.
        group: The process group of the server, whose memory is watched.
    """
    outcome, lock, turn = Outcome(), threading.Lock(), itertools.count()
    start = time.monotonic()

    def client() -> None:
        while time.monotonic() < start + seconds:
            with lock:
                number = next(turn)
            request = requests[number % len(requests)]
            most = CANCELLED if number % 8 == 1 else None
            try:
                tokens, whole = complete(url, request, streamed=number % 2 == 1, most=most)
            except Exception as error:  # whatever it is, it is no answer
                told = f"request {number}: {type(error).__name__}: {error}"
            else:
                told = difference(number, tokens, request, cut=not whole)
            with lock:
                if told is not None:
                    outcome.wrong.append(told)
                else:
                    outcome.requests += 1
                    outcome.tokens += len(tokens)
                    outcome.cancelled += not whole

    threads = [threading.Thread(target=client) for _ in range(streams)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        outcome.memory.append(memory_of(group))
        time.sleep(min(1.0, seconds / 20))
    outcome.seconds = time.monotonic() - start
    return outcome


def complete(
    url: str, request: Request, streamed: bool, most: int | None = None
) -> tuple[list[int], bool]:
    """The greedy tokens that a server gives after a prompt, and whether these are all it gives.

    Of a stream the first `most` events are read.
    """
    body = {"model": NAME, "prompt": request.prompt, "max_tokens": len(request.expected)}
    body |= {"temperature": 0, "ignore_eos": True, "return_token_ids": True, "stream": streamed}
    asked = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(asked, timeout=PATIENCE) as answer:
        if not streamed:
            return json.load(answer)["choices"][0]["token_ids"], True
        lines = (line[6:].strip() for line in answer if line.startswith(b"data: "))
        events = list(itertools.islice(lines, most))
    whole = bool(events) and events[-1] == b"[DONE]"
    if most is None and not whole:
        raise ValueError("the stream was cut off")
    events = events[:-1] if whole else events
    parts = [choice for event in events for choice in json.loads(event)["choices"]]
    return [token for part in parts for token in part.get("token_ids") or []], whole


def difference(
    number: int, tokens: Sequence[int], request: Request, cut: bool = False
) -> str | None:
    """How an answer differs from what is expected, in a sentence; None where it does not.

    Of one that was cut short by the client some first tokens are expected.
    """
    if cut and not tokens:
        return f"request {number}: no token before the client hung up"
    expected = request.expected[: len(tokens)] if cut else request.expected
    if tuple(tokens) == expected:
        return None
    pairs = enumerate(itertools.zip_longest(tokens, expected))
    place, (got, wanted) = next((at, pair) for at, pair in pairs if pair[0] != pair[1])
    return f"request {number}: token {place} is {got}, not {wanted}"


def memory_of(group: int) -> int:
    """Bytes of memory of their own of the processes of a group."""
    total = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            if os.getpgid(int(status.parent.name)) != group:
                continue
            lines = status.read_text().splitlines()
        except OSError:  # it has ended
            continue
        total += sum(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))
    return total


# ---- the server and its model -------------------------------------------------------------------


def server_options(streams: int) -> list[str]:
    """What `vllm serve` is told, whatever the model."""
    options = ["--dtype", "float32", "--max-model-len", "256", "--max-num-seqs", str(streams)]
    # A cache of so few blocks has all been written to before memory is compared.
    options += ["--gpu-memory-utilization", "0.3", "--num-gpu-blocks-override", str(4 * streams)]
    return options


def tiny_model(folder: Path, packed: str = "tiled_bitmap") -> Path:
    """A packed Llama of random weights, whose logits are far enough apart for any rounding.

    Args:
        folder: Where to make it.
        packed: One of `PACKED`.
    """
    import torch
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    from flashsparse_plugin.checkpoint import convert_checkpoint
    from flashsparse_plugin.pruning import prune

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512}
    more = {"initializer_range": 0.3, "tie_word_embeddings": False, "eos_token_id": None}
    model = LlamaForCausalLM(LlamaConfig(**sizes, **heads, **more)).to(torch.bfloat16)
    pattern = (2, 4) if packed.startswith("2:4") else None
    prune(model, sparsity=None if pattern else 0.7, pattern=pattern, progress=False)
    model.save_pretrained(folder / "dense")
    words = models.WordLevel({f"w{n}": n for n in range(512)}, unk_token="w0")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), eos_token="w2")
    tokenizer.save_pretrained(folder / "dense")  # the server wants one, if only ids are asked
    convert_checkpoint(folder / "dense", folder / "packed", **PACKED[packed])
    return folder / "packed"


def requests_of(model: Path, count: int) -> list[Request]:
    """Random prompts of many lengths, and what transformers continues them with in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    vocabulary = loaded.config.get_text_config().vocab_size
    generator = torch.Generator().manual_seed(0)
    found = []
    for number in range(count):
        ids = torch.randint(3, vocabulary, (1, 1 + 5 * number % 64), generator=generator)
        most = 8 + 7 * number % 57
        settings: dict[str, Any] = {"min_new_tokens": most, "pad_token_id": 0}
        out = loaded.generate(ids, max_new_tokens=most, do_sample=False, **settings)
        tokens = out[0, ids.shape[1] :].tolist()
        found.append(Request(tuple(ids[0].tolist()), tuple(tokens)))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--prompts", type=int, default=48, help="that differ")
    parser.add_argument(
        "--packed", choices=PACKED, default="tiled_bitmap", help="how the tiny model is"
    )
    parser.add_argument("--model", type=Path, help="a packed model; default: a tiny random one")
    parser.add_argument("options", nargs="*", help="of vllm serve, after --")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        model = arguments.model or tiny_model(folder, arguments.packed)
        requests = requests_of(model, arguments.prompts)
        print(f"{arguments.streams} streams for {arguments.seconds:g} s on {model}", flush=True)
        options = [*server_options(arguments.streams), *arguments.options]
        with serving(model, folder / "vllm.log", options) as server:
            streams, seconds = arguments.streams, arguments.seconds
            outcome = soak(server.url, requests, streams, seconds, server.group)
    print("\n".join(outcome.lines()))
    return 0 if outcome.holds else 1


if __name__ == "__main__":
    sys.exit(main())
