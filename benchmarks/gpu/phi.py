# SPDX-License-Identifier: Apache-2.0
"""What does a calibrated phi do in vLLM, on a real model's scores?

    flashsparse calibrate MODEL --text FILE
    python benchmarks/gpu/phi.py MODEL --text FILE

Sequences from the end of a text are continued by vLLM's own decode attention, by ours without phi
and by ours with it. Reported are the time of a token after the first, whether the greedy tokens are
vLLM's but for rounding, and how many parts of a softmax were recomputed, of how many rows
(sequences times heads, of all layers and steps). Counting takes time, so a further engine counts.
The engines run one after the other, each in a process of its own since vLLM keeps the memory of its
CUDA graphs for the process; with graphs of their decode steps and without torch.compile. Without a
GPU it is vLLM's CPU build that runs; there each row is one part. What an engine found is saved
before the next one starts.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch
from _agreement import COMPARED, Text, compare
from _device import _measure, _results, machine
from rich import box
from rich.table import Table

from flashsparse_plugin.attention import counters, unified_max_of
from flashsparse_plugin.attention.counters import logger as counting

VLLM, OURS, PHI = "vLLM's", "ours", "ours, phi"
ATTENTION: Mapping[str, Mapping[str, Any]] = {
    VLLM: {"decode_attention": "default"},
    OURS: {"decode_attention": "unified_max", "hf_overrides": {"unified_max": None}},
    PHI: {"decode_attention": "unified_max"},
}
Row = dict[str, Any]
Prompts = list[list[int]]
Found = TypeVar("Found")


def prompts_of(model: Path, text: str, sequences: int, tokens: int) -> Prompts:
    """So many windows before the end of a text."""
    from transformers import AutoTokenizer

    ids = AutoTokenizer.from_pretrained(model)(text)["input_ids"][-sequences * tokens :]
    if len(ids) < sequences * tokens:
        raise SystemExit(f"the text has {len(ids)} tokens, not {sequences} x {tokens}")
    return [ids[begin : begin + tokens] for begin in range(0, len(ids), tokens)]


def engine(
    model: Path, options: Mapping[str, Any], longest: int, sequences: int, eager: bool
) -> Any:
    from flashsparse_plugin import LLM

    common: Row = {"dtype": "bfloat16", "max_model_len": longest, "max_num_seqs": sequences}
    common |= {"enable_prefix_caching": False, "logprobs_mode": "raw_logits"}
    common |= {"gpu_memory_utilization": 0.2, "disable_log_stats": True}
    if torch.cuda.is_available() and not eager:
        graphs = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}
        sizes = sorted({1, COMPARED[0], sequences})
        common["compilation_config"] = graphs | {"cudagraph_capture_sizes": sizes}
    else:
        common["enforce_eager"] = True
    return LLM(str(model), **common, **options)


def continued(llm: Any, prompts: Prompts, tokens: int, logprobs: int | None = None) -> list[Any]:
    from vllm import SamplingParams

    how = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, logprobs=logprobs)
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], how, use_tqdm=False)
    return [output.outputs[0] for output in outputs]


def texts(llm: Any, prompts: Prompts) -> dict[str, list[Text]]:
    """Greedy texts of some prompts as `compare` takes them: all at once, and one by one."""
    count, tokens = COMPARED

    def asked(some: Prompts) -> list[Text]:
        return [
            {
                "tokens": list(found.token_ids),
                "best_two": [
                    sorted((each.logprob for each in step.values()), reverse=True)[:2]
                    for step in found.logprobs
                ],
            }
            for found in continued(llm, some, tokens, logprobs=2)
        ]

    some = prompts[:count]
    return {"at_once": asked(some), "one_by_one": [asked([each])[0] for each in some]}


def ms_per_token(llm: Any, prompts: Prompts, tokens: int, rounds: int) -> float:
    """Milliseconds of a step after the prompts, the median of some rounds."""
    found = []
    for _ in range(rounds + 1):
        took = []
        for count in (1, tokens + 1):
            start = time.perf_counter()
            continued(llm, prompts, count)
            took.append(time.perf_counter() - start)
        found.append((took[1] - took[0]) / tokens * 1e3)
    return statistics.median(found[1:])  # the first warms up


def close(llm: Any) -> None:
    """Ends an engine, so that its process can end."""
    from vllm.distributed import cleanup_dist_env_and_memory

    llm.llm_engine.engine_core.shutdown()
    cleanup_dist_env_and_memory()


def texts_and_time(
    arguments: argparse.Namespace, name: str, prompts: Prompts
) -> tuple[dict[str, list[Text]], float]:
    """What one attention writes, and its milliseconds a token."""
    llm = engine(arguments.model, ATTENTION[name], *sizes(arguments))
    said = texts(llm, prompts)
    ms = ms_per_token(llm, prompts, arguments.tokens, arguments.rounds)
    print(f"{name}: {ms:.2f} ms a token", flush=True)
    close(llm)
    return said, ms


def recomputed(arguments: argparse.Namespace, prompts: Prompts) -> Row:
    """How many parts were recomputed with phi, of how many rows, and the layer with most."""
    counting.setLevel(logging.DEBUG)
    llm = engine(arguments.model, ATTENTION[PHI], *sizes(arguments))
    before = counters()  # of the warm-up
    continued(llm, prompts, arguments.tokens + 1)
    counted = {
        layer: (again - before[layer][0], looked_at - before[layer][1])
        for layer, (again, looked_at) in counters().items()
    }
    close(llm)
    again, looked_at = (sum(column) for column in zip(*counted.values(), strict=True))
    most = max(counted, key=lambda layer: counted[layer][0])
    return {"recomputed": again, "rows_of_softmax": looked_at, "most_in": most}


def sizes(arguments: argparse.Namespace) -> tuple[int, int, bool]:
    """Tokens of the longest sequence, sequences, and whether there are no CUDA graphs."""
    longest = arguments.prompt + max(arguments.tokens, COMPARED[1]) + 1
    return longest, arguments.sequences, arguments.eager


def alone(function: Callable[..., Found], *arguments: Any) -> Found:
    """Calls a function in a new process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(function, *arguments).result()


