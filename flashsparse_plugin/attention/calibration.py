# SPDX-License-Identifier: Apache-2.0
"""Choosing phi: which softmax inputs a model has on a text, and what each phi would cost.

By FlashDecoding++ (Hong et al., 2023), section 3 and Figure 5, the softmax inputs of most models
lie close enough together that one number, phi, serves all of them. For other models the technique
is not used, as the paper excludes OPT.

The kernels judge a phi by the sums of parts (docs/attention.md, "The guard"), and so does this
module. Each position of the text is a decode step that attends to the positions before it, cut into
parts as the CUDA kernel cuts them. Two numbers of each part decide: the logarithm of its sum and
its largest score. Their histograms give the share of parts that any phi would recompute, so one
pass over the text suffices to choose the best one.
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from .references import KEY, VERSION, LayerReference, UnifiedMax

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# A part is the share of a split that one warp computes. This is the shortest: 32 positions, 2 tiles
# of 16, alternating with 7 other warps (least_tiles and kMaxWarps in
# kernels/cuda/attention/unified_max_plan.h, find_split in unified_max_decode.cuh). Contexts beyond
# 4,096 tokens and large batches have larger parts, and on the CPU a whole sequence is one part:
# larger sums, of which fewer are too small.
TILE, WARPS, TURNS = 16, 8, 2
SPLIT = TILE * WARPS * TURNS

ROWS = 256  # decode steps that are processed together, which bounds the memory
HELD = 0.9999  # of the scores, between a and b

# Bounds of a part's sum and its largest term, as logarithms (ops/attention.py). Terms of bfloat16
# have the range of float32 and are bounded by their sum.
_LOW = {"float16": -4 * math.log(2), "bfloat16": -60 * math.log(2)}
_HIGH = {"float16": math.log(65504), "bfloat16": 60 * math.log(2)}

NAME = "unified_max_calibration"


class Histogram:
    """Counts of numbers for each head, in bins of the resolution of phi.

    Attributes:
        counts: int64 [heads, BINS + 2] on the CPU; the first and the last bin hold what lies beyond
            REACH.
    """

    REACH = 512.0
    WIDTH = 1 / 8
    BINS = int(2 * REACH / WIDTH)

    def __init__(self, heads: int):
        self.counts = torch.zeros(heads, self.BINS + 2, dtype=torch.int64)

    def add(self, first_head: int, values: Tensor) -> None:
        """Counts values [heads, ...] except -inf, which stands for masked positions."""
        heads, drop = len(values), self.BINS + 2
        half = self.BINS // 2
        # Exact: the width is a power of 2.
        bins = (values.flatten(1) / self.WIDTH).floor_().clamp_(-half - 1, half)
        bins = bins.long().add_(half + 1).masked_fill_(values.flatten(1) == -torch.inf, drop)
        bins += torch.arange(heads, device=bins.device)[:, None] * (drop + 1)
        counts = bins.flatten().bincount(minlength=heads * (drop + 1)).view(heads, -1)
        self.counts[first_head : first_head + heads] += counts[:, :drop].cpu()

    @classmethod
    def edge(cls, index: int) -> float:
        """Lower edge of bin `index`, which is the upper one of the bin before."""
        return (index - 1) * cls.WIDTH - cls.REACH


class LayerScores:
    """The softmax inputs of one layer, counted.

    Attributes:
        least: Smallest score of each head, float32 [heads].
        most: Largest score of each head, float32 [heads].
        scores: Histogram of all scores.
        sums: Histogram of the logarithms of the parts' sums of e^score.
        tops: Histogram of the parts' largest scores.
    """

    def __init__(self, heads: int):
        self.least = torch.full((heads,), torch.inf)
        self.most = torch.full((heads,), -torch.inf)
        self.scores, self.sums, self.tops = (Histogram(heads) for _ in range(3))

    def add(self, first_head: int, scores: Tensor) -> None:
        """Counts scores, float32 [heads, decode steps, positions], -inf where masked."""
        heads = slice(first_head, first_head + len(scores))
        lost = -scores.shape[-1] % SPLIT
        parts = torch.nn.functional.pad(scores, (0, lost), value=-torch.inf)
        parts = parts.unflatten(-1, (-1, TURNS, WARPS, TILE))
        least = scores.masked_fill(scores == -torch.inf, torch.inf).amin((1, 2)).cpu()
        self.least[heads] = torch.minimum(self.least[heads], least)
        self.most[heads] = torch.maximum(self.most[heads], scores.amax((1, 2)).cpu())
        self.scores.add(first_head, scores)
        self.sums.add(first_head, parts.logsumexp((-3, -1)))
        self.tops.add(first_head, parts.amax((-3, -1)))


@dataclass(frozen=True)
class LayerFinding:
    """The calibration of one layer on a text. All but shares are in the units of scores.

    Attributes:
        least: Smallest score.
        most: Largest.
        held: The two numbers between which 99.99% of the scores lie.
        reference: phi of each head, a and b around it, and the share of recomputed parts.
        counts: Histogram of the scores of all heads, int64 [BINS + 2].
    """

    least: float
    most: float
    held: tuple[float, float]
    reference: LayerReference
    counts: Tensor


@dataclass(frozen=True)
class Calibration:
    """The calibration of a model on a text.

    Attributes:
        dtype: "float16" or "bfloat16", the dtype that phi was chosen for.
        tokens: Number of tokens of the text that were used.
        layers: Calibrations by layer number; None for a layer without a softmax (linear attention,
            for example).
    """

    dtype: str
    tokens: int
    layers: list[LayerFinding | None]

    def refused(self, limit: float) -> list[int]:
        """Numbers of the layers that would recompute more than `limit` of their parts."""
        return [
            number
            for number, layer in enumerate(self.layers)
            if layer is not None and layer.reference.recomputed > limit
        ]

    def entry(self, limit: float, text: str = "") -> UnifiedMax:
        """Makes the entry "unified_max" of a config.json.

        Args:
            limit: Layers that would recompute more than this share of their parts get no phi.
            text: Name of the text.

        Raises:
            ValueError: If more than half of the layers get no phi, so that it does not suit the
                model.
        """
        refused = self.refused(limit)
        count = sum(layer is not None for layer in self.layers)
        if 2 * len(refused) > count:
            room = _HIGH[self.dtype] - _LOW[self.dtype]
            other = "; bfloat16 has 83" if self.dtype == "float16" else ""
            raise ValueError(
                f"the scores of {len(refused)} of {count} layers are spread too widely for one "
                f"phi per head: more than {limit:.2%} of the parts would be recomputed, as "
                f"{self.dtype} has a range of {room:.0f} in all{other}. Nothing is written: "
                "without an entry the model runs the online softmax, which handles any scores"
            )
        layers = [
            None if layer is None or number in refused else layer.reference
            for number, layer in enumerate(self.layers)
        ]
        return UnifiedMax(
            version=VERSION, dtype=self.dtype, layers=layers, text=text, tokens=self.tokens
        )


@torch.no_grad()
def calibrate(
    model: PreTrainedModel,
    windows: Tensor,
    dtype: str,
    on_window: Callable[[int], None] = lambda done: None,
) -> Calibration:
    """Runs a model over a text and chooses phi for each layer and head.

    Args:
        model: A causal language model of transformers, on any device; its training flag and its
            attention are restored.
        windows: int64 [windows, tokens]; each position is a decode step.
        dtype: "float16" or "bfloat16", the dtype to choose phi for.
        on_window: Called after each window with the number of finished windows.

    Raises:
        ValueError: If a score is NaN or infinite, or the model's attention cannot be observed.
    """
    if dtype not in _LOW:
        raise ValueError(f"phi is chosen for {' or '.join(_LOW)}, not for {dtype}")
    seen: dict[int, LayerScores] = {}
    device = model.get_input_embeddings().weight.device
    body = getattr(model, model.base_model_prefix, model)  # no logits: nothing uses them
    with _looked_at(model, seen):
        for done, window in enumerate(windows, start=1):
            body(input_ids=window[None].to(device), use_cache=False)
            on_window(done)
    if not seen:
        raise ValueError(
            f"{type(model).__name__} does not take its attention from transformers' "
            "AttentionInterface: unified_max cannot serve it, with or without phi"
        )
    layers = model.config.get_text_config().num_hidden_layers
    findings = [finding(seen[n], dtype) if n in seen else None for n in range(layers)]
    return Calibration(dtype, windows.numel(), findings)


def write_entry(entry: UnifiedMax, config: Path) -> None:
    """Puts the entry into a config.json, beside the number of heads; no other key changes.

    Args:
        entry: Replaces an existing entry.
        config: The file, which is replaced atomically.
    """
    data = json.loads(config.read_text(encoding="utf-8"))
    text_config(data)[KEY] = entry.model_dump(mode="json")
    with tempfile.TemporaryDirectory(dir=config.parent, prefix=".config.") as work:
        whole = Path(work) / config.name
        whole.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        shutil.copymode(config, whole)
        whole.replace(config)


def text_config(data: dict[str, Any]) -> dict[str, Any]:
    """The part of a config.json that describes the language model and holds the entry."""
    nested = data.get("text_config")
    return nested if isinstance(nested, dict) and "num_attention_heads" not in data else data


# ---- choosing -----------------------------------------------------------------------------------


def finding(seen: LayerScores, dtype: str) -> LayerFinding:
    """Chooses phi for the heads of a layer so that the fewest parts are recomputed."""
    chosen, bad = [], 0
    for sums, tops in zip(seen.sums.counts, seen.tops.counts, strict=True):
        index, failed = _choose(sums, tops if dtype == "float16" else sums, dtype)
        chosen.append(index)
        bad += failed
    counts = seen.scores.counts
    # The scores relative to each head's phi, which is on an edge of a bin.
    around = torch.zeros(2 * counts.shape[1], dtype=torch.int64)
    for index, head in zip(chosen, counts, strict=True):
        start = counts.shape[1] - index
        around[start : start + len(head)] += head
    a, b = (Histogram.WIDTH * (edge - counts.shape[1]) for edge in _middle(around))
    low, high = _middle(counts.sum(0))
    least, most = float(seen.least.min()), float(seen.most.max())
    return LayerFinding(
        least=least,
        most=most,
        held=(  # the bins at the ends have no end
            max(Histogram.edge(low), least) if low > 0 else least,
            min(Histogram.edge(high), most) if high < counts.shape[1] else most,
        ),
        reference=LayerReference(
            phi=[Histogram.edge(index) for index in chosen],
            a=min(a, 0.0),
            b=max(b, 0.0),
            recomputed=bad / int(seen.sums.counts.sum()),
        ),
        counts=counts.sum(0),
    )


def _choose(sums: Tensor, tops: Tensor, dtype: str) -> tuple[int, int]:
    """Chooses phi for one head; returns the bin whose lower edge it is and how many parts fail.

    A part fails if its sum is below e^(phi + low), or its top (float16: its largest term, else its
    sum) is above phi + high; never both. Bins that contain a bound count as failing.
    """
    bins = Histogram.BINS
    index = torch.arange(1, bins + 2)  # candidates: every edge
    too_small = index - 1 + math.ceil(_LOW[dtype] / Histogram.WIDTH)  # the last bin of these
    held = index - 1 + math.floor(_HIGH[dtype] / Histogram.WIDTH)  # the last bin of those
    failed = sums.cumsum(0)[too_small.clamp(0, bins)]
    failed += tops.sum() - tops.cumsum(0)[held.clamp(0, bins)]
    # The middle of the widest range of equally good candidates, far from either bound.
    best = (failed == failed.min()).nonzero().flatten()
    _, lengths = (best - torch.arange(len(best))).unique_consecutive(return_counts=True)
    widest = int(lengths.argmax())
    chosen = best[int(lengths[:widest].sum()) + int(lengths[widest]) // 2]
    return int(index[chosen]), int(failed[chosen])


def _middle(counts: Tensor) -> tuple[int, int]:
    """The edges (numbers of bins) between which at least HELD of the counted numbers lies."""
    beyond = int(counts.sum() * (1 - HELD) / 2)
    low = int((counts.cumsum(0) > beyond).nonzero()[0])
    high = len(counts) - int((counts.flip(0).cumsum(0) > beyond).nonzero()[0])
    return low, high


# ---- observing attention -------------------------------------------------------------------------


@contextmanager
def _looked_at(model: PreTrainedModel, seen: dict[int, LayerScores]) -> Iterator[None]:
    """Within this context the model's attention records its scores."""
    from transformers import AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    def attention(*args: Any, **kwargs: Any) -> tuple[Tensor, None]:
        return _attend(seen, *args, **kwargs)

    before, was_training = model.config._attn_implementation, model.training
    ALL_ATTENTION_FUNCTIONS[NAME] = attention
    # bool, or None for a causal mask. transformers looks masks up in the global table only.
    AttentionMaskInterface.register(NAME, sdpa_mask)
    try:
        model.eval().set_attn_implementation(NAME)
        yield
    finally:
        model.train(was_training).set_attn_implementation(before)
        del ALL_ATTENTION_FUNCTIONS[NAME]


