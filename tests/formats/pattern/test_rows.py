# SPDX-License-Identifier: Apache-2.0
"""A pattern that keeps every weight: rows read one by one, and cut anywhere."""

import pytest
import torch

import flashsparse_plugin as fs
from flashsparse_plugin.formats.registry import find_form
from flashsparse_plugin.formats.rows import read_rows, row_places

NUMBERS = {"int8": torch.int8, "fp8_e4m3": torch.float8_e4m3fn}


@pytest.mark.parametrize("shape", [(100, 64), (300, 257), (33, 48)])
@pytest.mark.parametrize("values", NUMBERS)
@pytest.mark.parametrize("form", ["nm_vector", "nm_panels", "nm_gather"])
def test_rows_and_parts(form, values, shape):
    torch.manual_seed(0)
    stored = fs.pack(torch.randn(shape, dtype=torch.bfloat16), "1:1-L128", values=values)
    codes, scale = stored.tensors["weight_packed"], stored.tensors["weight_scale"]
    exact = (codes.view(NUMBERS[values]).double() * scale.double()).to(torch.bfloat16)
    format = find_form(form)
    packed = stored.transcode(format.scheme(torch.bfloat16, stored.scheme.values)).validate()
    ids = torch.randint(0, shape[0], (3, 7))
    rows = read_rows(ids, packed.scheme, packed.tensors, row_places(packed))
    assert torch.equal(rows, exact[ids])
    places = range(5, 30), range(30, 33)  # vector_length is 128: the index says nothing here
    parts = [format.cut(packed, rows, range(shape[1])).validate() for rows in places]
    assert torch.equal(format.join(parts).validate().unpack(), exact[5:33])


@pytest.mark.parametrize("options", [{"n": 2, "m": 4, "values": "int8"}, {"n": 1, "m": 1}])
def test_other_weights_have_no_rows(options):
    packed = fs.pack(torch.eye(8).bfloat16(), "nm_vector", **options)
    with pytest.raises(fs.FormatError, match=r"\[8, 8\] cannot be read one by one.*Remedy"):
        row_places(packed)
