# SPDX-License-Identifier: Apache-2.0
"""What the documents say is so."""

import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import plots
import yaml

import flashsparse_plugin as fs

ROOT = Path(__file__).parents[1]


def test_the_tables_are_those_of_the_results():
    command = [sys.executable, str(ROOT / "benchmarks" / "tables.py"), "--check"]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    for name in ("README.md", "docs/cpu.md", "docs/kernels-results.md", "docs/vllm.md"):
        assert "<!-- table: " in (ROOT / name).read_text()


def test_the_pictures_are_those_of_the_results(tmp_path):
    """Else: python benchmarks/plots.py."""
    plots.draw(tmp_path)
    drawn = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    committed = {path.name: path.read_bytes() for path in plots.PICTURES.iterdir()}
    assert drawn.keys() == committed.keys()
    assert [name for name in drawn if drawn[name] != committed[name]] == []


def test_each_page_is_in_the_navigation_once():
    def pages(entries):
        for entry in entries:
            for value in entry.values():
                yield from [value] if isinstance(value, str) else pages(value)

    found = list(pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    assert sorted(found) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))


def test_messages_in_troubleshooting_are_in_the_sources():
    folders = ("flashsparse_plugin", "integrations")
    sources = [path.read_text() for folder in folders for path in (ROOT / folder).rglob("*.py")]
    joined = re.sub(r'"\s*\n\s*f?"', "", "\n".join(sources))  # literals that follow each other
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    messages = re.findall(r"^- `([^`]+)`:", page, re.M)
    assert len(messages) > 20
    for message in messages:
        fragments = " ".join(message.split())
        assert fragments in joined, f"no source says {message!r}"


def test_links_between_documents_lead_somewhere():
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    links = [
        (document, target)
        for document in documents
        for target in re.findall(r"\]\(([^)#]+)\)", document.read_text())
        if "://" not in target
    ]
    assert links
    for document, target in links:
        assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_the_site_shows_pictures_of_the_source_tree():
    hooks = runpy.run_path(str(ROOT / "docs" / "hooks.py"))
    site = SimpleNamespace(repo_url=None)
    page = "![a](../results/b.png) and [c](../d.py)"
    shown = hooks["on_page_markdown"](page, config=site)
    assert shown == "![a](pictures/results-b.png) and c"
    log = SimpleNamespace(file=SimpleNamespace(src_uri="lab/b.md"))
    shown = hooks["on_page_markdown"]("[a](../b.md), [c](../../d.py)", config=site, page=log)
    assert shown == "[a](../b.md), c"


def test_links_to_a_section_lead_to_one():
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    links = [
        (document, path, section)
        for document in documents
        for path, section in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", document.read_text())
    ]
    assert links
    for document, path, section in links:
        target = document.parent / path if path else document
        headings = re.findall(r"^#+ (.+)$", target.read_text(), re.M)
        slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert section in slugs, f"{document.name} links to {path}#{section}"


def test_the_version_is_one():
    project = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{fs.__version__}"' in project


def test_the_range_of_transformers_is_that_of_the_tests():
    locked = [ROOT / "requirements" / name for name in ("oldest.txt", "newest.txt")]
    pins = [re.search(r"^transformers==(\d+\.\d+)", path.read_text(), re.M)[1] for path in locked]
    for name in ("README.md", "docs/transformers.md"):
        assert " to ".join(pins) in (ROOT / name).read_text(), name
