# SPDX-License-Identifier: Apache-2.0
"""2:4 in two copies on a GPU: sparse_24 for few tokens, and one that cuSPARSELt reads for prompts.

What the option prompts=cusparselt asks for: the library multiplies prompts faster than our kernel
does, from a layout of its own, which cannot be cut, saved or read by anybody else. So both copies
are there, in 18 bits a weight instead of 9. Made at load from the storage form, never written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...gpu import Gpu
from ...packed import FormatError, PackedWeight, Scheme, TensorSpec, dtype_name
from ...plan import FEW, MANY, Implementation, Plan
from ..nm_pattern import PatternOptions
from ..sparse_24 import Sparse24
from . import cost, library
from .ops import ops

CUSPARSELT = "cusparselt"
"""The implementation of the second copy, in plans and tables."""


class CuSparselt24(Sparse24):
    name = "cusparselt_24"
    copies = 2
    searches = True
    # The library's search in float16 ended in an illegal instruction (H200, torch 2.11): after that
    # nothing runs on the GPU any more.
    dtypes = (torch.bfloat16,)
    holds = "2:4, and what embeds in it, of 16-bit values"
    tensor_names = ("units", "compressed")

    def fits(self, options: PatternOptions) -> bool:
        return super().fits(options) and options.value_type is None

    def examples(self) -> tuple[Scheme, ...]:
        return tuple(self.scheme(dtype, {"n": 2, "m": 4}) for dtype in self.dtypes)

    def of(self, stored: Scheme, device: torch.device) -> Scheme:
        """The scheme of this form for a stored weight that asks for it.

        Raises:
            FormatError: For a device other than a GPU, and another dtype than bfloat16.
        """
        if device.type != "cuda":
            raise FormatError(
                f"prompts=cusparselt is for NVIDIA GPUs, and the layer is on a {device.type} "
                'device. Remedy: load it onto the GPU (device_map="cuda"), or leave prompts out'
            )
        if stored.dtype not in self.dtypes:
            raise FormatError(
                f"prompts=cusparselt is for bfloat16 weights, not {dtype_name(stored.dtype)} ones. "
                "Remedy: leave prompts out"
            )
        return self.scheme(stored.dtype, stored.values)

    def tensors(self, scheme: Scheme, shape: tuple[int, int]) -> dict[str, TensorSpec]:
        compressed = TensorSpec(scheme.dtype, library.compressed_shape(*shape))
        return super().tensors(scheme, shape) | {"compressed": compressed}

    def require_fit(self, scheme: Scheme, shape: tuple[int, int]) -> PatternOptions:
        library.require_shape(*shape)
        return super().require_fit(scheme, shape)

    def arrange(
        self, stored: Mapping[str, Tensor], scheme: Scheme, shape: tuple[int, int]
    ) -> PackedWeight:
        """As of all forms; needs room for the dense weight, and for a prompt, while it works."""
        self.require_fit(scheme, shape)
        library.require(stored["weight_packed"].device)
        packed = super().arrange(stored, scheme, shape)
        compressed = library.compress(self.unpack(packed))
        return PackedWeight(scheme, shape, {**packed.tensors, "compressed": compressed})

    def search(self, packed: PackedWeight, kept: Mapping[str, Any]) -> Mapping[str, Any]:
        return library.search(packed.tensors["compressed"], packed.shape, kept)

    def require_search(self, kept: Mapping[str, Any]) -> None:
        library.require_found(kept)

    def sample(self, scheme: Scheme, device: str) -> tuple[Tensor, PackedWeight]:
        """With the library's copy where there is the library, else with one that is never read."""
        rows, columns = 2 * library.MULTIPLE, 3 * library.MULTIPLE
        weight = self.conform(torch.randn(rows, columns).to(scheme.dtype), scheme)
        tensors = {name: t.to(device) for name, t in self.reference.pack(weight, scheme).items()}
        if device == "cuda" and torch.backends.cusparselt.is_available():
            tensors["compressed"] = library.compress(weight.to(device))
        else:
            shape = library.compressed_shape(rows, columns)
            tensors["compressed"] = torch.zeros(shape, dtype=scheme.dtype, device=device)
        return weight, PackedWeight(scheme, (rows, columns), tensors)

    def multiply(
        self,
        x: Tensor,
        scheme: Scheme,
        shape: tuple[int, int],
        tensors: Mapping[str, Tensor],
        bias: Tensor | None,
        plan: Plan | None,
    ) -> Tensor:
        most, few = (None, None) if plan is None else (plan.sparse_tokens, plan.few_tokens)
        copies = tensors["units"], tensors["compressed"]
        return ops.cusparselt_24_linear(x, *copies, shape[0], scheme.dtype, bias, most, few)

    def implementations(self, scheme: Scheme) -> Mapping[str, Implementation]:
        own = super().implementations(scheme)
        library = Implementation(None, "cuSPARSELt, from a second copy of the weight")
        return {FEW: own[FEW], MANY: own[MANY], CUSPARSELT: library}

    def choose(
        self, scheme: Scheme, shape: tuple[int, int], nbytes: int, tokens: int, gpu: Gpu
    ) -> str:
        own = super().choose(scheme, shape, nbytes, tokens, gpu)
        about = (scheme, shape, nbytes, tokens, gpu)
        return min((own, CUSPARSELT), key=lambda name: self.seconds(name, *about))

    def seconds(
        self,
        implementation: str,
        scheme: Scheme,
        shape: tuple[int, int],
        nbytes: int,
        tokens: int,
        gpu: Gpu,
    ) -> float:
        if implementation == CUSPARSELT:
            return cost.library_seconds(shape, nbytes // self.copies, tokens, gpu)
        return super().seconds(implementation, scheme, shape, nbytes // self.copies, tokens, gpu)
