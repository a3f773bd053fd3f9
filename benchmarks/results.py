"""Results of a benchmark with the date and the environment they come from, as JSON and as Markdown."""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import scipy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["FOLDER", "write"]

FOLDER = Path("benchmarks/results")


def write(name: str, rows: Sequence[Mapping[str, object]], *, command: str, seconds: float) -> None:
    """Write ``rows``, each with the ``table`` and the ``form`` that it belongs to, side by side with a page to read.

    Rows of other tables and forms stay as they are, so that one form can be measured anew; every row has its own date.
    """
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{name}.json"
    before = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    anew = {_place(row) for row in rows}
    now = environment()
    kept = [row for row in before if _place(row) not in anew] + [{**row, "date": now["date"]} for row in rows]
    document = {"command": command, **now, "seconds": round(seconds), "rows": kept}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    (FOLDER / f"{name}.md").write_text(_page(name, document, kept), encoding="utf-8")


def _place(row: Mapping[str, object]) -> tuple[object, object]:
    return (row["table"], row.get("form"))


def environment() -> dict[str, str]:
    """Return when and on what."""
    return {
        "date": dt.datetime.now(tz=dt.UTC).strftime("%Y-%m-%d"),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "versions": f"Python {platform.python_version()}, numpy {np.__version__}, scipy {scipy.__version__}",
    }


def _page(name: str, document: Mapping[str, object], rows: Sequence[Mapping[str, object]]) -> str:
    head = f"# {name.capitalize()}\n\n`{document['command']}`, {document['date']}, {document['machine']}, {document['versions']}.\n"
    tables = [_table(title, list(part)) for title, part in groupby(sorted(rows, key=_title), key=_title)]
    return "\n".join([head, *tables])


def _title(row: Mapping[str, object]) -> str:
    return str(row["table"])


def _table(title: str, rows: Sequence[Mapping[str, object]]) -> str:
    columns = [column for column in rows[0] if column != "table"]
    lines = ["| " + " | ".join(str(row[column]) for column in columns) + " |" for row in rows]
    return "\n".join([f"## {title}\n", "| " + " | ".join(columns) + " |", "|" + "---|" * len(columns), *lines, ""])
