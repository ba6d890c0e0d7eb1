# SPDX-License-Identifier: Apache-2.0
"""What do sparse weights gain in vLLM? Tokens per GPU-second, dense and sparse, as in Flash-LLM.

    python benchmarks/gpu/serve.py [--model llama-3-8b | opt-30b] [--format NAME]
    python benchmarks/gpu/serve.py --compare patterns | values
    python benchmarks/gpu/serve.py --compare attention --prompt 1024

Makes a checkpoint of random weights with 80% zeros, runs it through vLLM twice, dense and packed
while loading, with CUDA graphs, and prints a table: throughput and time per output token at
batches of 8, 16, 32 and 64 with 64 tokens in and 512 out (Flash-LLM, section 6.3), memory and
start-up. Random weights suffice for the speed, which depends on the shapes and the zeros. The exit
code is 1 if the greedy tokens of the two differ by more than rounding.

--compare patterns runs weights that follow 2:4 and 8:32 with vectors of 32 rows (75% zeros), packed
as either, beside dense ones in 16 bits and in vLLM's fp8. --compare values packs the same weights
with values of 8 and 4 bits; their tokens are those of other weights, and not compared.

--compare attention runs dense weights twice, with vLLM's own attention and with ours
(--decode-attention unified_max); --prompt makes contexts longer.

opt-30b writes 60 GB to --work. --layers and --batches make a run smaller, --only picks some of what
is compared, and --limit ends it after a number of seconds and keeps the measurements until then.
Without a GPU, `--model tiny` shows that the program works.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from flashsparse_plugin.formats import DEFAULT_FORMAT, format_names
from flashsparse_plugin.formats.nm_pattern import PatternOptions

sys.path.append(str(Path(__file__).parent))  # PYTHONSAFEPATH, which `run_apart` sets, leaves it out
from _device import _results, machine

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
        "hidden_size": 256,
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
PROMPT, OUTPUT = 64, 512  # tokens, unless --prompt says otherwise
BATCHES = (8, 16, 32, 64)
COMPARED = (8, 64)  # prompts, and tokens of each, for the comparison of greedy tokens
COMPARISONS = ("weights", "patterns", "values", "attention")
FOLLOWING = ("patterns", "values")  # with weights that follow patterns
EXACT = ("sparse", "ours", "2:4", "8:32, L=32")  # what has to generate the baseline's tokens
PATTERNS = (PatternOptions(n=2, m=4), PatternOptions(n=8, m=32, vector_length=32))
VALUES = (
    PatternOptions(n=2, m=4, values="fp8_e4m3"),
    PatternOptions(n=2, m=4, values="int4", group=128),
    PatternOptions(n=8, m=32, vector_length=32, values="int8"),
)
STARTED = time.monotonic()


def methods_of(arguments: argparse.Namespace) -> dict[str, tuple[str, dict[str, Any]]]:
    """What is compared, the baseline first: how tables call it, and vLLM's options."""
    if arguments.compare == "weights":
        format = arguments.format
        return {
            "none": ("dense", {"sparse_method": "none"}),
            format: ("sparse", {"sparse_method": format}),
        }
    if arguments.compare in FOLLOWING:
        methods: dict[str, tuple[str, dict[str, Any]]] = {
            "none": ("dense", {"sparse_method": "none"}),
            "fp8": ("fp8", {"sparse_method": "none", "quantization": "fp8"}),
        }
        for options in PATTERNS if arguments.compare == "patterns" else VALUES:
            config = {"flashsparse": {"options": options.model_dump()}}
            method = {"sparse_method": "nm_vector", "additional_config": config}
            name = f"{options.n}of{options.m}"
            if options.value_type:
                name += f"-{options.values}"
            methods[name] = (options.title, method)
        return methods
    return {
        "default": ("vLLM", {"sparse_method": "none", "decode_attention": "default"}),
        "unified_max": ("ours", {"sparse_method": "none", "decode_attention": "unified_max"}),
    }


