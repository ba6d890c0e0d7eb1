# SPDX-License-Identifier: Apache-2.0
"""What do sparse weights gain in vLLM? Tokens per GPU-second, dense and sparse, as Flash-LLM asks.

    python benchmarks/gpu/serve.py [--model llama-3-8b | opt-30b] [--out DIRECTORY]

Makes a checkpoint of random weights with 80% zeros, runs it through vLLM twice, dense and packed
while loading, with CUDA graphs, and prints a table: throughput and time per output token at
batches of 8, 16, 32 and 64 with 64 tokens in and 512 out (Flash-LLM, section 6.3), memory and
start-up. Random weights say nothing about text, and everything about speed: the shapes and the
zeros decide that. One model takes less than 10 minutes on one H200; opt-30b writes 60 GB to --work.
Without a GPU, `--model tiny` shows that the program works.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
from safetensors.torch import save_file

SHAPES = {
    "llama-3-8b": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 2048,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
    },
    "opt-30b": {
        "architectures": ["OPTForCausalLM"],
        "model_type": "opt",
        "hidden_size": 7168,
        "ffn_dim": 28672,
        "num_hidden_layers": 48,
        "num_attention_heads": 56,
        "vocab_size": 50272,
        "word_embed_proj_dim": 7168,
        "max_position_embeddings": 2048,
    },
    "tiny": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 512,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
    },
}
SPARSITY = 0.8
PROMPT, OUTPUT = 64, 512  # tokens
BATCHES = (8, 16, 32, 64)
COMPARED = (8, 64)  # prompts and tokens of the comparison of greedy tokens


def make_checkpoint(shape: dict, folder: Path, device: str) -> None:
    """Writes random weights, the linear layers of the decoder pruned, one file a layer."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**shape, dtype="bfloat16")
    config.architectures = shape["architectures"]
    config.save_pretrained(folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    tied = set(getattr(model, "all_tied_weights_keys", {}))
    shapes = {k: tuple(v.shape) for k, v in model.state_dict().items() if k not in tied}
    linears = {f"{k}.weight" for k, v in model.named_modules() if type(v) is torch.nn.Linear}
    files: dict[str, list[str]] = {}
    for name in shapes:
        files.setdefault(name.partition(".layers.")[2].partition(".")[0] or "rest", []).append(name)
    generator = torch.Generator(device).manual_seed(0)
    weight_map = {}
    for part, names in files.items():
        tensors = {}
        for name in names:
            size = shapes[name]
            if name in linears and ".layers." in name:
                weight = torch.randn(size, generator=generator, device=device) * size[1] ** -0.5
                weight[torch.rand(size, generator=generator, device=device) < SPARSITY] = 0
                weight *= (1 - SPARSITY) ** -0.5  # activations keep their size
            elif len(size) == 2:
                weight = torch.randn(size, generator=generator, device=device) * 0.5
            else:
                weight = torch.full(size, float("norm" in name and name.endswith("weight")))
            tensors[name] = weight.bfloat16().cpu()
        save_file(tensors, folder / f"part-{part}.safetensors", {"format": "pt"})
        weight_map |= dict.fromkeys(tensors, f"part-{part}.safetensors")
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def kv_bytes(shape: dict) -> int:
    """Bytes of a cache that holds the largest batch, so that both runs get the same."""
    heads = shape.get("num_key_value_heads", shape["num_attention_heads"])
    head = shape["hidden_size"] // shape["num_attention_heads"]
    tokens = max(BATCHES) * (PROMPT + OUTPUT + 64)
    return tokens * shape["num_hidden_layers"] * 2 * heads * head * 2


def measure(path: Path, method: str, batches: list[int], rounds: int) -> dict:
    """Runs in a process of its own, engine and worker in it: loads, generates, looks at memory."""
    from vllm import SamplingParams

    from flashsparse_plugin import LLM

    shape = json.loads((path / "config.json").read_text())
    cuda = torch.cuda.is_available()
    options = (
        {"kv_cache_memory_bytes": kv_bytes(shape)} if cuda else {"gpu_memory_utilization": 0.3}
    )
    start = time.perf_counter()
    llm = LLM(
        str(path),
        sparse_method=method,
        dtype="bfloat16",
        max_model_len=PROMPT + OUTPUT,
        max_num_seqs=max(batches),
        skip_tokenizer_init=True,
        enable_prefix_caching=False,
        distributed_executor_backend="uni",
        disable_log_stats=True,
        **options,
    )
    result = {"startup_s": time.perf_counter() - start, "rows": []}
    generator = torch.Generator().manual_seed(1)

    def generate(count: int, tokens: int, logprobs: int | None = None):
        ids = torch.randint(3, shape["vocab_size"], (count, PROMPT), generator=generator)
        begin = time.perf_counter()
        outputs = llm.generate(
            [{"prompt_token_ids": row} for row in ids.tolist()],
            SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, logprobs=logprobs),
            use_tqdm=False,
        )
        return time.perf_counter() - begin, [output.outputs[0] for output in outputs]

    _, outputs = generate(*COMPARED, logprobs=2)  # warms up, too
    result["tokens"] = [list(output.token_ids) for output in outputs]
    result["gaps"] = [
        [float(a.logprob - b.logprob) for a, b in (_best_two(step) for step in output.logprobs)]
        for output in outputs
    ]
    for batch in batches:
        first = median(generate(batch, 1)[0] for _ in range(rounds))
        whole = median(generate(batch, OUTPUT)[0] for _ in range(rounds))
        result["rows"].append(
            {
                "batch": batch,
                "tokens_per_gpu_s": batch * OUTPUT / whole,
                "ms_per_token": 1e3 * (whole - first) / (OUTPUT - 1),
                "first_token_ms": 1e3 * first,
            }
        )
    if cuda:
        result["peak_bytes"] = torch.cuda.max_memory_allocated()
        weights = llm.collective_rpc(_weight_bytes)[0]
        result["weight_bytes"] = weights
        result["device"] = torch.cuda.get_device_name()
    import vllm

    result["versions"] = {"vllm": vllm.__version__, "torch": torch.__version__}
    return result


