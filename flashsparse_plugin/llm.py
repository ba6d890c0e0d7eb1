# SPDX-License-Identifier: Apache-2.0
"""fs.LLM: vLLM from Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import vllm


def LLM(
    model: str,
    *args: Any,
    sparse_method: str | None = None,
    decode_attention: str | None = None,
    **kwargs: Any,
) -> vllm.LLM:
    """Returns `vllm.LLM(model, ...)` with the arguments `sparse_method` and `decode_attention`.

    vLLM loads plugins only after it has parsed its arguments; this function loads ours before.

    Args:
        model: A packed checkpoint, or a dense one with zeros.
        *args: Passed to `vllm.LLM`.
        sparse_method: A format to pack a dense checkpoint into while it loads, "auto" to choose
            one for each layer, or to leave it dense, by what should be fastest; "none" for dense
            weights. Not needed for a packed checkpoint.
        decode_attention: "unified_max" for our attention in steps of one token a sequence,
            "default" or None for vLLM's own.
        **kwargs: Passed to `vllm.LLM`.

    Raises:
        ImportError: If vLLM is not installed.
    """
    try:
        import vllm
    except ImportError as error:
        raise ImportError(
            f"fs.LLM needs vLLM, which could not be imported ({error}): pip install vllm, or for "
            "a machine without a GPU see docs/vllm.md"
        ) from error
    from .integrations.vllm import register

    register()
    if sparse_method is not None:
        kwargs["sparse_method"] = sparse_method
    if decode_attention is not None:
        kwargs["decode_attention"] = decode_attention
    return vllm.LLM(model, *args, **kwargs)
