# SPDX-License-Identifier: Apache-2.0
"""Self-tests of the ops of layers of experts, against a loop over dense experts in float64."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from .experts import ExpertStack, multiply
from .formats import find_form
from .ops import ops
from .packed import Scheme

_EXPERTS, _HIDDEN, _INNER = 3, 96, 40
_DTYPE = torch.bfloat16
_IDS = torch.tensor([[0, 2], [2, 1], [2, 0], [-1, 2]])  # -1: of another process
_BLOCK = 8


def order(device: str) -> float:
    """Whether slots are ordered by expert; the largest distance from what a stable sort says."""
    slots, experts, blocks = ops.experts_order(_IDS.to(device), _EXPERTS, _BLOCK)
    ids, padding = _IDS.flatten(), _IDS.numel()
    wanted, of_blocks = [], []
    for expert in range(_EXPERTS):
        own = (ids == expert).nonzero().flatten().tolist()
        padded = own + [padding] * (-len(own) % _BLOCK)
        wanted += padded
        of_blocks += [expert] * (len(padded) // _BLOCK)
    wanted += [padding] * (len(slots) - len(wanted))
    of_blocks += [-1] * (len(experts) - len(of_blocks))
    found = [*slots.tolist(), *experts.tolist(), int(blocks)]
    right = [*wanted, *of_blocks, sum(each >= 0 for each in of_blocks)]
    return float(max(abs(a - b) for a, b in zip(found, right, strict=True)))


def layer(op: str, device: str) -> float:
    """The largest error of an element, in units of the largest one."""
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(len(_IDS), _HIDDEN, generator=generator).to(_DTYPE)
    weights = torch.rand(_IDS.shape, generator=generator)
    scheme = find_form("nm_vector").scheme(_DTYPE, {"n": 2, "m": 4})
    gate, up = (_weights(scheme, _INNER, _HIDDEN, generator) for _ in range(2))
    down = _weights(scheme, _HIDDEN, _INNER, generator)
    on = [tensor.to(device) for tensor in (x, _IDS, weights)]
    both = torch.cat([gate, up], 1)
    stacks = [
        ExpertStack.of([scheme.format.pack(each, scheme) for each in own]) for own in (both, down)
    ]
    if op == "experts":
        w13, w2 = (each.prepare(device, sides) for each, sides in zip(stacks, (2, 1), strict=True))
        y = multiply(on[0], on[1], on[2], w13, w2, "silu")
    else:
        form = find_form("sparse_24").scheme(_DTYPE, {"n": 2, "m": 4})
        units = [
            each.grouped(form, sides, device).tensors["units"].unflatten(0, (_EXPERTS, -1))
            for each, sides in zip(stacks, (2, 1), strict=True)
        ]
        y = ops.sparse_24_experts(*on, units[0], None, units[1], None, _INNER, _DTYPE)
    exact = torch.zeros(x.shape, dtype=torch.float64)
    for token, row in enumerate(_IDS.tolist()):
        for slot, expert in enumerate(row):
            if expert >= 0:
                own = x[token].double()
                h = F.silu(gate[expert].double() @ own) * (up[expert].double() @ own)
                exact[token] += weights[token, slot].double() * (down[expert].double() @ h)
    return float((y.cpu().double() - exact).abs().max() / exact.abs().max())


LIMIT = 4 * torch.finfo(_DTYPE).eps
"""What the rounding of what is between the projections, and of y, allows `layer`."""


def _weights(scheme: Scheme, rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """Of all experts, with the zeros that the scheme wants."""
    each = torch.randn(_EXPERTS, rows, columns, generator=generator).to(_DTYPE)
    return torch.stack([scheme.format.conform(weight, scheme) for weight in each])