def _attend(
    seen: dict[int, LayerScores],
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Causal attention as transformers' layers call it, in float32, a block of scores at a time.

    query [1, heads, tokens, head_dim]; key, value [1, kv_heads, tokens, ...]; attention_mask bool
    [1, 1, tokens, tokens] or None.
    """
    if attention_mask is not None and attention_mask.dtype != torch.bool:
        raise ValueError(
            f"{type(module).__name__} has a mask of {attention_mask.dtype}, which adds to the "
            "scores; unified_max does not support that, so there is nothing to calibrate"
        )
    unknown = [n for n in ("position_bias", "s_aux") if options.get(n) is not None]
    if unknown:
        raise ValueError(
            f"{type(module).__name__} adds {unknown[0]} to its attention, which unified_max does "
            "not support, so there is nothing to calibrate"
        )
    heads, tokens = query.shape[1:3]
    group = heads // key.shape[1]
    number = cast(int, module.layer_idx)
    if number not in seen:
        seen[number] = LayerScores(heads)
    layer = seen[number]
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    out = torch.empty(tokens, heads, value.shape[-1], dtype=query.dtype, device=query.device)
    causal = torch.ones(tokens, tokens, dtype=torch.bool, device=query.device).tril_()
    allowed = causal if attention_mask is None else attention_mask[0, 0]
    for kv_head, (keys, values) in enumerate(zip(key[0].float(), value[0].float(), strict=True)):
        mine = slice(kv_head * group, (kv_head + 1) * group)
        for start in range(0, tokens, ROWS):
            end = min(start + ROWS, tokens)
            scores = query[0, mine, start:end].float() @ keys[:end].T * scaling
            if softcap:
                scores = softcap * torch.tanh(scores / softcap)
            if not scores.isfinite().all():
                raise ValueError(
                    f"layer {module.layer_idx}: softmax inputs are infinite or NaN; "
                    "does the model run in this dtype at all?"
                )
            scores.masked_fill_(~allowed[start:end, :end], -torch.inf)
            layer.add(mine.start, scores)
            out[start:end, mine] = (scores.softmax(-1) @ values[:end]).transpose(0, 1).to(out)
    return out[None], None
