# SPDX-License-Identifier: Apache-2.0
"""Pictures can be read by people with weak eyes, on light and on dark pages."""

from __future__ import annotations

import re
from pathlib import Path

import _drawing
import plots
import pytest

ROOT = Path(__file__).parents[2]


def luminance(colour: str) -> float:
    """Of WCAG 2.2: what the eye gets of a colour, 0 to 1."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out_from_its_background(dark):
    seen = {each: (other if dark else each) for each, other in _drawing.DARK.items()}
    page = luminance(seen.pop(_drawing.PAGE))
    for colour in seen.values():
        low, high = sorted((luminance(colour), page))
        assert (high + 0.05) / (low + 0.05) >= 4.5, colour


def test_pictures_have_no_other_colours():
    for path in plots.PICTURES.glob("*.svg"):
        body = path.read_text().partition("</style>")[2]
        assert "var(--c0)" in body and ": #" not in body, path.name


def test_text_of_the_site_stands_out():
    """The theme's own colours of links and of its header do not."""
    css = (ROOT / "docs" / "site.css").read_text()
    colours = dict(re.findall(r"--md-(primary-fg|typeset-a)-color: (#[0-9a-f]{6});", css))
    assert colours.keys() == {"primary-fg", "typeset-a"}
    for colour in colours.values():
        assert 1.05 / (luminance(colour) + 0.05) >= 4.5, colour
