# SPDX-License-Identifier: Apache-2.0
"""The output head of a model that is to be packed in 8 bits (FlashSparseConfig.head)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch import nn

from ...modules import is_linear
from ...packed import FormatError

if TYPE_CHECKING:
    from transformers.modeling_utils import PreTrainedModel


class Head(NamedTuple):
    """The output head of a model.

    Attributes:
        name: Of the linear layer.
        embedding: Of the embedding that it is tied to; None: it has a weight of its own.
    """

    name: str
    embedding: str | None = None

    @property
    def owner(self) -> str:
        """The module that the weight belongs to, in the model and in files."""
        return self.embedding or self.name


def head_of(model: PreTrainedModel, asked: str) -> Head:
    """Finds the output head of a skeleton.

    Args:
        model: The skeleton.
        asked: What is asked of the head, for messages: "int8".

    Raises:
        FormatError: For a model without one, and for a head or a tie that cannot be packed.
    """
    output = model.get_output_embeddings()
    name = next((name for name, each in model.named_modules() if each is output), None)
    kind = type(model).__name__
    if output is None or name is None:
        raise FormatError(
            f"head={asked!r}: {kind} has no output head of tokens. Remedy: leave head out"
        )
    where = f"layer {name!r}: head={asked!r}"
    if not is_linear(output):
        raise FormatError(
            f"{where} packs an nn.Linear, and this head is a {type(output).__name__}, which may "
            "compute something else. Remedy: leave head out"
        )
    ties, weight = model.all_tied_weights_keys, f"{name}.weight"
    others = [key for pair in ties.items() if weight in pair for key in pair if key != weight]
    if not others:
        return Head(name)
    source, _, _ = others[0].rpartition(".")
    embedding = model.get_submodule(source)
    if len(others) > 1 or ties.get(weight) != f"{source}.weight" or len(ties) > 1:
        raise FormatError(
            f"{where} packs a weight that one embedding shares with the head alone, and {kind} "
            f"ties {', '.join(map(repr, [*ties, *ties.values()]))}. Remedy: leave head out"
        )
    if type(embedding) is not nn.Embedding or embedding.max_norm is not None:
        raise FormatError(
            f"{where}: it is tied to {source!r}, whose class {type(embedding).__name__} does more "
            "than to read rows. Remedy: leave head out; vLLM serves such a model with it"
        )
    return Head(name, source)
