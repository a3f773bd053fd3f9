"""What every HTML page of ours is made of: a document that asks for nothing, escaped text, tables that scroll."""

from __future__ import annotations

import html as markup
from enum import StrEnum
from typing import TYPE_CHECKING

from pytest_specdec.report.escape import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["POLICY", "Cells", "page", "table", "text"]

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""Allows the page's own style and nothing else: model text that got through as markup would still do nothing."""


class Cells(StrEnum):
    """What the cells of a table hold, which is its class in the style sheet."""

    NUMBERS = "numbers"
    PROSE = "prose"
    """Long texts in few columns, which wrap anywhere rather than widen the page."""


def page(title: str, style: str, lines: Iterable[str]) -> str:
    """Return a whole HTML document with its own style sheet.

    ``title`` is escaped here. ``style`` is CSS and ``lines`` are the lines of the body, both written unescaped.
    """
    head = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<meta name="color-scheme" content="light dark">\n'
        f"<title>{text(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
    )
    return head + "\n".join(lines) + "\n</main>\n</body>\n</html>\n"


def text(written: str) -> str:
    """Return text of any origin on one line, escaped for HTML."""
    return markup.escape(printable(written))


def table(rows: Sequence[Sequence[str]], caption: str, cells: Cells | None = None) -> Iterator[str]:
    """Yield the lines of an HTML table in a scrolling box.

    The first row is the header; in every other row the first cell names the row. Cells are HTML, escaped by the caller; ``caption`` is
    text. ``cells`` chooses a style: None for the default.
    """
    header, *body = rows
    yield f'<div class="scroll" role="region" tabindex="0" aria-label="{text(caption)}"><table{f" class={cells.value}" if cells else ""}>'
    yield f"<caption>{text(caption)}</caption>"
    yield f"<thead><tr>{''.join(f'<th scope=col>{cell}</th>' for cell in header)}</tr></thead><tbody>"
    yield from (f"<tr><th scope=row>{first}</th>{''.join(f'<td>{cell}</td>' for cell in rest)}</tr>" for first, *rest in body)
    yield "</tbody></table></div>"