def kept_of(size: tuple[int, int], patterns: bool, generator: torch.Generator) -> Tensor:
    """What is kept of a random weight: a share of all elements, or what any of our patterns keeps.

    One of every 4 columns, the same for 32 rows, follows 2:4 and 8:32 with vectors of 32 rows.
    """
    device = generator.device
    if not patterns:
        return torch.rand(size, generator=generator, device=device) >= SPARSITY
    groups, fours = -(-size[0] // 32), size[1] // 4
    choice = torch.randint(4, (groups, fours, 1), generator=generator, device=device)
    kept = choice == torch.arange(4, device=device)
    return kept.view(groups, 1, -1).expand(-1, 32, -1).reshape(groups * 32, -1)[: size[0]]


def make_checkpoint(shape: dict, folder: Path, device: str, patterns: bool) -> None:
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
                kept = kept_of(size, patterns, generator)
                weight *= kept * kept.float().mean() ** -0.5  # keeps the scale of activations
            elif len(size) == 2:
                weight = torch.randn(size, generator=generator, device=device) * 0.5
            else:
                weight = torch.full(size, float("norm" in name and name.endswith("weight")))
            tensors[name] = weight.bfloat16().cpu()
        save_file(tensors, folder / f"part-{part}.safetensors", {"format": "pt"})
        weight_map |= dict.fromkeys(tensors, f"part-{part}.safetensors")
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def kv_bytes(shape: dict, prompt: int) -> int:
    """Bytes of a cache for the largest batch, so that both runs have the same cache."""
    heads = shape.get("num_key_value_heads", shape["num_attention_heads"])
    head = shape["hidden_size"] // shape["num_attention_heads"]
    tokens = max(BATCHES) * (prompt + OUTPUT + 64)
    return tokens * shape["num_hidden_layers"] * 2 * heads * head * 2


def measure(path: Path, method: str, answer: Path, arguments: argparse.Namespace) -> None:
    """Loads, generates and measures, with engine and worker in this process.

    It writes all measurements to `answer` after every step.
    """
    import vllm

    from flashsparse_plugin import LLM

    shape = json.loads((path / "config.json").read_text())
    cuda = torch.cuda.is_available()
    most = max(COMPARED[0], *arguments.batches)
    options: dict = {"gpu_memory_utilization": 0.3}
    if cuda:
        options = {"kv_cache_memory_bytes": kv_bytes(shape, arguments.prompt)}
    if arguments.eager:
        options["enforce_eager"] = True
    else:
        sizes = sorted({1, COMPARED[0], *arguments.batches})
        options["compilation_config"] = {"cudagraph_capture_sizes": sizes}
    start = time.perf_counter()
    llm = LLM(
        str(path),
        **methods_of(arguments)[method][1],
        dtype="bfloat16",
        max_model_len=arguments.prompt + OUTPUT,
        max_num_seqs=most,
        skip_tokenizer_init=True,
        enable_prefix_caching=False,
        distributed_executor_backend="uni",
        disable_log_stats=True,
        logprobs_mode="raw_logits",
        **options,
    )
    result = {
        "startup_s": time.perf_counter() - start,
        "versions": {"vllm": vllm.__version__, "torch": torch.__version__},
        "rows": [],
    }
    if cuda:
        result["device"] = torch.cuda.get_device_name()
        result["weight_bytes"] = llm.collective_rpc(_weight_bytes)[0]

    def save() -> None:
        if cuda:
            result["peak_bytes"] = torch.cuda.max_memory_allocated()
        answer.write_text(json.dumps(result))

    def generate(prompts: list[list[int]], tokens: int, logprobs: int | None = None):
        sampling = vllm.SamplingParams(
            temperature=0, max_tokens=tokens, ignore_eos=True, logprobs=logprobs
        )
        begin = time.perf_counter()
        outputs = llm.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts], sampling, use_tqdm=False
        )
        return time.perf_counter() - begin, [output.outputs[0] for output in outputs]

    prompts, tokens = _prompts(COMPARED[0], arguments.prompt, shape), COMPARED[1]
    save()
    result["texts"] = [_text(output) for output in generate(prompts, tokens, logprobs=2)[1]]
    result["texts_one_by_one"] = [
        _text(generate([prompt], tokens, logprobs=2)[1][0]) for prompt in prompts
    ]
    save()
    for batch in arguments.batches:
        prompts = _prompts(batch, arguments.prompt, shape)
        generate(prompts, 4)  # warms up what no graph captured
        first = median(generate(prompts, 1)[0] for _ in range(max(3, arguments.rounds)))
        whole = median(generate(prompts, OUTPUT)[0] for _ in range(arguments.rounds))
        row = {
            "batch": batch,
            "tokens_per_gpu_s": batch * OUTPUT / whole,
            "ms_per_token": 1e3 * (whole - first) / (OUTPUT - 1),
            "first_token_ms": 1e3 * first,
        }
        print(row, flush=True)
        result["rows"].append(row)
        save()


