# SPDX-License-Identifier: Apache-2.0
"""Norms and rotary embeddings of packed models, one kernel each where transformers launches ten.

Eager `generate` on a GPU waits for Python to launch kernels: of the 40 of a layer of Llama, 16 are
in its two norms and 10 in its rotary embedding. Ours (ops/elementwise.py) are one each. In compiled
models inductor fuses transformers' own, which stay.

No family is named here. A module is a norm that our kernel knows, and a function such a rotation,
if it gives the bits of our op for random numbers.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import logging
import sys
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .ops import ops
from .ops.elementwise import MAX_NORM_COLUMNS
from .wrapping import wrap_once

logger = logging.getLogger(__name__)

_DEVICES = {"cuda"}  # on a CPU our ops are torch's own, with more calls around them
_DTYPES = (torch.float16, torch.bfloat16)
_EPSILONS = ("variance_epsilon", "eps", "epsilon")  # what norms call theirs
_NORM = "_decode_kernel"  # the attribute in which a norm keeps what our kernel needs
_ROTARY = "apply_rotary_pos_emb"  # what all families call it
_ROWS = "_decode_kernel_rows"  # the attribute in which cosines keep what our kernel reads


def use_decode_kernels(model: nn.Module) -> None:
    """Has norms and rotary embeddings of a model run by our kernels, where these know them.

    They do on a GPU, in eager mode, without gradients and in 16 bits; anything else, and any layer
    that our kernels do not know, runs as before. Norms are those of this model, though the method
    of their class is wrapped. The function of rotary embeddings is that of all models of the
    family, and keeps its bits.

    Args:
        model: With its weights; meta tensors of offloaded modules will do.
    """
    norms, functions = 0, {}
    for module in model.modules():
        known = _known_norm(module)
        if known is not None:
            setattr(module, _NORM, known)
            wrap_once(type(module), "forward", _norm)
            own = vars(module)
            if "_old_forward" in own:  # the method that accelerate's hook found
                own["_old_forward"] = types.MethodType(type(module).forward, module)
            norms += 1
        namespace = _namespace(module)
        if _ROTARY in namespace:
            functions[namespace["__name__"]] = namespace[_ROTARY]
    rotary = [name for name, function in functions.items() if _use_rotary(name, function)]
    if norms or rotary:
        logger.debug("decode kernels: %d norms, rotary embeddings of %s", norms, rotary)


def _runs(x: Tensor) -> bool:
    """Whether a call with this tensor is one for our kernels."""
    return (
        not torch.compiler.is_compiling()
        and type(x) is Tensor  # neither traced nor sharded
        and x.device.type in _DEVICES
        and x.dtype in _DTYPES
        and not torch.is_grad_enabled()
    )


# ---- norms --------------------------------------------------------------------------------------


def _norm(inner: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wraps the method of a class, of whose modules those that are marked have our kernel."""

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
        known = self.__dict__.get(_NORM)
        if known is None or len(args) != 1 or kwargs:
            return inner(self, *args, **kwargs)
        (x,), weight = args, self.weight
        if (
            not _runs(x)
            or x.dtype != weight.dtype
            or x.device != weight.device
            or x.dim() == 0
            or not x.is_contiguous()
            or x.storage_offset() % 8  # rows on 16 bytes
        ):
            return inner(self, x)
        return ops.rms_norm(x.view(-1, x.shape[-1]), weight, *known).view(x.shape)

    return forward


def _known_norm(module: nn.Module) -> tuple[float, bool] | None:
    """A norm's epsilon, and whether it adds one to its weight; None for any other module."""
    parameters = module._parameters
    if list(parameters) != ["weight"] or module._buffers or module._modules:
        return None
    weight = parameters["weight"]
    if weight is None or weight.dim() != 1 or weight.dtype not in _DTYPES:
        return None
    columns = weight.numel()
    if columns % 8 or not 8 <= columns <= MAX_NORM_COLUMNS:
        return None
    epsilon = next((e for e in map(vars(module).get, _EPSILONS) if isinstance(e, float)), None)
    if epsilon is None:
        return None
    random = torch.Generator().manual_seed(0)
    probe = copy.copy(module)
    given = torch.randn(columns, generator=random).to(weight.dtype)
    probe.__dict__["_parameters"] = {"weight": nn.Parameter(given, requires_grad=False)}
    x = torch.randn(3, columns, generator=random)
    x[1] *= epsilon**0.5  # where epsilon counts
    x = x.to(weight.dtype)
    with torch.no_grad():
        try:
            found = type(module).forward(probe, x)
        except Exception:  # it needs more than x: no norm of ours
            return None
        for adds_one in (False, True):
            expected = ops.rms_norm(x, given, epsilon, adds_one)
            if isinstance(found, Tensor) and torch.equal(found, expected):
                return epsilon, adds_one
    return None


# ---- rotary embeddings --------------------------------------------------------------------------


