# SPDX-License-Identifier: Apache-2.0
"""Shapes of models; those that people serve most, so that nobody has to fetch a config.json."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

Shape = tuple[int, int]  # (out_features, in_features)


@dataclass(frozen=True)
class Experts:
    """The experts of a mixture.

    Attributes:
        count: How many a layer has.
        active: How many of them a token is sent to.
        matrices: By the shape of a matrix of an expert, in how many layers its experts have one.
    """

    count: int
    active: int
    matrices: Mapping[Shape, int]

    @property
    def parameters(self) -> int:
        """Of all experts."""
        return self.count * sum(
            layers * rows * columns for (rows, columns), layers in self.matrices.items()
        )

    def read(self, tokens: int) -> float:
        """How many experts of a layer so many tokens reach, if each is as likely as any other."""
        return self.count * (1 - (1 - self.active / self.count) ** tokens)


@dataclass(frozen=True)
class ModelShapes:
    """What the estimates of a model's speed and size go by.

    Attributes:
        layers: How many linear layers there are of each shape, as engines merge them; without the
            output head.
        head: Shape of the output head; None where there is none.
        others: Parameters that are in none of these layers, a tied head's counted once; without
            experts.
        experts: Of a mixture; one for each kind of layer that has some.
    """

    layers: Mapping[Shape, int]
    head: Shape | None = None
    others: int = 0
    experts: tuple[Experts, ...] = ()

    @property
    def expert_parameters(self) -> int:
        return sum(each.parameters for each in self.experts)


@dataclass(frozen=True)
class Served:
    """A decoder's sizes, as its config.json has them.

    Attributes:
        names: What it is called, without the organization.
        layers: Decoder layers.
        hidden: Columns of most layers.
        heads: Columns of the attention's output projection.
        qkv: Rows of q, k and v together.
        inner: Columns of the down projection; gate and up have as many rows each.
        vocabulary: Rows of the embedding.
        tied: Whether the output head is the embedding.
    """

    names: tuple[str, ...]
    layers: int
    hidden: int
    heads: int
    qkv: int
    inner: int
    vocabulary: int
    tied: bool = False

    @property
    def shapes(self) -> list[Shape]:
        """Of the linear layers, as engines merge them: qkv, o, gate and up, down."""
        return [
            (self.qkv, self.hidden),
            (self.hidden, self.heads),
            (2 * self.inner, self.hidden),
            (self.hidden, self.inner),
        ]

    @property
    def model_shapes(self) -> ModelShapes:
        """All that estimates go by; the parameters of norms are few and left out."""
        embeddings = (1 if self.tied else 2) * self.vocabulary * self.hidden
        head = self.vocabulary, self.hidden
        return ModelShapes(dict.fromkeys(self.shapes, self.layers), head, embeddings)


SERVED = (
    Served(("Llama-3.1-8B", "Llama-3-8B"), 32, 4096, 4096, 6144, 14336, 128256),
    Served(("Llama-3.3-70B", "Llama-3.1-70B", "Llama-3-70B"), 80, 8192, 8192, 10240, 28672, 128256),
    Served(("Qwen3-8B",), 36, 4096, 4096, 6144, 12288, 151936),
    Served(("Qwen3-32B",), 64, 5120, 8192, 10240, 25600, 151936),
    Served(("Qwen3-14B",), 40, 5120, 5120, 7168, 17408, 151936),
    Served(("Llama-3.2-1B",), 16, 2048, 2048, 3072, 8192, 128256, tied=True),
    Served(("Llama-3.2-3B",), 28, 3072, 3072, 5120, 8192, 128256, tied=True),
    Served(("Qwen3-4B",), 36, 2560, 4096, 6144, 9728, 151936, tied=True),
    Served(("Phi-4",), 40, 5120, 5120, 7680, 17920, 100352),
    Served(("Mistral-Small-24B",), 40, 5120, 4096, 6144, 32768, 131072),
    Served(("Gemma-3-12B",), 48, 3840, 4096, 8192, 15360, 262208, tied=True),
    Served(("Gemma-3-27B",), 62, 5376, 4096, 8192, 21504, 262208, tied=True),
    Served(("Gemma-3-4B",), 34, 2560, 2048, 4096, 10240, 262208, tied=True),
    Served(("Qwen3-1.7B",), 28, 2048, 2048, 4096, 6144, 151936, tied=True),
    Served(("Mistral-Nemo",), 40, 5120, 4096, 6144, 14336, 131072),
    Served(("Qwen3-0.6B",), 28, 1024, 2048, 4096, 3072, 151936, tied=True),
    Served(("Mistral-7B",), 32, 4096, 4096, 6144, 14336, 32768),
)
"""The most used first."""


@dataclass(frozen=True)
class Mixture(Served):
    """A decoder whose feed-forward layers are experts, all of them; `inner` is that of an expert.

    Attributes:
        experts: In each layer.
        active: Of them for a token.
    """

    experts: int = field(kw_only=True)
    active: int = field(kw_only=True)

    @property
    def model_shapes(self) -> ModelShapes:
        attention, expert = self.shapes[:2], self.shapes[2:]
        whole = super().model_shapes
        matrices = dict.fromkeys(expert, self.layers)
        layers = dict.fromkeys(attention, self.layers)
        own = Experts(self.experts, self.active, matrices)
        return ModelShapes(layers, whole.head, whole.others, (own,))


MIXTURES = (
    Mixture(("Qwen3-30B-A3B",), 48, 2048, 4096, 5120, 768, 151936, experts=128, active=8),
    Mixture(("gpt-oss-20b",), 24, 2880, 4096, 5120, 2880, 201088, experts=32, active=4),
    Mixture(("gpt-oss-120b",), 36, 2880, 4096, 5120, 2880, 201088, experts=128, active=4),
    Mixture(("Mixtral-8x7B",), 32, 4096, 4096, 6144, 14336, 32000, experts=8, active=2),
    Mixture(("Qwen3-235B-A22B",), 94, 4096, 8192, 9216, 1536, 151936, experts=128, active=8),
)
"""Mixtures, the most used first."""

# What may follow the name: it does not change the shapes.
_REST = re.compile(r"(-(instruct|thinking|it|pt|base|chat|hf|fp8|2of4|12b|v\d[\d.]*|\d{4}))*")


def served(name: str) -> Served | None:
    """The model of a name such as "meta-llama/Llama-3.1-8B-Instruct" or "qwen3-8b".

    Args:
        name: With or without the organization, in any case.

    Returns:
        None for a model that is not in the table.
    """
    short = name.rpartition("/")[2].partition("@")[0].lower()
    short = short.removeprefix("meta-").removeprefix("sparse-")
    for each in (*SERVED, *MIXTURES):
        for known in map(str.lower, each.names):
            if short.startswith(known) and _REST.fullmatch(short, len(known)):
                return each
    return None


# Families whose linear layers follow from a few numbers of config.json, and the class that says so.
_PLAIN = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_SIZES = (
    *("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads"),
    *("intermediate_size", "vocab_size"),
)
_MOST_LAYERS = 1024


def plain_decoder(config: Mapping[str, Any]) -> ModelShapes | None:
    """Reads the shapes of a decoder as most families have it, without transformers.

    To import transformers and to build the model takes seconds; `model_shapes` of
    `checkpoint.read.shapes` does so for every other model.

    Args:
        config: The content of config.json, from outside.

    Returns:
        None for other families, and wherever a size is missing or unlikely.
    """
    family = config.get("model_type")
    if not isinstance(family, str) or config.get("architectures") != [_PLAIN.get(family)]:
        return None
    found = [config.get(name) for name in _SIZES]
    sizes = [each for each in found if type(each) is int and 1 <= each <= 1 << 23]
    tied = config.get("tie_word_embeddings", False)
    has_bias = config.get("attention_bias") or config.get("mlp_bias")
    if len(sizes) < len(_SIZES) or has_bias or tied not in (0, 1):
        return None
    layers, hidden, heads, groups, inner, vocabulary = sizes
    dim = config.get("head_dim")
    if dim is None and family != "qwen3" and hidden % heads == 0:  # qwen3's default is a number
        dim = hidden // heads
    if type(dim) is not int or not 1 <= dim <= 1 << 16 or layers > _MOST_LAYERS:
        return None
    qkv = (heads + 2 * groups) * dim
    own = Served((family,), layers, hidden, heads * dim, qkv, inner, vocabulary, bool(tied))
    of_attention = {"qwen2": qkv, "qwen3": 2 * dim}.get(family, 0)  # biases; norms of q and k
    norms = hidden + layers * (2 * hidden + of_attention)
    shapes = own.model_shapes
    return replace(shapes, others=shapes.others + norms)


def served_names() -> str:
    """The first name of each model, for messages."""
    return ", ".join(each.names[0] for each in (*SERVED, *MIXTURES))
