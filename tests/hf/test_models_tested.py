# SPDX-License-Identifier: Apache-2.0
"""What docs/models.md says of each family is so; models_tested.csv beside this file has its cells.

ok: packed layers, and what the dense model with the same zeros says. dense: loads and says the
same, and no layer is packed. sdpa: attention falls back, and the text is the same. refused: an
error that contains what the cell says.
"""

import csv
from pathlib import Path

import families
import pytest
import torch
import transformers
from test_attention import Counted

import flashsparse_plugin as fs
from flashsparse_plugin.checkpoint import convert_checkpoint
from flashsparse_plugin.linear import SparseLinear

pytestmark = pytest.mark.slow  # not each, but there are hundreds

with (Path(__file__).parent / "models_tested.csv").open() as _file:
    TABLE = {row["architecture"]: row for row in csv.DictReader(_file)}


@pytest.fixture(scope="module", params=sorted(families.FAMILIES))
def family(request, tmp_path_factory):
    """(architecture, its class, a folder with `dense` and the dense model in float32)."""
    name = request.param
    kind = getattr(transformers, name.partition("-")[0])
    folder = tmp_path_factory.mktemp(name)
    families.build(name).save_pretrained(folder / "dense")
    model = kind.from_pretrained(folder / "dense", dtype=torch.float32)
    return name, kind, folder, model


def status(load, reference):
    try:
        model = load()
    except ValueError as error:
        return f"refused: {error}"
    expected, found = families.answer(reference), families.answer(model)
    assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()
    return "ok" if any(isinstance(m, SparseLinear) for m in model.modules()) else "dense"


def check(name, column, found):
    expected = TABLE[name][column]
    if expected.startswith("refused"):
        assert found.startswith("refused") and expected.partition(": ")[2] in found
    else:
        assert found == expected


def test_every_family_is_in_the_table():
    assert TABLE.keys() == families.FAMILIES.keys()


def test_packed(family):
    name, kind, folder, reference = family

    def load():
        convert_checkpoint(folder / "dense", folder / "packed", pack_all=True)
        model, told = kind.from_pretrained(
            folder / "packed", dtype=torch.float32, output_loading_info=True
        )
        assert not any(told.values()), told
        return model

    check(name, "packed", status(load, reference))


def test_at_load(family):
    name, kind, folder, reference = family
    config = fs.FlashSparseConfig()
    check(
        name,
        "at_load",
        status(
            lambda: kind.from_pretrained(
                folder / "dense", dtype=torch.float32, quantization_config=config
            ),
            reference,
        ),
    )


def test_unified_max(family):
    name, kind, folder, reference = family
    if not kind.can_generate() or reference.config.is_encoder_decoder:
        assert TABLE[name]["unified_max"] == ""
        return
    try:
        model = kind.from_pretrained(
            folder / "dense", dtype=torch.float32, attn_implementation="unified_max"
        )
    except ValueError as error:
        check(name, "unified_max", f"refused: {error}")
        return
    ids = families.inputs(reference)["input_ids"]
    # One of the prompts is padded on the left.
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    given["attention_mask"][0, :3] = 0
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    with Counted() as counted:
        tokens = model.generate(**given, **options)
    assert torch.equal(tokens, reference.generate(**given, **options))
    check(name, "unified_max", "ok" if counted.calls else "sdpa")
