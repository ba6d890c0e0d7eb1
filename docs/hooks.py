# SPDX-License-Identifier: Apache-2.0
"""Links and pictures of the pages that are files of the source tree, outside of the site."""

import re


def place_of(path):
    """Where the site has a picture of the source tree."""
    return "pictures/" + path.replace("/", "-")


def up(page):
    """What leads from a page out of docs/, as a pattern: once more for a page in a folder."""
    return r"\.\./" * (page.count("/") + 1)


def pictures(page):
    """The pattern of a picture of the source tree on a page, by its path in docs/."""
    return re.compile(rf"!\[([^\]]*)\]\({up(page)}([^)]+)\)")


def on_files(files, config, **_):
    """Adds the pictures to the site."""
    from pathlib import Path

    from mkdocs.structure.files import File

    root = Path(config.docs_dir).parent
    for page in files.documentation_pages():
        for _, path in pictures(page.src_uri).findall(page.content_string):
            files.append(File.generated(config, place_of(path), abs_src_path=str(root / path)))
    return files


def on_page_markdown(markdown, config, page, **_):
    """Shows a picture from where the site has it.

    Of `[text](../path)`, or `[text](../../path)` in a folder, it makes a link to the repository, or
    plain text if that has no address.
    """
    name = page.file.src_uri
    back = "../" * name.count("/")
    markdown = pictures(name).sub(lambda m: f"![{m[1]}]({back}{place_of(m[2])})", markdown)
    address = (config.repo_url or "").rstrip("/")
    link = rf"[\1]({address}/blob/main/\2)" if address else r"\1"
    return re.sub(rf"\[([^\]]+)\]\({up(name)}([^)]+)\)", link, markdown)
