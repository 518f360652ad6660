"""A hook of MkDocs: the links of a notebook lead to pages of the site, as those of a Markdown page
do.

mkdocs-jupyter hands on `href="acceptance.md"` as the notebook has it, and the site has no such
file.
"""

from __future__ import annotations

import logging
import re

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

LINK = re.compile(r'href="([\w./-]+\.(?:md|ipynb))((?:#[^"]*)?)"')


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the content of a page with links to the site's pages; a link to no page fails a strict
    build."""
    def link(found: re.Match[str]) -> str:
        target = files.get_file_from_path(found[1])
        if target is None:
            logging.getLogger("mkdocs.hooks").warning("%s links to %s, which is no page",
                                                      page.file.src_path, found[1])
            return found[0]
        return f'href="{target.url_relative_to(page.file)}{found[2]}"'

    return LINK.sub(link, html)