def _best_two(step: dict) -> list:
    return sorted(step.values(), key=lambda entry: -entry.logprob)[:2]


def _weight_bytes(worker) -> int:
    return sum(p.nbytes for p in worker.model_runner.model.parameters())


def compare(dense: dict, sparse: dict) -> dict:
    """Greedy tokens up to the first difference, and how close the two candidates were there.

    Tokens may part where the two best are closer than rounding to 16 bits can tell; after that the
    texts are different ones and there is nothing to compare.
    """
    gaps, same, total = [], 0, 0
    for a, b, gap in zip(dense["tokens"], sparse["tokens"], dense["gaps"], strict=True):
        parted = next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))
        same, total = same + parted, total + len(a)
        if parted < len(a):
            gaps.append(gap[parted])
    return {"same_tokens": same, "compared_tokens": total, "gaps_where_parted": gaps}


def run_apart(path: Path, method: str, batches: list[int], rounds: int, log: Path) -> dict:
    """Measures in a fresh process, whose output goes to a log."""
    with tempfile.NamedTemporaryFile("r", suffix=".json") as answer:
        command = [sys.executable, __file__, "--measure", str(path), method, answer.name]
        command += ["--rounds", str(rounds), "--batches", *map(str, batches)]
        with log.open("w") as file:
            code = subprocess.run(
                command,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
                check=False,
            ).returncode
        if code:
            lines = log.read_text().splitlines()[-15:]
            raise SystemExit("\n".join([*lines, f"the {method} run failed; the whole log: {log}"]))
        return json.load(answer)


def report(name: str, results: dict[str, dict], out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    dense, sparse = results["none"], results["tiled_csl"]
    agreement = compare(dense, sparse)
    rows = [
        {"model": name, "weights": method, **row}
        for method, result in results.items()
        for row in result["rows"]
    ]
    with (out / f"serve-{name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    (out / f"serve-{name}.json").write_text(
        json.dumps({"results": results, "agreement": agreement}, indent=1)
    )
    console = Console()
    table = Table(title=f"{name}, {SPARSITY:.0%} zeros, {PROMPT} tokens in, {OUTPUT} out", box=None)
    for column in ("batch", "tokens/GPU-s dense", "sparse", "ratio", "ms/token dense", "sparse"):
        table.add_column(column, justify="right")
    for a, b in zip(dense["rows"], sparse["rows"], strict=True):
        table.add_row(
            str(a["batch"]),
            f"{a['tokens_per_gpu_s']:,.0f}",
            f"{b['tokens_per_gpu_s']:,.0f}",
            f"{b['tokens_per_gpu_s'] / a['tokens_per_gpu_s']:.2f}x",
            f"{a['ms_per_token']:.2f}",
            f"{b['ms_per_token']:.2f}",
        )
    console.print(table)
    for method, result in results.items():
        memory = (
            f", weights {result['weight_bytes'] / 1e9:.1f} GB, "
            f"peak {result['peak_bytes'] / 1e9:.1f} GB"
            if "peak_bytes" in result
            else ""
        )
        console.print(f"{method}: start-up {result['startup_s']:.0f} s{memory}")
    gaps = agreement["gaps_where_parted"]
    console.print(
        f"greedy tokens: {agreement['same_tokens']} of {agreement['compared_tokens']} equal before "
        f"the first difference; {len(gaps)} of {COMPARED[0]} texts part"
        + (f", where the two best were at most {max(gaps):.3f} nats apart" if gaps else "")
    )
    console.print(f"{dense.get('device', 'CPU')}, {dense['versions']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=SHAPES, default="llama-3-8b")
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"))
    parser.add_argument("--work", type=Path, help="where the checkpoint is written and removed")
    parser.add_argument("--batches", type=int, nargs="+", default=list(BATCHES))
    parser.add_argument("--rounds", type=int, default=1, help="medians of so many runs")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        path, method, answer = arguments.measure
        found = measure(Path(path), method, arguments.batches, arguments.rounds)
        Path(answer).write_text(json.dumps(found))
        return
    if not torch.cuda.is_available() and arguments.model != "tiny":
        raise SystemExit("no GPU here: only --model tiny makes sense")
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=arguments.work) as work:
        start = time.perf_counter()
        device = "cuda" if torch.cuda.is_available() else "cpu"
        make_checkpoint(SHAPES[arguments.model], Path(work), device)
        print(f"checkpoint written in {time.perf_counter() - start:.0f} s", flush=True)
        torch.cuda.empty_cache()
        results = {}
        for method in ("none", "tiled_csl"):
            log = arguments.out / f"serve-{arguments.model}-{method}.log"
            rest = (arguments.batches, arguments.rounds, log)
            results[method] = run_apart(Path(work), method, *rest)
            print(f"{method}: {time.perf_counter() - start:.0f} s", flush=True)
        report(arguments.model, results, arguments.out)


if __name__ == "__main__":
    main()
