# SPDX-License-Identifier: Apache-2.0
"""The ops of hybrid_panels: what each means, its shapes for torch.compile, its gradient.

Their schemas are registered in kernels/bindings. Whoever imports `ops` from here has them complete.
"""

from __future__ import annotations

from torch.library import register_fake

from ....ops import ops
from ....ops.packed_linear import linear_result, register_linear_autograd

__all__ = ["ops"]


@register_fake("flashsparse::hybrid_panels_unpack")
def _(values, positions, kinds, scales, out_features, in_features, dtype, value_type, group=0):
    """Unpacks hybrid_panels to the dense weight [out_features, in_features] of `dtype`.

    values is uint8 [steps, 16], positions int32 [words, 16], kinds uint8 [ceil(out_features / 16),
    ceil(in_features / 256)], scales [panels, groups, 16]: see kernels/formats/cpu_panels.h. group
    are the columns of a row that share a scale; 0: all of them. Raises RuntimeError where values or
    positions are fewer than kinds ask for; any positions are safe.
    """
    return values.new_empty(out_features, in_features, dtype=dtype)


@register_fake("flashsparse::hybrid_panels_linear")
def _(
    x, values, positions, kinds, scales, out_features, weight_dtype, value_type, group=0, bias=None
):
    """Computes x [..., in_features] times the transposed weight, plus bias [out_features].

    x is float32, float16 or bfloat16 and its dtype rules the result. Codes and activations are
    converted to float32, where they are exact, and accumulators are float32; those of a row, or of
    a group, are multiplied by its scale. The other arguments are those of hybrid_panels_unpack.

    Source: PATCH (arXiv 2509.23410), section 3: tiles that are dense or 2:4.
    """
    return linear_result(x, out_features, bias)


register_linear_autograd("hybrid_panels_linear", unpack="hybrid_panels_unpack")
