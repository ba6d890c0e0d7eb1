# SPDX-License-Identifier: Apache-2.0
"""The documents, and the commands and the code that they show."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(text: str, *languages: str) -> list[str]:
    """The fenced blocks of some languages; "" is one without a language."""
    found = re.findall(r"^```(\w*)\n(.*?)^```", text, re.S | re.M)
    return [block for language, block in found if language in languages]


def commands(text: str) -> list[str]:
    """What the user is to type: blocks of bash, and the lines after a $ in those of console.

    Continued lines are joined, comments are left out.
    """
    lines = "\n".join(blocks(text, "bash")).replace("\\\n", " ").splitlines()
    for session in blocks(text, "console"):
        lines += [line[2:] for line in session.splitlines() if line.startswith("$ ")]
    typed = [re.sub(r"(^|\s)#.*", "", line) for line in lines]
    return [" ".join(line.split()) for line in typed if line.strip()]


def inline(text: str) -> list[str]:
    """The code within sentences, where a line may end in it."""
    plain = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    return [" ".join(found.split()) for found in re.findall(r"`([^`]+)`", plain)]
