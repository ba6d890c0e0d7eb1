# SPDX-License-Identifier: Apache-2.0
import pytest

from flashsparse_plugin.matching import matches


@pytest.mark.parametrize(
    ("name", "pattern", "expected"),
    [
        ("lm_head", "lm_head", True),
        ("model.lm_head", "lm_head", True),
        ("model.my_lm_head", "lm_head", False),
        ("lm_head2", "lm_head", False),
        ("model.layers.0.mlp.down_proj", "mlp.down_proj", True),
        ("model.layers.0.mlp.down_proj", "p.down_proj", False),
        ("model.layers.0.mlp.down_proj", "layers.0", True),  # a module means all that is in it
        ("model.layers.01.mlp.down_proj", "layers.0", False),
        ("model.layers.0.mlp.down_proj", "model.layers", True),
        ("model.layers.0.mlp.down_proj", "layers.*", False),  # no regular expression unless re:
        ("model.layers.0.mlp.down_proj", "re:.*down_proj", True),
        ("model.layers.0.mlp.down_proj", "re:down_proj", False),  # from the beginning
        ("model.layers.0.mlp.down_proj", r"re:model\.layers\.[02]\.", True),
        ("model.layers.1.mlp.down_proj", r"re:model\.layers\.[02]\.", False),
    ],
)
def test_one_pattern(name, pattern, expected):
    assert matches(name, [pattern]) is expected


def test_any_of_several_patterns():
    assert matches("a.b", ["c", "re:z", "b"])
    assert not matches("a.b", ["c", "re:z"])
    assert not matches("a.b", [])


def test_a_broken_regular_expression_is_named():
    with pytest.raises(ValueError, match=r"re:\(oops"):
        matches("a", ["re:(oops"])


@pytest.mark.parametrize("pattern", ["", "re:"])
def test_an_empty_pattern_is_refused(pattern):
    with pytest.raises(ValueError, match="empty"):
        matches("a", [pattern])
