"""Fill the tables of a Markdown file with reports of `superres benchmark ... --proposers all --output DIR`.

    superres benchmark images --proposers all --output speed/images
    superres benchmark text --proposers all --output speed/text
    python scripts/fill_proposers.py speed/images/proposers.json speed/text/proposers.json

In docs/proposers.md, the text between the marks `<!-- proposers: TASK -->` and `<!-- end -->` is replaced.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from superres.errors import InvalidInputError, SuperresError
from superres.evaluation.benchmark_proposers import proposers_run_text, summary_markdown
from superres.system.output import write_result

PAGE = Path(__file__).parent.parent / "docs" / "proposers.md"


def read_report(path: Path) -> dict[str, Any]:
    """Read a report of `superres.evaluation.benchmark_proposers.compare_proposers`.

    Raises:
        InvalidInputError: the file is not such a report.
    """
    try:
        report = json.loads(path.read_text())
        if not report["rows"]:
            raise ValueError("it has no rows")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInputError(f"{path} is not a report of superres benchmark --proposers ({error!r}); give its "
                                "proposers.json") from error
    return dict(report)


def fill(text: str, report: dict[str, Any]) -> str:
    """Return a page with the table of the report's task replaced.

    Raises:
        InvalidInputError: the page lacks the marks of the table.
    """
    mark = f"<!-- proposers: {report['task']} -->"
    section = re.compile(re.escape(mark) + r".*?<!-- end -->", re.DOTALL)
    if not section.search(text):
        raise InvalidInputError(f"the page has no table between {mark} and <!-- end -->; add these marks")
    table = "\n\n".join([mark, proposers_run_text(report), summary_markdown(report), "<!-- end -->"])
    return section.sub(lambda _: table, text)


def main(
    reports: Annotated[list[Path], typer.Argument(help="proposers.json of each task.")],
    page: Annotated[Path, typer.Option(help="Markdown file.")] = PAGE,
) -> None:
    """Fill the tables of a page."""
    text = page.read_text()
    for report in reports:
        text = fill(text, read_report(report))
    write_result(page, text.encode(), "--page")


if __name__ == "__main__":
    try:
        typer.run(main)
    except SuperresError as error:
        sys.exit(f"fill_proposers: {error}")
