# SPDX-License-Identifier: Apache-2.0
"""Links and pictures of the pages that are files of the source tree, outside of the site."""

import re
from pathlib import Path

PICTURE = re.compile(r"!\[([^\]]*)\]\(\.\./([^)]+)\)")
LINK = re.compile(r"\[([^\]]+)\]\(\.\./([^)]+)\)")


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


def on_page_markdown(markdown, config, **_):
    """Shows a picture from where the site has it.

    Of `[text](../path)` it makes a link to the repository, or plain text if that has no address.
    """
    markdown = PICTURE.sub(lambda match: f"![{match[1]}]({place_of(match[2])})", markdown)
    address = (config.repo_url or "").rstrip("/")
    return LINK.sub(rf"[\1]({address}/blob/main/\2)" if address else r"\1", markdown)
