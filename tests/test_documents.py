# SPDX-License-Identifier: Apache-2.0
"""What the documents say is so."""

import re
import subprocess
import sys
from pathlib import Path

import flashsparse_plugin as fs

ROOT = Path(__file__).parents[1]


def test_the_tables_are_those_of_the_results():
    command = [sys.executable, str(ROOT / "benchmarks" / "tables.py"), "--check"]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "<!-- table: " in (ROOT / "README.md").read_text()


def test_links_between_documents_lead_somewhere():
    documents = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    links = [
        (document, target)
        for document in documents
        for target in re.findall(r"\]\(([^)#]+)\)", document.read_text())
        if "://" not in target
    ]
    assert links
    for document, target in links:
        assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_the_version_is_one():
    project = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{fs.__version__}"' in project
