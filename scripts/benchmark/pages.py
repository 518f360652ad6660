"""Tables of Markdown pages that scripts replace: the text from a mark to `<!-- end -->`."""

from __future__ import annotations

import re
from pathlib import Path

from superres.errors import InvalidInputError
from superres.system.output import write_result

LINE = 120
"""Columns of a line of text."""


def fill_page(page: Path, name: str, tables: str) -> None:
    """Replace the text between `<!-- NAME -->` and `<!-- end -->` of a page.

    Raises:
        InvalidInputError: the page cannot be read, or lacks these marks.
        OutputError: the page cannot be written.
    """
    mark = f"<!-- {name} -->"
    section = re.compile(re.escape(mark) + r".*?<!-- end -->", re.DOTALL)
    try:
        text = page.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"--page {page} cannot be read ({error}); name a Markdown page") from error
    if not section.search(text):
        raise InvalidInputError(f"{page} has no table between {mark} and <!-- end -->; add these marks")
    filled = section.sub(lambda _: "\n\n".join([mark, tables.strip(), "<!-- end -->"]), text)
    write_result(page, filled.encode(), "--page")
