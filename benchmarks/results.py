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
    """Write ``rows``, each with the ``table`` that it belongs to, side by side with a page to read."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    document = {"command": command, **environment(), "seconds": round(seconds), "rows": list(rows)}
    (FOLDER / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    (FOLDER / f"{name}.md").write_text(_page(name, document, rows), encoding="utf-8")


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
