# SPDX-License-Identifier: Apache-2.0
"""Output head and sampler of a decode step in a CUDA graph of their own:
`additional_config={"flashsparse": {"decode_sampling": "graph"}}`.

The model's part of a decode step is a CUDA graph of vLLM. Around it the engine launches some 30
small kernels from Python and copies the sampler's state, changed or not. With that a step took the
host 2.3 ms beside an H200, and the GPU waited where weights take less (docs/lab/serving.md). Here
head, temperature and draw are captured once for each batch size of the model's graphs, and the
state is copied when a request arrives. The kernels are vLLM's own with the inputs that they have
there, so tokens are the same, but that the head multiplies the rows that pad a graph, too.

Packed models have it on CUDA unless the setting says "default", with the releases of vLLM whose
runner was read for it. Every batch with something else, such as penalties, top-p or log
probabilities, is vLLM's.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.config import CUDAGraphMode, VllmConfig
from vllm.platforms import current_platform

from flashsparse_plugin.config import QUANT_METHOD

from .compat import release
from .settings import DECODE_SAMPLING, GRAPH, settings_of
from .summary import logger

RELEASES = ((0, 26),)
"""Of vLLM, whose runner and sampler are known here."""


def use_graph_sampling() -> None:
    """Has vLLM's runner hand head and sampler of packed models to `GraphSampler`.

    Call it before graphs are captured. Models that are not packed keep all that is vLLM's.
    """
    if not current_platform.is_cuda() or release() not in RELEASES:
        return
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    inner = GPUModelRunner.capture_model
    if getattr(inner, "_flashsparse", False):
        return

    @functools.wraps(inner)
    def capture_model(self: Any) -> Any:
        taken = inner(self)
        if is_wanted(self.vllm_config) and can_sample(self):
            GraphSampler(self).install()
        return taken

    capture_model._flashsparse = True
    GPUModelRunner.capture_model = capture_model


def is_wanted(vllm_config: VllmConfig) -> bool:
    """Whether a model is packed and its user has not asked for vLLM's sampling."""
    model = vllm_config.model_config
    setting = settings_of(vllm_config.additional_config).get(DECODE_SAMPLING, GRAPH)
    return setting == GRAPH and model is not None and model.quantization == QUANT_METHOD


def can_sample(runner: Any) -> bool:
    """Whether a runner of vLLM samples from logits that one GPU has, a token for each request.

    Args:
        runner: Whose graphs are captured.
    """
    parallel = runner.vllm_config.parallel_config
    return (
        parallel.tensor_parallel_size == parallel.pipeline_parallel_size == 1
        and runner.sampler is not None
        and runner.speculator is None
        and runner.lora_config is None
        and runner.num_speculative_steps == 0
        and not runner.sampler.compute_nans
        and getattr(runner.cudagraph_manager, "hidden_states", None) is not None
    )