def measure(arguments: argparse.Namespace, prompts: Prompts) -> Iterator[Row]:
    """A row for each attention."""
    baseline = None
    for name in ATTENTION:
        said, ms = alone(texts_and_time, arguments, name, prompts)
        baseline = baseline or said
        yield {"attention": name, "ms_per_token": round(ms, 3)} | _agreement(baseline, said)


def _agreement(baseline: dict[str, list[Text]], found: dict[str, list[Text]]) -> Row:
    same = compare(baseline, found)
    return {"same_tokens": same["same_tokens"], "explained": int(same["explained_by_rounding"])}


def show(rows: Sequence[Row], counted: Row, about: Row) -> None:
    table = Table(title=f"{about['model']}, {about['sequences']} sequences", box=box.SIMPLE_HEAD)
    compared = COMPARED[0] * COMPARED[1]
    for head in ("decode attention", "ms a token", f"tokens as {VLLM}, of {compared}"):
        table.add_column(head, justify="left" if head == "decode attention" else "right")
    for row in rows:
        same = f"{row['same_tokens']}" + ("" if row["explained"] else " [red]not by rounding[/]")
        table.add_row(row["attention"], f"{row['ms_per_token']:.2f}", same)
    table.caption = (
        f"recomputed with phi in {about['phi_layers']} layers: {counted['recomputed']:,} parts, "
        f"for {counted['rows_of_softmax']:,} rows"
    )
    _measure.console(width=80).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="a directory that was calibrated")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=1024, help="tokens of each sequence")
    parser.add_argument("--tokens", type=int, default=128, help="to write")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs")
    parser.add_argument("--out", type=Path, help="a file; default: in benchmarks/results")
    arguments = parser.parse_args()
    from transformers import AutoConfig

    if arguments.sequences < COMPARED[0]:
        parser.error(f"--sequences: at least {COMPARED[0]}, whose tokens are compared")
    entry = unified_max_of(AutoConfig.from_pretrained(arguments.model))
    if entry is None:
        parser.error(f"{arguments.model} has no phi: flashsparse calibrate writes it")
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the counters are of this process
    about = {"model": arguments.model.resolve().name, "text": arguments.text.name}
    about |= {key: getattr(arguments, key) for key in ("sequences", "prompt", "tokens", "eager")}
    about["phi_layers"] = sum(layer is not None for layer in entry.layers)
    about |= machine(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    folder = _results.folder_of(about.get("gpu", about["cpu"]))
    path = arguments.out or folder / f"phi-{about['model'].lower()}.csv"
    text = arguments.text.read_text()
    prompts = prompts_of(arguments.model, text, arguments.sequences, arguments.prompt)
    rows: list[Row] = []
    for row in measure(arguments, prompts):
        rows.append(row)
        _results.write(path, about, rows)
    counted = alone(recomputed, arguments, prompts)
    _results.write(path, about | counted, rows)
    show(rows, counted, about)
    print(f"written to {path}")
    if not all(row["explained"] for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
