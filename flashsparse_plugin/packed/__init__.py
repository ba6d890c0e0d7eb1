# SPDX-License-Identifier: Apache-2.0
"""A scheme, a weight that is packed by it, and what every format must be able to do.

Ground floor: it knows no format by name, `formats/` brings them.
"""

from ..rules import FormatError, TensorSpec, dtype_name, rules
from .exact import reason_of_exceptions
from .experts import Routed
from .format import Format, PackedWeight, Reference, Scheme
from .options import Options, Quantized

__all__ = [
    "Format",
    "FormatError",
    "Options",
    "PackedWeight",
    "Quantized",
    "Reference",
    "Routed",
    "Scheme",
    "TensorSpec",
    "dtype_name",
    "reason_of_exceptions",
    "rules",
]
