# SPDX-License-Identifier: Apache-2.0
"""Runs several models through vLLM's Python API in one process, by `main`.

A job is {"model": path, "prompts": [[token ids]], "max_tokens": n, "options": {...}} and perhaps
"lora": path, "link": what `model` shall be a link to, "piecewise": true, "dataflow": [tokens of
gemv, of flat_gemm, of the sparse kernel], "classify": true for probabilities instead of tokens,
"reload": true to reload the weights then; its result
{"tokens": [[...]], "layers": {name: kind of method}, "streams": {name: [elements, length]},
"plans": [what packed layers were called with], "settings": additional_config,
"counts": {layer: [parts of a softmax computed again, looked at]}, "compiled": {...},
"peak": bytes, "log": [...]} or {"error": text}.
"""

import contextlib
import functools
import gc
import json
import logging
import os
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

COMMON = {
    "dtype": "float32",
    "max_model_len": 64,
    "enforce_eager": True,
    "gpu_memory_utilization": 0.3,
    "disable_log_stats": True,
    "distributed_executor_backend": "uni",
    "skip_tokenizer_init": True,
    "num_gpu_blocks_override": 32,  # of the cache: it is filled with zeros for every model
}


class _Collector(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def _methods(worker) -> dict[str, str]:
    model = worker.model_runner.model
    return {
        name: type(module.quant_method).__name__
        for name, module in model.named_modules()
        if hasattr(module, "quant_method")
    }


def _streams(worker) -> dict[str, list[int]]:
    """Per sparse layer the elements of its weight and the length of its packed stream, which is
    the first of its tensors."""
    return {
        name: [module.quant_method.shape[0] * module.quant_method.shape[1], stream.numel()]
        for name, module in worker.model_runner.model.named_modules()
        if hasattr(getattr(module, "quant_method", None), "held")
        for stream in [getattr(module, module.quant_method.tensor_names[0])]
    }


@contextlib.contextmanager
def _compiled(piecewise: bool):
    """Counts what vLLM compiles, and on request has it done as on a GPU: in pieces, between the
    attention of one layer and the next, with a check of every size. On CPUs vLLM compiles a model
    whole."""
    from vllm.compilation.counter import compilation_counter
    from vllm.config import CompilationMode
    from vllm.platforms.cpu import CpuPlatform

    def settle(config):
        inner(config)
        config.compilation_config.mode = CompilationMode.VLLM_COMPILE
        config.compilation_config.compile_sizes = []
        config.compilation_config.inductor_compile_config["size_asserts"] = True

    inner, before, counts = CpuPlatform.check_and_update_config, compilation_counter.clone(), {}
    if piecewise:
        CpuPlatform.check_and_update_config = staticmethod(settle)
    try:
        yield counts
    finally:
        CpuPlatform.check_and_update_config = inner
        for name, key in {
            "pieces": "num_piecewise_capturable_graphs_seen",
            "different": "num_compiled_artifacts_saved",
            "from_cache": "num_compiled_artifacts_loaded",
        }.items():
            counts[name] = getattr(compilation_counter, key) - getattr(before, key)


@contextlib.contextmanager
def _dataflow(thresholds: list[int] | None):
    """Treats layers as on a GPU where these thresholds were found for them all; yields those that
    packed layers were called with."""
    from flashsparse_plugin.formats.unstructured.interleaved_bitmap import InterleavedBitmap

    inner, given = InterleavedBitmap.linear, set()

    def linear(self, *arguments):
        given.add(str(arguments[-1]))
        return inner(self, *arguments)

    if thresholds is None:
        yield given
        return
    from vllm.model_executor.layers import utils

    from flashsparse_plugin.dataflow import DenseLinear
    from flashsparse_plugin.integrations.vllm import dense, quantization
    from flashsparse_plugin.integrations.vllm import linear as packed
    from flashsparse_plugin.plan import Plan

    def keep(layer, remove_weight):
        prepare(layer, remove_weight=False)

    prepare = utils.dispatch_cpu_unquantized_gemm
    *of_dense, of_packed = thresholds
    found = DenseLinear(*of_dense, "pretended")
    plan = Plan.of([(of_packed, "sparse"), (None, "library")], "table", "pretended")
    gpu = SimpleNamespace(is_cuda=lambda: True)
    with (
        mock.patch.object(quantization, "current_platform", gpu),
        mock.patch.object(dense, "multiplies_by_torch", lambda method: True),
        mock.patch.object(dense, "dense_linear", lambda weight: found),
        mock.patch.object(utils, "dispatch_cpu_unquantized_gemm", keep),
        mock.patch.object(packed, "plan_of", lambda _: plan),
        mock.patch.object(InterleavedBitmap, "linear", linear),
    ):
        yield given


def _peak() -> int:
    """Most memory that this process ever had resident, in bytes."""
    status = Path("/proc/self/status").read_text().splitlines()
    (line,) = [line for line in status if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def _ask(llm, job: dict) -> list:
    """What the model says of the prompts."""
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest

    prompts = [{"prompt_token_ids": ids} for ids in job["prompts"]]
    if job.get("classify"):
        outputs = llm.classify(prompts, use_tqdm=False)
        return [list(output.outputs.probs) for output in outputs]
    lora = LoRARequest("adapter", 1, job["lora"]) if job.get("lora") else None
    many = SamplingParams(temperature=0, max_tokens=job["max_tokens"], ignore_eos=True)
    outputs = llm.generate(prompts, many, lora_request=lora, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def run(job: dict) -> dict:
    options = COMMON | job.get("options", {})
    # fs.LLM is the documented way; with nothing of ours in the options stock vLLM has to do.
    if options.keys() & {"sparse_method", "decode_attention"}:
        from flashsparse_plugin import LLM
    else:
        from vllm import LLM
    from vllm.distributed import cleanup_dist_env_and_memory

    from flashsparse_plugin.attention import counters

    if "link" in job:
        Path(job["model"]).unlink(missing_ok=True)
        Path(job["model"]).symlink_to(job["link"])
    collector = _Collector()
    logging.getLogger("vllm.flashsparse").addHandler(collector)
    try:
        with (
            _compiled(job.get("piecewise", False)) as compiled,
            _dataflow(job.get("dataflow")) as given,
        ):
            llm = LLM(job["model"], **options)

            tokens = _ask(llm, job)
            reloaded = {}
            if job.get("reload"):
                try:
                    llm.collective_rpc("reload_weights")
                except Exception as error:
                    reloaded = {"reload": str(error), "again": _ask(llm, job)}
        result = reloaded | {
            "tokens": tokens,
            "layers": llm.collective_rpc(_methods)[0],
            "streams": llm.collective_rpc(_streams)[0],
            "plans": sorted(given),
            "settings": llm.llm_engine.vllm_config.additional_config,
            "counts": counters(),
            "compiled": compiled,
            "peak": _peak(),
        }
        del llm
    except Exception as error:
        result = {"error": f"{type(error).__name__}: {error}"}
    finally:
        logging.getLogger("vllm.flashsparse").removeHandler(collector)
        gc.collect()
        cleanup_dist_env_and_memory()
    return result | {"log": collector.lines}


@contextlib.contextmanager
def _many_engines():
    """What vLLM does once for an engine that has a process to itself is done once for them all.

    Every engine collects garbage about ten times, each time among all objects of torch, vLLM and
    transformers, and each lets go of what was frozen; and each replaces vLLM's Triton kernels on a
    CPU, of which it searches all modules. Both take longer than a tiny model.
    """
    from vllm.platforms.cpu import CpuPlatform

    once = staticmethod(functools.cache(CpuPlatform.register_triton_kernel_overrides))
    freeze = gc.freeze
    with (
        mock.patch.object(gc, "freeze", lambda: None),
        mock.patch.object(gc, "unfreeze", lambda: None),
        mock.patch.object(CpuPlatform, "register_triton_kernel_overrides", once),
    ):
        yield freeze


def main(jobs: dict[str, dict], results: Path) -> None:
    # The engine and its worker in this very process: no start-up of others, and their models can be
    # looked at.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    done = {}
    with _many_engines() as freeze:
        for name, job in jobs.items():
            freeze()  # what is left of the last engine is imported modules
            done[name] = run(job)
    results.write_text(json.dumps(done))