def _prompts(count: int, tokens: int, shape: dict) -> list[list[int]]:
    generator = torch.Generator().manual_seed(count)
    return torch.randint(3, shape["vocab_size"], (count, tokens), generator=generator).tolist()


def _text(output) -> dict:
    """The tokens, and the logits of the best two at each step."""
    best = [
        sorted((c.logprob for c in step.values()), reverse=True)[:2] for step in output.logprobs
    ]
    return {"tokens": list(output.token_ids), "best_two": best}


def _weight_bytes(worker) -> int:
    return sum(p.nbytes for p in worker.get_model().parameters())


def _follow(a: dict, b: dict) -> tuple[int, float | None, float]:
    """Follows two greedy texts of one prompt while their contexts are the same.

    Returns:
        How many tokens are equal; the gap between the logits of the best two where the texts
        diverge, None if they do not; and the largest change of that gap between the texts.
    """
    shift = 0.0
    for i, (x, y) in enumerate(zip(a["tokens"], b["tokens"], strict=True)):
        gap, other = (best - second for best, second in (a["best_two"][i], b["best_two"][i]))
        if x != y:  # the best two have swapped
            return i, gap, max(shift, gap + other)
        shift = max(shift, abs(gap - other))
    return len(a["tokens"]), None, shift


def compare(dense: dict, sparse: dict) -> dict:
    """Whether rounding explains where the greedy tokens of dense and sparse diverge.

    Texts may diverge where the best two candidates are closer than the rounding to 16 bits, and
    have nothing in common after that. The effect of rounding is measured with dense weights alone,
    whose sums are added in another order when the prompts come one by one: a divergence is
    explained if the gap is at most twice the largest change of a gap there, or two steps of
    bfloat16 at the best logit.
    """
    alone = [_follow(*pair) for pair in zip(dense["texts"], dense["texts_one_by_one"], strict=True)]
    found = [_follow(*pair) for pair in zip(dense["texts"], sparse["texts"], strict=True)]
    largest = max(abs(best) for text in dense["texts"] for best, _ in text["best_two"])
    step = 2.0 ** (math.floor(math.log2(largest)) - 7)
    tolerance = 2 * max(step, *(shift for *_, shift in alone))
    gaps = [gap for _, gap, _ in found if gap is not None]
    return {
        "compared_tokens": COMPARED[0] * COMPARED[1],
        "same_tokens": sum(same for same, *_ in found),
        "same_tokens_dense_one_by_one": sum(same for same, *_ in alone),
        "gaps_where_parted": gaps,
        "largest_shift": max(shift for *_, shift in found),
        "tolerance": tolerance,
        "explained_by_rounding": all(gap <= tolerance for gap in gaps),
    }


