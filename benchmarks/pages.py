"""What docs/ holds that is computed: ``python -m benchmarks.pages`` writes the pictures, and the tables into their pages.

A table stands behind ``<!-- table: NAME -->`` up to the next empty line; everything else in a page is left as it is.
"""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks import budget, example, unknown_draft
from benchmarks.pictures import pictures

__all__ = ["FOLDER", "computed"]

FOLDER = Path(__file__).parent.parent / "docs"
PAGES = ("how-the-gate-decides.md", "what-a-green-run-proves.md")
TABLE = re.compile(r"(<!-- table: (?P<name>[^>]+) -->\n)(?:.+\n)*")


def computed() -> dict[Path, str]:
    """Return what every picture and page ought to hold. Raises KeyError for a table that nobody computes."""
    tables = {**example.tables(), **budget.tables(), "unknown draft": unknown_draft.table()}
    drawn = {FOLDER / "pictures" / name: picture for name, picture in pictures().items()}
    return drawn | {FOLDER / name: _filled((FOLDER / name).read_text(encoding="utf-8"), tables) for name in PAGES}


def _filled(page: str, tables: dict[str, str]) -> str:
    return TABLE.sub(lambda found: f"{found[1]}{tables[found['name']]}\n", page)


def _write() -> None:
    (FOLDER / "pictures").mkdir(exist_ok=True)
    for path, text in computed().items():
        path.write_text(text, encoding="utf-8")
        print(f"wrote docs/{path.relative_to(FOLDER)}, {len(text.encode()):,} bytes")


if __name__ == "__main__":
    _write()
