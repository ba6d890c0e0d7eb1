# SPDX-License-Identifier: Apache-2.0
"""What is measured of one model in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor, nn

from ..experts import PackedStack
from ..linear import SparseLinear
from ..packed import dtype_name
from ..text import token_stream
from .quality import perplexity
from .rivals import Coded, Fp8Linear
from .speed import rates
from .tasks import task_scores

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from .sizes import Sizes


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Attributes:
        context: Tokens of a window of the perplexity; and of the prompt of the prefill.
        most_tokens: Tokens from the start of the text that are predicted; None for all.
        tasks: Names of tasks of lm-eval.
        limit: Examples a task; None for all.
        decode_tokens: Tokens to write for the speed, after a prompt of 64; 0 measures no speed.
        rounds: Samples of the speed, whose median counts.
    """

    context: int = 512
    most_tokens: int | None = None
    tasks: Sequence[str] = ()
    limit: int | None = None
    decode_tokens: int = 32
    rounds: int = 3


@dataclass(frozen=True)
class Figures:
    """What was found.

    Attributes:
        sizes: Of the linear weights; None where they were not asked for.
        sparsity: Share of zeros among them before anything was quantised.
        ran: What multiplied, for people: kernels and dtype of the activations.
        perplexity: On the text, where there was one.
        tasks: Score by task and metric.
        prefill: Tokens a second of a prompt, one sequence.
        decode: Tokens a second of greedy text, one sequence.
    """

    sizes: Sizes
    sparsity: float
    ran: str
    perplexity: float | None = None
    tasks: dict[str, float] = field(default_factory=dict)
    prefill: float | None = None
    decode: float | None = None


PROMPT = 64  # tokens before what is decoded


def measure(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: str | None,
    sizes: Sizes,
    sparsity: float,
    effort: Effort,
) -> Figures:
    """Quality and speed of a model as it is.

    Args:
        model: The model, on any device, in evaluation mode.
        tokenizer: Its tokenizer.
        text: The text to predict; None where only tasks are asked for.
        sizes: Of its linear weights.
        sparsity: Share of zeros among them.
        effort: How much to measure.

    Raises:
        ValueError: As `perplexity` does, and for a task that lm-eval does not know.
        ImportError: Where tasks are asked for and lm-eval is not installed.
    """
    model.eval()
    found = speed = None
    if text is not None:
        found = perplexity(model, tokenizer, text, effort.context, effort.most_tokens)
    scores = task_scores(model, tokenizer, effort.tasks, effort.limit) if effort.tasks else {}
    if effort.decode_tokens:
        device = model.get_input_embeddings().weight.device
        ids = token_stream(tokenizer, text or "It was the best of times. " * effort.context)
        ids = ids[None, : effort.context].to(device)
        limit = getattr(model.config.get_text_config(), "max_position_embeddings", None) or 1 << 30
        tokens = min(effort.decode_tokens, limit - 1)
        prompt = min(PROMPT, ids.shape[1], limit - tokens)
        speed = rates(model, ids[:, :limit], prompt, tokens, effort.rounds)
    ran = what_runs(model)
    if speed is None:
        return Figures(sizes, sparsity, ran, found, scores)
    if speed.graphed:
        ran += ", decoding as a CUDA graph"
    return Figures(sizes, sparsity, ran, found, scores, speed.prefill, speed.decode)


def what_runs(model: PreTrainedModel) -> str:
    """Which kernels multiply the linear layers of a model, and in what dtype of activations."""
    head = model.get_output_embeddings()
    kinds: dict[str, None] = {}
    for module in model.modules():
        if isinstance(module, SparseLinear):
            kinds[f"{module.held.format.name}_linear{_path(module)}"] = None
        elif isinstance(module, PackedStack):
            kinds[f"{module.held.format.name} experts"] = None
        elif isinstance(module, Coded | Fp8Linear):
            kinds["torch's linear on the dequantized weights, not timed,"] = None
        elif isinstance(module, nn.Linear) and module is not head:
            kind = type(module.weight.data)
            own = "linear" if kind is Tensor else kind.__name__
            kinds[f"{kind.__module__.partition('.')[0]}'s {own}"] = None
        elif type(module).__module__.startswith("torch.ao.nn.quantized.dynamic"):
            kinds["torch's dynamic int8 linear"] = None
    device = model.get_input_embeddings().weight.device.type
    dtype = dtype_name(model.get_input_embeddings().weight.dtype)
    return f"{' and '.join(kinds) or 'no known linear layer'} on {device}, {dtype}"


def _path(module: SparseLinear) -> str:
    """The instruction set of a kernel on a CPU."""
    if module.packed.device.type != "cpu":
        return ""
    from ..ops import ops

    return f" ({ops.cpu_capability()})"
