# SPDX-License-Identifier: Apache-2.0
"""Puts the public address of the project where a release needs it.

    python release/address.py https://github.com/OWNER/NAME

It takes the place of REPOSITORY in what readers are to type, and becomes `[project.urls]`,
`repo_url` and `repository-code`. README's pictures get whole addresses: PyPI shows no other.
"""

import argparse
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TYPED = ("README.md", "docs/install.md")


def fill(root: Path, address: str) -> None:
    """Writes the address into a source tree."""
    for name in TYPED:
        text = (root / name).read_text().replace("REPOSITORY", address)
        if name == "README.md":
            text = re.sub(r"(!\[[^\]]*\]\()(docs/)", rf"\1{address}/raw/main/\2", text)
        (root / name).write_text(text)
    added = {
        "pyproject.toml": ("[project.scripts]", f'[project.urls]\nRepository = "{address}"\n\n'),
        "mkdocs.yml": ("docs_dir: ", f"repo_url: {address}\n"),
        "CITATION.cff": ("license: ", f"repository-code: {address}\n"),
    }
    for name, (before, lines) in added.items():
        text = (root / name).read_text()
        if lines not in text:
            (root / name).write_text(text.replace(before, lines + before, 1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("address")
    fill(ROOT, parser.parse_args().address.rstrip("/"))
