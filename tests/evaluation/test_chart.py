# SPDX-License-Identifier: Apache-2.0
"""What a picture of quality against bytes says, and that it can be drawn."""

from flashsparse_plugin.evaluation.chart import Point, draw, finding, frontier

POINTS = [
    Point("dense", 16.0, 10.0, "dense"),
    Point("int8", 8.1, 10.2, "rival"),
    Point("2:4", 9.0, 14.0, "ours"),
    Point("2:4, int8", 5.0, 14.1, "ours"),
    Point("int4", 4.5, 11.0, "rival"),
]


def test_the_frontier_has_what_no_other_beats_in_both():
    assert [point.label for point in frontier(POINTS)] == ["int4", "int8", "dense"]


def test_the_finding_is_the_fewest_bits_close_to_the_best():
    assert finding(POINTS) == "8.1 bits a weight suffice: int8 is within 5% of the best perplexity"
    rest = [point for point in POINTS if point.label != "int8"]
    assert finding(rest) == "dense is the best, and nothing smaller is within 5% of it"


def test_nothing_is_cut_off_or_hidden(tmp_path, monkeypatch):
    """Neither the title of long names, nor a label that the legend would cover."""
    import matplotlib.pyplot as plt

    figures = []
    monkeypatch.setattr(plt, "close", figures.append)
    name = "a-model-with-quite-a-long-name, torch dynamic int8"
    points = [*POINTS[:1], Point(name, 8.1, 9.9, "rival"), Point(name, 9.0, 30.0, "rival")]
    draw(points, "a tiny model", tmp_path / "bytes.png")
    (figure,) = figures
    (axis,) = figure.axes
    renderer = figure.canvas.get_renderer()
    for text in (axis._left_title, *axis.texts):
        box = text.get_window_extent(renderer)
        assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1, text.get_text()
        assert not box.overlaps(axis.get_legend().get_window_extent(renderer)), text.get_text()


def test_it_is_drawn(tmp_path):
    draw(POINTS, "a tiny model", tmp_path / "bytes.png")
    assert (tmp_path / "bytes.png").read_bytes()[:4] == b"\x89PNG"
