"""The computed parts of files: ``python -m benchmarks.pages`` writes docs/' pictures and tables, and the schemas.

A table stands after ``<!-- table: NAME -->`` up to the next empty line, the families of the config's schema in a list that begins with
the first of them; everything else in these files is left as it is.
"""

from __future__ import annotations

import ast
import inspect
import re
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import budget, config_keys, example, reference_pages, schemas, unknown_draft
from benchmarks.pictures import pictures
from pytest_specdec import judge
from pytest_specdec.model.families import FAMILIES
from pytest_specdec.model.workload import Request, Workload
from specdec_reference.faults.catalogue import FAULTS

if TYPE_CHECKING:
    from specdec_reference.faults.planted import PlantedFault

__all__ = ["FOLDER", "computed", "faults", "suite_tables", "with_families"]

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs"
CONFIG_SCHEMA = ROOT / "pytest_specdec/config/schema.json"
SCHEMAS = ROOT / "pytest_specdec/files/schemas"
PAGES = (
    *("commands.md", "config.md", "exit-codes.md", "families.md", "faults.md", "fixtures.md", "options.md"),
    *("how-the-gate-decides.md", "what-a-green-run-proves.md", "writing-a-suite.md"),
)
TABLE = re.compile(r"(<!-- table: (?P<name>[^>]+) -->\n)(?:.+\n)*")
NAMES = re.compile(rf'("anyOf": \[\s*\{{\s*"enum": \[)(?P<gap>\s*)"{next(iter(FAMILIES))}"[^\]]*?(?=\s*\])')


def computed() -> dict[Path, str]:
    """Return what every picture, page and schema ought to hold. Raises KeyError for an unknown table."""
    tables = {**example.tables(), **budget.tables(), "unknown draft": unknown_draft.table(), "faults": faults(), **suite_tables()}
    tables |= reference_pages.tables()
    tables["config"] = config_keys.table(CONFIG_SCHEMA.read_text(encoding="utf-8"))
    drawn = {FOLDER / "pictures" / name: picture for name, picture in pictures().items()}
    pages = {FOLDER / name: _filled((FOLDER / name).read_text(encoding="utf-8"), tables) for name in PAGES}
    written = {SCHEMAS / f"{kind}.schema.json": text for kind, text in schemas.texts().items()}
    return drawn | pages | written | {CONFIG_SCHEMA: with_families(CONFIG_SCHEMA.read_text(encoding="utf-8"))}


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


def suite_tables() -> dict[str, str]:
    """Return what a suite is written with: the judges, and the fields of a workload and of its requests."""
    rows = [f"| `judge.{name}` | {_sentence(import_module(FAMILIES[name].judge).__doc__ or '')} |" for name in judge.__all__]
    judges = "\n".join(["| judge | what it judges |", "|---|---|", *rows])
    return {"judges": judges, "workload": _fields(Workload), "request": _fields(Request)}


def _sentence(docstring: str) -> str:
    """Return what the first sentence of a judge's docstring says, after the name of its family."""
    first = re.split(r"(?<=\.)\s", docstring.strip())[0].partition(": ")[2]
    return first[0].upper() + " ".join(first[1:].split())


def _fields(described: type) -> str:
    """Return the fields of a dataclass as Markdown, with the docstrings that stand under them; the meaning of one without stays empty."""
    (body,) = (node.body for node in ast.walk(ast.parse(inspect.getsource(described))) if isinstance(node, ast.ClassDef))
    pairs = [(one, below) for one, below in pairwise(body) if isinstance(one, ast.AnnAssign)]
    return "\n".join(["| field | default | meaning |", "|---|---|---|", *(_row(one, below) for one, below in pairs)])


def _row(one: ast.AnnAssign, below: ast.stmt) -> str:
    default = "" if one.value is None else "{}" if isinstance(one.value, ast.Call) else ast.unparse(one.value)
    meaning = ast.literal_eval(below.value) if isinstance(below, ast.Expr) else ""
    return f"| `{ast.unparse(one.target)}` | {f'`{default}`' if default else ''} | {_markdown(meaning)} |"


def _markdown(docstring: str) -> str:
    return " ".join(docstring.replace("``", "`").split())


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
