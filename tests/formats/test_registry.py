# SPDX-License-Identifier: Apache-2.0
"""How commands are told a format, and that it is read as it is written."""

import pytest
import torch

from flashsparse_plugin.formats import get_format
from flashsparse_plugin.formats.registry import as_option, read_format


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("--format 2:4", "nm_vector", {"n": 2, "m": 4}),
        ("--format 2:4", "nm_vector", {"n": 2, "m": 4, "vector_length": 1, "values": "native"}),
        ("--format 8:32-L32-int8", "nm_vector",
         {"n": 8, "m": 32, "vector_length": 32, "values": "int8"}),
        ("--format tiled_bitmap", "tiled_bitmap", {}),
        ("--format tiled_bitmap --option values=int8", "tiled_bitmap", {"values": "int8"}),
        ("--format nm_vector --option n=2 --option m=4 --option values=int4 --option group=64",
         "nm_vector", {"n": 2, "m": 4, "values": "int4", "group": 64}),
    ],
)  # fmt: skip
def test_a_format_is_told_in_short_where_that_means_the_same(text, name, options):
    assert as_option(name, options) == text
    said = text.removeprefix("--format ").split(" --option ")
    pairs = dict(each.split("=") for each in said[1:])
    meant, named = read_format(
        said[0], {k: int(v) if v.isdecimal() else v for k, v in pairs.items()}
    )
    schemes = [get_format(name).scheme(torch.bfloat16, dict(each)) for each in (named, options)]
    assert meant == name and schemes[0] == schemes[1]
