"""The computed parts of files: ``python -m benchmarks.pages`` writes docs/' pictures and tables, and the schemas' families.

A table stands behind ``<!-- table: NAME -->`` up to the next empty line, the families in a list that begins with the first of them;
everything else in a file is left as it is.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import budget, example, unknown_draft
from benchmarks.pictures import pictures
from pytest_specdec.model.families import FAMILIES
from pytest_specdec.reference.faults import FAULTS

if TYPE_CHECKING:
    from pytest_specdec.reference.faults import PlantedFault

__all__ = ["FOLDER", "computed", "faults", "with_families"]

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs"
SCHEMAS = tuple(
    ROOT / "pytest_specdec" / name for name in ("config/schema.json", *(f"files/schemas/{kind}.schema.json" for kind in ("plan", "run")))
)
PAGES = ("how-the-gate-decides.md", "what-a-green-run-proves.md", "adding-a-fault.md")
TABLE = re.compile(r"(<!-- table: (?P<name>[^>]+) -->\n)(?:.+\n)*")
NAMES = re.compile(rf'("anyOf": \[\s*\{{\s*"enum": \[)(?P<gap>\s*)"{next(iter(FAMILIES))}"[^\]]*?(?=\s*\])')


def computed() -> dict[Path, str]:
    """Return what every picture, page and schema ought to hold. Raises KeyError for an unknown table."""
    tables = {**example.tables(), **budget.tables(), "unknown draft": unknown_draft.table(), "faults": faults()}
    drawn = {FOLDER / "pictures" / name: picture for name, picture in pictures().items()}
    pages = {FOLDER / name: _filled((FOLDER / name).read_text(encoding="utf-8"), tables) for name in PAGES}
    return drawn | pages | {path: with_families(path.read_text(encoding="utf-8")) for path in SCHEMAS}


def with_families(schema: str) -> str:
    """Return the text of a schema with this package's families, in the order of the registry. Raises ValueError without a list of them."""
    text, count = NAMES.subn(
        lambda found: found[1] + found["gap"] + f",{found['gap'] or ' '}".join(f'"{name}"' for name in FAMILIES), schema
    )
    if not count:
        msg = f"no list in the schema begins with {next(iter(FAMILIES))}"
        raise ValueError(msg)
    return text


def faults() -> str:
    """Return the list of planted faults as Markdown."""
    rows = [f"| `{fault.id}` | {fault.does} | {', '.join(fault.expected)} | {_families(fault)} |" for fault in FAULTS.values()]
    return "\n".join(["| id | a server with it | planted in | red families |", "|---|---|---|---|", *rows])


def _families(fault: PlantedFault) -> str:
    families = dict.fromkeys(family for expected in fault.expected.values() for family in expected.red)
    return ", ".join(families)


def _filled(page: str, tables: dict[str, str]) -> str:
    return TABLE.sub(lambda found: f"{found[1]}{tables[found['name']]}\n", page)


def _write() -> None:
    (FOLDER / "pictures").mkdir(exist_ok=True)
    for path, text in computed().items():
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}, {len(text.encode()):,} bytes")


if __name__ == "__main__":
    _write()
