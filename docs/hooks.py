# SPDX-License-Identifier: Apache-2.0
"""Links and pictures of the pages that are files of the source tree, outside of the site."""

import re
from pathlib import Path

PICTURE = re.compile(r"!\[([^\]]*)\]\(\.\./([^)]+)\)")


def place_of(path):
    """Where the site has a picture of the source tree."""
    return "pictures/" + path.replace("/", "-")


def on_files(files, config, **_):
    """Adds the pictures to the site."""
    from mkdocs.structure.files import File

    root = Path(config.docs_dir).parent
    for page in files.documentation_pages():
        for _, path in PICTURE.findall(page.content_string):
            files.append(File.generated(config, place_of(path), abs_src_path=str(root / path)))
    return files


def on_page_markdown(markdown, config, page=None, **_):
    """Shows a picture from where the site has it.

    Of `[text](../path)`, or `[text](../../path)` in docs/lab, it makes a link to the repository, or
    plain text if that has no address.
    """
    markdown = PICTURE.sub(lambda match: f"![{match[1]}]({place_of(match[2])})", markdown)
    above = r"\.\./" * (page.file.src_uri.count("/") + 1 if page else 1)
    address = (config.repo_url or "").rstrip("/")
    link = rf"[\1]({address}/blob/main/\2)" if address else r"\1"
    return re.sub(rf"\[([^\]]+)\]\({above}([^)]+)\)", link, markdown)