def run_apart(
    path: Path, method: str, log: Path, seconds: float | None, arguments: argparse.Namespace
) -> dict:
    """Measures in a fresh process whose output goes to a log; returns its measurements so far."""
    answer = path / f"{method}.json"
    command = [sys.executable, __file__, "--measure", str(path), method, str(answer)]
    command += ["--rounds", str(arguments.rounds), "--batches", *map(str, arguments.batches)]
    command += ["--compare", arguments.compare, "--prompt", str(arguments.prompt)]
    command += ["--format", arguments.format]
    command += ["--eager"] if arguments.eager else []
    environment = os.environ | {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "PYTHONSAFEPATH": "1",  # otherwise vLLM's processes import the sources in this folder
    }
    with log.open("w") as file:
        try:
            end = subprocess.run(
                command,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                timeout=seconds,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            end = "the time limit"
    result = json.loads(answer.read_text()) if answer.exists() else {"rows": []}
    lines = log.read_text(errors="replace").splitlines()
    told = ("flashsparse::", "layers packed", "decode attention of")
    result["log"] = [line for line in lines if any(words in line for words in told)]
    if end:
        result["failed"] = f"ended by {end}"
        print("\n".join([*lines[-25:], f"{method}: {result['failed']}; the whole log: {log}"]))
    return result


def write(name: str, about: dict, results: dict[str, dict], agreements: dict, out: Path) -> None:
    """Writes one result: a row a method and batch; runs and agreements are conditions.

    The generated tokens, which only the comparison needs, and what the rows hold are left out.
    """
    left_out = {"rows", "versions", "device", "texts", "texts_one_by_one"}
    versions: dict[str, str] = {}
    for result in results.values():
        versions |= result.get("versions", {})
    runs = {
        method: {key: value for key, value in result.items() if key not in left_out}
        for method, result in results.items()
    }
    rows = [
        {"model": name, "weights": method, **row}
        for method, result in results.items()
        for row in result["rows"]
    ]
    about = about | versions | {"runs": runs, "agreements": agreements}
    _results.write(out / f"serve-{name}.csv", about, rows)


def show(
    name: str, results: dict[str, dict], agreements: dict, arguments: argparse.Namespace
) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    methods = {name: each for name, each in methods_of(arguments).items() if name in results}
    baseline = next(iter(methods))
    dense = {row["batch"]: row for row in results[baseline]["rows"]}
    zeros = 0.75 if arguments.compare in FOLLOWING else SPARSITY
    title = f"{name}, {zeros:.0%} zeros, {arguments.prompt} tokens in, {OUTPUT} out"
    table = Table(title=title, title_justify="left", box=None)
    for column in ("batch", "", "tokens/GPU-s", "ratio", "ms/token", "first token, ms"):
        table.add_column(column, justify="right")
    for batch in arguments.batches:
        for method, (label, _) in methods.items():
            row = next((row for row in results[method]["rows"] if row["batch"] == batch), None)
            if not row:
                continue
            first = dense.get(batch)
            ratio = f"{row['tokens_per_gpu_s'] / first['tokens_per_gpu_s']:.2f}x" if first else "-"
            speed, time, prompt = (
                row[key] for key in ("tokens_per_gpu_s", "ms_per_token", "first_token_ms")
            )
            table.add_row(str(batch), label, f"{speed:,.0f}", ratio, f"{time:.2f}", f"{prompt:.1f}")
    console.print(table)
    for method, result in results.items():
        parts = []
        if "startup_s" in result:
            parts.append(f"start-up {result['startup_s']:.0f} s")
        if "weight_bytes" in result:
            parts.append(f"weights {result['weight_bytes'] / 1e9:.1f} GB")
            parts.append(f"peak {result['peak_bytes'] / 1e9:.1f} GB with the cache")
        if "failed" in result:
            parts.append(result["failed"])
        console.print(f"{method}: {', '.join(parts)}")
    for line in results[list(methods)[-1]]["log"]:
        console.print(line.rpartition("] ")[2], markup=False, soft_wrap=True)
    if not agreements:
        console.print("greedy tokens: not compared")
    for method, agreement in agreements.items():
        gaps = agreement["gaps_where_parted"]
        verdict = "" if agreement["explained_by_rounding"] else "NOT "
        console.print(
            f"greedy tokens, {methods[method][0]}: {agreement['same_tokens']} of "
            f"{agreement['compared_tokens']} equal before the first difference "
            f"({methods[baseline][0]} one by one: {agreement['same_tokens_dense_one_by_one']}); "
            f"{len(gaps)} of {COMPARED[0]} texts part"
            + (
                f", at gaps of up to {max(gaps):.3f} logits, {verdict}explained by rounding, which "
                f"moves gaps by up to {agreement['tolerance']:.3f}"
                if gaps
                else ""
            )
        )
    known = next(iter(results.values()))
    console.print(known.get("device", "CPU"), known.get("versions", ""))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=SHAPES, default="llama-3-8b")
    parser.add_argument("--compare", choices=COMPARISONS, default="weights")
    parser.add_argument("--format", choices=format_names(), default=DEFAULT_FORMAT)
    parser.add_argument("--prompt", type=int, default=PROMPT, help="tokens in")
    parser.add_argument("--layers", type=int, help="fewer than the model has")
    parser.add_argument("--batches", type=int, nargs="+", default=list(BATCHES))
    parser.add_argument("--rounds", type=int, default=1, help="medians of so many runs")
    parser.add_argument("--only", nargs="+", help="of what is compared, by the names in results")
    parser.add_argument("--eager", action="store_true", help="no torch.compile, no CUDA graphs")
    parser.add_argument("--limit", type=float, help="seconds for everything")
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"))
    parser.add_argument("--work", type=Path, help="where the checkpoint is written and removed")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        path, method, answer = arguments.measure
        measure(Path(path), method, Path(answer), arguments)
        return 0
    if not torch.cuda.is_available() and arguments.model != "tiny":
        parser.error("no GPU here: only --model tiny makes sense")
    shape, name = dict(SHAPES[arguments.model]), arguments.model
    if arguments.layers:
        shape["num_hidden_layers"] = arguments.layers
        name += f"-{arguments.layers}-layers"
    if arguments.eager:
        name += "-eager"
    if arguments.prompt != PROMPT:
        name += f"-{arguments.prompt}-in"
    if arguments.compare != "weights":
        name += f"-{arguments.compare}"
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=arguments.work) as work:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        about = machine(torch.device(device))
        make_checkpoint(shape, Path(work), device, arguments.compare in FOLLOWING)
        print(f"{time.monotonic() - STARTED:.0f} s: checkpoint written", flush=True)
        if device == "cuda":
            torch.cuda.empty_cache()
        results: dict[str, dict] = {}
        agreements: dict[str, dict] = {}
        methods = {k: v for k, v in methods_of(arguments).items() if k in (arguments.only or [k])}
        for done, method in enumerate(methods):
            log = arguments.out / f"serve-{name}-{method}.log"
            seconds = None
            if arguments.limit is not None:  # an equal share of the time left
                left = arguments.limit - (time.monotonic() - STARTED)
                seconds = max(0.0, left) / (len(methods) - done)
            results[method] = run_apart(Path(work), method, log, seconds, arguments)
            write(name, about, results, agreements, arguments.out)
            print(f"{time.monotonic() - STARTED:.0f} s: {method} measured", flush=True)
    dense = next(iter(results.values()))
    for method, result in results.items():
        if methods[method][0] in EXACT and "texts_one_by_one" in dense.keys() & result.keys():
            agreements[method] = compare(dense, result)
    write(name, about, results, agreements, arguments.out)
    show(name, results, agreements, arguments)
    complete = not any("failed" in result for result in results.values())
    explained = [agreement["explained_by_rounding"] for agreement in agreements.values()]
    compared = bool(explained) or arguments.compare == "values"
    return 0 if complete and compared and all(explained) else 1


if __name__ == "__main__":
    sys.exit(main())