class _Rotation(NamedTuple):
    """What a function of rotary embeddings does.

    Attributes:
        is_neox: Pairs are elements i and i + half; otherwise 2i and 2i + 1.
        halves: A pair's cosine stands at i and i + half; otherwise at 2i and 2i + 1.
    """

    is_neox: bool
    halves: bool

    def apart(self, cosines: Tensor) -> tuple[Tensor, Tensor]:
        """The two that a pair has of its one cosine."""
        if not self.halves:
            return cosines[..., ::2], cosines[..., 1::2]
        first, second = cosines.chunk(2, -1)
        return first, second

    def rows(self, cosines: Tensor, sines: Tensor, sequences: int) -> tuple[Tensor, Tensor]:
        """Positions and table of ops.rope for cosines and sines [1 or sequences, tokens, dim]."""
        own = [self.apart(each)[0].flatten(0, 1) for each in (cosines, sines)]
        table = torch.cat(own, -1)
        positions = torch.arange(table.shape[0], device=table.device)
        return positions.repeat(sequences // cosines.shape[0]), table

    def rotate(self, query: Tensor, key: Tensor, rows: tuple[Tensor, Tensor]) -> list[Tensor]:
        """Rotates queries and keys [sequences, heads, tokens, head_dim]."""
        given = [each.transpose(1, 2) for each in (query, key)]
        found = ops.rope(*(each.flatten(0, 1) for each in given), *rows, self.is_neox)
        return [
            each.view(like.shape).transpose(1, 2) for each, like in zip(found, given, strict=True)
        ]


def _namespace(module: nn.Module) -> dict[str, Any]:
    """The names in the file of a module's class, if it calls a rotary embedding."""
    forward = inspect.unwrap(type(module).forward)
    code = getattr(forward, "__code__", None)
    return forward.__globals__ if code is not None and _ROTARY in code.co_names else {}


def _use_rotary(file: str, function: Callable[..., Any]) -> bool:
    """Wraps the function of a file of transformers, if it is one that our kernel knows."""
    known = _known_rotation(function)
    if known is not None:
        wrap_once(sys.modules[file], _ROTARY, lambda inner: _rotary(inner, known))
    return known is not None


def _rotary(inner: Callable[..., Any], rotation: _Rotation) -> Callable[..., Any]:
    checked: set[int] = set()  # widths of tables that were looked at, which waits for the GPU

    def apply(
        query: Tensor, key: Tensor | None, cos: Tensor, sin: Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        if args or kwargs or key is None or not _runs(query) or not _fit(query, key, cos, sin):
            return inner(query, key, cos, sin, *args, **kwargs)
        if cos.shape[-1] not in checked:
            if not all(torch.equal(*rotation.apart(each)) for each in (cos, sin)):
                return inner(query, key, cos, sin)
            checked.add(cos.shape[-1])
        # All layers of a step get the same two tensors.
        kept = getattr(cos, _ROWS, None)
        if kept is None or kept[0] is not sin or len(kept[1]) != query.shape[0] * query.shape[2]:
            kept = (sin, *rotation.rows(cos, sin, query.shape[0]))
            setattr(cos, _ROWS, kept)
        return tuple(rotation.rotate(query, key, kept[1:]))

    return apply


def _fit(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> bool:
    """Whether places, dtypes and shapes are those of the op, and of `_Rotation`."""
    if not query.dim() == key.dim() == 4:
        return False
    sequences, _, tokens, head_dim = query.shape
    width = cos.shape[-1]
    return (
        query.dtype == key.dtype == cos.dtype == sin.dtype
        and query.device == key.device == cos.device == sin.device
        and (key.shape[0], key.shape[2], key.shape[3]) == (sequences, tokens, head_dim)
        and cos.shape == sin.shape
        and cos.shape in ((1, tokens, width), (sequences, tokens, width))
        and width % 16 == head_dim % 8 == 0
        and 0 < width <= head_dim
        and _aligned(query)
        and _aligned(key)
    )


def _aligned(heads: Tensor) -> bool:
    """Whether each head lies on 16 bytes, its elements beside one another."""
    *others, last = heads.stride()
    return last == 1 and not any(stride % 8 for stride in (*others, heads.storage_offset()))


def _known_rotation(function: Callable[..., Any]) -> _Rotation | None:
    """What a function does, found by what it makes of random heads."""
    random = torch.Generator().manual_seed(0)
    query, key = (torch.randn(2, heads, 3, 32, generator=random).bfloat16() for heads in (4, 2))
    angles = 6 * torch.rand(2, 3, 8, generator=random)
    for rotation in itertools.starmap(_Rotation, itertools.product((True, False), repeat=2)):
        pairs = torch.cat([angles, angles], -1)
        pairs = pairs if rotation.halves else angles.repeat_interleave(2, -1)
        table = pairs.cos().bfloat16(), pairs.sin().bfloat16()
        rows = rotation.rows(*table, 2)
        # Of heads that are as wide as the table, and, where it takes them, of wider ones.
        small = query[..., :16], key[..., :16]
        if _agree(function, small, table, rotation.rotate(*small, rows), may_refuse=False) and (
            _agree(function, (query, key), table, rotation.rotate(query, key, rows), True)
        ):
            return rotation
    return None


def _agree(
    function: Callable[..., Any],
    heads: tuple[Tensor, Tensor],
    table: tuple[Tensor, Tensor],
    expected: list[Tensor],
    may_refuse: bool,
) -> bool:
    """Whether a function gives these bits, or, where it may, refuses the shapes."""
    try:
        found = function(*heads, *table)
    except Exception:  # of other arguments, too
        return may_refuse
    return len(found) == 2 and all(
        isinstance(one, Tensor) and torch.equal(one, other)
        for one, other in zip(found, expected, strict=True)
    )