class GraphSampler:
    """Head and sampler of one runner.

    Args:
        runner: vLLM's `GPUModelRunner`, whose graphs are captured.
    """

    def __init__(self, runner: Any):
        self._runner, self._sampler = runner, runner.sampler
        self._hidden: Tensor = runner.cudagraph_manager.hidden_states  # that graphs write
        states, most = self._sampler.sampling_states, runner.max_num_reqs
        # What a graph reads has to stay where it is; of these vLLM has other tensors in each step.
        device = self._hidden.device
        self._slots = torch.zeros(most, dtype=torch.int32, device=device)
        self._temperature = torch.zeros_like(states.temperature.gpu, device=device)
        self._seeds = torch.zeros_like(states.seeds.gpu, device=device)
        self._one = torch.ones(most, dtype=torch.int32, device=device)
        self._none = torch.zeros_like(self._one)
        self._graphs: dict[int, tuple[Any, Tensor]] = {}
        self._arrivals = 0
        self._known: tuple[tuple[int, bytes], bool] = ((-1, b""), False)

    def install(self) -> None:
        """Captures graphs, and takes the place of two methods of the runner."""
        with torch.inference_mode():
            for size in sorted(self._sizes(), reverse=True):  # smaller ones fit where larger lay
                self._graphs[size] = self._capture(size)
        self._their_sample = self._runner.sample
        self._their_add_requests = self._runner.add_requests
        self._runner.sample = self.sample
        self._runner.add_requests = self.add_requests
        logger.info(
            "decode sampling: head and sampler are CUDA graphs of %d batch sizes; "
            "decode_sampling=default leaves them to vLLM",
            len(self._graphs),
        )

    def _sizes(self) -> set[int]:
        """Of the batches with a token for each request whose model is a graph."""
        return {
            each.num_tokens
            for each in self._runner.cudagraph_manager.graphs
            if each.cg_mode == CUDAGraphMode.FULL and each.uniform_token_count == 1
        }

    def _capture(self, size: int) -> tuple[Any, Tensor]:
        """A graph, and the tokens that it draws."""
        self._draw(size)  # what compiles or allocates once does so here
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, self._runner.cudagraph_manager.pool):
            tokens = self._draw(size)
        return graph, tokens

    def _draw(self, size: int) -> Tensor:
        from vllm.v1.worker.gpu.sample.gumbel import apply_temperature, gumbel_sample

        logits = self._runner.model.compute_logits(self._hidden[:size])
        apply_temperature(logits, self._slots[:size], self._temperature)
        return gumbel_sample(
            logits,
            self._slots[:size],
            self._temperature,
            self._seeds,
            self._runner.input_buffers.positions[:size],
            apply_temperature=False,
            use_fp64=self._sampler.use_fp64_gumbel,
        )

    # In the place of the runner's methods.

    def sample(
        self, hidden_states: Tensor, input_batch: Any, grammar_output: Any
    ) -> tuple[Any, Tensor, Tensor]:
        """Draws a token for each request; of `GPUModelRunner.sample`.

        Args:
            hidden_states: [rows, hidden]; with the rows that pad a graph.
            input_batch: vLLM's `InputBatch`.
            grammar_output: Masks of logits, if any request has a grammar.

        Returns:
            As vLLM's: the output, and how many tokens of each request were drawn and rejected.
        """
        size = hidden_states.shape[0]
        if (
            grammar_output is not None
            or size not in self._graphs
            or hidden_states.data_ptr() != self._hidden.data_ptr()
            or not self._is_plain(input_batch)
        ):
            return self._their_sample(hidden_states, input_batch, grammar_output)
        from vllm.v1.worker.gpu.sample.output import SamplerOutput

        requests = input_batch.num_reqs
        self._slots[:requests].copy_(input_batch.idx_mapping)
        graph, tokens = self._graphs[size]
        graph.replay()
        drawn, rejected = self._one[:requests], self._none[:requests]
        # A copy: the host reads them when the next step may have begun.
        output = SamplerOutput(
            sampled_token_ids=tokens[:requests].clone().view(-1, 1),
            logprobs_tensors=None,
            num_nans=None,
            num_sampled=drawn,
            num_rejected=rejected,
        )
        return output, drawn, rejected

    def add_requests(self, scheduler_output: Any) -> None:
        """Takes new requests; of `GPUModelRunner.add_requests`.

        Without any, vLLM's would copy the sampler's state again, which only requests change.
        """
        if not scheduler_output.scheduled_new_reqs:
            return
        self._their_add_requests(scheduler_output)
        self._arrivals += 1
        states = self._sampler.sampling_states
        self._temperature.copy_(states.temperature.gpu)
        self._seeds.copy_(states.seeds.gpu)

    def _is_plain(self, input_batch: Any) -> bool:
        """Whether all requests decode, and nothing but a temperature bears on their tokens."""
        if (
            input_batch.num_tokens != input_batch.num_reqs
            or input_batch.num_draft_tokens
            or input_batch.is_prefilling_np.any()
        ):
            return False
        slots = input_batch.idx_mapping_np
        key = self._arrivals, slots.tobytes()
        if key != self._known[0]:
            self._known = key, not self._asks_more(slots)
        return self._known[1]

    def _asks_more(self, slots: np.ndarray) -> bool:
        sampler, states = self._sampler, self._sampler.sampling_states
        return bool(
            sampler.returns_logprobs(slots)
            or (states.top_k.np[slots] != states.vocab_size).any()
            or (states.top_p.np[slots] != 1).any()
            or states.min_p.np[slots].any()
            or sampler.penalties_state.use_penalty[slots].any()
            or sampler.logit_bias_state.use_logit_bias[slots].any()
            or sampler.bad_words_state.num_bad_words.np[slots].any()
        )
