# SPDX-License-Identifier: Apache-2.0
"""Words that came back again and again instead of the field's (CONTRIBUTING.md, "How we write")."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("kernels", "flashsparse_plugin", "integrations", "docs", "README.md", "CONTRIBUTING.md")
# What to write instead, and what not. Only patterns that hardly ever mean something else.
WORDS = {
    "wavefronts, waves, phases": r"\bturns? of (the )?(shared memory|blocks?|a ring)\b",
    "in alternation": r"\bby turns\b",
    "partial sums": r"\b(set|sets|put|puts|sums?|rest) aside\b|\baside until\b",
    "unchanged, directly": r"\bas (it|they) (lies?|stands?)\b",
    "earlier, at that time": r"\bof (before|then)\b(?! (it|the|a|them)\b)|\bkept, of before\b",
    "after a kernel": r"\bbehind (another|its kind|a product|\w+'s kernel)",
    "programmatic dependent launch": r"\b(begins?|began|beginning) early\b|\bearly begins?\b",
    "W8A8": r"\bcodes (by codes|on both sides)\b",
    "says, has": r"\btells? more\b",
}
SUFFIXES = (".py", ".md", ".h", ".cuh", ".cu", ".cpp")


def _files():
    for name in FOLDERS:
        path = ROOT / name
        found = [path] if path.is_file() else sorted(path.rglob("*"))
        yield from (each for each in found if each.suffix in SUFFIXES)


def _found(path):
    text = path.read_text()
    if path.name == "CONTRIBUTING.md":  # the table of these words
        text = re.sub(r"^  \|.*$", "", text, flags=re.M)
    return [
        f"{path.relative_to(ROOT)}:{text[: match.start()].count(chr(10)) + 1}: {match[0]!r}: {word}"
        for word, pattern in WORDS.items()
        for match in re.finditer(pattern.replace(" ", r"\s+(?:// |# )?"), text)
    ]


def test_the_words_are_the_fields():
    files = list(_files())
    found = [line for path in files for line in _found(path)]
    assert len(files) > 500
    assert found == []


@pytest.mark.parametrize(
    "text, words",
    [
        ("takes 16 turns of shared memory", 1),
        ("the launches of\n// before", 1),
        ("what lies behind another kernel", 1),
        ("at the end of before_wait, of before it, in turn; begins; aside from", 0),
    ],
)
def test_what_a_pattern_finds(tmp_path, monkeypatch, text, words):
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    (tmp_path / "a.md").write_text(text)
    assert len(_found(tmp_path / "a.md")) == words
