# SPDX-License-Identifier: Apache-2.0
"""The patterns, and types of values, by which packing is checked and measured."""

from __future__ import annotations

CHECKED = (
    {"n": 2, "m": 4},
    {"n": 8, "m": 32, "vector_length": 32},
    {"n": 3, "m": 7, "vector_length": 2},
    {"n": 63, "m": 127, "vector_length": 8},
    {"n": 200, "m": 256, "vector_length": 128},
    {"n": 1, "m": 1},
    {"n": 5, "m": 13, "vector_length": 64},
    {"n": 2, "m": 4, "values": "int8"},
    {"n": 3, "m": 8, "vector_length": 16, "values": "int4", "group": 32},
    {"n": 7, "m": 9, "values": "fp8_e4m3"},
)
MEASURED = (
    {"n": 2, "m": 4},
    {"n": 16, "m": 32, "vector_length": 32},
    {"n": 8, "m": 32, "vector_length": 32},
    {"n": 4, "m": 32, "vector_length": 128},
    {"n": 2, "m": 4, "values": "fp8_e4m3"},
    {"n": 8, "m": 32, "vector_length": 32, "values": "int4", "group": 64},
)
