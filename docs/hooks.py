# SPDX-License-Identifier: Apache-2.0
"""Links of the pages to files of the source tree, which are not part of the site."""

import re

LINK = re.compile(r"\[([^\]]+)\]\(\.\./([^)]+)\)")


def on_page_markdown(markdown, config, **_):
    """Turns `[text](../path)` into a link to the repository, or plain text if it has no address."""
    address = (config.repo_url or "").rstrip("/")
    return LINK.sub(rf"[\1]({address}/blob/main/\2)" if address else r"\1", markdown)
