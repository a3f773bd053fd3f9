"""JSON lines: a header with the schema and the number of lines, then the lines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pytest_specdec.errors import RunError
from pytest_specdec.files.codec import check_schema
from pytest_specdec.files.run_directory import atomic_write, read_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pytest_specdec.model.workload import JSON


class JsonLines:
    """The lines of a complete JSON Lines file, header first."""

    def __init__(self, path: Path, header: dict[str, JSON], rest: tuple[JSON, ...]) -> None:
        self.path = path
        self.header = header
        """Without ``schema`` and ``count``."""
        self.rest = rest
        """The lines after the header."""

    def error(self, error: RunError, line: int) -> RunError:
        """Return ``error`` with the file and ``line``, from 1, as its place."""
        where = f"{self.path}:{line}" + (f"  {error.where}" if error.where else "")
        return RunError(error.what, where=where, found=error.found, expected=error.expected, remedy=error.remedy)


def compact(data: JSON) -> str:
    """Return ``data`` as JSON on one line.

    Raises ValueError for NaN and infinities, which JSON does not have.
    """
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def write(path: Path, schema: str, header: dict[str, JSON], rest: Iterable[JSON]) -> None:
    """Write a file of JSON lines in one step, header first.

    The schema and the number of lines are added to ``header``. Raises RunError if the file cannot be written.
    """
    texts = [compact(line) for line in rest]
    atomic_write(path, "\n".join([compact({"schema": schema, **header, "count": len(texts)}), *texts, ""]))


def read(path: Path, schema: str) -> JsonLines | None:
    """Return the JSON lines of the file ``path``; None without one.

    Raises RunError, with file and line, if the file was cut or edited or has another ``schema``, and without a line if it is no regular
    file.
    """
    try:
        data = read_bytes(path)
    except FileNotFoundError:
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        # The line of the first wrong byte: 10 is a line feed.
        where, remedy = f"{path}:{data.count(10, 0, error.start) + 1}", "capture again: the file was cut or edited"
        msg = "the file is incomplete"
        raise RunError(msg, where=where, found=str(error), expected="UTF-8", remedy=remedy) from None
    # Not splitlines: answers may hold U+2028 and its like, which JSON leaves as they are.
    parsed = [_parse_line(path, number, line) for number, line in enumerate(text.removesuffix("\n").split("\n"), 1)]
    header = _check_header(path, schema, parsed[0])
    count = header.pop("count", None)
    if count != len(parsed) - 1:
        line_count, remedy = f"{len(parsed) - 1} lines after the header", "capture again: the file was cut"
        msg = "the file is incomplete"
        raise RunError(msg, where=f"{path}:{len(parsed)}", found=line_count, expected=f"{count}", remedy=remedy)
    return JsonLines(path, header, tuple(parsed[1:]))


def read_header(path: Path, schema: str) -> dict[str, JSON] | None:
    """Return the header of the file ``path``; None without a file.

    The lines after it are not parsed. Raises RunError, with file and line, if the header is cut or edited or of another ``schema``.
    """
    try:
        first = read_bytes(path).partition(b"\n")[0].decode(errors="replace")
    except FileNotFoundError:
        return None
    return _check_header(path, schema, _parse_line(path, 1, first))


def _parse_line(path: Path, number: int, line: str) -> JSON:
    """Return the value of a line; raise RunError unless it is JSON."""
    try:
        return json.loads(line)  # type: ignore[no-any-return]
    except (ValueError, RecursionError) as error:
        remedy = "capture again: the file was cut or edited"
        msg = "the file is incomplete"
        raise RunError(msg, where=f"{path}:{number}", found=str(error), expected="one JSON value a line", remedy=remedy) from None


def _check_header(path: Path, schema: str, first: JSON) -> dict[str, JSON]:
    """Return the header without its schema; raise RunError for another schema."""
    header = dict(first) if isinstance(first, dict) else {}
    check_schema(f"{path}:1", header.pop("schema", None), schema)
    return header
