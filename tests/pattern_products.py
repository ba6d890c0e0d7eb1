# SPDX-License-Identifier: Apache-2.0
"""What products of every N:M form are held to."""

from __future__ import annotations

import torch
from torch.nn import functional as F
from weights import sparse_weight

from flashsparse_plugin.packed import Scheme
from flashsparse_plugin.plan import Plan


def require_linear_and_gradient(scheme: Scheme, x_dtype: torch.dtype) -> None:
    """A layer of a scheme multiplies as the dense one does, by any plan, and its gradient is that.

    The sizes are no multiples of anything.
    """
    weight = scheme.format.conform(sparse_weight(50, 70, 0.6, scheme.dtype, 0), scheme)
    packed, dense = scheme.format.pack(weight, scheme), weight.float()
    x = torch.randn(2, 3, 70).to(x_dtype).requires_grad_()
    bias = torch.randn(50).to(x_dtype)
    expected = F.linear(x.float(), dense, bias.float()).to(x_dtype)
    for plan in (None, Plan.only("sparse"), Plan.only("library")):
        torch.testing.assert_close(packed.linear(x, bias, plan), expected)
    packed.linear(x).sum().backward()
    torch.testing.assert_close(x.grad.float(), dense.sum(0).expand(2, 3, -1), atol=0.1, rtol=0.02)
